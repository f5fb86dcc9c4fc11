internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics

/// What preparing a function for one choice of its symbols needs, sorted out once.
///
/// Sizes repeat: a decoder of thirty layers has some dozens of different ones in ten thousand places. Each different one
/// has an index here and is evaluated once per choice. Values that no symbol reaches are checked and filled in once, in
/// a template that every set of tables starts as; only the others are visited again.
final class SizePlan: @unchecked Sendable {
    /// A value's tensor in terms of sizes.
    struct Value {
        enum Kind { case dense, view, packed }

        /// Where its sizes start in `sizes`: the lengths; for a view its strides, then its offset.
        var firstSize: Int
        var rank: Int
        /// The value that owns the bytes; itself unless this is a view.
        var root: Int
        var elementByteCount: Int
        /// Bytes of a stored tensor, whatever its layout; -1 for every other value.
        var storedByteCount = -1
        /// Where a stored tensor lies; nil for every other value.
        var storedBytes: UnsafeMutableRawPointer?
        var kind = Kind.dense
    }

    /// A tensor that points into an argument or into the arena.
    struct Patch {
        var tensor: Int
        /// Index of the input, state, output or block.
        var slot: Int
    }

    /// One step as the executor walks it.
    struct Step {
        var kernel: UnsafePointer<sp_kernel>
        /// How many of `pointers`, `ints` and `floats` are its own; they follow those of the step before.
        var operandCount = 0
        var resultCount = 0
        var intCount = 0
        var floatCount = 0
    }

    /// Sizes by index: first the constants, then one value for each of `expressions`.
    private let constants: [Int]
    private let expressions: [SizeExpression]
    let sizes: [Int]
    let values: [Value]
    /// Values that symbols reach, in order. All of them when something is wrong with one of the others, which is then
    /// found, and reported, for the sizes of each run.
    private(set) var dynamicValues: [Int]
    let inputs: [Patch]
    let states: [Patch]
    let outputs: [Patch]
    let arena: [Patch]
    /// The values that are blocks of the arena.
    let blocks: [Int]
    private(set) var arenaPlans: [ArenaPlan] = []
    let steps: [Step]
    /// Indices of values, -1 for an absent operand.
    let pointers: [Int]
    let floats: [Double]
    /// Integers of calls that symbols reach, and the indices of their sizes.
    let dynamicInts: [(position: Int, size: Int)]
    /// Indices of the sizes of what each state's write back costs.
    let copiedBytes: [Int]

    // What tables start as.
    private(set) var tensors: [sp_tensor]
    private(set) var byteOffsets: [Int]
    private(set) var byteCounts: [Int]
    let ints: [Int64]

    init(_ program: FunctionProgram) {
        let function = program.function
        let bundle = program.model.bundle
        var table = SizeTable()

        var sizes: [Int] = []
        var values: [Value] = []
        var blocks: [Int] = []
        var slotOfValue = [Int](repeating: 0, count: function.values.count)
        for (index, value) in function.values.enumerated() {
            var planned = Value(
                firstSize: sizes.count, rank: value.shape.count, root: program.roots[index],
                elementByteCount: value.scalarType.byteCount)
            for length in value.shape { sizes.append(table.index(of: length)) }
            switch value.storage {
            case .view(_, let strides, let offset):
                planned.kind = .view
                for stride in strides { sizes.append(table.index(of: stride)) }
                sizes.append(table.index(of: offset))
            case .tensor(let stored):
                let tensor = bundle.tensors[stored]
                planned.storedByteCount = tensor.length
                let end = program.model.weights.count - tensor.length
                if tensor.offset >= 0 && tensor.length >= 0 && tensor.offset <= end {
                    planned.storedBytes = program.model.weights.baseAddress.map {
                        UnsafeMutableRawPointer(mutating: $0 + tensor.offset)
                    }
                }
                if tensor.layout != .rowMajor { planned.kind = .packed }
            case .arena:
                slotOfValue[index] = blocks.count
                blocks.append(index)
            case .input(let slot), .state(let slot), .output(let slot): slotOfValue[index] = slot
            }
            values.append(planned)
        }

        var steps: [Step] = []
        var pointers: [Int] = []
        var floats: [Double] = []
        var intSizes: [Int] = []
        for step in program.steps {
            switch step {
            case .save(let value, _):
                pointers.append(value)
                steps.append(Step(kernel: SaveKernel.pointer, resultCount: 1))
            case .instruction(let index):
                let instruction = function.instructions[index]
                for operand in instruction.operands { pointers.append(operand ?? -1) }
                pointers += instruction.results
                for size in instruction.ints { intSizes.append(table.index(of: size)) }
                floats += instruction.floats
                steps.append(
                    Step(
                        kernel: program.kernels[index], operandCount: instruction.operands.count,
                        resultCount: instruction.results.count, intCount: instruction.ints.count,
                        floatCount: instruction.floats.count))
            }
        }
        let copiedBytes = function.states.map { table.index(of: $0.copiedBytes) }

        constants = table.constants
        expressions = table.expressions
        self.sizes = sizes.map(table.position)
        self.values = values
        self.blocks = blocks
        self.steps = steps
        self.pointers = pointers
        self.floats = floats
        self.copiedBytes = copiedBytes.map(table.position)
        ints = intSizes.map { $0 < 0 ? 0 : Int64(table.constants[$0]) }
        dynamicInts = intSizes.indices.filter { intSizes[$0] < 0 }.map { ($0, table.position(of: intSizes[$0])) }

        var patches: (inputs: [Patch], states: [Patch], outputs: [Patch], arena: [Patch]) = ([], [], [], [])
        for (index, value) in values.enumerated() {
            let patch = Patch(tensor: index, slot: slotOfValue[value.root])
            switch function.values[value.root].storage {
            case .input: patches.inputs.append(patch)
            case .state: patches.states.append(patch)
            case .output: patches.outputs.append(patch)
            case .arena: patches.arena.append(patch)
            case .tensor, .view: break
            }
        }
        (inputs, states, outputs, arena) = patches

        tensors = zip(function.values, values).map { value, planned in
            var tensor = sp_tensor()
            tensor.rank = Int32(planned.rank)
            tensor.scalar_type = UInt16(value.scalarType.rawValue)
            tensor.layout = UInt16((planned.kind == .packed ? BundleProgram.Layout.panel16 : .rowMajor).rawValue)
            return tensor
        }
        byteOffsets = [Int](repeating: 0, count: values.count)
        byteCounts = byteOffsets

        // A view lies inside its root's bytes, so it depends on what its root depends on.
        var isDynamic = values.map { value in
            let count = value.kind == .view ? 2 * value.rank + 1 : value.rank
            return sizes[value.firstSize..<value.firstSize + count].contains { $0 < 0 }
        }
        for index in values.indices where isDynamic[values[index].root] { isDynamic[index] = true }
        dynamicValues = values.indices.filter { isDynamic[$0] }
        fillTemplate(values.indices.filter { !isDynamic[$0] })

        let minima = bundle.symbols.map(\.min)
        planArena(for: minima, function)
        if blocks.contains(where: { isDynamic[$0] }) {
            // Long enough for what grows with a length to outweigh what does not.
            planArena(for: bundle.symbols.map { min($0.max, max($0.min, 512)) }, function)
        }
    }

