import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Files that a command reads whole.
package enum InputFile {
    /// What a model file is, by its first bytes.
    enum Kind {
        case bundle
        case exportedProgram
    }

    /// Reads a file of at most `limit` bytes. Throws `E0101` naming the path and the system's reason.
    package static func read(_ path: String, what: String, limit: Int = .max) throws(Diagnostic) -> [UInt8] {
        // Without O_NONBLOCK a named pipe would wait for a writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        if descriptor < 0 { throw failure(path, what, errno) }
        defer { close(descriptor) }
        var status = stat()
        if fstat(descriptor, &status) != 0 { throw failure(path, what, errno) }
        if status.st_mode & S_IFMT == S_IFDIR { throw failure(path, what, EISDIR) }
        var bytes: [UInt8] = []
        bytes.reserveCapacity(min(Int(status.st_size), limit))
        var block = [UInt8](repeating: 0, count: 1 << 16)
        while true {
            let count = block.withUnsafeMutableBytes { systemRead(descriptor, $0.baseAddress!, $0.count) }
            if count < 0 {
                if errno == EINTR { continue }
                throw failure(path, what, errno)
            }
            if count == 0 { return bytes }
            bytes += block[..<count]
            if bytes.count > limit {
                throw Diagnostic(
                    .unreadableFile, "\(what) is too large", at: path, expected: "at most \(limit) bytes",
                    found: "\(bytes.count) bytes or more")
            }
        }
    }

    /// A bundle starts with a byte that no protobuf starts with; everything else is left to the importer,
    /// whose diagnostics say what is wrong with it.
    static func kind(of path: String) throws(Diagnostic) -> Kind {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        if descriptor < 0 { throw failure(path, "the model", errno) }
        defer { close(descriptor) }
        var status = stat()
        if fstat(descriptor, &status) != 0 { throw failure(path, "the model", errno) }
        if status.st_mode & S_IFMT == S_IFDIR { throw failure(path, "the model", EISDIR) }
        var first: UInt8 = 0
        if systemRead(descriptor, &first, 1) == 1, first != 0x89 { return .exportedProgram }
        return path.hasSuffix(".pb") && first != 0x89 ? .exportedProgram : .bundle
    }

    private static func failure(_ path: String, _ what: String, _ code: Int32) -> Diagnostic {
        Diagnostic(
            .unreadableFile, "\(what) cannot be read: \(String(cString: strerror(code)))", at: path,
            hint: code == ENOENT ? "check the path" : nil)
    }
}

private func systemRead(_ descriptor: Int32, _ bytes: UnsafeMutableRawPointer, _ count: Int) -> Int {
    read(descriptor, bytes, count)
}
