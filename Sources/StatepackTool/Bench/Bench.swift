import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// `statepack bench`: what a step of one function costs as its context grows, and what this machine could do at best.
///
/// Everything is measured in turns in one process, so that whatever else the machine does meets all figures alike.
struct Bench {
    private let arguments: Arguments
    private let console: Console
    private let path: String

    static let defaultRepetitions = 25
    static let defaultWarmUp = 3
    /// A prefill takes as long as hundreds of steps.
    static let prefillRepetitions = 5
    private static let loads = 5

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
        path = arguments.operands[0]
    }

    func run() throws -> Int32 {
        let report: BenchReport
        do { report = try measure() } catch let failure as SizeExpression.Failure {
            throw Diagnostic(
                .malformedFunction, "a size of the function cannot be computed", at: path, found: "\(failure)")
        }
        console.add(contentsOf: report.json)
        console.write(report.text)
        return 0
    }

    private func measure() throws -> BenchReport {
        let (bundle, model, function, load) = try loaded()
        let plan = try plan(bundle, function)
        let repetitions = arguments.integer("repetitions") ?? Self.defaultRepetitions
        let warmUp = arguments.integer("warm-up") ?? Self.defaultWarmUp
        var report = BenchReport(file: path, plan: plan, threadCount: model.threadCount, load: load)
        (report.repetitions, report.warmUp) = (repetitions, warmUp)
        report.afterLoad = .now()
        report.stateBytes = try plan.states(plan.symbols, of: function).values.reduce(0) { $0 + $1.byteCount }

        var states = try plan.states(plan.symbols, of: function)
        let contexts = plan.contexts?.list.map { Optional($0) } ?? [nil]
        var calls: [BenchCall] = []
        for context in contexts {
            calls.append(
                try BenchCall(function, plan.arrays(plan.symbols, context: context ?? 0), states: &states))
        }
        var rounds = Rounds(calls: calls, weights: bundle.weights, threadCount: model.threadCount)
        try rounds.run(warmUp + repetitions, states: &states)
        report.afterSteps = .now()
        rounds.dropFirst(warmUp)
        for (index, context) in contexts.enumerated() {
            let rows = context.map { $0 + plan.contexts!.stepLength } ?? 0
            let attentionRows = rounds.calls[index].statistics.attentionRows
            report.steps.append(
                .init(
                    context: context, milliseconds: Spread(of: rounds.steps[index])!, attentionRows: attentionRows,
                    bytes: try StepBytes(
                        plan.program, plan.function, plan.symbols, rows: rows, attentionRows: attentionRows)))
        }
        report.bandwidth = rounds.bandwidth
        report.growth = growth(rounds, plan)
        rounds.calls = []
        if let prefill = plan.prefill {
            report.prefill = try measure(prefill, plan, function, &states, min(repetitions, Self.prefillRepetitions))
        }
        report.atTheEnd = .now()
        return report
    }

    // MARK: Loading

    /// The bundle stays mapped from the first load on; what repeats is what a process does that starts with it.
    private func loaded() throws -> (MappedBundle, AIModel, InferenceFunction, Spread) {
        var options = SpecializationOptions.default
        options.threadCount = arguments.integer("threads")
        var times: [Double] = []
        var last: (MappedBundle, AIModel, InferenceFunction)?
        for _ in 0..<Self.loads {
            last = nil
            let start = ContinuousClock.now
            let bundle = try MappedBundle(path: path)
            let model = try AIModel(bundle, options: options)
            let function = try arguments.loadFunction(of: model)
            times.append((ContinuousClock.now - start).milliseconds)
            last = (bundle, model, function)
        }
        return (last!.0, last!.1, last!.2, Spread(of: times)!)
    }

    private func plan(_ bundle: MappedBundle, _ function: InferenceFunction) throws -> BenchPlan {
        var recording: Recording?
        if !bundle.recording.isEmpty {
            recording = try Recording(
                serialized: bundle.recording, path: path, skippingUnknownFields: bundle.isNewerMinorVersion)
        }
        let planned = bundle.program.functions.first { $0.name == function.descriptor.name }!
        return try BenchPlan(bundle.program, function: planned, recording: recording, arguments)
    }

    // MARK: Figures

    private func growth(_ rounds: Rounds, _ plan: BenchPlan) -> BenchReport.Growth? {
        guard let list = plan.contexts?.list, list.count > 1 else { return nil }
        let (first, last) = (list.first!, list.last!)
        let perThousand = 1000 / Double(last - first)
        // Both of a round, so that what disturbs the machine for longer than a round cancels.
        let differences = zip(rounds.steps.first!, rounds.steps.last!).map { ($1 - $0) * perThousand }
        return Spread(of: differences).map { .init(from: first, to: last, milliseconds: $0) }
    }

    private func measure(
        _ prefill: BenchPlan.Prefill, _ plan: BenchPlan, _ function: InferenceFunction,
        _ states: inout [String: NDArray], _ repetitions: Int
    ) throws -> BenchReport.Prefill {
        let shapes = try plan.states(prefill.symbols, of: function)
        // A state whose size follows the number of positions is another array.
        for (name, state) in shapes where states[name]!.shape != state.shape { states[name] = state }
        var call = try BenchCall(function, plan.arrays(prefill.symbols, context: 0), states: &states)
        var times: [Double] = []
        for _ in 0..<repetitions { times.append(try call.run(&states)) }
        return .init(
            length: prefill.length, milliseconds: Spread(of: times)!, inputs: try plan.inputs(prefill.symbols))
    }
}

