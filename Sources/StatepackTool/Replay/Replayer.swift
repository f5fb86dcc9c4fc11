import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// What a replay of the recording found.
package struct ReplayReport: Sendable {
    package enum Role: String, Sendable {
        case output
        case state
    }

    /// One output or state of one function, over all steps.
    package struct Tensor: Sendable {
        package var function: String
        package var role: Role
        package var name: String
        package var tolerance: Tolerance
        package var comparedElements = 0
        /// Largest |found - expected|.
        package var worstDifference: Double { worst.difference }
        /// The same over what the tolerance allows; above 1 it fails.
        package var worstRatio: Double { worst.ratio }
        /// Replay and step, both from 0, of the first step outside the tolerance.
        package var firstFailure: (replay: Int, step: Int)?
        var worst = WorstDifference()
        /// The first failing step's own worst element.
        var failing: WorstDifference?
        /// First step, and element, where bits changed that the step leaves alone.
        var disturbed: (replay: Int, step: Int, element: Int)?
        /// First step, and element, where moved data has other bits.
        var moved: (replay: Int, step: Int, element: Int)?
    }

    package var replays = 0
    package var steps = 0
    package var tensors: [Tensor] = []
    package var isolation = Isolation()
    package var findings: [Diagnostic] = []
}

/// Repeats a recorded run through the runtime and compares outputs and states, step by step.
///
/// States go on from the runtime's own values, as they do in use; what a step leaves alone is compared
/// with what it was before that step, bit for bit where the recording says so. What the run gave is then
/// held against further runs, byte for byte: see `Isolation`.
///
/// Cost: every recorded step up to six times, and up to three sets of states in memory.
package struct Replayer {
    private let functions: [String: InferenceFunction]
    private let recording: Recording
    private let run: StepRunner
    private var report = ReplayReport()

    /// `runner` runs each step; tests pass one that is broken on purpose.
    package static func run(
        _ recording: Recording, functions: [String: InferenceFunction], runner: StepRunner? = nil
    ) -> ReplayReport {
        var replayer = Replayer(
            functions: functions, recording: recording,
            run: runner ?? { try runFunction($0, inputs: $1, states: &$2).arrays })
        return replayer.replayAll()
    }

    private mutating func replayAll() -> ReplayReport {
        var traces: [Trace] = []
        for (index, replay) in recording.replays.enumerated() {
            do {
                var states = try freshStates(replay.steps, index)
                let first = try checkedPass(replay, index, &states)
                traces.append(first)
                let repeated = repeatedRun(replay, index, first, &states)
                report.isolation.reset.take(repeated)
                states = [:]
                let turns = runsInTurns(replay, index, first)
                report.isolation.interleaved.take(turns)
            } catch {
                report.findings += Self.diagnostics(of: error)
            }
            report.replays += 1
        }
        if traces.count < recording.replays.count {
            report.isolation.isIncomplete(because: "the runtime refused a recorded step")
        } else if traces.count > 1 {
            let reversed = runsInReverse(traces, recording.replays)
            report.isolation.order.take(reversed)
        } else {
            report.isolation.order = .notDone("the recording has one replay")
        }
        report.findings = report.tensors.flatMap(Self.findings) + report.findings + report.isolation.findings
        return report
    }

    static func diagnostics(of error: any Error) -> [Diagnostic] {
        (error as? Refusal)?.diagnostics ?? Tool.diagnostics(of: error)
    }

    /// A step that could not be run: ours says where, the others why.
    struct Refusal: Error {
        var diagnostics: [Diagnostic]
    }

    // MARK: One sequence

    typealias States = [String: NDArray]

    func freshStates(_ steps: [Recording.Step], _ index: Int) throws -> States {
        var states: States = [:]
        for (step, recorded) in steps.enumerated() {
            let function = try function(recorded, index, step)
            for name in function.descriptor.stateNames where states[name] == nil {
                let shapes = recorded.inputs.map { ($0.name, $0.shape) }
                states[name] = try function.initialValue(
                    ofState: name, inputShapes: Dictionary(shapes, uniquingKeysWith: { first, _ in first }))
            }
        }
        return states
    }

    private func function(_ step: Recording.Step, _ replay: Int, _ index: Int) throws -> InferenceFunction {
        if let function = functions[step.function] { return function }
        throw Refusal(diagnostics: [
            Diagnostic(
                .recordingMismatch, "the recording runs a function that the program does not have",
                at: "replay \(replay), step \(index)", expected: functions.keys.sorted().joined(separator: ", "),
                found: step.function)
        ])
    }

    /// Runs one step. `circumstance` says in a diagnostic what is special about this run.
    func perform(
        _ step: Recording.Step, _ replay: Int, _ index: Int, states: inout States, circumstance: String = ""
    ) throws -> [String: NDArray] {
        let function = try function(step, replay, index)
        var inputs: [String: NDArray] = [:]
        for input in step.inputs {
            var array = NDArray(shape: input.shape, scalarType: NDArray.ScalarType(input.scalarType))
            input.bytes.withUnsafeBytes { array.copyBytes(from: $0) }
            inputs[input.name] = array
        }
        do {
            return try run(function, inputs, &states)
        } catch {
            throw Refusal(
                diagnostics: [
                    Diagnostic(
                        .replayRefused, "the runtime refused a step of the recording",
                        at: "function `\(step.function)`, replay \(replay), step \(index)\(circumstance)")
                ] + Tool.diagnostics(of: error))
        }
    }

    // MARK: First run: values

    /// Leaves in `states` what they are after the last step.
    private mutating func checkedPass(
        _ replay: Recording.Replay, _ index: Int, _ states: inout States
    ) throws -> Trace {
        var trace = Trace()
        var former = states.mapValues { $0.withBytes { Array($0) } }
        for (stepIndex, step) in replay.steps.enumerated() {
            let outputs = try perform(step, index, stepIndex, states: &states)
            for recorded in step.outputs {
                try check(recorded, outputs[recorded.name], step.function, (index, stepIndex))
            }
            for recorded in step.states {
                guard let state = states[recorded.name], let before = former[recorded.name] else {
                    throw mismatch("a state", recorded.name, step.function, (index, stepIndex), states.keys.sorted())
                }
                try check(recorded, state, before: before, step.function, (index, stepIndex))
            }
            // What a step is not recorded to write, it only reads.
            let recordedNames = step.states.map(\.name)
            for name in try function(step, index, stepIndex).descriptor.stateNames where !recordedNames.contains(name) {
                checkUnchanged(name, states[name]!, before: former[name]!, step.function, (index, stepIndex))
            }
            for (name, state) in states {
                state.withBytes { bytes in former[name]!.withUnsafeMutableBytes { $0.copyMemory(from: bytes) } }
            }
            trace.steps.append(outputs.mapValues(Trace.Fingerprint.init))
            report.steps += 1
        }
        trace.states = states.mapValues(Trace.Fingerprint.init)
        return trace
    }

    private func mismatch(
        _ what: String, _ name: String, _ function: String, _ place: (replay: Int, step: Int), _ names: [String]
    ) -> Refusal {
        Refusal(diagnostics: [
            Diagnostic(
                .recordingMismatch, "the recording has \(what) that the function does not have",
                at: "function `\(function)`, replay \(place.replay), step \(place.step)",
                expected: names.joined(separator: ", "), found: name)
        ])
    }

    private mutating func tensorIndex(
        _ role: ReplayReport.Role, _ name: String, _ function: String, _ tolerance: Tolerance
    ) -> Int {
        if let index = report.tensors.firstIndex(where: {
            $0.role == role && $0.name == name && $0.function == function
        }) {
            return index
        }
        report.tensors.append(
            ReplayReport.Tensor(function: function, role: role, name: name, tolerance: tolerance))
        return report.tensors.count - 1
    }

    private mutating func check(
        _ recorded: Recording.Output, _ found: NDArray?, _ function: String, _ place: (replay: Int, step: Int)
    ) throws {
        guard let found else {
            throw mismatch(
                "an output", recorded.name, function, place, functions[function]?.descriptor.outputNames ?? [])
        }
        guard found.shape == recorded.shape, found.scalarType.stored == recorded.scalarType else {
            throw Refusal(diagnostics: [
                Diagnostic(
                    .replayOutput, "output `\(recorded.name)` has another type or shape than the recording",
                    at: "function `\(function)`, replay \(place.replay), step \(place.step)",
                    expected: "\(recorded.shape) \(recorded.scalarType)", found: found.description)
            ])
        }
        var worst = WorstDifference()
        let type = recorded.scalarType
        found.withBytes { bytes in
            recorded.values.withUnsafeBytes { values in
                if let indices = recorded.indices {
                    for (position, index) in indices.enumerated() {
                        compareElements(
                            type, found: bytes, from: index, expected: values, from: position, count: 1,
                            tolerance: recorded.tolerance, into: &worst)
                    }
                } else {
                    compareElements(
                        type, found: bytes, from: 0, expected: values, from: 0, count: values.count / type.byteCount,
                        tolerance: recorded.tolerance, into: &worst)
                }
            }
        }
        let tensor = tensorIndex(.output, recorded.name, function, recorded.tolerance)
        report.tensors[tensor].comparedElements += recorded.values.count / type.byteCount
        report.tensors[tensor].take(worst, place)
    }

    private mutating func check(
        _ recorded: Recording.State, _ found: NDArray, before: [UInt8], _ function: String,
        _ place: (replay: Int, step: Int)
    ) throws {
        guard let type = found.scalarType.stored else { return }
        let count = before.count / type.byteCount
        let changed = recorded.runs.reduce(0) { $0 + $1.count }
        guard recorded.runs.last?.upperBound ?? 0 <= count, changed * type.byteCount == recorded.values.count else {
            throw Refusal(diagnostics: [
                Diagnostic(
                    .recordingMismatch, "the recording of state `\(recorded.name)` does not fit its shape",
                    at: "function `\(function)`, replay \(place.replay), step \(place.step)",
                    expected: "runs within \(count) elements and \(changed * type.byteCount) bytes",
                    found: "runs up to \(recorded.runs.last?.upperBound ?? 0) and \(recorded.values.count) bytes")
            ])
        }
        var worst = WorstDifference()
        var moved: Int?
        var disturbed: Int?
        found.withBytes { bytes in
            recorded.values.withUnsafeBytes { values in
                before.withUnsafeBytes { before in
                    func checkUntouched(_ range: Range<Int>) {
                        if recorded.isSampled { return }
                        if recorded.untouchedExact {
                            disturbed =
                                disturbed
                                ?? compareBits(
                                    type, found: bytes, from: range.lowerBound, expected: before,
                                    from: range.lowerBound, count: range.count)
                        } else {
                            compareElements(
                                type, found: bytes, from: range.lowerBound, expected: before, from: range.lowerBound,
                                count: range.count, tolerance: recorded.tolerance, into: &worst)
                        }
                    }
                    var position = 0
                    var end = 0
                    for run in recorded.runs {
                        checkUntouched(end..<run.lowerBound)
                        compareElements(
                            type, found: bytes, from: run.lowerBound, expected: values, from: position,
                            count: run.count, tolerance: recorded.tolerance, into: &worst)
                        if recorded.movesData {
                            moved =
                                moved
                                ?? compareBits(
                                    type, found: bytes, from: run.lowerBound, expected: values, from: position,
                                    count: run.count)
                        }
                        position += run.count
                        end = run.upperBound
                    }
                    checkUntouched(end..<count)
                }
            }
        }
        let tensor = tensorIndex(.state, recorded.name, function, recorded.tolerance)
        report.tensors[tensor].comparedElements += recorded.isSampled ? changed : count
        report.tensors[tensor].take(worst, place)
        if let moved, report.tensors[tensor].moved == nil {
            report.tensors[tensor].moved = (place.replay, place.step, moved)
        }
        if let disturbed, report.tensors[tensor].disturbed == nil {
            report.tensors[tensor].disturbed = (place.replay, place.step, disturbed)
        }
    }

    private mutating func checkUnchanged(
        _ name: String, _ found: NDArray, before: [UInt8], _ function: String, _ place: (replay: Int, step: Int)
    ) {
        guard let type = found.scalarType.stored else { return }
        let count = before.count / type.byteCount
        let changed = found.withBytes { bytes in
            before.withUnsafeBytes { before in
                compareBits(type, found: bytes, from: 0, expected: before, from: 0, count: count)
            }
        }
        let tensor = tensorIndex(.state, name, function, Tolerance(absolute: 0, relative: 0))
        report.tensors[tensor].comparedElements += count
        if let changed, report.tensors[tensor].disturbed == nil {
            report.tensors[tensor].disturbed = (place.replay, place.step, changed)
        }
    }

    // MARK: Findings

    private static func findings(of tensor: ReplayReport.Tensor) -> [Diagnostic] {
        var findings: [Diagnostic] = []
        func location(_ place: (replay: Int, step: Int)) -> String {
            "function `\(tensor.function)`, replay \(place.replay), step \(place.step)"
        }
        if let place = tensor.firstFailure, let failing = tensor.failing {
            let tolerance = tensor.tolerance
            findings.append(
                Diagnostic(
                    tensor.role == .output ? .replayOutput : .replayState,
                    "\(tensor.role.rawValue) `\(tensor.name)` differs from the recording", at: location(place),
                    expected: """
                        \(failing.expected) at element \(failing.index ?? 0), within \(tolerance.absolute) + \
                        \(tolerance.relative)·|x|
                        """,
                    found: "\(failing.found); worst difference of all steps \(tensor.worstDifference)"))
        } else if let moved = tensor.moved {
            findings.append(
                Diagnostic(
                    .replayState,
                    "state `\(tensor.name)` has other bits than the recording where the step only moves data",
                    at: location((moved.replay, moved.step)), expected: "equal bits",
                    found: "other bits at element \(moved.element)"))
        }
        if let disturbed = tensor.disturbed {
            findings.append(
                Diagnostic(
                    .replayUntouched, "state `\(tensor.name)` changed where the step leaves it alone",
                    at: location((disturbed.replay, disturbed.step)), expected: "the bits from before the step",
                    found: "other bits at element \(disturbed.element)"))
        }
        return findings
    }
}

extension ReplayReport.Tensor {
    fileprivate mutating func take(_ worst: WorstDifference, _ place: (replay: Int, step: Int)) {
        self.worst.merge(worst)
        if worst.ratio > 1, firstFailure == nil {
            firstFailure = place
            failing = worst
        }
    }
}

extension Recording.Output {
    fileprivate var tolerance: Tolerance { Tolerance(absolute: absolute, relative: relative) }
}

extension Recording.State {
    fileprivate var tolerance: Tolerance { Tolerance(absolute: absolute, relative: relative) }
}
