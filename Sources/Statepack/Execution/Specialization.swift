internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics

/// A function for one choice of its symbols: every size a number, every intermediate value a place.
///
/// Immutable, and small: a few numbers for each different size and each intermediate value. What the executor walks lies
/// in the tables of a ``RunContext``. Memory safety of a run rests on two things. Whoever writes sizes into tables
/// proves for each tensor that no index inside its shape leaves its root's bytes. This initialiser has every kernel
/// check its call once; a kernel's answer depends on the sizes alone.
final class Specialization: Sendable {
    /// One per symbol of the bundle; those that the function does not use are at their minimum.
    let symbols: [Int]
    /// The value of each different size.
    let numbers: [Int]
    /// The place of each intermediate value, in bytes.
    let arenaOffsets: [Int]
    /// Bytes of intermediate values; scratch memory of the kernels follows them.
    let valueByteCount: Int
    let arenaByteCount: Int
    let outputShapes: [[Int]]
    /// What the write back of states costs per run.
    let stateBytesCopied: Int

    /// Prepares the choice, and leaves its sizes in the tables of `context`.
    init(of program: FunctionProgram, symbols: [Int], in context: RunContext) throws {
        let (plan, tables) = (context.plan, context.tables)
        let refusal = Refusal(program: program, plan: plan, symbols: symbols)
        context.forgetSpecialization()
        self.symbols = symbols
        do throws(SizePlan.NoValue) { numbers = try plan.numbers(for: symbols) } catch { throw refusal.of(error) }
        do throws(SizeFault) { try tables.measure(plan.dynamicValues, numbers, plan) } catch {
            throw refusal.of(error, numbers)
        }
        guard let placement = Self.placeArena(plan, tables) else { throw refusal.ofArena }
        (arenaOffsets, valueByteCount) = placement
        do throws(SizeFault) { try tables.place(plan.dynamicValues, numbers, plan) } catch {
            throw refusal.of(error, numbers)
        }
        tables.setInts(numbers, plan)
        var copied = 0
        for size in plan.copiedBytes {
            let (sum, overflow) = copied.addingReportingOverflow(numbers[size])
            if overflow { throw refusal.malformed("the cost of the write backs has no value") }
            copied = sum
        }
        stateBytesCopied = copied
        let function = program.function
        outputShapes = function.outputs.map { [numbers] in plan.shape(ofValue: $0.value, numbers) }

        let scratch = try Self.checkKernels(program, context, arenaOffsets)
        let (total, overflow) = valueByteCount.addingReportingOverflow(scratch)
        if overflow { throw refusal.ofArena }
        arenaByteCount = total
        context.adopt(self)
    }

    /// The tightest of the plan's orders. Nil when the values fit no address space.
    private static func placeArena(_ plan: SizePlan, _ tables: CallTables) -> (offsets: [Int], byteCount: Int)? {
        let count = plan.blocks.count
        let byteCounts = plan.blocks.map { tables.byteCounts[$0] }
        var best: (offsets: [Int], byteCount: Int)?
        var ends = [Int](repeating: 0, count: count)
        for order in plan.arenaPlans {
            var offsets = [Int](repeating: 0, count: count)
            let total = byteCounts.withUnsafeBufferPointer { byteCounts in
                offsets.withUnsafeMutableBufferPointer { offsets in
                    ends.withUnsafeMutableBufferPointer { ends in
                        order.place(byteCounts: byteCounts, offsets: offsets, ends: ends)
                    }
                }
            }
            if let total, total < best?.byteCount ?? Int.max { best = (offsets, total) }
        }
        return best
    }

