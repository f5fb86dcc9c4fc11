import StatepackCompiler

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A folder of a test's own. It goes away with the value.
final class TestFolder {
    let path: String

    init() {
        var template = Array("/tmp/statepack-test-XXXXXX".utf8CString)
        guard mkdtemp(&template) != nil else { fatalError("no temporary folder") }
        path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    deinit {
        for name in names { unlink(self / name) }
        rmdir(path)
    }

    static func / (folder: TestFolder, name: String) -> String { "\(folder.path)/\(name)" }

    /// What is in the folder, sorted.
    var names: [String] {
        guard let folder = opendir(path) else { return [] }
        defer { closedir(folder) }
        var names: [String] = []
        while let entry = readdir(folder) {
            let name = withUnsafePointer(to: &entry.pointee.d_name) { pointer in
                pointer.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
            }
            if name != "." && name != ".." { names.append(name) }
        }
        return names.sorted()
    }

    func write(_ bytes: some Sequence<UInt8>, to name: String) {
        guard let stream = fopen(self / name, "w") else { fatalError("cannot write \(name)") }
        let bytes = Array(bytes)
        fwrite(bytes, 1, bytes.count, stream)
        fclose(stream)
    }

    func read(_ name: String) throws -> [UInt8] { try Golden.bytes(self / name) }
}

/// Files of the repository.
enum Repository {
    static func path(_ name: String, file: String = #filePath) -> String {
        let root = file.split(separator: "/", omittingEmptySubsequences: false).dropLast(3).joined(separator: "/")
        return "\(root)/\(name)"
    }

    /// The committed exported program of the first example.
    static let example = path("examples/01-stateful-transformer/exported.pb")
}

/// The outer message of exported.pb.
enum ExportedFile {
    /// Writes the digest of what follows the first two fields, so that a changed file is read at all.
    static func updateDigest(of bytes: inout [UInt8]) {
        let digest = bytes[18...].withUnsafeBytes { SHA256Digest.of($0) }
        bytes.replaceSubrange(10..<18, with: digest.prefix(8))
    }
}

func contains(_ bytes: [UInt8], _ text: String) -> Bool {
    let needle = Array(text.utf8)
    guard let first = needle.first, needle.count <= bytes.count else { return false }
    return bytes.withUnsafeBytes { haystack in
        (0...haystack.count - needle.count).contains { start in
            haystack[start] == first && haystack[start..<start + needle.count].elementsEqual(needle)
        }
    }
}
