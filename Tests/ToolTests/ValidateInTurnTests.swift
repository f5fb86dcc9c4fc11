import StatepackTool
import Testing

/// `validate A B …`, as a hook calls it.
@Suite struct ValidateInTurnTests {
    @Test func everyModelIsCheckedAndNamed() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let bundle = folder / "model.statepack"
        let run = await ToolRun("validate", bundle, "--no-replay", Repository.example)
        #expect(run.status == 0)
        #expect(run.diagnostics == "")
        let names = run.results.split(separator: "\n").filter { $0.hasSuffix(":") }
        #expect(names == ["\(bundle):", "\(Repository.example):"])
        #expect(verdicts(of: run) == 2)
    }

    @Test func aModelThatDoesNotHoldDoesNotHideTheNext() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let run = await ToolRun("validate", folder / "absent.statepack", folder / "model.statepack", "--no-replay")
        #expect(run.status == 3)
        #expect(
            run.diagnostics == """
                error[E0502]: there is no such bundle
                  --> \(folder / "absent.statepack")
                  hint:     check the path

                """)
        #expect(verdicts(of: run) == 1)
    }

    @Test func aDocumentIsOneModels() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let bundle = folder / "model.statepack"
        let run = await ToolRun("validate", bundle, bundle, "--format", "json")
        #expect(run.status == 2)
        let finding = try JSONReader.read(Array(run.results.utf8))["findings"]?.arrayValue?.first
        #expect(
            finding == [
                "code": "E0709", "severity": "error", "message": "--format json takes one MODEL",
                "location": "validate",
                "expected": "one MODEL", "found": "2 of them", "hint": "run the command once per file",
            ])
    }
}

/// How many models hold.
private func verdicts(of run: ToolRun) -> Int {
    run.results.split(separator: "\n").count { $0.hasPrefix("verdict ") && $0.hasSuffix(" holds") }
}
