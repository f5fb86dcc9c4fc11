package import StatepackBundle

/// torch's scalar type promotion.
package enum Promotion {
    /// The smallest type that both convert to: `torch.promote_types`. Nil for the wider unsigned types,
    /// which torch promotes with no other integer and not with bool.
    package static func promote(_ a: ScalarType, _ b: ScalarType) -> ScalarType? {
        if a == b { return a }
        let wideUnsigned: Set<ScalarType> = [.uint16, .uint32, .uint64]
        if a.isFloatingPoint || b.isFloatingPoint {
            guard a.isFloatingPoint && b.isFloatingPoint else { return a.isFloatingPoint ? a : b }
            if a == .float64 || b == .float64 { return .float64 }
            // float32 with anything smaller, and the two 16-bit types with each other.
            return .float32
        }
        if wideUnsigned.contains(a) || wideUnsigned.contains(b) { return nil }
        if a == .bool { return b }
        if b == .bool { return a }
        let signed: [ScalarType] = [.int8, .int16, .int32, .int64]
        // uint8 next to a signed type needs one that holds both.
        func rank(_ type: ScalarType) -> Int { type == .uint8 ? 0 : signed.firstIndex(of: type)! }
        let isMixed = a == .uint8 || b == .uint8
        return signed[max(rank(a), rank(b), isMixed ? 1 : 0)]
    }

    package enum Operand: Hashable, Sendable {
        case tensor(ValueType)
        case scalar(ScalarArgument)
    }

    /// `torch.result_type`: tensors with axes decide; 0-dimensional ones, then Python numbers, count only
    /// when they are of a higher category (bool < integer < floating point).
    package static func resultType(_ operands: [Operand]) -> ScalarType? {
        var withAxes: ScalarType?
        var withoutAxes: ScalarType?
        var numbers: ScalarType?
        func merge(_ into: inout ScalarType?, _ type: ScalarType) -> Bool {
            guard let current = into else {
                into = type
                return true
            }
            into = promote(current, type)
            return into != nil
        }
        for operand in operands {
            let fits =
                switch operand {
                case .tensor(let type) where type.rank > 0: merge(&withAxes, type.scalarType)
                case .tensor(let type): merge(&withoutAxes, type.scalarType)
                case .scalar(let scalar): merge(&numbers, scalar.scalarType)
                }
            if !fits { return nil }
        }
        func combine(_ higher: ScalarType?, _ lower: ScalarType?) -> ScalarType?? {
            guard let higher else { return .some(lower) }
            guard let lower else { return .some(higher) }
            if higher.isFloatingPoint { return .some(higher) }
            if higher == .bool || lower.isFloatingPoint {
                guard let both = promote(higher, lower) else { return .none }
                return .some(both)
            }
            return .some(higher)
        }
        guard let inner = combine(withoutAxes, numbers), let all = combine(withAxes, inner) else { return nil }
        return all
    }
}

extension RuleInput {
    /// The type in which an operator with these operands computes.
    package func resultType(_ operands: [Promotion.Operand]) throws(RuleFailure) -> ScalarType {
        guard let type = Promotion.resultType(operands) else {
            let types = operands.map { operand in
                switch operand {
                case .tensor(let type): type.scalarType.name
                case .scalar(let scalar): scalar.scalarType.name
                }
            }
            throw RuleFailure(
                .invalidOperands, "these scalar types have no common type", found: types.joined(separator: ", "))
        }
        return type
    }

    /// Shape of operands broadcast together: aligned at the last axis, length 1 stretches. Sizes that
    /// differ as expressions do not fit, for some choice of symbols would fail.
    package func broadcast(_ shapes: [[SizeExpression]]) throws(RuleFailure) -> [SizeExpression] {
        var result: [SizeExpression] = []
        for shape in shapes {
            let (longer, shorter) = shape.count > result.count ? (shape, result) : (result, shape)
            var merged = longer
            let lead = longer.count - shorter.count
            for (index, size) in shorter.enumerated() {
                let other = longer[lead + index]
                if bounds.areProvablyEqual(size, other) || size == .one { continue }
                guard other == .one else {
                    throw RuleFailure(
                        .invalidOperands, "shapes cannot be broadcast together",
                        expected: "equal sizes, or 1, on every axis counted from the last",
                        found: shapes.map(text).joined(separator: " and "))
                }
                merged[lead + index] = size
            }
            result = merged
        }
        return result
    }

    /// Fails unless `shape` stretches to `target` without changing it.
    func requireBroadcasts(_ shape: [SizeExpression], to target: [SizeExpression], _ what: String) throws(RuleFailure) {
        let fits =
            shape.count <= target.count
            && zip(shape, target.suffix(shape.count)).allSatisfy { $0 == .one || bounds.areProvablyEqual($0, $1) }
        try require(fits, "\(what) does not broadcast", expected: text(target), found: text(shape))
    }
}
