import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// `statepack inspect`: what a model declares, and what it costs.
struct Inspect {
    private let arguments: Arguments
    private let console: Console

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
    }

    func run() throws -> Int32 {
        if arguments.has("json"), arguments.has("text") {
            throw Diagnostic(
                .conflictingOptions, "--json and --text exclude each other", at: arguments.commandPath,
                hint: "give one of them")
        }
        if arguments.has("details"), !arguments.has("json") {
            throw Diagnostic(
                .conflictingOptions, "--details belongs to --json; the text has all details", at: arguments.commandPath,
                hint: "add --json, or leave out --details")
        }
        let model = try Model(path: arguments.operands[0])
        let contract = model.contract
        let summary = model.summary
        if arguments.has("json") {
            var document = contract.json
            if arguments.has("details"), case .object(var members) = document {
                var details = summary.json
                if case .object(var inner) = details {
                    inner.append(.init(key: "memory", value: memoryJSON(summary)))
                    details = .object(inner)
                }
                members.append(.init(key: "details", value: details))
                document = .object(members)
            }
            console.write(document.text)
        } else {
            console.write(text(model, contract, summary))
        }
        return 0
    }

    private var sessions: Int { arguments.integer("sessions") ?? 1 }

    private func memoryJSON(_ summary: ModelSummary) -> JSONValue {
        let (states, overflow) = summary.stateBytes.multipliedReportingOverflow(by: sessions)
        return [
            "sessions": .integer(sessions), "weights": .integer(summary.weightBytes),
            "states": .integer(overflow ? Int.max : states),
        ]
    }

    private func text(_ model: Model, _ contract: Contract, _ summary: ModelSummary) -> String {
        var lines = model.headerLines
        for function in contract.functions {
            lines += ["", "function \(function.name)"]
            var table = TextTable()
            for role in Contract.Role.allCases {
                for (index, entry) in function[role].enumerated() {
                    table.add(
                        index == 0 ? role.plural : "", entry.name, entry.scalarType.name,
                        "[\(entry.shape.joined(separator: ", "))]")
                }
            }
            lines += table.lines()
            if let list = summary.operators.first(where: { $0.function == function.name })?.list {
                let total = list.reduce(0) { $0 + $1.count }
                lines.append("  operators  \(total) of \(list.count) kinds")
                var operators = TextTable(rightAligned: [0])
                for entry in list { operators.add("\(entry.count)", entry.name) }
                lines += operators.lines(indent: "    ")
            }
        }
        if !contract.symbols.isEmpty {
            lines += ["", "symbols"]
            var table = TextTable()
            for symbol in contract.symbols { table.add(symbol.name, "\(symbol.min) to \(symbol.max)") }
            lines += table.lines()
        }
        if !summary.states.isEmpty {
            lines += ["", "states"]
            lines += stateTable(summary.states).lines()
        }
        lines += ["", "memory"]
        var memory = TextTable()
        let panels = summary.panelTensorCount > 0 ? ", \(summary.panelTensorCount) in panels" : ""
        memory.add(
            "weights", byteText(summary.weightBytes), "\(summary.tensorCount) tensors\(panels), mapped from the file")
        let (total, overflow) = summary.stateBytes.multipliedReportingOverflow(by: sessions)
        memory.add(
            "states", overflow ? "too many bytes to count" : byteText(total),
            sessions == 1 ? "for one sequence" : "for \(sessions) sequences of \(byteText(summary.stateBytes))")
        for scratch in summary.scratch {
            memory.add(
                "scratch", byteText(scratch.largest),
                scratch.smallest == scratch.largest
                    ? "for one run of \(scratch.function)"
                    : "for one run of \(scratch.function) at its largest sizes, \(byteText(scratch.smallest)) at its smallest"
            )
        }
        lines += memory.lines()
        return lines.map(Diagnostic.printable).joined(separator: "\n") + "\n"
    }
}

/// The state table that `convert` and `inspect` print.
func stateTable(_ states: [ModelSummary.State]) -> TextTable {
    var table = TextTable()
    table.add("state", "buffer", "type", "size", "starts as", "update")
    for state in states {
        table.add(
            state.name, state.sourceName, state.typeText, byteText(state.byteCount), state.initialValue, state.update)
    }
    return table
}
