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
}
