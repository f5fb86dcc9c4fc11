import Statepack
import StatepackBundle

/// A decoder with caches, seeded: norm, projections, cache writes, masked attention, residual, gated layers, logits.
///
/// Positions are declared, the query has a dynamic length, and every layer has states of its own: forty-four states for
/// twenty-two layers.
struct SmallDecoder {
    var layers = 2
    var width = 64
    var heads = 4
    var capacity = 64
    var vocabulary = 96
    var longestQuery = 512
    /// Two separate numbers, so that a step takes more inputs than a list holds in itself.
    var extraInputs = 0
    var declaresContext = true

    func builder() -> ProgramBuilder {
        var builder = ProgramBuilder()
        var random = SplitMix(state: 11)
        func numbers(_ count: Int, scale: Float) -> [Float] {
            (0..<count).map { _ in (Float(random.next() >> 40) / Float(1 << 23) - 1) * scale }
        }
        let query = builder.symbol("query", 1...longestQuery)
        let size = SizeExpression(width)
        let depth = width / heads
        let tokens = builder.input("tokens", .int64, [query])
        let positions = builder.input("positions", .int64, [query])
        var scale: [Int] = []
        for index in 0..<extraInputs { scale.append(builder.input("extra\(index)", .float32, [1])) }
        let logits = builder.output("logits", .float32, [query, SizeExpression(vocabulary)])
        let table = builder.weight("table", numbers(vocabulary * width, scale: 1), [vocabulary, width])
        let places = builder.weight("places", (0..<capacity).map(Int64.init), [1, capacity])

        // The key at place p is seen by the query at position q when p <= q.
        let mask = builder.temporary(.bool, [query, SizeExpression(capacity)])
        let column = builder.view(of: positions, [query, 1], strides: [1, 1], offset: 0)
        builder.emit("le", [places, column], [mask])
        let mask4 = builder.view(
            of: mask, [1, 1, query, SizeExpression(capacity)],
            strides: [0, 0, SizeExpression(capacity), 1], offset: 0)

        var hidden = builder.temporary(.float32, [query, size])
        builder.emit("embedding", [table, tokens], [hidden])
        for extra in scale {
            let next = builder.temporary(.float32, [query, size])
            builder.emit("add", [hidden, extra], [next])
            hidden = next
        }
        var axes: [(state: String, axis: Int)] = []
        for layer in 0..<layers {
            func weight(_ name: String, _ rows: Int, _ columns: Int) -> Int {
                builder.weight(
                    "\(layer).\(name)", numbers(rows * columns, scale: 1 / Float(columns).squareRoot()),
                    [rows, columns])
            }
            func norm(_ a: Int, _ name: String) -> Int {
                let result = builder.temporary(.float32, [query, size])
                let gain = builder.weight("\(layer).\(name)", numbers(width, scale: 1), [width])
                builder.emit("rms_norm", [a, gain], [result], ints: [1], floats: [1e-5])
                return result
            }
            func linear(_ a: Int, _ matrix: Int, _ rows: Int) -> Int {
                let result = builder.temporary(.float32, [query, SizeExpression(rows)])
                builder.emit("linear", [a, matrix, nil], [result])
                return result
            }
            func add(_ a: Int, _ b: Int) -> Int {
                let result = builder.temporary(.float32, [query, size])
                builder.emit("add", [a, b], [result])
                return result
            }
            let normed = norm(hidden, "norm1")
            let projected = ["q", "k", "v"].map { linear(normed, weight($0, width, width), width) }
            var caches: [Int] = []
            for (name, source) in zip(["keys", "values"], projected.dropFirst()) {
                let cache = builder.state(
                    "layers.\(layer).attention.\(name)", .float32,
                    [1, SizeExpression(heads), SizeExpression(capacity), SizeExpression(depth)])
                let rows = builder.view(
                    of: source, [1, SizeExpression(heads), query, SizeExpression(depth)],
                    strides: [0, SizeExpression(depth), size, 1], offset: 0)
                builder.emit("index_copy", [cache, positions, rows], [cache], ints: [2])
                axes.append(("layers.\(layer).attention.\(name)", 2))
                caches.append(cache)
            }
            let queries = builder.view(
                of: projected[0], [1, SizeExpression(heads), query, SizeExpression(depth)],
                strides: [0, SizeExpression(depth), size, 1], offset: 0)
            let mixed = builder.temporary(
                .float32, [1, SizeExpression(heads), query, SizeExpression(depth)])
            builder.emit(
                "sdpa", [queries, caches[0], caches[1], mask4], [mixed], ints: [0, 1],
                floats: [1 / Double(depth).squareRoot()])
            let joined = builder.temporary(.float32, [query, size])
            let joinedHeads = builder.view(
                of: joined, [1, SizeExpression(heads), query, SizeExpression(depth)],
                strides: [0, SizeExpression(depth), size, 1], offset: 0)
            builder.emit("copy", [mixed], [joinedHeads])
            hidden = add(hidden, linear(joined, weight("o", width, width), width))
            let gate = linear(norm(hidden, "norm2"), weight("gate", 2 * width, width), 2 * width)
            let active = builder.temporary(.float32, [query, SizeExpression(2 * width)])
            builder.emit("silu", [gate], [active])
            hidden = add(hidden, linear(active, weight("down", width, 2 * width), width))
        }
        builder.emit("linear", [hidden, table, nil], [logits])
        if declaresContext { builder.setContext(positions: "positions", axes: axes) }
        return builder
    }

