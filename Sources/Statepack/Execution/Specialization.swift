internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics
internal import Synchronization

/// A function for one choice of its symbols: every size a number, every view an offset, every kernel asked.
///
/// Immutable but for its idle contexts. Memory safety of a run rests on this initialiser: it proves for each tensor
/// that no index inside its shape leaves its root's bytes, and has every kernel check its call once.
final class Specialization: @unchecked Sendable {
    /// How many idle contexts are kept; more exist only while that many runs overlap.
    static let idleContextLimit = 4

    /// One per symbol of the bundle; those that the function does not use are at their minimum.
    let symbols: [Int]
    let inputShapes: [[Int]]
    let stateShapes: [[Int]]
    let outputShapes: [[Int]]
    /// One per value; `data` is set for weights only.
    let tensors: [sp_tensor]
    /// Where the addresses of a run's arguments and of its arena go.
    let inputPatches: [Patch]
    let statePatches: [Patch]
    let outputPatches: [Patch]
    let arenaPatches: [Patch]
    let ints: [Int64]
    let floats: [Double]
    /// Bytes of intermediate values; scratch memory of the kernels follows them.
    let valueByteCount: Int
    let arenaByteCount: Int
    /// What the write back of states costs per run.
    let stateBytesCopied: Int
    unowned let program: FunctionProgram
    private let idleContexts = Mutex<[RunContext]>([])

    struct Patch {
        var tensor: Int
        /// Index of the input, state or output; unused for the arena.
        var slot: Int
        var byteOffset: Int
    }

