internal import StatepackDiagnostics
package import StatepackIR

/// Turns ATen operators into core operators: kernels of ops.json, views, and the scatter duals of views.
///
/// What PyTorch does implicitly becomes explicit: scalar type promotion is a `copy`, a Python number a
/// 0-dimensional constant, an absent axis list all axes, a negative index or an open slice a clamped one.
///
///     before   %3: float32[query, 64] = aten.add.Tensor(self=%1, other=%2, alpha=2)      // %2 is int64[64]
///              %4: float32[64] = aten.select.int(self=%3, dim=0, index=-1)
///     after    constant %5 "float32 2.0": float32[]
///              %6: float32[64] = copy(a=%2)
///              %7: float32[64] = mul(a=%6, b=%5)
///              %3: float32[query, 64] = add(a=%1, b=%7)
///              %4: float32[64] = view.select(a=%3, dim=0, index=query - 1)
///
/// Operators without a row in ops.json, and uses of the others that no kernel covers, are all reported at once.
/// Nodes whose results nobody reads, and constants that nobody reads then, are dropped.
package struct DecomposeOps: Pass {
    package static let name = "DecomposeOps"

    package init() {}

    package func run(on program: inout Program, report: inout CompilationReport) throws {
        var scalars = ScalarConstants(program.tensors)
        var unsupported = UnsupportedUses()
        for index in program.functions.indices {
            let function = program.functions[index]
            let builder = CoreBuilder(function, of: program, scalars: scalars)
            for (number, node) in function.nodes.enumerated() {
                guard OperatorTable.operators[node.op] != nil else {
                    unsupported.addUnknown(node, in: function, of: program)
                    builder.skip(node)
                    continue
                }
                do {
                    try builder.lower(node)
                } catch {
                    unsupported.add(error, node, number, in: function, of: program)
                    builder.skip(node)
                }
            }
            scalars = builder.scalars
            program.functions[index] = builder.finish()
            report.count(Self.name, "operators", by: function.nodes.count)
            report.count(Self.name, "core-operators", by: program.functions[index].nodes.count)
        }
        program.tensors = scalars.tensors
        let diagnostics = unsupported.diagnostics()
        if !diagnostics.isEmpty { throw DiagnosticList(diagnostics) }
    }
}

/// What the pass could not lower, grouped so that one cause is one message.
private struct UnsupportedUses {
    private struct Use {
        var count = 0
        var places: [String] = []

        mutating func add(_ place: String) {
            count += 1
            if !places.contains(place) { places.append(place) }
        }

        /// The first places; a model repeats its layers.
        var summary: String {
            let shown = places.prefix(5).joined(separator: "; ")
            return places.count > 5 ? "\(shown); and \(places.count - 5) more" : shown
        }
    }

    private var unknown: [String: Use] = [:]
    private var failures: [(failure: RuleFailure, op: String, use: Use)] = []

    private func place(_ node: Node, _ function: Function, _ program: Program) -> String {
        let source = node.source.flatMap { $0 < program.sources.count ? program.sources[$0] : nil }
        return "function `\(function.name)`" + (source.map { ", \($0)" } ?? "")
    }

    mutating func addUnknown(_ node: Node, in function: Function, of program: Program) {
        // NOTE: not inside the call below, which has exclusive access to `self` already.
        let place = place(node, function, program)
        unknown[node.op, default: Use()].add(place)
    }

    mutating func add(
        _ failure: RuleFailure, _ node: Node, _ number: Int, in function: Function, of program: Program
    ) {
        let place = place(node, function, program)
        if let index = failures.firstIndex(where: { $0.failure == failure && $0.op == node.op }) {
            failures[index].use.add(place)
        } else {
            var use = Use()
            use.add(place)
            failures.append((failure, node.op, use))
        }
    }

    func diagnostics() -> [Diagnostic] {
        let operators = unknown.sorted { $0.key < $1.key }.map { op, use in
            Diagnostic(
                .unknownOperator,
                "operator `\(op)` is not supported, used \(use.count == 1 ? "once" : "\(use.count) times")",
                at: use.summary, hint: "express it with the operators of schemas/ops.json")
        }
        return operators
            + failures.map { failure, op, use in
                Diagnostic(
                    failure.code, "`\(op)`: \(failure.message)", at: use.summary, expected: failure.expected,
                    found: failure.found)
            }
    }
}
