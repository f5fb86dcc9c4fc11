import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR

/// What a bench measures: a function at a choice of sizes, at which contexts, and what it is given.
///
/// Only what the author declared says what a context is: the input with positions, and the states that they index. Any
/// other input is what the recording has for these sizes, or made up; see `InputSource`.
struct BenchPlan {
    /// Where the elements of an input come from.
    enum InputSource: String {
        /// The positions, which are the context.
        case context
        /// A recorded step of the same sizes.
        case recording
        case zeros
        /// Of a bool: a mask of made-up falses would leave out work.
        case trues
        /// Between 1/8 and 1/4, of either sign.
        case seeded
    }

    struct Input {
        var name: String
        var shape: [Int]
        var source: InputSource
    }

    struct Contexts {
        /// Index into `function.inputs`.
        var positionsInput: Int
        var positionsName: String
        /// Rows of the state that has the fewest, and its name.
        var capacity: Int
        var capacityState: String
        /// By state: the axis that positions index.
        var axes: [String: Int]
        /// Positions of one step.
        var stepLength: Int
        /// Ascending.
        var list: [Int]
    }

    struct Prefill {
        var symbols: [Int]
        var length: Int
    }

    static let defaultContexts = [128, 512, 1024, 2000]
    static let defaultPrefill = 512

    let program: BundleProgram
    let function: BundleProgram.Function
    let recording: Recording?
    /// Sizes of one step: the smallest, but for a capacity that has a symbol.
    private(set) var symbols: [Int]
    private(set) var contexts: Contexts?
    private(set) var prefill: Prefill?
    /// Why a figure is missing, for people.
    private(set) var notes: [String] = []

    init(
        _ program: BundleProgram, function: BundleProgram.Function, recording: Recording?, _ arguments: Arguments
    ) throws {
        self.program = program
        self.function = function
        self.recording = recording
        let requested = try Self.contextList(arguments)
        symbols = program.symbols.map { max($0.min, min(1, $0.max)) }
        if let rules = function.context {
            enlargeCapacities(rules, to: (requested ?? Self.defaultContexts).max()! + 1)
            contexts = try contexts(rules, requested, arguments)
        } else if requested != nil {
            throw Diagnostic(
                .conflictingOptions, "--contexts needs a function whose author declared its context",
                at: arguments.commandPath, expected: "a function with a context", found: "function `\(function.name)`",
                hint: "leave --contexts out, or export with statepack.Context")
        } else {
            notes.append(
                "no contexts: the function declares none, so that nothing says which input carries positions")
        }
        prefill = try prefill(arguments)
    }

    // MARK: Contexts

    private static func contextList(_ arguments: Arguments) throws(Diagnostic) -> [Int]? {
        guard let text = arguments.value("contexts") else { return nil }
        let numbers = text.split(separator: ",", omittingEmptySubsequences: false).map { word in
            word.allSatisfy { $0.isASCII && $0.isNumber } ? Int(word) : nil
        }
        let list = numbers.compactMap { $0 }
        guard list.count == numbers.count, Set(list).count == list.count, list.count <= 64 else {
            throw Diagnostic(
                .invalidOptionValue, "option `--contexts` has an invalid value", at: arguments.commandPath,
                expected: "whole numbers with commas between them, each once", found: text)
        }
        return list.sorted()
    }

    /// A capacity that depends on a symbol is a choice of the caller's: here, what the contexts need.
    private mutating func enlargeCapacities(_ rules: ContextRules, to rows: Int) {
        for axis in rules.axes {
            program.states[axis.state].shape[axis.axis].forEachSymbol { symbol in
                let bounds = program.symbols[symbol]
                symbols[symbol] = max(symbols[symbol], min(rows, bounds.max))
            }
        }
    }

