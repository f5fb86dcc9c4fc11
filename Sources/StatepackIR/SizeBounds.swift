package import StatepackBundle

/// What the bounds of symbols say about sizes: `min(query, 2048)` is `query` when query never passes 2048.
package struct SizeBounds: Sendable {
    private let symbols: [(min: Int, max: Int)]

    package init(_ symbols: [Program.Symbol]) {
        self.symbols = symbols.map { ($0.min, $0.max) }
    }

    /// The least and the largest value, not always attained. Nil when an operation overflows or divides
    /// by something that may be zero.
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
        func corners(_ operation: (Int, Int) -> (partialValue: Int, overflow: Bool)) -> ClosedRange<Int>? {
            var values: [Int] = []
            for x in [a.lowerBound, a.upperBound] {
                for y in [b.lowerBound, b.upperBound] {
                    let (value, overflow) = operation(x, y)
                    if overflow { return nil }
                    values.append(value)
                }
            }
            return values.min()!...values.max()!
        }
        switch opcode {
        case 2: return corners { $0.addingReportingOverflow($1) }
        case 3: return corners { $0.subtractingReportingOverflow($1) }
        case 4: return corners { $0.multipliedReportingOverflow(by: $1) }
        case 5:
            if b.contains(0) { return nil }
            return corners { x, y in
                let (quotient, overflow) = x.dividedReportingOverflow(by: y)
                return (x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient, overflow)
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
        return first.upperBound <= second.lowerBound
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
