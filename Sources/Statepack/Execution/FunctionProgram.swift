internal import CStatepackKernels
import StatepackBundle
import StatepackDiagnostics
internal import Synchronization

/// One function of a bundle as the runtime needs it: its arguments by slot, its kernels by address, and what was
/// prepared for the sizes used last.
final class FunctionProgram: Sendable {
    /// How many choices of sizes stay prepared. A decoder needs one; a prompt of a new length adds one.
    ///
    /// Each takes some kilobytes: a number for every different size, and one for every intermediate value.
    static let specializationLimit = 8
    /// How many idle tables are kept; more exist only while that many runs overlap. For 800 instructions they take about
    /// 300 kB each, whatever the sizes.
    static let idleContextLimit = 4
    /// How many idle calls are kept for later runs; more only exist while that many runs overlap.
    static let idleCallLimit = 4

    enum Role: String, Sendable {
        case input, state, output

        var withArticle: String { self == .state ? "a state" : "an \(rawValue)" }
    }

    /// An input, a state or an output.
    struct Slot: Sendable {
        let role: Role
        let name: String
        let scalarType: NDArray.ScalarType
        let shape: [SizeExpression]
        /// `[1, query, 64] float32`
        let text: String

        /// How a diagnostic speaks of the array given for it.
        var title: String { role == .input ? "input `\(name)`" : "view for \(role) `\(name)`" }

        var hint: String { "create the array from descriptor.\(role)Descriptor(of: \"\(name)\")" }
    }

    struct Expectation: Sendable {
        var scalarType: NDArray.ScalarType
        var rank: Int
        /// Index into `lengths`.
        var firstLength: Int
        /// Bytes of an element.
        var alignment: Int
    }

    enum Length: Sendable {
        case constant(Int)
        /// That of a symbol.
        case symbol(Int)
        /// An expression, found in the slot's shape.
        case other
    }

    /// Where the value of a symbol comes from, with the bounds it has to keep.
    struct SymbolSource: Sendable {
        var symbol: Int
        /// Index into `inputs`, and the axis.
        var input: Int
        var axis: Int
        var minimum: Int
        var maximum: Int
    }

    let model: ModelProgram
    let function: BundleProgram.Function
    let descriptor: InferenceFunctionDescriptor
    let inputs: [Slot]
    let states: [Slot]
    let outputs: [Slot]
    /// All of them: states, then outputs, then inputs. What runs write comes before what they read.
    let slots: [Slot]
    let stateSlots: Range<Int>
    let outputSlots: Range<Int>
    let inputSlots: Range<Int>
    /// What a run compares its arguments with, one per slot, without references.
    let expectations: [Expectation]
    /// Lengths of the axes of all slots, one slot after the other.
    let lengths: [Length]
    /// One per symbol of the bundle.
    let symbolMinima: [Int]
    let symbolSources: [SymbolSource]
    /// Which input carries positions; nil when the author declared none.
    let context: Context?
    /// The value that owns the bytes of each value.
    let roots: [Int]
    /// One per instruction.
    nonisolated(unsafe) let kernels: [UnsafePointer<sp_kernel>]
    /// What a run does, in order: the instructions, and saves of states in front of some of them.
    let steps: [Step]
    /// True when an instruction may fail after a state was written, so that runs must remember what they overwrite.
    let needsUndoLog: Bool

    enum Step: Sendable {
        case instruction(Int)
        /// Remembers the bytes of a value, which the instruction is about to overwrite.
        case save(value: Int, before: Int)

        var instruction: Int {
            switch self {
            case .instruction(let index), .save(_, let index): index
            }
        }
    }

    /// Made for the first run: a program that is only described needs none.
    private let plan = Mutex<SizePlan?>(nil)
    /// The one used last comes first.
    private let specializations = Mutex<[Specialization]>([])
    /// The one used last comes last.
    private let idleContexts = Mutex<[RunContext]>([])
    private let idleCalls = Mutex<[Call]>([])

