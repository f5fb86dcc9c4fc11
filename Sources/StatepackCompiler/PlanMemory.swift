package import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// Lowers a program to instructions over storage: which bytes each value is, and how long they live.
///
///     before   %4: float32[query, 8, 64] = view.reshape(a=%3, shape={query, 8, 64})
///              %5: float32[8, query, 64] = view.permute(a=%4, dims={1, 0, 2})
///              %6: float32[8, query, 64] = mul(a=%5, b=%2)
///              output %6 "scaled"
///     after    mul(view of %3: strides {64, 512, 1}, %2) -> output "scaled"
///
/// A view costs nothing: it becomes strides and an offset over the value it looks at. A reshape of elements
/// that do not lie in the right order, or cannot be proved to at convert time, is preceded by a copy. What
/// an instruction computes afresh goes straight into an output, or into the state that a `write` right
/// behind it names; attention whose result is permuted and then reshaped is computed in the order of the reshape,
/// which is then a view (the fusion `output-layout`); an output that is an input, a weight, a state or a part of something is copied at the
/// end. Instructions keep the order of the nodes. Offsets in scratch memory are the runtime's: they depend
/// on sizes.
package struct PlanMemory: Sendable {
    package static let name = "PlanMemory"

    private let choosesLayouts: Bool

    /// - Parameter choosesLayouts: Whether a result may lie in another order than its axes have.
    package init(choosesLayouts: Bool = true) { self.choosesLayouts = choosesLayouts }

    /// The program with all of its tensors, row-major and without offsets (`PackWeights` lays them out).
    package func plan(_ program: Program, report: inout CompilationReport) throws -> BundleProgram {
        var kernels: [String: Int] = [:]
        var kernelNames: [String] = []
        var functions: [BundleProgram.Function] = []
        var findings: [Diagnostic] = []
        for function in program.functions {
            do {
                var plan = try FunctionPlan(function, of: program, choosesLayouts: choosesLayouts)
                try plan.lower()
                functions.append(
                    try plan.bundleFunction { name in
                        if let known = kernels[name] { return known }
                        kernels[name] = kernelNames.count
                        kernelNames.append(name)
                        return kernelNames.count - 1
                    })
                for (counter, amount) in plan.counters { report.count(Self.name, counter, by: amount) }
            } catch let list as DiagnosticList {
                findings += list.diagnostics
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        return BundleProgram(
            producer: program.producer, programDigest: program.digest,
            symbols: program.symbols.map { .init(name: $0.name, min: $0.min, max: $0.max) },
            tensors: program.tensors.map {
                .init(
                    name: $0.name, scalarType: $0.scalarType, shape: $0.shape, layout: .rowMajor, offset: 0, length: 0)
            },
            states: program.states.map {
                .init(
                    name: $0.name, sourceName: $0.sourceName, scalarType: $0.type.scalarType, shape: $0.type.shape,
                    initialValue: $0.initialValue, initialDigest: $0.initialDigest)
            },
            functions: functions, kernels: kernelNames)
    }
}

/// The work on one function.
private struct FunctionPlan {
    /// The storage that a value's bytes are in.
    enum Root: Hashable {
        case input(Int)
        case state(Int)
        case tensor(Int)
        /// What an instruction computes afresh, by the value it makes.
        case fresh(ValueID)
    }

    struct Location: Hashable {
        var root: Root
        var placement: Placement
    }

    struct Step {
        var kernel: String
        var node: Node
        var operands: [ValueID?]
        var results: [ValueID]
    }

    let function: Function
    let program: Program
    var types: [ValueType]
    var locations: [ValueID: Location] = [:]
    var steps: [Step] = []
    var uses: [ValueID: Int] = [:]
    /// A node that uses a value; the only one where `uses` says so.
    var user: [ValueID: Node] = [:]
    let choosesLayouts: Bool
    /// Fresh values that an output's memory holds.
    var outputOf: [ValueID: Int] = [:]
    /// What each output's memory is filled with: the value itself, or the result of a final copy.
    var outputValues: [ValueID] = []
    var counters: [String: Int] = [:]

    init(_ function: Function, of program: Program, choosesLayouts: Bool) throws {
        self.function = function
        self.program = program
        self.choosesLayouts = choosesLayouts
        types = function.values
        for (index, input) in function.inputs.enumerated() { try define(input.value, .input(index)) }
        for (index, state) in function.states.enumerated() { try define(state.before, .state(index)) }
        for constant in function.constants { try define(constant.value, .tensor(constant.tensor)) }
        for id in function.nodes.flatMap(\.operands) + function.outputs.map(\.value) { uses[id, default: 0] += 1 }
        for node in function.nodes { for id in node.operands { user[id] = node } }
    }

    private mutating func define(_ id: ValueID, _ root: Root) throws {
        locations[id] = Location(root: root, placement: try Placement(whole: types[id.index].shape))
    }

    // MARK: Steps

    mutating func lower() throws {
        for node in function.nodes {
            if node.isView {
                try lowerView(node)
            } else if node.op == "write" {
                try lowerWrite(node)
            } else if let signature = node.signature {
                for (position, result) in node.results.enumerated() {
                    if node.isInPlace, position == 0 {
                        locations[result] = try location(of: node.tensor("a"))
                    } else if let chosen = try chosenLayout(of: node) {
                        locations[result] = chosen
                    } else {
                        try define(result, .fresh(result))
                    }
                }
                steps.append(
                    Step(
                        kernel: node.op, node: node, operands: try operands(of: node, signature),
                        results: node.results))
            } else {
                throw Diagnostic(
                    .unsupportedPlan, "no kernel implements `\(node.op)`",
                    at: "function `\(function.name)`\(place(node))")
            }
        }
        try placeOutputs()
    }

    private func location(of id: ValueID) throws -> Location {
        guard let location = locations[id] else {
            throw Diagnostic.internalFault(
                "value \(id.index) is used before it is computed", at: "function `\(function.name)`")
        }
        return location
    }

    /// Where attention puts its result when that is permuted and then reshaped in a way that takes a copy, but
    /// does not when the result lies in the permuted order. Its kernel writes rows wherever they are.
    private mutating func chosenLayout(of node: Node) throws -> Location? {
        guard choosesLayouts, node.op == "sdpa", let result = node.results.first, uses[result] == 1,
            let permute = user[result], permute.op == "view.permute", let permuted = permute.results.first,
            uses[permuted] == 1, let reshape = user[permuted], reshape.op == "view.reshape"
        else { return nil }
        let (type, turned) = (types[result.index], types[permuted.index])
        let shape = types[reshape.results[0].index].shape
        let plain = try Placement(whole: type.shape).applying(permute, shape: turned.shape)
        let base = try Placement(whole: turned.shape)
        guard try plain?.applying(reshape, shape: shape) == nil, try base.applying(reshape, shape: shape) != nil
        else { return nil }
        let dims = try permute.sizes("dims").map { try permute.constant($0) }
        let back = dims.indices.map { axis in SizeExpression(dims.firstIndex(of: axis)!) }
        guard let placement = try base.applying(permute.replacing("dims", by: .sizes(back)), shape: type.shape)
        else { return nil }
        types.append(turned)
        count("chosen-layouts")
        return Location(root: .fresh(ValueID(types.count - 1)), placement: placement)
    }

    private mutating func lowerView(_ node: Node) throws {
        let source = try node.tensor("a")
        let result = node.results[0]
        let from = try location(of: source)
        if let placement = try from.placement.applying(node, shape: types[result.index].shape) {
            locations[result] = Location(root: from.root, placement: placement)
            return
        }
        // Only a reshape can fail; of a row-major copy it cannot.
        let copied = try copy(source, node)
        let placement = try Placement(whole: types[source.index].shape)
        guard let reshaped = try placement.applying(node, shape: types[result.index].shape) else {
            let names = program.symbolNames
            throw Diagnostic(
                .unsupportedPlan, "a reshape cannot be proved to keep the number of elements",
                at: "function `\(function.name)`\(place(node))",
                expected: types[source.index].description(symbolNames: names),
                found: types[result.index].description(symbolNames: names))
        }
        locations[result] = Location(root: .fresh(copied), placement: reshaped)
        count("copied-reshapes")
    }

    private mutating func copy(_ source: ValueID, _ node: Node) throws -> ValueID {
        types.append(types[source.index])
        let result = ValueID(types.count - 1)
        try define(result, .fresh(result))
        steps.append(Step(kernel: "copy", node: node, operands: [source], results: [result]))
        return result
    }

    private mutating func lowerWrite(_ node: Node) throws {
        let (destination, source) = (try node.tensor("destination"), try node.tensor("source"))
        let target = try location(of: destination)
        locations[node.results[0]] = target
        if try produces(source, into: target, of: destination) {
            locations[source] = target
            count("produced-in-place")
        } else {
            steps.append(Step(kernel: "write", node: node, operands: [source], results: [destination]))
        }
    }

    /// True when the last step computes `source` for this write alone, and may do so in the destination.
    private func produces(_ source: ValueID, into target: Location, of destination: ValueID) throws -> Bool {
        guard let last = steps.last, last.results == [source], last.kernel == last.node.op,
            locations[source]?.root == .fresh(source), uses[source] == 1,
            types[source.index] == types[destination.index]
        else { return false }
        // Kernels that are not point-wise may count on a row-major result.
        guard try last.node.signature?.isPointwise == true || target.placement.view.isContiguous() else { return false }
        return last.node.canProduce(
            intoPlaceOf: { locations[$0] == target },
            overlapping: {
                guard let operand = locations[$0], operand.root == target.root else { return false }
                return !operand.placement.isDisjoint(from: target.placement)
            })
    }

    private func operands(of node: Node, _ signature: KernelSignature) throws -> [ValueID?] {
        var result: [ValueID?] = []
        for operand in signature.operands {
            switch (operand, node[operand.name]) {
            case (_, .tensor(let id)): result.append(id)
            case (.optional, .some(.none)), (.optional, nil): result.append(nil)
            case (.list, .tensors(let ids)): result += ids
            default:
                throw Diagnostic.internalFault(
                    "operand `\(operand.name)` of `\(node.op)` is missing",
                    at: "function `\(function.name)`\(place(node))")
            }
        }
        return result
    }

    /// What is computed afresh for an output alone is computed in the output's memory; the rest is copied
    /// there at the end, when every write is done.
    private mutating func placeOutputs() throws {
        for (index, output) in function.outputs.enumerated() {
            let location = try location(of: output.value)
            if case .fresh(let root) = location.root, outputOf[root] == nil,
                try isWhole(location.placement.view, of: types[root.index])
            {
                outputOf[root] = index
                outputValues.append(output.value)
            } else {
                let node = Node("copy", [], results: [])
                let copied = try copy(output.value, node)
                outputOf[copied] = index
                outputValues.append(copied)
                count("copied-outputs")
            }
        }
    }

    /// True when the view has all elements of the root, in order.
    private func isWhole(_ view: StridedView, of root: ValueType) throws -> Bool {
        guard view.offset == .zero, try view.isContiguous() else { return false }
        return try StridedView.elementCount(view.shape) == StridedView.elementCount(root.shape)
    }

    // MARK: The bundle's tables

    mutating func bundleFunction(kernel: (String) -> Int) throws -> BundleProgram.Function {
        var table = ValueTable()
        let inputs = function.inputs.enumerated().map { index, input in
            BundleProgram.NamedValue(
                name: input.name, value: table.add(types[input.value.index], .input(index), for: .input(index)))
        }
        let outputs = function.outputs.enumerated().map { index, output in
            BundleProgram.NamedValue(
                name: output.name, value: table.add(types[output.value.index], .output(index), for: nil))
        }
        for (root, index) in outputOf { table.bases[.fresh(root)] = outputs[index].value }
        let states = function.states.enumerated().map { index, use in
            BundleProgram.FunctionState(
                state: use.state, value: table.add(types[use.before.index], .state(index), for: .state(index)),
                writtenBy: use.writtenBy, copiedBytes: use.copiedBytes, copyReason: use.copyReason)
        }
        var instructions: [BundleProgram.Instruction] = []
        for step in steps {
            let operands = try step.operands.map {
                try $0.map { try value(of: $0, at: instructions.count, in: &table) }
            }
            let results = try step.results.map { try value(of: $0, at: instructions.count, in: &table) }
            var ints: [SizeExpression] = []
            var floats: [Double] = []
            // A copy that stands for another node has none.
            if step.node.op == "write", step.kernel == "write" {
                ints = [isWriteBack(step) ? .one : .zero]
            } else if step.kernel == step.node.op, let signature = step.node.signature {
                ints = try signature.ints.map { try step.node.size($0) }
                floats = try signature.floats.map { name in
                    guard case .number(let number) = step.node[name] else {
                        throw Diagnostic.internalFault(
                            "attribute `\(name)` of `\(step.node.op)` is missing",
                            at: "function `\(function.name)`\(place(step.node))")
                    }
                    return number
                }
            }
            instructions.append(
                .init(
                    kernel: kernel(step.kernel), operands: operands, results: results, ints: ints, floats: floats,
                    source: step.node.source))
        }
        let planned = BundleProgram.Function(
            name: function.name, inputs: inputs, outputs: outputs, states: states, symbolSources: [],
            values: table.values, instructions: instructions, context: function.context)
        return try withSymbolSources(planned)
    }

    /// True for the write of a whole state that its report calls a copy.
    private func isWriteBack(_ step: Step) -> Bool {
        guard let target = locations[step.results[0]], case .state(let use) = target.root else { return false }
        return function.states[use].copiedBytes != .zero
            && target.placement.view == locations[function.states[use].before]?.placement.view
    }

    private func value(of id: ValueID, at instruction: Int, in table: inout ValueTable) throws -> Int {
        let location = try location(of: id)
        let base: Int
        if let known = table.bases[location.root] {
            base = known
        } else {
            switch location.root {
            case .tensor(let tensor):
                let shape = program.tensors[tensor].shape.map { SizeExpression($0) }
                base = table.add(
                    ValueType(program.tensors[tensor].scalarType, shape), .tensor(tensor), for: location.root)
            case .fresh(let root):
                base = table.add(
                    types[root.index], .arena(first: instruction, last: instruction), for: location.root)
            case .input, .state:
                throw Diagnostic.internalFault("an argument has no value", at: "function `\(function.name)`")
            }
        }
        if case .arena(let first, _) = table.values[base].storage {
            table.values[base].storage = .arena(first: first, last: instruction)
        }
        let view = location.placement.view
        if try view == StridedView(contiguous: table.values[base].shape) { return base }
        return try table.view(view, types[id.index].scalarType, base: base)
    }

    /// Each symbol is read from the first input axis that has it as its length.
    private func withSymbolSources(_ planned: BundleProgram.Function) throws -> BundleProgram.Function {
        var used: Set<Int> = []
        func note(_ size: SizeExpression) { used.formUnion(size.symbolIndices) }
        for value in planned.values {
            value.shape.forEach(note)
            if case .view(_, let strides, let offset) = value.storage {
                strides.forEach(note)
                note(offset)
            }
        }
        for instruction in planned.instructions { instruction.ints.forEach(note) }
        for state in planned.states { note(state.copiedBytes) }
        var result = planned
        var findings: [Diagnostic] = []
        for symbol in used.sorted() {
            let source = planned.inputs.indices.lazy.compactMap { input -> BundleProgram.SymbolSource? in
                let shape = planned.values[planned.inputs[input].value].shape
                guard let axis = shape.firstIndex(where: { $0.symbolIndex == symbol }) else { return nil }
                return .init(symbol: symbol, input: input, axis: axis)
            }.first
            if let source {
                result.symbolSources.append(source)
            } else {
                let names = program.symbolNames
                let inputs = planned.inputs.map { input in
                    let shape = planned.values[input.value].shape.map { $0.description(symbolNames: names) }
                    return "\(input.name) [\(shape.joined(separator: ", "))]"
                }
                findings.append(
                    Diagnostic(
                        .symbolWithoutSource, "no input says how long `\(names[symbol])` is",
                        at: "function `\(function.name)`",
                        expected: "an input with `\(names[symbol])` as the length of an axis",
                        found: inputs.isEmpty ? "no inputs" : inputs.joined(separator: "\n"),
                        hint: "pass the tensor that has this axis as an input of the function"))
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        return result
    }

    private mutating func count(_ counter: String) { counters[counter, default: 0] += 1 }

    private func place(_ node: Node) -> String {
        guard let source = node.source, program.sources.indices.contains(source) else { return "" }
        return ", \(program.sources[source])"
    }

    /// Values of the bundle, each view of a storage once.
    struct ValueTable {
        struct View: Hashable {
            var base: Int
            var view: StridedView
        }

        var values: [BundleProgram.Value] = []
        var bases: [Root: Int] = [:]
        var views: [View: Int] = [:]

        mutating func add(_ type: ValueType, _ storage: BundleProgram.Storage, for root: Root?) -> Int {
            values.append(.init(scalarType: type.scalarType, shape: type.shape, storage: storage))
            if let root { bases[root] = values.count - 1 }
            return values.count - 1
        }

        mutating func view(_ view: StridedView, _ scalarType: ScalarType, base: Int) throws -> Int {
            let key = View(base: base, view: view)
            if let known = views[key] { return known }
            values.append(
                .init(
                    scalarType: scalarType, shape: view.shape,
                    storage: .view(base: base, strides: try view.explicitStrides(), offset: view.offset)))
            views[key] = values.count - 1
            return values.count - 1
        }
    }
}
