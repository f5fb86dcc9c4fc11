import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import StatepackTool
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// What `validate` does and leaves out, and that its report says so.
@Suite struct ValidateScopeTests {
    static let contract = Repository.path("examples/01-stateful-transformer/exported.contract.json")

    @Test func aContractAloneIsAllThatIsChecked() async throws {
        let folder = try await ValidateTests.bundleFolder()
        for (path, program) in [
            (folder / "model.statepack", "program    1 function (main), 2 states, 26 instructions\n"),
            (Repository.example, ""),
        ] {
            let run = await ToolRun("validate", path, "--descriptors", Self.contract)
            #expect(run.status == 0)
            #expect(run.diagnostics == "")
            #expect(
                run.results
                    == program + "contract   holds\nunchecked  checksums, replay\nverdict    holds\n")
        }
    }

    struct Row: CustomTestStringConvertible {
        var words: [String]
        /// Status of the bytes, of the contract and of the replay; what the report says it left out.
        var bytes: JSONValue
        var contract: JSONValue
        var replay: JSONValue
        var notChecked: JSONValue

        var testDescription: String { words.joined(separator: " ") }
    }

    static let rows: [Row] = [
        Row(words: [], bytes: "hold", contract: "notCompared", replay: "holds", notChecked: ["contract"]),
        Row(
            words: ["--no-replay"], bytes: "hold", contract: "notCompared", replay: "notDone",
            notChecked: ["contract", "replay"]),
        Row(
            words: ["--checksums"], bytes: "hold", contract: "notCompared", replay: "notDone",
            notChecked: ["contract", "replay"]),
        Row(words: ["--replay"], bytes: "hold", contract: "notCompared", replay: "holds", notChecked: ["contract"]),
        Row(
            words: ["--descriptors", contract], bytes: "notCompared", contract: "holds", replay: "notDone",
            notChecked: ["checksums", "replay"]),
        Row(
            words: ["--descriptors", contract, "--checksums"], bytes: "hold", contract: "holds", replay: "notDone",
            notChecked: ["replay"]),
        Row(
            words: ["--descriptors", contract, "--replay"], bytes: "hold", contract: "holds", replay: "holds",
            notChecked: []),
    ]

    @Test(arguments: rows)
    func aNamedCheckIsDoneAndTheReportSaysWhatIsNot(_ row: Row) async throws {
        let folder = try await ValidateTests.bundleFolder()
        for path in [folder / "model.statepack", Repository.example] {
            let run = await ToolRun("validate", [path, "--format", "json"] + row.words)
            #expect(run.status == 0)
            let report = try JSONReader.read(Array(run.results.utf8))
            #expect(report["bytes"]?["status"] == row.bytes)
            #expect(report["contract"]?["status"] == row.contract)
            #expect(report["replay"]?["status"] == row.replay)
            #expect(report["notChecked"] == row.notChecked)
        }
    }

    @Test func replayAndNoReplayExcludeEachOther() async {
        let run = await ToolRun("validate", "m.statepack", "--replay", "--no-replay")
        #expect(run.status == 2)
        #expect(
            run.diagnostics == """
                error[E0709]: --replay and --no-replay exclude each other
                  --> validate
                  hint:     give one of them

                """)
    }

    @Test func differencesOfTheContractHaveTheirClass() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let text = String(decoding: try Golden.bytes(Self.contract), as: UTF8.self)
        folder.write(text.replacing("\"max\": 256", with: "\"max\": 512").utf8, to: "contract.json")
        let run = await ToolRun("validate", folder / "model.statepack", "--descriptors", folder / "contract.json")
        #expect(run.status == 1)
        #expect(run.results.contains("contract   1 difference: 1 breaking\n"))
        let json = await ToolRun(
            "validate", folder / "model.statepack", "--descriptors", folder / "contract.json", "--json")
        let report = try JSONReader.read(Array(json.results.utf8))
        #expect(
            report["contract"]?["differences"] == [
                [
                    "class": "breaking", "change": "bounds", "code": "E0719", "location": "symbol `query`",
                    "expected": "1 to 512", "found": "1 to 256",
                ]
            ])
    }

    /// A hole of 4 GB that is the weights section, as a bundle of that size on disk would have it.
    @Test func aContractIsComparedWithoutReadingFourGigabytesOfWeights() async throws {
        let folder = TestFolder()
        let path = folder / "large.statepack"
        let rows = 1 << 20
        let program = try Program(
            text: """
                symbol n 1...4
                tensor "w" float32[\(rows), 1024] weights "w"
                state "s" float32[4, 1024] buffer "s" splat 00000000
                func "main" {
                    input %0 "i": int64[n]
                    state %1 "s": float32[4, 1024] after %4 writtenBy "index_copy"
                    constant %2 "w": float32[\(rows), 1024]
                    %3: float32[n, 1024] = embedding(weight=%2, index=%0)
                    %4: float32[4, 1024] = index_copy(a=%1, index=%0, source=%3, axis=0)
                    output %3 "y"
                }
                """)
        let compiled = try Compiler().compile(decomposed: program)
        let encoded = try compiled.bundle.encoded()
        let length = compiled.bundle.tensors.map { $0.offset + $0.length }.max()!
        #expect(length == 4 << 30)
        try SparseBundle.write(program: encoded, weightsLength: length, to: path)
        let contract = await ToolRun("statepack", "inspect", path, "--json")
        folder.write(contract.results.utf8, to: "contract.json")

        var times: [Duration] = []
        for _ in 0..<5 {
            let start = ContinuousClock.now
            let run = await ToolRun("validate", path, "--descriptors", folder / "contract.json")
            times.append(ContinuousClock.now - start)
            #expect(run.status == 0, "\(run.diagnostics)")
        }
        #expect(times.min()! < .milliseconds(100))
        // Nothing of the hole was read into memory or filled in.
        var status = stat()
        #expect(stat(path, &status) == 0)
        #expect(status.st_size > 4 << 30)
        #expect(status.st_blocks * 512 < 1 << 20)
    }
}
