import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// From an exported.pb to a bundle on disk: what `convert` does and `validate` needs on the way.
struct Compilation {
    var imported: ImportedProgram

    init(imported: ImportedProgram) { self.imported = imported }

    /// Reads and verifies the file; the weights are verified while the rest goes on.
    init(path: String) throws { imported = try importProgram(at: path, weights: .verifyMeanwhile) }

    /// Compiles and writes the bundle, whole or not at all.
    ///
    /// - Parameters:
    ///   - progress: See `Compiler.write`.
    ///   - beforeNaming: Called when weights and program are known to be good and everything is written.
    func write(
        to output: String, options: CompileOptions = CompileOptions(), dump: (String, String) -> Void = { _, _ in },
        beforeWriting: (CompiledProgram) throws -> Void = { _ in }, progress: (Int, Int) -> Void = { _, _ in },
        beforeNaming: () throws -> Void = {}
    ) throws -> CompiledProgram {
        let compiled = try Compiler(options: options).compile(imported.program, dump: dump)
        try beforeWriting(compiled)
        try Compiler.write(
            compiled, weights: imported.weights, recording: imported.recordingBytes, to: output, progress: progress
        ) {
            try imported.verification?.wait()
            try beforeNaming()
        }
        return compiled
    }
}
