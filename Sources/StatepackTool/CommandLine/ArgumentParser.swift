import StatepackDiagnostics

/// A parsed command line. Values are kept as text; the parser has checked integers and choices.
struct Arguments: Sendable {
    /// The words that lead to the command: `statepack convert`.
    var commandPath: String
    var syntax: CommandSyntax
    var operands: [String] = []
    var values: [String: [String]] = [:]
    var flags: Set<String> = []

    func has(_ name: String) -> Bool { flags.contains(name) || values[name] != nil }
    func value(_ name: String) -> String? { values[name]?.last }
    func all(_ name: String) -> [String] { values[name] ?? [] }
    func byteCount(_ name: String) -> Int? { value(name).flatMap(ByteCountText.parse) }
    func integer(_ name: String) -> Int? { value(name).flatMap { Int($0) } }
}

/// Reads a command line against a `CommandSyntax` and reports every fault of it at once.
///
/// `--name value`, `--name=value`, `-n value`; a value that starts with a dash needs the `=` form;
/// after `--` everything is an operand; a lone `-` is one. Names are never abbreviated, so that a new
/// option cannot change what an old command line means.
struct ArgumentParser {
    var syntax: CommandSyntax
    var commandPath: String

    private(set) var arguments: Arguments
    private(set) var findings: [Diagnostic] = []

    /// Cost: linear in the command line, but for the suggestions. Throws `DiagnosticList`.
    static func parse(_ words: [String], for syntax: CommandSyntax, path: String) throws -> Arguments {
        if !syntax.subcommands.isEmpty {
            return try parseSubcommand(words, of: syntax, path: path)
        }
        var parser = ArgumentParser(
            syntax: syntax, commandPath: path, arguments: Arguments(commandPath: path, syntax: syntax))
        parser.read(words)
        if !parser.findings.isEmpty { throw DiagnosticList(parser.findings) }
        return parser.arguments
    }

    /// The first operand chooses the command; options before it belong to the outer command.
    private static func parseSubcommand(_ words: [String], of syntax: CommandSyntax, path: String) throws -> Arguments {
        guard let index = words.firstIndex(where: { !$0.hasPrefix("-") }),
            !isValueOfPreviousOption(words, index, syntax)
        else {
            var bare = syntax
            bare.subcommands = []
            return try parse(words, for: bare, path: path)
        }
        guard let subcommand = syntax.subcommands.first(where: { $0.name == words[index] }) else {
            let names = syntax.subcommands.map(\.name)
            // An option that reads like a command: `statepack explain E0718`.
            let option = syntax.options.first { $0.name == words[index] }.map { option in
                let value = words.indices.contains(index + 1) ? words[index + 1] : option.valueName ?? ""
                return "did you mean `\(path) --\(option.name) \(value)`?"
            }
            throw DiagnosticList([
                Diagnostic(
                    .unknownCommand, "unknown command `\(words[index])`", at: path,
                    expected: names.joined(separator: ", "), found: words[index],
                    hint: option ?? suggestion(for: words[index], among: names) ?? "see `\(path) --help`")
            ])
        }
        var rest = words
        rest.remove(at: index)
        return try parse(rest, for: subcommand, path: "\(path) \(subcommand.name)")
    }

    private static func isValueOfPreviousOption(_ words: [String], _ index: Int, _ syntax: CommandSyntax) -> Bool {
        guard index > 0, words[index - 1].hasPrefix("--") else { return false }
        return syntax.options.contains { "--\($0.name)" == words[index - 1] && $0.valueName != nil }
    }

    private mutating func read(_ words: [String]) {
        var index = 0
        while index < words.count {
            let word = words[index]
            index += 1
            if word == "--" {
                arguments.operands += words[index...]
                break
            }
            guard word.hasPrefix("-"), word != "-" else {
                arguments.operands.append(word)
                continue
            }
            let (spelling, inlineValue) = Self.split(word)
            guard let option = option(spelled: spelling) else {
                reportUnknown(spelling)
                continue
            }
            guard let valueName = option.valueName else {
                if let inlineValue {
                    report(
                        .invalidOptionValue, "option `\(spelling)` takes no value", expected: spelling,
                        found: "\(spelling)=\(inlineValue)")
                }
                arguments.flags.insert(option.name)
                continue
            }
            let value: String
            if let inlineValue {
                value = inlineValue
            } else if index < words.count, words[index] == "-" || !words[index].hasPrefix("-") {
                value = words[index]
                index += 1
            } else {
                report(
                    .missingOptionValue, "option `\(spelling)` needs a value", expected: "\(spelling) \(valueName)",
                    found: index < words.count ? "\(spelling) \(words[index])" : "\(spelling) at the end of the line",
                    hint: index < words.count ? "a value that starts with a dash is written `\(spelling)=VALUE`" : nil)
                continue
            }
            store(value, for: option, spelling)
        }
        checkOperands()
    }

