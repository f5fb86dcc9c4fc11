#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// Removes temporary files and folders when the process is told to stop.
///
/// A signal ends a process without running a single `deinit`, and a command that somebody interrupts should
/// leave as little behind as one that fails. Only `kill -9` still does.
package enum Interruption {
    private static let capacity = 8
    /// What the handler removes, last first. Plain pointers, for a handler may neither allocate nor take a lock;
    /// nil until the handlers are installed. Without them `watch` does nothing: a library may write from many threads.
    nonisolated(unsafe) private static var paths: UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>?

    /// From now on SIGINT, SIGTERM and SIGHUP remove what is being watched and then do what they do by default. For
    /// a tool's main, which writes from one thread, not for a library: handlers belong to the process.
    package static func removeTemporaryFiles() {
        let slots = UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>.allocate(capacity: capacity)
        slots.initialize(repeating: nil, count: capacity)
        paths = slots
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // A signal that the parent chose to ignore (nohup) stays ignored.
            let former = signal(number) { number in
                if let paths = Interruption.paths {
                    for slot in stride(from: Interruption.capacity - 1, through: 0, by: -1) {
                        // A folder is no file and the other way round: one of the two fails.
                        if let path = paths[slot], unlink(path) != 0 { rmdir(path) }
                    }
                }
                signal(number, SIG_DFL)
                raise(number)
            }
            if unsafeBitCast(former, to: Int.self) == unsafeBitCast(SIG_IGN, to: Int.self) { signal(number, SIG_IGN) }
        }
    }

    /// Names a file, or a folder before the files in it, that is to go. Not more than eight at a time.
    package static func watch(_ path: String) {
        guard let paths, let slot = (0..<capacity).first(where: { paths[$0] == nil }) else { return }
        paths[slot] = strdup(path)
    }

    /// The path got its name or is gone.
    package static func forget(_ path: String) {
        guard let paths else { return }
        for slot in 0..<capacity {
            guard let former = paths[slot], strcmp(former, path) == 0 else { continue }
            paths[slot] = nil
            free(former)
        }
    }
}