    private func contexts(
        _ rules: ContextRules, _ requested: [Int]?, _ arguments: Arguments
    ) throws -> Contexts? {
        let positions = function.inputs[rules.positions]
        let stepLength = try shape(of: positions.value, symbols).last ?? 1
        var found = Contexts(
            positionsInput: rules.positions, positionsName: positions.name, capacity: .max, capacityState: "",
            axes: [:], stepLength: stepLength, list: [])
        for axis in rules.axes {
            let state = program.states[axis.state]
            found.axes[state.name] = axis.axis
            let capacity = try state.shape[axis.axis].evaluate(symbols)
            if capacity < found.capacity { (found.capacity, found.capacityState) = (capacity, state.name) }
        }
        let last = found.capacity - stepLength
        if let tooLarge = requested?.first(where: { $0 > last }) {
            throw Diagnostic(
                .invalidOptionValue, "option `--contexts` has an invalid value", at: arguments.commandPath,
                expected: last < 0
                    ? "a step of \(stepLength) rows has no place in the \(found.capacity) of `\(found.capacityState)`"
                    : "0 to \(last), for state `\(found.capacityState)` has \(found.capacity) rows",
                found: "\(tooLarge)")
        }
        found.list = requested ?? Self.defaultContexts.filter { $0 <= last }
        // A cache smaller than any of these is still worth a figure: its last row.
        if found.list.isEmpty { found.list = [max(0, last)] }
        return found
    }

    // MARK: Prefill

    /// The size that says how many positions one run takes: that of the positions' last axis, or the only one.
    private var lengthSymbol: Int? {
        guard let rules = function.context else {
            let all = Set(function.symbolIndices)
            return all.count == 1 ? all.first : nil
        }
        let positions = function.values[function.inputs[rules.positions].value]
        return positions.shape.last { $0.constant == nil }?.symbolIndex
    }

    private mutating func prefill(_ arguments: Arguments) throws -> Prefill? {
        let requested = arguments.integer("prefill")
        if requested == 0 { return nil }
        guard let symbol = lengthSymbol, program.symbols[symbol].max > symbols[symbol] else {
            if requested != nil {
                throw Diagnostic(
                    .conflictingOptions, "--prefill needs a dynamic axis", at: arguments.commandPath,
                    expected: "one size that the inputs may choose", found: "function `\(function.name)`",
                    hint: "leave --prefill out, or export with dynamic_shapes")
            }
            notes.append("no prefill: no dynamic axis says how many positions one run takes")
            return nil
        }
        let bounds = program.symbols[symbol]
        let largest = min(bounds.max, contexts?.capacity ?? .max)
        if let requested, requested > largest || requested < bounds.min {
            throw Diagnostic(
                .invalidOptionValue, "option `--prefill` has an invalid value", at: arguments.commandPath,
                expected: "\(bounds.min) to \(largest), the sizes of `\(bounds.name)`",
                found: "\(requested)")
        }
        let length = requested ?? min(Self.defaultPrefill, largest)
        var sizes = symbols
        sizes[symbol] = length
        return Prefill(symbols: sizes, length: length)
    }

    // MARK: Arguments of a run

    func shape(of value: Int, _ symbols: [Int]) throws -> [Int] {
        try function.values[value].shape.map { try $0.evaluate(symbols) }
    }

    /// What each input is given at these sizes.
    func inputs(_ symbols: [Int]) throws -> [Input] {
        let recorded = try recordedStep(symbols)
        return try function.inputs.enumerated().map { index, input in
            let type = function.values[input.value].scalarType
            let source: InputSource =
                index == contexts?.positionsInput
                ? .context
                : recorded != nil ? .recording : type.isFloatingPoint ? .seeded : type == .bool ? .trues : .zeros
            return Input(name: input.name, shape: try shape(of: input.value, symbols), source: source)
        }
    }

    private func recordedStep(_ symbols: [Int]) throws -> Recording.Step? {
        for step in recording?.replays.lazy.flatMap(\.steps) ?? [] where step.function == function.name {
            let fits = try function.inputs.allSatisfy { input in
                let shape = try shape(of: input.value, symbols)
                return step.inputs.contains {
                    $0.name == input.name && $0.shape == shape
                        && $0.scalarType == function.values[input.value].scalarType
                }
            }
            if fits { return step }
        }
        return nil
    }

