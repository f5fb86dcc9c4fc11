import StatepackCompiler
import StatepackDiagnostics

/// Contracts on disk.
enum ContractFile {
    /// Throws the importer's diagnostics when the file cannot be read and `E0711` when it is malformed.
    static func read(_ path: String) throws -> Contract {
        let file = try MappedFile(path: path)
        // NOTE: the bytes are the mapping's, which goes away with the file.
        let bytes = withExtendedLifetime(file) { Array(file.bytes) }
        return try Contract(json: bytes, file: path)
    }
}
