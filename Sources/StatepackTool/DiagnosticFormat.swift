import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// How a command says what it found: `--format text|json|github`.
package enum DiagnosticFormat: String, Sendable, CaseIterable {
    /// Results on standard output, diagnostics for people on standard error.
    case text
    /// One document on standard output: the command's results, its exit code, its findings. Nothing else.
    case json
    /// Workflow commands on standard output, which GitHub shows at the file and line; results after them.
    case github

    /// `--json` of an earlier version is another word for `--format json`.
    static let synonym = "json"

    static let option = CommandSyntax.Option(
        "format", .choice("FORMAT", allCases.map(\.rawValue)),
        """
        how findings are printed: text (default), json (one document with results, exit code and findings), or github \
        (workflow commands that mark files and lines)
        """)

    /// What a command line asks for, read before it is parsed, so that its own faults come out in that format, too.
    ///
    /// An option's value never starts with a dash unless it stands behind `=`, so this cannot take a value for an
    /// option. Text when the command has no such option or its value is none of ours.
    static func requested(by words: [String], of syntax: CommandSyntax) -> DiagnosticFormat {
        var syntax = syntax
        if !syntax.subcommands.isEmpty {
            guard let name = words.first(where: { !$0.hasPrefix("-") }),
                let subcommand = syntax.subcommands.first(where: { $0.name == name })
            else { return .text }
            syntax = subcommand
        }
        guard syntax.options.contains(where: { $0.name == option.name }) else { return .text }
        let options = words.prefix { $0 != "--" }
        for (index, word) in options.enumerated() {
            let value: String?
            switch word {
            case "--\(option.name)": value = index + 1 < options.count ? options[index + 1] : nil
            case "--\(synonym)" where syntax.options.contains { $0.name == synonym }: value = Self.json.rawValue
            default:
                value = word.hasPrefix("--\(option.name)=") ? String(word.dropFirst(option.name.count + 3)) : nil
            }
            if let format = value.flatMap(DiagnosticFormat.init(rawValue:)) { return format }
        }
        return .text
    }

    /// Refuses `--json` beside a `--format` that says something else.
    static func checkSynonym(_ arguments: Arguments) throws(Diagnostic) {
        guard arguments.has(synonym), let format = arguments.value(option.name), format != synonym else { return }
        throw Diagnostic(
            .conflictingOptions, "--json and --format contradict each other", at: arguments.commandPath,
            expected: "--format json", found: "--json --format \(format)", hint: "leave --json out")
    }
}

/// Diagnostics as workflow commands of GitHub Actions.
///
///     ::error file=model.py,line=42,title=E0604 wrongShape::view for state `keys` has the wrong shape%0A  expected: …
///
/// A line of the log is a command only when it starts with two colons; what stands in one is escaped, so that no
/// name can end it or start another.
package struct WorkflowCommand {
    /// Where the paths of the annotations start: the folder that was checked out.
    private let root: String?

    /// `GITHUB_WORKSPACE`, else the working folder.
    package init() {
        let workspace = getenv("GITHUB_WORKSPACE").map { String(cString: $0) }
        self.init(root: workspace.flatMap { $0.isEmpty ? nil : $0 } ?? ".")
    }

    package init(root: String) { self.root = Self.resolved(root) }

    /// One line, without a line break at the end.
    package func text(of diagnostic: Diagnostic) -> String {
        let kind = diagnostic.severity == .note ? "notice" : diagnostic.severity.rawValue
        var properties: [(key: String, value: String)] = []
        if let place = place(of: diagnostic) {
            properties.append(("file", place.file))
            if let line = place.line { properties.append(("line", String(line))) }
        }
        let name = Diagnostic.Code.table.first { $0.code == diagnostic.code }?.name
        properties.append(("title", diagnostic.code.rawValue + (name.map { " \($0)" } ?? "")))
        // The text form without its title; control characters of names are escaped there.
        let text = diagnostic.description.dropFirst("\(diagnostic.severity.rawValue)[\(diagnostic.code)]: ".count)
        return "::\(kind) " + properties.map { "\($0.key)=\(Self.escapedProperty($0.value))" }.joined(separator: ",")
            + "::\(Self.escaped(text))"
    }

    /// Results between commands, so that a name in them is never obeyed.
    package static func harmless(_ text: String) -> String {
        text.split(separator: "\n", omittingEmptySubsequences: false).map { line in
            let isCommand = line.drop { $0 == " " || $0 == "\t" }.hasPrefix("::")
            return (isCommand ? "." + line : String(line)).replacing("##[", with: "## [")
        }.joined(separator: "\n")
    }

    private static func escaped(_ text: some StringProtocol) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "%": result += "%25"
            case "\r": result += "%0D"
            case "\n": result += "%0A"
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result
    }

    private static func escapedProperty(_ text: String) -> String {
        escaped(text).replacing(":", with: "%3A").replacing(",", with: "%2C")
    }

    // MARK: Places

    /// A file of the working tree that the location names: a source line `… (model.py:42)`, or a path up to the
    /// first comma or the end.
    private func place(of diagnostic: Diagnostic) -> (file: String, line: Int?)? {
        guard let location = diagnostic.location else { return nil }
        if location.hasSuffix(")"), let open = location.lastIndex(of: "(") {
            let inside = location[location.index(after: open)...].dropLast()
            if let colon = inside.lastIndex(of: ":"), let line = Int(inside[inside.index(after: colon)...]), line > 0,
                let file = file(String(inside[..<colon]))
            {
                return (file, line)
            }
        }
        var end = location.endIndex
        // The longest first: a path may have a comma.
        while true {
            if let file = file(String(location[..<end])) { return (file, nil) }
            guard let comma = location[..<end].lastIndex(of: ",") else { return nil }
            end = comma
        }
    }

    /// Relative to the root; nil when there is no such file below it.
    private func file(_ path: String) -> String? {
        guard let root, !path.isEmpty, let resolved = Self.resolved(path), resolved.hasPrefix(root + "/") else {
            return nil
        }
        var status = stat()
        guard stat(resolved, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
        return String(resolved.dropFirst(root.count + 1))
    }

    private static func resolved(_ path: String) -> String? {
        guard let pointer = realpath(path, nil) else { return nil }
        defer { free(pointer) }
        return String(cString: pointer)
    }
}
