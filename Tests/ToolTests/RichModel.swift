import StatepackBundle
import StatepackCompiler
import StatepackTool

/// A bundle of two functions that share states, with everything that a contract can say.
enum RichModel {
    static func program() throws -> BundleProgram {
        func size(_ value: Int) -> SizeExpression { SizeExpression(value) }
        let (query, batch) = (SizeExpression.symbol(0), SizeExpression.symbol(1))
        var program = BundleProgram(
            producer: "test", programDigest: Array(repeating: 0x5A, count: 32),
            symbols: [.init(name: "query", min: 1, max: 512), .init(name: "batch", min: 1, max: 4)],
            tensors: [
                .init(name: "table", scalarType: .float32, shape: [4, 4], layout: .rowMajor, offset: 0, length: 64)
            ],
            states: [
                .init(
                    name: "keyCache", sourceName: "keys", scalarType: .float16, shape: [size(2), size(256), size(64)],
                    initialValue: .splat([0, 0])),
                .init(
                    name: "valueCache", sourceName: "values", scalarType: .float16,
                    shape: [size(2), size(256), size(64)], initialValue: .splat([0, 0])),
                .init(
                    name: "counter", sourceName: "counter", scalarType: .int64, shape: [],
                    initialValue: .splat([5, 0, 0, 0, 0, 0, 0, 0])),
                .init(
                    name: "table", sourceName: "table", scalarType: .float32, shape: [size(4), size(4)],
                    initialValue: .tensor(0), initialDigest: Array(repeating: 0xA1, count: 32)),
            ],
            functions: [], kernels: ["fill"])
        program.functions = [
            function(
                "prefill", program,
                inputs: [
                    ("tokens", .int64, [query]), ("position_ids", .int64, [query]),
                    ("mask", .bool, [size(1), try query.times(2).plus(1)]), ("bias", .float32, [batch, size(4)]),
                ],
                states: [(0, "index_copy"), (1, "index_copy"), (2, "copy"), (3, "none")],
                outputs: [("logits", .float32, [query, size(100)]), ("hidden", .float32, [query, size(64)])],
                sources: [(0, 0, 0), (1, 3, 0)],
                context: .init(positions: 1, axes: [.init(state: 0, axis: 1), .init(state: 1, axis: 1)])),
            function(
                "decode", program,
                inputs: [("token", .int64, [size(1)]), ("position_ids", .int64, [size(1)])],
                states: [(0, "index_copy"), (1, "index_copy")],
                outputs: [("logits", .float32, [size(1), size(100)])], sources: [],
                context: .init(positions: 1, axes: [.init(state: 0, axis: 1), .init(state: 1, axis: 1)])),
        ]
        return program
    }

    private static func function(
        _ name: String, _ program: BundleProgram, inputs: [(String, ScalarType, [SizeExpression])],
        states: [(state: Int, writtenBy: String)], outputs: [(String, ScalarType, [SizeExpression])],
        sources: [(symbol: Int, input: Int, axis: Int)], context: ContextRules?
    ) -> BundleProgram.Function {
        var function = BundleProgram.Function(
            name: name, inputs: [], outputs: [], states: [],
            symbolSources: sources.map { .init(symbol: $0.symbol, input: $0.input, axis: $0.axis) }, values: [],
            instructions: [], context: context)
        func add(_ type: ScalarType, _ shape: [SizeExpression], _ storage: BundleProgram.Storage) -> Int {
            function.values.append(.init(scalarType: type, shape: shape, storage: storage))
            return function.values.count - 1
        }
        for (slot, input) in inputs.enumerated() {
            function.inputs.append(.init(name: input.0, value: add(input.1, input.2, .input(slot))))
        }
        for (slot, use) in states.enumerated() {
            let state = program.states[use.state]
            function.states.append(
                .init(
                    state: use.state, value: add(state.scalarType, state.shape, .state(slot)),
                    writtenBy: use.writtenBy, copiedBytes: .zero, copyReason: ""))
        }
        for (slot, output) in outputs.enumerated() {
            function.outputs.append(.init(name: output.0, value: add(output.1, output.2, .output(slot))))
            function.instructions.append(
                .init(
                    kernel: 0, operands: [], results: [function.outputs[slot].value], ints: [], floats: [0], source: nil
                ))
        }
        return function
    }

    /// Writes a bundle of the program with these weights.
    static func write(_ program: BundleProgram, weights: [UInt8] = Array(repeating: 1, count: 64), to path: String)
        throws
    {
        var writer = try BundleWriter(
            path: path, sections: [.program, .weights], digest: IncrementalDigest.sha256)
        try writer.begin(.program)
        try writer.append(program.encoded())
        try writer.begin(.weights)
        try writer.append(weights)
        try writer.finish()
    }
}
