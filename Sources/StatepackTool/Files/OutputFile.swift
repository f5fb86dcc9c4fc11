import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A file that is complete on disk under a temporary name beside its own. `commit` gives it its name; a
/// value that goes away without that leaves nothing.
struct PendingOutput: ~Copyable {
    private let path: String
    private let temporary: String
    private var isCommitted = false

    /// Writes and flushes the temporary file. Throws `E0731`.
    init(_ bytes: [UInt8], for path: String) throws(Diagnostic) {
        self.path = path
        let random = String(UInt64.random(in: .min ... .max), radix: 16)
        temporary = "\(OutputFile.folder(of: path))/.statepack-\(random).tmp"
        let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o666)
        if descriptor < 0 {
            isCommitted = true
            throw OutputFile.failure(path, errno)
        }
        var failure: Int32 = 0
        bytes.withUnsafeBytes { bytes in
            var offset = 0
            while offset < bytes.count, failure == 0 {
                // Linux writes at most 2 GiB at once, and Darwin refuses more.
                let count = write(descriptor, bytes.baseAddress! + offset, min(bytes.count - offset, 1 << 30))
                if count >= 0 {
                    offset += count
                } else if errno != EINTR {
                    failure = errno
                }
            }
        }
        if failure == 0, fsync(descriptor) != 0 { failure = errno }
        close(descriptor)
        if failure != 0 { throw OutputFile.failure(path, failure) }
    }

    init(_ text: String, for path: String) throws(Diagnostic) { try self.init(Array(text.utf8), for: path) }

    /// A file that stood at the path is replaced at once. Throws `E0731`.
    mutating func commit() throws(Diagnostic) {
        if rename(temporary, path) != 0 { throw OutputFile.failure(path, errno) }
        isCommitted = true
    }

    deinit {
        if !isCommitted { unlink(temporary) }
    }
}

/// Files that a command writes: whole or not at all.
package enum OutputFile {
    /// Writes a file beside `path` and renames it. A file that stood there stays as it was until then, and
    /// on failure. Throws `E0731`.
    package static func write(_ bytes: [UInt8], to path: String) throws(Diagnostic) {
        var pending = try PendingOutput(bytes, for: path)
        try pending.commit()
    }

    /// Refuses an output that is the same file as something the command reads, whatever the spelling of
    /// the paths. Throws `E0732`.
    package static func refuseOverwriting(_ inputs: [String], by output: String, option: String) throws(Diagnostic) {
        guard let identity = identity(of: output) else { return }
        for input in inputs where self.identity(of: input) == identity {
            throw Diagnostic(
                .outputIsInput, "\(option) would overwrite a file that the command reads", at: output,
                expected: "a path other than \(input)", found: output)
        }
    }

    /// True when two outputs would be the same file, whatever the spelling of the paths and whether it is there yet.
    package static func areSame(_ first: String, _ second: String) -> Bool {
        if let one = identity(of: first), let other = identity(of: second) { return one == other }
        guard let one = identity(of: folder(of: first)), one == identity(of: folder(of: second)) else {
            return first == second
        }
        return name(of: first) == name(of: second)
    }

    private static func name(of path: String) -> Substring {
        path[(path.lastIndex(of: "/").map { path.index(after: $0) } ?? path.startIndex)...]
    }

    private struct Identity: Equatable {
        var device: UInt64
        var node: UInt64
    }

    private static func identity(of path: String) -> Identity? {
        var status = stat()
        guard stat(path, &status) == 0 else { return nil }
        return Identity(device: UInt64(status.st_dev), node: UInt64(status.st_ino))
    }

    package static func folder(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return slash == path.startIndex ? "/" : String(path[..<slash])
    }

    fileprivate static func failure(_ path: String, _ code: Int32) -> Diagnostic {
        Diagnostic(
            .unwritableOutput, "the output cannot be written: \(String(cString: strerror(code)))", at: path,
            hint: code == ENOENT ? "create the folder \(folder(of: path)) first" : nil)
    }
}