    /// New arrays. `context` is the first position; without declared positions it does not matter.
    func arrays(_ symbols: [Int], context: Int) throws -> [String: NDArray] {
        let recorded = try recordedStep(symbols)
        var arrays: [String: NDArray] = [:]
        for (index, input) in try inputs(symbols).enumerated() {
            let type = function.values[function.inputs[index].value].scalarType
            guard var array = NDArray(availableShape: input.shape, scalarType: NDArray.ScalarType(type)) else {
                throw Diagnostic(
                    .outOfMemory, "there is not enough memory for input `\(input.name)`",
                    at: "function `\(function.name)`", expected: "memory for \(input.shape) \(type)")
            }
            switch input.source {
            case .context:
                let length = max(1, input.shape.last ?? 1)
                array.withMutableBytes { bytes in
                    for index in 0..<bytes.count / type.byteCount {
                        let position = context + index % length
                        if type == .int64 {
                            bytes.storeBytes(of: Int64(position), toByteOffset: index * 8, as: Int64.self)
                        } else {
                            bytes.storeBytes(of: Int32(position), toByteOffset: index * 4, as: Int32.self)
                        }
                    }
                }
            case .recording:
                let bytes = recorded!.inputs.first { $0.name == input.name }!.bytes
                bytes.withUnsafeBytes { array.copyBytes(from: $0) }
            case .zeros: break
            case .trues: array.withMutableBytes { _ = $0.initializeMemory(as: UInt8.self, repeating: 1) }
            case .seeded:
                var random = SeededElements(seed: UInt64(index))
                array.withMutableBytes { random.fill($0, type) }
            }
            arrays[input.name] = array
        }
        return arrays
    }

    /// States as a run at these sizes takes them, with as many rows filled as the measurements read. The rows are
    /// made up: no step has to be computed to reach a context. The others stay untouched, and need no memory.
    func states(_ symbols: [Int], of function: InferenceFunction) throws -> [String: NDArray] {
        var states: [String: NDArray] = [:]
        for (index, use) in self.function.states.enumerated() {
            let state = program.states[use.state]
            let shape = try state.shape.map { try $0.evaluate(symbols) }
            var array = try function.initialValue(ofState: state.name, shape: shape)
            if let axis = contexts?.axes[state.name], state.scalarType.isFloatingPoint {
                let rows = min(filledRows, shape[axis])
                let rowBytes = shape[(axis + 1)...].reduce(state.scalarType.byteCount, *)
                var random = SeededElements(seed: UInt64(index) + 1 << 32)
                array.withMutableBytes { bytes in
                    for start in stride(from: 0, to: bytes.count, by: max(1, shape[axis] * rowBytes)) {
                        let part = UnsafeMutableRawBufferPointer(rebasing: bytes[start..<start + rows * rowBytes])
                        random.fill(part, state.scalarType)
                    }
                }
            }
            states[state.name] = array
        }
        return states
    }

    /// Rows of each state that are filled with seeded values before the first step.
    var filledRows: Int { contexts.map { $0.list.last! + $0.stepLength } ?? 0 }
}

/// Finite numbers of any float type, the same in every run: between 1/8 and 1/4, of either sign.
struct SeededElements {
    private var state: UInt64

    init(seed: UInt64) { state = seed &* 0x9E37_79B9_7F4A_7C15 | 1 }

    private mutating func next() -> UInt64 {
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        return state
    }

    /// Sign and fraction of each element are random, its exponent is fixed.
    mutating func fill(_ bytes: UnsafeMutableRawBufferPointer, _ type: StatepackBundle.ScalarType) {
        switch type {
        case .float32:
            for offset in stride(from: 0, to: bytes.count, by: 4) {
                let bits = UInt32(truncatingIfNeeded: next() >> 32) & 0x807F_FFFF | 0x3E00_0000
                bytes.storeBytes(of: bits, toByteOffset: offset, as: UInt32.self)
            }
        case .float64:
            for offset in stride(from: 0, to: bytes.count, by: 8) {
                let bits = next() & 0x800F_FFFF_FFFF_FFFF | 0x3FC0_0000_0000_0000
                bytes.storeBytes(of: bits, toByteOffset: offset, as: UInt64.self)
            }
        case .float16, .bfloat16:
            let (mask, exponent): (UInt16, UInt16) = type == .float16 ? (0x83FF, 0x3000) : (0x807F, 0x3E00)
            for offset in stride(from: 0, to: bytes.count, by: 2) {
                let bits = UInt16(truncatingIfNeeded: next() >> 48) & mask | exponent
                bytes.storeBytes(of: bits, toByteOffset: offset, as: UInt16.self)
            }
        case .bool, .int8, .int16, .int32, .int64, .uint8, .uint16, .uint32, .uint64: break
        }
    }
}
