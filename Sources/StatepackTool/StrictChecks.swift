import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR

/// What `validate --strict` finds: nothing here is wrong by itself, all of it is worth a second look before a release.
///
/// Each check has a code of its own, and each can be satisfied by a change of the module or of the export.
package struct StrictChecks {
    private let program: BundleProgram
    private let sources: [String]
    /// Nil when the file has none; what needs one is then not checked.
    private let recording: Recording?

    package init(_ program: BundleProgram, sources: [String], recording: Recording?) {
        self.program = program
        self.sources = sources
        self.recording = recording
    }

    /// Reads no weights.
    package var findings: [Diagnostic] {
        states + inputs + outputs + (recording.map { unrecordedStates($0) + unrecordedBounds($0) } ?? []) + float64
            + contexts
    }

    private func place(_ function: BundleProgram.Function, _ instruction: BundleProgram.Instruction? = nil) -> String {
        let source = instruction?.source.flatMap { sources.indices.contains($0) ? sources[$0] : nil }
        return "function `\(function.name)`" + (source.map { ", \($0)" } ?? "")
    }

    // MARK: States

    /// True when the instruction changes some elements of its first operand where they lie: it does not read them.
    private func writesInPlace(_ instruction: BundleProgram.Instruction) -> Bool {
        guard KernelSignature.byName[program.kernels[instruction.kernel]]?.isWriting == true,
            let base = instruction.operands.first ?? nil
        else { return false }
        return base == instruction.results.first
    }

    /// Adding to what a state holds reads it.
    private func accumulates(_ instruction: BundleProgram.Instruction) -> Bool {
        program.kernels[instruction.kernel] == "index_put" && instruction.ints.first != .zero
    }

    private func isRead(_ state: Int) -> Bool {
        program.functions.contains { function in
            function.instructions.contains { instruction in
                instruction.operands.enumerated().contains { position, operand in
                    guard let operand, let slot = function.stateSlot(of: operand), function.states[slot].state == state
                    else { return false }
                    return position > 0 || !writesInPlace(instruction) || accumulates(instruction)
                }
            }
        }
    }

    private func writers(of state: Int) -> [BundleProgram.Function] {
        program.functions.filter { function in
            function.instructions.contains { instruction in
                instruction.results.contains { result in
                    function.stateSlot(of: result).map { function.states[$0].state == state } ?? false
                }
            }
        }
    }

    private var states: [Diagnostic] {
        program.states.indices.flatMap { index -> [Diagnostic] in
            let state = program.states[index]
            var findings: [Diagnostic] = []
            if !isRead(index) {
                findings.append(
                    Diagnostic(
                        .stateNeverRead, "no function reads the state `\(state.name)`", at: "state `\(state.name)`",
                        expected: "a function that reads it", found: "none",
                        hint: "take the buffer `\(state.sourceName)` out of the module, or compute an output with it"))
            }
            if writers(of: index).isEmpty {
                findings.append(
                    Diagnostic(
                        .stateNeverWritten, "no function writes the state `\(state.name)`",
                        at: "state `\(state.name)`", expected: "a function that writes it", found: "none",
                        hint: "leave `\(state.sourceName)` out of the states: it is a constant"))
            }
            return findings
        }
    }

    private func unrecordedStates(_ recording: Recording) -> [Diagnostic] {
        program.states.indices.compactMap { index -> Diagnostic? in
            let state = program.states[index]
            let writers = writers(of: index)
            let isRecorded = recording.replays.lazy.flatMap(\.steps).flatMap(\.states).contains {
                $0.name == state.name && !$0.runs.isEmpty
            }
            if writers.isEmpty || isRecorded { return nil }
            return Diagnostic(
                .stateNotRecorded, "no recorded step changes the state `\(state.name)`", at: "state `\(state.name)`",
                expected: "a step of \(writers.map { "`\($0.name)`" }.joined(separator: " or ")) that changes it",
                found: counted(recording.replays.reduce(0) { $0 + $1.steps.count }, "step") + " without a change",
                hint: "pass recording_inputs with such a step")
        }
    }

    // MARK: Inputs and outputs

    private var inputs: [Diagnostic] {
        program.functions.flatMap { function -> [Diagnostic] in
            let read = Set(
                function.instructions.lazy.flatMap(\.operands).compactMap { $0.flatMap(function.inputSlot(of:)) })
            return function.inputs.indices.compactMap { slot -> Diagnostic? in
                if read.contains(slot) || function.context?.positions == slot { return nil }
                // It counts when nothing else says how long a symbol is.
                let symbols = Set(function.values[function.inputs[slot].value].shape.compactMap(\.symbolIndex))
                let others = function.inputs.indices.filter { $0 != slot }.flatMap {
                    function.values[function.inputs[$0].value].shape.compactMap(\.symbolIndex)
                }
                let used = Set(function.symbolIndices)
                if symbols.contains(where: { used.contains($0) && !others.contains($0) }) { return nil }
                let name = function.inputs[slot].name
                return Diagnostic(
                    .inputUnused, "nothing reads the input `\(name)`", at: place(function),
                    expected: "an operator that reads it", found: "none", hint: "take it out of forward(), or use it")
            }
        }
    }

    private var outputs: [Diagnostic] {
        program.functions.flatMap { function in
            function.instructions.compactMap { instruction -> Diagnostic? in
                guard program.kernels[instruction.kernel] == "copy", let result = instruction.results.first,
                    case .output(let output) = function.values[function.root(of: result)].storage,
                    let operand = instruction.operands.first ?? nil, let slot = function.stateSlot(of: operand),
                    isWhole(operand, of: function.states[slot].value, function)
                else { return nil }
                let state = program.states[function.states[slot].state].name
                return Diagnostic(
                    .outputIsState, "the output `\(function.outputs[output].name)` is the state `\(state)`",
                    at: place(function, instruction), expected: "an output that is computed",
                    found: "a copy of the whole state in each step",
                    hint: "do not return it: callers read the state `\(state)` itself")
            }
        }
    }

    /// Whether a view has all the elements of a state, in whatever order.
    private func isWhole(_ value: Int, of state: Int, _ function: BundleProgram.Function) -> Bool {
        if value == state { return true }
        func sizes(_ value: Int) -> [SizeExpression] {
            function.values[value].shape.filter { $0 != .one }.sorted()
        }
        return sizes(value) == sizes(state)
    }

    // MARK: Bounds

    /// What exports may keep of the inputs of a recording.
    private static let recordedInputBytes = 4_000_000

    private func unrecordedBounds(_ recording: Recording) -> [Diagnostic] {
        program.symbols.indices.flatMap { symbol -> [Diagnostic] in
            let users = program.functions.filter { $0.symbolIndices.contains(symbol) }
            guard let largest = users.map({ reachableMaximum(symbol, $0) }).max() else { return [] }
            var seen: Set<Int> = []
            for step in recording.replays.lazy.flatMap(\.steps) {
                guard let function = users.first(where: { $0.name == step.function }),
                    let source = function.symbolSources.first(where: { $0.symbol == symbol }),
                    let input = step.inputs.first(where: { $0.name == function.inputs[source.input].name }),
                    input.shape.indices.contains(source.axis)
                else { continue }
                seen.insert(input.shape[source.axis])
            }
            let (name, smallest) = (program.symbols[symbol].name, program.symbols[symbol].min)
            func finding(_ end: String, _ value: Int) -> Diagnostic {
                Diagnostic(
                    .boundNotRecorded, "no recorded step has the \(end) `\(name)`", at: "symbol `\(name)`",
                    expected: "a step with \(name) = \(value)",
                    found: seen.isEmpty
                        ? "no step" : "\(name) = \(seen.sorted().map(String.init).joined(separator: ", "))",
                    hint: "add such a step to recording_inputs, or give the Dim the bounds that are used")
            }
            var findings: [Diagnostic] = []
            if !seen.contains(smallest) { findings.append(finding("smallest", smallest)) }
            if largest != smallest, !seen.contains(where: { $0 >= largest }) {
                findings.append(finding("largest", largest))
            }
            return findings
        }
    }

    /// The largest value that a recorded step of the function can have: as many positions as a state has rows, and
    /// inputs that a recording may keep.
    private func reachableMaximum(_ symbol: Int, _ function: BundleProgram.Function) -> Int {
        let bounds = program.symbols[symbol]
        var largest = bounds.max
        if let context = function.context,
            function.values[function.inputs[context.positions].value].shape.contains(where: { $0.symbolIndex == symbol }
            )
        {
            for axis in context.axes {
                if let capacity = program.states[axis.state].shape[axis.axis].constant {
                    largest = min(largest, capacity)
                }
            }
        }
        var choice = program.symbols.map(\.min)
        func inputsFit(_ value: Int) -> Bool {
            choice[symbol] = value
            var total = 0
            for input in function.inputs {
                let type = function.values[input.value]
                guard let bytes = ModelSummary.byteCount(type.scalarType, type.shape, choice) else { return false }
                total = total.addingReportingOverflow(bytes).overflow ? .max : total + bytes
            }
            return total <= Self.recordedInputBytes
        }
        // The largest that fits, found by halves: inputs grow with their symbol.
        var (low, high) = (bounds.min, max(largest, bounds.min))
        if inputsFit(high) { return high }
        while low < high {
            let middle = low + (high - low + 1) / 2
            if inputsFit(middle) { low = middle } else { high = middle - 1 }
        }
        return low
    }

    // MARK: Types

    private var float64: [Diagnostic] {
        var findings: [Diagnostic] = []
        func add(_ what: String, _ place: String, _ hint: String) {
            findings.append(
                Diagnostic(
                    .float64Left, "\(what) is float64", at: place, expected: "float32", found: "float64", hint: hint))
        }
        for state in program.states where state.scalarType == .float64 {
            add("the state `\(state.name)`", "state `\(state.name)`", "register `\(state.sourceName)` as float32")
        }
        for tensor in program.tensors where tensor.scalarType == .float64 {
            add("the weight `\(tensor.name)`", "weight `\(tensor.name)`", "call module.float() before exporting")
        }
        for function in program.functions {
            for (role, list) in [("input", function.inputs), ("output", function.outputs)] {
                for named in list where function.values[named.value].scalarType == .float64 {
                    add("the \(role) `\(named.name)`", place(function), "cast it in the model: x.float()")
                }
            }
            let computed = function.instructions.filter { instruction in
                instruction.results.contains { result in
                    guard case .arena = function.values[function.root(of: result)].storage else { return false }
                    return function.values[result].scalarType == .float64
                }
            }
            if let first = computed.first {
                add(
                    computed.count == 1
                        ? "a result of `\(program.kernels[first.kernel])`"
                        : "a result of `\(program.kernels[first.kernel])`, and of \(computed.count - 1) more operators,",
                    place(function, first), "cast it in the model: x.float()")
            }
        }
        return findings
    }

    // MARK: Positions

    private var contexts: [Diagnostic] {
        program.functions.filter { $0.context == nil }.flatMap { function -> [Diagnostic] in
            // By input: the states it indexes, each with the axis, in order.
            var indexed: [Int: [(state: String, axis: Int?)]] = [:]
            var places: [Int: String] = [:]
            for instruction in function.instructions where writesInPlace(instruction) {
                guard let base = instruction.operands[0], let slot = function.stateSlot(of: base) else { continue }
                let state = program.states[function.states[slot].state].name
                for (operand, axis) in rowIndices(of: instruction) {
                    guard let input = positionsInput(operand, function),
                        indexed[input]?.contains(where: { $0.state == state }) != true
                    else { continue }
                    indexed[input, default: []].append((state, stateAxis(axis, of: base, slot, function)))
                    places[input] = places[input] ?? place(function, instruction)
                }
            }
            return indexed.sorted { $0.key < $1.key }.map { input, states in
                let name = function.inputs[input].name
                let axes = states.map { "\"\($0.state)\": \($0.axis.map(String.init) ?? "AXIS")" }
                return Diagnostic(
                    .contextUndeclared,
                    "the input `\(name)` says which rows of a state are written, but no context is declared",
                    at: places[input]!, expected: "a context with the positions `\(name)`",
                    found: "rows of \(states.map { "`\($0.state)`" }.joined(separator: ", ")) written without one",
                    hint: """
                        export with context=statepack.Context(positions="\(name)", \
                        axes={\(axes.joined(separator: ", "))})
                        """)
            }
        }
    }

    /// Index operands of a write in place, with the axis of the first operand that each indexes.
    private func rowIndices(of instruction: BundleProgram.Instruction) -> [(operand: Int, axis: Int)] {
        switch program.kernels[instruction.kernel] {
        case "index_copy", "rotary_index_copy", "scatter":
            guard instruction.operands.count > 1, let index = instruction.operands[1],
                let axis = instruction.ints.first?.constant
            else { return [] }
            return [(index, axis)]
        case "index_put":
            return instruction.operands.dropFirst(2).enumerated().compactMap { axis, index in index.map { ($0, axis) } }
        default: return []
        }
    }

    /// The integer input that a value is, as a view or a copy of it; nil for what is computed.
    private func positionsInput(_ value: Int, _ function: BundleProgram.Function) -> Int? {
        var value = value
        // Each turn goes back by one instruction at least.
        for _ in 0...function.instructions.count {
            if let input = function.inputSlot(of: value) {
                return [.int32, .int64].contains(function.values[value].scalarType) ? input : nil
            }
            let root = function.root(of: value)
            let writers = function.instructions.filter { $0.results.contains { function.root(of: $0) == root } }
            guard writers.count == 1, program.kernels[writers[0].kernel] == "copy", let source = writers[0].operands[0],
                [.int32, .int64].contains(function.values[source].scalarType)
            else { return nil }
            value = source
        }
        return nil
    }

    /// The axis of the state that an axis of a view of it runs along: the one with the same stride.
    private func stateAxis(_ axis: Int, of view: Int, _ slot: Int, _ function: BundleProgram.Function) -> Int? {
        guard case .view(let base, let strides, _) = function.values[view].storage else { return axis }
        guard strides.indices.contains(axis) else { return nil }
        let shape = function.values[base].shape
        var stride = SizeExpression.one
        var found: Int?
        for index in shape.indices.reversed() {
            if stride == strides[axis], shape[index] != .one { found = index }
            guard let next = try? stride.times(shape[index]) else { return nil }
            stride = next
        }
        return found
    }
}

