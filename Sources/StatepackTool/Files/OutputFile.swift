import StatepackBundle
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
    /// On Linux the file has no name until `commit`, so that a killed process leaves none.
    private var isUnnamed: Bool
    private let descriptor: Int32
    private var isCommitted: Bool
    private static let actions = FileActions()

    /// Writes and flushes the file. Throws `E0731`.
    init(_ bytes: [UInt8], for path: String) throws(Diagnostic) {
        let folder = OutputFile.folder(of: path)
        let temporary = "\(folder)/.statepack-\(String(UInt64.random(in: .min ... .max), radix: 16)).tmp"
        let created = try Self.create(path, in: folder, temporary)
        let failure = Self.fill(created.descriptor, bytes)
        if failure != 0 {
            close(created.descriptor)
            if !created.isUnnamed { unlink(temporary) }
            Interruption.forget(temporary)
            throw OutputFile.failure(path, failure)
        }
        self.init(path: path, temporary: temporary, isUnnamed: created.isUnnamed, descriptor: created.descriptor)
    }

    init(_ text: String, for path: String) throws(Diagnostic) { try self.init(Array(text.utf8), for: path) }

    private init(path: String, temporary: String, isUnnamed: Bool, descriptor: Int32) {
        self.path = path
        self.temporary = temporary
        self.isUnnamed = isUnnamed
        self.descriptor = descriptor
        isCommitted = false
    }

    /// Writes and flushes. Returns `errno` of what failed, else 0.
    private static func fill(_ descriptor: Int32, _ bytes: [UInt8]) -> Int32 {
        var failure: Int32 = 0
        bytes.withUnsafeBytes { bytes in
            var offset = 0
            while offset < bytes.count, failure == 0 {
                // Linux writes at most 2 GiB at once, and Darwin refuses more.
                let piece = bytes[offset..<min(bytes.count, offset + 1 << 30)]
                let count = actions.write(descriptor, UnsafeRawBufferPointer(rebasing: piece), offset)
                if count > 0 {
                    offset += count
                } else if count == 0 {
                    failure = EIO
                } else if errno != EINTR {
                    failure = errno
                }
            }
        }
        if failure == 0, actions.sync(descriptor) != 0 { failure = errno }
        return failure
    }

    private static func create(
        _ path: String, in folder: String, _ temporary: String
    ) throws(Diagnostic) -> (descriptor: Int32, isUnnamed: Bool) {
        if let obstacle = outputObstacle(at: path) {
            throw Diagnostic(
                .unwritableOutput, "the output cannot be written: \(obstacle)", at: path, hint: "name a file")
        }
        // Before anything has this name, so that no moment is left between the two.
        Interruption.watch(temporary)
        let unnamed = actions.createUnnamed(folder)
        if unnamed >= 0 { return (unnamed, true) }
        let named = actions.create(temporary)
        if named < 0 {
            let code = errno
            Interruption.forget(temporary)
            throw OutputFile.failure(path, code)
        }
        return (named, false)
    }

    /// A file that stood at the path is replaced at once. Throws `E0731`.
    mutating func commit() throws(Diagnostic) {
        if isUnnamed {
            if Self.actions.link(descriptor, path) == 0 {
                isCommitted = true
                return
            }
            if errno != EEXIST || Self.actions.link(descriptor, temporary) != 0 {
                throw OutputFile.failure(path, errno)
            }
            isUnnamed = false
        }
        if Self.actions.replace(temporary, path) != 0 { throw OutputFile.failure(path, errno) }
        isCommitted = true
    }

    deinit {
        close(descriptor)
        if !isCommitted, !isUnnamed { unlink(temporary) }
        Interruption.forget(temporary)
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
