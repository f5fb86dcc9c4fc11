import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

/// Runs programs on elements that are hashes of what they were computed from, so that two programs which give
/// the same elements compute the same thing, whatever the kernels do with numbers.
///
/// One interpreter runs the functional form, where every value is a value of its own. The other runs a plan:
/// storage, views, instructions in order, and scratch memory that is poisoned outside its lifetime. What the
/// compiler does in between is right when outputs and states agree, step after step.
enum PlanOracle {
    typealias Element = UInt64

    struct Tensor: Equatable {
        var shape: [Int]
        var elements: [Element]

        init(_ shape: [Int], _ elements: [Element]) {
            precondition(shape.reduce(1, *) == elements.count)
            self.shape = shape
            self.elements = elements
        }
    }

    struct Outcome: Equatable {
        var outputs: [String: Tensor] = [:]
        var states: [String: Tensor] = [:]
    }

    static func mix(_ parts: [Element]) -> Element {
        parts.reduce(0x9E37_79B9_7F4A_7C15) { hash, part in
            var value = (hash ^ part) &* 0xBF58_476D_1CE4_E5B9
            value ^= value >> 29
            return value &* 0x94D0_49BB_1331_11EB
        }
    }

    static func mix(_ text: String) -> Element { mix(text.utf8.map { Element($0) }) }

    /// Elements that no two tensors share; small numbers for integers, which may be indices.
    static func fresh(_ name: String, _ shape: [Int], _ type: ScalarType, step: Int) -> Tensor {
        let count = shape.reduce(1, *)
        if !type.isFloatingPoint { return Tensor(shape, (0..<count).map { Element(($0 + step) % 97) }) }
        return Tensor(shape, (0..<count).map { mix([mix(name), Element($0), Element(step)]) })
    }

    static func constant(_ tensor: Program.StoredTensor) -> Tensor {
        if case .inline(let bytes) = tensor.data {
            let width = tensor.scalarType.byteCount
            return Tensor(
                tensor.shape,
                stride(from: 0, to: bytes.count, by: width).map { start in
                    bytes[start..<start + width].reversed().reduce(0) { $0 << 8 | Element($1) }
                })
        }
        return fresh(tensor.name, tensor.shape, tensor.scalarType, step: 0)
    }

    // MARK: Views of arrays

    static func indices(_ shape: [Int]) -> [[Int]] {
        shape.reduce([[]]) { prefixes, length in prefixes.flatMap { prefix in (0..<length).map { prefix + [$0] } } }
    }

    static func rowMajor(_ shape: [Int]) -> [Int] {
        var strides: [Int] = []
        var running = 1
        for length in shape.reversed() {
            strides.insert(running, at: 0)
            running *= length
        }
        return strides
    }

    static func positions(_ shape: [Int], _ strides: [Int], _ offset: Int) -> [Int] {
        indices(shape).map { index in zip(index, strides).reduce(offset) { $0 + $1.0 * $1.1 } }
    }

    static func broadcast(_ tensor: Tensor, to shape: [Int]) -> [Element] {
        let lead = shape.count - tensor.shape.count
        let strides = rowMajor(tensor.shape)
        return indices(shape).map { index in
            var position = 0
            for axis in tensor.shape.indices where tensor.shape[axis] != 1 {
                position += index[axis + lead] * strides[axis]
            }
            return tensor.elements[position]
        }
    }

    // MARK: Kernels

