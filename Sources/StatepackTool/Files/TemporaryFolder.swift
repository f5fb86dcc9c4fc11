import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A folder of its own in TMPDIR that goes away, with what is in it, when the value does.
struct TemporaryFolder: ~Copyable {
    let path: String

    /// Throws `E0731` when TMPDIR cannot be written.
    init() throws(Diagnostic) {
        let base = getenv("TMPDIR").map { String(cString: $0) } ?? "/tmp"
        var template = Array("\(base.isEmpty ? "/tmp" : base)/statepack-XXXXXX".utf8CString)
        guard mkdtemp(&template) != nil else {
            throw Diagnostic(
                .unwritableOutput, "a temporary folder cannot be made: \(String(cString: strerror(errno)))", at: base,
                hint: "set TMPDIR to a folder that can be written")
        }
        path = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    deinit {
        if let folder = opendir(path) {
            while let entry = readdir(folder) {
                let name = withUnsafePointer(to: &entry.pointee.d_name) { pointer in
                    pointer.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
                }
                if name != "." && name != ".." { unlink("\(path)/\(name)") }
            }
            closedir(folder)
        }
        rmdir(path)
    }
}
