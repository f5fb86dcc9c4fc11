internal import StatepackBundle
package import StatepackDiagnostics
internal import Synchronization

/// A check of the weights file that goes on beside whatever the program is used for meanwhile.
///
/// Reading and hashing the file takes as long as compiling it into a bundle. What was made in the meantime must not get
/// its name before `wait` has returned, and what failed meanwhile must not be reported before it: damaged weights come
/// first.
package final class WeightsVerification: Sendable {
    private let thread = BackgroundThread()
    private let findings: Findings

    private final class Findings: Sendable {
        let list = Mutex<DiagnosticList?>(nil)
    }

    init(_ check: @escaping @Sendable () throws(DiagnosticList) -> Void) {
        let findings = Findings()
        self.findings = findings
        thread.start {
            do throws(DiagnosticList) { try check() } catch { findings.list.withLock { $0 = error } }
        }
    }

    /// Returns when the check is done. Throws what it found, each time.
    package func wait() throws(DiagnosticList) {
        thread.wait()
        if let list = findings.list.withLock({ $0 }) { throw list }
    }
}