    static func run(
        _ kernel: String, _ operands: [Tensor?], ints: [Int], floats: [Double], shape: [Int], converts: Bool
    ) -> Tensor {
        let count = shape.reduce(1, *)
        func wrap(_ value: Element, _ length: Int) -> Int { Int(value % Element(max(1, length))) }
        switch kernel {
        case "copy", "fill", "write":
            let elements = broadcast(operands[0]!, to: shape)
            return Tensor(shape, converts ? elements.map { mix([mix("convert"), $0]) } : elements)
        case "mul", "add":
            let (a, b) = (broadcast(operands[0]!, to: shape), broadcast(operands[1]!, to: shape))
            let one = Element(Float(1).bitPattern)
            return Tensor(
                shape,
                zip(a, b).map { x, y in
                    if kernel == "mul", x == one { return y }
                    if kernel == "mul", y == one { return x }
                    return mix([mix(kernel), min(x, y), max(x, y)])
                })
        case _ where KernelSignature.byName[kernel]!.isPointwise:
            let inputs = operands.map { broadcast($0!, to: shape) }
            return Tensor(shape, (0..<count).map { i in mix([mix(kernel)] + inputs.map { $0[i] }) })
        case "mean", "sum":
            let a = operands[0]!
            let kept = a.shape.indices.map { ints[0] >> $0 & 1 == 0 }
            var groups: [[Int]: [Element]] = [:]
            for (index, element) in zip(indices(a.shape), a.elements) {
                groups[zip(index, kept).filter(\.1).map(\.0), default: []].append(element)
            }
            let order = indices(zip(a.shape, kept).filter(\.1).map(\.0))
            return Tensor(shape, order.map { mix([mix(kernel)] + groups[$0]!) })
        case "rms_norm":
            let x = operands[0]!
            let square = run("mul", [x, x], ints: [], floats: [], shape: shape, converts: false)
            let reduced = Array(shape.dropLast()) + [1]
            let mean = run(
                "mean", [square], ints: [1 << (shape.count - 1), 1], floats: [], shape: reduced, converts: false)
            let epsilon = Tensor([], [Element(Float(floats[0]).bitPattern)])
            let sum = run("add", [mean, epsilon], ints: [], floats: [], shape: reduced, converts: false)
            let root = run("rsqrt", [sum], ints: [], floats: [], shape: reduced, converts: false)
            let scaled = run("mul", [x, root], ints: [], floats: [], shape: shape, converts: false)
            guard let weight = operands[1] else { return scaled }
            return run("mul", [weight, scaled], ints: [], floats: [], shape: shape, converts: false)
        case "rotary":
            let (x, cos, sin) = (operands[0]!, operands[1]!, operands[2]!)
            let (length, turned) = (x.shape.last!, cos.shape.last!)
            func part(_ range: Range<Int>) -> Tensor {
                let rows = stride(from: 0, to: x.elements.count, by: length)
                return Tensor(
                    x.shape.dropLast() + [range.count],
                    rows.flatMap { x.elements[$0 + range.lowerBound..<$0 + range.upperBound] })
            }
            func compute(_ kernel: String, _ operands: [Tensor], axis: Int? = nil) -> Tensor {
                let width = axis == nil ? operands[0].shape.last! : operands.reduce(0) { $0 + $1.shape.last! }
                return run(
                    kernel, operands, ints: axis.map { [$0] } ?? [], floats: [], shape: shape.dropLast() + [width],
                    converts: false)
            }
            let last = shape.count - 1
            let head = part(0..<turned)
            let halves = compute(
                "cat", [compute("neg", [part(turned / 2..<turned)]), part(0..<turned / 2)], axis: last)
            let sum = compute("add", [compute("mul", [head, cos]), compute("mul", [halves, sin])])
            return turned == length ? sum : compute("cat", [sum, part(turned..<length)], axis: last)
        case "linear_parts", "linear_gated", "linear_add":
            let a = operands[0]!
            func linear(_ weight: Tensor, _ bias: Tensor?) -> Tensor {
                run(
                    "linear", [a, weight, bias], ints: [], floats: [], shape: a.shape.dropLast() + [weight.shape[0]],
                    converts: false)
            }
            if kernel == "linear_parts" {
                let given = operands.dropFirst().map { $0! }
                let count = ints[0] == 1 ? given.count / 2 : given.count
                let parts = (0..<count).map { linear(given[$0], ints[0] == 1 ? given[count + $0] : nil) }
                return run("cat", parts, ints: [shape.count - 1], floats: [], shape: shape, converts: false)
            }
            if kernel == "linear_add" {
                return run(
                    "add", [linear(operands[1]!, operands[3]), operands[2]], ints: [], floats: [], shape: shape,
                    converts: false)
            }
            let gate = run(
                ["silu", "gelu", "gelu_tanh", "sigmoid", "relu"][ints[0]], [linear(operands[1]!, operands[3])],
                ints: [], floats: [], shape: shape, converts: false)
            return run(
                "mul", [gate, linear(operands[2]!, operands[4])], ints: [], floats: [], shape: shape, converts: false)
        case "rotary_index_copy":
            let source = operands[2]!
            let turned = run(
                "rotary", [source, operands[3], operands[4]], ints: [], floats: [], shape: source.shape,
                converts: false)
            return run(
                "index_copy", [operands[0], operands[1], turned], ints: ints, floats: [], shape: shape,
                converts: false)
        case "cat":
            var rows: [[Int]: Element] = [:]
            var start = 0
            for part in operands {
                for (index, element) in zip(indices(part!.shape), part!.elements) {
                    var moved = index
                    moved[ints[0]] += start
                    rows[moved] = element
                }
                start += part!.shape[ints[0]]
            }
            return Tensor(shape, indices(shape).map { rows[$0]! })
        case "index_copy":
            var result = operands[0]!
            let (index, source) = (operands[1]!, operands[2]!)
            let strides = rowMajor(result.shape)
            for (place, element) in zip(indices(source.shape), source.elements) {
                var target = place
                target[ints[0]] = wrap(index.elements[place[ints[0]]], result.shape[ints[0]])
                result.elements[zip(target, strides).reduce(0) { $0 + $1.0 * $1.1 }] = element
            }
            return result
        case "index_put":
            // One index over the first axis is all that the tests use.
            var result = operands[0]!
            let index = operands[2]!
            let rest = Array(result.shape.dropFirst())
            let source = broadcast(operands[1]!, to: index.shape + rest)
            let width = rest.reduce(1, *)
            for (row, value) in index.elements.enumerated() {
                let target = wrap(value, result.shape[0]) * width
                for column in 0..<width {
                    let element = source[row * width + column]
                    let old = result.elements[target + column]
                    result.elements[target + column] = ints[0] == 1 ? mix([mix("add"), old, element]) : element
                }
            }
            return result
        case "index_select", "embedding":
            let (a, index) = kernel == "embedding" ? (operands[0]!, operands[1]!) : (operands[0]!, operands[1]!)
            let axis = kernel == "embedding" ? 0 : ints[0]
            let strides = rowMajor(a.shape)
            return Tensor(
                shape,
                indices(shape).map { place in
                    var source = place
                    if kernel == "embedding" {
                        let row = rowMajor(index.shape)
                        let position = zip(place, row).reduce(0) { $0 + $1.0 * $1.1 }
                        source = [wrap(index.elements[position], a.shape[0]), place.last!]
                    } else {
                        source[axis] = wrap(index.elements[place[axis]], a.shape[axis])
                    }
                    return a.elements[zip(source, strides).reduce(0) { $0 + $1.0 * $1.1 }]
                })
        case "sdpa":
            // Heads are repeated here, so that grouped and expanded keys agree.
            var inputs = operands
            for position in [1, 2] {
                let heads = operands[position]!
                var expanded = heads.shape
                expanded[1] *= ints[1]
                let strides = rowMajor(heads.shape)
                inputs[position] = Tensor(
                    expanded,
                    indices(expanded).map { index in
                        var source = index
                        source[1] /= ints[1]
                        return heads.elements[zip(source, strides).reduce(0) { $0 + $1.0 * $1.1 }]
                    })
            }
            return opaque(kernel, inputs, [ints[0]], floats, shape)
        default:
            return opaque(kernel, operands, ints, floats, shape)
        }
    }