    init(_ function: BundleProgram.Function, of model: ModelProgram) throws {
        self.model = model
        self.function = function
        descriptor = model.descriptor(of: function)
        let symbols = model.bundle.symbols.map(\.name)
        func slot(
            _ role: Role, _ name: String, _ type: StatepackBundle.ScalarType, _ shape: [SizeExpression]
        ) -> Slot {
            let lengths = shape.map { $0.description(symbolNames: symbols) }.joined(separator: ", ")
            return Slot(
                role: role, name: name, scalarType: NDArray.ScalarType(type), shape: shape,
                text: "[\(lengths)] \(type.name)")
        }
        inputs = function.inputs.map {
            slot(.input, $0.name, function.values[$0.value].scalarType, function.values[$0.value].shape)
        }
        states = function.states.map {
            let state = model.bundle.states[$0.state]
            return slot(.state, state.name, state.scalarType, state.shape)
        }
        outputs = function.outputs.map {
            slot(.output, $0.name, function.values[$0.value].scalarType, function.values[$0.value].shape)
        }
        slots = states + outputs + inputs
        stateSlots = 0..<states.count
        outputSlots = states.count..<states.count + outputs.count
        inputSlots = states.count + outputs.count..<slots.count
        var lengths: [Length] = []
        expectations = slots.map { slot in
            let first = lengths.count
            for size in slot.shape {
                let symbol = size.symbolIndex.map { Length.symbol($0) }
                lengths.append(size.constant.map { .constant($0) } ?? symbol ?? .other)
            }
            return Expectation(
                scalarType: slot.scalarType, rank: slot.shape.count, firstLength: first,
                alignment: max(slot.scalarType.bitWidth / 8, 1))
        }
        self.lengths = lengths
        symbolMinima = model.bundle.symbols.map(\.min)
        symbolSources = function.symbolSources.map {
            SymbolSource(
                symbol: $0.symbol, input: $0.input, axis: $0.axis, minimum: model.bundle.symbols[$0.symbol].min,
                maximum: model.bundle.symbols[$0.symbol].max)
        }
        context = function.context.map { Context($0, of: function) }
        roots = function.values.indices.map {
            if case .view(let base, _, _) = function.values[$0].storage { base } else { $0 }
        }
        try Self.checkStorage(function, in: model)
        kernels = try Self.resolveKernels(function, in: model)
        (steps, needsUndoLog) = Self.schedule(function, roots: roots, kernels: kernels)
    }

    // MARK: Checks at load

    /// What the executor relies on and the format's own check does not promise.
    private static func checkStorage(_ function: BundleProgram.Function, in model: ModelProgram) throws {
        func malformed(_ message: String) -> Diagnostic {
            Diagnostic(
                .malformedFunction, message, at: "function `\(function.name)`",
                hint: "convert the model again with this version")
        }
        for (index, input) in function.inputs.enumerated()
        where function.values[input.value].storage != .input(index) {
            throw malformed("the value of input `\(input.name)` has other storage")
        }
        for (index, output) in function.outputs.enumerated()
        where function.values[output.value].storage != .output(index) {
            throw malformed("the value of output `\(output.name)` has other storage")
        }
        for (index, use) in function.states.enumerated() {
            let (value, state) = (function.values[use.value], model.bundle.states[use.state])
            guard value.storage == .state(index), value.scalarType == state.scalarType, value.shape == state.shape
            else { throw malformed("the value of state `\(state.name)` has other storage, type or shape") }
        }
        for (index, instruction) in function.instructions.enumerated() {
            for result in instruction.results {
                var root = function.values[result]
                if case .view(let base, _, _) = root.storage { root = function.values[base] }
                switch root.storage {
                case .input, .tensor:
                    throw malformed("instruction \(index) writes an input or a weight")
                default: break
                }
            }
        }
        for (index, value) in function.values.enumerated() {
            if value.shape.count > Int(SP_MAX_RANK) {
                throw malformed("value \(index) has \(value.shape.count) axes, at most \(SP_MAX_RANK) are possible")
            }
            guard case .view(let base, let strides, _) = value.storage else { continue }
            let root = function.values[base]
            if strides.count != value.shape.count || root.scalarType != value.scalarType {
                throw malformed("view \(index) has another type than value \(base), or a wrong number of strides")
            }
            if case .tensor(let tensor) = root.storage, model.bundle.tensors[tensor].layout != .rowMajor {
                throw malformed("view \(index) sees into a packed weight")
            }
        }
    }

