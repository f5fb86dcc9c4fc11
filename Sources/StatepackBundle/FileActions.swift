import CStatepackKernels

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// What `BundleWriter` asks of the operating system; tests put failing ones in place. Each returns what the
/// system call behind it does and sets `errno`.
package struct FileActions: Sendable {
    package var create: @Sendable (_ path: String) -> Int32 = {
        open($0, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o666)
    }
    /// Makes a file without a name in a folder: the system removes it when the process ends, however it ends. Fails
    /// where the file system or the system has no such files.
    package var createUnnamed: @Sendable (_ folder: String) -> Int32 = { folder in
        #if os(Linux)
            // Only through /proc can such a file be named later.
            if access("/proc/self/fd", X_OK) != 0 { return -1 }
            let unnamed: Int32 = 0o20000000 | O_DIRECTORY
            return open(folder, O_WRONLY | O_CLOEXEC | unnamed, 0o666)
        #else
            errno = ENOTSUP
            return -1
        #endif
    }
    /// Gives a file of `createUnnamed` its name.
    package var link: @Sendable (_ descriptor: Int32, _ path: String) -> Int32 = {
        linkat(AT_FDCWD, "/proc/self/fd/\($0)", AT_FDCWD, $1, AT_SYMLINK_FOLLOW)
    }
    /// Sets aside space, where the system can.
    package var reserve: @Sendable (_ descriptor: Int32, _ length: Int) -> Int32 = { descriptor, length in
        #if canImport(Glibc)
            let code = posix_fallocate(descriptor, 0, off_t(length))
            if code == 0 { return 0 }
            errno = code
            return -1
        #else
            return 0
        #endif
    }
    package var write: @Sendable (_ descriptor: Int32, _ bytes: UnsafeRawBufferPointer, _ offset: Int) -> Int = {
        pwrite($0, $1.baseAddress, $1.count, off_t($2))
    }
    /// Asks the system to write a range to the disk soon. Only speed depends on it.
    package var startFlushing: @Sendable (_ descriptor: Int32, _ offset: Int, _ length: Int) -> Void = {
        sp_start_flushing($0, Int64($1), Int64($2))
    }
    package var truncate: @Sendable (_ descriptor: Int32, _ length: Int) -> Int32 = { ftruncate($0, off_t($1)) }
    package var sync: @Sendable (_ descriptor: Int32) -> Int32 = { fsync($0) }
    package var replace: @Sendable (_ from: String, _ to: String) -> Int32 = { rename($0, $1) }

    package init() {}
}

/// Why a path can be no output: something other than a file stands there, which a rename would replace or fail on. Nil
/// for a file, for a symbolic link to one or to nothing (the link is what is replaced), and when nothing is there.
package func outputObstacle(at path: String) -> String? {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    switch status.st_mode & S_IFMT {
    case S_IFREG: return nil
    case S_IFDIR: return "a directory is there"
    default: return "a device, pipe or socket is there"
    }
}

/// The system's text for an error number, without locale.
func systemMessage(_ code: Int32) -> String {
    #if canImport(Glibc)
        // glibc's strerror_r is the GNU one in Swift's importer; strerror is thread-safe there since 2.32.
        return strerror(code).map { String(cString: $0) } ?? "error \(code)"
    #else
        var text = [CChar](repeating: 0, count: 256)
        return strerror_r(code, &text, text.count) == 0 ? String(cString: text) : "error \(code)"
    #endif
}
