#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// Removes a writer's temporary file when the process is told to stop.
///
/// A signal ends a process without running a single `deinit`, and a command that somebody interrupts should
/// leave as little behind as one that fails. Only `kill -9` still does.
package enum Interruption {
    /// What the handler removes. A plain pointer, for a handler may neither allocate nor take a lock.
    nonisolated(unsafe) private static var path: UnsafeMutablePointer<CChar>?
    /// Set before any writer exists. Without it `watch` does nothing: a library may write from many threads.
    nonisolated(unsafe) private static var isInstalled = false

    /// From now on SIGINT, SIGTERM and SIGHUP remove the temporary file that is being written, if any, and then
    /// do what they do by default. For a tool's main, which writes one file at a
    /// time, not for a library: handlers belong to the process.
    package static func removeTemporaryFile() {
        isInstalled = true
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // A signal that the parent chose to ignore (nohup) stays ignored.
            let former = signal(number) { number in
                if let path = Interruption.path { unlink(path) }
                signal(number, SIG_DFL)
                raise(number)
            }
            if unsafeBitCast(former, to: Int.self) == unsafeBitCast(SIG_IGN, to: Int.self) { signal(number, SIG_IGN) }
        }
    }

    /// Names the file to remove; nil when it has got its name or is gone. One at a time in a process.
    static func watch(_ temporaryPath: String?) {
        guard isInstalled else { return }
        let former = path
        path = temporaryPath.map { strdup($0) } ?? nil
        free(former)
    }
}