    init(of program: FunctionProgram, symbols: [Int]) throws {
        self.program = program
        self.symbols = symbols
        let function = program.function
        let bundle = program.model.bundle
        func malformed(_ message: String, found: String? = nil) -> Diagnostic {
            let choice = bundle.symbols.indices.map { "\(bundle.symbols[$0].name) = \(symbols[$0])" }
            return Diagnostic(
                .malformedFunction, message,
                at: "function `\(function.name)`" + (choice.isEmpty ? "" : " with \(choice.joined(separator: ", "))"),
                found: found, hint: "convert the model again with this version")
        }
        func evaluate(_ size: SizeExpression, _ what: @autoclosure () -> String) throws -> Int {
            do throws(SizeExpression.Failure) { return try size.evaluate(symbols) } catch {
                throw malformed("\(what()) has no value", found: "\(error)")
            }
        }
        func evaluate(_ shape: [SizeExpression], _ what: @autoclosure () -> String) throws -> [Int] {
            try shape.map {
                let length = try evaluate($0, what())
                if length < 0 { throw malformed("\(what()) has a negative length", found: "\(length)") }
                return length
            }
        }

        let shapes = try function.values.indices.map {
            try evaluate(function.values[$0].shape, "the shape of value \($0)")
        }
        let byteCounts = try function.values.indices.map { index -> Int in
            if case .tensor(let tensor) = function.values[index].storage { return bundle.tensors[tensor].length }
            let type = NDArray.ScalarType(function.values[index].scalarType)
            guard let count = StridedLayout.elementCount(shapes[index]), let bytes = type.byteCount(elements: count)
            else { throw malformed("value \(index) does not fit in memory", found: "\(shapes[index])") }
            return bytes
        }
        inputShapes = function.inputs.map { shapes[$0.value] }
        stateShapes = function.states.map { shapes[$0.value] }
        outputShapes = function.outputs.map { shapes[$0.value] }

        var blocks: [ArenaLayout.Block] = []
        var blockOfValue: [Int: Int] = [:]
        for (index, value) in function.values.enumerated() {
            guard case .arena(let first, let last) = value.storage else { continue }
            blockOfValue[index] = blocks.count
            blocks.append(ArenaLayout.Block(byteCount: byteCounts[index], lifetime: first...max(first, last)))
        }
        guard let placement = ArenaLayout.place(blocks) else {
            throw Diagnostic(
                .outOfMemory, "the intermediate values do not fit in memory", at: "function `\(function.name)`")
        }
        valueByteCount = placement.byteCount

        var tensors: [sp_tensor] = []
        tensors.reserveCapacity(function.values.count)
        var patches: (inputs: [Patch], states: [Patch], outputs: [Patch], arena: [Patch]) = ([], [], [], [])
        for (index, value) in function.values.enumerated() {
            var strides: [Int]
            var elementOffset = 0
            if case .view(_, let strideSizes, let offset) = value.storage {
                strides = try strideSizes.map { try evaluate($0, "a stride of view \(index)") }
                elementOffset = try evaluate(offset, "the offset of view \(index)")
            } else if let dense = StridedLayout.rowMajorStrides(shapes[index]) {
                strides = dense
            } else {
                throw malformed("value \(index) does not fit in memory", found: "\(shapes[index])")
            }
            let root = program.roots[index]
            let size = value.scalarType.byteCount
            var layout = BundleProgram.Layout.rowMajor
            if case .tensor(let stored) = value.storage { layout = bundle.tensors[stored].layout }
            if layout == .rowMajor {
                do {
                    let reach = try StridedLayout.reach(shape: shapes[index], strides: strides, offset: elementOffset)
                    if let reach, reach.lowerBound < 0 || reach.upperBound >= byteCounts[root] / size {
                        throw malformed(
                            "value \(index) leaves the \(byteCounts[root] / size) elements of value \(root)",
                            found: "elements \(reach)")
                    }
                    // An empty view has no element to reach; its address stays inside all the same.
                    if reach == nil { elementOffset = 0 }
                } catch is SizeOverflow {
                    throw malformed("value \(index) does not fit in memory")
                }
            }
            var tensor = sp_tensor()
            tensor.rank = Int32(shapes[index].count)
            tensor.scalar_type = UInt16(value.scalarType.rawValue)
            tensor.layout = UInt16(layout.rawValue)
            withUnsafeMutableBytes(of: &tensor.shape) { bytes in
                for (axis, length) in shapes[index].enumerated() {
                    bytes.storeBytes(of: Int64(length), toByteOffset: axis * 8, as: Int64.self)
                }
            }
            withUnsafeMutableBytes(of: &tensor.strides) { bytes in
                for (axis, stride) in strides.enumerated() {
                    bytes.storeBytes(of: Int64(stride), toByteOffset: axis * 8, as: Int64.self)
                }
            }
            var patch = Patch(tensor: index, slot: 0, byteOffset: elementOffset * size)
            switch function.values[root].storage {
            case .input(let slot):
                patch.slot = slot
                patches.inputs.append(patch)
            case .state(let slot):
                patch.slot = slot
                patches.states.append(patch)
            case .output(let slot):
                patch.slot = slot
                patches.outputs.append(patch)
            case .arena:
                patch.byteOffset += placement.offsets[blockOfValue[root]!]
                patches.arena.append(patch)
            case .tensor(let stored):
                let start = bundle.tensors[stored].offset
                guard start >= 0, byteCounts[root] >= 0, start <= program.model.weights.count - byteCounts[root] else {
                    throw malformed("weight `\(bundle.tensors[stored].name)` leaves the weights section")
                }
                tensor.data = UnsafeMutableRawPointer(
                    mutating: program.model.weights.baseAddress?.advanced(by: start + patch.byteOffset))
            case .view:
                throw malformed("value \(index) is a view of a view")
            }
            tensors.append(tensor)
        }
        self.tensors = tensors
        (inputPatches, statePatches, outputPatches, arenaPatches) = patches

        ints = try function.instructions.flatMap { instruction in
            try instruction.ints.map { Int64(try evaluate($0, "an attribute")) }
        }
        floats = function.instructions.flatMap(\.floats)
        var copied = 0
        for state in function.states {
            let bytes = try evaluate(state.copiedBytes, "the cost of a write back")
            let (sum, overflow) = copied.addingReportingOverflow(bytes)
            if overflow { throw malformed("the cost of the write backs has no value") }
            copied = sum
        }
        stateBytesCopied = copied

        arenaByteCount = try Self.checkKernels(
            program: program, tensors: tensors, patches: patches, rootByteCounts: byteCounts, ints: ints,
            floats: floats, valueByteCount: placement.byteCount)
    }

