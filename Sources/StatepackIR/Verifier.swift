package import StatepackBundle
package import StatepackDiagnostics

/// Checks that a program is what a compiler stage may hand on. Every finding is reported, not only the first.
///
/// After it succeeds the next stage relies on this: ids and indices are in range; each value is defined once
/// and before its uses; each node has the arguments of its operator and results of the types its rule
/// derives, for every choice of symbols; states keep their types; and only the operators of the stage occur.
package enum Verifier {
    package enum Stage: String, Sendable, CaseIterable {
        /// ATen operators. One without a row in ops.json passes: DecomposeOps reports those, all at once.
        case imported = "ImportProgram"
        /// Core operators: kernels, views and their scatter duals. Nothing is in place.
        case decomposed = "DecomposeOps"
        /// As before; fusion runs while everything is still a value.
        case fused = "FuseOps"
        /// No scatter duals; `write` and in-place operators whose destination is a state or the result of a
        /// `copy`; every state's `after` is its `before`.
        case inPlace = "RecoverStateWrites"
    }

    /// Throws a `DiagnosticList` with every finding. Takes time proportional to the program.
    package static func verify(_ program: Program, stage: Stage) throws(DiagnosticList) {
        var findings = findings(in: program, stage: stage)
        if findings.isEmpty { return }
        if stage != .imported {
            findings.insert(
                Diagnostic(
                    .invalidProgram, "\(stage.rawValue) made an invalid program", hint: "report this with the file"),
                at: 0)
        }
        throw DiagnosticList(findings)
    }

    package static func findings(in program: Program, stage: Stage) -> [Diagnostic] {
        let check = ProgramCheck(program, stage)
        check.checkProgram()
        for function in program.functions { check.check(function) }
        return check.findings
    }
}

private final class ProgramCheck {
    private let program: Program
    private let stage: Verifier.Stage
    private let bounds: SizeBounds
    private(set) var findings: [Diagnostic] = []

    init(_ program: Program, _ stage: Verifier.Stage) {
        self.program = program
        self.stage = stage
        bounds = SizeBounds(program.symbols)
    }

    private func text(_ type: ValueType) -> String { type.description(symbolNames: program.symbolNames) }

    private func report(
        _ code: Diagnostic.Code, _ message: String, at location: String, expected: String? = nil, found: String? = nil
    ) {
        findings.append(Diagnostic(code, message, at: location, expected: expected, found: found))
    }

    func checkProgram() {
        for state in program.states {
            guard case .tensor(let index) = state.initialValue else { continue }
            guard program.tensors.indices.contains(index) else {
                report(
                    .invalidReference, "the initial value is not a stored tensor", at: "state `\(state.name)`",
                    expected: "0..<\(program.tensors.count)", found: "\(index)")
                continue
            }
        }
    }

    func check(_ function: Function) {
        let place = "function `\(function.name)`"
        var defined = [Bool](repeating: false, count: function.values.count)
        // Whether a value's bytes are those of a state, or of a copy made to be written.
        var isWritable = [Bool](repeating: false, count: function.values.count)

        func isKnown(_ id: ValueID) -> Bool { function.values.indices.contains(id.index) }

        func define(_ id: ValueID, _ location: String) {
            guard isKnown(id) else {
                report(.invalidReference, "a value does not exist", at: location, found: "%\(id.index)")
                return
            }
            if defined[id.index] {
                report(.redefinedValue, "value %\(id.index) is defined twice", at: location)
            }
            defined[id.index] = true
        }

        func use(_ id: ValueID, _ location: String) -> Bool {
            guard isKnown(id) else {
                report(.invalidReference, "a value does not exist", at: location, found: "%\(id.index)")
                return false
            }
            if defined[id.index] { return true }
            report(.undefinedValue, "value %\(id.index) is used before it is defined", at: location)
            return false
        }

        for input in function.inputs { define(input.value, "\(place), input `\(input.name)`") }
        for state in function.states {
            define(state.before, "\(place), state \(state.state)")
            if isKnown(state.before) { isWritable[state.before.index] = true }
        }
        for constant in function.constants {
            guard program.tensors.indices.contains(constant.tensor) else {
                report(
                    .invalidReference, "a constant is not a stored tensor", at: place,
                    expected: "0..<\(program.tensors.count)", found: "\(constant.tensor)")
                continue
            }
            let tensor = program.tensors[constant.tensor]
            define(constant.value, "\(place), constant `\(tensor.name)`")
            guard isKnown(constant.value) else { continue }
            let type = ValueType(tensor.scalarType, tensor.shape.map { SizeExpression($0) })
            if function[constant.value] != type {
                report(
                    .typeMismatch, "a constant does not have the type of its tensor",
                    at: "\(place), constant `\(tensor.name)`", expected: text(type),
                    found: text(function[constant.value]))
            }
        }

        for (index, node) in function.nodes.enumerated() {
            var location = "\(place), node \(index) `\(node.op)`"
            if let source = node.source, program.sources.indices.contains(source) {
                location += ", \(program.sources[source])"
            }
            // An undefined operand would only make the rule complain again.
            var usable = true
            for id in node.operands where !use(id, location) { usable = false }
            for id in node.results where !isKnown(id) { usable = false }
            if usable { check(node, function, location, isWritable) }
            for id in node.results { define(id, location) }
            if usable, let result = node.results.first, isKnown(result) {
                isWritable[result.index] =
                    node.op == "copy"
                    || Self.sharesStorage(node) && node.operands.first.map { isWritable[$0.index] } ?? false
            }
        }

        for output in function.outputs { _ = use(output.value, "\(place), output `\(output.name)`") }
        check(states: function, place) { use($0, $1) }
        check(context: function, place)
    }

