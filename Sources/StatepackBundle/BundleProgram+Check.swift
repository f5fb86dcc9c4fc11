package import StatepackDiagnostics

extension BundleProgram {
    /// Proves that every index, size, name, storage and tensor range of the program holds together, so
    /// that nothing which uses it needs checks of its own. The one exception: whether a view lies inside
    /// its base is proved here only when all sizes are constant, and by whoever evaluates them otherwise.
    ///
    /// Costs time proportional to the program. Throws what it found, the first twenty at most.
    package func check(weightsLength: Int, sourceCount: Int, file: String = "bundle") throws(DiagnosticList) {
        let findings = findings(weightsLength: weightsLength, sourceCount: sourceCount, file: file)
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    func findings(weightsLength: Int, sourceCount: Int, file: String) -> [Diagnostic] {
        var checker = ProgramChecker(program: self, sourceCount: sourceCount, file: file)
        checker.checkTables(weightsLength: weightsLength)
        for index in functions.indices where checker.findings.count < ProgramChecker.maximumFindings {
            checker.check(functions[index])
        }
        return checker.findings
    }

    /// Bytes of a tensor in its layout; nil when the layout does not fit or the number exceeds int64.
    package static func byteCount(scalarType: ScalarType, shape: [Int], layout: Layout) -> Int? {
        var lengths = shape
        if layout == .panel16 {
            guard shape.count == 2, scalarType.byteCount == 4, shape[0] <= Int.max - 15 else { return nil }
            lengths[0] = (shape[0] + 15) / 16 * 16
        }
        return scalarType.byteCount(ofShape: lengths)
    }

    /// Gives every tensor the offset and length that the format wants: in the order of `tensors`, each at
    /// the next multiple of 64. Returns the length of the weights section, nil when it exceeds int64 or
    /// a layout does not fit its tensor.
    package mutating func layOutTensors() -> Int? {
        var end = 0
        for index in tensors.indices {
            guard
                let length = Self.byteCount(
                    scalarType: tensors[index].scalarType, shape: tensors[index].shape, layout: tensors[index].layout),
                length <= Int.max / 2 - end
            else { return nil }
            tensors[index].offset = FileLayout.align(end, to: FileLayout.tensorAlignment)
            tensors[index].length = length
            end = tensors[index].offset + length
        }
        return end
    }
}

private struct ProgramChecker {
    static let maximumFindings = 20

    let program: BundleProgram
    let sourceCount: Int
    let file: String
    private let log = FindingLog()

    var findings: [Diagnostic] { log.findings }

    /// Shared, so that a report may look at the checker while it is made.
    private final class FindingLog {
        var findings: [Diagnostic] = []
    }

    init(program: BundleProgram, sourceCount: Int, file: String) {
        self.program = program
        self.sourceCount = sourceCount
        self.file = file
    }

    /// Evaluates nothing once there are enough findings: a text may cost as much as the program has symbols.
    private func report(
        _ code: Diagnostic.Code, _ message: @autoclosure () -> String, at place: @autoclosure () -> String,
        expected: @autoclosure () -> String? = nil, found: @autoclosure () -> String? = nil
    ) {
        guard log.findings.count < Self.maximumFindings else { return }
        log.findings.append(
            Diagnostic(
                code, message(), at: "\(file), section program, \(place())", expected: expected(), found: found()))
    }

    /// A text that the format's reader would refuse must not be written either.
    private func checkText(_ text: String, _ what: String, at place: @autoclosure () -> String) {
        if text.utf8.count > BundleProgram.Limits.textBytes {
            report(
                .bundleProgramLimit, "\(what) is too long", at: place(),
                expected: "at most \(BundleProgram.Limits.textBytes) bytes", found: "\(text.utf8.count) bytes")
        }
    }

    private func checkCount(_ count: Int, _ limit: Int, _ what: String, at place: @autoclosure () -> String) {
        if count > limit {
            report(
                .bundleProgramLimit, "there are too many \(what)", at: place(), expected: "at most \(limit)",
                found: "\(count)")
        }
    }

    private func isName(_ text: String) -> Bool {
        text.utf8.count <= BundleProgram.Limits.nameBytes
            && !text.unicodeScalars.contains { $0.value < 0x20 || (0x7F...0x9F).contains($0.value) }
    }