/// Weights with NaN or infinity, one finding each. Reads all weights once.
package func weightFindings(_ program: BundleProgram, bytes: (Int) -> UnsafeRawBufferPointer) -> [Diagnostic] {
    // A state may start at infinity, as a running maximum does.
    let initial = Set(
        program.states.compactMap { state -> Int? in
            if case .tensor(let index) = state.initialValue { index } else { nil }
        })
    let used = Set(
        program.functions.lazy.flatMap(\.values).compactMap { value -> Int? in
            if case .tensor(let index) = value.storage { index } else { nil }
        })
    return program.tensors.indices.compactMap { index -> Diagnostic? in
        let tensor = program.tensors[index]
        if initial.contains(index), !used.contains(index) { return nil }
        let scan = NotFinite(tensor, bytes(index))
        guard let first = scan.first else { return nil }
        return Diagnostic(
            .weightNotFinite, "the weight `\(tensor.name)` has \(scan.text)", at: "weight `\(tensor.name)`",
            expected: "finite numbers", found: "\(scan.value) at element \(first)",
            hint: "repair the checkpoint; a mask can use torch.finfo(dtype).min")
    }
}

/// The elements of a stored tensor that are NaN or infinite.
private struct NotFinite {
    var nans = 0
    var infinities = 0
    /// Row-major index.
    var first: Int?
    var value = 0.0

