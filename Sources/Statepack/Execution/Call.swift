internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics

/// One run from its arguments to its outputs. Reused by later runs of the function, so that a step in steady state
/// finds its lists allocated.
///
/// A run costs a few comparisons for each argument and each of its axes besides its instructions, and nothing that grows
/// faster than the number of arguments: names are looked for where the last run found them, and addresses are sorted
/// from the order they had then.
///
/// Used by one thread at a time: the caller binds, a runner or the caller executes, the caller finishes.
final class Call: @unchecked Sendable {
    // The function outlives its calls: it is what keeps the idle ones, and every run holds it.
    unowned(unsafe) let program: FunctionProgram
    var continuation: UnsafeContinuation<Void, Never>?
    var next: Call?

    /// What was given for a slot of the function.
    private struct Bound {
        /// Nil when nothing was. In the caller's list, which outlives the run.
        var argument: UnsafeMutablePointer<Argument>?
        /// Where the run finds the elements.
        var base: UnsafeMutableRawPointer
    }

    private let slotCount: Int
    /// By slot: states, then outputs, then inputs.
    private let bound: UnsafeMutablePointer<Bound>
    /// The slot that the last run gave the argument at the same position of the same list.
    private let hints: UnsafeMutablePointer<Int>
    /// The slots by address, as they were in the last run.
    private let order: UnsafeMutablePointer<Int>
    private var symbols: [Int]
    private var isKnown: [Bool]
    private var findings: [Diagnostic] = []

    private var results: [(name: String, array: NDArray)] = []
    private var copies: [ArrayStorage] = []
    private var failure: Diagnostic?
    private var statistics = InferenceFunction.RunStatistics()

    init(of program: FunctionProgram) {
        self.program = program
        slotCount = program.slots.count
        bound = .allocate(capacity: slotCount)
        bound.initialize(repeating: Self.nothing, count: slotCount)
        hints = .allocate(capacity: slotCount)
        order = .allocate(capacity: slotCount)
        for slot in 0..<slotCount {
            (hints + slot).initialize(to: slot)
            (order + slot).initialize(to: slot)
        }
        symbols = program.symbolMinima
        isKnown = Array(repeating: false, count: symbols.count)
    }

    deinit {
        bound.deallocate()
        hints.deallocate()
        order.deallocate()
    }

    private static var nothing: Bound {
        Bound(argument: nil, base: UnsafeMutableRawPointer(mutating: emptyBase))
    }

    /// Lets go of everything that belongs to the run that ended.
    func reset() {
        bound.update(repeating: Self.nothing, count: slotCount)
        for index in symbols.indices {
            symbols[index] = program.symbolMinima[index]
            isKnown[index] = false
        }
        findings.removeAll(keepingCapacity: true)
        results.removeAll(keepingCapacity: true)
        copies.removeAll(keepingCapacity: true)
        failure = nil
        statistics = InferenceFunction.RunStatistics()
    }

    // MARK: Binding

    /// Checks every argument against the function and against each other. Writes nothing.
    ///
    /// The lists, and the arrays in them, must live until the run is finished. Throws all findings at once, as a
    /// `StatepackError`.
    func bind(
        _ inputList: borrowing ArgumentList, states stateList: borrowing ArgumentList,
        outputViews outputList: borrowing ArgumentList
    ) throws {
        assign(inputList, as: .input, to: program.inputSlots)
        assign(stateList, as: .state, to: program.stateSlots)
        assign(outputList, as: .output, to: program.outputSlots)
        requireAll(program.inputSlots)
        requireAll(program.stateSlots)
        let allKnown = readSymbols()
        for slot in program.inputSlots { check(slot, allKnown) }
        for slot in program.stateSlots { check(slot, allKnown) }
        for slot in program.outputSlots { check(slot, allKnown) }
        for slot in program.inputSlots { checkOwner(slot) }
        for slot in program.stateSlots { checkClaim(slot) }
        for slot in program.outputSlots { checkClaim(slot) }
        if findings.isEmpty && sharesBytes() { reportOverlaps() }
        if !findings.isEmpty { throw StatepackError(findings) }
        if let context = program.context { try check(context) }
        for slot in 0..<program.inputSlots.lowerBound {
            if let argument = bound[slot].argument { countCopy(argument) }
        }
    }

