import StatepackCompiler
import StatepackDiagnostics

/// Contracts on disk.
enum ContractFile {
    /// Throws the importer's diagnostics when the file cannot be read and `E0711` when it is malformed.
    static func read(_ path: String) throws -> Contract {
        let file = try MappedFile(path: path)
        // NOTE: the bytes are the mapping's, which goes away with the file.
        let bytes = withExtendedLifetime(file) { Array(file.bytes) }
        // Their first bytes; JSON may start with the second one, a tab.
        let isBundle = bytes.first == 0x89
        if isBundle || (bytes.first == 0x09 && !path.hasSuffix(".json")) {
            throw Diagnostic(
                .contractMalformed, "the file is a model, not a contract", at: path,
                expected: "a contract, *.contract.json",
                found: isBundle ? "a bundle" : "an exported program",
                hint: "write its contract with: statepack describe \(path) -o CONTRACT.JSON")
        }
        return try Contract(json: bytes, file: path)
    }
}
