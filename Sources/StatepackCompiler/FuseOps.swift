internal import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// Replaces patterns of operators by one operator that does the same with less memory traffic.
///
/// - `identities`: copies, reshapes, expansions, slices and permutations that change nothing, and the
///   multiplication of floats by 1.0, give way to their operand. A copy means nothing before anything is
///   written; `RecoverStateWrites` and `PlanMemory` put back those that are needed.
/// - `common-subexpressions`: a node with the operator and arguments of an earlier one gives way to it.
/// - `grouped-query`: keys and values that are repeated for each group of query heads are not:
///
///       before   %5: float32[1, 3, 1, 2048, 64] = view.reshape(a=%4, shape={1, 3, 1, 2048, 64})
///                %6: float32[1, 3, 3, 2048, 64] = view.expand(a=%5, shape={1, 3, 3, 2048, 64})
///                %7: float32[1, 9, 2048, 64] = view.reshape(a=%6, shape={1, 9, 2048, 64})   // copies the cache
///                ...
///                sdpa(query=%3, key=%7, value=%10, mask=%2, causal=0, groups=1, scale=0.125)
///       after    sdpa(query=%3, key=%4, value=%8, mask=%2, causal=0, groups=3, scale=0.125)
///
/// - `rms-norm`: `x * rsqrt(mean(x * x) + epsilon) * weight` over the last axis becomes `rms_norm`, unless
///   something else uses a value in between.
///
/// Runs on the functional form, before `RecoverStateWrites`: a read may move past a write there, because the
/// value it reads is still a value. What a write in place then disturbs is for that pass to see.
package struct FuseOps: Pass {
    package static let name = "FuseOps"

    package static let fusions = ["identities", "common-subexpressions", "grouped-query", "rms-norm"]

    private let disabled: Set<String>

    /// - Parameter disabled: Names of `fusions` to leave out.
    package init(disabled: Set<String> = []) { self.disabled = disabled }

    package func run(on program: inout Program, report: inout CompilationReport) throws {
        for index in program.functions.indices {
            var fusion = Fusion(program.functions[index], of: program)
            if isEnabled("identities") { try fusion.forwardIdentities() }
            if isEnabled("common-subexpressions") { fusion.mergeCommonSubexpressions() }
            if isEnabled("grouped-query") { try fusion.fuseGroupedQuery() }
            if isEnabled("rms-norm") { try fusion.fuseRMSNorm() }
            fusion.function.removeDeadNodes()
            program.functions[index] = fusion.function
            for (counter, amount) in fusion.counters { report.count(Self.name, counter, by: amount) }
        }
    }

    private func isEnabled(_ fusion: String) -> Bool { !disabled.contains(fusion) }
}

/// The work on one function.
private struct Fusion {
    var function: Function
    let program: Program
    var counters: [String: Int] = [:]
    private let tensorOf: [ValueID: Int]

    init(_ function: Function, of program: Program) {
        self.function = function
        self.program = program
        tensorOf = Dictionary(function.constants.map { ($0.value, $0.tensor) }, uniquingKeysWith: { first, _ in first })
    }

    // MARK: Identities and common subexpressions

    /// Rebuilds the node list; `replace` gives the value that stands for a node's result, or nil to keep it.
    private mutating func rewrite(counter: String, _ replace: (Node) throws -> [ValueID]?) rethrows {
        var replacement: [ValueID: ValueID] = [:]
        var kept: [Node] = []
        for var node in function.nodes {
            node.mapOperands { replacement[$0] ?? $0 }
            if let values = try replace(node) {
                for (result, value) in zip(node.results, values) { replacement[result] = value }
                counters[counter, default: 0] += 1
            } else {
                kept.append(node)
            }
        }
        function.nodes = kept
        for index in function.outputs.indices {
            let value = function.outputs[index].value
            function.outputs[index].value = replacement[value] ?? value
        }
        for index in function.states.indices {
            let value = function.states[index].after
            function.states[index].after = replacement[value] ?? value
        }
    }

    mutating func forwardIdentities() throws {
        let current = self
        try rewrite(counter: "identities") { node in
            guard let result = node.results.first, let operand = try current.identicalOperand(of: node),
                current.function[operand] == current.function[result]
            else { return nil }
            return [operand]
        }
    }

    /// The operand that the node's result equals element for element, provided that their types agree.
    private func identicalOperand(of node: Node) throws -> ValueID? {
        switch node.op {
        case "copy", "view.reshape", "view.expand": return try node.tensor("a")
        case "view.slice":
            // All of the axis, forwards.
            return try node.size("start") == .zero && node.size("step") == .one ? try node.tensor("a") : nil
        case "view.permute":
            let dims = try node.sizes("dims").map(\.constant)
            return dims == dims.indices.map { $0 } ? try node.tensor("a") : nil
        case "mul":
            let (a, b) = (try node.tensor("a"), try node.tensor("b"))
            if splat(b) == 1 { return a }
            return splat(a) == 1 ? b : nil
        default: return nil
        }
    }

    /// The value of a float32 constant with one element, when it is stored inline.
    private func splat(_ value: ValueID) -> Float? {
        guard let tensor = tensorOf[value].map({ program.tensors[$0] }), tensor.scalarType == .float32,
            case .inline(let bytes) = tensor.data, bytes.count == 4
        else { return nil }
        return Float(bitPattern: bytes.reversed().reduce(0) { $0 << 8 | UInt32($1) })
    }

