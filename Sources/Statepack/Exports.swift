// A client imports Statepack alone and still sees what its errors consist of.
@_exported import StatepackDiagnostics

/// What every throwing call of this library throws when there is one finding.
///
/// When one call has several findings, it throws a ``DiagnosticList`` that holds all of them, so that
/// a caller who passes three wrong arguments reads about three and not about the first.
public typealias StatepackError = Diagnostic

extension DiagnosticList {
    /// Throws nothing for no findings, the finding itself for one, and the list for several.
    static func throwIfAny(_ findings: [Diagnostic]) throws {
        if findings.isEmpty { return }
        if findings.count == 1 { throw findings[0] }
        throw DiagnosticList(findings)
    }
}
