import StatepackDiagnostics
import Synchronization

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Where a command writes: results to one stream, diagnostics to the other.
///
/// A reader that went away (`statepack inspect … | head`) ends the output silently and leaves the
/// command's verdict as it is; any other failure to write results is remembered and becomes exit code 5.
package final class Console: Sendable {
    private struct State {
        var results = ""
        var diagnostics = ""
        var failure: Int32?
        var isClosed = false
    }

    /// File descriptors, or nil to keep the text in memory.
    private let descriptors: (results: Int32, diagnostics: Int32)?
    private let state = Mutex(State())

    private init(descriptors: (results: Int32, diagnostics: Int32)?) { self.descriptors = descriptors }

    /// Standard output and standard error. Ignores SIGPIPE for the whole process, so that a reader that
    /// went away cannot stop `convert` between creating a file and removing it.
    package static func standard() -> Console {
        signal(SIGPIPE, SIG_IGN)
        return Console(descriptors: (STDOUT_FILENO, STDERR_FILENO))
    }

    /// Keeps both streams in memory, for tests.
    package static func capturing() -> Console { Console(descriptors: nil) }

    package var results: String { state.withLock { $0.results } }
    package var diagnostics: String { state.withLock { $0.diagnostics } }

    /// `errno` of the first failed write of results, unless the reader just went away.
    package var resultsFailure: Int32? { state.withLock { $0.failure } }

    /// Writes results as they are; the caller ends lines.
    package func write(_ text: String) {
        state.withLock { state in
            guard let descriptors else {
                state.results += text
                return
            }
            if state.isClosed { return }
            let failure = Self.write(text, to: descriptors.results)
            if failure == 0 { return }
            state.isClosed = true
            if failure != EPIPE { state.failure = failure }
        }
    }

    package func writeLine(_ text: String = "") { write(text + "\n") }

    package func report(_ diagnostic: Diagnostic) { report(line: diagnostic.description) }

    package func report(line: String) {
        state.withLock { state in
            guard let descriptors else {
                state.diagnostics += line + "\n"
                return
            }
            // Nobody is left to tell when this fails.
            _ = Self.write(line + "\n", to: descriptors.diagnostics)
        }
    }

    private static func write(_ text: String, to descriptor: Int32) -> Int32 {
        var text = text
        return text.withUTF8 { bytes in
            var offset = 0
            while offset < bytes.count {
                #if canImport(Glibc)
                    let count = Glibc.write(descriptor, bytes.baseAddress! + offset, bytes.count - offset)
                #else
                    let count = Darwin.write(descriptor, bytes.baseAddress! + offset, bytes.count - offset)
                #endif
                if count < 0 {
                    if errno == EINTR { continue }
                    return errno
                }
                offset += count
            }
            return 0
        }
    }
}