    /// Every element depends on everything.
    private static func opaque(
        _ kernel: String, _ operands: [Tensor?], _ ints: [Int], _ floats: [Double], _ shape: [Int]
    ) -> Tensor {
        var parts = [mix(kernel)] + ints.map { Element(bitPattern: Int64($0)) } + floats.map(\.bitPattern)
        for operand in operands { parts.append(operand.map { mix($0.shape.map { Element($0) } + $0.elements) } ?? 1) }
        let all = mix(parts)
        return Tensor(shape, (0..<shape.reduce(1, *)).map { mix([all, Element($0)]) })
    }

    // MARK: The functional form

    static func run(
        _ program: Program, _ function: Function, symbols: [Int], states: [String: Tensor], step: Int
    ) throws -> Outcome {
        var values: [ValueID: Tensor] = [:]
        func shape(_ id: ValueID) throws -> [Int] { try function[id].shape.map { try $0.evaluate(symbols) } }
        func tensor(_ node: Node, _ name: String) throws -> Tensor {
            guard case .tensor(let id) = node[name] else { throw Unknown(what: "\(node.op).\(name)") }
            return values[id]!
        }
        func size(_ node: Node, _ name: String) throws -> Int {
            guard case .size(let size) = node[name] else { throw Unknown(what: "\(node.op).\(name)") }
            return try size.evaluate(symbols)
        }
        for input in function.inputs {
            values[input.value] = fresh(
                input.name, try shape(input.value), function[input.value].scalarType, step: step)
        }
        for use in function.states { values[use.before] = states[program.states[use.state].name]! }
        for use in function.constants { values[use.value] = constant(program.tensors[use.tensor]) }
        for node in function.nodes {
            let result = node.results[0]
            let target = try shape(result)
            if node.op.hasPrefix("view.") || node.op.hasPrefix("scatter.") {
                var a = try tensor(node, "a")
                var viewShape = target
                var strides = rowMajor(a.shape)
                var offset = 0
                switch node.op {
                case "view.reshape": strides = rowMajor(target)
                case "view.expand":
                    let lead = target.count - a.shape.count
                    strides = target.indices.map { axis in
                        axis < lead || a.shape[axis - lead] != target[axis] ? 0 : strides[axis - lead]
                    }
                case "view.permute":
                    guard case .sizes(let dims) = node["dims"] else { throw Unknown(what: "dims") }
                    strides = try dims.map { strides[try $0.evaluate(symbols)] }
                case "view.select", "scatter.select":
                    let dim = try size(node, "dim")
                    offset = try size(node, "index") * strides[dim]
                    strides.remove(at: dim)
                    viewShape = a.shape
                    viewShape.remove(at: dim)
                case "view.slice", "scatter.slice":
                    let dim = try size(node, "dim")
                    let (start, end, step) = (
                        try size(node, "start"), try size(node, "end"), try size(node, "step")
                    )
                    offset = start * strides[dim]
                    strides[dim] *= step
                    viewShape = a.shape
                    viewShape[dim] = (end - start + step - 1) / step
                default: throw Unknown(what: node.op)
                }
                let places = positions(viewShape, strides, offset)
                if node.op.hasPrefix("view.") {
                    values[result] = Tensor(target, places.map { a.elements[$0] })
                } else {
                    for (place, element) in zip(places, try tensor(node, "source").elements) {
                        a.elements[place] = element
                    }
                    values[result] = a
                }
                continue
            }
            guard let signature = KernelSignature.byName[node.op] else { throw Unknown(what: node.op) }
            var operands: [ValueID?] = []
            for operand in signature.operands {
                switch node[operand.name] {
                case .tensor(let id): operands.append(id)
                case .tensors(let ids): operands += ids
                default: operands.append(nil)
                }
            }
            let floats = try signature.floats.map { name -> Double in
                guard case .number(let number) = node[name] else { throw Unknown(what: name) }
                return number
            }
            values[result] = run(
                node.op, operands.map { $0.map { values[$0]! } }, ints: try signature.ints.map { try size(node, $0) },
                floats: floats, shape: target,
                converts: operands[0].map { function[$0].scalarType != function[result].scalarType } ?? false)
        }
        var outcome = Outcome(states: states)
        for output in function.outputs { outcome.outputs[output.name] = values[output.value]! }
        for use in function.states { outcome.states[program.states[use.state].name] = values[use.after]! }
        return outcome
    }

