/// A size that may depend on symbols, kept as a canonical sum of products.
///
/// Two expressions that a polynomial identity makes equal compare equal (`s0 * 64 * 9 == 576 * s0`),
/// which is what shape rules need to prove. Floor division, modulo, maximum and minimum are opaque
/// factors unless their operands are constants or the division is exact.
///
/// Arithmetic is checked: overflow of int64, and an expression with more than 64 terms, throw.
package struct SizeExpression: Hashable, Sendable, Comparable {
    package enum Failure: Error, Hashable, Sendable {
        case overflow
        case divisionByZero
        case tooManyTerms
        /// The postfix array is not a program: why.
        case malformed(String)
    }

    indirect enum Atom: Hashable, Sendable, Comparable {
        case symbol(Int)
        case floorDivide(SizeExpression, SizeExpression)
        case modulo(SizeExpression, SizeExpression)
        case maximum(SizeExpression, SizeExpression)
        case minimum(SizeExpression, SizeExpression)
    }

    struct Term: Hashable, Sendable, Comparable {
        var atoms: [Atom]
        var coefficient: Int64

        static func < (a: Term, b: Term) -> Bool {
            if a.atoms != b.atoms { return a.atoms.lexicographicallyPrecedes(b.atoms) }
            return a.coefficient < b.coefficient
        }
    }

    /// Sorted by atoms, no two with the same atoms, no zero coefficient. Empty is zero.
    private(set) var terms: [Term]

    private init(terms: [Term]) { self.terms = terms }

    package init(_ constant: Int) {
        terms = constant == 0 ? [] : [Term(atoms: [], coefficient: Int64(constant))]
    }

    package static func symbol(_ index: Int) -> SizeExpression {
        SizeExpression(terms: [Term(atoms: [.symbol(index)], coefficient: 1)])
    }

    package static let zero = SizeExpression(0)
    package static let one = SizeExpression(1)

    /// The value when no symbol is involved.
    package var constant: Int? {
        if terms.isEmpty { return 0 }
        guard terms.count == 1, terms[0].atoms.isEmpty else { return nil }
        return Int(terms[0].coefficient)
    }

    /// The symbol's index when the expression is that symbol alone.
    package var symbolIndex: Int? {
        guard terms.count == 1, terms[0].coefficient == 1, terms[0].atoms.count == 1,
            case .symbol(let index) = terms[0].atoms[0]
        else { return nil }
        return index
    }

    package static func < (a: SizeExpression, b: SizeExpression) -> Bool {
        a.terms.lexicographicallyPrecedes(b.terms)
    }

    // MARK: Arithmetic

    private static func normalised(_ terms: [Term]) throws(Failure) -> SizeExpression {
        var merged: [Term] = []
        for term in terms.sorted() {
            if let last = merged.last, last.atoms == term.atoms {
                let (sum, overflow) = last.coefficient.addingReportingOverflow(term.coefficient)
                if overflow { throw .overflow }
                merged[merged.count - 1].coefficient = sum
            } else {
                merged.append(term)
            }
        }
        merged.removeAll { $0.coefficient == 0 }
        if merged.count > 64 { throw .tooManyTerms }
        return SizeExpression(terms: merged)
    }

    package func plus(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        try Self.normalised(terms + other.terms)
    }

    package func minus(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        try plus(other.times(SizeExpression(-1)))
    }

    package func times(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        var products: [Term] = []
        for a in terms {
            for b in other.terms {
                let (coefficient, overflow) = a.coefficient.multipliedReportingOverflow(by: b.coefficient)
                if overflow { throw .overflow }
                if a.atoms.count + b.atoms.count > 16 { throw .tooManyTerms }
                products.append(Term(atoms: (a.atoms + b.atoms).sorted(), coefficient: coefficient))
            }
            if products.count > 4096 { throw .tooManyTerms }
        }
        return try Self.normalised(products)
    }

    package func plus(_ other: Int) throws(Failure) -> SizeExpression { try plus(SizeExpression(other)) }
    package func minus(_ other: Int) throws(Failure) -> SizeExpression { try minus(SizeExpression(other)) }
    package func times(_ other: Int) throws(Failure) -> SizeExpression { try times(SizeExpression(other)) }

    /// Rounds towards negative infinity, as Python does.
    package func floorDivided(by other: SizeExpression) throws(Failure) -> SizeExpression {
        if let divisor = other.constant {
            if divisor == 0 { throw .divisionByZero }
            if divisor == 1 { return self }
            if let value = constant { return SizeExpression(try Self.floorDivide(value, divisor)) }
            // Exact division by a constant keeps the canonical form.
            let quotients = terms.compactMap { Self.divide($0, exactlyBy: Int64(divisor)) }
            if quotients.count == terms.count { return SizeExpression(terms: quotients) }
        } else if self == other {
            return .one
        } else if other.terms.count == 1, let quotient = dividedExactly(by: other.terms[0]) {
            return quotient
        }
        return SizeExpression(terms: [Term(atoms: [.floorDivide(self, other)], coefficient: 1)])
    }

    /// Nil when the division leaves a rest or overflows (the smallest int64 by -1).
    private static func divide(_ term: Term, exactlyBy divisor: Int64) -> Term? {
        let (quotient, overflow) = term.coefficient.dividedReportingOverflow(by: divisor)
        guard !overflow, quotient * divisor == term.coefficient else { return nil }
        return Term(atoms: term.atoms, coefficient: quotient)
    }

    private func dividedExactly(by divisor: Term) -> SizeExpression? {
        var quotients: [Term] = []
        for term in terms {
            guard let quotient = Self.divide(term, exactlyBy: divisor.coefficient) else { return nil }
            var atoms = term.atoms
            for atom in divisor.atoms {
                guard let index = atoms.firstIndex(of: atom) else { return nil }
                atoms.remove(at: index)
            }
            quotients.append(Term(atoms: atoms, coefficient: quotient.coefficient))
        }
        return SizeExpression(terms: quotients.sorted())
    }

    /// The remainder has the sign of the divisor, as in Python.
    package func modulo(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        if let divisor = other.constant {
            if divisor == 0 { throw .divisionByZero }
            if divisor == 1 { return .zero }
            if let value = constant {
                return SizeExpression(try Self.modulo(value, divisor))
            }
        }
        return SizeExpression(terms: [Term(atoms: [.modulo(self, other)], coefficient: 1)])
    }

    package func maximum(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        if self == other { return self }
        if let a = constant, let b = other.constant { return SizeExpression(max(a, b)) }
        return SizeExpression(terms: [Term(atoms: [.maximum(min(self, other), max(self, other))], coefficient: 1)])
    }

    package func minimum(_ other: SizeExpression) throws(Failure) -> SizeExpression {
        if self == other { return self }
        if let a = constant, let b = other.constant { return SizeExpression(min(a, b)) }
        return SizeExpression(terms: [Term(atoms: [.minimum(min(self, other), max(self, other))], coefficient: 1)])
    }

    private static func floorDivide(_ a: Int, _ b: Int) throws(Failure) -> Int {
        if b == 0 { throw .divisionByZero }
        let (quotient, overflow) = a.dividedReportingOverflow(by: b)
        if overflow { throw .overflow }
        return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient
    }

    private static func modulo(_ a: Int, _ b: Int) throws(Failure) -> Int {
        if b == 0 { throw .divisionByZero }
        if b == -1 { return 0 }
        let remainder = a % b
        return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder
    }

    // MARK: Postfix form

    private enum Opcode {
        static let constant: Int64 = 0, symbol: Int64 = 1, add: Int64 = 2, subtract: Int64 = 3, multiply: Int64 = 4
        static let floorDivide: Int64 = 5, modulo: Int64 = 6, maximum: Int64 = 7, minimum: Int64 = 8
    }

    /// How much arithmetic reading sizes may still cost.
    ///
    /// A product of sums has as many terms as both have together multiplied, and terms are sorted by what may be deep
    /// trees: sixty-four pairs can take a tenth of a second, and a file has room for many thousand such sizes.
    package struct Work: Sendable {
        /// In visits of an atom, some tens of nanoseconds each. An honest program takes a few for each size.
        private var left: Int
        package private(set) var isExhausted = false

        package init(limit: Int = 1 << 23) { left = limit }

        fileprivate mutating func take(_ cost: Int) throws(Failure) {
            guard !isExhausted, cost <= left else {
                isExhausted = true
                throw .tooManyTerms
            }
            left -= cost
        }
    }

    /// Atoms of the expression and of those inside them.
    private var weight: Int {
        terms.reduce(terms.count) { sum, term in
            term.atoms.reduce(sum) { sum, atom in
                switch atom {
                case .symbol: sum + 1
                case .floorDivide(let a, let b), .modulo(let a, let b), .maximum(let a, let b), .minimum(let a, let b):
                    sum + a.weight + b.weight + 1
                }
            }
        }
    }

    /// Reads the schemas' postfix form. Throws when it is not a program over `symbolCount` symbols.
    package init(postfix: [Int64], symbolCount: Int) throws(Failure) {
        var work = Work()
        try self.init(postfix: postfix, symbolCount: symbolCount, work: &work)
    }

    /// The same with what may be spent on all sizes of a file together.
    package init(postfix: [Int64], symbolCount: Int, work: inout Work) throws(Failure) {
        guard postfix.count % 2 == 0, !postfix.isEmpty else {
            throw .malformed("\(postfix.count) tokens, expected a positive even number")
        }
        guard postfix.count <= 128 else { throw .malformed("\(postfix.count / 2) pairs, at most 64 are allowed") }
        var stack: [SizeExpression] = []
        for index in stride(from: 0, to: postfix.count, by: 2) {
            let (opcode, operand) = (postfix[index], postfix[index + 1])
            switch opcode {
            case Opcode.constant:
                stack.append(SizeExpression(Int(operand)))
            case Opcode.symbol:
                guard operand >= 0, operand < Int64(symbolCount) else {
                    throw .malformed("symbol \(operand) of \(symbolCount)")
                }
                stack.append(.symbol(Int(operand)))
            case Opcode.add...Opcode.minimum:
                guard operand == 0 else { throw .malformed("opcode \(opcode) with operand \(operand), expected 0") }
                guard stack.count >= 2 else { throw .malformed("opcode \(opcode) needs two values") }
                let b = stack.removeLast()
                let a = stack.removeLast()
                let (inA, inB) = (a.weight, b.weight)
                // Products are as many as the terms multiplied, each with the atoms of both, sorted.
                try work.take(
                    4 * (opcode == Opcode.multiply ? a.terms.count * inB + b.terms.count * inA : inA + inB))
                switch opcode {
                case Opcode.add: stack.append(try a.plus(b))
                case Opcode.subtract: stack.append(try a.minus(b))
                case Opcode.multiply: stack.append(try a.times(b))
                case Opcode.floorDivide: stack.append(try a.floorDivided(by: b))
                case Opcode.modulo: stack.append(try a.modulo(b))
                case Opcode.maximum: stack.append(try a.maximum(b))
                default: stack.append(try a.minimum(b))
                }
            default:
                throw .malformed("unknown opcode \(opcode)")
            }
        }
        guard stack.count == 1 else { throw .malformed("\(stack.count) values left, expected 1") }
        self = stack[0]
    }

    /// Most numbers in a postfix array: 64 pairs.
    package static let maximumPostfixCount = 128

    /// Reads the postfix form that `postfix` gives and no other, in time proportional to its length.
    ///
    /// The bundle stores sizes in this form. Since products and sums of a canonical expression take one
    /// term at a time, no short array can make a reader multiply long sums with each other.
    package init(canonicalPostfix postfix: [Int64], symbolCount: Int) throws(Failure) {
        guard postfix.count % 2 == 0, !postfix.isEmpty else {
            throw .malformed("\(postfix.count) numbers, expected a positive even number")
        }
        guard postfix.count <= Self.maximumPostfixCount else {
            throw .malformed("\(postfix.count / 2) pairs, at most \(Self.maximumPostfixCount / 2) are allowed")
        }
        var stack: [SizeExpression] = []
        for index in stride(from: 0, to: postfix.count, by: 2) {
            let (opcode, operand) = (postfix[index], postfix[index + 1])
            if opcode == Opcode.constant {
                stack.append(SizeExpression(Int(operand)))
                continue
            }
            if opcode == Opcode.symbol {
                guard operand >= 0, operand < Int64(symbolCount) else {
                    throw .malformed("symbol \(operand) of \(symbolCount)")
                }
                stack.append(.symbol(Int(operand)))
                continue
            }
            guard opcode >= Opcode.add, opcode <= Opcode.minimum, opcode != Opcode.subtract else {
                throw .malformed("opcode \(opcode)")
            }
            guard operand == 0 else { throw .malformed("opcode \(opcode) with operand \(operand), expected 0") }
            guard stack.count >= 2 else { throw .malformed("opcode \(opcode) needs two values") }
            let b = stack.removeLast()
            let a = stack.removeLast()
            switch opcode {
            case Opcode.add:
                guard let last = a.terms.last, b.terms.count == 1,
                    last.atoms.lexicographicallyPrecedes(b.terms[0].atoms)
                else { throw .malformed("a sum is not canonical") }
                stack.append(SizeExpression(terms: a.terms + b.terms))
            case Opcode.multiply:
                guard a.terms.count == 1, b.terms.count == 1, b.terms[0].coefficient == 1, b.terms[0].atoms.count == 1,
                    !(a.terms[0].atoms.isEmpty && a.terms[0].coefficient == 1),
                    a.terms[0].atoms.last.map({ !(b.terms[0].atoms[0] < $0) }) ?? true,
                    a.terms[0].atoms.count < 16
                else { throw .malformed("a product is not canonical") }
                stack.append(
                    SizeExpression(terms: [
                        Term(atoms: a.terms[0].atoms + b.terms[0].atoms, coefficient: a.terms[0].coefficient)
                    ]))
            default:
                let atom: Atom =
                    switch opcode {
                    case Opcode.floorDivide: .floorDivide(a, b)
                    case Opcode.modulo: .modulo(a, b)
                    case Opcode.maximum: .maximum(a, b)
                    default: .minimum(a, b)
                    }
                let result =
                    switch opcode {
                    case Opcode.floorDivide: try a.floorDivided(by: b)
                    case Opcode.modulo: try a.modulo(b)
                    case Opcode.maximum: try a.maximum(b)
                    default: try a.minimum(b)
                    }
                guard result.terms == [Term(atoms: [atom], coefficient: 1)] else {
                    throw .malformed("opcode \(opcode) is not canonical")
                }
                stack.append(result)
            }
        }
        guard stack.count == 1 else { throw .malformed("\(stack.count) values left, expected 1") }
        self = stack[0]
    }

    /// Indices of the symbols that the value depends on.
    package func forEachSymbol(_ body: (Int) -> Void) {
        for term in terms {
            for atom in term.atoms {
                switch atom {
                case .symbol(let index): body(index)
                case .floorDivide(let a, let b), .modulo(let a, let b), .maximum(let a, let b), .minimum(let a, let b):
                    a.forEachSymbol(body)
                    b.forEachSymbol(body)
                }
            }
        }
    }

    /// The schemas' postfix form. Deterministic: equal expressions give equal arrays.
    package var postfix: [Int64] {
        if terms.isEmpty { return [Opcode.constant, 0] }
        var code: [Int64] = []
        for (termIndex, term) in terms.enumerated() {
            var isEmpty = true
            if term.coefficient != 1 || term.atoms.isEmpty {
                code += [Opcode.constant, term.coefficient]
                isEmpty = false
            }
            for atom in term.atoms {
                switch atom {
                case .symbol(let index): code += [Opcode.symbol, Int64(index)]
                case .floorDivide(let a, let b): code += a.postfix + b.postfix + [Opcode.floorDivide, 0]
                case .modulo(let a, let b): code += a.postfix + b.postfix + [Opcode.modulo, 0]
                case .maximum(let a, let b): code += a.postfix + b.postfix + [Opcode.maximum, 0]
                case .minimum(let a, let b): code += a.postfix + b.postfix + [Opcode.minimum, 0]
                }
                if !isEmpty { code += [Opcode.multiply, 0] }
                isEmpty = false
            }
            if termIndex > 0 { code += [Opcode.add, 0] }
        }
        return code
    }

    // MARK: Evaluation

    /// The value for one choice of symbols, checked at every operation.
    ///
    /// `symbols` has a value for every symbol of the program. A constant costs a few nanoseconds.
    package func evaluate(_ symbols: [Int]) throws(Failure) -> Int {
        if let constant { return constant }
        var sum = 0
        for term in terms {
            var product = Int(term.coefficient)
            for atom in term.atoms {
                let factor: Int
                switch atom {
                case .symbol(let index): factor = symbols[index]
                case .floorDivide(let a, let b): factor = try Self.floorDivide(a.evaluate(symbols), b.evaluate(symbols))
                case .modulo(let a, let b): factor = try Self.modulo(a.evaluate(symbols), b.evaluate(symbols))
                case .maximum(let a, let b): factor = max(try a.evaluate(symbols), try b.evaluate(symbols))
                case .minimum(let a, let b): factor = min(try a.evaluate(symbols), try b.evaluate(symbols))
                }
                let (value, overflow) = product.multipliedReportingOverflow(by: factor)
                if overflow { throw .overflow }
                product = value
            }
            let (value, overflow) = sum.addingReportingOverflow(product)
            if overflow { throw .overflow }
            sum = value
        }
        return sum
    }

    /// Text for people and compiler tests, with symbols by name: `2*query + 1`.
    package func description(symbolNames: [String]) -> String {
        if terms.isEmpty { return "0" }
        func text(_ atom: Atom) -> String {
            func inner(_ e: SizeExpression) -> String { e.description(symbolNames: symbolNames) }
            switch atom {
            case .symbol(let index): return index < symbolNames.count ? symbolNames[index] : "s\(index)"
            case .floorDivide(let a, let b): return "floordiv(\(inner(a)), \(inner(b)))"
            case .modulo(let a, let b): return "mod(\(inner(a)), \(inner(b)))"
            case .maximum(let a, let b): return "max(\(inner(a)), \(inner(b)))"
            case .minimum(let a, let b): return "min(\(inner(a)), \(inner(b)))"
            }
        }
        // Constants last, as people write them.
        let ordered = terms.filter { !$0.atoms.isEmpty } + terms.filter { $0.atoms.isEmpty }
        var result = ""
        for term in ordered {
            let factors = term.atoms.map(text)
            let magnitude = term.coefficient.magnitude
            var piece = factors.joined(separator: "*")
            if factors.isEmpty {
                piece = "\(magnitude)"
            } else if magnitude != 1 {
                piece = "\(magnitude)*\(piece)"
            }
            if result.isEmpty {
                result = term.coefficient < 0 ? "-\(piece)" : piece
            } else {
                result += term.coefficient < 0 ? " - \(piece)" : " + \(piece)"
            }
        }
        return result
    }
}
