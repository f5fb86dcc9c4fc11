import ExactTexts
import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackTool
import Testing

@Suite struct ValidateTests {
    /// A folder with the example's bundle.
    static func bundleFolder() async throws -> TestFolder {
        let folder = TestFolder()
        let run = await ToolRun("convert", Repository.example, "-o", folder / "model.statepack")
        #expect(run.status == 0, "\(run.diagnostics)")
        return folder
    }

    @Test func exampleHoldsAsBundleAndAsExportedProgram() async throws {
        let folder = try await Self.bundleFolder()
        for path in [folder / "model.statepack", Repository.example] {
            let contract = Repository.path("examples/01-stateful-transformer/exported.contract.json")
            let run = await ToolRun("validate", path, "--descriptors", contract, "--replay")
            #expect(run.status == 0)
            #expect(run.diagnostics == "")
            for line in [
                "contract", "replay", "output logits: within tolerance", "state keyCache: within tolerance",
                "isolation  a reset equals a fresh start: the same bytes", "two sequences in turns: the same bytes",
                "replays in reverse order: not checked, the recording has one replay", "verdict    holds",
            ] {
                #expect(run.results.contains(line), "\(run.results)")
            }
        }
        #expect(folder.names == ["model.statepack"])
    }

    @Test func jsonReportIsTheOnlyResultAndHasEverything() async throws {
        let folder = try await Self.bundleFolder()
        let run = await ToolRun("validate", folder / "model.statepack", "--json", "--threads", "1")
        #expect(run.status == 0)
        let report = try JSONReader.read(Array(run.results.utf8))
        #expect(report["holds"] == .bool(true))
        #expect(report["exitCode"] == 0)
        #expect(report["kind"] == "bundle")
        #expect(report["bytes"]?["status"] == "hold")
        #expect(report["contract"]?["status"] == "notCompared")
        #expect(report["findings"] == [])
        let replay = report["replay"]
        #expect(replay?["status"] == "holds")
        #expect(replay?["steps"]?.integerValue ?? 0 >= 3)
        #expect(replay?["isolation"]?["interleaved"]?["status"] == "holds")
        let tensors = replay?["tensors"]?.arrayValue ?? []
        #expect(tensors.compactMap { $0["name"]?.stringValue } == ["logits", "keyCache", "valueCache"])
        for tensor in tensors { #expect(tensor["firstFailingStep"] == .null) }
    }

    @Test func withoutReplayNothingIsRun() async throws {
        let folder = try await Self.bundleFolder()
        let run = await ToolRun("validate", folder / "model.statepack", "--json", "--no-replay")
        #expect(run.status == 0)
        #expect(try JSONReader.read(Array(run.results.utf8))["replay"]?["status"] == "notDone")
    }

    @Test func contractThatDoesNotHoldIsAFindingInBothForms() async throws {
        let folder = try await Self.bundleFolder()
        let text = String(
            decoding: try Golden.bytes(Repository.path("examples/01-stateful-transformer/exported.contract.json")),
            as: UTF8.self
        )
        folder.write(text.replacing("\"max\": 256", with: "\"max\": 512").utf8, to: "contract.json")
        for path in [folder / "model.statepack", Repository.example] {
            let run = await ToolRun("validate", path, "--descriptors", folder / "contract.json", "--replay", "--json")
            #expect(run.status == 1)
            #expect(run.diagnostics == "")
            let report = try JSONReader.read(Array(run.results.utf8))
            #expect(report["holds"] == .bool(false))
            #expect(report["contract"]?["status"] == "differs")
            let contract = folder / "contract.json"
            let accept =
                "when the change is meant: statepack describe \(path) -o \(contract), and change the Swift callers, "
                + "then git add \(contract)"
            #expect(report["replay"]?["status"] == "holds")
            #expect(
                report["findings"]
                    == [
                        [
                            "code": "E0719", "severity": "error",
                            "message": "the symbol `query` has other bounds (breaking)",
                            "location": .string("\(path), symbol `query`"), "expected": "1 to 512",
                            "found": "1 to 256", "hint": .string(accept),
                        ]
                    ])
        }
    }

