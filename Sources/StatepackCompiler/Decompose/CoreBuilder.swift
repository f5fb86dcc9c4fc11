internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// Builds a function of core operators beside one of ATen operators.
///
/// Values of inputs, states and constants keep their ids; results of ATen nodes are mapped to values of the new
/// nodes. The result type of each new node is what its rule derives, so a wrong lowering fails at once.
final class CoreBuilder {
    let symbols: [Program.Symbol]
    let bounds: SizeBounds
    private(set) var scalars: ScalarConstants
    private var function: Function
    private let original: Function
    private var replacements: [ValueID: ValueID] = [:]
    private var scalarValues: [Int: ValueID] = [:]
    private var source: Int?
    /// Values that leave the function, which a shared constant must not stand for.
    private let leaving: Set<ValueID>

    /// What lowerings read: the node with its arguments, typed by the values of the original function.
    private(set) var input: RuleInput

    init(_ function: Function, of program: Program, scalars: ScalarConstants) {
        original = function
        self.function = function
        self.function.nodes = []
        self.scalars = scalars
        symbols = program.symbols
        bounds = SizeBounds(program.symbols)
        leaving = Set(function.outputs.map(\.value) + function.states.map(\.after))
        input = RuleInput(
            node: Node("", [], results: []), values: function.values, symbols: program.symbols, bounds: bounds)
    }

    // MARK: Whole nodes

    func lower(_ node: Node) throws(RuleFailure) {
        input = RuleInput(node: node, values: original.values, symbols: symbols, bounds: bounds)
        source = node.source
        let results = try lowered(node)
        for (result, value) in zip(node.results, results) {
            let (expected, found) = (original[result], self[value])
            guard expected.scalarType == found.scalarType, input.areEqual(expected.shape, found.shape) else {
                throw RuleFailure.internalFault(
                    "DecomposeOps gives \(input.text(found)) for \(input.text(expected))")
            }
            replacements[result] = value
        }
    }

    /// Leaves the results of a node undefined, so that others can still be looked at.
    func skip(_ node: Node) {
        for result in node.results where replacements[result] == nil {
            replacements[result] = function.addValue(original[result])
        }
    }

    func finish() -> Function {
        func replaced(_ id: ValueID) -> ValueID { replacements[id] ?? id }
        for index in function.outputs.indices {
            function.outputs[index].value = replaced(original.outputs[index].value)
        }
        for index in function.states.indices { function.states[index].after = replaced(original.states[index].after) }
        var used = Set(function.outputs.map(\.value) + function.states.map(\.after))
        var kept: [Node] = []
        for node in function.nodes.reversed() where node.results.contains(where: used.contains) {
            used.formUnion(node.operands)
            kept.append(node)
        }
        function.nodes = kept.reversed()
        function.constants.removeAll { !used.contains($0.value) }
        return function.renumbered()
    }

    // MARK: Values

    subscript(id: ValueID) -> ValueType { function[id] }

    var resultType: ValueType { input.resultTypes[0] }

    /// Whether the node's result is an output or the new value of a state.
    var leavesFunction: Bool { input.node.results.contains(where: leaving.contains) }

    private func mapped(_ id: ValueID) -> ValueID { replacements[id] ?? id }

    func operand(_ name: String) throws(RuleFailure) -> ValueID {
        _ = try input.tensor(name)
        guard case .tensor(let id)? = input.node[name] else { return ValueID(0) }
        return mapped(id)
    }

    func optionalOperand(_ name: String) throws(RuleFailure) -> ValueID? {
        try input.optionalTensor(name) == nil ? nil : try operand(name)
    }

    func operandList(_ name: String) throws(RuleFailure) -> [ValueID?] {
        _ = try input.tensorList(name)
        guard case .tensors(let ids)? = input.node[name] else { return [] }
        return ids.map { $0.map(mapped) }
    }

    /// A tensor or number as a value of that scalar type.
    func operand(_ name: String, as type: ScalarType) throws(RuleFailure) -> ValueID {
        if case .tensor? = input.node[name] { return try cast(operand(name), to: type) }
        return try scalar(input.scalar(name), as: type)
    }

    // MARK: Nodes

