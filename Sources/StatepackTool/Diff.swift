import StatepackDiagnostics

/// `statepack diff`: what changes for callers between two versions of a model.
struct Diff {
    private let arguments: Arguments
    private let console: Console

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
    }

    func run() throws -> Int32 {
        let paths = Array(arguments.operands[..<2])
        var sources: [ContractSource] = []
        var findings: [Diagnostic] = []
        for path in paths {
            do {
                sources.append(try ContractSource(path: path))
            } catch {
                findings += Tool.diagnostics(of: error)
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        let report = DiffReport(paths: paths, old: sources[0], new: sources[1])
        console.add(contentsOf: report.json)
        if console.format == .github {
            for finding in report.annotations { console.report(finding) }
        }
        console.write(arguments.value("format") == "markdown" ? report.markdown : report.text)
        switch arguments.value("fail-on") {
        case "breaking": return report.count(.breaking) > 0 ? 1 : 0
        case "any": return report.differences.isEmpty ? 0 : 1
        default: return 0
        }
    }
}

struct DiffReport {
    var oldPath: String
    var newPath: String
    var oldKind: String
    var newKind: String
    /// Breaking ones first.
    var differences: [ContractDifference]
    var weights: ProgramComparison.Verdict
    var graph: ProgramComparison.Verdict

    init(paths: [String], old: ContractSource, new: ContractSource) {
        (oldPath, newPath) = (paths[0], paths[1])
        (oldKind, newKind) = (old.kind, new.kind)
        let comparison = ProgramComparison(old: old, new: new)
        (weights, graph) = (comparison.weights, comparison.graph)
        let all = old.contract.differences(from: new.contract) + comparison.differences
        differences = ContractDifference.Class.allCases.flatMap { level in all.filter { $0.class == level } }
    }

    func count(_ level: ContractDifference.Class) -> Int { differences.count { $0.class == level } }

    /// `2 breaking, 1 numeric`
    private var counts: String {
        let parts = ContractDifference.Class.allCases.compactMap { level in
            count(level) == 0 ? nil : "\(count(level)) \(level.rawValue)"
        }
        return parts.joined(separator: ", ")
    }

    private var verdict: String {
        if count(.breaking) > 0 { return "breaking: Swift callers must change" }
        if count(.compatible) > 0 { return "compatible: no caller has to change" }
        if count(.numeric) > 0 { return "numeric: the same names, types and shapes, other values" }
        return "no difference in what was compared"
    }

    var text: String {
        var table = TextTable()
        table.add("old", "\(oldPath) (\(oldKind))")
        table.add("new", "\(newPath) (\(newKind))")
        table.add("contract", contractText)
        table.add("weights", weights.text)
        table.add("graph", graph.text)
        table.add("verdict", verdict)
        let lines = table.lines(indent: "")
        return differences.map(\.text).joined() + lines.joined(separator: "\n") + "\n"
    }

    private var contractText: String {
        let count = differences.count { ![.weights, .graph, .program].contains($0.change) }
        return count == 0 ? "the same" : counted(count, "difference")
    }

    var json: JSONValue {
        [
            "old": ["file": .string(oldPath), "kind": .string(oldKind)],
            "new": ["file": .string(newPath), "kind": .string(newKind)],
            "class": differences.first.map { .string($0.class.rawValue) } ?? .null,
            "counts": .object(
                ContractDifference.Class.allCases.map { .init(key: $0.rawValue, value: .integer(count($0))) }),
            "weights": .string(weights.text), "graph": .string(graph.text),
            "differences": .array(differences.map(\.json)),
        ]
    }

    /// Shown at the new file: what breaks as an error, the rest as notices.
    var annotations: [Diagnostic] {
        differences.map { difference in
            var finding = difference.finding
            finding.severity = difference.class == .breaking ? .error : .note
            finding.location = finding.location.map { "\(newPath), \($0)" } ?? newPath
            return finding
        }
    }

    /// For a comment on a pull request.
    var markdown: String {
        var lines = ["### Statepack: \(counts.isEmpty ? "no difference" : counts)", ""]
        lines += ["\(Markdown.code(oldPath)) (\(oldKind)) → \(Markdown.code(newPath)) (\(newKind))", ""]
        if !differences.isEmpty {
            lines += ["| class | where | change | old | new |", "| --- | --- | --- | --- | --- |"]
            for difference in differences {
                let diagnostic = difference.diagnostic
                let level = difference.class == .breaking ? "**breaking**" : difference.class.rawValue
                let cells = [
                    level, Markdown.code(diagnostic.location ?? ""), difference.change.words,
                    Markdown.code(diagnostic.expected ?? ""), Markdown.code(diagnostic.found ?? ""),
                ]
                lines.append("| " + cells.joined(separator: " | ") + " |")
            }
            lines.append("")
        }
        lines.append("Weights: \(weights.text). Graph: \(graph.text).")
        lines += ["", "**\(verdict)**"]
        return lines.joined(separator: "\n") + "\n"
    }
}

/// Text in Markdown that nothing in it can leave.
enum Markdown {
    /// A code span. Every ASCII character that could begin something is an HTML entity, so that neither Markdown nor
    /// HTML nor a mention nor a link sees it; a control character or a change of direction is spelled out.
    static func code(_ text: String) -> String {
        if text.isEmpty { return "" }
        var result = "<code>"
        for scalar in Diagnostic.printable(text).unicodeScalars {
            if !scalar.isASCII || scalar.properties.isAlphabetic || plain.contains(scalar) {
                result.unicodeScalars.append(scalar)
            } else {
                result += "&#\(scalar.value);"
            }
        }
        return result + "</code>"
    }

    private static let plain = Set("0123456789 ,-+=".unicodeScalars)
}

extension ContractDifference.Change {
    /// As a table says it.
    package var words: String {
        switch self {
        case .added: "added"
        case .removed: "removed"
        case .renamed: "renamed"
        case .order: "reordered"
        case .scalarType: "other scalar type"
        case .shape: "other shape"
        case .bounds: "other bounds"
        case .context: "other context rules"
        case .initialValue: "other initial values"
        case .writtenBy: "written by other operators"
        case .weights: "other weights"
        case .graph: "computes in another way"
        case .program: "another program"
        }
    }
}
