internal import StatepackBundle
internal import StatepackIR

extension Fusion {
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
}
