extension Diagnostic.Code {
    /// What a command that fails with this code exits with, from `errors.json`: 1 findings, 2 usage,
    /// 3 unreadable or malformed input, 4 unsupported, 5 output could not be written, 70 a fault of ours.
    ///
    /// Scans the table: call it once per command, not per element.
    package var exitCode: Int32 { Self.table.first { $0.code == self }?.exit ?? 70 }
}

extension DiagnosticList {
    /// What a command that found all these exits with: 0 without errors, otherwise the most specific of
    /// their exit codes. A fault of ours outranks everything, then what kept the command from doing its
    /// work (2 to 5, first found first), then findings.
    package var exitCode: Int32 {
        let codes = diagnostics.lazy.filter { $0.severity == .error }.map(\.code.exitCode)
        if codes.contains(70) { return 70 }
        return codes.first { $0 > 1 } ?? codes.first ?? 0
    }
}