    /// Refuses positions that a state has no row for. The one check that reads what an input holds.
    private func check(_ context: FunctionProgram.Context) throws(StatepackError) {
        var capacity = Int.max
        var smallest = 0
        for index in context.axes.indices {
            let axis = context.axes[index]
            let length = bound[program.stateSlots.lowerBound + axis.state].argument!.pointee.shape[axis.axis]
            if length < capacity { (capacity, smallest) = (length, index) }
        }
        let positions = bound[program.inputSlots.lowerBound + context.positions].argument!
        guard let position = PositionRange(of: positions, capacity: capacity).firstOutside else { return }
        throw program.contextError(position, capacity: capacity, of: context.axes[smallest])
    }

    private func countCopy(_ argument: UnsafeMutablePointer<Argument>) {
        if argument.pointee.copiedByteCount == 0 { return }
        statistics.copyOnWriteCopies += 1
        statistics.copyOnWriteBytes += argument.pointee.copiedByteCount
    }

    private func report(
        _ code: Diagnostic.Code, _ message: String, expected: String? = nil, found: String? = nil, hint: String? = nil
    ) {
        findings.append(
            Diagnostic(
                code, message, at: "function `\(program.descriptor.name)`, run(inputs:states:outputViews:)",
                expected: expected, found: found, hint: hint))
    }

    private func assign(
        _ list: borrowing ArgumentList, as role: FunctionProgram.Role, to slots: Range<Int>
    ) {
        if list.count == 0 { return }
        let elements = list.elements
        for position in 0..<list.count {
            let argument = elements + position
            let hint = position < slots.count ? hints[slots.lowerBound + position] : -1
            var index = hint
            if hint < 0 || program.slots[hint].name != argument.pointee.name {
                guard let found = slots.first(where: { program.slots[$0].name == argument.pointee.name }) else {
                    reportUnknown(argument.pointee.name, role, slots)
                    continue
                }
                index = found
                if position < slots.count { hints[slots.lowerBound + position] = found }
            }
            if bound[index].argument != nil {
                report(
                    .duplicateArgument, "\(role) `\(argument.pointee.name)` is given twice",
                    expected: "one array", found: "two arrays")
                continue
            }
            bound[index] = Bound(argument: argument, base: argument.pointee.base)
        }
    }

    private func reportUnknown(_ name: String, _ role: FunctionProgram.Role, _ range: Range<Int>) {
        let slots = program.slots[range]
        let groups = [program.inputs, program.states, program.outputs]
        var hint: String?
        if let other = groups.joined().first(where: { $0.name == name }) {
            let place =
                switch other.role {
                case .input: "inputs:"
                case .state: "states:"
                case .output: "outputViews:"
                }
            hint = "`\(name)` is \(other.role.withArticle) of this function; pass it in `\(place)`"
        } else if let near = slots.map(\.name).nearest(to: name) {
            hint = "did you mean `\(near)`?"
        }
        report(
            .unknownArgument, "`\(name)` is not \(role.withArticle) of this function",
            expected: slots.isEmpty ? "no \(role)" : slots.map(\.name).joined(separator: ", "), found: name, hint: hint)
    }

    private func requireAll(_ slots: Range<Int>) {
        for index in slots where bound[index].argument == nil {
            let slot = program.slots[index]
            report(
                .missingArgument, "\(slot.role) `\(slot.name)` is missing", expected: "`\(slot.name)`: \(slot.text)",
                found: "no \(slot.role) of that name",
                hint: slot.role == .state
                    ? "insert every state into the views that run takes as `states:`" : nil)
        }
    }

    /// Reads the value of each symbol where the function says it comes from, and checks its bounds. False when an input
    /// that says it is missing.
    private func readSymbols() -> Bool {
        var allKnown = true
        for index in program.symbolSources.indices {
            let source = program.symbolSources[index]
            let slot = program.inputSlots.lowerBound + source.input
            // An array of another rank says nothing about the symbol; it is reported for its shape.
            guard let input = bound[slot].argument, input.pointee.shape.count == program.expectations[slot].rank else {
                allKnown = false
                continue
            }
            let value = input.pointee.shape[source.axis]
            symbols[source.symbol] = value
            isKnown[source.symbol] = true
            if value < source.minimum || value > source.maximum {
                let symbol = program.model.bundle.symbols[source.symbol]
                report(
                    .sizeOutOfBounds,
                    "axis \(source.axis) of input `\(program.slots[slot].name)` is out of bounds",
                    expected: "\(symbol.name) in \(symbol.min)...\(symbol.max)", found: "\(value)")
            }
        }
        return allKnown
    }

