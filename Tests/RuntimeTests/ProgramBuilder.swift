import Statepack
import StatepackBundle

/// Makes planned programs by hand, as convert would: lifetimes are filled in from the instructions.
struct ProgramBuilder {
    private(set) var program = BundleProgram(
        producer: "tests", programDigest: [UInt8](repeating: 0, count: 32), symbols: [], tensors: [], states: [],
        functions: [], kernels: [])
    private(set) var function = BundleProgram.Function(
        name: "main", inputs: [], outputs: [], states: [], symbolSources: [], values: [], instructions: [])
    private(set) var weights: [UInt8] = []
    var sources: [String] = []

    mutating func symbol(_ name: String, _ bounds: ClosedRange<Int>) -> SizeExpression {
        program.symbols.append(BundleProgram.Symbol(name: name, min: bounds.lowerBound, max: bounds.upperBound))
        return .symbol(program.symbols.count - 1)
    }

    private mutating func value(
        _ type: ScalarType, _ shape: [SizeExpression], _ storage: BundleProgram.Storage
    ) -> Int {
        function.values.append(BundleProgram.Value(scalarType: type, shape: shape, storage: storage))
        return function.values.count - 1
    }

    mutating func input(_ name: String, _ type: ScalarType, _ shape: [SizeExpression]) -> Int {
        let result = value(type, shape, .input(function.inputs.count))
        for (axis, size) in shape.enumerated() {
            guard let symbol = size.symbolIndex, !function.symbolSources.contains(where: { $0.symbol == symbol })
            else { continue }
            function.symbolSources.append(
                BundleProgram.SymbolSource(symbol: symbol, input: function.inputs.count, axis: axis))
        }
        function.inputs.append(BundleProgram.NamedValue(name: name, value: result))
        return result
    }

    mutating func output(_ name: String, _ type: ScalarType, _ shape: [SizeExpression]) -> Int {
        let result = value(type, shape, .output(function.outputs.count))
        function.outputs.append(BundleProgram.NamedValue(name: name, value: result))
        return result
    }

    mutating func state(
        _ name: String, _ type: ScalarType, _ shape: [SizeExpression],
        initial: BundleProgram.InitialValue? = nil, copiedBytes: Int = 0
    ) -> Int {
        let result = value(type, shape, .state(function.states.count))
        let isTensor = if case .tensor = initial { true } else { false }
        program.states.append(
            BundleProgram.State(
                name: name, sourceName: name, scalarType: type, shape: shape,
                initialValue: initial ?? .splat([UInt8](repeating: 0, count: type.byteCount)),
                // Nothing at run time looks at it.
                initialDigest: isTensor ? Array(0..<32) : []))
        function.states.append(
            BundleProgram.FunctionState(
                state: program.states.count - 1, value: result, writtenBy: "copy",
                copiedBytes: SizeExpression(copiedBytes), copyReason: copiedBytes == 0 ? "" : "a test"))
        return result
    }

    /// Index of a stored tensor.
    mutating func tensor<Scalar: BitwiseCopyable>(_ name: String, _ scalars: [Scalar], _ shape: [Int]) -> Int {
        let type = ScalarType(name: "\(NDArray(scalars: [scalars[0]], shape: [1]).scalarType)")!
        while weights.count % 64 != 0 { weights.append(0) }
        program.tensors.append(
            BundleProgram.Tensor(
                name: name, scalarType: type, shape: shape, layout: .rowMajor, offset: weights.count,
                length: scalars.count * MemoryLayout<Scalar>.stride))
        scalars.withUnsafeBytes { weights.append(contentsOf: $0) }
        return program.tensors.count - 1
    }

    mutating func weight<Scalar: BitwiseCopyable>(_ name: String, _ scalars: [Scalar], _ shape: [Int]) -> Int {
        let index = tensor(name, scalars, shape)
        return value(program.tensors[index].scalarType, shape.map { SizeExpression($0) }, .tensor(index))
    }

    /// A float32 weight of zeros that are not in `weights`: whoever writes the bundle puts them there, before all others.
    mutating func hole(_ name: String, _ shape: [Int]) -> Int {
        precondition(weights.isEmpty, "holes come first")
        let length = shape.reduce(4, *)
        program.tensors.append(
            BundleProgram.Tensor(
                name: name, scalarType: .float32, shape: shape, layout: .rowMajor,
                offset: program.tensors.last.map { $0.offset + $0.length } ?? 0, length: length))
        return value(.float32, shape.map { SizeExpression($0) }, .tensor(program.tensors.count - 1))
    }

    mutating func temporary(_ type: ScalarType, _ shape: [SizeExpression]) -> Int {
        value(type, shape, .arena(first: -1, last: -1))
    }

    mutating func view(of base: Int, _ shape: [SizeExpression], strides: [SizeExpression], offset: SizeExpression)
        -> Int
    {
        value(function.values[base].scalarType, shape, .view(base: base, strides: strides, offset: offset))
    }

    mutating func emit(
        _ kernel: String, _ operands: [Int?], _ results: [Int], ints: [SizeExpression] = [], floats: [Double] = [],
        source: String? = nil
    ) {
        if !program.kernels.contains(kernel) { program.kernels.append(kernel) }
        if let source { sources.append(source) }
        function.instructions.append(
            BundleProgram.Instruction(
                kernel: program.kernels.firstIndex(of: kernel)!, operands: operands, results: results, ints: ints,
                floats: floats, source: source == nil ? nil : sources.count - 1))
    }

