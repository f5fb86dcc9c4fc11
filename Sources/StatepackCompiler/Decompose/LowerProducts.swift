internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    func linear() throws(RuleFailure) -> ValueID {
        try emit(
            "linear",
            [
                ("a", .tensor(operand("input"))), ("weight", .tensor(operand("weight"))),
                ("bias", optionalOperand("bias").map { .tensor($0) } ?? .none),
            ])
    }

    func product(_ name: String) throws(RuleFailure) -> ValueID {
        if name == "addmm" { return try addedProduct() }
        let names = input.node.arguments.prefix(2).map(\.name)
        var (a, b) = (try operand(names[0]), try operand(names[1]))
        // A vector is one row on the left, one column on the right.
        if self[a].rank == 1 { a = try reshape(a, to: [.one] + self[a].shape) }
        if self[b].rank == 1 { b = try reshape(b, to: self[b].shape + [.one]) }
        let (left, right) = (self[a].shape, self[b].shape)
        let batch = try input.broadcast([Array(left.dropLast(2)), Array(right.dropLast(2))])
        a = try expand(a, to: batch + left.suffix(2))
        b = try expand(b, to: batch + right.suffix(2))
        return try reshape(emit("matmul", ["a": a, "b": b]), to: resultType.shape)
    }

    /// beta * self + alpha * (mat1 @ mat2); `self` is not read when beta is 0, as in torch.
    private func addedProduct() throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        var product = try emit("matmul", ["a": operand("mat1"), "b": operand("mat2")])
        let (alpha, beta) = (try input.number("alpha"), try input.number("beta"))
        if alpha != 1 { product = try emit("mul", ["a": product, "b": scalar(.number(alpha), as: type)]) }
        if beta == 0 { return product }
        var addend = try operand("self")
        if beta != 1 { addend = try emit("mul", ["a": addend, "b": scalar(.number(beta), as: type)]) }
        return try emit("add", ["a": product, "b": addend])
    }

    /// Brings query, key and value to four axes: batch, head, row, element.
    func attention() throws(RuleFailure) -> ValueID {
        let dropout = try input.number("dropout_p")
        guard dropout == 0 else {
            throw RuleFailure(
                .unsupportedArgument, "attention with dropout is for training", expected: "dropout_p 0",
                found: "\(dropout)")
        }
        let rank = resultType.rank
        guard rank <= 4 else {
            throw RuleFailure(
                .unsupportedArgument, "attention needs at most four axes", expected: "batch, head, row, element",
                found: input.text(resultType))
        }
        func fourAxes(_ name: String) throws(RuleFailure) -> ValueID {
            let id = try operand(name)
            return try reshape(id, to: Array(repeating: .one, count: 4 - rank) + self[id].shape)
        }
        var (query, key, value) = (try fourAxes("query"), try fourAxes("key"), try fourAxes("value"))
        let isGrouped = try input.flag("enable_gqa")
        // Without groups heads broadcast, too; with them only the batch does.
        let shared = isGrouped ? 1 : 2
        let lead = try input.broadcast([query, key, value].map { Array(self[$0].shape.prefix(shared)) })
        query = try expand(query, to: lead + self[query].shape.dropFirst(shared))
        key = try expand(key, to: lead + self[key].shape.dropFirst(shared))
        value = try expand(value, to: lead + self[value].shape.dropFirst(shared))
        var groups = 1
        if isGrouped, let heads = self[query].shape[1].constant, let keyHeads = self[key].shape[1].constant {
            groups = heads / keyHeads
        }
        var scale = try input.optionalNumber("scale")
        if scale == nil {
            guard let length = self[query].shape[3].constant, length > 0 else {
                throw RuleFailure(
                    .unsupportedArgument, "the default scale needs rows of a fixed length",
                    found: input.text(self[query].shape))
            }
            scale = 1 / Double(length).squareRoot()
        }
        let result = try emit(
            "sdpa",
            [
                ("query", .tensor(query)), ("key", .tensor(key)), ("value", .tensor(value)),
                ("mask", try optionalOperand("attn_mask").map { .tensor($0) } ?? .none),
                ("causal", .size(try input.flag("is_causal") ? .one : .zero)),
                ("groups", .size(SizeExpression(groups))),
                ("scale", .number(scale!)),
            ])
        return try reshape(result, to: resultType.shape)
    }
}
