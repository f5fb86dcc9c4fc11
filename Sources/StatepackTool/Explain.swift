import StatepackDiagnostics

/// What `statepack --explain CODE` prints: cause, example, remedy and exit code of a diagnostic.
enum Explain {
    /// `word` is a code such as `E0604`, in either case, or a name such as `wrongShape`.
    static func run(_ word: String, _ console: Console) throws -> Int32 {
        let table = Diagnostic.Code.table
        guard let row = table.first(where: { $0.code.rawValue == word.uppercased() || $0.name == word }) else {
            throw Diagnostic(
                .invalidOptionValue, "there is no diagnostic `\(word)`", at: "statepack --explain",
                expected: "a code such as E0301, or a name such as stateNamesMismatch", found: word,
                hint: ArgumentParser.suggestion(
                    for: word, among: table.map(\.name) + table.map(\.code.rawValue)))
        }
        console.write(text(row))
        return 0
    }

    private static func text(
        _ row: (code: Diagnostic.Code, name: String, cause: String, example: String, remedy: String, exit: Int32)
    ) -> String {
        let example = row.example.split(separator: "\n", omittingEmptySubsequences: false).map { "    \($0)" }
        return """
            \(row.code) \(row.name)
              cause:     \(row.cause)
              example:
            \(example.joined(separator: "\n"))
              remedy:    \(row.remedy)
              exit code: \(row.exit)

            """
    }
}
