import StatepackTool
import Testing

/// Tests/Fixtures/operators: a module that uses every operator PyTorch's decomposition leaves, and every way to
/// write a state, recorded by eager PyTorch.
@Suite struct EveryOperatorTests {
    @Test func computesWhatEagerPyTorchComputed() async throws {
        let folder = TestFolder()
        let fixture = Repository.path("Tests/Fixtures/operators/exported.pb")
        let converted = await ToolRun("convert", fixture, "-o", folder / "model.statepack")
        #expect(converted.status == 0, "\(converted.diagnostics)")
        let run = await ToolRun("validate", folder / "model.statepack", "--json")
        #expect(run.status == 0, "\(run.diagnostics)")
        let replay = try JSONReader.read(Array(run.results.utf8))["replay"]
        #expect(replay?["status"] == "holds")
        #expect(replay?["steps"] == 3)
        // 204 outputs and 5 states, each on its own, so that a failure names the operator's output.
        let tensors = replay?["tensors"]?.arrayValue ?? []
        #expect(tensors.count == 209)
        for tensor in tensors {
            #expect(tensor["firstFailingStep"] == .null, "\(tensor["name"]?.stringValue ?? "?")")
        }
    }
}
