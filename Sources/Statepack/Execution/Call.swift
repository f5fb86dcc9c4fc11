internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics

/// One run from its arguments to its outputs. Reused by later runs of the function, so that a step in steady state
/// finds its lists allocated.
///
/// Used by one thread at a time: the caller binds, a runner or the caller executes, the caller finishes.
final class Call: @unchecked Sendable {
    // The function outlives its calls: it is what keeps the idle ones.
    unowned let program: FunctionProgram
    var continuation: UnsafeContinuation<Void, Never>?
    var next: Call?

    // One per slot of the function.
    private var inputs: [Argument?]
    private var states: [Argument?]
    private var outputs: [Argument?]
    private var symbols: [Int]
    private var isKnown: [Bool]
    private var findings: [Diagnostic] = []

    private var results: [(name: String, array: NDArray)] = []
    private var copies: [ArrayStorage] = []
    private var failure: Diagnostic?
    private var statistics = InferenceFunction.RunStatistics()

    init(of program: FunctionProgram) {
        self.program = program
        inputs = Array(repeating: nil, count: program.inputs.count)
        states = Array(repeating: nil, count: program.states.count)
        outputs = Array(repeating: nil, count: program.outputs.count)
        symbols = program.model.bundle.symbols.map(\.min)
        isKnown = Array(repeating: false, count: symbols.count)
    }

