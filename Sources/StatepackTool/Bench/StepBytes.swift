import StatepackBundle
import StatepackIR

/// What one step has to read at least: each weight once, the valid rows of each cache once, other states once.
struct StepBytes: Hashable {
    var weights: Int
    /// Of states that positions index.
    var cacheRows: Int
    var otherStates: Int

    var total: Int { weights + cacheRows + otherStates }

    var json: JSONValue {
        [
            "weights": .integer(weights), "cacheRows": .integer(cacheRows), "otherStates": .integer(otherStates),
            "total": .integer(total),
        ]
    }

    /// - Parameters:
    ///   - rows: Valid rows of each cache, those that the step writes included.
    ///   - attentionRows: Key rows that a run read, from its statistics.
    init(
        _ program: BundleProgram, _ function: BundleProgram.Function, _ symbols: [Int], rows: Int, attentionRows: Int
    ) throws {
        weights = try Self.weightBytes(program, function, symbols)
        let indexed = Dictionary(
            uniqueKeysWithValues: (function.context?.axes ?? []).map { ($0.state, $0.axis) })
        var cache = 0
        otherStates = 0
        for use in function.states {
            let state = program.states[use.state]
            let shape = try state.shape.map { try $0.evaluate(symbols) }
            let bytes = state.scalarType.byteCount(ofShape: shape) ?? 0
            if let axis = indexed[use.state] {
                cache += shape[axis] == 0 ? 0 : bytes / shape[axis] * min(rows, shape[axis])
            } else {
                otherStates += bytes
            }
        }
        // A window leaves rows out that are valid: what attention says it read is nearer to the truth.
        if let row = Self.attentionRowBytes(program, function, symbols), attentionRows > 0 {
            cache = min(cache, attentionRows * row)
        }
        cacheRows = cache
    }

    /// Bytes of a key row and its value row, when all attention of the function reads rows of one size.
    private static func attentionRowBytes(
        _ program: BundleProgram, _ function: BundleProgram.Function, _ symbols: [Int]
    ) -> Int? {
        var found: Int?
        for instruction in function.instructions {
            let kernel = program.kernels[instruction.kernel]
            guard kernel.contains("sdpa"), let names = KernelSignature.byName[kernel]?.operands.map(\.name) else {
                continue
            }
            var row = 0
            for (name, operand) in zip(names, instruction.operands) where name == "key" || name == "value" {
                guard let operand, let width = try? function.values[operand].shape.last?.evaluate(symbols) else {
                    return nil
                }
                row += width * function.values[operand].scalarType.byteCount
            }
            if row == 0 || found != nil && found != row { return nil }
            found = row
        }
        return found
    }

    /// A table that rows are only looked up in counts with the rows that one step takes.
    private static func weightBytes(
        _ program: BundleProgram, _ function: BundleProgram.Function, _ symbols: [Int]
    ) throws -> Int {
        var whole: Set<Int> = []
        var looked: [Int: Int] = [:]
        for instruction in function.instructions {
            let isLookup = ["embedding", "index_select", "gather", "index"].contains(
                program.kernels[instruction.kernel])
            for (position, operand) in instruction.operands.enumerated() {
                guard let operand, case .tensor(let tensor) = function.values[function.root(of: operand)].storage
                else { continue }
                if isLookup, position == 0, let result = instruction.results.first {
                    let value = function.values[result]
                    looked[tensor, default: 0] += try value.shape.reduce(value.scalarType.byteCount) {
                        $0 * (try $1.evaluate(symbols))
                    }
                } else {
                    whole.insert(tensor)
                }
            }
        }
        return whole.reduce(0) { $0 + program.tensors[$1].length }
            + looked.reduce(0) { whole.contains($1.key) ? $0 : $0 + min($1.value, program.tensors[$1.key].length) }
    }
}
