internal import StatepackBundle

// Operators that only FuseOps makes.

extension RuleInput {
    /// Cosines and sines that turn rows of `a`: as long as a row or shorter, and even; leading axes broadcast.
    func requireAngles(_ a: ValueType, _ name: String) throws(RuleFailure) {
        for angle in ["cos", "sin"] {
            let type = try tensor(angle)
            try requireType(type.scalarType, a.scalarType, angle)
            try require(
                a.rank >= 1 && type.rank >= 1, "a rotary embedding needs axes", found: "\(text(a)) and \(text(type))")
            try require(
                type.rank <= a.rank, "`\(angle)` has more axes than `\(name)`", expected: text(a), found: text(type))
            try requireBroadcasts(
                Array(type.shape.dropLast()), to: Array(a.shape.dropLast()), "`\(angle)`")
        }
        let (cos, sin) = (try tensor("cos"), try tensor("sin"))
        let lengths = [a, cos, sin].map { $0.shape[$0.rank - 1].constant }
        guard let length = lengths[0], let rotated = lengths[1], rotated == lengths[2], rotated % 2 == 0,
            rotated <= length
        else {
            throw RuleFailure(
                .invalidOperands, "`cos` and `sin` do not turn the rows of `\(name)`",
                expected: "an even length of at most \(text(a.shape[a.rank - 1]))",
                found: "\(text(cos.shape[cos.rank - 1])) and \(text(sin.shape[sin.rank - 1]))")
        }
    }
}

extension CoreRules {
    @Sendable static func rotary(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        try input.requireAngles(a, "a")
        return [a]
    }

    @Sendable static func rotaryIndexCopy(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let result = try indexCopy(input)
        let source = try input.tensor("source")
        try input.requireAngles(source, "source")
        let axis = try input.integer("axis")
        try input.require(
            axis < source.rank - 1, "a rotary embedding cannot be written along its own axis",
            expected: "less than \(source.rank - 1)", found: "\(axis)")
        return result
    }

    @Sendable static func linearParts(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        let isBiased = try input.flag("biases")
        let given = try input.tensorList("weights").compactMap { $0 }
        let count = isBiased ? given.count / 2 : given.count
        try input.require(
            (1...16).contains(count) && given.count == (isBiased ? 2 * count : count),
            "a linear layer in parts has 1 to 16 weights, and a bias for each or none", found: "\(given.count)")
        var columns = SizeExpression.zero
        for index in 0..<count {
            let shape = try input.linearShape(a, given[index], isBiased ? given[count + index] : nil)
            columns = try input.checked { () throws(SizeExpression.Failure) in
                try columns.plus(shape[shape.count - 1])
            }
        }
        return [ValueType(a.scalarType, Array(a.shape.dropLast()) + [columns])]
    }

    @Sendable static func linearGated(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        let gate = try input.linearShape(a, input.tensor("gate"), input.optionalTensor("gate_bias"))
        let up = try input.linearShape(a, input.tensor("up"), input.optionalTensor("up_bias"))
        try input.require(
            input.areEqual(gate, up), "the two weights of a gated layer differ", expected: input.text(gate),
            found: input.text(up))
        let activation = try input.integer("activation")
        try input.require((0...4).contains(activation), "there is no such activation", found: "\(activation)")
        return [ValueType(a.scalarType, up)]
    }

    @Sendable static func linearAdd(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let result = try linear(input)
        let residual = try input.tensor("residual")
        try requireSameType(input, "residual", residual, as: result[0].scalarType)
        try input.require(
            input.areEqual(residual.shape, result[0].shape), "the residual does not have the shape of the result",
            expected: input.text(result[0]), found: input.text(residual))
        return result
    }
}
