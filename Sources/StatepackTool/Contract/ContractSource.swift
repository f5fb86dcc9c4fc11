import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A file that has a contract: the document itself, or a model of either kind.
enum ContractSource {
    case document(Contract)
    case model(Model)

    /// Reads no weights. Throws what the reader of that kind of file throws.
    init(path: String) throws {
        if Self.isDocument(path) {
            self = .document(try ContractFile.read(path))
        } else {
            self = .model(try Model(path: path))
        }
    }

    /// By its name, or else by its first byte that is no blank.
    static func isDocument(_ path: String) -> Bool {
        // Without O_NONBLOCK opening a pipe would wait for its writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        defer { if descriptor >= 0 { close(descriptor) } }
        var block = [UInt8](repeating: 0, count: 64)
        let count = descriptor >= 0 ? read(descriptor, &block, block.count) : 0
        // An exported program starts with a tab, so that `{` behind one proves nothing.
        if count <= 0 || block[0] == 0x09 || path.hasSuffix(".json") { return path.hasSuffix(".json") }
        // A byte order mark is for the reader to refuse.
        return block[..<count].first { ![0x0A, 0x0D, 0x20, 0xEF, 0xBB, 0xBF].contains($0) } == UInt8(ascii: "{")
    }

    var contract: Contract {
        switch self {
        case .document(let contract): contract
        case .model(let model): model.contract
        }
    }

    /// `a contract`
    var kind: String {
        switch self {
        case .document: "a contract"
        case .model(.bundle): "a bundle"
        case .model(.exportedProgram): "an exported program"
        }
    }
}
