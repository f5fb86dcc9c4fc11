internal import StatepackBundle
internal import StatepackIR

extension Fusion {
    mutating func fuseRotary() throws {
        var producer = producers()
        let uses = useCounts()
        let states = wholeStateValues()
        for index in function.nodes.indices {
            let node = function.nodes[index]
            if node.results.contains(where: states.contains) { continue }
            guard let rotary = try matchRotary(node, producer, uses) ?? matchPartialRotary(node, producer, uses)
            else { continue }
            function.nodes[index] = rotary
            for result in rotary.results { producer[result] = rotary }
            if node.op == "add" { count("rotary") }
        }
        function.removeDeadNodes()
    }

    /// `x * cos + cat(-x[half:], x[:half]) * sin`.
    private func matchRotary(_ node: Node, _ producer: [ValueID: Node], _ uses: [ValueID: Int]) throws -> Node? {
        guard node.op == "add" else { return nil }
        let type = function[node.results[0]]
        guard type.scalarType == .float32, let length = type.shape.last?.constant, length % 2 == 0 else { return nil }
        /// True for `x[..., start:end]`.
        func isPart(_ value: ValueID, of x: ValueID, _ start: Int, _ end: Int) throws -> Bool {
            guard let slice = producer[value] else { return false }
            return try self.isPart(slice, start, end) && slice.tensor("a") == x
        }
        for (straight, turned) in try pairs(node) {
            guard let first = onlyUse(of: straight, "mul", producer, uses),
                let second = onlyUse(of: turned, "mul", producer, uses)
            else { continue }
            for (x, cos) in try pairs(first) where function[x] == type {
                for (halves, sin) in try pairs(second) where function[halves] == type {
                    guard let cat = onlyUse(of: halves, "cat", producer, uses),
                        case .tensors(let parts) = cat["parts"], parts.count == 2, let upper = parts[0],
                        let lower = parts[1], try cat.int("axis") == type.rank - 1,
                        let neg = onlyUse(of: upper, "neg", producer, uses),
                        try isPart(neg.tensor("a"), of: x, length / 2, length), try isPart(lower, of: x, 0, length / 2),
                        [cos, sin].allSatisfy({ function[$0].shape.last?.constant == length })
                    else { continue }
                    return Node(
                        "rotary", [.init("a", .tensor(x)), .init("cos", .tensor(cos)), .init("sin", .tensor(sin))],
                        results: node.results, source: node.source)
                }
            }
        }
        return nil
    }

    /// `cat(rotary(x[:turned]), x[turned:])`, where only the first elements of a row are turned.
    private func matchPartialRotary(
        _ node: Node, _ producer: [ValueID: Node], _ uses: [ValueID: Int]
    ) throws -> Node? {
        guard node.op == "cat", case .tensors(let parts) = node["parts"], parts.count == 2, let first = parts[0],
            let second = parts[1], let rotary = onlyUse(of: first, "rotary", producer, uses),
            let head = producer[try rotary.tensor("a")], let tail = producer[second]
        else { return nil }
        let type = function[node.results[0]]
        guard try node.int("axis") == type.rank - 1, let length = type.shape.last?.constant,
            let turned = function[first].shape.last?.constant, try isPart(head, 0, turned),
            try isPart(tail, turned, length)
        else { return nil }
        let x = try head.tensor("a")
        guard try tail.tensor("a") == x, function[x] == type else { return nil }
        return rotary.replacing("a", by: .tensor(x)).producing(node.results)
    }

    /// True for a slice `start..<end` of the last axis.
    private func isPart(_ node: Node, _ start: Int, _ end: Int) throws -> Bool {
        guard node.op == "view.slice", try node.int("dim") == function[node.results[0]].rank - 1 else { return false }
        return try node.size("start").constant == start && node.size("end").constant == end
            && node.size("step") == .one
    }

    mutating func fuseRotaryWrite() throws {
        let producer = producers()
        let uses = useCounts()
        for index in function.nodes.indices where function.nodes[index].op == "index_copy" {
            let node = function.nodes[index]
            guard let rotary = onlyUse(of: try node.tensor("source"), "rotary", producer, uses),
                try node.int("axis") < function[node.results[0]].rank - 1,
                !rotary.operands.contains(where: { readsState($0, producer) })
            else { continue }
            function.nodes[index] = Node(
                "rotary_index_copy",
                [
                    .init("a", .tensor(try node.tensor("a"))), .init("index", .tensor(try node.tensor("index"))),
                    .init("source", .tensor(try rotary.tensor("a"))), .init("cos", .tensor(try rotary.tensor("cos"))),
                    .init("sin", .tensor(try rotary.tensor("sin"))), .init("axis", .size(try node.size("axis"))),
                ], results: node.results, source: node.source)
            count("rotary-write")
        }
        function.removeDeadNodes()
    }
}

extension Node {
    func producing(_ results: [ValueID]) -> Node {
        var copy = self
        copy.results = results
        return copy
    }
}