    @Test func bundleCutAnywhereIsMalformed() async throws {
        let folder = try await Self.bundleFolder()
        let bytes = try folder.read("model.statepack")
        for index in 0..<256 {
            let length = bytes.count * index / 256
            folder.write(bytes.prefix(length), to: "cut.statepack")
            let run = await ToolRun("validate", folder / "cut.statepack")
            #expect(run.status == 3, "cut after \(length) bytes: \(run.diagnostics)")
            #expect(run.diagnostics.hasPrefix("error[E05"))
            let load = await ToolRun("statepack", "run", folder / "cut.statepack")
            #expect(load.status == 3, "cut after \(length) bytes: \(load.diagnostics)")
        }
    }

    @Test func aFlippedBitAnywhereIsMalformed() async throws {
        let folder = try await Self.bundleFolder()
        let bytes = try folder.read("model.statepack")
        for index in stride(from: 0, to: bytes.count, by: bytes.count / 64 + 1) {
            var damaged = bytes
            damaged[index] ^= 0x10
            folder.write(damaged, to: "damaged.statepack")
            let run = await ToolRun("validate", folder / "damaged.statepack", "--json")
            #expect(run.status == 3 || run.status == 4, "byte \(index): \(run.results)")
            let report = try JSONReader.read(Array(run.results.utf8))
            #expect(report["holds"] == .bool(false))
            #expect(report["replay"]?["status"] == "notDone")
        }
    }

    @Test func missingFileAndFolderAreUnreadable() async throws {
        let folder = TestFolder()
        for path in [folder / "missing.statepack", folder.path] {
            let run = await ToolRun("validate", path)
            #expect(run.status == 3)
            #expect(run.diagnostics.contains(path))
        }
    }

    // MARK: Replay

    /// The example's functions and its recording.
    static func replayParts() async throws -> (functions: [String: InferenceFunction], recording: Recording) {
        let folder = try await bundleFolder()
        let bundle = try MappedBundle(path: folder / "model.statepack")
        let model = try AIModel(bundle)
        var functions: [String: InferenceFunction] = [:]
        for name in model.functionNames { functions[name] = try model.loadFunction(named: name) }
        return (functions, try Recording(serialized: bundle.recording))
    }

    struct Change: CustomTestStringConvertible {
        var testDescription: String
        var change: @Sendable (inout Recording) -> Void
        var code: Diagnostic.Code
        var message: String
        var location: String
        var status: Int32
    }

    static func setFloat(_ bytes: inout [UInt8], at index: Int, to value: Float) {
        withUnsafeBytes(of: value.bitPattern.littleEndian) {
            bytes.replaceSubrange(index * 4..<index * 4 + 4, with: $0)
        }
    }

