#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// How far a command that takes seconds has come, on standard error: one line that is written over on a terminal. Nothing
/// where nobody watches, unless it is asked for; then a line each second.
///
///     converting: 1.20 GiB of 4.10 GiB, 29 %, 812 MiB per second
final class Progress {
    private let console: Console
    private let verb: String
    private let isTerminal: Bool
    private let isShown: Bool
    private let start = ContinuousClock.now
    private var last: ContinuousClock.Instant?
    private var hasLine = false
    private var isComplete = false

    /// - Parameter isWanted: Shown also where standard error is no terminal.
    init(_ console: Console, verb: String, isWanted: Bool) {
        self.console = console
        self.verb = verb
        isTerminal = console.isWatched
        isShown = isTerminal || isWanted
    }

    /// Cheap: shows something ten times a second on a terminal, once elsewhere, and always the end.
    func show(_ done: Int, of total: Int) {
        guard isShown, !isComplete else { return }
        let now = ContinuousClock.now
        isComplete = done >= total
        if let last, !isComplete, now - last < .milliseconds(isTerminal ? 100 : 1000) { return }
        if last == nil, !isComplete, !isTerminal, now - start < .seconds(1) { return }
        last = now
        let seconds = max((now - start).milliseconds / 1e3, 1e-6)
        let percent = total == 0 ? 100 : Int(Double(done) / Double(total) * 100)
        show(
            "\(byteText(done)) of \(byteText(total)), \(percent) %, "
                + "\(byteText(Int(Double(done) / seconds))) per second")
    }

    /// A stage without a measure.
    func show(_ text: String) {
        guard isShown else { return }
        if isTerminal {
            // Back to the start of the line, and away with what a longer text left behind.
            console.reportProgress("\r\(verb): \(text)\u{1B}[K")
            hasLine = true
        } else {
            console.reportProgress("\(verb): \(text)\n")
        }
    }

    /// Leaves an empty line to whatever comes next.
    func end() {
        if hasLine { console.reportProgress("\r\u{1B}[K") }
        hasLine = false
    }
}