    struct Unknown: Error {
        var what: String
    }

    // MARK: Plans

    static func run(
        _ program: BundleProgram, _ function: BundleProgram.Function, constants: [Tensor], symbols: [Int],
        states: [String: Tensor], step: Int
    ) throws -> Outcome {
        func shape(_ value: BundleProgram.Value) throws -> [Int] { try value.shape.map { try $0.evaluate(symbols) } }
        // Elements of every value that is not a view.
        var memory: [[Element]] = try function.values.enumerated().map { index, value in
            (0..<(try shape(value).reduce(1, *))).map { mix([mix("poison"), Element(index), Element($0)]) }
        }
        for (index, value) in function.values.enumerated() {
            switch value.storage {
            case .input(let slot):
                memory[index] =
                    fresh(function.inputs[slot].name, try shape(value), value.scalarType, step: step).elements
            case .state(let slot): memory[index] = states[program.states[function.states[slot].state].name]!.elements
            case .tensor(let tensor): memory[index] = constants[tensor].elements
            default: break
            }
        }
        func view(_ index: Int) throws -> (base: Int, shape: [Int], places: [Int]) {
            let value = function.values[index]
            let shape = try shape(value)
            guard case .view(let base, let strides, let offset) = value.storage else {
                return (index, shape, positions(shape, rowMajor(shape), 0))
            }
            let places = positions(shape, try strides.map { try $0.evaluate(symbols) }, try offset.evaluate(symbols))
            return (base, shape, places)
        }
        for (number, instruction) in function.instructions.enumerated() {
            let operands = try instruction.operands.map { operand -> Tensor? in
                guard let operand else { return nil }
                let (base, shape, places) = try view(operand)
                return Tensor(shape, places.map { memory[base][$0] })
            }
            let target = instruction.results[0]
            let (base, shape, places) = try view(target)
            let converts =
                instruction.operands.first.map {
                    function.values[$0!].scalarType != function.values[target].scalarType
                } ?? false
            let result = run(
                program.kernels[instruction.kernel], operands,
                ints: try instruction.ints.map { try $0.evaluate(symbols) }, floats: instruction.floats, shape: shape,
                converts: converts)
            for (place, element) in zip(places, result.elements) { memory[base][place] = element }
            for (index, value) in function.values.enumerated() {
                guard case .arena(_, let last) = value.storage, last == number else { continue }
                memory[index] = memory[index].map { mix([mix("dead"), $0]) }
            }
        }
        var outcome = Outcome(states: states)
        for output in function.outputs {
            outcome.outputs[output.name] = Tensor(try Self.shape(function, output.value, symbols), memory[output.value])
        }
        for use in function.states {
            outcome.states[program.states[use.state].name] = Tensor(
                try Self.shape(function, use.value, symbols), memory[use.value])
        }
        return outcome
    }