    static let changes: [Change] = [
        Change(
            testDescription: "another logit at step 2",
            change: { setFloat(&$0.replays[0].steps[2].outputs[0].values, at: 7, to: 1000) }, code: .replayOutput,
            message: "output `logits` differs from the recording", location: "function `main`, replay 0, step 2",
            status: 1),
        Change(
            testDescription: "NaN expected",
            change: { setFloat(&$0.replays[0].steps[1].outputs[0].values, at: 0, to: .nan) },
            code: .replayOutput, message: "output `logits` differs from the recording",
            location: "function `main`, replay 0, step 1", status: 1),
        Change(
            testDescription: "another key at step 0",
            change: { setFloat(&$0.replays[0].steps[0].states[0].values, at: 3, to: 50) }, code: .replayState,
            message: "state `keyCache` differs from the recording", location: "function `main`, replay 0, step 0",
            status: 1),
        Change(
            testDescription: "a row that the recording does not know of",
            change: { recording in
                let state = recording.replays[0].steps[1].states[1]
                let dropped = state.runs.last!.count
                recording.replays[0].steps[1].states[1].runs.removeLast()
                recording.replays[0].steps[1].states[1].values.removeLast(dropped * 4)
            }, code: .replayUntouched, message: "state `valueCache` changed where the step leaves it alone",
            location: "function `main`, replay 0, step 1", status: 1),
        Change(
            testDescription: "a state that the recording does not write",
            change: { $0.replays[0].steps[3].states.removeLast() }, code: .replayUntouched,
            message: "state `valueCache` changed where the step leaves it alone",
            location: "function `main`, replay 0, step 3", status: 1),
        Change(
            testDescription: "moved data with other bits",
            change: { recording in
                recording.replays[0].steps[0].states[0].movesData = true
                recording.replays[0].steps[0].states[0].values[0] ^= 1
            }, code: .replayState,
            message: "state `keyCache` has other bits than the recording where the step only moves data",
            location: "function `main`, replay 0, step 0", status: 1),
        Change(
            testDescription: "an unknown function", change: { $0.replays[0].steps[0].function = "decode" },
            code: .recordingMismatch, message: "the recording runs a function that the program does not have",
            location: "replay 0, step 0", status: 3),
        Change(
            testDescription: "an unknown output", change: { $0.replays[0].steps[0].outputs[0].name = "scores" },
            code: .recordingMismatch, message: "the recording has an output that the function does not have",
            location: "function `main`, replay 0, step 0", status: 3),
        Change(
            testDescription: "an unknown state", change: { $0.replays[0].steps[0].states[0].name = "keys" },
            code: .recordingMismatch, message: "the recording has a state that the function does not have",
            location: "function `main`, replay 0, step 0", status: 3),
        Change(
            testDescription: "a run behind the end of the state",
            change: { $0.replays[0].steps[0].states[0].runs = [40_000..<40_001] }, code: .recordingMismatch,
            message: "the recording of state `keyCache` does not fit its shape",
            location: "function `main`, replay 0, step 0", status: 3),
        Change(
            testDescription: "an input that is missing", change: { $0.replays[0].steps[1].inputs.removeLast() },
            code: .replayRefused, message: "the runtime refused a step of the recording",
            location: "function `main`, replay 0, step 1", status: 1),
        Change(
            testDescription: "an output of another shape",
            change: { $0.replays[0].steps[1].outputs[0].shape = [1, 64] },
            code: .replayOutput, message: "output `logits` has another type or shape than the recording",
            location: "function `main`, replay 0, step 1", status: 1),
    ]

    @Test(arguments: changes)
    func replayFindsWhatDiffersAndTheFirstStepThatDoes(_ row: Change) async throws {
        var (functions, recording) = try await Self.replayParts()
        row.change(&recording)
        let report = Replayer.run(recording, functions: functions)
        let finding = try #require(report.findings.first)
        #expect(finding.code == row.code)
        #expect(finding.message == row.message)
        #expect(finding.location == row.location)
        #expect(finding.expected != nil && finding.found != nil || row.code == .replayRefused)
        #expect(DiagnosticList(report.findings).exitCode == row.status)
        var text = ExactTexts.text([finding])
        // The last digits of an output depend on the processor: its attention adds up in the processor's vectors.
        if row.code == .replayOutput { text = text.replacing(#/([0-9]+\.[0-9]{4})[0-9]+/#) { "\($0.1)…" } }
        #expect(text == ExactTexts.expected("Replay", row.testDescription, actual: text))
    }

    @Test func unchangedRecordingReplaysWithinItsTolerance() async throws {
        let (functions, recording) = try await Self.replayParts()
        let report = Replayer.run(recording, functions: functions)
        #expect(report.findings == [])
        #expect(report.isolation.reset == .holds)
        #expect(report.isolation.interleaved == .holds)
        #expect(report.steps == recording.replays.reduce(0) { $0 + $1.steps.count })
        for tensor in report.tensors {
            #expect(tensor.comparedElements > 0)
            #expect(tensor.worstRatio <= 1)
        }
    }
}
