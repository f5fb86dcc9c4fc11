import StatepackCompiler
import StatepackIR
import Testing

@Suite struct ImportExampleTests {
    /// The repository's root: this file is two folders below it.
    static let root = #filePath.split(separator: "/").dropLast(3).reduce("") { $0 + "/" + $1 }

    @Test func importsAndVerifiesTheStatefulTransformer() throws {
        let imported = try importProgram(at: Self.root + "/examples/01-stateful-transformer/exported.pb")
        try Verifier.verify(imported.program, stage: .imported)
        #expect(imported.program.states.map(\.name) == ["keyCache", "valueCache"])
        #expect(imported.recording?.replays.isEmpty == false)
        #expect(!imported.recordingBytes.isEmpty)
    }

    @Test func decomposesTheStatefulTransformerIntoCoreOperators() throws {
        var program = try importProgram(at: Self.root + "/examples/01-stateful-transformer/exported.pb").program
        var report = CompilationReport()
        try DecomposeOps().run(on: &program, report: &report)
        try Verifier.verify(program, stage: .decomposed)
        #expect(try Program(text: program.text()) == program.renumbered())
    }

    /// Its module uses every operator that PyTorch's decomposition leaves, with the argument forms that occur.
    @Test func typesAndDecomposesEveryOperatorAsTorchDoes() throws {
        let imported = try importProgram(at: Self.root + "/Tests/Fixtures/operators/exported.pb")
        try Verifier.verify(imported.program, stage: .imported)
        var program = imported.program
        var report = CompilationReport()
        try DecomposeOps().run(on: &program, report: &report)
        try Verifier.verify(program, stage: .decomposed)
        #expect(try Program(text: program.text()) == program.renumbered())
        #expect(report.counters["DecomposeOps"]?["operators"] == imported.program.functions[0].nodes.count)
        #expect(imported.recording?.replays.first?.steps.count == 3)
    }
}
