package import StatepackDiagnostics

#if canImport(Darwin)
    internal import Darwin
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Glibc
#endif

/// A file's bytes, mapped read-only for as long as the object lives.
///
/// Whoever shortens the file meanwhile makes the next access to the lost pages fatal (SIGBUS): files are to be
/// replaced by renaming, as every writer of Statepack does.
package final class MappedFile: Sendable {
    nonisolated(unsafe) package let bytes: UnsafeRawBufferPointer

    /// Refuses what is missing, not readable, not a regular file, or empty, each with its own code.
    package init(path: String) throws(DiagnosticList) {
        func refuse(_ code: Diagnostic.Code, _ message: String, found: String? = nil) -> DiagnosticList {
            DiagnosticList([Diagnostic(code, message, at: path, found: found)])
        }
        // Without O_NONBLOCK opening a pipe would wait for its writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else {
            let reason = String(cString: strerror(errno))
            switch errno {
            case ENOENT, ENOTDIR: throw refuse(.fileNotFound, "there is no such file")
            case EACCES, EPERM: throw refuse(.permissionDenied, "the file may not be read")
            default: throw refuse(.unreadableFile, "the file cannot be opened", found: reason)
            }
        }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0 else {
            throw refuse(.unreadableFile, "the file cannot be opened", found: String(cString: strerror(errno)))
        }
        switch status.st_mode & S_IFMT {
        case S_IFREG: break
        case S_IFDIR: throw refuse(.notAFile, "the path is a directory", found: "a directory")
        default: throw refuse(.notAFile, "the path is not a regular file", found: "a device, pipe or socket")
        }
        guard status.st_size > 0 else { throw refuse(.emptyFile, "the file is empty", found: "0 bytes") }
        let count = Int(status.st_size)
        guard let base = mmap(nil, count, PROT_READ, MAP_PRIVATE, descriptor, 0), base != MAP_FAILED else {
            throw refuse(.unreadableFile, "the file cannot be mapped", found: String(cString: strerror(errno)))
        }
        bytes = UnsafeRawBufferPointer(start: base, count: count)
    }

    deinit { munmap(UnsafeMutableRawPointer(mutating: bytes.baseAddress!), bytes.count) }
}
