import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// What sessions of a model need in memory, as the runtime lays it out, for the sizes that need most.
///
/// Counted are the weights, mapped once; for each run that goes on at the same time its intermediate values and the
/// kernels' scratch memory; and for each session its states. Inputs and outputs are the caller's.
package struct MemoryBudget {
    /// Scratch memory of one run of a function at its worst sizes.
    package struct Scratch {
        package var function: String
        package var bytes: Int
        /// `query = 256`; empty without symbols.
        package var sizes: String
    }

    package var weights: Int
    package var scratch: [Scratch] = []
    /// Of one session.
    package var states: Int
    var sessions: Int
    var concurrentRuns: Int
    var threads: Int
    /// Nil when nothing limits it.
    var limit: Int?

    /// Reads no weights. Throws what the runtime refuses, and `E0750` for sizes beyond int64.
    package init(
        _ program: BundleProgram, sources: [String], sessions: Int, concurrentRuns: Int, limit: Int?, threads: Int?
    ) throws {
        self.sessions = sessions
        self.concurrentRuns = concurrentRuns
        self.limit = limit
        weights = program.tensors.map { $0.offset + $0.length }.max() ?? 0
        let figures = try ArenaFigures(of: program, sources: sources, threadCount: threads)
        self.threads = figures.threadCount
        for (index, function) in program.functions.enumerated() {
            var worst = Scratch(function: function.name, bytes: -1, sizes: "")
            for choice in SymbolChoices(program.symbols, varying: function.symbolIndices).list {
                let bytes = try figures.byteCount(ofFunction: index, symbols: choice)
                if bytes > worst.bytes {
                    worst.bytes = bytes
                    worst.sizes = program.text(of: choice, varying: function.symbolIndices)
                }
            }
            scratch.append(worst)
        }
        states = 0
        let symbols = Set(program.states.flatMap(\.shape).flatMap(\.symbolIndices))
        for choice in SymbolChoices(program.symbols, varying: symbols).list {
            var sum = 0
            for state in program.states {
                guard let bytes = ModelSummary.byteCount(state.scalarType, state.shape, choice) else {
                    throw Diagnostic(
                        .memoryBudgetExceeded, "state `\(state.name)` has more bytes than can be counted",
                        at: "state `\(state.name)`", expected: "at most \(Int.max) bytes",
                        found: choice.isEmpty ? nil : program.text(of: choice, varying: symbols))
                }
                sum = Self.sum(sum, bytes)
            }
            states = max(states, sum)
        }
    }

    var worstScratch: Scratch? { scratch.max { $0.bytes < $1.bytes } }

    package var fixedBytes: Int { Self.sum(weights, Self.product(concurrentRuns, worstScratch?.bytes ?? 0)) }

    /// `Int.max` stands for everything beyond it.
    package var totalBytes: Int { Self.sum(fixedBytes, Self.product(sessions, states)) }

    /// How many sessions fit into the limit; nil without a limit, or when a session needs nothing.
    package var fittingSessions: Int? {
        guard let limit, states > 0 else { return nil }
        return max(0, limit - fixedBytes) / states
    }

    package func finding(at path: String) -> Diagnostic? {
        guard let limit, totalBytes > limit else { return nil }
        let runs = concurrentRuns == 1 ? "" : "\(concurrentRuns) x "
        let hint =
            if let fitting = fittingSessions, fitting > 0 {
                "\(counted(fitting, "session")) \(fitting == 1 ? "fits" : "fit")"
            } else { noSessionFits(in: limit) }
        return Diagnostic(
            .memoryBudgetExceeded, "\(counted(sessions, "session")) \(sessions == 1 ? "does" : "do") not fit in memory",
            at: path, expected: "at most \(Self.text(limit))",
            found: """
                \(Self.text(totalBytes)): weights \(byteText(weights)), scratch \(runs)\
                \(byteText(worstScratch?.bytes ?? 0)), states \(sessions) x \(byteText(states))
                """, hint: hint)
    }

    /// Says what the first session needs, and what makes it smaller.
    private func noSessionFits(in limit: Int) -> String {
        let need = Self.sum(fixedBytes, states)
        let smaller = fixedBytes > limit ? "weights and scratch memory" : "states"
        return "no session fits: "
            + (fixedBytes > limit ? "weights and scratch memory alone need \(byteText(fixedBytes))\n" : "")
            + (need == .max ? "" : "give --memory-budget \(need)B or more, or ")
            + "make the \(smaller) smaller: fewer positions, a smaller scalar type"
            + (concurrentRuns > 1 ? ", fewer concurrent runs" : "")
    }

    private static func text(_ bytes: Int) -> String {
        if bytes == .max { return "more bytes than can be counted" }
        return bytes < 1024 ? byteText(bytes) : "\(byteText(bytes)) (\(bytes) bytes)"
    }

    private static func sum(_ a: Int, _ b: Int) -> Int {
        let (sum, overflow) = a.addingReportingOverflow(b)
        return overflow ? .max : sum
    }

    private static func product(_ a: Int, _ b: Int) -> Int {
        let (product, overflow) = a.multipliedReportingOverflow(by: b)
        return overflow ? .max : product
    }

    func add(to table: inout TextTable) {
        table.add("memory", "weights \(byteText(weights)), once")
        for scratch in scratch {
            let sizes = scratch.sizes.isEmpty ? "" : " at \(scratch.sizes)"
            table.add(
                "",
                "scratch \(byteText(scratch.bytes)) for a run of \(scratch.function)\(sizes), "
                    + counted(threads, "thread"))
        }
        table.add("", "states \(byteText(states)) for a session")
        var total =
            "\(counted(sessions, "session")), \(counted(concurrentRuns, "run")) at a time: "
            + (totalBytes == .max ? "more bytes than can be counted" : byteText(totalBytes))
        if let limit {
            total += " of \(byteText(limit)), " + (fittingSessions.map { "\($0) fit" } ?? "sessions need no memory")
        }
        table.add("", total)
    }

    var json: JSONValue {
        [
            "weights": .integer(weights),
            "scratch": .array(
                scratch.map {
                    ["function": .string($0.function), "bytes": .integer($0.bytes), "sizes": .string($0.sizes)]
                }),
            "statesPerSession": .integer(states), "sessions": .integer(sessions),
            "concurrentRuns": .integer(concurrentRuns), "threads": .integer(threads), "total": .integer(totalBytes),
            "limit": limit.map { .integer($0) }, "fittingSessions": fittingSessions.map { .integer($0) },
        ]
    }
}

