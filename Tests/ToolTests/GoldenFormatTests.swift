import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackTool
import Testing

/// Files of released format versions, written once by `make.py` in their folder: later readers open, validate and
/// replay them. Nothing writes them again.
@Suite struct GoldenFormatTests {
    static let folder = Repository.path("Tests/Fixtures/format-1.0/")

    @Test(arguments: ["exported.pb", "model.statepack", "sum.exported.pb", "sum.statepack"])
    func goldenHoldsAndReplays(name: String) async {
        let run = await ToolRun("validate", Self.folder + name, "--replay", "--checksums")
        #expect(run.status == 0, "\(run.diagnostics)")
        #expect(run.diagnostics == "")
        #expect(run.results.contains("replay") && run.results.contains("verdict    holds"), "\(run.results)")
        #expect(run.results.contains(name.hasPrefix("sum") ? "state sum: within" : "state keyCache: within"))
    }

    /// Its weights are in a file of their own, which a replay without checksums maps and does not hash.
    @Test func exportedProgramReplaysWithoutChecksums() async throws {
        let folder = TestFolder()
        let contract = folder / "golden.contract.json"
        let described = await ToolRun("statepack", ["describe", Self.folder + "model.statepack", "-o", contract])
        #expect(described.status == 0)
        for scope in [["--replay"], [], ["--no-replay", "--strict"]] {
            let run = await ToolRun(
                "validate", [Self.folder + "exported.pb", "--descriptors", contract] + scope)
            #expect(run.results.contains("contract   holds"), "\(run.results)\(run.diagnostics)")
            #expect(!run.diagnostics.contains("E01"), "\(run.diagnostics)")
            #expect(run.results.contains("state keyCache: within") == (scope == ["--replay"]))
        }
    }

    @Test(arguments: [("exported.pb", "model.statepack"), ("sum.exported.pb", "sum.statepack")])
    func goldensOfOneModelHaveOneContract(exported: String, bundle: String) async {
        let run = await ToolRun(
            "statepack", ["diff", Self.folder + exported, Self.folder + bundle, "--fail-on", "any"])
        #expect(run.status == 0, "\(run.diagnostics)\(run.results)")
    }

    @Test func exportedProgramIsReadWhole() throws {
        let imported = try importProgram(at: Self.folder + "exported.pb")
        let program = imported.program
        #expect(program.symbols == [.init(name: "query", min: 1, max: 8)])
        #expect(program.states.map(\.name) == ["keyCache", "decay", "count"])
        #expect(program.states[0].initialValue == .splat([0, 0, 0, 0]))
        #expect(program.states[2].initialValue == .splat([5, 0, 0, 0, 0, 0, 0, 0]))
        guard case .tensor(let start) = program.states[1].initialValue else {
            Issue.record("decay starts as no tensor")
            return
        }
        let bytes = try imported.weights.withBytes(of: program.tensors[start]) { Array($0) }
        #expect(bytes.suffix(4) == [0, 0, 0, 0x40])
        #expect(program.states[1].initialDigest == bytes.withUnsafeBytes { SHA256Digest.of($0) })
        #expect(program.functions[0].context == ContextRules(positions: 1, axes: [.init(state: 0, axis: 1)]))
        #expect(imported.weightsPath == Self.folder + "exported.safetensors")
        #expect(imported.recording?.replays.map(\.steps.count) == [3])
        #expect(program.sources.allSatisfy { $0.contains("make.py") } && !program.sources.isEmpty)
    }

    @Test func bundleIsReadWhole() throws {
        let bundle = try MappedBundle(path: Self.folder + "model.statepack")
        let imported = try importProgram(at: Self.folder + "exported.pb", weights: .skip)
        #expect(bundle.formatMajor == 1 && bundle.formatMinor == 0)
        #expect(bundle.program.programDigest == imported.program.digest)
        #expect(bundle.program.tensors.map(\.layout).contains(.panel16))
        #expect(bundle.program.functions[0].context == ContextRules(positions: 1, axes: [.init(state: 0, axis: 1)]))
        #expect(bundle.program.states.map(\.initialDigest) == imported.program.states.map(\.initialDigest))
        #expect(
            bundle.program.functions[0].values.contains {
                if case .view = $0.storage { true } else { false }
            })
        #expect(bundle.sources == imported.program.sources)
        #expect(Array(bundle.recording) == imported.recordingBytes)
        let model = try AIModel(bundle)
        let function = try #require(try model.loadFunction(named: "main"))
        #expect(function.descriptor.contextRules?.capacity(ofState: "keyCache") == 8)
        #expect(try function.initialValue(ofState: "decay").scalars(as: Float.self).first == 1)
        #expect(try function.initialValue(ofState: "count").scalars(as: Int64.self) == [5])
    }
}
