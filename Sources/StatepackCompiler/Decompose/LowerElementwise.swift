internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    /// The values that stand for the results of an ATen node.
    func lowered(_ node: Node) throws(RuleFailure) -> [ValueID] {
        let name = AtenRules.baseName(node.op)
        switch name {
        case "add", "sub", "rsub", "mul", "div", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor":
            return [try binary(name)]
        case "pow": return [try power()]
        case "eq", "ne", "lt", "le", "gt", "ge": return [try comparison(name)]
        case "logical_and", "logical_or", "logical_not": return [try logical(name)]
        case "isnan", "isinf": return [try classification(name)]
        case "repeat": return [try repetition()]
        case "where", "masked_fill": return [try selection(name)]
        case "clamp": return [try clamp()]
        case "cumsum", "softmax", "_softmax": return [try alongAxis(name)]
        case "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "sigmoid", "silu",
            "relu", "floor", "ceil", "bitwise_not", "gelu":
            return [try unary(name)]
        case "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "slice",
            "expand", "alias", "detach", "flatten", "contiguous", "lift_fresh_copy":
            return [try view(name)]
        case "split_with_sizes": return try split()
        case "clone", "_to_copy", "copy": return [try copies(name)]
        case "full", "full_like", "zeros", "ones", "zeros_like", "ones_like", "scalar_tensor", "arange":
            return [try factory(name)]
        case "cat": return [try concatenation()]
        case "sum", "mean", "amax", "amin", "any", "all", "argmax", "max", "min", "var": return [try reduction(name)]
        case "layer_norm", "rms_norm": return [try normalisation(name)]
        case "linear": return [try linear()]
        case "mm", "bmm", "matmul", "addmm": return [try product(name)]
        case "scaled_dot_product_attention": return [try attention()]
        case "embedding": return [try emit("embedding", ["weight": operand("weight"), "index": operand("indices")])]
        case "index", "index_select", "gather": return [try read(name)]
        case "index_put", "index_copy", "slice_scatter", "select_scatter", "scatter": return [try write(name)]
        default:
            throw RuleFailure.internalFault("ops.json has an operator that DecomposeOps does not lower")
        }
    }

    /// Operators on bool that have no kernel of their own: `a + b` is or, `a * b` is and.
    private static let boolOperators = [
        "add": "bitwise_or", "mul": "bitwise_and", "maximum": "bitwise_or", "minimum": "bitwise_and",
        "amax": "any", "amin": "all", "bitwise_not": "logical_not",
    ]

    func kernel(_ name: String, for type: ScalarType) -> String {
        type == .bool ? Self.boolOperators[name] ?? name : name
    }

    private func binary(_ name: String) throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        let names = input.node.arguments.prefix(2).map(\.name)
        var (a, b) = (try operand(names[0], as: type), try operand(names[1], as: type))
        var kernelName = name
        if name == "rsub" {
            swap(&a, &b)
            kernelName = "sub"
        }
        if input.has("alpha") {
            let alpha = try input.scalar("alpha")
            if alpha != .integer(.one), alpha != .number(1), alpha != .flag(true) {
                b = try emit("mul", ["a": b, "b": scalar(alpha, as: type)])
            }
        }
        return try emit(kernel(kernelName, for: type), ["a": a, "b": b])
    }

    private func power() throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        let a = try operand("self", as: type)
        if case .tensor? = input.node["exponent"] {
            return try emit("pow", ["a": a, "b": operand("exponent", as: type)])
        }
        let exponent = try input.number("exponent")
        switch exponent {
        case 1: return a
        case 2: return try emit("mul", ["a": a, "b": a])
        case 0.5 where type.isFloatingPoint: return try emit("sqrt", ["a": a])
        case -0.5 where type.isFloatingPoint: return try emit("rsqrt", ["a": a])
        case -1 where type.isFloatingPoint: return try emit("reciprocal", ["a": a])
        default: break
        }
        if type.isFloatingPoint { return try emit("pow", ["a": a, "b": operand("exponent", as: type)]) }
        guard exponent >= 0, exponent <= 8, exponent == exponent.rounded() else {
            throw RuleFailure(
                .unsupportedArgument, "an integer power needs a small exponent", expected: "0...8", found: "\(exponent)"
            )
        }
        if exponent == 0 {
            return try emit("fill", [("value", .tensor(scalar(1, as: type)))], type: resultType)
        }
        var result = a
        for _ in 1..<Int(exponent) { result = try emit("mul", ["a": result, "b": a]) }
        return result
    }

    private func comparison(_ name: String) throws(RuleFailure) -> ValueID {
        var operands: [Promotion.Operand] = [.tensor(try input.tensor("self"))]
        if case .tensor? = input.node["other"] {
            operands.append(.tensor(try input.tensor("other")))
        } else {
            operands.append(.scalar(try input.scalar("other")))
        }
        let type = try input.resultType(operands)
        return try emit(name, ["a": operand("self", as: type), "b": operand("other", as: type)])
    }

    private func logical(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self", as: .bool)
        if name == "logical_not" { return try emit(name, ["a": a]) }
        let kernel = name == "logical_and" ? "bitwise_and" : "bitwise_or"
        return try emit(kernel, ["a": a, "b": operand("other", as: .bool)])
    }

    /// Nothing but NaN differs from itself. Integers have neither NaN nor infinity.
    private func classification(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self")
        let type = self[a].scalarType
        guard name == "isinf", type.isFloatingPoint else { return try emit("ne", ["a": a, "b": a]) }
        return try emit("eq", ["a": emit("abs", ["a": a]), "b": scalar(.number(.infinity), as: type)])
    }

    private func unary(_ name: String) throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        let a = try operand("self", as: type)
        switch name {
        case "gelu" where try input.textArgument("approximate") == "tanh": return try emit("gelu_tanh", ["a": a])
        // These change nothing.
        case "floor" where !type.isFloatingPoint, "ceil" where !type.isFloatingPoint, "abs" where type == .bool:
            return a
        default: return try emit(kernel(name, for: type), ["a": a])
        }
    }

    private func alongAxis(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self", as: resultType.scalarType)
        let kernel = name == "_softmax" ? "softmax" : name
        let rank = self[a].rank
        let axis = try input.axis(named: "dim", rank: rank)
        let line = rank == 0 ? try reshape(a, to: [.one]) : a
        let result = try emit(kernel, [("a", .tensor(line)), ("axis", .size(SizeExpression(axis)))])
        return try reshape(result, to: self[a].shape)
    }

    private func selection(_ name: String) throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        if name == "masked_fill" {
            return try emit(
                "where",
                ["condition": operand("mask"), "a": operand("value", as: type), "b": operand("self")])
        }
        return try emit(
            "where",
            ["condition": operand("condition"), "a": operand("self", as: type), "b": operand("other", as: type)])
    }

    private func clamp() throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        var result = try operand("self", as: type)
        for (bound, name) in [("min", "maximum"), ("max", "minimum")] {
            guard let scalar = try input.optionalScalar(bound) else { continue }
            result = try emit(kernel(name, for: type), ["a": result, "b": self.scalar(scalar, as: type)])
        }
        return result
    }
}
