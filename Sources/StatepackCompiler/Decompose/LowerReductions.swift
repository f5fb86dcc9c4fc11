internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    func reduction(_ name: String) throws(RuleFailure) -> ValueID {
        if name == "argmax" { return try argmax() }
        if name == "var" { return try variance() }
        let type = resultType.scalarType
        let a = try operand("self", as: type)
        // `max` and `min` over everything; over an axis torch gives indices, too.
        let kernelName = ["max": "amax", "min": "amin"][name] ?? name
        return try reduce(kernel(kernelName, for: type), a, input.reductionAxes(rank: self[a].rank), input.keepsAxes())
    }

    private func reduce(_ kernel: String, _ a: ValueID, _ axes: [Int], _ keep: Bool) throws(RuleFailure) -> ValueID {
        // A tensor without axes is its own sum.
        if axes.isEmpty { return a }
        let mask = axes.reduce(0) { $0 | 1 << $1 }
        return try emit(
            kernel,
            [("a", .tensor(a)), ("axes_mask", .size(SizeExpression(mask))), ("keep", .size(keep ? .one : .zero))])
    }

    /// sum((a - mean(a))^2) / (count - correction)
    private func variance() throws(RuleFailure) -> ValueID {
        let a = try operand("self")
        let type = resultType.scalarType
        let axes = try input.reductionAxes(rank: self[a].rank)
        let correction = try input.optionalNumber("correction") ?? 1
        let count = try input.product(axes.map { self[a].shape[$0] })
        var divisor: ValueID
        if let constant = count.constant {
            divisor = try scalar(.number(max(0, Double(constant) - correction)), as: type)
        } else {
            divisor = try emit(
                "sub", ["a": scalar(.integer(count), as: type), "b": scalar(.number(correction), as: type)])
            divisor = try emit("maximum", ["a": divisor, "b": scalar(0, as: type)])
        }
        let difference = try emit("sub", ["a": a, "b": reduce("mean", a, axes, true)])
        let square = try emit("mul", ["a": difference, "b": difference])
        return try emit("div", ["a": reduce("sum", square, axes, input.keepsAxes()), "b": divisor])
    }

    private func argmax() throws(RuleFailure) -> ValueID {
        var a = try operand("self")
        let keep = try input.keepsAxes()
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