    private static func resolveKernels(
        _ function: BundleProgram.Function, in model: ModelProgram
    ) throws -> [UnsafePointer<sp_kernel>] {
        var byIndex = [UnsafePointer<sp_kernel>?](repeating: nil, count: model.bundle.kernels.count)
        var findings: [Diagnostic] = []
        var reported = Set<Int>()
        for instruction in function.instructions where byIndex[instruction.kernel] == nil {
            let name = model.bundle.kernels[instruction.kernel]
            byIndex[instruction.kernel] = sp_kernel_find(name)
            if byIndex[instruction.kernel] == nil && reported.insert(instruction.kernel).inserted {
                findings.append(
                    Diagnostic(
                        .unknownKernel, "there is no kernel `\(name)`", at: "function `\(function.name)`",
                        found: name, hint: "update statepack, or convert the model again with this version"))
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        return function.instructions.map { byIndex[$0.kernel]! }
    }

    /// When every instruction that can fail comes before the first state write, a run needs no undo log: what fails,
    /// fails while all states are as they were (a kernel that writes checks all its indices first).
    private static func schedule(
        _ function: BundleProgram.Function, roots: [Int], kernels: [UnsafePointer<sp_kernel>]
    ) -> (steps: [Step], needsUndoLog: Bool) {
        func statesWritten(by instruction: BundleProgram.Instruction) -> [Int] {
            instruction.results.filter {
                if case .state = function.values[roots[$0]].storage { true } else { false }
            }
        }
        let instructions = function.instructions
        let firstWrite = instructions.firstIndex { !statesWritten(by: $0).isEmpty } ?? instructions.count
        let lastFallible = kernels.lastIndex { $0.pointee.fallible } ?? -1
        if lastFallible <= firstWrite { return (instructions.indices.map { .instruction($0) }, false) }
        var steps: [Step] = []
        for (index, instruction) in instructions.enumerated() {
            let kernel = kernels[index].pointee
            // In place these save row by row; `write` saves whatever it overwrites.
            let savesItself =
                kernel.writes
                && (instruction.operands.first == instruction.results.first || String(cString: kernel.name) == "write")
            if index < lastFallible && !savesItself {
                for value in statesWritten(by: instruction) { steps.append(.save(value: value, before: index)) }
            }
            steps.append(.instruction(index))
        }
        return (steps, true)
    }

    // MARK: Specializations

    /// Tables that have the sizes for these symbol values. The caller gives them back.
    ///
    /// The sizes used last are remembered, and so are tables for some of them: a step of the same sizes as one before
    /// finds everything in place. A known choice writes its sizes over those of another, a new one is checked besides.
    func takeContext(for symbols: [Int]) throws -> (Specialization, RunContext) {
        if let known = knownSpecialization(for: symbols) {
            let context = try takeContext(of: known)
            do throws(SizeFault) { try context.use(known) } catch {
                throw Diagnostic.internalFault("sizes that were prepared are refused: \(error)")
            }
            return (known, context)
        }
        // Outside the lock: other runs of known sizes do not wait for this one.
        let context = try takeContext(of: nil)
        let new = try Specialization(of: self, symbols: symbols, in: context)
        specializations.withLock { list in
            list.removeAll { $0.symbols == symbols }
            if list.count == Self.specializationLimit { list.removeLast() }
            list.insert(new, at: 0)
        }
        return (new, context)
    }

    func specialization(for symbols: [Int]) throws -> Specialization {
        let (specialization, context) = try takeContext(for: symbols)
        giveBack(context)
        return specialization
    }

    private func knownSpecialization(for symbols: [Int]) -> Specialization? {
        specializations.withLock { list -> Specialization? in
            if let first = list.first, first.symbols == symbols { return first }
            guard let index = list.firstIndex(where: { $0.symbols == symbols }) else { return nil }
            let found = list[index]
            // In place: the list is changed by every run that alternates between sizes.
            for position in (0..<index).reversed() { list[position + 1] = list[position] }
            list[0] = found
            return found
        }
    }

    /// Idle tables: those of `specialization` if there are any. For a new choice (nil), or when there are as many as may
    /// be, those that have been idle for longest. New ones otherwise.
    private func takeContext(of specialization: Specialization?) throws -> RunContext {
        let idle = idleContexts.withLock { contexts -> RunContext? in
            if let specialization {
                if let index = contexts.lastIndex(where: { $0.specialization === specialization }) {
                    return contexts.remove(at: index)
                }
                if contexts.count < Self.idleContextLimit { return nil }
            }
            return contexts.isEmpty ? nil : contexts.removeFirst()
        }
        if let idle { return idle }
        let context = RunContext(of: preparedPlan(), needsUndoLog: needsUndoLog)
        guard context.undoLog != nil || !needsUndoLog else {
            throw Diagnostic(
                .outOfMemory, "there is not enough memory for a run", at: "function `\(descriptor.name)`",
                expected: "an undo log")
        }
        return context
    }

    func giveBack(_ context: RunContext) {
        idleContexts.withLock { contexts in
            if contexts.count < Self.idleContextLimit { contexts.append(context) }
        }
    }

    private func preparedPlan() -> SizePlan {
        if let known = plan.withLock({ $0 }) { return known }
        let new = SizePlan(self)
        return plan.withLock { plan in
            if let other = plan { return other }
            plan = new
            return new
        }
    }

    var specializationCount: Int { specializations.withLock { $0.count } }

    var preparedSizes: [[Int]] { specializations.withLock { $0.map(\.symbols) } }

    var idleContextCount: Int { idleContexts.withLock { $0.count } }

    // MARK: Calls

    func takeCall() -> Call {
        idleCalls.withLock { $0.popLast() } ?? Call(of: self)
    }

    func giveBack(_ call: Call) {
        call.reset()
        idleCalls.withLock { calls in
            if calls.count < Self.idleCallLimit { calls.append(call) }
        }
    }

    // MARK: Initial values

    /// The initial value with the dynamic sizes that inputs of these shapes give it. Inputs out of their bounds are left
    /// for the run to report.
    func initialValue(ofState name: String, inputShapes: [String: [Int]]) throws -> NDArray {
        guard let slot = states.first(where: { $0.name == name }), slot.shape.contains(where: { $0.constant == nil })
        else { return try initialValue(ofState: name, shape: nil) }
        var symbols = model.bundle.symbols.map(\.min)
        for source in function.symbolSources {
            guard let shape = inputShapes[inputs[source.input].name], source.axis < shape.count else { continue }
            let symbol = model.bundle.symbols[source.symbol]
            symbols[source.symbol] = min(max(shape[source.axis], symbol.min), symbol.max)
        }
        return try initialValue(ofState: name, shape: slot.shape.map { try $0.evaluate(symbols) })
    }

    func initialValue(ofState name: String, shape: [Int]?) throws -> NDArray {
        guard let index = states.firstIndex(where: { $0.name == name }) else {
            throw Diagnostic(
                .unknownArgument, "`\(name)` is not a state of this function", at: "function `\(descriptor.name)`",
                expected: states.isEmpty ? "no state" : states.map(\.name).joined(separator: ", "), found: name,
                hint: states.map(\.name).nearest(to: name).map { "did you mean `\($0)`?" })
        }
        let slot = states[index]
        let declared = slot.shape.map(\.constant)
        if shape == nil && declared.contains(nil) {
            throw Diagnostic(
                .dynamicState, "state `\(name)` has a dynamic size", at: "function `\(descriptor.name)`",
                expected: "a fixed shape", found: slot.text, hint: "use initialValue(ofState:shape:)")
        }
        let resolved = shape ?? declared.map { $0! }
        guard resolved.count == declared.count,
            zip(resolved, declared).allSatisfy({ $0 >= 0 && ($1 == nil || $1 == $0) })
        else {
            throw Diagnostic(
                .wrongShape, "the shape does not fit state `\(name)`", at: "function `\(descriptor.name)`",
                expected: slot.text, found: "\(resolved)")
        }
        guard let array = NDArray(availableShape: resolved, scalarType: slot.scalarType) else {
            throw Diagnostic(
                .outOfMemory, "there is not enough memory for state `\(name)`", at: "function `\(descriptor.name)`",
                expected: "memory for \(resolved) \(slot.scalarType)")
        }
        let bytes = UnsafeMutableRawBufferPointer(start: array.storage.base, count: array.storage.byteCount)
        switch model.bundle.states[function.states[index].state].initialValue {
        case .splat(let element):
            if element.contains(where: { $0 != 0 }) {
                for offset in stride(from: 0, to: bytes.count, by: element.count) {
                    for (index, byte) in element.enumerated() { bytes[offset + index] = byte }
                }
            }
        case .tensor(let tensor):
            let stored = model.bundle.tensors[tensor]
            guard stored.layout == .rowMajor, stored.length == bytes.count else {
                throw Diagnostic(
                    .malformedFunction, "the initial value of state `\(name)` has another size than the state",
                    at: "function `\(descriptor.name)`", expected: "\(bytes.count) bytes",
                    found: "\(stored.length) bytes")
            }
            bytes.copyMemory(
                from: UnsafeRawBufferPointer(rebasing: model.weights[stored.offset..<stored.offset + stored.length]))
        }
        return array
    }
}

extension FunctionProgram {
    /// `function `decode`, layers.0.attn (model.py:42)`
    func location(ofInstruction index: Int) -> String {
        let source = function.instructions[index].source.flatMap {
            model.sources.indices.contains($0) ? model.sources[$0] : nil
        }
        return "function `\(descriptor.name)`" + (source.map { ", \($0)" } ?? "")
    }
}
