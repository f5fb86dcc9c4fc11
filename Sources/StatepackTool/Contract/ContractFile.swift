import StatepackDiagnostics

/// Contracts on disk.
enum ContractFile {
    static func read(_ path: String) throws -> Contract {
        try Contract(json: InputFile.read(path, what: "the contract", limit: 64 << 20), file: path)
    }
}