    // NOTE: runs for every argument of every step. Text is made only where something is wrong.
    private func check(_ index: Int, _ allKnown: Bool) {
        guard let argument = bound[index].argument else { return }
        let expected = program.expectations[index]
        if argument.pointee.scalarType != expected.scalarType { reportScalarType(argument, program.slots[index]) }
        var isShapeWrong = argument.pointee.shape.count != expected.rank
        var isConsistent = true
        if !isShapeWrong {
            for axis in 0..<expected.rank {
                let length = argument.pointee.shape[axis]
                switch program.lengths[expected.firstLength + axis] {
                case .constant(let constant): if constant != length { isShapeWrong = true }
                case .symbol(let symbol): if symbols[symbol] != length { isConsistent = false }
                case .other:
                    let expected = try? program.slots[index].shape[axis].evaluate(symbols)
                    if expected != length { isConsistent = false }
                }
            }
        }
        if isShapeWrong { return reportShape(argument, program.slots[index]) }
        if allKnown && !isConsistent { reportInconsistent(argument, program.slots[index]) }
        if index < program.inputSlots.lowerBound {
            let isAligned = Int(bitPattern: argument.pointee.base) % expected.alignment == 0
            let isDense = StridedLayout.isRowMajor(shape: argument.pointee.shape, strides: argument.pointee.strides)
            if !isAligned || !isDense { reportLayout(argument, program.slots[index], isAligned) }
        }
    }

    private func reportScalarType(_ argument: UnsafeMutablePointer<Argument>, _ slot: FunctionProgram.Slot) {
        report(
            .wrongScalarType, "\(slot.title) has the wrong scalar type", expected: slot.text,
            found: argument.pointee.text, hint: slot.hint)
    }

    private func reportShape(_ argument: UnsafeMutablePointer<Argument>, _ slot: FunctionProgram.Slot) {
        report(
            .wrongShape, "\(slot.title) has the wrong shape", expected: slot.text, found: argument.pointee.text,
            hint: slot.hint)
    }

    private func reportLayout(
        _ argument: UnsafeMutablePointer<Argument>, _ slot: FunctionProgram.Slot, _ isAligned: Bool
    ) {
        report(
            .notContiguous, "\(slot.title) is not row-major without padding",
            expected: "strides \(StridedLayout.rowMajorStrides(argument.pointee.shape.array) ?? [])",
            found: isAligned ? "strides \(argument.pointee.strides)" : "an address that is not a multiple of an element"
        )
    }

    private func reportInconsistent(_ argument: UnsafeMutablePointer<Argument>, _ slot: FunctionProgram.Slot) {
        let names = program.model.bundle.symbols.map(\.name)
        for (axis, size) in slot.shape.enumerated() where size.constant == nil {
            let expected = try? size.evaluate(symbols)
            if expected == argument.pointee.shape[axis] { continue }
            var origins: [String] = []
            for source in program.function.symbolSources where isKnown[source.symbol] {
                origins.append(
                    "\(names[source.symbol]) = \(symbols[source.symbol]) from axis \(source.axis) of input "
                        + "`\(program.inputs[source.input].name)`")
            }
            report(
                .inconsistentSizes, "axis \(axis) of \(slot.title) does not fit the other arguments",
                expected:
                    "\(size.description(symbolNames: names)) = \(expected.map(String.init) ?? "too large")"
                    + (origins.isEmpty ? "" : " (\(origins.joined(separator: ", ")))"),
                found: "\(argument.pointee.shape[axis])")
        }
    }

    /// Every array has one owner at a time.
    private func checkOwner(_ index: Int) {
        guard let argument = bound[index].argument, argument.pointee.isInUse else { return }
        // Owned by this very call: that is an overlap, reported as such.
        if !isOwned(argument) { reportInUse(program.slots[index].title) }
    }