    /// True when `index` is in `0..<count`.
    private mutating func isIndex(
        _ index: Int, of count: Int, _ what: String, at place: @autoclosure () -> String
    ) -> Bool {
        if index >= 0, index < count { return true }
        report(
            .bundleIndex, "\(what) is out of range", at: place(), expected: "0 to \(count - 1) of \(count)",
            found: "\(index)")
        return false
    }

    private mutating func checkNames(_ names: some Sequence<String>, _ what: String, at place: String) {
        var seen: Set<String> = []
        for name in names {
            if name.isEmpty || name.utf8.count > BundleProgram.Limits.nameBytes {
                report(
                    .bundleName, "the name of \(what) has an invalid length", at: place,
                    expected: "1 to \(BundleProgram.Limits.nameBytes) bytes", found: "\(name.utf8.count) bytes")
            } else if name.unicodeScalars.contains(where: { $0.value < 0x20 || (0x7F...0x9F).contains($0.value) }) {
                report(.bundleName, "the name of \(what) has a control character", at: place, found: name)
            } else if !seen.insert(name).inserted {
                report(.bundleName, "the name of \(what) is used twice", at: place, found: name)
            }
        }
    }

    private func text(_ shape: [SizeExpression], _ type: ScalarType) -> String {
        let names = program.symbols.map(\.name)
        return "\(type)[\(shape.map { $0.description(symbolNames: names) }.joined(separator: ", "))]"
    }

    // MARK: Tables

    mutating func checkTables(weightsLength: Int) {
        if program.programDigest.count != 32 {
            report(
                .bundleProgramMalformed, "the program digest has the wrong length", at: "header", expected: "32 bytes",
                found: "\(program.programDigest.count) bytes")
        }
        checkText(program.producer, "the producer", at: "header")
        checkCount(program.symbols.count, BundleProgram.Limits.arguments, "symbols", at: "symbols")
        checkNames(program.symbols.map(\.name), "a symbol", at: "symbols")
        checkNames(program.tensors.map(\.name), "a tensor", at: "tensors")
        checkNames(program.states.map(\.name), "a state", at: "states")
        checkNames(program.functions.map(\.name), "a function", at: "functions")
        checkNames(program.kernels, "a kernel", at: "kernels")
        for symbol in program.symbols where !symbol.name.isEmpty && !BundleProgram.isSymbolName(symbol.name) {
            report(
                .bundleName, "the name of a symbol is not an identifier", at: "symbols",
                expected: "letters, digits and `_`, no digit first", found: symbol.name)
        }
        for symbol in program.symbols where symbol.min < 0 || symbol.min > symbol.max {
            report(
                .bundleSymbol, "the bounds of a symbol are invalid", at: "symbol `\(symbol.name)`",
                expected: "0 <= min <= max", found: "min \(symbol.min), max \(symbol.max)")
        }
        checkTensors(weightsLength: weightsLength)
        for state in program.states { check(state) }
    }

    private mutating func checkTensors(weightsLength: Int) {
        var end = 0
        for tensor in program.tensors {
            let place = "tensor `\(tensor.name)`"
            guard tensor.shape.count <= BundleProgram.Limits.rank, tensor.shape.allSatisfy({ $0 >= 0 }) else {
                report(
                    .bundleRank, "a tensor has an invalid shape", at: place,
                    expected: "at most \(BundleProgram.Limits.rank) axes, lengths 0 or more", found: "\(tensor.shape)")
                return
            }
            let bytes = BundleProgram.byteCount(
                scalarType: tensor.scalarType, shape: tensor.shape, layout: tensor.layout)
            guard let bytes, bytes == tensor.length else {
                report(
                    .bundleTensorLength, "the length of a tensor does not fit its type, shape and layout", at: place,
                    expected: bytes.map { "\($0) bytes" }
                        ?? (tensor.layout == .panel16
                            ? "a matrix of 32-bit elements for layout panel16" : "a size below 2^63 bytes"),
                    found: "\(tensor.length) bytes, \(tensor.scalarType)\(tensor.shape) \(tensor.layout)")
                return
            }
            // Tensors follow each other without holes, so that none can overlap and nothing can hide.
            let place0 = FileLayout.align(end, to: FileLayout.tensorAlignment)
            guard tensor.offset == place0, tensor.offset <= weightsLength || tensor.length == 0,
                tensor.length <= max(0, weightsLength - tensor.offset)
            else {
                report(
                    .bundleTensorRange, "a tensor does not lie where the format puts it", at: place,
                    expected: "offset \(place0), length up to \(max(0, weightsLength - place0))",
                    found: "offset \(tensor.offset), length \(tensor.length)")
                return
            }
            end = tensor.offset + tensor.length
        }
        if end != weightsLength {
            report(
                .bundleTensorRange, "the weights section does not end with the last tensor", at: "tensors",
                expected: "\(end) bytes", found: "\(weightsLength) bytes")
        }
    }