    init(_ tensor: BundleProgram.Tensor, _ bytes: UnsafeRawBufferPointer) {
        switch tensor.scalarType {
        case .float32: scan(bytes, UInt32.self, exponent: 0x7F80_0000, tensor)
        case .float64: scan(bytes, UInt64.self, exponent: 0x7FF0_0000_0000_0000, tensor)
        case .float16: scan(bytes, UInt16.self, exponent: 0x7C00, tensor)
        case .bfloat16: scan(bytes, UInt16.self, exponent: 0x7F80, tensor)
        default: break
        }
    }

    private mutating func scan<Bits: FixedWidthInteger & BitwiseCopyable>(
        _ bytes: UnsafeRawBufferPointer, _: Bits.Type, exponent: Bits, _ tensor: BundleProgram.Tensor
    ) {
        let elements = bytes.assumingMemoryBound(to: Bits.self)
        for position in elements.indices where elements[position] & exponent == exponent {
            let value = element(tensor.scalarType, bytes, position)
            if value.isNaN { nans += 1 } else { infinities += 1 }
            let index = Self.rowMajorIndex(position, tensor)
            if index < first ?? .max { (first, self.value) = (index, value) }
        }
    }

    private static func rowMajorIndex(_ position: Int, _ tensor: BundleProgram.Tensor) -> Int {
        guard tensor.layout == .panel16, let depth = tensor.shape.last else { return position }
        // `[N/16][K][16]`
        let (block, rest) = position.quotientAndRemainder(dividingBy: depth * 16)
        let (k, lane) = rest.quotientAndRemainder(dividingBy: 16)
        return (block * 16 + lane) * depth + k
    }

    var text: String {
        let parts = [
            nans > 0 ? counted(nans, "NaN") : nil,
            infinities == 1 ? "1 infinity" : infinities > 1 ? "\(infinities) infinities" : nil,
        ]
        return parts.compactMap { $0 }.joined(separator: " and ")
    }
}