    /// Lets go of everything that belongs to the run that ended.
    func reset() {
        for index in inputs.indices { inputs[index] = nil }
        for index in states.indices { states[index] = nil }
        for index in outputs.indices { outputs[index] = nil }
        for index in symbols.indices {
            symbols[index] = program.model.bundle.symbols[index].min
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
    /// Throws all findings at once, as a `StatepackError`.
    func bind(
        _ inputList: borrowing ArgumentList, states stateList: borrowing ArgumentList,
        outputViews outputList: borrowing ArgumentList
    ) throws {
        assign(inputList, as: .input, to: program.inputs, in: &inputs)
        assign(stateList, as: .state, to: program.states, in: &states)
        assign(outputList, as: .output, to: program.outputs, in: &outputs)
        requireAll(program.inputs, in: inputs)
        requireAll(program.states, in: states)
        readSymbols()
        for (index, slot) in program.inputs.enumerated() { check(inputs[index], slot) }
        for (index, slot) in program.states.enumerated() { check(states[index], slot) }
        for (index, slot) in program.outputs.enumerated() { check(outputs[index], slot) }
        checkOwners()
        if findings.isEmpty { checkOverlaps() }
        if !findings.isEmpty { throw StatepackError(findings) }
        if let context = program.context { try check(context) }
        for index in states.indices { countCopy(states[index]!) }
        for case .some(let output) in outputs { countCopy(output) }
    }

    /// Refuses positions that a state has no row for. The one check that reads what an input holds.
    private func check(_ context: FunctionProgram.Context) throws(StatepackError) {
        var capacity = Int.max
        var smallest = context.axes[0]
        for axis in context.axes {
            let length = states[axis.state]!.shape[axis.axis]
            if length < capacity { (capacity, smallest) = (length, axis) }
        }
        let range = PositionRange(of: inputs[context.positions]!, capacity: capacity)
        guard let position = range.firstOutside else { return }
        throw program.contextError(position, capacity: capacity, of: smallest)
    }

    private func countCopy(_ argument: Argument) {
        if argument.copiedByteCount == 0 { return }
        statistics.copyOnWriteCopies += 1
        statistics.copyOnWriteBytes += argument.copiedByteCount
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
        _ list: borrowing ArgumentList, as role: FunctionProgram.Role, to slots: [FunctionProgram.Slot],
        in bound: inout [Argument?]
    ) {
        for position in 0..<list.count {
            let argument = list[position]
            guard let index = slots.firstIndex(where: { $0.name == argument.name }) else {
                reportUnknown(argument.name, role, slots)
                continue
            }
            if bound[index] != nil {
                report(
                    .duplicateArgument, "\(role) `\(argument.name)` is given twice",
                    expected: "one array", found: "two arrays")
                continue
            }
            bound[index] = argument
        }
    }

    private func reportUnknown(_ name: String, _ role: FunctionProgram.Role, _ slots: [FunctionProgram.Slot]) {
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

    private func requireAll(_ slots: [FunctionProgram.Slot], in bound: [Argument?]) {
        for (index, slot) in slots.enumerated() where bound[index] == nil {
            report(
                .missingArgument, "\(slot.role) `\(slot.name)` is missing", expected: "`\(slot.name)`: \(slot.text)",
                found: "no \(slot.role) of that name",
                hint: slot.role == .state
                    ? "insert every state into the views that run takes as `states:`" : nil)
        }
    }

    /// Reads the value of each symbol where the function says it comes from, and checks its bounds.
    private func readSymbols() {
        let bundle = program.model.bundle
        for source in program.function.symbolSources {
            // An array of another rank says nothing about the symbol; it is reported for its shape.
            guard let input = inputs[source.input], input.shape.count == program.inputs[source.input].shape.count
            else { continue }
            let value = input.shape[source.axis]
            let symbol = bundle.symbols[source.symbol]
            symbols[source.symbol] = value
            isKnown[source.symbol] = true
            if value < symbol.min || value > symbol.max {
                report(
                    .sizeOutOfBounds,
                    "axis \(source.axis) of input `\(program.inputs[source.input].name)` is out of bounds",
                    expected: "\(symbol.name) in \(symbol.min)...\(symbol.max)", found: "\(value)")
            }
        }
    }

    // NOTE: runs for every argument of every step. Text is made only where something is wrong.
    private func check(_ argument: Argument?, _ slot: FunctionProgram.Slot) {
        guard let argument else { return }
        if argument.scalarType != slot.scalarType {
            report(
                .wrongScalarType, "\(slot.title) has the wrong scalar type", expected: slot.text, found: argument.text,
                hint: slot.hint)
        }
        var isShapeWrong = argument.shape.count != slot.shape.count
        if !isShapeWrong {
            for (length, size) in zip(argument.shape, slot.shape) {
                if let constant = size.constant, constant != length { isShapeWrong = true }
            }
        }
        if isShapeWrong {
            report(
                .wrongShape, "\(slot.title) has the wrong shape", expected: slot.text, found: argument.text,
                hint: slot.hint)
            return
        }
        if !isKnown.contains(false) || program.function.symbolSources.allSatisfy({ isKnown[$0.symbol] }) {
            for (axis, size) in slot.shape.enumerated() where size.constant == nil {
                let expected = try? size.evaluate(symbols)
                if expected != argument.shape[axis] { reportInconsistent(argument, axis, size, expected, slot.title) }
            }
        }
        if slot.role != .input {
            let isAligned = Int(bitPattern: argument.base) % max(argument.scalarType.bitWidth / 8, 1) == 0
            if !isAligned || !StridedLayout.isRowMajor(shape: argument.shape, strides: argument.strides) {
                report(
                    .notContiguous, "\(slot.title) is not row-major without padding",
                    expected: "strides \(StridedLayout.rowMajorStrides(argument.shape) ?? [])",
                    found: isAligned ? "strides \(argument.strides)" : "an address that is not a multiple of an element"
                )
            }
        }
    }

    private func reportInconsistent(
        _ argument: Argument, _ axis: Int, _ size: SizeExpression, _ expected: Int?, _ what: String
    ) {
        let names = program.model.bundle.symbols.map(\.name)
        var origins: [String] = []
        for source in program.function.symbolSources where isKnown[source.symbol] {
            origins.append(
                "\(names[source.symbol]) = \(symbols[source.symbol]) from axis \(source.axis) of input "
                    + "`\(program.inputs[source.input].name)`")
        }
        report(
            .inconsistentSizes, "axis \(axis) of \(what) does not fit the other arguments",
            expected: "\(size.description(symbolNames: names)) = \(expected.map(String.init) ?? "too large")"
                + (origins.isEmpty ? "" : " (\(origins.joined(separator: ", ")))"),
            found: "\(argument.shape[axis])")
    }

    /// Every array has one owner at a time.
    private func checkOwners() {
        for (index, slot) in program.inputs.enumerated() {
            guard let storage = inputs[index]?.storage, storage.isInUse else { continue }
            // Owned by this very call: that is an overlap, reported as such.
            if !isOwned(storage) { reportInUse(slot.title) }
        }
        for (index, slot) in program.states.enumerated() { checkClaim(states[index], slot) }
        for (index, slot) in program.outputs.enumerated() { checkClaim(outputs[index], slot) }
    }

    private func checkClaim(_ argument: Argument?, _ slot: FunctionProgram.Slot) {
        guard let argument else { return }
        switch argument.claim {
        case .none, .owner: break
        case .insertedTwice: reportSharing(slot.title)
        case .inUse: if isOwned(argument.storage) { reportSharing(slot.title) } else { reportInUse(slot.title) }
        }
    }

    private func isOwned(_ storage: ArrayStorage?) -> Bool {
        states.contains { $0?.claim == .owner && $0?.storage === storage }
            || outputs.contains { $0?.claim == .owner && $0?.storage === storage }
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

    /// No bytes that the run may write belong to another argument too.
    private func checkOverlaps() {
        func range(_ argument: Argument) -> Range<Int>? {
            guard
                let bytes = NDArray.byteCount(
                    shape: argument.shape, strides: argument.strides, scalarType: argument.scalarType), bytes > 0
            else { return nil }
            let start = Int(bitPattern: argument.base)
            return start..<start + bytes
        }
        let writtenCount = states.count + outputs.count
        let total = writtenCount + inputs.count
        func argument(_ index: Int) -> (Argument?, FunctionProgram.Slot) {
            if index < states.count { return (states[index], program.states[index]) }
            if index < writtenCount {
                return (outputs[index - states.count], program.outputs[index - states.count])
            }
            return (inputs[index - writtenCount], program.inputs[index - writtenCount])
        }
        for first in 0..<writtenCount {
            guard let one = argument(first).0.flatMap(range) else { continue }
            for second in first + 1..<max(total, first + 1) {
                guard let other = argument(second).0.flatMap(range), one.overlaps(other) else { continue }
                let (a, b) = (argument(first).1, argument(second).1)
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
        do { specialization = try program.specialization(for: symbols) } catch {
            throw (error as? Diagnostic)
                ?? .internalFault("the function cannot be prepared: \(error)")
        }
        guard let arena = program.model.arenas.take(byteCount: specialization.arenaByteCount) else {
            throw Diagnostic(
                .outOfMemory, "there is not enough memory for a run",
                at: "function `\(program.descriptor.name)`",
                expected: "\(specialization.arenaByteCount) bytes for intermediate values")
        }
        let context = specialization.takeContext()
        defer {
            specialization.giveBack(context)
            program.model.arenas.giveBack(arena)
        }
        guard context.undoLog != nil || !program.needsUndoLog else {
            throw Diagnostic(
                .outOfMemory, "there is not enough memory for a run", at: "function `\(program.descriptor.name)`",
                expected: "an undo log")
        }
        context.use(arena: arena.base, of: specialization)
        let tensors = context.tables.tensors
        makeRowMajorInputs()
        for patch in specialization.inputPatches {
            tensors[patch.tensor].data = inputs[patch.slot]!.base + patch.byteOffset
        }
        for patch in specialization.statePatches {
            tensors[patch.tensor].data = states[patch.slot]!.base + patch.byteOffset
        }
        for (slot, output) in program.outputs.enumerated() where outputs[slot] == nil {
            let shape = specialization.outputShapes[slot]
            guard let array = NDArray(availableShape: shape, scalarType: output.scalarType) else {
                throw Diagnostic(
                    .outOfMemory, "there is not enough memory for output `\(output.name)`",
                    at: "function `\(program.descriptor.name)`", expected: "memory for \(shape) \(output.scalarType)",
                    hint: "no state was changed")
            }
            results.append((output.name, array))
            outputs[slot] = Argument(reading: array)
        }
        for patch in specialization.outputPatches {
            tensors[patch.tensor].data = outputs[patch.slot]!.base + patch.byteOffset
        }
        var run = sp_run()
        run.pool = program.model.pool.handle
        run.undo = context.undoLog
        let isDone = sp_execute(context.tables.instructions, context.tables.count, &run)
        statistics.attentionRows = Int(clamping: run.statistics.attention_rows)
        // Counted by the kernels that know, and by the plan for those that do not.
        statistics.stateBytesCopied = max(
            specialization.stateBytesCopied, Int(clamping: run.statistics.state_bytes_copied))
        if !isDone { throw diagnostic(for: run.failure, in: context) }
    }

    /// Copies inputs whose elements do not lie one after another.
    private func makeRowMajorInputs() {
        for index in inputs.indices {
            guard let input = inputs[index] else { continue }
            let size = input.scalarType.bitWidth / 8
            let isAligned = Int(bitPattern: input.base) % size == 0
            if isAligned && StridedLayout.isRowMajor(shape: input.shape, strides: input.strides) { continue }
            let count = StridedLayout.elementCount(input.shape) ?? 0
            let copy = ArrayStorage(zeroedByteCount: count * size)
            var target = copy.base
            StridedLayout.forEachOffset(shape: input.shape, strides: input.strides) { offset in
                target.copyMemory(from: input.base + offset * size, byteCount: size)
                target += size
                return true
            }
            copies.append(copy)
            inputs[index]!.base = copy.base
        }
    }

    private func diagnostic(for failure: sp_failure, in context: RunContext) -> Diagnostic {
        let index = program.steps[min(Int(failure.instruction), context.tables.count - 1)].instruction
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
        let arrays = results
        results = []
        return InferenceFunction.Outputs(arrays: arrays, statistics: statistics)
    }
}
