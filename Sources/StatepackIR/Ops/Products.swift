package import StatepackBundle

// Matrix products and attention.

extension RuleInput {
    func requireSize(
        _ found: SizeExpression, equals expected: SizeExpression, _ message: @autoclosure () -> String
    ) throws(RuleFailure) {
        try require(bounds.areProvablyEqual(found, expected), message(), expected: text(expected), found: text(found))
    }

    func requireFloatingPoint(_ type: ValueType, _ name: String) throws(RuleFailure) {
        try require(
            type.scalarType.isFloatingPoint, "`\(name)` has the wrong scalar type", expected: "floating point",
            found: type.scalarType.name)
    }

    func requireType(_ found: ScalarType, _ expected: ScalarType, _ name: String) throws(RuleFailure) {
        try require(
            found == expected, "`\(name)` has the wrong scalar type", expected: expected.name, found: found.name)
    }

    /// `a [..., K]` times `weight [N, K]` transposed, plus `bias [N]`.
    func linearShape(_ a: ValueType, _ weight: ValueType, _ bias: ValueType?) throws(RuleFailure) -> [SizeExpression] {
        try require(
            a.rank >= 1 && weight.rank == 2, "a linear layer needs [..., K] and a matrix",
            found: "\(text(a)) and \(text(weight))")
        try requireType(weight.scalarType, a.scalarType, "weight")
        try requireSize(weight.shape[1], equals: a.shape[a.rank - 1], "the inner sizes of a linear layer differ")
        if let bias {
            try requireType(bias.scalarType, a.scalarType, "bias")
            try require(
                areEqual(bias.shape, [weight.shape[0]]), "`bias` does not fit", expected: text([weight.shape[0]]),
                found: text(bias.shape))
        }
        return Array(a.shape.dropLast()) + [weight.shape[0]]
    }

    /// torch.matmul: vectors gain an axis for the product and lose it after it, leading axes broadcast.
    package func matmulShape(_ a: [SizeExpression], _ b: [SizeExpression]) throws(RuleFailure) -> [SizeExpression] {
        try require(
            !a.isEmpty && !b.isEmpty, "a matrix product needs tensors with axes", found: "\(text(a)) and \(text(b))")
        let left = a.count == 1 ? [.one] + a : a
        let right = b.count == 1 ? b + [.one] : b
        try requireSize(
            right[right.count - 2], equals: left[left.count - 1], "the inner sizes of a matrix product differ")
        var shape = try broadcast([Array(left.dropLast(2)), Array(right.dropLast(2))])
        if a.count > 1 { shape.append(left[left.count - 2]) }
        if b.count > 1 { shape.append(right[right.count - 1]) }
        return shape
    }
}

extension AtenRules {
    @Sendable static func linear(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("input")
        try input.requireFloatingPoint(a, "input")
        return [
            ValueType(
                a.scalarType, try input.linearShape(a, input.tensor("weight"), input.optionalTensor("bias")))
        ]
    }

    @Sendable static func matmul(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let isAdd = input.node.op == "aten.addmm.default"
        let names =
            isAdd ? ["mat1", "mat2"] : Array(input.node.arguments.prefix(2).map(\.name))
        guard names.count == 2 else { throw RuleFailure.internalFault("expected two operands") }
        let (a, b) = (try input.tensor(names[0]), try input.tensor(names[1]))
        try input.requireType(b.scalarType, a.scalarType, names[1])
        let rank =
            switch input.node.op {
            case "aten.mm.default", "aten.addmm.default": 2
            case "aten.bmm.default": 3
            default: 0
            }
        if rank > 0 {
            try input.require(
                a.rank == rank && b.rank == rank, "the operands have the wrong number of axes", expected: "\(rank)",
                found: "\(a.rank) and \(b.rank)")
        }
        if rank == 3 { try input.requireSize(b.shape[0], equals: a.shape[0], "the batches of a matrix product differ") }
        let shape = try input.matmulShape(a.shape, b.shape)
        if isAdd {
            let addend = try input.tensor("self")
            try input.requireType(addend.scalarType, a.scalarType, "self")
            try input.requireBroadcasts(addend.shape, to: shape, "`self`")
            _ = try (input.scalar("beta"), input.scalar("alpha"))
        }
        return [ValueType(a.scalarType, shape)]
    }

