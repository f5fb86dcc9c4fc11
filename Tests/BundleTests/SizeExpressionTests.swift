import ExactTexts
import StatepackBundle
import Testing

/// A size as its author wrote it: what a canonical expression must agree with.
private indirect enum Tree {
    case constant(Int)
    case symbol(Int)
    case node(Int, Tree, Tree)

    static func random(depth: Int, using random: inout SeededGenerator) -> Tree {
        if depth == 0 || random.chance(25) {
            return random.chance(50) ? .constant(random.below(13) - 4) : .symbol(random.below(3))
        }
        return .node(
            random.below(7), .random(depth: depth - 1, using: &random), .random(depth: depth - 1, using: &random))
    }

    /// Nil where it divides by zero. No leaf is large enough to overflow.
    func value(_ symbols: [Int]) -> Int? {
        switch self {
        case .constant(let value): return value
        case .symbol(let index): return symbols[index]
        case .node(let operation, let left, let right):
            guard let a = left.value(symbols), let b = right.value(symbols) else { return nil }
            switch operation {
            case 0: return a + b
            case 1: return a - b
            case 2: return a * b
            case 3: return b == 0 ? nil : Int((Double(a) / Double(b)).rounded(.down))
            case 4: return b == 0 ? nil : a - b * Int((Double(a) / Double(b)).rounded(.down))
            case 5: return max(a, b)
            default: return min(a, b)
            }
        }
    }

    func expression() throws -> SizeExpression {
        switch self {
        case .constant(let value): return SizeExpression(value)
        case .symbol(let index): return .symbol(index)
        case .node(let operation, let left, let right):
            let (a, b) = (try left.expression(), try right.expression())
            switch operation {
            case 0: return try a.plus(b)
            case 1: return try a.minus(b)
            case 2: return try a.times(b)
            case 3: return try a.floorDivided(by: b)
            case 4: return try a.modulo(b)
            case 5: return try a.maximum(b)
            default: return try a.minimum(b)
            }
        }
    }
}

@Suite struct SizeExpressionTests {
    static let s = SizeExpression.symbol(0)
    static let t = SizeExpression.symbol(1)

    @Test func evaluationAgreesWithTheTreeItCameFrom() throws {
        var random = SeededGenerator(seed: 1)
        var compared = 0
        for _ in 0..<4000 {
            let tree = Tree.random(depth: 1 + random.below(4), using: &random)
            guard let expression = try? tree.expression() else { continue }
            for _ in 0..<4 {
                let symbols = [random.below(9), random.below(9), random.below(9)]
                guard let expected = tree.value(symbols) else { continue }
                #expect(try expression.evaluate(symbols) == expected, "\(tree) at \(symbols)")
                compared += 1
            }
        }
        #expect(compared > 8000)
    }

    @Test func postfixFormReadsBackAsTheSameExpression() throws {
        var random = SeededGenerator(seed: 2)
        var compared = 0
        for _ in 0..<4000 {
            guard let expression = try? Tree.random(depth: 4, using: &random).expression() else { continue }
            let postfix = expression.postfix
            guard postfix.count <= SizeExpression.maximumPostfixCount else { continue }
            let canonical = try SizeExpression(canonicalPostfix: postfix, symbolCount: 3)
            #expect(canonical == expression)
            #expect(canonical.postfix == postfix)
            #expect(try SizeExpression(postfix: postfix, symbolCount: 3) == expression)
            compared += 1
        }
        #expect(compared > 2000)
    }

    @Test func laws() throws {
        let (s, t) = (Self.s, Self.t)
        #expect(try s.plus(t) == t.plus(s))
        #expect(try s.times(t) == t.times(s))
        #expect(try s.times(64).times(9) == s.times(576))
        #expect(try s.plus(1).times(s.minus(1)) == s.times(s).minus(1))
        #expect(try s.plus(t).minus(t) == s)
        #expect(try s.minus(s) == .zero)
        #expect(try s.times(6).floorDivided(by: SizeExpression(3)) == s.times(2))
        #expect(try s.times(t).floorDivided(by: t) == s)
        #expect(try s.times(4).plus(2).floorDivided(by: SizeExpression(4)).constant == nil)
        #expect(try s.maximum(t) == t.maximum(s))
        #expect(try SizeExpression(-7).floorDivided(by: SizeExpression(2)).constant == -4)
        #expect(try SizeExpression(-7).modulo(SizeExpression(2)).constant == 1)
        #expect(try SizeExpression(7).modulo(SizeExpression(-2)).constant == -1)
        #expect(s.symbolIndex == 0)
        #expect(try s.times(2).symbolIndex == nil)
        #expect(try s.plus(t.times(2)).minus(3).description(symbolNames: ["a", "b"]) == "a + 2*b - 3")
    }

