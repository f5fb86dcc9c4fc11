import StatepackDiagnostics

extension Validate {
    /// Validates every MODEL of the command line, also after one that does not hold: a hook gets all changed files in
    /// one call.
    ///
    /// Returns the most specific of their exit codes, by the rule of `DiagnosticList.exitCode`. The document of `json`
    /// format is one model's.
    static func runInTurn(_ arguments: Arguments, _ console: Console) throws -> Int32 {
        let models = arguments.operands
        if models.count == 1 { return try Validate(arguments, console).run() }
        if console.format == .json {
            throw Diagnostic(
                .conflictingOptions, "--format json takes one MODEL", at: arguments.commandPath, expected: "one MODEL",
                found: "\(models.count) of them", hint: "run the command once per file")
        }
        var codes: [Int32] = []
        for model in models {
            console.writeLine("\(model):")
            var alone = arguments
            alone.operands = [model]
            codes.append(try Validate(alone, console).run())
        }
        if codes.contains(70) { return 70 }
        return codes.first { $0 > 1 } ?? codes.max() ?? 0
    }
}
