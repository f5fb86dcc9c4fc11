internal import StatepackBundle
internal import StatepackIR

extension Fusion {
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
}