    private func check(context function: Function, _ place: String) {
        guard let context = function.context else { return }
        // What is out of range has been reported where it is.
        guard function.inputs.allSatisfy({ function.values.indices.contains($0.value.index) }),
            function.states.allSatisfy({ program.states.indices.contains($0.state) })
        else { return }
        for fault in context.faults(in: ContextRules.Scope(function, of: program)) {
            report(
                .invalidContext, fault.message, at: "\(place), context", expected: fault.expected, found: fault.found)
        }
    }

    private static func sharesStorage(_ node: Node) -> Bool { node.isInPlace || node.op.hasPrefix("view.") }

    private func check(states function: Function, _ place: String, use: (ValueID, String) -> Bool) {
        var seen: Set<Int> = []
        for state in function.states {
            guard program.states.indices.contains(state.state) else {
                report(
                    .invalidReference, "a function uses a state that does not exist", at: place,
                    expected: "0..<\(program.states.count)", found: "\(state.state)")
                continue
            }
            let declared = program.states[state.state]
            let location = "\(place), state `\(declared.name)`"
            if !seen.insert(state.state).inserted {
                report(.redefinedValue, "a function lists a state twice", at: location)
            }
            for (id, end) in [(state.before, "starts"), (state.after, "ends")] where use(id, location) {
                if function[id] != declared.type {
                    report(
                        .stateTypeMismatch, "the state has another type where the function \(end)", at: location,
                        expected: text(declared.type), found: text(function[id]))
                }
            }
            if stage == .inPlace, state.after != state.before {
                report(
                    .invalidInPlace, "the state is not updated in place", at: location,
                    expected: "%\(state.before.index)",
                    found: "%\(state.after.index)")
            }
        }
    }

    // MARK: Nodes

    private func check(_ node: Node, _ function: Function, _ location: String, _ isWritable: [Bool]) {
        let names: [String]
        let rule: OperatorRule
        switch stage {
        case .imported:
            guard let row = OperatorTable.operators[node.op] else { return }
            (names, rule) = (row.arguments, row.rule)
        case .decomposed, .inPlace, .fused:
            // The node names its destination; the kernel of that name has it as its result.
            if node.op == OperatorTable.write.name, stage == .inPlace {
                (names, rule) = (OperatorTable.write.arguments, OperatorTable.write.rule)
            } else if let row = OperatorTable.kernels[node.op], node.op != OperatorTable.write.name {
                (names, rule) = (row.arguments, row.rule)
            } else if let row = OperatorTable.views[node.op] {
                (names, rule) = (row.arguments, row.rule)
            } else if let row = OperatorTable.scatters[node.op], stage != .inPlace {
                (names, rule) = (row.arguments, row.rule)
            } else {
                report(.operatorNotAllowed, "`\(node.op)` may not occur after \(stage.rawValue)", at: location)
                return
            }
        }
        checkPlacement(node, location, isWritable)
        guard checkNames(node, names, location) else { return }
        do {
            let input = RuleInput(node: node, values: function.values, symbols: program.symbols, bounds: bounds)
            let derived = try rule(input)
            check(derived, node, function, location)
        } catch {
            report(error.code, error.message, at: location, expected: error.expected, found: error.found)
        }
    }

    private func checkPlacement(_ node: Node, _ location: String, _ isWritable: [Bool]) {
        let mustBeInPlace = node.op == OperatorTable.write.name
        if !node.isInPlace {
            if mustBeInPlace { report(.invalidInPlace, "`write` is not marked in place", at: location) }
            return
        }
        let mayBeInPlace = mustBeInPlace || KernelSignature.byName[node.op]?.isWriting == true
        if stage != .inPlace || !mayBeInPlace {
            report(.invalidInPlace, "`\(node.op)` may not be in place", at: location)
        } else if let destination = node.operands.first, !isWritable[destination.index] {
            report(.invalidInPlace, "%\(destination.index) is not a state or a copy, nor a view of one", at: location)
        }
    }

    private func checkNames(_ node: Node, _ names: [String], _ location: String) -> Bool {
        let found = node.arguments.map(\.name)
        if found == names { return true }
        report(
            .invalidArgument, "`\(node.op)` has other arguments than its operator declares", at: location,
            expected: names.joined(separator: ", "), found: found.joined(separator: ", "))
        return false
    }

    private func check(_ derived: [ValueType], _ node: Node, _ function: Function, _ location: String) {
        if derived.count != node.results.count {
            report(
                .typeMismatch, "`\(node.op)` has another number of results", at: location, expected: "\(derived.count)",
                found: "\(node.results.count)")
            return
        }
        for (type, id) in zip(derived, node.results) {
            let recorded = function[id]
            let isEqual =
                type.scalarType == recorded.scalarType && type.rank == recorded.rank
                && zip(type.shape, recorded.shape).allSatisfy { bounds.areProvablyEqual($0, $1) }
            if !isEqual {
                report(
                    .typeMismatch, "%\(id.index) has another type than `\(node.op)` gives", at: location,
                    expected: text(type), found: text(recorded))
            }
        }
    }
}

extension ContextRules.Scope {
    /// Of a function whose indices are in range.
    package init(_ function: Function, of program: Program) {
        self.init(
            inputs: function.inputs.map { function[$0.value].scalarType },
            states: function.states.map {
                ($0.state, program.states[$0.state].name, program.states[$0.state].type.rank)
            })
    }
}