    /// Appends a node and gives its result, of the type that its rule derives. `type` is for operators whose
    /// result the operands do not determine.
    func emit(_ op: String, _ arguments: [(String, ArgumentValue)], type: ValueType? = nil) throws(RuleFailure)
        -> ValueID
    {
        guard
            let rule = OperatorTable.kernels[op]?.rule ?? OperatorTable.views[op]?.rule
                ?? OperatorTable.scatters[op]?.rule
        else { throw RuleFailure.internalFault("no core operator `\(op)`") }
        let result = function.addValue(type ?? ValueType(.bool, []))
        let node = Node(
            op, arguments.map { Node.Argument($0.0, $0.1) }, results: [result], source: source)
        do {
            let types = try rule(RuleInput(node: node, values: function.values, symbols: symbols, bounds: bounds))
            function[result] = types[0]
        } catch {
            function.values.removeLast()
            throw error
        }
        function.nodes.append(node)
        return result
    }

    func emit(_ op: String, _ operands: KeyValuePairs<String, ValueID>) throws(RuleFailure) -> ValueID {
        try emit(op, operands.map { ($0.key, .tensor($0.value)) })
    }

    /// A copy with another scalar type; the value itself when it has the type already.
    func cast(_ id: ValueID, to type: ScalarType) throws(RuleFailure) -> ValueID {
        if self[id].scalarType == type { return id }
        return try copy(id, as: type)
    }

    func copy(_ id: ValueID, as type: ScalarType? = nil) throws(RuleFailure) -> ValueID {
        try emit("copy", [("a", .tensor(id))], type: ValueType(type ?? self[id].scalarType, self[id].shape))
    }

    // MARK: Numbers

    func scalar(_ scalar: ScalarArgument, as type: ScalarType) throws(RuleFailure) -> ValueID {
        if case .integer(let size) = scalar, size.constant == nil { return try sizeValue(size, as: type) }
        let tensor = try scalars.index(of: scalar, as: type)
        if let known = scalarValues[tensor] { return known }
        let id = function.addValue(ValueType(type, []))
        function.constants.append(.init(value: id, tensor: tensor))
        scalarValues[tensor] = id
        return id
    }

    func scalar(_ number: Int, as type: ScalarType) throws(RuleFailure) -> ValueID {
        try scalar(.integer(SizeExpression(number)), as: type)
    }

    /// A symbolic size as a 0-dimensional tensor: the last of 0, 1, … size.
    private func sizeValue(_ size: SizeExpression, as type: ScalarType) throws(RuleFailure) -> ValueID {
        if bounds.isProvablyNonnegative(size) {
            let count = try input.checked { () throws(SizeExpression.Failure) in try size.plus(1) }
            let numbers = try emit(
                "arange", [("start", .tensor(scalar(0, as: type))), ("step", .tensor(scalar(1, as: type)))],
                type: ValueType(type, [count]))
            return try emit("view.select", [("a", .tensor(numbers)), ("dim", .size(.zero)), ("index", .size(size))])
        }
        guard bounds.isProvablyAtMost(size, .zero) else {
            throw RuleFailure(
                .unsupportedArgument, "the sign of a size that is used as a number depends on a symbol",
                found: input.text(size))
        }
        let opposite = try input.checked { () throws(SizeExpression.Failure) in try SizeExpression.zero.minus(size) }
        return try emit("neg", ["a": sizeValue(opposite, as: type)])
    }

    // MARK: Views; each gives its operand where it would change nothing

    func reshape(_ id: ValueID, to shape: [SizeExpression]) throws(RuleFailure) -> ValueID {
        if self[id].shape == shape { return id }
        return try emit("view.reshape", [("a", .tensor(id)), ("shape", .sizes(shape))])
    }

    func permute(_ id: ValueID, _ dims: [Int]) throws(RuleFailure) -> ValueID {
        if dims == Array(dims.indices) { return id }
        return try emit("view.permute", [("a", .tensor(id)), ("dims", .sizes(dims.map { SizeExpression($0) }))])
    }

    func expand(_ id: ValueID, to shape: [SizeExpression]) throws(RuleFailure) -> ValueID {
        if self[id].shape == shape { return id }
        return try emit("view.expand", [("a", .tensor(id)), ("shape", .sizes(shape))])
    }

    func slice(_ id: ValueID, _ slice: NormalisedSlice) throws(RuleFailure) -> ValueID {
        if slice.start == .zero, slice.step == 1, slice.end == self[id].shape[slice.axis] { return id }
        return try emit("view.slice", [("a", .tensor(id))] + arguments(slice))
    }

    func arguments(_ slice: NormalisedSlice) -> [(String, ArgumentValue)] {
        [
            ("dim", .size(SizeExpression(slice.axis))), ("start", .size(slice.start)), ("end", .size(slice.end)),
            ("step", .size(SizeExpression(slice.step))),
        ]
    }
}
