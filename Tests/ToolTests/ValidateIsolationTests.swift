import Statepack
import StatepackCompiler
import StatepackDiagnostics
import StatepackTool
import Testing

/// Sequences are kept apart, and `validate` notices when they are not: each test breaks what runs the steps.
@Suite struct ValidateIsolationTests {
    /// The example's recording twice; the second replay is one other step, of which nothing is compared.
    static func parts() async throws -> (functions: [String: InferenceFunction], recording: Recording) {
        var (functions, recording) = try await ValidateTests.replayParts()
        var step = recording.replays[0].steps[1]
        step.outputs = []
        for index in step.states.indices {
            step.states[index].runs = []
            step.states[index].values = []
            step.states[index].isSampled = true
        }
        let position = step.inputs.firstIndex { $0.name == "position_ids" }!
        step.inputs[position].bytes[0] = 99
        recording.replays.append(recording.replays[0])
        recording.replays[1].steps = [step]
        return (functions, recording)
    }

    static func bytes(_ array: NDArray) -> [UInt8] {
        var bytes: [UInt8] = []
        array.rawView().withUnsafeBytes { pointer, _, _ in
            bytes = Array(
                UnsafeRawBufferPointer(start: pointer, count: array.shape.reduce(array.scalarType == .int64 ? 8 : 4, *))
            )
        }
        return bytes
    }

    static func address(_ array: NDArray) -> UInt {
        var address: UInt = 0
        array.rawView().withUnsafeBytes { pointer, _, _ in address = UInt(bitPattern: pointer) }
        return address
    }

    static func run(
        _ function: InferenceFunction, _ inputs: [String: NDArray], _ states: inout [String: NDArray]
    ) throws -> [String: NDArray] {
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var outputs = try function.runSynchronously(inputs: inputs, states: views)
        return ["logits": outputs.remove("logits")!.ndArray!]
    }

    /// An output with one other bit.
    static func disturbed(_ outputs: [String: NDArray]) -> [String: NDArray] {
        var logits = outputs["logits"]!
        logits.mutableRawView().withUnsafeMutableBytes { pointer, _, _ in
            pointer.storeBytes(of: pointer.load(as: UInt8.self) ^ 1, as: UInt8.self)
        }
        return ["logits": logits]
    }

    @Test func aRunnerThatKeepsNothingPassesAllThree() async throws {
        let (functions, recording) = try await Self.parts()
        let report = Replayer.run(recording, functions: functions) { try Self.run($0, $1, &$2) }
        #expect(report.findings == [])
        #expect(report.isolation.reset == .holds)
        #expect(report.isolation.interleaved == .holds)
        #expect(report.isolation.order == .holds)
    }

