import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// From an exported.pb to a bundle on disk: what `convert` does and `validate` needs on the way.
struct Compilation {
    var imported: ImportedProgram

    init(imported: ImportedProgram) { self.imported = imported }

    /// Reads and verifies the file.
    init(path: String) throws { imported = try importProgram(at: path) }

    /// Compiles and writes the bundle, whole or not at all.
    func write(
        to output: String, options: CompileOptions = CompileOptions(), dump: (String, String) -> Void = { _, _ in },
        beforeWriting: (CompiledProgram) throws -> Void = { _ in }
    ) throws -> CompiledProgram {
        let compiled = try Compiler(options: options).compile(imported.program, dump: dump)
        try beforeWriting(compiled)
        try Compiler.write(compiled, weights: imported.weights, recording: imported.recordingBytes, to: output)
        return compiled
    }
}