    private mutating func check(_ state: BundleProgram.State) {
        let place = "state `\(state.name)`"
        if !isName(state.sourceName) {
            report(
                .bundleName, "the source of a state is no name", at: place,
                expected: "at most \(BundleProgram.Limits.nameBytes) bytes without control characters",
                found: "\(state.sourceName.utf8.count) bytes")
        }
        checkShape(state.shape, place)
        switch state.initialValue {
        case .splat(let element):
            if !state.initialDigest.isEmpty {
                report(
                    .bundleInitialValue, "an initial element has the digest of a tensor", at: place,
                    expected: "no digest", found: hexadecimal(state.initialDigest))
            }
            let isValid = element.count == state.scalarType.byteCount && (state.scalarType != .bool || element[0] <= 1)
            if !isValid {
                report(
                    .bundleInitialValue, "the initial element does not fit the state", at: place,
                    expected: "\(state.scalarType.byteCount) bytes of \(state.scalarType)", found: hexadecimal(element))
            }
        case .tensor(let index):
            guard isIndex(index, of: program.tensors.count, "the initial tensor", at: place) else { return }
            if state.initialDigest.count != 32 {
                report(
                    .bundleInitialValue, "the digest of an initial tensor has the wrong length", at: place,
                    expected: "32 bytes", found: "\(state.initialDigest.count) bytes")
            }
            let tensor = program.tensors[index]
            if tensor.scalarType != state.scalarType || tensor.layout != .rowMajor
                || tensor.shape.map({ SizeExpression($0) }) != state.shape
            {
                report(
                    .bundleInitialValue, "the initial tensor does not fit the state", at: place,
                    expected: "\(text(state.shape, state.scalarType)) rowMajor",
                    found: "\(tensor.scalarType)\(tensor.shape) \(tensor.layout)")
            }
        }
    }

    private mutating func checkShape(_ shape: [SizeExpression], _ place: @autoclosure () -> String) {
        if shape.count > BundleProgram.Limits.rank {
            report(
                .bundleRank, "a shape has too many axes", at: place(),
                expected: "at most \(BundleProgram.Limits.rank)", found: "\(shape.count)")
        }
        for size in shape {
            checkSymbols(size, place())
            if let constant = size.constant, constant < 0 {
                report(.bundleSize, "a length is negative", at: place(), expected: "0 or more", found: "\(constant)")
            }
        }
    }

    private mutating func checkSymbols(_ size: SizeExpression, _ place: @autoclosure () -> String) {
        if size.constant != nil { return }
        var invalid: Int?
        size.forEachSymbol { if $0 < 0 || $0 >= program.symbols.count { invalid = $0 } }
        if let invalid {
            report(
                .bundleSize, "a size uses a symbol that the program does not have", at: place(),
                expected: "0 to \(program.symbols.count - 1) of \(program.symbols.count)", found: "\(invalid)")
        }
    }

    // MARK: Functions

    mutating func check(_ function: BundleProgram.Function) {
        let place = "function `\(function.name)`"
        checkCount(function.inputs.count, BundleProgram.Limits.arguments, "inputs", at: place)
        checkCount(function.outputs.count, BundleProgram.Limits.arguments, "outputs", at: place)
        checkCount(function.states.count, BundleProgram.Limits.arguments, "states", at: place)
        let inArena = function.values.count { if case .arena = $0.storage { true } else { false } }
        checkCount(inArena, BundleProgram.Limits.arenaValues, "values in scratch memory", at: place)
        checkNames(function.inputs.map(\.name), "an input", at: place)
        checkNames(function.outputs.map(\.name), "an output", at: place)
        let before = findings.count
        checkStates(function, place)
        for index in function.values.indices { check(function.values[index], index, function, place) }
        checkNamedValues(function, place)
        checkContext(function, place)
        checkSymbolSources(function, place)
        // Instructions are judged by what their values are, which holds only so far.
        if findings.count == before { checkInstructions(function, place) }
    }