    mutating func mergeCommonSubexpressions() {
        struct Key: Hashable {
            var op: String
            var arguments: [Node.Argument]
            var types: [ValueType]
        }
        var known: [Key: [ValueID]] = [:]
        let values = function.values
        rewrite(counter: "common-subexpressions") { node in
            let key = Key(op: node.op, arguments: node.arguments, types: node.results.map { values[$0.index] })
            if let results = known[key] { return results }
            known[key] = node.results
            return nil
        }
    }

    // MARK: Patterns

    private func producers() -> [ValueID: Node] {
        var result: [ValueID: Node] = [:]
        for node in function.nodes { for value in node.results { result[value] = node } }
        return result
    }

    private func useCounts() -> [ValueID: Int] {
        var result: [ValueID: Int] = [:]
        for id in function.nodes.flatMap(\.operands) + function.outputs.map(\.value) + function.states.map(\.after) {
            result[id, default: 0] += 1
        }
        return result
    }

    mutating func fuseGroupedQuery() throws {
        let producer = producers()
        for index in function.nodes.indices where function.nodes[index].op == "sdpa" {
            let node = function.nodes[index]
            guard try node.size("groups") == .one,
                let key = try ungrouped(node.tensor("key"), producer),
                let value = try ungrouped(node.tensor("value"), producer),
                key.groups == value.groups
            else { continue }
            function.nodes[index] = node.replacing("key", by: .tensor(key.value))
                .replacing("value", by: .tensor(value.value)).replacing("groups", by: .size(SizeExpression(key.groups)))
            counters["grouped-query", default: 0] += 1
        }
    }

    /// `[B, K, S, D]` behind `[B, K * groups, S, D]`, when each of its heads is repeated `groups` times in a row.
    private func ungrouped(_ value: ValueID, _ producer: [ValueID: Node]) throws -> (value: ValueID, groups: Int)? {
        guard let merge = try skippingCopies(value, producer), merge.op == "view.reshape",
            let expand = try skippingCopies(merge.tensor("a"), producer), expand.op == "view.expand",
            let insert = producer[try expand.tensor("a")], insert.op == "view.reshape"
        else { return nil }
        let heads = try insert.tensor("a")
        let (merged, expanded) = (function[value].shape, function[expand.results[0]].shape)
        let (inserted, plain) = (function[insert.results[0]].shape, function[heads].shape)
        guard plain.count == 4, expanded.count == 5, merged.count == 4, let groups = expanded[2].constant, groups > 0,
            inserted == [plain[0], plain[1], .one, plain[2], plain[3]],
            expanded == [plain[0], plain[1], expanded[2], plain[2], plain[3]],
            merged == [plain[0], try plain[1].times(groups), plain[2], plain[3]]
        else { return nil }
        return (heads, groups)
    }

    /// The node behind a value and behind copies that change neither type nor shape.
    private func skippingCopies(_ value: ValueID, _ producer: [ValueID: Node]) throws -> Node? {
        var value = value
        while let node = producer[value] {
            guard node.op == "copy", function[try node.tensor("a")] == function[value] else { return node }
            value = try node.tensor("a")
        }
        return nil
    }

    mutating func fuseRMSNorm() throws {
        let producer = producers()
        let uses = useCounts()
        for index in function.nodes.indices {
            let node = function.nodes[index]
            guard let norm = try matchRMSNorm(node, producer, uses) else { continue }
            function.nodes[index] = norm
            counters["rms-norm", default: 0] += 1
        }
        // `x * rsqrt(…)` alone is a norm, too, but one whose product with the weight came later was matched
        // with it: what is left over has lost its uses.
        function.removeDeadNodes()
    }

    private func matchRMSNorm(_ node: Node, _ producer: [ValueID: Node], _ uses: [ValueID: Int]) throws -> Node? {
        func single(_ value: ValueID, _ op: String) -> Node? {
            guard uses[value] == 1, let node = producer[value], node.op == op else { return nil }
            return node
        }
        func pairs(_ node: Node) throws -> [(ValueID, ValueID)] {
            let (a, b) = (try node.tensor("a"), try node.tensor("b"))
            return [(a, b), (b, a)]
        }
        guard node.op == "mul" else { return nil }
        for (weight, scaled) in try pairs(node) {
            guard let product = single(scaled, "mul") else { continue }
            let shape = function[scaled].shape
            guard let last = shape.last, function[weight].shape == [last], function[node.results[0]].shape == shape,
                function[weight].scalarType == .float32
            else { continue }
            for (x, scale) in try pairs(product) where function[x].shape == shape {
                guard let root = single(scale, "rsqrt"), let sum = single(try root.tensor("a"), "add") else { continue }
                for (mean, constant) in try pairs(sum) {
                    guard let epsilon = splat(constant), let average = single(mean, "mean"),
                        try average.size("axes_mask") == SizeExpression(1 << (shape.count - 1)),
                        try average.size("keep") == .one,
                        let square = single(try average.tensor("a"), "mul"),
                        try square.tensor("a") == x, try square.tensor("b") == x
                    else { continue }
                    return Node(
                        "rms_norm",
                        [
                            .init("a", .tensor(x)), .init("weight", .tensor(weight)), .init("axes", .size(.one)),
                            .init("epsilon", .number(Double(epsilon))),
                        ], results: node.results, source: node.source)
                }
            }
        }
        return nil
    }
}