    private static func shape(_ function: BundleProgram.Function, _ value: Int, _ symbols: [Int]) throws -> [Int] {
        try function.values[value].shape.map { try $0.evaluate(symbols) }
    }

    // MARK: Comparison

    /// Compiles the program and runs both forms for some steps of every function, states kept in between.
    @discardableResult
    static func compile(
        _ program: Program, options: CompileOptions = CompileOptions(),
        sourceLocation: SourceLocation = #_sourceLocation
    ) throws -> CompiledProgram {
        let compiled = try Compiler(options: options).compile(decomposed: program)
        let constants = compiled.recipes.map { constant(program.tensors[$0.source]) }
        for offset in [0, 3] {
            let symbols = program.symbols.map { min($0.max, $0.min + offset) }
            var expected: [String: Tensor] = [:]
            for state in program.states {
                expected[state.name] = fresh(
                    state.name, try state.type.shape.map { try $0.evaluate(symbols) }, state.type.scalarType, step: 0)
            }
            var found = expected
            for step in 1...3 {
                for (function, planned) in zip(program.functions, compiled.bundle.functions) {
                    let functional = try run(program, function, symbols: symbols, states: expected, step: step)
                    let plan = try run(
                        compiled.bundle, planned, constants: constants, symbols: symbols, states: found, step: step)
                    for name in functional.outputs.keys.sorted() {
                        #expect(
                            functional.outputs[name] == plan.outputs[name],
                            "step \(step), output \(name) of \(function.name)", sourceLocation: sourceLocation)
                    }
                    for name in functional.states.keys.sorted() {
                        #expect(
                            functional.states[name] == plan.states[name],
                            "step \(step), state \(name) after \(function.name)", sourceLocation: sourceLocation)
                    }
                    (expected, found) = (functional.states, plan.states)
                }
            }
        }
        return compiled
    }
}
