internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    /// Operators that only rearrange; those that rearrange nothing give their operand.
    func view(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self")
        let shape = self[a].shape
        switch name {
        case "permute":
            return try permute(a, input.normalisedPermutation(input.integers("dims"), rank: shape.count))
        case "transpose", "t":
            return try permute(a, AtenRules.transposition(input, rank: shape.count))
        case "expand":
            return try expand(a, to: resultType.shape)
        case "slice":
            return try slice(a, input.normalisedSlice(of: shape))
        case "select":
            let (axis, index) = try input.normalisedSelection(of: shape)
            return try emit(
                "view.select", [("a", .tensor(a)), ("dim", .size(SizeExpression(axis))), ("index", .size(index))])
        case "alias", "detach", "contiguous", "lift_fresh_copy":
            // Values are never changed before RecoverStateWrites, so the operand is as good as a copy; whether
            // it must be contiguous somewhere is decided by PlanMemory.
            return a
        default:
            return try reshape(a, to: resultType.shape)
        }
    }

    func split() throws(RuleFailure) -> [ValueID] {
        let a = try operand("self")
        let axis = try input.axis(named: "dim", rank: self[a].rank)
        var results: [ValueID] = []
        var start = SizeExpression.zero
        for size in try input.sizes("split_sizes") {
            let end = try input.checked { () throws(SizeExpression.Failure) in try start.plus(size) }
            results.append(try slice(a, .init(axis: axis, start: start, end: end, step: 1, length: size)))
            start = end
        }
        return results
    }

    /// Puts an axis in front of each that is repeated, expands it, and merges the two.
    func repetition() throws(RuleFailure) -> ValueID {
        let repeats = try input.sizes("repeats")
        var a = try operand("self")
        let shape = Array(repeating: .one, count: repeats.count - self[a].rank) + self[a].shape
        var (split, expanded): ([SizeExpression], [SizeExpression]) = ([], [])
        for (size, times) in zip(shape, repeats) {
            if times == .one {
                split.append(size)
                expanded.append(size)
            } else if size == .one {
                split.append(.one)
                expanded.append(times)
            } else {
                split += [.one, size]
                expanded += [times, size]
            }
        }
        guard split.count <= 8 else {
            throw RuleFailure(
                .unsupportedArgument, "a repeat needs more than eight axes on the way", found: "\(split.count)")
        }
        a = try expand(reshape(a, to: split), to: expanded)
        return try reshape(a, to: resultType.shape)
    }

    func copies(_ name: String) throws(RuleFailure) -> ValueID {
        if name == "copy" {
            // The shape and scalar type are those of `self`, its elements are not read.
            return try copy(expand(operand("src"), to: resultType.shape), as: resultType.scalarType)
        }
        return try copy(operand("self"), as: resultType.scalarType)
    }

    func factory(_ name: String) throws(RuleFailure) -> ValueID {
        let type = resultType
        if name == "arange" {
            return try emit(
                "arange",
                [
                    ("start", .tensor(operand("start", as: type.scalarType))),
                    ("step", .tensor(operand("step", as: type.scalarType))),
                ], type: type)
        }
        let value: ValueID
        switch name {
        case "zeros", "zeros_like": value = try scalar(0, as: type.scalarType)
        case "ones", "ones_like": value = try scalar(1, as: type.scalarType)
        case "scalar_tensor": value = try scalar(input.scalar("s"), as: type.scalarType)
        default: value = try scalar(input.scalar("fill_value"), as: type.scalarType)
        }
        if type.rank == 0, !leavesFunction { return value }
        return try emit("fill", [("value", .tensor(value))], type: type)
    }

    func concatenation() throws(RuleFailure) -> ValueID {
        let type = resultType.scalarType
        var parts: [ValueID] = []
        for part in try operandList("tensors") {
            guard let part, !(AtenRules.isSkipped(self[part]) && resultType.shape != [.zero]) else { continue }
            parts.append(try cast(part, to: type))
        }
        if parts.count == 1 { return parts[0] }
        let axis = try input.axis(named: "dim", rank: resultType.rank)
        return try emit("cat", [("parts", .tensors(parts)), ("axis", .size(SizeExpression(axis)))])
    }
}
