import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Files that a command writes: whole or not at all.
package enum OutputFile {
    /// Writes bytes to a temporary file in the same folder, flushes it and renames it to `path`.
    ///
    /// A file that stood there stays as it was until then, and on failure. Throws `E0731`.
    private static func write(_ bytes: UnsafeRawBufferPointer, to path: String) throws(Diagnostic) {
        let folder = folder(of: path)
        let temporary = "\(folder)/.statepack-\(String(UInt64.random(in: .min ... .max), radix: 16)).tmp"
        let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o666)
        if descriptor < 0 { throw failure(path, errno) }
        var isFinished = false
        defer {
            close(descriptor)
            if !isFinished { unlink(temporary) }
        }
        var offset = 0
        while offset < bytes.count {
            // Linux writes at most 2 GiB at once, and Darwin refuses more.
            let length = min(bytes.count - offset, 1 << 30)
            let count = systemWrite(descriptor, bytes.baseAddress! + offset, length)
            if count < 0 {
                if errno == EINTR { continue }
                throw failure(path, errno)
            }
            offset += count
        }
        if fsync(descriptor) != 0 { throw failure(path, errno) }
        if rename(temporary, path) != 0 { throw failure(path, errno) }
        isFinished = true
    }

    package static func write(_ bytes: [UInt8], to path: String) throws(Diagnostic) {
        let result: Result<Void, Diagnostic> = bytes.withUnsafeBytes { bytes in
            do throws(Diagnostic) { return .success(try write(bytes, to: path)) } catch { return .failure(error) }
        }
        try result.get()
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

    private static func failure(_ path: String, _ code: Int32) -> Diagnostic {
        Diagnostic(
            .unwritableOutput, "the output cannot be written: \(String(cString: strerror(code)))", at: path,
            hint: code == ENOENT ? "create the folder \(folder(of: path)) first" : nil)
    }
}

private func systemWrite(_ descriptor: Int32, _ bytes: UnsafeRawPointer, _ count: Int) -> Int {
    write(descriptor, bytes, count)
}