    @Test func whatStaysInAnArrayAfterAResetIsFound() async throws {
        let (functions, recording) = try await Self.parts()
        // Remembers per array how often it was used, as a cache beside the states would.
        var uses: [UInt: Int] = [:]
        let steps = recording.replays[0].steps.count
        let report = Replayer.run(recording, functions: functions) { function, inputs, states in
            let outputs = try Self.run(function, inputs, &states)
            let address = Self.address(states["keyCache"]!)
            uses[address, default: 0] += 1
            return uses[address]! > steps ? Self.disturbed(outputs) : outputs
        }
        let expected = Diagnostic(
            .replayReset, "output `logits` has other bytes when the sequence starts again after a reset",
            at: "replay 0, step 0", expected: "the bytes of the first run", found: "other bytes")
        #expect(report.isolation.reset == .differs([expected]))
        #expect(report.findings.contains(expected))
        #expect(
            expected.description == """
                error[E0724]: output `logits` has other bytes when the sequence starts again after a reset
                  --> replay 0, step 0
                  expected: the bytes of the first run
                  found:    other bytes
                """)
    }

    @Test func whatPassesFromOneSequenceToAnotherIsFound() async throws {
        let (functions, recording) = try await Self.parts()
        // Takes the states that the call before left for those of this call, unless they are fresh.
        var last: [UInt8]?
        let report = Replayer.run(recording, functions: functions) { function, inputs, states in
            let before = Self.bytes(states["keyCache"]!)
            let isForeign = before.contains { $0 != 0 } && before != last
            let outputs = try Self.run(function, inputs, &states)
            last = Self.bytes(states["keyCache"]!)
            return isForeign ? Self.disturbed(outputs) : outputs
        }
        #expect(
            report.findings.map(\.description) == [
                """
                error[E0752]: output `logits` has other bytes when another sequence runs in turns with this one
                  --> replay 0, step 1
                  expected: the bytes of the sequence alone
                  found:    other bytes
                """
            ])
        #expect(report.isolation.reset == .holds)
        #expect(report.isolation.order == .holds)
    }

    @Test func whatDependsOnTheReplayBeforeIsFound() async throws {
        let (functions, recording) = try await Self.parts()
        // Once it has seen position 99 it gives the first prompt other logits.
        var hasSeen = false
        let prompt = recording.replays[0].steps[0].inputs.first { $0.name == "position_ids" }!.bytes
        let report = Replayer.run(recording, functions: functions) { function, inputs, states in
            let outputs = try Self.run(function, inputs, &states)
            let positions = Self.bytes(inputs["position_ids"]!)
            let isPrompt = positions == prompt
            if positions[0] == 99 { hasSeen = true }
            return hasSeen && isPrompt ? Self.disturbed(outputs) : outputs
        }
        #expect(
            report.findings.map(\.description) == [
                """
                error[E0753]: output `logits` has other bytes when the replays run in reverse order
                  --> replay 0, step 0
                  expected: the bytes of the run in their own order
                  found:    other bytes
                """
            ])
        #expect(report.isolation.reset == .holds)
        #expect(report.isolation.interleaved == .holds)
    }

    // NOTE: a function of its own, for swiftc 6.3.1 with -O cannot compile this inside the closure below.
    private static func changeFirstByte(of array: inout NDArray) {
        array.mutableRawView().withUnsafeMutableBytes { pointer, _, _ in pointer.storeBytes(of: 7, as: UInt8.self) }
    }

    @Test func aStateThatDiffersIsFoundAfterTheLastStep() async throws {
        let (functions, recording) = try await ValidateTests.replayParts()
        let steps = recording.replays[0].steps.count
        var calls = 0
        let report = Replayer.run(recording, functions: functions) { function, inputs, states in
            let outputs = try Self.run(function, inputs, &states)
            calls += 1
            if calls == 2 * steps {
                Self.changeFirstByte(of: &states["valueCache"]!)
            }
            return outputs
        }
        #expect(
            report.findings == [
                Diagnostic(
                    .replayReset, "state `valueCache` has other bytes when the sequence starts again after a reset",
                    at: "replay 0, after the last step", expected: "the bytes of the first run", found: "other bytes")
            ])
    }

    @Test func nothingIsSaidOfIsolationWhenAStepWasRefused() async throws {
        var (functions, recording) = try await Self.parts()
        recording.replays[0].steps[2].inputs.removeLast()
        let report = Replayer.run(recording, functions: functions)
        #expect(report.findings.first?.code == .replayRefused)
        let expected = Isolation.Outcome.notDone("the runtime refused a recorded step")
        #expect(report.isolation.reset == expected)
        #expect(report.isolation.interleaved == expected)
        #expect(report.isolation.order == expected)
        #expect(expected.text == "not checked, the runtime refused a recorded step")
    }

    @Test func aStepThatIsRefusedOnlyTheSecondTimeIsADifference() async throws {
        let (functions, recording) = try await ValidateTests.replayParts()
        let steps = recording.replays[0].steps.count
        var calls = 0
        let report = Replayer.run(recording, functions: functions) { function, inputs, states in
            calls += 1
            if calls == steps + 2 { throw Diagnostic(.stateInUse, "busy") }
            return try Self.run(function, inputs, &states)
        }
        #expect(
            report.findings == [
                Diagnostic(
                    .replayRefused, "the runtime refused a step of the recording",
                    at: "function `main`, replay 0, step 1, run again after a reset"),
                Diagnostic(.stateInUse, "busy"),
            ])
        #expect(report.isolation.interleaved == .holds)
    }
}
