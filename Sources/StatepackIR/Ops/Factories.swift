internal import StatepackBundle

// Operators that make a tensor, copy one, or join several.

extension RuleInput {
    /// Number of elements of `aten.arange`, and its scalar type.
    package func arange() throws(RuleFailure) -> ValueType {
        let (start, end, step) = (try scalar("start"), try scalar("end"), try scalar("step"))
        let isFloating = [start, end, step].contains { if case .number = $0 { true } else { false } }
        let type = try optionalScalarType("dtype") ?? (isFloating ? .float32 : .int64)
        if isFloating {
            // torch computes the length in double precision.
            let values = try [number("start"), number("end"), number("step")]
            try require(
                values.allSatisfy(\.isFinite) && values[2] != 0, "arange has no finite length", found: "\(values)")
            let length = ((values[1] - values[0]) / values[2]).rounded(.up)
            try require(
                length >= 0 && length < 0x1p53, "the bounds of arange do not fit its step", found: "\(values)")
            return ValueType(type, [SizeExpression(Int(length))])
        }
        let (first, last) = (try size("start"), try size("end"))
        guard let step = try size("step").constant, step != 0 else {
            throw RuleFailure(.unsupportedArgument, "the step of arange depends on a symbol or is 0")
        }
        let length = try checked { () throws(SizeExpression.Failure) in
            let span = step > 0 ? try last.minus(first) : try first.minus(last)
            let magnitude = Int(step.magnitude)
            let count = try span.plus(magnitude - 1).floorDivided(by: SizeExpression(magnitude))
            return count
        }
        try require(
            bounds.isProvablyNonnegative(length), "the bounds of arange do not fit its step",
            expected: "0 or more elements",
            found: text(length))
        return ValueType(type, [length])
    }
}

extension AtenRules {
    @Sendable static func copy(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        switch input.node.op {
        case "aten._to_copy.default":
            return [ValueType(try input.optionalScalarType("dtype") ?? operand.scalarType, operand.shape)]
        case "aten.copy.default":
            try input.requireBroadcasts(input.tensor("src").shape, to: operand.shape, "`src`")
            return [operand]
        default:
            return [operand]
        }
    }

    @Sendable static func factory(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        func nonnegative(_ shape: [SizeExpression]) throws(RuleFailure) -> [SizeExpression] {
            try input.require(
                shape.allSatisfy { input.bounds.isProvablyNonnegative($0) }, "a size may be negative",
                found: input.text(shape))
            return shape
        }
        switch input.node.op {
        case "aten.arange.start_step":
            return [try input.arange()]
        case "aten.scalar_tensor.default":
            _ = try input.scalar("s")
            return [ValueType(try input.optionalScalarType("dtype") ?? .float32, [])]
        case "aten.full.default":
            let value = try input.scalar("fill_value")
            let type = try input.optionalScalarType("dtype") ?? value.scalarType
            return [ValueType(type, try nonnegative(input.sizes("size")))]
        case "aten.zeros.default", "aten.ones.default":
            return [ValueType(try input.optionalScalarType("dtype") ?? .float32, try nonnegative(input.sizes("size")))]
        default:
            if input.node.op == "aten.full_like.default" { _ = try input.scalar("fill_value") }
            let operand = try input.tensor("self")
            return [ValueType(try input.optionalScalarType("dtype") ?? operand.scalarType, operand.shape)]
        }
    }

    @Sendable static func cat(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let parts = try input.tensorList("tensors").compactMap { $0 }
        try input.require(!parts.isEmpty, "nothing to join")
        let type = try input.resultType(parts.map { .tensor($0) })
        // torch lets empty tensors of one axis join anything.
        let counted = parts.filter { !isSkipped($0) }
        let first = counted.first ?? parts[0]
        let axis = try input.axis(named: "dim", rank: first.rank)
        return [ValueType(type, try joined(input, counted.isEmpty ? [first] : counted, axis))]
    }

    package static func isSkipped(_ type: ValueType) -> Bool { type.shape == [.zero] }

    static func joined(_ input: RuleInput, _ parts: [ValueType], _ axis: Int) throws(RuleFailure) -> [SizeExpression] {
        try input.require(parts[0].rank > 0, "tensors without axes cannot be joined")
        var shape = parts[0].shape
        for part in parts.dropFirst() {
            let fits =
                part.rank == shape.count
                && shape.indices.allSatisfy { $0 == axis || input.bounds.areProvablyEqual(part.shape[$0], shape[$0]) }
            try input.require(
                fits, "joined tensors differ outside axis \(axis)", expected: input.text(shape),
                found: input.text(part.shape))
            shape[axis] = try input.checked { () throws(SizeExpression.Failure) in
                try shape[axis].plus(part.shape[axis])
            }
        }
        return shape
    }
}

extension CoreRules {
    /// The shape of what these make is in their result; the rest of the program is checked against it.
    private static func made(_ input: RuleInput) throws(RuleFailure) -> ValueType {
        guard let type = input.resultTypes.first else { throw RuleFailure.internalFault("no result") }
        try requireSupported(input, type.scalarType)
        return type
    }

    private static func requireElement(_ input: RuleInput, _ name: String, _ type: ScalarType) throws(RuleFailure) {
        let found = try input.tensor(name)
        try input.require(
            found == ValueType(type, []), "`\(name)` does not fit", expected: "\(type)[]", found: input.text(found))
    }

    @Sendable static func fill(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let type = try made(input)
        try requireElement(input, "value", type.scalarType)
        return [type]
    }

    @Sendable static func arange(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let type = try made(input)
        try input.require(type.rank == 1, "arange makes one axis", found: input.text(type))
        try requireElement(input, "start", type.scalarType)
        try requireElement(input, "step", type.scalarType)
        return [type]
    }

    @Sendable static func concatenation(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let parts = try input.tensorList("parts").compactMap { $0 }
        guard let first = parts.first else { throw RuleFailure(.invalidOperands, "nothing to join") }
        try requireSupported(input, first.scalarType)
        for part in parts { try requireSameType(input, "parts", part, as: first.scalarType) }
        try requireAxis(input, "axis", first)
        return [ValueType(first.scalarType, try AtenRules.joined(input, parts, input.integer("axis")))]
    }
}