    /// Has each kernel check its call, and returns the bytes of the arena with the kernels' scratch memory.
    private static func checkKernels(
        program: FunctionProgram, tensors: [sp_tensor],
        patches: (inputs: [Patch], states: [Patch], outputs: [Patch], arena: [Patch]), rootByteCounts: [Int],
        ints: [Int64], floats: [Double], valueByteCount: Int
    ) throws -> Int {
        let tables = CallTables(program: program, tensors: tensors, ints: ints, floats: floats)
        // Addresses that nothing reads: checks compare them, to see what is the same view. Roots lie far apart.
        var address = UInt(ArenaLayout.alignment)
        func pretend(_ patches: [Patch], _ slots: Int) {
            var bases = [UInt](repeating: 0, count: max(slots, 1))
            for slot in bases.indices {
                bases[slot] = address
                address &+= 1 << 44
            }
            for patch in patches {
                tables.tensors[patch.tensor].data = UnsafeMutableRawPointer(
                    bitPattern: bases[patch.slot] &+ UInt(patch.byteOffset))
            }
        }
        pretend(patches.inputs, program.inputs.count)
        pretend(patches.states, program.states.count)
        pretend(patches.outputs, program.outputs.count)
        pretend(patches.arena, 1)
        var scratch = 0
        for (index, step) in program.steps.enumerated() {
            let kernel = tables.instructions[index].kernel.pointee
            if let reason = kernel.check(&tables.instructions[index].call) {
                throw Diagnostic(
                    .malformedFunction,
                    "instruction \(step.instruction) (`\(String(cString: kernel.name))`) is invalid: "
                        + String(cString: reason), at: program.location(ofInstruction: step.instruction),
                    found: tables.text(ofStep: index), hint: "convert the model again with this version")
            }
            if let ask = kernel.scratch {
                scratch = max(
                    scratch, ask(&tables.instructions[index].call, UInt32(program.model.pool.threadCount)))
            }
        }
        let (total, overflow) = valueByteCount.addingReportingOverflow(scratch)
        if overflow {
            throw Diagnostic(
                .outOfMemory, "the intermediate values do not fit in memory",
                at: "function `\(program.descriptor.name)`")
        }
        return total
    }

    // MARK: Contexts

    func takeContext() -> RunContext {
        idleContexts.withLock { $0.popLast() } ?? RunContext(of: self)
    }

    func giveBack(_ context: RunContext) {
        idleContexts.withLock { contexts in
            if contexts.count < Self.idleContextLimit { contexts.append(context) }
        }
    }

    var idleContextCount: Int { idleContexts.withLock { $0.count } }
}

/// The instruction list that the executor walks, with all it points to, in one allocation.
final class CallTables: @unchecked Sendable {
    let tensors: UnsafeMutablePointer<sp_tensor>
    let instructions: UnsafeMutablePointer<sp_instruction>
    let count: Int
    private let block: UnsafeMutableRawPointer