    private func checkClaim(_ index: Int) {
        guard let argument = bound[index].argument else { return }
        switch argument.pointee.claim {
        case .none, .owner: break
        case .insertedTwice: reportSharing(program.slots[index].title)
        case .inUse:
            let title = program.slots[index].title
            if isOwned(argument) { reportSharing(title) } else { reportInUse(title) }
        }
    }

    private func isOwned(_ argument: UnsafeMutablePointer<Argument>) -> Bool {
        for slot in 0..<program.inputSlots.lowerBound {
            guard let other = bound[slot].argument, other.pointee.claim == .owner else { continue }
            if other.pointee.hasStorage(of: argument.pointee) { return true }
        }
        return false
    }

    private func reportInUse(_ what: String) {
        report(
            .stateInUse, "\(what) is in use by another run", expected: "an array that no run is using",
            found: "an array that another run is using",
            hint: "await that run first, or give every sequence its own states")
    }

    private func reportSharing(_ what: String) {
        report(
            .overlappingViews, "\(what) shares its bytes with another argument", expected: "an array of its own",
            found: "an array that is also given under another name")
    }

    /// True when bytes that the run may write belong to another argument too.
    ///
    /// The slots are kept in the order of the addresses they had last, which sorting finds done in steady state.
    private func sharesBytes() -> Bool {
        for position in 0..<slotCount {
            let slot = order[position]
            let base = UInt(bitPattern: bound[slot].base)
            var place = position
            while place > 0 && UInt(bitPattern: bound[order[place - 1]].base) > base {
                order[place] = order[place - 1]
                place -= 1
            }
            order[place] = slot
        }
        // Ends of what lies below: of everything, and of what is written.
        var (end, writtenEnd): (UInt, UInt) = (0, 0)
        for position in 0..<slotCount {
            let slot = order[position]
            guard let argument = bound[slot].argument else { continue }
            let byteCount = argument.pointee.byteCount
            if byteCount == 0 { continue }
            let start = UInt(bitPattern: argument.pointee.base)
            let isWritten = slot < program.inputSlots.lowerBound
            if start < (isWritten ? end : writtenEnd) { return true }
            end = max(end, start &+ UInt(byteCount))
            if isWritten { writtenEnd = max(writtenEnd, start &+ UInt(byteCount)) }
        }
        return false
    }

    /// Names every pair of arguments that share bytes, one of which is written.
    private func reportOverlaps() {
        func range(_ slot: Int) -> Range<Int>? {
            guard let argument = bound[slot].argument, argument.pointee.byteCount > 0 else { return nil }
            let start = Int(bitPattern: argument.pointee.base)
            return start..<start + argument.pointee.byteCount
        }
        for first in 0..<program.inputSlots.lowerBound {
            guard let one = range(first) else { continue }
            for second in first + 1..<max(slotCount, first + 1) {
                guard let other = range(second), one.overlaps(other) else { continue }
                let (a, b) = (program.slots[first], program.slots[second])
                report(
                    .overlappingViews, "\(a.role) `\(a.name)` and \(b.role) `\(b.name)` share bytes",
                    expected: "an array of its own for every state and output view",
                    found:
                        "\(min(one.upperBound, other.upperBound) - max(one.lowerBound, other.lowerBound)) bytes in common"
                )
            }
        }
    }

    // MARK: Executing

    /// Does the work on the calling thread. What goes wrong is kept for `finish`.
    func execute() {
        do throws(Diagnostic) { try executeOrThrow() } catch { failure = error }
    }

