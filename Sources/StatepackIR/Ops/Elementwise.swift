internal import StatepackBundle

// Point-wise operators: results have the operands' broadcast shape.

extension AtenRules {
    /// The two operands of a binary operator; the second may be a Python number.
    private static func operands(_ input: RuleInput) throws(RuleFailure) -> [Promotion.Operand] {
        let names = input.node.arguments.prefix(2).map(\.name)
        guard names.count == 2 else { throw RuleFailure.internalFault("expected two operands") }
        var result: [Promotion.Operand] = []
        for name in names {
            if case .tensor? = input.node[name] {
                result.append(.tensor(try input.tensor(name)))
            } else {
                result.append(.scalar(try input.scalar(name)))
            }
        }
        return result
    }

    private static func shape(
        _ input: RuleInput, _ operands: [Promotion.Operand]
    ) throws(RuleFailure) -> [SizeExpression] {
        var shapes: [[SizeExpression]] = []
        for case .tensor(let type) in operands { shapes.append(type.shape) }
        return try input.broadcast(shapes)
    }

    @Sendable static func binary(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operands = try operands(input)
        var type = try input.resultType(operands)
        if input.node.op.hasPrefix("aten.div."), !type.isFloatingPoint { type = .float32 }
        if input.node.op.hasPrefix("aten.bitwise_") {
            try input.require(!type.isFloatingPoint, "a bitwise operator needs integers or bool", found: type.name)
        }
        if input.node.arguments.contains(where: { $0.name == "alpha" }) { _ = try input.scalar("alpha") }
        return [ValueType(type, try shape(input, operands))]
    }

    /// Comparisons and logical operators: the result is bool.
    @Sendable static func comparison(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        if input.node.arguments.count == 1 { return [ValueType(.bool, try input.tensor("self").shape)] }
        let operands = try operands(input)
        _ = try input.resultType(operands)
        return [ValueType(.bool, try shape(input, operands))]
    }

    /// Unary operators that compute in floating point whatever they are given.
    package static let floatingPointOperators: Set<String> = [
        "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf", "sigmoid",
    ]

    /// Unary operators that torch defines on floating point only.
    private static let floatingPointOnly: Set<String> = ["silu", "gelu", "_softmax"]

    /// `aten.exp.default` → `exp`.
    package static func baseName(_ op: String) -> String {
        let parts = op.split(separator: ".")
        return parts.count > 1 ? String(parts[1]) : op
    }

    @Sendable static func unary(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        let name = baseName(input.node.op)
        var type = operand.scalarType
        switch name {
        case _ where floatingPointOperators.contains(name):
            if !type.isFloatingPoint { type = .float32 }
        case _ where floatingPointOnly.contains(name):
            try input.require(
                type.isFloatingPoint, "the operand has the wrong scalar type", expected: "floating point",
                found: type.name)
        case "neg", "relu":
            try input.require(
                type != .bool, "the operand has the wrong scalar type", expected: "a number", found: "bool")
        case "bitwise_not":
            try input.require(
                !type.isFloatingPoint, "the operand has the wrong scalar type", expected: "integer or bool",
                found: type.name)
        case "cumsum":
            type = try input.optionalScalarType("dtype") ?? (type.isFloatingPoint ? type : .int64)
        case "softmax":
            type = try input.optionalScalarType("dtype") ?? type
            try input.require(
                type.isFloatingPoint, "the operand has the wrong scalar type", expected: "floating point",
                found: type.name)
        default: break
        }
        if name == "_softmax", try input.flag("half_to_float") { type = .float32 }
        if ["cumsum", "softmax", "_softmax"].contains(name) { _ = try input.axis(named: "dim", rank: operand.rank) }
        if name == "gelu" {
            let approximate = try input.textArgument("approximate")
            try input.require(
                ["none", "tanh"].contains(approximate), "unknown approximation", expected: "none or tanh",
                found: approximate)
        }
        return [ValueType(type, operand.shape)]
    }