    init(program: FunctionProgram, tensors source: [sp_tensor], ints: [Int64], floats: [Double]) {
        let list = program.function.instructions
        let pointerCount = program.steps.reduce(0) { count, step in
            switch step {
            case .instruction(let index): count + list[index].operands.count + list[index].results.count
            case .save: count + 1
            }
        }
        count = program.steps.count
        let tensorBytes = source.count * MemoryLayout<sp_tensor>.stride
        let instructionBytes = count * MemoryLayout<sp_instruction>.stride
        let total = tensorBytes + instructionBytes + (pointerCount + ints.count + floats.count) * 8
        block = .allocate(byteCount: max(total, 8), alignment: ArenaLayout.alignment)
        tensors = block.bindMemory(to: sp_tensor.self, capacity: source.count)
        tensors.initialize(from: source, count: source.count)
        instructions = (block + tensorBytes).bindMemory(to: sp_instruction.self, capacity: count)
        var pointers = (block + tensorBytes + instructionBytes).bindMemory(
            to: UnsafeMutablePointer<sp_tensor>?.self, capacity: pointerCount)
        var int = UnsafeMutableRawPointer(pointers + pointerCount).bindMemory(to: Int64.self, capacity: ints.count)
        var float = UnsafeMutableRawPointer(int + ints.count).bindMemory(to: Double.self, capacity: floats.count)
        int.initialize(from: ints, count: ints.count)
        float.initialize(from: floats, count: floats.count)

        func append(_ values: [Int?]) -> UnsafeMutablePointer<UnsafeMutablePointer<sp_tensor>?> {
            let start = pointers
            for value in values {
                pointers.initialize(to: value.map { tensors + $0 })
                pointers += 1
            }
            return start
        }
        for (position, step) in program.steps.enumerated() {
            var call = sp_call()
            var kernel = SaveKernel.pointer
            switch step {
            case .save(let value, _):
                call.results = UnsafeRawPointer(append([value]))
                    .assumingMemoryBound(to: UnsafeMutablePointer<sp_tensor>?.self)
                call.result_count = 1
            case .instruction(let index):
                let instruction = list[index]
                kernel = program.kernels[index]
                call.operands = UnsafeRawPointer(append(instruction.operands))
                    .assumingMemoryBound(to: UnsafePointer<sp_tensor>?.self)
                call.results = UnsafeRawPointer(append(instruction.results))
                    .assumingMemoryBound(to: UnsafeMutablePointer<sp_tensor>?.self)
                call.ints = UnsafePointer(int)
                call.floats = UnsafePointer(float)
                call.operand_count = UInt32(instruction.operands.count)
                call.result_count = UInt32(instruction.results.count)
                call.int_count = UInt32(instruction.ints.count)
                call.float_count = UInt32(instruction.floats.count)
                int += instruction.ints.count
                float += instruction.floats.count
            }
            (instructions + position).initialize(to: sp_instruction(kernel: kernel, call: call))
        }
    }

    deinit { block.deallocate() }

    /// Operands and results of a call, for a diagnostic.
    func text(ofStep index: Int) -> String {
        let call = instructions[index].call
        func text(_ tensor: UnsafePointer<sp_tensor>?) -> String {
            guard let tensor else { return "none" }
            let shape = withUnsafeBytes(of: tensor.pointee.shape) { bytes in
                (0..<Int(tensor.pointee.rank)).map { bytes.load(fromByteOffset: $0 * 8, as: Int64.self) }
            }
            let type = StatepackBundle.ScalarType(rawValue: UInt32(tensor.pointee.scalar_type))
            return "\(shape) \(type?.name ?? "?")"
        }
        let operands = (0..<Int(call.operand_count)).map { text(call.operands[$0]) }
        let results = (0..<Int(call.result_count)).map { text(UnsafePointer(call.results[$0])) }
        return "(\(operands.joined(separator: ", "))) -> (\(results.joined(separator: ", ")))"
    }
}

/// What one run needs besides its arguments and its arena. Used by one run at a time.
final class RunContext: @unchecked Sendable {
    let tables: CallTables
    /// Nil when no instruction can fail after a state was written.
    let undoLog: OpaquePointer?
    private var arena: UnsafeMutableRawPointer?

    init(of specialization: Specialization) {
        tables = CallTables(
            program: specialization.program, tensors: specialization.tensors, ints: specialization.ints,
            floats: specialization.floats)
        undoLog = specialization.program.needsUndoLog ? sp_undo_log_create() : nil
    }

    deinit {
        if let undoLog { sp_undo_log_destroy(undoLog) }
    }

    /// Points all intermediate values, and the kernels' scratch memory, into an arena.
    func use(arena base: UnsafeMutableRawPointer, of specialization: Specialization) {
        if arena == base { return }
        for patch in specialization.arenaPatches { tables.tensors[patch.tensor].data = base + patch.byteOffset }
        let scratch = base + specialization.valueByteCount
        for index in 0..<tables.count { tables.instructions[index].call.scratch = scratch }
        arena = base
    }
}
