import StatepackDiagnostics
import Synchronization

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Where a command writes: results to one stream, diagnostics to the other.
///
/// In `json` format both are kept and come out as one document when the command ends; in `github` format
/// diagnostics are workflow commands between the results.
///
/// A reader that went away (`statepack inspect … | head`) ends the output silently and leaves the
/// command's verdict as it is; any other failure to write results is remembered and becomes exit code 5.
package final class Console: Sendable {
    private struct State {
        var results = ""
        var diagnostics = ""
        var failure: Int32?
        var isClosed = false
        var format = DiagnosticFormat.text
        /// Of the document that `finish` writes, in `json` format.
        var document: [JSONValue.Member] = []
        var findings: [Diagnostic] = []
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

    package var format: DiagnosticFormat { state.withLock { $0.format } }

    /// Set once, before anything is written.
    package func use(_ format: DiagnosticFormat) { state.withLock { $0.format = format } }

    /// What the command found out, as a member of the document of `json` format. Other formats leave it out.
    package func add(_ key: String, _ value: JSONValue) {
        state.withLock { state in
            state.document.removeAll { $0.key == key }
            state.document.append(.init(key: key, value: value))
        }
    }

    /// Adds the members of an object, in their order.
    package func add(contentsOf object: JSONValue) {
        for member in object.objectValue ?? [] { add(member.key, member.value) }
    }

    /// Ends a command. In `json` format this writes the document; what is reported later is for people.
    ///
    ///     {"validate": 1, …the command's members…, "exitCode": 1, "findings": […]}
    package func finish(_ command: String, exitCode: Int32) {
        guard format == .json else { return }
        let (members, findings) = state.withLock { ($0.document, $0.findings) }
        use(.text)
        let ends: [JSONValue.Member] = [
            .init(key: "exitCode", value: .integer(Int(exitCode))),
            .init(key: "findings", value: .array(findings.map(\.json))),
        ]
        write(JSONValue.object([.init(key: command, value: 1)] + members + ends).text)
    }

    /// Writes results for people as they are; the caller ends lines. Nothing in `json` format.
    package func write(_ text: String) {
        switch format {
        case .text: writeResults(text)
        case .json: break
        case .github: writeResults(WorkflowCommand.harmless(text))
        }
    }

    private func writeResults(_ text: String) {
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

    package func report(_ diagnostic: Diagnostic) {
        switch format {
        case .text: report(line: diagnostic.description)
        case .json: state.withLock { $0.findings.append(diagnostic) }
        case .github: writeResults(WorkflowCommand().text(of: diagnostic) + "\n")
        }
    }

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

    /// True when diagnostics go to a terminal, where somebody may be waiting.
    package var isWatched: Bool {
        guard let descriptors, format == .text else { return false }
        return isatty(descriptors.diagnostics) == 1
    }

    /// A part of a line for people who wait; no diagnostic, and not in the document of `json` format.
    package func reportProgress(_ text: String) {
        state.withLock { state in
            guard let descriptors else {
                state.diagnostics += text
                return
            }
            _ = Self.write(text, to: descriptors.diagnostics)
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