    private func fillTemplate(_ constantValues: [Int]) {
        let tables = CallTables(of: self)
        do throws(SizeFault) {
            let numbers = constants + [Int](repeating: 0, count: expressions.count)
            try tables.measure(constantValues, numbers, self)
            try tables.place(constantValues, numbers, self)
        } catch {
            dynamicValues = Array(values.indices)
            return
        }
        tensors = Array(UnsafeBufferPointer(start: tables.tensors, count: values.count))
        byteOffsets = Array(UnsafeBufferPointer(start: tables.byteOffsets, count: values.count))
        byteCounts = Array(UnsafeBufferPointer(start: tables.byteCounts, count: values.count))
    }

    private func planArena(for symbols: [Int], _ function: BundleProgram.Function) {
        let blocks = blocks.map { index in
            let value = function.values[index]
            guard case .arena(let first, let last) = value.storage else { preconditionFailure("not in the arena") }
            // Sizes without a value for these symbols may have one for others: the order serves all the same.
            let shape = value.shape.map { (try? $0.evaluate(symbols)) ?? 1 }
            let byteCount = StridedLayout.elementCount(shape).flatMap {
                NDArray.ScalarType(value.scalarType).byteCount(elements: $0)
            }
            // Beyond every address space, but few enough for the sum of all to be a number.
            return ArenaLayout.Block(
                byteCount: min(byteCount ?? 1, 1 << 46), lifetime: first...max(first, last))
        }
        if let plan = ArenaPlan(blocks) { arenaPlans.append(plan) }
    }

    /// Every size for one choice of symbols. Throws the index of an expression that has no value, and why.
    func numbers(for symbols: [Int]) throws(NoValue) -> [Int] {
        var numbers = constants
        numbers.reserveCapacity(constants.count + expressions.count)
        for expression in expressions {
            do throws(SizeExpression.Failure) { numbers.append(try expression.evaluate(symbols)) } catch {
                throw NoValue(expression: expression, failure: error)
            }
        }
        return numbers
    }

    struct NoValue: Error {
        var expression: SizeExpression
        var failure: SizeExpression.Failure
    }

    func shape(ofValue index: Int, _ numbers: [Int]) -> [Int] {
        let value = values[index]
        return sizes[value.firstSize..<value.firstSize + value.rank].map { numbers[$0] }
    }
}

/// Why a choice of sizes cannot be run: the value that it is about.
enum SizeFault: Error {
    case negativeLength(value: Int)
    case tooLarge(value: Int)
    case strideOverflow(value: Int)
    case leavesRoot(value: Int, elements: ClosedRange<Int>)
    case leavesWeights(value: Int)
    case viewOfView(value: Int)
}

/// Gives equal sizes one index: constants count up from 0, everything else down from -1.
private struct SizeTable {
    private(set) var constants: [Int] = []
    private(set) var expressions: [SizeExpression] = []
    private var constantIndices: [Int: Int] = [:]
    private var expressionIndices: [SizeExpression: Int] = [:]

    mutating func index(of size: SizeExpression) -> Int {
        if let constant = size.constant {
            if let known = constantIndices[constant] { return known }
            constantIndices[constant] = constants.count
            constants.append(constant)
            return constants.count - 1
        }
        if let known = expressionIndices[size] { return known }
        expressions.append(size)
        expressionIndices[size] = -expressions.count
        return -expressions.count
    }

    /// Where the size lies behind each other: constants, then expressions.
    func position(of index: Int) -> Int { index >= 0 ? index : constants.count - index - 1 }
}
