package import StatepackBundle

/// What a planned program needs in memory, for `inspect`.
package struct MemoryFigures: Hashable, Sendable {
    /// Bytes of the weights section; mapped, once for all sequences.
    package var weights: Int
    /// Bytes of the states of one sequence.
    package var statesPerSequence: Int
    /// Scratch memory of one run, by function.
    package var arena: [String: Int]

    /// Figures for one choice of symbols. Throws `SizeExpression.Failure` when a size exceeds int64.
    package init(of program: BundleProgram, symbols: [Int]) throws {
        weights = program.tensors.map { $0.offset + $0.length }.max() ?? 0
        statesPerSequence = try program.states.reduce(0) { sum, state in
            sum + (try Self.bytes(state.shape, state.scalarType, symbols))
        }
        arena = [:]
        for function in program.functions { arena[function.name] = try Self.arenaBytes(of: function, symbols) }
    }

    private static func bytes(_ shape: [SizeExpression], _ type: ScalarType, _ symbols: [Int]) throws -> Int {
        try shape.reduce(SizeExpression(type.byteCount)) { try $0.times(SizeExpression($1.evaluate(symbols))) }
            .evaluate([])
    }

    /// The extent of scratch memory when values are placed first fit, the largest first, 64-byte aligned.
    private static func arenaBytes(of function: BundleProgram.Function, _ symbols: [Int]) throws -> Int {
        struct Block {
            var first: Int
            var last: Int
            var bytes: Int
            var offset = 0
        }
        var blocks: [Block] = []
        for value in function.values {
            guard case .arena(let first, let last) = value.storage else { continue }
            let bytes = try bytes(value.shape, value.scalarType, symbols)
            blocks.append(Block(first: first, last: last, bytes: (bytes + 63) / 64 * 64))
        }
        blocks.sort { ($1.bytes, $0.first) < ($0.bytes, $1.first) }
        var placed: [Block] = []
        for var block in blocks {
            let others = placed.filter { $0.first <= block.last && block.first <= $0.last }
            for other in others.sorted(by: { $0.offset < $1.offset }) where other.offset < block.offset + block.bytes {
                block.offset = max(block.offset, other.offset + other.bytes)
            }
            placed.append(block)
        }
        return placed.map { $0.offset + $0.bytes }.max() ?? 0
    }
}