    private mutating func checkStates(_ function: BundleProgram.Function, _ place: String) {
        var used: Set<Int> = []
        var names = Set(function.inputs.map(\.name)).union(function.outputs.map(\.name))
        for (slot, use) in function.states.enumerated() {
            let here = "\(place), state \(slot)"
            guard isIndex(use.state, of: program.states.count, "a state", at: here),
                isIndex(use.value, of: function.values.count, "the value of a state", at: here)
            else { continue }
            let state = program.states[use.state]
            let value = function.values[use.value]
            if !used.insert(use.state).inserted {
                report(.bundleState, "a function lists a state twice", at: here, found: state.name)
                continue
            }
            if !names.insert(state.name).inserted {
                report(
                    .bundleName, "a state has the name of an input or output", at: here, found: state.name)
            }
            if value.storage != .state(slot) {
                report(
                    .bundleStorage, "the value of a state is not stored in the state", at: here,
                    expected: "\(BundleProgram.Storage.state(slot))", found: "\(value.storage)")
            }
            if value.scalarType != state.scalarType || value.shape != state.shape {
                report(
                    .bundleState, "the value of state `\(state.name)` has another type or shape", at: here,
                    expected: text(state.shape, state.scalarType), found: text(value.shape, value.scalarType))
            }
            checkSymbols(use.copiedBytes, here)
            checkText(use.writtenBy, "how a state is written", at: here)
            checkText(use.copyReason, "why a state is copied", at: here)
            if (use.copiedBytes == .zero) != use.copyReason.isEmpty {
                report(
                    .bundleState, "a state is copied without a reason, or has a reason without being copied", at: here,
                    expected: "both or neither",
                    found: "\(use.copiedBytes.description(symbolNames: program.symbols.map(\.name))) bytes, "
                        + (use.copyReason.isEmpty ? "no reason" : "a reason"))
            }
        }
    }

    private mutating func check(
        _ value: BundleProgram.Value, _ index: Int, _ function: BundleProgram.Function, _ place: String
    ) {
        func here() -> String { "\(place), value \(index)" }
        checkShape(value.shape, here())
        switch value.storage {
        case .input(let slot):
            guard isIndex(slot, of: function.inputs.count, "an input", at: here()) else { return }
            checkOwner(function.inputs[slot].value, index, here())
        case .output(let slot):
            guard isIndex(slot, of: function.outputs.count, "an output", at: here()) else { return }
            checkOwner(function.outputs[slot].value, index, here())
        case .state(let slot):
            guard isIndex(slot, of: function.states.count, "a state", at: here()) else { return }
            checkOwner(function.states[slot].value, index, here())
        case .tensor(let slot):
            guard isIndex(slot, of: program.tensors.count, "a tensor", at: here()) else { return }
            let tensor = program.tensors[slot]
            if tensor.scalarType != value.scalarType || tensor.shape.map({ SizeExpression($0) }) != value.shape {
                report(
                    .bundleStorage, "a value has another type or shape than its tensor `\(tensor.name)`", at: here(),
                    expected: "\(tensor.scalarType)\(tensor.shape)", found: text(value.shape, value.scalarType))
            }
        case .arena(let first, let last):
            if first > last || last >= function.instructions.count {
                report(
                    .bundleLifetime, "the lifetime of a value is invalid", at: here(),
                    expected: "first <= last <= \(function.instructions.count - 1)", found: "\(first) to \(last)")
            }
        case .view(let base, let strides, let offset):
            guard isIndex(base, of: function.values.count, "the base of a view", at: here()) else { return }
            let baseValue = function.values[base]
            if case .view = baseValue.storage {
                report(.bundleStorage, "the base of a view is a view", at: here(), found: "value \(base)")
                return
            }
            if case .tensor(let slot) = baseValue.storage, program.tensors.indices.contains(slot),
                program.tensors[slot].layout != .rowMajor
            {
                report(
                    .bundleStorage, "the base of a view is not row-major", at: here(),
                    found: "tensor `\(program.tensors[slot].name)` in \(program.tensors[slot].layout)")
            }
            if baseValue.scalarType != value.scalarType {
                report(
                    .bundleStorage, "a view has another scalar type than its base", at: here(),
                    expected: "\(baseValue.scalarType)", found: "\(value.scalarType)")
            }
            if strides.count != value.shape.count {
                report(
                    .bundleRank, "a view needs one stride per axis", at: here(), expected: "\(value.shape.count)",
                    found: "\(strides.count)")
                return
            }
            for stride in strides { checkSymbols(stride, here()) }
            checkSymbols(offset, here())
            checkRange(value, strides, offset, baseValue, here())
        }
    }

