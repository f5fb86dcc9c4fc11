import StatepackBundle

/// A sound program of random shape: what the writer may be given.
enum RandomProgram {
    static func make(seed: UInt64) throws -> BundleProgram {
        var random = SeededGenerator(seed: seed)
        let symbols = (0..<random.below(4)).map { index in
            let min = random.below(3)
            return BundleProgram.Symbol(
                name: "s\(index)", min: min, max: random.chance(20) ? .max : min + random.below(100))
        }
        let tensors = (0..<random.below(5)).map { index in
            let isPanel = random.chance(30)
            return BundleProgram.Tensor(
                name: "weights.\(index) é",
                scalarType: isPanel ? .float32 : ScalarType.allCases.randomElement(using: &random)!,
                shape: (0..<(isPanel ? 2 : random.below(4))).map { _ in random.below(20) },
                layout: isPanel ? .panel16 : .rowMajor, offset: 0, length: 0)
        }
        let kernels = (0..<1 + random.below(4)).map { "kernel_\($0)" }
        let states = (0..<random.below(4)).map { index in
            let initial = tensors.indices.filter { tensors[$0].layout == .rowMajor }.randomElement(using: &random)
            if let initial, random.chance(40) {
                return BundleProgram.State(
                    name: "state\(index)", sourceName: "model.state.\(index)", scalarType: tensors[initial].scalarType,
                    shape: tensors[initial].shape.map { SizeExpression($0) }, initialValue: .tensor(initial),
                    initialDigest: (0..<32).map { _ in UInt8(random.below(256)) })
            }
            let type = ScalarType.allCases.randomElement(using: &random)!
            return BundleProgram.State(
                name: "state\(index)", sourceName: random.chance(20) ? "" : "s", scalarType: type,
                shape: (0..<random.below(9)).map { _ in SizeExpression(random.below(5)) },
                initialValue: .splat((0..<type.byteCount).map { _ in UInt8(type == .bool ? 1 : random.below(256)) }))
        }
        var program = BundleProgram(
            producer: random.chance(10) ? "" : "random \(seed)",
            programDigest: (0..<32).map { _ in UInt8(random.below(256)) },
            symbols: symbols, tensors: tensors, states: states, functions: [], kernels: kernels)
        program.functions = try (0..<random.below(3)).map { try function("f\($0)", of: program, using: &random) }
        _ = program.layOutTensors()
        return program
    }

    private static func size(_ symbols: [Int], using random: inout SeededGenerator) throws -> SizeExpression {
        var size = SizeExpression(random.below(8))
        for symbol in symbols where random.chance(30) {
            switch random.below(4) {
            case 0: size = try size.plus(SizeExpression.symbol(symbol).times(1 + random.below(5)))
            case 1: size = try size.times(.symbol(symbol))
            case 2: size = try size.maximum(SizeExpression.symbol(symbol).floorDivided(by: SizeExpression(3)))
            default: size = try size.plus(SizeExpression.symbol(symbol).modulo(SizeExpression(4)))
            }
        }
        return size
    }

    private static func function(
        _ name: String, of program: BundleProgram, using random: inout SeededGenerator
    ) throws -> BundleProgram.Function {
        var function = BundleProgram.Function(
            name: name, inputs: [], outputs: [], states: [], symbolSources: [], values: [], instructions: [])
        let symbols = program.symbols.indices.filter { _ in random.chance(70) }
        // The first inputs bring the symbols.
        for symbol in symbols {
            function.symbolSources.append(.init(symbol: symbol, input: function.inputs.count, axis: 1))
            function.inputs.append(.init(name: "in\(symbol)", value: function.values.count))
            function.values.append(
                .init(
                    scalarType: .float32, shape: [SizeExpression(2), .symbol(symbol)],
                    storage: .input(function.inputs.count - 1)))
        }
        for state in program.states.indices where random.chance(60) {
            let isCopied = random.chance(30)
            function.states.append(
                .init(
                    state: state, value: function.values.count, writtenBy: "index_copy",
                    copiedBytes: isCopied ? SizeExpression(1 + random.below(1000)) : .zero,
                    copyReason: isCopied ? "read later" : ""))
            function.values.append(
                .init(
                    scalarType: program.states[state].scalarType, shape: program.states[state].shape,
                    storage: .state(function.states.count - 1)))
        }
        let indexed = function.states.filter { program.states[$0.state].shape.count > 0 && random.chance(50) }
        if !indexed.isEmpty {
            function.inputs.append(.init(name: "positions", value: function.values.count))
            function.values.append(
                .init(
                    scalarType: random.chance(50) ? .int32 : .int64, shape: [SizeExpression(random.below(4))],
                    storage: .input(function.inputs.count - 1)))
            function.context = ContextRules(
                positions: function.inputs.count - 1,
                axes: indexed.map {
                    .init(state: $0.state, axis: random.below(program.states[$0.state].shape.count))
                })
        }
        for tensor in program.tensors.indices where random.chance(60) {
            function.values.append(
                .init(
                    scalarType: program.tensors[tensor].scalarType,
                    shape: program.tensors[tensor].shape.map { SizeExpression($0) }, storage: .tensor(tensor)))
        }
        var readable = Array(function.values.indices)
        let count = 1 + random.below(6)
        for index in 0..<count {
            let type = ScalarType.allCases.randomElement(using: &random)!
            let isOutput = random.chance(30)
            let result = function.values.count
            if isOutput {
                function.outputs.append(.init(name: "out\(index)", value: result))
            }
            function.values.append(
                .init(
                    scalarType: type, shape: try (0..<random.below(4)).map { _ in try size(symbols, using: &random) },
                    storage: isOutput ? .output(function.outputs.count - 1) : .arena(first: index, last: count - 1)))
            function.instructions.append(
                .init(
                    kernel: random.below(program.kernels.count),
                    operands: (0..<random.below(4)).map { _ in
                        random.chance(20) ? nil : readable.randomElement(using: &random)
                    },
                    results: [result], ints: try (0..<random.below(3)).map { _ in try size(symbols, using: &random) },
                    floats: (0..<random.below(3)).map { _ in Double(random.below(1000)) / 8 },
                    source: random.chance(50) ? random.below(2) : nil))
            readable.append(result)
            if random.chance(30) {
                readable.append(function.values.count)
                function.values.append(
                    .init(
                        scalarType: type, shape: [SizeExpression(0)],
                        storage: .view(base: result, strides: [SizeExpression(random.below(9) - 4)], offset: .zero)))
            }
        }
        return function
    }
}