    @Test func overflowThrows() throws {
        let big = SizeExpression(Int.max)
        #expect(throws: SizeExpression.Failure.overflow) { try big.plus(1) }
        #expect(throws: SizeExpression.Failure.overflow) { try big.times(2) }
        #expect(throws: SizeExpression.Failure.overflow) {
            try SizeExpression(Int.min).floorDivided(by: SizeExpression(-1))
        }
        #expect(throws: SizeExpression.Failure.overflow) { try Self.s.times(Self.s).evaluate([1 << 32]) }
        #expect(throws: SizeExpression.Failure.overflow) { try Self.s.plus(1).evaluate([Int.max]) }
        #expect(throws: SizeExpression.Failure.divisionByZero) { try Self.s.floorDivided(by: .zero) }
        #expect(throws: SizeExpression.Failure.divisionByZero) { try Self.s.modulo(Self.t).evaluate([1, 0]) }
    }

    @Test func smallestCoefficientDividedByMinusOneIsKeptApart() throws {
        let product = try Self.s.times(SizeExpression(Int.min))
        let quotient = try product.floorDivided(by: SizeExpression(-1))
        #expect(throws: SizeExpression.Failure.overflow) { try quotient.evaluate([1]) }
        #expect(try quotient.evaluate([0]) == 0)
        let bySymbol = try product.floorDivided(by: Self.s.times(-1))
        #expect(throws: SizeExpression.Failure.overflow) { try bySymbol.evaluate([1]) }
    }

    @Test func tooManyTermsThrow() {
        #expect(throws: SizeExpression.Failure.tooManyTerms) {
            var sum = SizeExpression.zero
            for index in 0..<65 { sum = try sum.plus(.symbol(index)) }
        }
        #expect(throws: SizeExpression.Failure.tooManyTerms) {
            var product = SizeExpression.one
            for _ in 0..<17 { product = try product.times(Self.s) }
        }
    }

    struct Refused: CustomTestStringConvertible {
        var testDescription: String
        var postfix: [Int64]
    }

    static let notCanonical: [Refused] = [
        .init(testDescription: "empty", postfix: []),
        .init(testDescription: "odd", postfix: [0]),
        .init(testDescription: "two values", postfix: [0, 1, 0, 2]),
        .init(testDescription: "operator without values", postfix: [2, 0]),
        .init(testDescription: "operator with one value", postfix: [0, 1, 2, 0]),
        .init(testDescription: "operator with an operand", postfix: [1, 0, 1, 1, 2, 7]),
        .init(testDescription: "unknown opcode", postfix: [9, 0]),
        .init(testDescription: "negative opcode", postfix: [-1, 0]),
        .init(testDescription: "unknown symbol", postfix: [1, 3]),
        .init(testDescription: "negative symbol", postfix: [1, -1]),
        .init(testDescription: "too long", postfix: Array(repeating: 0, count: 130)),
        .init(testDescription: "sum in the wrong order", postfix: [1, 1, 1, 0, 2, 0]),
        .init(testDescription: "sum of equal terms", postfix: [1, 0, 1, 0, 2, 0]),
        .init(testDescription: "sum with zero", postfix: [0, 0, 1, 0, 2, 0]),
        .init(testDescription: "sum of constants", postfix: [0, 1, 0, 2, 2, 0]),
        .init(testDescription: "subtraction", postfix: [1, 0, 1, 1, 3, 0]),
        .init(testDescription: "product in the wrong order", postfix: [1, 1, 1, 0, 4, 0]),
        .init(testDescription: "product with one", postfix: [0, 1, 1, 0, 4, 0]),
        .init(testDescription: "product with zero", postfix: [0, 0, 1, 0, 4, 0]),
        .init(testDescription: "product of constants", postfix: [0, 2, 0, 3, 4, 0]),
        .init(testDescription: "product of a sum", postfix: [1, 0, 1, 1, 2, 0, 1, 2, 4, 0]),
        .init(testDescription: "division of constants", postfix: [0, 6, 0, 2, 5, 0]),
        .init(testDescription: "division by zero", postfix: [1, 0, 0, 0, 5, 0]),
        .init(testDescription: "exact division", postfix: [0, 6, 1, 0, 4, 0, 0, 2, 5, 0]),
        .init(testDescription: "division by itself", postfix: [1, 0, 1, 0, 5, 0]),
        .init(testDescription: "modulo one", postfix: [1, 0, 0, 1, 6, 0]),
        .init(testDescription: "maximum in the wrong order", postfix: [1, 1, 1, 0, 7, 0]),
        .init(testDescription: "minimum of equals", postfix: [1, 1, 1, 1, 8, 0]),
    ]

    private static func text(of failure: SizeExpression.Failure) -> String {
        if case .malformed(let reason) = failure { reason } else { "\(failure)" }
    }

    @Test("Only the canonical postfix form is read", arguments: notCanonical)
    func refuses(_ row: Refused) {
        do {
            _ = try SizeExpression(canonicalPostfix: row.postfix, symbolCount: 3)
            Issue.record("the postfix form was read")
        } catch let failure as SizeExpression.Failure {
            let text = Self.text(of: failure)
            #expect(text == ExactTexts.expected("SizeExpression", row.testDescription, actual: text))
        }
        // The form of program.proto may be any; what it says of a row that is not even that.
        var text: String
        do throws(SizeExpression.Failure) {
            text = try SizeExpression(postfix: row.postfix, symbolCount: 3).description(symbolNames: ["a", "b", "c"])
        } catch {
            text = Self.text(of: error)
        }
        #expect(text == ExactTexts.expected("SizeExpressionPostfix", row.testDescription, actual: text))
    }

    @Test func everyShortPostfixIsReadOrRefused() throws {
        // All arrays of up to four pairs over a few operands: whatever is read is canonical.
        let pairs: [(Int64, Int64)] = [
            (0, 0), (0, 1), (0, 2), (0, -1), (0, .min), (1, 0), (1, 1), (2, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0),
        ]
        var accepted = 0
        for count in 1...4 {
            var digits = Array(repeating: 0, count: count)
            while true {
                let postfix = digits.flatMap { [pairs[$0].0, pairs[$0].1] }
                if let expression = try? SizeExpression(canonicalPostfix: postfix, symbolCount: 2) {
                    accepted += 1
                    #expect(expression.postfix == postfix)
                    #expect(try SizeExpression(postfix: postfix, symbolCount: 2) == expression)
                }
                _ = try? SizeExpression(postfix: postfix, symbolCount: 2).evaluate([3, 5])
                guard let place = digits.lastIndex(where: { $0 < pairs.count - 1 }) else { break }
                digits[place] += 1
                for later in digits.indices where later > place { digits[later] = 0 }
            }
        }
        #expect(accepted > 30)
    }
}