    private func executeOrThrow() throws(Diagnostic) {
        let specialization: Specialization
        let context: RunContext
        do { (specialization, context) = try program.takeContext(for: symbols) } catch {
            throw (error as? Diagnostic)
                ?? .internalFault("the function cannot be prepared: \(error)")
        }
        defer { program.giveBack(context) }
        guard let arena = program.model.arenas.take(byteCount: specialization.arenaByteCount) else {
            throw Diagnostic(
                .outOfMemory, "there is not enough memory for a run",
                at: "function `\(program.descriptor.name)`",
                expected: "\(specialization.arenaByteCount) bytes for intermediate values")
        }
        defer { program.model.arenas.giveBack(arena) }
        context.use(arena: arena.base, of: specialization)
        makeRowMajorInputs()
        try makeOutputs(specialization)
        context.point(context.plan.inputs) { bound[program.inputSlots.lowerBound + $0].base }
        context.point(context.plan.states) { bound[program.stateSlots.lowerBound + $0].base }
        context.point(context.plan.outputs) { bound[program.outputSlots.lowerBound + $0].base }
        var run = sp_run()
        run.pool = program.model.pool.handle
        run.undo = context.undoLog
        let isDone = sp_execute(context.tables.steps, context.tables.stepCount, &run)
        statistics.attentionRows = Int(clamping: run.statistics.attention_rows)
        // Counted by the kernels that know, and by the plan for those that do not.
        statistics.stateBytesCopied = max(
            specialization.stateBytesCopied, Int(clamping: run.statistics.state_bytes_copied))
        if !isDone { throw diagnostic(for: run.failure, in: context) }
    }

    /// Arrays for the outputs that have no view of the caller's.
    private func makeOutputs(_ specialization: Specialization) throws(Diagnostic) {
        for slot in program.outputSlots where bound[slot].argument == nil {
            let output = program.slots[slot]
            let shape = specialization.outputShapes[slot - program.outputSlots.lowerBound]
            guard let array = NDArray(availableShape: shape, scalarType: output.scalarType) else {
                throw Diagnostic(
                    .outOfMemory, "there is not enough memory for output `\(output.name)`",
                    at: "function `\(program.descriptor.name)`", expected: "memory for \(shape) \(output.scalarType)",
                    hint: "no state was changed")
            }
            results.append((output.name, array))
            bound[slot].base = array.storage.base
        }
    }

    /// Copies inputs whose elements do not lie one after another.
    private func makeRowMajorInputs() {
        for slot in program.inputSlots {
            guard let input = bound[slot].argument else { continue }
            let size = program.expectations[slot].alignment
            let isAligned = Int(bitPattern: input.pointee.base) % size == 0
            if isAligned && StridedLayout.isRowMajor(shape: input.pointee.shape, strides: input.pointee.strides) {
                continue
            }
            let count = StridedLayout.elementCount(input.pointee.shape) ?? 0
            let copy = ArrayStorage(zeroedByteCount: count * size)
            var target = copy.base
            StridedLayout.forEachOffset(shape: input.pointee.shape, strides: input.pointee.strides) { offset in
                target.copyMemory(from: input.pointee.base + offset * size, byteCount: size)
                target += size
                return true
            }
            copies.append(copy)
            bound[slot].base = copy.base
        }
    }

    private func diagnostic(for failure: sp_failure, in context: RunContext) -> Diagnostic {
        let index = program.steps[min(Int(failure.instruction), context.tables.stepCount - 1)].instruction
        let instruction = program.function.instructions[index]
        let name = program.model.bundle.kernels[instruction.kernel]
        let location = program.location(ofInstruction: index)
        var target = ""
        for value in instruction.results + instruction.operands.compactMap({ $0 }) {
            if case .state(let slot) = program.function.values[program.roots[value]].storage {
                target = " of state `\(program.states[slot].name)`"
                break
            }
        }
        switch failure.kind {
        case SP_INDEX_OUT_OF_RANGE:
            // What PyTorch accepts: these count a negative index from the end.
            let wraps = name == "index" || name == "index_put"
            return Diagnostic(
                .indexOutOfRange,
                "index \(failure.value) is out of range for axis \(failure.axis)\(target) in `\(name)`",
                at: location, expected: "\(wraps ? -failure.limit : 0)..<\(failure.limit)", found: "\(failure.value)",
                hint: "no state was changed")
        case SP_OUT_OF_MEMORY:
            return Diagnostic(
                .outOfMemory, "there is not enough memory for a run", at: location, hint: "no state was changed")
        default:
            return .internalFault("`\(name)` failed with reason \(failure.kind.rawValue)", at: location)
        }
    }

    // MARK: Finishing

    func finish() throws -> InferenceFunction.Outputs {
        if let failure { throw StatepackError([failure]) }
        var arrays: [(name: String, array: NDArray)] = []
        swap(&arrays, &results)
        return InferenceFunction.Outputs(arrays: arrays, statistics: statistics)
    }
}
