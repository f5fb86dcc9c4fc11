import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// Named arrays in a safetensors file: what `statepack run` reads and writes.
package struct TensorFile: Sendable {
    private let file: Safetensors

    /// In order of name.
    package var entries: [Safetensors.Entry] { file.entries.sorted { $0.name < $1.name } }

    /// Maps a file and reads its header. Throws the importer's diagnostics, `E01…`.
    package init(path: String) throws(DiagnosticList) { file = try Safetensors(path: path) }

    /// A copy of a tensor; nil when there is none of that name.
    package subscript(name: String) -> NDArray? {
        guard let entry = file[name] else { return nil }
        var array = NDArray(shape: entry.shape, scalarType: NDArray.ScalarType(entry.scalarType))
        file.withBytes(of: entry) { array.copyBytes(from: $0) }
        return array
    }

    /// Writes arrays to a file, whole or not at all. Equal arrays give equal bytes. Throws `E0731`.
    package static func write(_ arrays: [String: NDArray], to path: String) throws(Diagnostic) {
        var pending = try pending(arrays, for: path)
        try pending.commit()
    }

    /// The same, complete on disk but still without its name.
    static func pending(_ arrays: [String: NDArray], for path: String) throws(Diagnostic) -> PendingOutput {
        try PendingOutput(
            SafetensorsWriter.encode(
                arrays.map { name, array in
                    // Outputs and states have stored types only.
                    .init(
                        name: name, scalarType: array.scalarType.stored!, shape: array.shape,
                        bytes: array.withBytes { Array($0) })
                }), for: path)
    }
}