    private static func split(_ word: String) -> (spelling: String, value: String?) {
        guard let equals = word.firstIndex(of: "=") else { return (word, nil) }
        return (String(word[..<equals]), String(word[word.index(after: equals)...]))
    }

    private func option(spelled spelling: String) -> CommandSyntax.Option? {
        syntax.allOptions.first { option in
            spelling == "--\(option.name)" || option.short.map { spelling == "-\($0)" } ?? false
        }
    }

    private mutating func store(_ value: String, for option: CommandSyntax.Option, _ spelling: String) {
        switch option.value {
        case .none: break
        case .text(let name):
            if value.isEmpty {
                report(.invalidOptionValue, "option `\(spelling)` has an empty value", expected: name, found: "\"\"")
            }
        case .integer(_, let range):
            if Int(value).map(range.contains) != true {
                let bound =
                    range.upperBound == Int.max
                    ? "at least \(range.lowerBound)" : "\(range.lowerBound) to \(range.upperBound)"
                report(
                    .invalidOptionValue, "option `\(spelling)` has an invalid value", expected: "an integer, \(bound)",
                    found: value)
            }
        case .byteCount:
            if ByteCountText.parse(value) == nil {
                report(
                    .invalidOptionValue, "option `\(spelling)` has an invalid value",
                    expected: ByteCountText.expectation, found: value, hint: ByteCountText.suggestion(for: value))
            }
        case .choice(_, let choices):
            if !choices.contains(value) {
                report(
                    .invalidOptionValue, "option `\(spelling)` has an invalid value",
                    expected: choices.joined(separator: ", "), found: value,
                    hint: Self.suggestion(for: value, among: choices))
            }
        }
        if let earlier = arguments.values[option.name]?.last, !option.isRepeatable {
            report(
                .repeatedOption, "option `\(spelling)` is given twice", expected: "one value",
                found: "\(earlier), \(value)")
        }
        arguments.values[option.name, default: []].append(value)
    }

    private mutating func checkOperands() {
        // Help and version answer whatever else stands on the line.
        if arguments.has("help") || arguments.has("version") { return }
        let required = syntax.operands.filter(\.isRequired)
        for operand in required.dropFirst(arguments.operands.count) {
            report(
                .missingOperand, "\(operand.name) is missing", expected: Self.usage(syntax, commandPath),
                hint: "see `\(commandPath) --help`")
        }
        if syntax.operands.last?.isRepeatable == true { return }
        for extra in arguments.operands.dropFirst(syntax.operands.count) {
            report(
                .unexpectedOperand, "unexpected argument `\(extra)`", expected: Self.usage(syntax, commandPath),
                found: extra)
        }
    }

    private mutating func reportUnknown(_ spelling: String) {
        let names = syntax.allOptions.map { "--\($0.name)" }
        report(
            .unknownOption, "unknown option `\(spelling)`", found: spelling,
            hint: Self.suggestion(for: spelling, among: names) ?? "see `\(commandPath) --help`")
    }

    private mutating func report(
        _ code: Diagnostic.Code, _ message: String, expected: String? = nil, found: String? = nil, hint: String? = nil
    ) {
        findings.append(
            Diagnostic(code, message, at: commandPath, expected: expected, found: found, hint: hint))
    }

    static func suggestion(for word: String, among candidates: [String]) -> String? {
        nearestName(to: word, among: candidates).map { "did you mean `\($0)`?" }
    }

    static func usage(_ syntax: CommandSyntax, _ path: String) -> String {
        var text = path
        if !syntax.subcommands.isEmpty { text += " COMMAND" }
        for operand in syntax.operands { text += operand.isRequired ? " \(operand.label)" : " [\(operand.label)]" }
        return text + " [options]"
    }
}