    @Sendable static func `where`(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let target = try input.tensor("self")
        if input.node.op.hasPrefix("aten.masked_fill.") {
            let mask = try input.tensor("mask")
            try requireBool(input, mask, "mask")
            if case .tensor? = input.node["value"] {
                let value = try input.tensor("value")
                try input.require(
                    value.rank == 0, "`value` has axes", expected: "a 0-dimensional tensor", found: input.text(value))
            } else {
                _ = try input.scalar("value")
            }
            return [ValueType(target.scalarType, try input.broadcast([target.shape, mask.shape]))]
        }
        let condition = try input.tensor("condition")
        let other = try input.tensor("other")
        try requireBool(input, condition, "condition")
        return [
            ValueType(
                try input.resultType([.tensor(target), .tensor(other)]),
                try input.broadcast([condition.shape, target.shape, other.shape]))
        ]
    }

    private static func requireBool(_ input: RuleInput, _ type: ValueType, _ name: String) throws(RuleFailure) {
        try input.require(
            type.scalarType == .bool, "`\(name)` has the wrong scalar type", expected: "bool",
            found: type.scalarType.name)
    }

    @Sendable static func clamp(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        var operands: [Promotion.Operand] = [.tensor(operand)]
        for name in ["min", "max"] {
            if let bound = try input.optionalScalar(name) { operands.append(.scalar(bound)) }
        }
        try input.require(operands.count > 1, "neither `min` nor `max` is given")
        return [ValueType(try input.resultType(operands), operand.shape)]
    }
}

extension CoreRules {
    /// Operands of a core operator share one scalar type: promotion is explicit after DecomposeOps.
    static func requireSameType(
        _ input: RuleInput, _ name: String, _ type: ValueType, as other: ScalarType
    ) throws(RuleFailure) {
        try input.require(
            type.scalarType == other, "operand `\(name)` has the wrong scalar type", expected: other.name,
            found: type.scalarType.name)
    }

    /// The type is one that the kernel has.
    static func requireSupported(_ input: RuleInput, _ type: ScalarType) throws(RuleFailure) {
        guard let row = OperatorTable.kernels[input.node.op], !row.scalarTypes.contains(type) else { return }
        throw RuleFailure(
            .unsupportedScalarType, "`\(input.node.op)` has no kernel for \(type)",
            expected: row.scalarTypes.map(\.name).joined(separator: ", "), found: type.name)
    }

    @Sendable static func binary(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, b) = (try input.tensor("a"), try input.tensor("b"))
        try requireSupported(input, a.scalarType)
        try requireSameType(input, "b", b, as: a.scalarType)
        return [ValueType(a.scalarType, try input.broadcast([a.shape, b.shape]))]
    }

    @Sendable static func comparison(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let types = try binary(input)
        return [ValueType(.bool, types[0].shape)]
    }

    @Sendable static func unary(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        return [a]
    }

    @Sendable static func selection(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, b) = (try input.tensor("a"), try input.tensor("b"))
        let condition = try input.tensor("condition")
        try requireSameType(input, "condition", condition, as: .bool)
        try requireSupported(input, a.scalarType)
        try requireSameType(input, "b", b, as: a.scalarType)
        return [ValueType(a.scalarType, try input.broadcast([condition.shape, a.shape, b.shape]))]
    }

    /// `copy` converts to the scalar type of its result and keeps the shape.
    @Sendable static func copy(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        let type = input.resultTypes.first?.scalarType ?? a.scalarType
        try requireSupported(input, type)
        return [ValueType(type, a.shape)]
    }

    /// `cumsum` and `softmax`.
    @Sendable static func alongAxis(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        return [a]
    }

    /// A normalised axis: not negative, inside the rank.
    static func requireAxis(_ input: RuleInput, _ name: String, _ type: ValueType) throws(RuleFailure) {
        let axis = try input.integer(name)
        try input.require(
            axis >= 0 && axis < type.rank, "axis `\(name)` is out of range", expected: "0..<\(type.rank)",
            found: "\(axis)")
    }
}
