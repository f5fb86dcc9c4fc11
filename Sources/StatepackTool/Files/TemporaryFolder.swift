import StatepackBundle
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
        let path = "\(base.isEmpty ? "/tmp" : base)/statepack-\(String(UInt64.random(in: .min ... .max), radix: 16))"
        // Before it is there, so that a signal at any moment removes it.
        Interruption.watch(path)
        if mkdir(path, 0o700) != 0 {
            let code = errno
            Interruption.forget(path)
            throw Diagnostic(
                .unwritableOutput, "a temporary folder cannot be made: \(String(cString: strerror(code)))", at: base,
                hint: "set TMPDIR to a folder that can be written")
        }
        self.init(existing: path)
    }

    private init(existing path: String) { self.path = path }

    /// The path of a file that somebody makes in the folder.
    func file(_ name: String) -> String {
        Interruption.watch("\(path)/\(name)")
        return "\(path)/\(name)"
    }

    deinit {
        if let folder = opendir(path) {
            while let entry = readdir(folder) {
                let name = withUnsafePointer(to: &entry.pointee.d_name) { pointer in
                    pointer.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
                }
                if name != "." && name != ".." {
                    unlink("\(path)/\(name)")
                    Interruption.forget("\(path)/\(name)")
                }
            }
            closedir(folder)
        }
        rmdir(path)
        Interruption.forget(path)
    }
}
