import StatepackBundle

/// Reads the text that `SizeExpression.description` writes: `2*query + 1`, `floordiv(query, 2)`.
///
/// People edit contracts by hand, so `query*2` and `1 + 2*query` are read as well and mean the same.
package struct SizeText {
    package struct Failure: Error, Hashable {
        package var message: String
        /// Set when a name is neither a symbol nor a function.
        package var unknownName: String?
    }

    /// What sixty-four terms take, and some more.
    private static let maximumTextBytes = 4096

    private let symbolNames: [String]
    private var rest: Substring
    private var depth = 0

    /// Cost: linear, at most 16 levels of nesting.
    package static func parse(_ text: String, symbolNames: [String]) throws(Failure) -> SizeExpression {
        // Each sum sorts its terms, so that the cost grows faster than the text.
        if text.utf8.count > maximumTextBytes {
            throw Failure(message: "it is longer than \(maximumTextBytes) bytes")
        }
        var parser = SizeText(symbolNames: symbolNames, rest: text[...])
        let expression = try parser.sum()
        if !parser.rest.isEmpty { throw Failure(message: "unexpected `\(parser.rest)`") }
        return expression
    }

    private init(symbolNames: [String], rest: Substring) {
        self.symbolNames = symbolNames
        self.rest = rest
    }

    private mutating func take(_ character: Character) -> Bool {
        rest = rest.drop { $0 == " " }
        guard rest.first == character else { return false }
        rest.removeFirst()
        rest = rest.drop { $0 == " " }
        return true
    }

    private func arithmetic(
        _ body: () throws(SizeExpression.Failure) -> SizeExpression
    ) throws(Failure) -> SizeExpression {
        do {
            return try body()
        } catch {
            switch error {
            case .divisionByZero: throw Failure(message: "division by zero")
            default: throw Failure(message: "the expression is too large")
            }
        }
    }

    private mutating func sum() throws(Failure) -> SizeExpression {
        depth += 1
        defer { depth -= 1 }
        if depth > 16 { throw Failure(message: "the expression is nested too deeply") }
        var result = take("-") ? try negated(product()) : try product()
        while true {
            if take("+") {
                let term = try product()
                result = try arithmetic { () throws(SizeExpression.Failure) in try result.plus(term) }
            } else if take("-") {
                let term = try product()
                result = try arithmetic { () throws(SizeExpression.Failure) in try result.minus(term) }
            } else {
                return result
            }
        }
    }

    private func negated(_ expression: SizeExpression) throws(Failure) -> SizeExpression {
        try arithmetic { () throws(SizeExpression.Failure) in try expression.times(-1) }
    }

    private mutating func product() throws(Failure) -> SizeExpression {
        var result = try factor()
        while take("*") {
            let next = try factor()
            result = try arithmetic { () throws(SizeExpression.Failure) in try result.times(next) }
        }
        return result
    }

    private mutating func factor() throws(Failure) -> SizeExpression {
        rest = rest.drop { $0 == " " }
        if take("(") {
            let inner = try sum()
            if !take(")") { throw Failure(message: "`)` is missing") }
            return inner
        }
        let digits = rest.prefix { $0.isASCII && $0.isNumber }
        if !digits.isEmpty {
            rest = rest.dropFirst(digits.count).drop { $0 == " " }
            guard let value = Int(digits) else { throw Failure(message: "the number does not fit 64 bits") }
            return SizeExpression(value)
        }
        // What Python takes for an identifier.
        let scalars = rest.unicodeScalars.prefix { $0 == "_" || $0.properties.isXIDContinue }
        let name = String(scalars)
        if name.isEmpty { throw Failure(message: rest.isEmpty ? "it ends too early" : "unexpected `\(rest)`") }
        rest = rest[scalars.endIndex...].drop { $0 == " " }
        let isFunction = ["floordiv", "mod", "max", "min"].contains(name)
        // A symbol may have the name of a function; only a function stands before a bracket.
        if !isFunction || rest.first != "(", let index = symbolNames.firstIndex(of: name) { return .symbol(index) }
        guard isFunction else { throw Failure(message: "`\(name)` is not a symbol", unknownName: name) }
        guard take("(") else { throw Failure(message: "`(` is missing after `\(name)`") }
        let a = try sum()
        guard take(",") else { throw Failure(message: "`\(name)` takes two sizes") }
        let b = try sum()
        guard take(")") else { throw Failure(message: "`)` is missing") }
        return try arithmetic { () throws(SizeExpression.Failure) in
            switch name {
            case "floordiv": try a.floorDivided(by: b)
            case "mod": try a.modulo(b)
            case "max": try a.maximum(b)
            default: try a.minimum(b)
            }
        }
    }
}