/// One step with arrays that stay where they are: nothing is allocated for a run but by the run itself.
private struct BenchCall {
    private let function: InferenceFunction
    private let inputs: [String: NDArray]
    private var outputs: [String: NDArray]
    private(set) var statistics = InferenceFunction.RunStatistics()

    /// Runs once, which makes the arrays for the outputs.
    init(_ function: InferenceFunction, _ inputs: [String: NDArray], states: inout [String: NDArray]) throws {
        self.function = function
        self.inputs = inputs
        (outputs, statistics) = try runFunction(function, inputs: inputs, states: &states)
    }

    /// Milliseconds of one run. `states` holds those of the function and no others.
    mutating func run(_ states: inout [String: NDArray]) throws -> Double {
        let start = ContinuousClock.now
        // Views of a property would keep all of this value.
        let (function, inputs) = (function, inputs)
        var given = InferenceFunction.Inputs()
        given.insert(contentsOf: inputs)
        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(contentsOf: &states)
        var outputViews = InferenceFunction.MutableViews()
        outputViews.insert(contentsOf: &outputs)
        let done = try function.runSynchronously(inputs: given, states: stateViews, outputViews: outputViews)
        statistics = done.statistics
        return (ContinuousClock.now - start).milliseconds
    }
}

/// Rounds of one step at each context and both bandwidths. Every other round goes through the contexts backwards, so that
/// none always follows the same one.
private struct Rounds {
    var calls: [BenchCall]
    let weights: UnsafeRawBufferPointer
    let threadCount: Int
    /// Milliseconds, by context and round.
    private(set) var steps: [[Double]]
    /// Bytes per second, by round.
    private var oneStream: [Double] = []
    /// Less is read in no time that could be measured.
    static let smallestBuffer = 1 << 20
    private var fourStreams: [Double] = []

    init(calls: [BenchCall], weights: UnsafeRawBufferPointer, threadCount: Int) {
        self.calls = calls
        self.weights = weights
        self.threadCount = threadCount
        steps = Array(repeating: [], count: calls.count)
    }

    mutating func run(_ count: Int, states: inout [String: NDArray]) throws {
        // What grows while it is measured would be measured, too.
        for index in steps.indices { steps[index].reserveCapacity(count) }
        oneStream.reserveCapacity(count)
        fourStreams.reserveCapacity(count)
        for round in 0..<count {
            for place in calls.indices {
                let index = round % 2 == 0 ? place : calls.count - 1 - place
                steps[index].append(try calls[index].run(&states))
            }
            if weights.count < Self.smallestBuffer { continue }
            fourStreams.append(MemoryBandwidth.measure(over: weights, streams: 4, threadCount: threadCount))
            oneStream.append(MemoryBandwidth.measure(over: weights, streams: 1, threadCount: threadCount))
        }
    }

    mutating func dropFirst(_ count: Int) {
        for index in steps.indices { steps[index].removeFirst(count) }
        oneStream.removeFirst(min(count, oneStream.count))
        fourStreams.removeFirst(min(count, fourStreams.count))
    }

    var bandwidth: BenchReport.Bandwidth? {
        guard let one = Spread(of: oneStream), let four = Spread(of: fourStreams) else { return nil }
        return .init(byteCount: weights.count, oneStream: one, fourStreams: four)
    }
}

extension Duration {
    var milliseconds: Double {
        Double(components.seconds) * 1e3 + Double(components.attoseconds) / 1e15
    }
}