    /// Has each kernel check its call, and returns the most scratch memory that one of them needs.
    private static func checkKernels(
        _ program: FunctionProgram, _ context: RunContext, _ arenaOffsets: [Int]
    ) throws -> Int {
        let (plan, tables) = (context.plan, context.tables)
        // Addresses that nothing reads: checks compare them, to see what is the same view. Roots lie far apart.
        var address = UInt(ArenaLayout.alignment)
        func pretend(_ patches: [SizePlan.Patch], _ place: (Int) -> UInt) {
            for patch in patches {
                tables.tensors[patch.tensor].data = UnsafeMutableRawPointer(
                    bitPattern: place(patch.slot) &+ UInt(bitPattern: tables.byteOffsets[patch.tensor]))
            }
        }
        for (patches, slots) in [
            (plan.inputs, program.inputs.count), (plan.states, program.states.count),
            (plan.outputs, program.outputs.count),
        ] {
            pretend(patches) { address &+ UInt($0) << 44 }
            address &+= UInt(slots) << 44
        }
        pretend(plan.arena) { address &+ UInt(arenaOffsets[$0]) }
        let threads = UInt32(program.model.pool.threadCount)
        var scratch = 0
        for index in 0..<tables.stepCount {
            let kernel = tables.steps[index].kernel
            let call = UnsafePointer<sp_call>(callPointer(tables.steps + index))
            if let reason = kernel!.pointee.check(call) {
                let step = program.steps[index].instruction
                throw Diagnostic(
                    .malformedFunction,
                    "instruction \(step) (`\(String(cString: kernel!.pointee.name))`) is invalid: "
                        + String(cString: reason), at: program.location(ofInstruction: step),
                    found: tables.text(ofStep: index), hint: "convert the model again with this version")
            }
            if let ask = kernel!.pointee.scratch { scratch = max(scratch, ask(call, threads)) }
        }
        return scratch
    }

    private static func callPointer(_ step: UnsafeMutablePointer<sp_instruction>) -> UnsafeMutablePointer<sp_call> {
        (UnsafeMutableRawPointer(step) + MemoryLayout<sp_instruction>.offset(of: \.call)!)
            .assumingMemoryBound(to: sp_call.self)
    }
}

/// Says why a choice of symbols cannot be prepared. Texts are made here alone, so that preparing makes none.
private struct Refusal {
    let program: FunctionProgram
    let plan: SizePlan
    let symbols: [Int]

    func malformed(_ message: String, found: String? = nil) -> Diagnostic {
        let names = program.model.bundle.symbols.map(\.name)
        let choice = names.indices.map { "\(names[$0]) = \(symbols[$0])" }
        return Diagnostic(
            .malformedFunction, message,
            at: "function `\(program.function.name)`"
                + (choice.isEmpty ? "" : " with \(choice.joined(separator: ", "))"),
            found: found, hint: "convert the model again with this version")
    }

    var ofArena: Diagnostic {
        Diagnostic(
            .outOfMemory, "the intermediate values do not fit in memory", at: "function `\(program.function.name)`")
    }

    func of(_ fault: SizeFault, _ numbers: [Int]) -> Diagnostic {
        switch fault {
        case .negativeLength(let value):
            let length = plan.shape(ofValue: value, numbers).first { $0 < 0 } ?? 0
            return malformed("the shape of value \(value) has a negative length", found: "\(length)")
        case .tooLarge(let value):
            return malformed("value \(value) does not fit in memory", found: "\(plan.shape(ofValue: value, numbers))")
        case .strideOverflow(let value):
            return malformed("value \(value) does not fit in memory")
        case .leavesRoot(let value, let elements):
            let root = plan.values[value].root
            let stored = plan.values[root].storedByteCount
            let count =
                stored < 0
                ? StridedLayout.elementCount(plan.shape(ofValue: root, numbers)) ?? 0
                : stored / plan.values[root].elementByteCount
            return malformed(
                "value \(value) leaves the \(count) elements of value \(root)", found: "elements \(elements)")
        case .leavesWeights(let value):
            guard case .tensor(let stored) = program.function.values[plan.values[value].root].storage else {
                return malformed("value \(value) does not fit in memory")
            }
            return malformed("weight `\(program.model.bundle.tensors[stored].name)` leaves the weights section")
        case .viewOfView(let value):
            return malformed("value \(value) is a view of a view")
        }
    }

    /// Names the first place where the size stands.
    func of(_ fault: SizePlan.NoValue) -> Diagnostic {
        let function = program.function
        func isFaulty(_ size: SizeExpression) -> Bool { size == fault.expression }
        func noValue(_ what: String) -> Diagnostic { malformed("\(what) has no value", found: "\(fault.failure)") }
        for (index, value) in function.values.enumerated() where value.shape.contains(where: isFaulty) {
            return noValue("the shape of value \(index)")
        }
        for (index, value) in function.values.enumerated() {
            guard case .view(_, let strides, let offset) = value.storage else { continue }
            if strides.contains(where: isFaulty) { return noValue("a stride of view \(index)") }
            if isFaulty(offset) { return noValue("the offset of view \(index)") }
        }
        if function.instructions.contains(where: { $0.ints.contains(where: isFaulty) }) {
            return noValue("an attribute")
        }
        return noValue("the cost of a write back")
    }
}
