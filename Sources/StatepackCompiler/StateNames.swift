internal import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// The names that `convert --state-names` gives to the states of a program.
///
/// Either one name per state in state order (`keyCache,valueCache`), or pairs of a buffer's qualified name
/// and its state's name in any order (`layers.0.key=keyCache`), for some states or for all. They name states
/// that were exported under their default names; where the author of the export chose a name they must repeat
/// it, so that a command line which fits another model is an error and not another interface.
package enum StateNames {
    /// Renames the states of the program. Throws every fault found, the first with the table of states and names.
    ///
    /// - Parameter names: The option's value, cut at commas.
    package static func apply(_ names: [String], to program: inout Program) throws {
        let pairs = names.map {
            $0.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
        }
        let pairCount = pairs.count { $0.count == 2 }
        var findings: [Diagnostic] = []
        // The new name of each state, nil for one that keeps its own.
        var given = [String?](repeating: nil, count: program.states.count)

        func fault(_ message: String, _ hint: String? = nil) {
            // The first one shows the table; it is the same for all.
            let isFirst = findings.isEmpty
            findings.append(
                Diagnostic(
                    .stateNamesMismatch, message, at: "--state-names \(names.joined(separator: ","))",
                    expected: isFirst ? table(program.states) : nil,
                    found: isFirst ? found(names, program.states, pairCount) : nil, hint: hint))
        }

        if pairCount != 0, pairCount != pairs.count {
            fault("names and pairs buffer=name are mixed", "give either all names in state order, or pairs only")
        } else if pairCount == 0 {
            if names.count == program.states.count {
                given = names
            } else {
                fault(
                    "\(names.count) state name\(names.count == 1 ? " was" : "s were") given, "
                        + "the program has \(program.states.count)",
                    "give one name per state in the order of the table, or pairs buffer=name")
            }
        } else {
            for pair in pairs {
                guard let index = program.states.firstIndex(where: { $0.sourceName == pair[0] }) else {
                    fault("no state comes from a buffer `\(pair[0])`", "the table has the buffers")
                    continue
                }
                if given[index] != nil {
                    fault("buffer `\(pair[0])` is named twice")
                } else {
                    given[index] = pair[1]
                }
            }
        }
        if findings.isEmpty {
            for (index, state) in program.states.enumerated() {
                guard let name = given[index] else { continue }
                if name.isEmpty {
                    fault("the name for `\(state.sourceName)` is empty")
                } else if name.unicodeScalars.contains(where: { $0.properties.generalCategory == .control }) {
                    fault("the name for `\(state.sourceName)` has a control character")
                } else if name.utf8.count > BundleProgram.Limits.nameBytes {
                    fault("the name for `\(state.sourceName)` has more than \(BundleProgram.Limits.nameBytes) bytes")
                } else if name != state.name, name.first!.isWhitespace || name.last!.isWhitespace {
                    fault("the name for `\(state.sourceName)` starts or ends with a space", "write `a,b`, not `a, b`")
                } else if state.isNamedByAuthor, name != state.name {
                    fault(
                        "state `\(state.name)` was named by its author, `\(name)` is another name",
                        "repeat the author's names, or export again with state_names")
                }
            }
            let final = zip(program.states, given).map { $1 ?? $0.name }
            for (index, name) in final.enumerated() where final[..<index].contains(name) {
                fault("two states would be named `\(name)`")
            }
            for function in program.functions {
                for (kind, arguments) in [("input", function.inputs), ("output", function.outputs)] {
                    for argument in arguments
                    where function.states.contains(where: { final[$0.state] == argument.name }) {
                        fault(
                            "a state would have the name of \(kind) `\(argument.name)` of function `\(function.name)`",
                            "a name says which argument is meant: choose another one")
                    }
                }
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        for (index, name) in given.enumerated() {
            guard let name else { continue }
            program.states[index].name = name
            program.states[index].isNamedByAuthor = true
        }
    }

    /// One line per state: buffer and name, and whether it can be chosen.
    private static func table(_ states: [Program.State]) -> String {
        if states.isEmpty { return "no states" }
        return states.map { state in
            state.isNamedByAuthor ? "\(state.sourceName) = \(state.name)" : "\(state.sourceName) = any name"
        }.joined(separator: "\n")
    }

    /// The same lines with what was given.
    private static func found(
        _ names: [String], _ states: [Program.State], _ pairCount: Int
    ) -> String {
        var lines = names
        if pairCount == 0 {
            lines = (0..<max(states.count, names.count)).map { index in
                let buffer = index < states.count ? states[index].sourceName : "(no state)"
                return "\(buffer) = \(index < names.count ? names[index] : "(no name)")"
            }
        } else {
            lines = names.map { $0.replacing("=", with: " = ") }
        }
        return lines.isEmpty ? "no names" : lines.joined(separator: "\n")
    }
}