    @Sendable static func attention(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (query, key, value) = (try input.tensor("query"), try input.tensor("key"), try input.tensor("value"))
        let mask = try input.optionalTensor("attn_mask")
        try input.requireFloatingPoint(query, "query")
        try input.requireType(key.scalarType, query.scalarType, "key")
        try input.requireType(value.scalarType, query.scalarType, "value")
        try input.require(
            query.rank >= 2 && key.rank == query.rank && value.rank == query.rank,
            "query, key and value need the same number of axes, two or more",
            found: "\(query.rank), \(key.rank) and \(value.rank)")
        let rank = query.rank
        try input.requireSize(key.shape[rank - 1], equals: query.shape[rank - 1], "query and key rows differ in length")
        try input.requireSize(value.shape[rank - 2], equals: key.shape[rank - 2], "key and value differ in rows")
        let isGrouped = try input.flag("enable_gqa")
        var lead = Array(query.shape.dropLast(2))
        if isGrouped {
            try input.require(rank >= 3, "grouped attention needs an axis of heads", found: input.text(query))
            try input.requireSize(
                value.shape[rank - 3], equals: key.shape[rank - 3], "key and value differ in heads")
            guard let heads = query.shape[rank - 3].constant, let groups = key.shape[rank - 3].constant, groups > 0,
                heads % groups == 0
            else {
                throw RuleFailure(
                    .invalidOperands, "the heads of query are not a multiple of those of key",
                    expected: input.text(key.shape[rank - 3]), found: input.text(query.shape[rank - 3]))
            }
            lead =
                try input.broadcast([
                    Array(query.shape.dropLast(3)), Array(key.shape.dropLast(3)), Array(value.shape.dropLast(3)),
                ]) + [query.shape[rank - 3]]
        } else {
            lead = try input.broadcast([lead, Array(key.shape.dropLast(2)), Array(value.shape.dropLast(2))])
        }
        if let mask {
            try input.require(
                mask.scalarType == .bool || mask.scalarType == query.scalarType,
                "`attn_mask` has the wrong scalar type",
                expected: "bool or \(query.scalarType)", found: mask.scalarType.name)
            try input.requireBroadcasts(
                mask.shape, to: lead + [query.shape[rank - 2], key.shape[rank - 2]], "`attn_mask`")
            try input.require(!(try input.flag("is_causal")), "`attn_mask` and `is_causal` exclude each other")
        }
        _ = try (input.flag("is_causal"), input.number("dropout_p"), input.optionalNumber("scale"))
        return [ValueType(query.scalarType, lead + [query.shape[rank - 2], value.shape[rank - 1]])]
    }
}

extension CoreRules {
    @Sendable static func linear(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        return [
            ValueType(
                a.scalarType, try input.linearShape(a, input.tensor("weight"), input.optionalTensor("bias")))
        ]
    }

    @Sendable static func matmul(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, b) = (try input.tensor("a"), try input.tensor("b"))
        try requireSupported(input, a.scalarType)
        try requireSameType(input, "b", b, as: a.scalarType)
        try input.require(
            a.rank >= 2 && a.rank == b.rank && input.areEqual(Array(a.shape.dropLast(2)), Array(b.shape.dropLast(2))),
            "the leading axes of a matrix product differ", expected: input.text(a.shape), found: input.text(b.shape))
        return [ValueType(a.scalarType, try input.matmulShape(a.shape, b.shape))]
    }

    @Sendable static func attention(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (query, key, value) = (try input.tensor("query"), try input.tensor("key"), try input.tensor("value"))
        try requireSupported(input, query.scalarType)
        try requireSameType(input, "key", key, as: query.scalarType)
        try requireSameType(input, "value", value, as: query.scalarType)
        try input.require(
            query.rank == 4 && key.rank == 4 && value.rank == 4, "attention needs four axes: batch, head, row, element",
            found: "\(input.text(query)), \(input.text(key)), \(input.text(value))")
        let groups = try input.integer("groups")
        try input.require(groups > 0, "`groups` is not positive", found: "\(groups)")
        try input.requireSize(key.shape[0], equals: query.shape[0], "query and key differ in batch")
        let heads = try input.checked { () throws(SizeExpression.Failure) in try key.shape[1].times(groups) }
        try input.requireSize(query.shape[1], equals: heads, "the heads of query are not `groups` times those of key")
        try input.requireSize(key.shape[3], equals: query.shape[3], "query and key rows differ in length")
        try input.require(
            input.areEqual(Array(value.shape.prefix(3)), Array(key.shape.prefix(3))), "key and value differ",
            expected: input.text(key.shape), found: input.text(value.shape))
        if let mask = try input.optionalTensor("mask") {
            try input.require(
                mask.scalarType == .bool || mask.scalarType == query.scalarType, "`mask` has the wrong scalar type",
                expected: "bool or \(query.scalarType)", found: mask.scalarType.name)
            try input.requireBroadcasts(
                mask.shape, to: [query.shape[0], query.shape[1], query.shape[2], key.shape[2]], "`mask`")
        }
        _ = try (input.flag("causal"), input.number("scale"))
        return [ValueType(query.scalarType, [query.shape[0], query.shape[1], query.shape[2], value.shape[3]])]
    }
}
