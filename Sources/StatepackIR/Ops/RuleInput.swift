package import StatepackBundle
package import StatepackDiagnostics

/// Why a rule refuses a node. The verifier adds function, node and source line.
package struct RuleFailure: Error, Hashable, Sendable {
    package var code: Diagnostic.Code
    package var message: String
    package var expected: String?
    package var found: String?

    package init(_ code: Diagnostic.Code, _ message: String, expected: String? = nil, found: String? = nil) {
        self.code = code
        self.message = message
        self.expected = expected
        self.found = found
    }

    /// As `Diagnostic.internalFault`.
    package static func internalFault(_ detail: String) -> RuleFailure {
        RuleFailure(.internalError, Diagnostic.internalFault(detail).message, found: detail)
    }
}

/// A Python number as an operator's argument.
package enum ScalarArgument: Hashable, Sendable {
    case flag(Bool)
    /// May depend on symbols.
    case integer(SizeExpression)
    case number(Double)

    /// The type torch gives a tensor made of it alone.
    package var scalarType: ScalarType {
        switch self {
        case .flag: .bool
        case .integer: .int64
        case .number: .float32
        }
    }
}

/// What a rule sees: a node's arguments with the types of the values behind them.
///
/// Accessors throw `invalidArgument` when the argument is missing or of another kind.
package struct RuleInput {
    package let node: Node
    package let values: [ValueType]
    package let bounds: SizeBounds
    let symbolNames: [String]

    package init(node: Node, values: [ValueType], symbols: [Program.Symbol], bounds: SizeBounds) {
        self.node = node
        self.values = values
        self.bounds = bounds
        symbolNames = symbols.map(\.name)
    }

    /// The types that the program records for the results.
    package var resultTypes: [ValueType] { node.results.map { values[$0.index] } }

    package func text(_ type: ValueType) -> String { type.description(symbolNames: symbolNames) }

    package func text(_ shape: [SizeExpression]) -> String {
        "[\(shape.map { $0.description(symbolNames: symbolNames) }.joined(separator: ", "))]"
    }

    package func text(_ size: SizeExpression) -> String { size.description(symbolNames: symbolNames) }

    private func wrongKind(_ name: String, _ expected: String) -> RuleFailure {
        guard let value = node[name] else {
            return RuleFailure.internalFault("argument `\(name)` is missing, expected \(expected)")
        }
        return RuleFailure(
            .invalidArgument, "argument `\(name)` has the wrong kind", expected: expected, found: value.kind)
    }

    package func has(_ name: String) -> Bool {
        guard let value = node[name] else { return false }
        return value != .none
    }

    package func tensor(_ name: String) throws(RuleFailure) -> ValueType {
        guard case .tensor(let id)? = node[name] else { throw wrongKind(name, "a tensor") }
        return values[id.index]
    }

    package func optionalTensor(_ name: String) throws(RuleFailure) -> ValueType? {
        switch node[name] {
        case .tensor(let id): return values[id.index]
        case ArgumentValue.none?: return nil
        default: throw wrongKind(name, "a tensor or none")
        }
    }

    package func tensorList(_ name: String) throws(RuleFailure) -> [ValueType?] {
        guard case .tensors(let ids)? = node[name] else { throw wrongKind(name, "tensors") }
        return ids.map { $0.map { values[$0.index] } }
    }

    package func size(_ name: String) throws(RuleFailure) -> SizeExpression {
        guard case .size(let size)? = node[name] else { throw wrongKind(name, "a size") }
        return size
    }

    package func optionalSize(_ name: String) throws(RuleFailure) -> SizeExpression? {
        switch node[name] {
        case .size(let size): return size
        case ArgumentValue.none?: return nil
        default: throw wrongKind(name, "a size or none")
        }
    }

    /// A size without symbols.
    package func integer(_ name: String) throws(RuleFailure) -> Int {
        guard case .size(let size)? = node[name], let integer = size.constant else {
            throw wrongKind(name, "an integer")
        }
        return integer
    }

    package func sizes(_ name: String) throws(RuleFailure) -> [SizeExpression] {
        guard case .sizes(let sizes)? = node[name] else { throw wrongKind(name, "sizes") }
        return sizes
    }

    /// Sizes without symbols; a single size counts as a list of one, none as the empty list.
    package func integers(_ name: String) throws(RuleFailure) -> [Int] {
        let sizes: [SizeExpression]
        switch node[name] {
        case .sizes(let list): sizes = list
        case .size(let size): sizes = [size]
        case ArgumentValue.none?: sizes = []
        default: throw wrongKind(name, "integers")
        }
        var result: [Int] = []
        for size in sizes {
            guard let integer = size.constant else { throw wrongKind(name, "integers") }
            result.append(integer)
        }
        return result
    }

    package func flag(_ name: String) throws(RuleFailure) -> Bool {
        switch node[name] {
        case .flag(let flag): return flag
        case .size(let size) where size == .zero || size == .one: return size == .one
        default: throw wrongKind(name, "true or false")
        }
    }

    package func number(_ name: String) throws(RuleFailure) -> Double {
        switch node[name] {
        case .number(let number): return number
        case .size(let size):
            guard let integer = size.constant else { throw wrongKind(name, "a number") }
            return Double(integer)
        default: throw wrongKind(name, "a number")
        }
    }

    package func optionalNumber(_ name: String) throws(RuleFailure) -> Double? {
        node[name] == ArgumentValue.none ? nil : try number(name)
    }

    package func scalar(_ name: String) throws(RuleFailure) -> ScalarArgument {
        switch node[name] {
        case .number(let number): return .number(number)
        case .size(let size): return .integer(size)
        case .flag(let flag): return .flag(flag)
        default: throw wrongKind(name, "a number")
        }
    }

    package func optionalScalar(_ name: String) throws(RuleFailure) -> ScalarArgument? {
        node[name] == ArgumentValue.none ? nil : try scalar(name)
    }

    package func optionalScalarType(_ name: String) throws(RuleFailure) -> ScalarType? {
        switch node[name] {
        case .scalarType(let type): return type
        case ArgumentValue.none?: return nil
        default: throw wrongKind(name, "a scalar type or none")
        }
    }

    package func textArgument(_ name: String) throws(RuleFailure) -> String {
        guard case .text(let text)? = node[name] else { throw wrongKind(name, "text") }
        return text
    }

    /// An axis of a tensor of that rank, counted from the end when negative. Rank 0 has the axes 0 and -1, as in torch.
    package func axis(_ axis: Int, rank: Int, of name: String = "dim") throws(RuleFailure) -> Int {
        let count = max(rank, 1)
        guard axis >= -count, axis < count else {
            throw RuleFailure(
                .invalidOperands, "axis `\(name)` is out of range", expected: "\(-count)...\(count - 1)",
                found: "\(axis)")
        }
        return axis < 0 ? axis + count : axis
    }

    package func axis(named name: String, rank: Int) throws(RuleFailure) -> Int {
        try axis(integer(name), rank: rank, of: name)
    }

    /// A size computation whose failure is the program's.
    package func checked(
        _ body: () throws(SizeExpression.Failure) -> SizeExpression
    ) throws(RuleFailure) -> SizeExpression {
        do {
            return try body()
        } catch {
            throw RuleFailure(.invalidOperands, "a size cannot be computed: \(error)")
        }
    }

    package func product(_ shape: [SizeExpression]) throws(RuleFailure) -> SizeExpression {
        var result = SizeExpression.one
        for size in shape { result = try checked { () throws(SizeExpression.Failure) in try result.times(size) } }
        return result
    }

    package func areEqual(_ a: [SizeExpression], _ b: [SizeExpression]) -> Bool {
        a.count == b.count && zip(a, b).allSatisfy { bounds.areProvablyEqual($0, $1) }
    }

    package func require(
        _ condition: Bool, _ message: @autoclosure () -> String, expected: @autoclosure () -> String? = nil,
        found: @autoclosure () -> String? = nil
    ) throws(RuleFailure) {
        if !condition { throw RuleFailure(.invalidOperands, message(), expected: expected(), found: found()) }
    }
}

extension ArgumentValue {
    /// What people call it.
    package var kind: String {
        switch self {
        case .tensor: "a tensor"
        case .tensors: "tensors"
        case .size: "a size"
        case .sizes: "sizes"
        case .number: "a number"
        case .numbers: "numbers"
        case .flag: "true or false"
        case .scalarType: "a scalar type"
        case .text: "text"
        case .none: "none"
        }
    }
}

/// Rules of the ATen operators, by the `rule` of their ops.json row.
package enum AtenRules {}

/// Rules of the core operators: kernels and views, arguments as schemas/ops.json and DecomposeOps say.
package enum CoreRules {}