/// What a step of each function copies without computing with it: whole states that are written back, and values
/// that are copied as they are, to make them contiguous, to keep them from a later write, or to return them.
///
/// A write of rows into a state is the step's work and does not count, neither does a change of the scalar type.
package struct StepCopies {
    package struct Copy {
        /// `copy of state `keys``
        package var what: String
        /// Where in the author's code.
        package var place: String
        package var bytes: Int
    }

    package struct Step {
        package var function: String
        package var bytes = 0
        /// At the sizes that copy most; empty without symbols.
        package var sizes = ""
        package var largest: Copy?
    }

    package var steps: [Step] = []

    /// Throws `E0751` for sizes beyond int64.
    package init(_ program: BundleProgram, sources: [String]) throws {
        for function in program.functions {
            var worst = Step(function: function.name)
            for choice in SymbolChoices(program.symbols, varying: function.symbolIndices).list {
                var step = Step(
                    function: function.name, sizes: program.text(of: choice, varying: function.symbolIndices))
                for instruction in function.instructions {
                    guard let copy = try Self.copy(instruction, function, program, sources, choice) else { continue }
                    let (sum, overflow) = step.bytes.addingReportingOverflow(copy.bytes)
                    step.bytes = overflow ? .max : sum
                    if copy.bytes > step.largest?.bytes ?? 0 { step.largest = copy }
                }
                if step.bytes > worst.bytes { worst = step }
            }
            steps.append(worst)
        }
    }

    private static func copy(
        _ instruction: BundleProgram.Instruction, _ function: BundleProgram.Function, _ program: BundleProgram,
        _ sources: [String], _ choice: [Int]
    ) throws -> Copy? {
        guard let result = instruction.results.first, let operand = instruction.operands.first ?? nil else {
            return nil
        }
        let value = function.values[result]
        let what: String
        switch program.kernels[instruction.kernel] {
        case "copy" where function.values[operand].scalarType == value.scalarType:
            what = "copy of \(Self.name(operand, function, program))" + Self.destination(result, function)
        case "write" where instruction.ints.first == .one:
            what = "write back of \(Self.name(result, function, program))"
        default: return nil
        }
        let source = instruction.source.flatMap { sources.indices.contains($0) ? sources[$0] : nil }
        let place = "function `\(function.name)`" + (source.map { ", \($0)" } ?? "")
        guard let bytes = ModelSummary.byteCount(value.scalarType, value.shape, choice) else {
            throw Diagnostic(
                .stepCopiesExceeded, "a \(what) has more bytes than can be counted", at: place,
                expected: "at most \(Int.max) bytes",
                found: choice.isEmpty ? nil : program.text(of: choice, varying: function.symbolIndices))
        }
        return Copy(what: what, place: place, bytes: bytes)
    }

    private static func name(_ value: Int, _ function: BundleProgram.Function, _ program: BundleProgram) -> String {
        switch function.values[function.root(of: value)].storage {
        case .input(let slot): "input `\(function.inputs[slot].name)`"
        case .output(let slot): "output `\(function.outputs[slot].name)`"
        case .state(let slot): "state `\(program.states[function.states[slot].state].name)`"
        case .tensor(let tensor): "weight `\(program.tensors[tensor].name)`"
        case .arena, .view: "a value"
        }
    }

    private static func destination(_ value: Int, _ function: BundleProgram.Function) -> String {
        guard case .output(let slot) = function.values[function.root(of: value)].storage else { return "" }
        return " into output `\(function.outputs[slot].name)`"
    }

    package func findings(limit: Int) -> [Diagnostic] {
        steps.filter { $0.bytes > limit }.map { step in
            let sizes = step.sizes.isEmpty ? "" : " at \(step.sizes)"
            let total = step.bytes == .max ? "more bytes than can be counted" : counted(step.bytes, "byte")
            return Diagnostic(
                .stepCopiesExceeded, "a step of `\(step.function)` copies too many bytes",
                at: step.largest?.place ?? "function `\(step.function)`", expected: "at most \(counted(limit, "byte"))",
                found: "\(total)\(sizes)"
                    + (step.largest.map { ", \(counted($0.bytes, "byte")) of them by the \($0.what)" } ?? ""))
        }
    }

    func add(to table: inout TextTable) {
        for (index, step) in steps.enumerated() {
            let sizes = step.sizes.isEmpty || step.bytes == 0 ? "" : " at \(step.sizes)"
            table.add(index == 0 ? "copies" : "", "a step of \(step.function): \(byteText(step.bytes))\(sizes)")
        }
    }

    var json: JSONValue {
        .array(
            steps.map { step in
                [
                    "function": .string(step.function), "bytes": .integer(step.bytes), "sizes": .string(step.sizes),
                    "largest": step.largest.map { .string($0.what) },
                ]
            })
    }
}

/// States that `--require-in-place` refuses.
package func inPlaceFindings(_ program: BundleProgram) -> [Diagnostic] {
    let symbolNames = program.symbols.map(\.name)
    return program.functions.flatMap { function in
        function.states.filter { $0.copiedBytes != .zero }.map { use in
            let name = program.states[use.state].name
            return Diagnostic(
                .stateNotInPlace, "state `\(name)` is not updated in place", at: "function `\(function.name)`",
                expected: "in place",
                found: "copies \(use.copiedBytes.description(symbolNames: symbolNames)) bytes per step because "
                    + use.copyReason,
                hint: "validate without --require-in-place to accept the copy")
        }
    }
}
