package import StatepackBundle

/// What the bounds of symbols say about sizes: `min(query, 2048)` is `query` when query never passes 2048.
package struct SizeBounds: Sendable {
    private let symbols: [(min: Int, max: Int)]

    package init(_ symbols: [Program.Symbol]) {
        self.symbols = symbols.map { ($0.min, $0.max) }
    }

    /// The least and the largest value, not always attained; what passes int64 stays at its end, for a size that
    /// does overflows when it is evaluated and never comes to use. Nil when something that may be zero divides.
    package func range(of size: SizeExpression) -> ClosedRange<Int>? {
        if let constant = size.constant { return constant...constant }
        var stack: [ClosedRange<Int>] = []
        let code = size.postfix
        for index in stride(from: 0, to: code.count, by: 2) {
            let operand = Int(code[index + 1])
            switch code[index] {
            case 0: stack.append(operand...operand)
            case 1:
                guard operand < symbols.count, symbols[operand].min <= symbols[operand].max else { return nil }
                stack.append(symbols[operand].min...symbols[operand].max)
            default:
                guard stack.count >= 2 else { return nil }
                let b = stack.removeLast()
                let a = stack.removeLast()
                guard let result = Self.apply(code[index], a, b) else { return nil }
                stack.append(result)
            }
        }
        return stack.count == 1 ? stack[0] : nil
    }

    private static func apply(_ opcode: Int64, _ a: ClosedRange<Int>, _ b: ClosedRange<Int>) -> ClosedRange<Int>? {
        func corners(_ operation: (Int, Int) -> Int) -> ClosedRange<Int> {
            var values: [Int] = []
            for x in [a.lowerBound, a.upperBound] {
                for y in [b.lowerBound, b.upperBound] { values.append(operation(x, y)) }
            }
            return values.min()!...values.max()!
        }
        /// The result, or the end of int64 that it passed.
        func saturated(_ result: (partialValue: Int, overflow: Bool), isNegative: Bool) -> Int {
            result.overflow ? (isNegative ? .min : .max) : result.partialValue
        }
        switch opcode {
        case 2: return corners { saturated($0.addingReportingOverflow($1), isNegative: $0 < 0) }
        case 3: return corners { saturated($0.subtractingReportingOverflow($1), isNegative: $0 < 0) }
        case 4: return corners { saturated($0.multipliedReportingOverflow(by: $1), isNegative: ($0 < 0) != ($1 < 0)) }
        case 5:
            if b.contains(0) { return nil }
            return corners { x, y in
                // Only the least integer by -1 overflows.
                let (quotient, overflow) = x.dividedReportingOverflow(by: y)
                if overflow { return .max }
                return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient
            }
        case 6: return b.lowerBound > 0 ? 0...(b.upperBound - 1) : nil
        case 7: return max(a.lowerBound, b.lowerBound)...max(a.upperBound, b.upperBound)
        case 8: return min(a.lowerBound, b.lowerBound)...min(a.upperBound, b.upperBound)
        default: return nil
        }
    }

    /// Whether `a <= b` for every choice of symbols, as far as the bounds tell.
    package func isProvablyAtMost(_ a: SizeExpression, _ b: SizeExpression) -> Bool {
        if a == b { return true }
        if let difference = try? b.minus(a), let range = range(of: difference), range.lowerBound >= 0 { return true }
        guard let first = range(of: a), let second = range(of: b) else { return false }
        // An end of int64 may stand for anything beyond it.
        return first.upperBound <= second.lowerBound && first.upperBound != .max && second.lowerBound != .min
    }

    package func isProvablyNonnegative(_ a: SizeExpression) -> Bool { isProvablyAtMost(.zero, a) }

    /// Whether the two are equal for every choice of symbols, as far as canonical form and bounds tell.
    package func areProvablyEqual(_ a: SizeExpression, _ b: SizeExpression) -> Bool {
        a == b || isProvablyAtMost(a, b) && isProvablyAtMost(b, a)
    }

    package func minimum(_ a: SizeExpression, _ b: SizeExpression) throws(SizeExpression.Failure) -> SizeExpression {
        if isProvablyAtMost(a, b) { return a }
        if isProvablyAtMost(b, a) { return b }
        return try a.minimum(b)
    }

    package func maximum(_ a: SizeExpression, _ b: SizeExpression) throws(SizeExpression.Failure) -> SizeExpression {
        if isProvablyAtMost(a, b) { return b }
        if isProvablyAtMost(b, a) { return a }
        return try a.maximum(b)
    }
}
