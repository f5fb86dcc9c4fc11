internal import StatepackBundle
internal import StatepackIR

extension Fusion {
    mutating func fuseRMSNorm() throws {
        let producer = producers()
        let uses = useCounts()
        let states = wholeStateValues()
        for index in function.nodes.indices {
            let node = function.nodes[index]
            guard !states.contains(node.results[0]), let norm = try matchRMSNorm(node, producer, uses) else { continue }
            function.nodes[index] = norm
            counters["rms-norm", default: 0] += 1
        }
        // `x * rsqrt(…)` alone is a norm, too, but one whose product with the weight came later was matched
        // with it: what is left over has lost its uses.
        function.removeDeadNodes()
    }

    private func matchRMSNorm(_ node: Node, _ producer: [ValueID: Node], _ uses: [ValueID: Int]) throws -> Node? {
        func single(_ value: ValueID, _ op: String) -> Node? { onlyUse(of: value, op, producer, uses) }
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