    private mutating func checkOwner(_ owner: Int, _ index: Int, _ place: @autoclosure () -> String) {
        if owner != index {
            report(
                .bundleStorage, "a value is stored in an argument that belongs to another value", at: place(),
                expected: "value \(owner)", found: "value \(index)")
        }
    }

    /// With constant sizes alone, whether the view lies inside its base.
    private mutating func checkRange(
        _ value: BundleProgram.Value, _ strides: [SizeExpression], _ offset: SizeExpression,
        _ base: BundleProgram.Value, _ place: @autoclosure () -> String
    ) {
        let shape = value.shape.compactMap(\.constant)
        let steps = strides.compactMap(\.constant)
        let baseShape = base.shape.compactMap(\.constant)
        guard shape.count == value.shape.count, steps.count == strides.count, baseShape.count == base.shape.count,
            let start = offset.constant
        else { return }
        if !ViewRange.isInside(shape: shape, strides: steps, offset: start, baseShape: baseShape) {
            report(
                .bundleStorage, "a view does not lie inside its base", at: place(), expected: "inside \(baseShape)",
                found: "shape \(shape), strides \(steps), offset \(start)")
        }
    }

    private mutating func checkNamedValues(_ function: BundleProgram.Function, _ place: String) {
        for (slot, input) in function.inputs.enumerated() {
            let here = "\(place), input `\(input.name)`"
            guard isIndex(input.value, of: function.values.count, "the value of an input", at: here) else { continue }
            let storage = function.values[input.value].storage
            if storage != .input(slot) {
                report(
                    .bundleStorage, "the value of an input is not stored in the input", at: here,
                    expected: "\(BundleProgram.Storage.input(slot))", found: "\(storage)")
            }
        }
        for (slot, output) in function.outputs.enumerated() {
            let here = "\(place), output `\(output.name)`"
            guard isIndex(output.value, of: function.values.count, "the value of an output", at: here) else { continue }
            let storage = function.values[output.value].storage
            if storage != .output(slot) {
                report(
                    .bundleStorage, "the value of an output is not stored in the output", at: here,
                    expected: "\(BundleProgram.Storage.output(slot))", found: "\(storage)")
            }
        }
    }

    private mutating func checkContext(_ function: BundleProgram.Function, _ place: String) {
        guard let context = function.context else { return }
        // Indices that are out of range have been reported where they are.
        guard function.inputs.allSatisfy({ function.values.indices.contains($0.value) }),
            function.states.allSatisfy({ program.states.indices.contains($0.state) })
        else { return }
        let scope = ContextRules.Scope(
            inputs: function.inputs.map { function.values[$0.value].scalarType },
            states: function.states.map {
                ($0.state, program.states[$0.state].name, program.states[$0.state].shape.count)
            })
        for fault in context.faults(in: scope) {
            report(
                .bundleContext, fault.message, at: "\(place), context", expected: fault.expected, found: fault.found)
        }
    }

    private mutating func checkSymbolSources(_ function: BundleProgram.Function, _ place: String) {
        var sourced: Set<Int> = []
        for (row, source) in function.symbolSources.enumerated() {
            let here = "\(place), symbol source \(row)"
            guard isIndex(source.symbol, of: program.symbols.count, "a symbol", at: here),
                isIndex(source.input, of: function.inputs.count, "an input", at: here),
                function.values.indices.contains(function.inputs[source.input].value)
            else { continue }
            let shape = function.values[function.inputs[source.input].value].shape
            guard isIndex(source.axis, of: shape.count, "an axis", at: here) else { continue }
            let name = program.symbols[source.symbol].name
            if shape[source.axis].symbolIndex != source.symbol {
                report(
                    .bundleSymbol, "a symbol's source has another length", at: here, expected: name,
                    found: shape[source.axis].description(symbolNames: program.symbols.map(\.name)))
            }
            if !sourced.insert(source.symbol).inserted {
                report(.bundleSymbol, "a symbol has two sources", at: here, found: name)
            }
        }
        var used: Set<Int> = []
        func use(_ size: SizeExpression) {
            if size.constant == nil { size.forEachSymbol { used.insert($0) } }
        }
        for value in function.values {
            value.shape.forEach(use)
            if case .view(_, let strides, let offset) = value.storage {
                strides.forEach(use)
                use(offset)
            }
        }
        for instruction in function.instructions { instruction.ints.forEach(use) }
        for state in function.states { use(state.copiedBytes) }
        for symbol in used.subtracting(sourced).sorted() where program.symbols.indices.contains(symbol) {
            report(
                .bundleSymbol, "a function uses a symbol that none of its inputs determines", at: place,
                found: program.symbols[symbol].name)
        }
    }

