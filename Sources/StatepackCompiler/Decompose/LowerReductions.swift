internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    func reduction(_ name: String) throws(RuleFailure) -> ValueID {
        if name == "argmax" { return try argmax() }
        let type = resultType.scalarType
        let a = try operand("self", as: type)
        let axes = try input.reductionAxes(rank: self[a].rank)
        // A tensor without axes is its own sum.
        if axes.isEmpty { return a }
        let mask = axes.reduce(0) { $0 | 1 << $1 }
        return try emit(
            kernel(name, for: type),
            [
                ("a", .tensor(a)), ("axes_mask", .size(SizeExpression(mask))),
                ("keep", .size(try input.flag("keepdim") ? .one : .zero)),
            ])
    }

    private func argmax() throws(RuleFailure) -> ValueID {
        var a = try operand("self")
        let keep = try input.flag("keepdim")
        var axis = 0
        if input.has("dim"), self[a].rank > 0 {
            axis = try input.axis(named: "dim", rank: self[a].rank)
        } else {
            // Over all elements: the index is into the flattened tensor.
            a = try reshape(a, to: [input.product(self[a].shape)])
        }
        let isWhole = self[a].shape != (try input.tensor("self")).shape
        let result = try emit(
            "argmax",
            [
                ("a", .tensor(a)), ("axis", .size(SizeExpression(axis))),
                ("keep", .size(keep && !isWhole ? .one : .zero)),
            ])
        return try reshape(result, to: resultType.shape)
    }

    func normalisation(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("input")
        var arguments: [(String, ArgumentValue)] = [("a", .tensor(a))]
        arguments.append(("weight", try optionalOperand("weight").map { .tensor($0) } ?? .none))
        if name == "layer_norm" {
            arguments.append(("bias", try optionalOperand("bias").map { .tensor($0) } ?? .none))
        }
        let axes = try input.sizes("normalized_shape").count
        arguments.append(("axes", .size(SizeExpression(axes))))
        // torch's default for rms_norm: the distance from 1 to the next number of the type.
        let epsilon = try input.optionalNumber("eps") ?? Double(Float.ulpOfOne)
        arguments.append(("epsilon", .number(epsilon)))
        return try emit(name, arguments)
    }
}