    func load(threads: Int? = nil) throws -> InferenceFunction {
        try builder().load(options: SpecializationOptions(threadCount: threads))
    }
}

/// One sequence of a ``SmallDecoder``: its caches, and arrays for the inputs and outputs of a step of one length.
struct DecoderSession {
    let function: InferenceFunction
    var states: [String: NDArray]
    var tokens: NDArray
    var positions: NDArray
    var logits: NDArray
    let length: Int
    let extra = NDArray(scalars: [0.5] as [Float], shape: [1])
    let extraNames: [String]

    init(_ function: InferenceFunction, length: Int = 1) throws {
        self.function = function
        self.length = length
        states = try function.initialStates()
        tokens = NDArray(shape: [length], scalarType: .int64)
        positions = NDArray(shape: [length], scalarType: .int64)
        guard case .ndArray(let descriptor)? = function.descriptor.outputDescriptor(of: "logits") else {
            throw NoOutput(name: "logits")
        }
        logits = NDArray(descriptor: descriptor.resolvingDynamicDimensions([length, descriptor.shape[1]]))
        extraNames = function.descriptor.inputNames.filter { $0.hasPrefix("extra") }
    }

    /// Writes the inputs of a step in place.
    private mutating func set(_ token: Int, _ position: Int) {
        var tokens = tokens.mutableView(as: Int64.self)
        for index in 0..<length { tokens[scalarAt: [index]] = Int64((token + index) % 90) }
        var positions = positions.mutableView(as: Int64.self)
        for index in 0..<length { positions[scalarAt: [index]] = Int64(position + index) }
    }

    /// One step of tokens that follow each other, on the states of this session.
    @discardableResult
    mutating func step(token: Int, position: Int) throws -> InferenceFunction.RunStatistics {
        set(token, position)
        return try Self.step(function, tokens, positions, extra, extraNames, &states, &logits)
    }

    nonisolated(nonsending) mutating func awaitStep(token: Int, position: Int) async throws {
        set(token, position)
        try await Self.awaitStep(function, tokens, positions, extra, extraNames, &states, &logits)
    }

    private static func step(
        _ function: InferenceFunction, _ tokens: NDArray, _ positions: NDArray, _ extra: NDArray, _ names: [String],
        _ states: inout [String: NDArray], _ logits: inout NDArray
    ) throws -> InferenceFunction.RunStatistics {
        var inputs = InferenceFunction.Inputs()
        inputs.insert(tokens, for: "tokens")
        inputs.insert(positions, for: "positions")
        for name in names { inputs.insert(extra, for: name) }
        var outputs = InferenceFunction.MutableViews()
        outputs.insert(&logits, for: "logits")
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        return try function.runSynchronously(inputs: inputs, states: views, outputViews: outputs).statistics
    }

    private nonisolated(nonsending) static func awaitStep(
        _ function: InferenceFunction, _ tokens: NDArray, _ positions: NDArray, _ extra: NDArray, _ names: [String],
        _ states: inout [String: NDArray], _ logits: inout NDArray
    ) async throws {
        var inputs = InferenceFunction.Inputs()
        inputs.insert(tokens, for: "tokens")
        inputs.insert(positions, for: "positions")
        for name in names { inputs.insert(extra, for: name) }
        var outputs = InferenceFunction.MutableViews()
        outputs.insert(&logits, for: "logits")
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        _ = try await function.run(inputs: inputs, states: views, outputViews: outputs)
    }

    /// Everything that the session holds, bit for bit.
    var bits: [UInt8] {
        bytes(logits) + states.keys.sorted().flatMap { bytes(states[$0]!) }
    }
}
