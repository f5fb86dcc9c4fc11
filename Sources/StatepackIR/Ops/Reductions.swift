internal import StatepackBundle

// Operators that fold axes away, and the normalisations over trailing axes.

extension RuleInput {
    /// The axes of a reduction, sorted; none or an empty list means all.
    package func reductionAxes(rank: Int) throws(RuleFailure) -> [Int] {
        let given = node["dim"] == nil ? [] : try integers("dim")
        if given.isEmpty { return Array(0..<rank) }
        var axes: Set<Int> = []
        for dim in given {
            let axis = try axis(dim, rank: rank)
            try require(axes.insert(axis).inserted, "an axis occurs twice in `dim`", found: "\(given)")
        }
        // A tensor without axes accepts 0 and -1, which fold nothing.
        return axes.filter { $0 < rank }.sorted()
    }

    /// Operators that fold everything have no `keepdim`.
    package func keepsAxes() throws(RuleFailure) -> Bool { try node["keepdim"] == nil ? false : flag("keepdim") }

    func folded(_ shape: [SizeExpression], _ axes: Set<Int>, keep: Bool) -> [SizeExpression] {
        shape.indices.compactMap { axes.contains($0) ? (keep ? .one : nil) : shape[$0] }
    }
}

extension AtenRules {
    @Sendable static func reduce(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        let keep = try input.keepsAxes()
        let axes = Set(try input.reductionAxes(rank: operand.rank))
        var type = operand.scalarType
        switch baseName(input.node.op) {
        case "sum":
            type = try input.optionalScalarType("dtype") ?? (type.isFloatingPoint ? type : .int64)
        case "mean":
            type = try input.optionalScalarType("dtype") ?? type
            try input.require(
                type.isFloatingPoint, "the operand has the wrong scalar type", expected: "floating point",
                found: type.name)
        case "var":
            try input.require(
                type.isFloatingPoint, "the operand has the wrong scalar type", expected: "floating point",
                found: type.name)
            _ = try input.optionalNumber("correction")
        case "any", "all": type = .bool
        case "argmax": type = .int64
        default: break
        }
        return [ValueType(type, input.folded(operand.shape, axes, keep: keep))]
    }

    @Sendable static func norm(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("input")
        let normalised = try input.sizes("normalized_shape")
        try input.require(
            !normalised.isEmpty && normalised.count <= operand.rank
                && input.areEqual(Array(operand.shape.suffix(normalised.count)), normalised),
            "`normalized_shape` does not end the operand's shape", expected: input.text(operand.shape),
            found: input.text(normalised))
        try input.require(
            operand.scalarType.isFloatingPoint, "the operand has the wrong scalar type", expected: "floating point",
            found: operand.scalarType.name)
        for name in ["weight", "bias"] where input.node[name] != nil {
            guard let type = try input.optionalTensor(name) else { continue }
            try input.require(
                type == ValueType(operand.scalarType, normalised), "`\(name)` does not fit",
                expected: input.text(ValueType(operand.scalarType, normalised)), found: input.text(type))
        }
        _ = try input.optionalNumber("eps")
        return [operand]
    }
}

extension CoreRules {
    @Sendable static func reduction(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        let mask = try input.integer("axes_mask")
        try input.require(
            mask >= 0 && mask < 1 << a.rank, "`axes_mask` names axes that the operand does not have",
            expected: "\(a.rank) bits", found: "\(mask)")
        let axes = Set((0..<a.rank).filter { mask >> $0 & 1 == 1 })
        return [ValueType(a.scalarType, input.folded(a.shape, axes, keep: try input.flag("keep")))]
    }

    @Sendable static func argmax(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        return [ValueType(.int64, input.folded(a.shape, [try input.integer("axis")], keep: try input.flag("keep")))]
    }

    @Sendable static func normalisation(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        let axes = try input.integer("axes")
        try input.require(
            axes > 0 && axes <= a.rank, "`axes` is out of range", expected: "1...\(a.rank)", found: "\(axes)")
        _ = try input.number("epsilon")
        let expected = ValueType(a.scalarType, Array(a.shape.suffix(axes)))
        for name in ["weight", "bias"] where input.node[name] != nil {
            guard let type = try input.optionalTensor(name) else { continue }
            try input.require(
                type.scalarType == expected.scalarType && input.areEqual(type.shape, expected.shape),
                "`\(name)` does not fit", expected: input.text(expected), found: input.text(type))
        }
        return [a]
    }
}