    // MARK: Instructions

    private mutating func checkInstructions(_ function: BundleProgram.Function, _ place: String) {
        /// The value whose bytes a value shares.
        func root(_ index: Int) -> Int {
            if case .view(let base, _, _) = function.values[index].storage { return base }
            return index
        }
        var isWritten = function.values.map { value in
            switch value.storage {
            case .input, .state, .tensor: true
            case .output, .arena, .view: false
            }
        }
        for (index, instruction) in function.instructions.enumerated() {
            guard findings.count < Self.maximumFindings else { return }
            func here() -> String { "\(place), instruction \(index)" }
            if isIndex(instruction.kernel, of: program.kernels.count, "a kernel", at: here()) {
                checkOperands(
                    instruction, index, function, program.kernels[instruction.kernel], place, isWritten, root)
            }
            for size in instruction.ints { checkSymbols(size, here()) }
            if let source = instruction.source {
                _ = isIndex(source, of: sourceCount, "a source map entry", at: here())
            }
            var written: Set<Int> = []
            for result in instruction.results {
                guard isIndex(result, of: function.values.count, "a result", at: here()) else { continue }
                let target = root(result)
                if !written.insert(result).inserted {
                    report(.bundleWrite, "an instruction has one result twice", at: here(), found: "value \(result)")
                }
                switch function.values[target].storage {
                case .input, .tensor:
                    report(
                        .bundleWrite, "an instruction writes what it may only read", at: here(),
                        expected: "an output, a state or scratch memory",
                        found: "value \(result), \(function.values[target].storage)")
                default: break
                }
                checkLifetime(target, result, index, function, here())
                isWritten[target] = true
            }
        }
        for output in function.outputs where !isWritten[output.value] {
            report(.bundleWrite, "no instruction writes an output", at: "\(place), output `\(output.name)`")
        }
    }

    private mutating func checkOperands(
        _ instruction: BundleProgram.Instruction, _ index: Int, _ function: BundleProgram.Function, _ kernel: String,
        _ place: String, _ isWritten: [Bool], _ root: (Int) -> Int
    ) {
        for (position, operand) in instruction.operands.enumerated() {
            guard let operand else { continue }
            func here() -> String { "\(place), instruction \(index) (\(kernel)), operand \(position)" }
            guard isIndex(operand, of: function.values.count, "an operand", at: here()) else { continue }
            let source = root(operand)
            checkLifetime(source, operand, index, function, here())
            if !isWritten[source] {
                report(
                    .bundleLifetime, "an instruction reads what none before it has written", at: here(),
                    found: "value \(operand)")
            }
        }
    }

    private mutating func checkLifetime(
        _ root: Int, _ value: Int, _ instruction: Int, _ function: BundleProgram.Function,
        _ place: @autoclosure () -> String
    ) {
        guard case .arena(let first, let last) = function.values[root].storage else { return }
        if instruction < first || instruction > last {
            report(
                .bundleLifetime, "scratch memory is used outside its lifetime", at: place(),
                expected: "instruction \(first) to \(last)", found: "value \(value) in instruction \(instruction)")
        }
    }
}

/// Whether a strided view stays inside the memory it looks at.
package enum ViewRange {
    /// True when every element of the view lies in a row-major `baseShape`, or the view has none.
    /// Overflow of int64 counts as outside.
    package static func isInside(shape: [Int], strides: [Int], offset: Int, baseShape: [Int]) -> Bool {
        if shape.contains(where: { $0 < 0 }) || baseShape.contains(where: { $0 < 0 }) { return false }
        if shape.contains(0) { return true }
        var count = 1
        for length in baseShape {
            let (product, overflow) = count.multipliedReportingOverflow(by: length)
            if overflow { return false }
            count = product
        }
        var low = offset
        var high = offset
        for (length, stride) in zip(shape, strides) {
            let (reach, overflow) = (length - 1).multipliedReportingOverflow(by: stride)
            if overflow { return false }
            let (sum, sumOverflow) = (reach < 0 ? low : high).addingReportingOverflow(reach)
            if sumOverflow { return false }
            if reach < 0 { low = sum } else { high = sum }
        }
        return low >= 0 && high < count
    }
}
