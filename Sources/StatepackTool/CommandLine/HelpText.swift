/// Help made from a `CommandSyntax`, 80 columns wide.
func helpText(for syntax: CommandSyntax, path: String) -> String {
    var lines = ["usage: \(ArgumentParser.usage(syntax, path))", ""]
    lines += wrapped(syntax.summary, width: 80)
    func section(_ title: String, _ rows: [(String, String)]) {
        if rows.isEmpty { return }
        lines += ["", "\(title):"]
        for (left, right) in rows { lines += row(left, right) }
    }
    section("commands", syntax.subcommands.map { ("  \($0.name)", $0.summary) })
    section("arguments", syntax.operands.map { ("  \($0.label)", $0.summary) })
    section(
        "options",
        syntax.allOptions.map { option in
            let short = option.short.map { "-\($0), " } ?? "    "
            let value = option.valueName.map { " \($0)" } ?? ""
            return ("  \(short)--\(option.name)\(value)", option.summary + (option.isRepeatable ? "; repeatable" : ""))
        })
    for note in syntax.notes {
        lines.append("")
        lines += note.split(separator: "\n", omittingEmptySubsequences: false).flatMap { line in
            // A line that starts with a blank is kept as it stands: examples and tables.
            line.hasPrefix(" ") ? [String(line)] : wrapped(String(line), width: 80)
        }
    }
    return lines.joined(separator: "\n") + "\n"
}

private let helpColumn = 28

private func row(_ left: String, _ right: String) -> [String] {
    let indent = String(repeating: " ", count: helpColumn)
    let text = wrapped(right, width: 80 - helpColumn)
    if left.count + 2 > helpColumn {
        return [left] + text.map { indent + $0 }
    }
    let first = left + String(repeating: " ", count: helpColumn - left.count) + (text.first ?? "")
    return [first] + text.dropFirst().map { indent + $0 }
}

private func wrapped(_ text: String, width: Int) -> [String] {
    var lines: [String] = []
    var line = ""
    for word in text.split(separator: " ") {
        if !line.isEmpty, line.count + 1 + word.count > width {
            lines.append(line)
            line = ""
        }
        line += line.isEmpty ? String(word) : " \(word)"
    }
    return line.isEmpty ? lines : lines + [line]
}
