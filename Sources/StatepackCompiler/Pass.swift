package import StatepackDiagnostics
package import StatepackIR

/// One compiler stage: changes a program, or throws a `Diagnostic` or `DiagnosticList`.
///
/// A pass is its file, its line in `Pipeline.swift` and its test. The documentation of each shows a
/// program before and after.
package protocol Pass: Sendable {
    /// VerbNoun, as in `--dump-ir-after`.
    static var name: String { get }

    func run(on program: inout Program, report: inout CompilationReport) throws
}

/// What the passes did, for people (`convert` prints it) and for tests.
package struct CompilationReport: Sendable {
    /// Counters by pass, then by name, for example `RecoverStateWrites` → `in-place` → 60.
    package var counters: [String: [String: Int]] = [:]
    package var warnings: [Diagnostic] = []
    /// How each function updates each of its states.
    package var stateUpdates: [StateUpdate] = []

    package init() {}

    package mutating func count(_ pass: String, _ counter: String, by amount: Int = 1) {
        counters[pass, default: [:]][counter, default: 0] += amount
    }
}