    mutating func setContext(positions: String, axes: [(state: String, axis: Int)]) {
        function.context = ContextRules(
            positions: function.inputs.firstIndex { $0.name == positions }!,
            axes: axes.map { axis in
                .init(state: program.states.firstIndex { $0.name == axis.state }!, axis: axis.axis)
            })
    }

    mutating func removeContext() { function.context = nil }

    /// The program with lifetimes, and its weights.
    func build() -> BundleProgram {
        var function = function
        for (index, instruction) in function.instructions.enumerated() {
            for value in instruction.operands.compactMap({ $0 }) + instruction.results {
                var root = value
                if case .view(let base, _, _) = function.values[value].storage { root = base }
                if case .arena(let first, _) = function.values[root].storage {
                    let isNew = first < 0
                    function.values[root].storage = .arena(first: isNew ? index : first, last: index)
                }
            }
        }
        var program = program
        program.functions = [function]
        return program
    }

    func model(options: SpecializationOptions = .default) throws -> AIModel {
        let program = build()
        try program.check(weightsLength: weights.count, sourceCount: sources.count)
        let memory = WeightMemory(weights)
        return AIModel(program, weights: memory.bytes, owner: memory, sources: sources, options: options)
    }

    func load(options: SpecializationOptions = .default) throws -> InferenceFunction {
        guard let function = try model(options: options).loadFunction(named: "main") else { throw NoFunction() }
        return function
    }

    struct NoFunction: Error {}
}

final class WeightMemory: @unchecked Sendable {
    let bytes: UnsafeRawBufferPointer

    init(_ weights: [UInt8]) {
        let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: max(weights.count, 64), alignment: 64)
        memory.copyBytes(from: weights)
        bytes = UnsafeRawBufferPointer(rebasing: memory[..<weights.count])
    }

    deinit { bytes.baseAddress.map { UnsafeMutableRawPointer(mutating: $0).deallocate() } }
}

extension SizeExpression: ExpressibleByIntegerLiteral {
    package init(integerLiteral value: Int) { self.init(value) }
}

/// Programs that several tests run.
enum SmallPrograms {
    /// `seen = count; count += step`, with a state that starts at 5.
    static func counter() throws -> InferenceFunction {
        var builder = ProgramBuilder()
        let step = builder.input("step", .float32, [1])
        let initial = builder.tensor("count", [5] as [Float], [1])
        let count = builder.state("count", .float32, [1], initial: .tensor(initial))
        let seen = builder.output("seen", .float32, [1])
        let sum = builder.temporary(.float32, [1])
        builder.emit("copy", [count], [seen])
        builder.emit("add", [count, step], [sum])
        builder.emit("write", [sum], [count], ints: [0])
        return try builder.load()
    }

    /// `cache[position] = 2 * rows; total = sum(cache); doubled = 2 * rows`, `query` rows of 4 into 8.
    static func cache(options: SpecializationOptions = .default) throws -> InferenceFunction {
        var builder = ProgramBuilder()
        let query = builder.symbol("query", 1...8)
        let rows = builder.input("rows", .float32, [query, 4])
        let position = builder.input("position", .int64, [query])
        let cache = builder.state("cache", .float32, [8, 4])
        let two = builder.weight("two", [2] as [Float], [])
        let doubled = builder.output("doubled", .float32, [query, 4])
        let total = builder.output("total", .float32, [4])
        builder.emit("mul", [rows, two], [doubled])
        builder.emit("index_copy", [cache, position, doubled], [cache], ints: [0], source: "model.py:12 (layers.0)")
        builder.emit("sum", [cache], [total], ints: [1, 0])
        return try builder.load(options: options)
    }

    /// Two caches written one after the other, by positions of their own; the second may fail after the first wrote.
    static func twoCaches() throws -> InferenceFunction {
        var builder = ProgramBuilder()
        let row = builder.input("row", .float32, [1, 4])
        let first = builder.input("first", .int64, [1])
        let second = builder.input("second", .int64, [1])
        let counter = builder.state("counter", .float32, [2, 3])
        let one = builder.state("one", .float32, [8, 4])
        let two = builder.state("two", .float32, [8, 4])
        // Not a write that saves itself, and a strided one: the middle column of the counter.
        let column = builder.view(of: counter, [2, 1], strides: [3, 1], offset: 1)
        let step = builder.weight("step", [1] as [Float], [])
        builder.emit("add", [column, step], [column])
        builder.emit("index_copy", [one, first, row], [one], ints: [0])
        builder.emit("index_copy", [two, second, row], [two], ints: [0], source: "model.py:31 (layers.1)")
        return try builder.load()
    }
}

func floats(_ array: NDArray) -> [Float] {
    let span = array.view(as: Float.self).contiguousElements!
    return (0..<span.count).map { span[$0] }
}

func bytes(_ array: NDArray) -> [UInt8] {
    let span = array.rawView().bytes
    return (0..<span.byteCount).map { span.unsafeLoad(fromByteOffset: $0, as: UInt8.self) }
}

func take(_ name: String, from outputs: inout InferenceFunction.Outputs) throws -> NDArray {
    guard let array = outputs.remove(name)?.ndArray else { throw NoOutput(name: name) }
    return array
}

struct NoOutput: Error {
    let name: String
}
