internal import CProtobufC
@preconcurrency internal import CStatepackSchema
internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// From the unpacked message to the program, with every index, name, size and length checked.
///
/// Faults are collected; a faulty part is replaced by something harmless so that the rest can be looked at.
struct ProgramConversion {
    typealias CMessage = UnsafePointer<Statepack__Program__V1__Program>

    static let formatMajor: UInt64 = 1
    static let formatMinor: UInt64 = 0
    static let maximumRank = 8
    static let maximumNameBytes = 1024
    private static let maximumFindings = 100

    /// - Parameter skippingUnknownFields: What `isNewerMinorVersion` says of the same bytes.
    static func program(
        _ bytes: UnsafeRawBufferPointer, path: String, skippingUnknownFields: Bool
    ) throws(DiagnosticList) -> (Program, WeightsFile?) {
        var prototype = Statepack__Program__V1__Program()
        statepack__program__v1__program__init(&prototype)
        return try withUnpacked(
            bytes, path: path, skippingUnknownFields: skippingUnknownFields,
            descriptor: prototype.base.descriptor, as: Statepack__Program__V1__Program.self
        ) { message throws(DiagnosticList) in
            var conversion = ProgramConversion(path: path)
            let result = conversion.convert(message)
            if !conversion.findings.isEmpty { throw DiagnosticList(conversion.findings) }
            return result
        }
    }

    /// Whether the program has fields that this reader may not know. Refuses a newer major version.
    ///
    /// The version is the program's first field in every version of the format, and nothing behind it is looked at:
    /// it may not even parse.
    static func isNewerMinorVersion(
        _ bytes: UnsafeRawBufferPointer, path: String
    ) throws(DiagnosticList) -> Bool {
        var version: [UInt64] = [0, 0]
        do {
            var position = 0
            for number in 1...2 where position < bytes.count {
                var next = position
                let field = try WireScan.field(bytes, &next, end: bytes.count)
                // A minor version of 0 is left out.
                guard field.number == number, field.wireType == 0 else { continue }
                version[number - 1] = field.value
                if number == 1, field.value > formatMajor { break }
                position = next
            }
        } catch {
            throw DiagnosticList([ExportedFileReader.diagnostic(error, path: path)])
        }
        guard version[0] == formatMajor else {
            let isNewer = version[0] > formatMajor
            throw DiagnosticList([
                Diagnostic(
                    isNewer ? .newerProgramFormat : .malformedProgram,
                    isNewer
                        ? "the program has a newer format than this reader"
                        : "the program does not start with its format version", at: path,
                    expected: "version \(formatMajor)", found: isNewer ? "version \(version[0])" : "no version")
            ])
        }
        return version[1] > formatMinor
    }

    private let path: String
    private let log = FindingLog()
    private var result = Program()
    private var sizes: [[Int64]: SizeExpression] = [:]
    private var work = SizeExpression.Work()
    private var isTooComplex = false
    /// What the program's symbols say, once they are read.
    private var bounds = SizeBounds([])

    private var findings: [Diagnostic] { log.findings }

    /// Shared, so that a report may look at the conversion while it is made.
    private final class FindingLog {
        var findings: [Diagnostic] = []
    }

    private init(path: String) { self.path = path }

    /// Evaluates nothing once there are enough findings: a text may cost as much as the program has symbols.
    private func report(
        _ code: Diagnostic.Code, _ message: @autoclosure () -> String, at location: @autoclosure () -> String,
        expected: @autoclosure () -> String? = nil, found: @autoclosure () -> String? = nil
    ) {
        guard log.findings.count < Self.maximumFindings else { return }
        log.findings.append(
            Diagnostic(code, message(), at: "\(path), \(location())", expected: expected(), found: found()))
    }

    // MARK: Parts

    private func list<T>(_ count: Int, _ base: UnsafeMutablePointer<T>?) -> UnsafeBufferPointer<T> {
        UnsafeBufferPointer(start: base, count: base == nil ? 0 : count)
    }

    private func text(_ pointer: UnsafeMutablePointer<CChar>?) -> String { pointer.map { String(cString: $0) } ?? "" }

    private func bytes(_ data: ProtobufCBinaryData) -> [UInt8] {
        Array(UnsafeBufferPointer(start: data.data, count: data.data == nil ? 0 : data.len))
    }

    /// A text that is no name: as long as a bundle takes it.
    private func text(
        _ pointer: UnsafeMutablePointer<CChar>?, _ what: String, at location: @autoclosure () -> String
    ) -> String {
        let text = text(pointer)
        if text.utf8.count > BundleProgram.Limits.textBytes {
            report(
                .programLimitExceeded, "\(what) is too long", at: location(),
                expected: "at most \(BundleProgram.Limits.textBytes) bytes", found: "\(text.utf8.count) bytes")
            return Self.start(of: text)
        }
        return text
    }

    private static func start(of text: String) -> String {
        String(String.UnicodeScalarView(text.unicodeScalars.prefix(64)))
    }

    private mutating func name(
        _ pointer: UnsafeMutablePointer<CChar>?, _ location: String
    ) -> String {
        let name = text(pointer)
        if name.isEmpty {
            report(.invalidProgramName, "a name is empty", at: location)
        } else if name.utf8.count > Self.maximumNameBytes {
            report(
                .invalidProgramName, "a name is too long", at: location,
                expected: "at most \(Self.maximumNameBytes) bytes",
                found: "\(name.utf8.count)")
            // It is quoted in every location below it.
            return Self.start(of: name)
        } else if name.unicodeScalars.contains(where: { $0.value < 0x20 || (0x7F...0x9F).contains($0.value) }) {
            report(.invalidProgramName, "a name has a control character", at: location, found: name)
        }
        return name
    }

    private mutating func requireUnique(_ names: [String], _ what: String, at location: String) {
        var seen: Set<String> = []
        for name in names where !seen.insert(name).inserted {
            report(.duplicateProgramName, "two \(what) have one name", at: location, found: "`\(name)`")
        }
    }

    private mutating func scalarType(_ value: Statepack__Program__V1__ScalarType, _ location: String) -> ScalarType {
        if let type = ScalarType(rawValue: UInt32(truncatingIfNeeded: value.rawValue)) { return type }
        report(
            .malformedProgram, "an unknown scalar type", at: location, expected: "1...\(ScalarType.allCases.count)",
            found: "\(value.rawValue)")
        return .bool
    }

    private mutating func index(_ value: UInt32, below count: Int, _ what: String, _ location: String) -> Int {
        if Int(value) < count { return Int(value) }
        report(
            .invalidReference, "an index of a \(what) is out of range", at: location, expected: "0..<\(count)",
            found: "\(value)")
        return 0
    }

    private mutating func size(_ pointer: UnsafeMutablePointer<Statepack__Program__V1__Size>?, _ location: String)
        -> SizeExpression
    {
        guard let message = pointer?.pointee else { return .zero }
        let postfix = Array(list(message.n_postfix, message.postfix))
        if let known = sizes[postfix] { return known }
        do {
            let size = try SizeExpression(postfix: postfix, symbolCount: result.symbols.count, work: &work)
            sizes[postfix] = size
            return size
        } catch {
            if work.isExhausted {
                if !isTooComplex {
                    report(
                        .programLimitExceeded, "the sizes of the program take too much arithmetic", at: location,
                        expected: "sums and products of a few symbols")
                }
                isTooComplex = true
                return .one
            }
            report(
                .invalidSize, "a size is not an expression of the program's symbols", at: location, found: "\(error)")
            return .one
        }
    }

    private mutating func shape(
        _ count: Int, _ base: UnsafeMutablePointer<UnsafeMutablePointer<Statepack__Program__V1__Size>?>?,
        _ location: String
    ) -> [SizeExpression] {
        if count > Self.maximumRank {
            report(
                .invalidTensor, "a shape has too many axes", at: location, expected: "at most \(Self.maximumRank)",
                found: "\(count)")
            return []
        }
        var shape: [SizeExpression] = []
        for pointer in list(count, base) {
            let size = size(pointer, location)
            if !bounds.isProvablyNonnegative(size) {
                report(
                    .invalidSize, "a size of a shape may be negative", at: location,
                    found: size.description(symbolNames: result.symbolNames))
            }
            shape.append(size)
        }
        return shape
    }

    // MARK: Program

    private mutating func convert(_ message: CMessage) -> (Program, WeightsFile?) {
        let program = message.pointee
        result.producer = text(program.producer, "the producer", at: "producer")
        for (number, pointer) in list(program.n_symbols, program.symbols).enumerated() {
            convert(symbol: pointer!.pointee, number)
        }
        requireUnique(result.symbolNames, "symbols", at: "symbols")
        bounds = SizeBounds(result.symbols)
        for (number, pointer) in list(program.n_tensors, program.tensors).enumerated() {
            convert(tensor: pointer!.pointee, number)
        }
        requireUnique(result.tensors.map(\.name), "tensors", at: "tensors")
        for pointer in list(program.n_sources, program.sources) {
            result.sources.append(text(pointer, "a source", at: "source \(result.sources.count)"))
        }
        for (number, pointer) in list(program.n_states, program.states).enumerated() {
            convert(state: pointer!.pointee, number)
        }
        requireUnique(result.states.map(\.name), "states", at: "states")
        for (number, pointer) in list(program.n_functions, program.functions).enumerated() {
            convert(function: pointer!.pointee, number)
        }
        requireUnique(result.functions.map(\.name), "functions", at: "functions")
        if result.functions.isEmpty { report(.malformedProgram, "the program has no function", at: "functions") }
        return (result, weightsFile(program))
    }

    private mutating func convert(symbol: Statepack__Program__V1__Symbol, _ number: Int) {
        let location = "symbol \(number)"
        let name = name(symbol.name, location)
        if !name.isEmpty, !BundleProgram.isSymbolName(name) {
            report(
                .invalidProgramName, "the name of a symbol is not an identifier", at: location,
                expected: "letters, digits and `_`, no digit first", found: name)
        }
        // Products of a few sizes must stay inside int64.
        if symbol.min < 0 || symbol.min > symbol.max {
            report(
                .invalidSize, "the bounds of a symbol are not possible", at: "symbol `\(name)`",
                expected: "0 <= min <= max", found: "\(symbol.min)...\(symbol.max)")
            result.symbols.append(.init(name: name, min: 0, max: 1))
        } else {
            result.symbols.append(.init(name: name, min: Int(symbol.min), max: Int(symbol.max)))
        }
    }

    private mutating func convert(tensor: Statepack__Program__V1__StoredTensor, _ number: Int) {
        let tensorName = name(tensor.name, "tensor \(number)")
        let location = "tensor `\(tensorName)`"
        let type = scalarType(tensor.scalar_type, location)
        var shape: [Int] = []
        var length: Int?
        if tensor.n_shape > Self.maximumRank {
            report(
                .invalidTensor, "a tensor has too many axes", at: location, expected: "at most \(Self.maximumRank)",
                found: "\(tensor.n_shape)")
            length = bytes(tensor.data).count
        } else {
            let sizes = list(tensor.n_shape, tensor.shape)
            shape = sizes.map { Int(truncatingIfNeeded: $0) }
            length = sizes.contains { $0 > UInt64(Int.max) } ? nil : type.byteCount(ofShape: shape)
        }
        if length == nil {
            report(.invalidTensor, "the size of a tensor overflows", at: location, found: "\(shape)")
            shape = []
        }
        let content = bytes(tensor.data)
        let isInline = tensor.inline_ != 0
        if isInline, let length, content.count != length {
            report(
                .invalidTensor, "a tensor's bytes do not fit its scalar type and shape", at: location,
                expected: "\(length) bytes for \(type)\(shape)", found: "\(content.count) bytes")
        } else if isInline, type == .bool, content.contains(where: { $0 > 1 }) {
            report(.invalidTensor, "a bool is neither 0 nor 1", at: location)
        } else if !isInline, !content.isEmpty {
            report(.invalidTensor, "a tensor is both inline and in the weights file", at: location)
        }
        var aliases: [String] = []
        for pointer in list(tensor.n_aliases, tensor.aliases) { aliases.append(name(pointer, location)) }
        result.tensors.append(
            .init(
                name: tensorName, scalarType: type, shape: shape,
                data: isInline ? .inline(content) : .weightsFile(name: tensorName), aliases: aliases))
    }

    private mutating func weightsFile(_ program: Statepack__Program__V1__Program) -> WeightsFile? {
        let isNeeded = result.tensors.contains { if case .weightsFile = $0.data { true } else { false } }
        let name = text(program.weights_file)
        let digest = bytes(program.weights_digest)
        if name.isEmpty {
            if isNeeded {
                report(.malformedProgram, "tensors are not inline, but there is no weights file", at: "weights_file")
            }
            return nil
        }
        if name.utf8.count > 255 {
            report(
                .invalidProgramName, "the name of the weights file is too long", at: "weights_file",
                expected: "at most 255 bytes", found: "\(name.utf8.count) bytes")
            return nil
        }
        if name.contains("/") || name == "." || name == ".." || name.unicodeScalars.contains(where: { $0.value < 0x20 })
        {
            report(
                .invalidProgramName, "the weights file is not beside the program", at: "weights_file",
                expected: "a file name without folders", found: name)
            return nil
        }
        if digest.count != 32 {
            report(
                .malformedProgram, "the digest of the weights file is no SHA-256", at: "weights_digest",
                expected: "32 bytes", found: "\(digest.count) bytes")
            return nil
        }
        return isNeeded ? WeightsFile(name: name, length: program.weights_length, digest: digest) : nil
    }

    private mutating func convert(state: Statepack__Program__V1__State, _ number: Int) {
        let stateName = name(state.name, "state \(number)")
        let location = "state `\(stateName)`"
        let source: Program.StateSource
        switch state.source {
        case STATEPACK__PROGRAM__V1__STATE__SOURCE__BUFFER: source = .buffer
        case STATEPACK__PROGRAM__V1__STATE__SOURCE__INPUT: source = .input
        default:
            report(
                .malformedProgram, "an unknown source of a state", at: location, expected: "1 or 2",
                found: "\(state.source.rawValue)")
            source = .buffer
        }
        let sourceName = name(state.source_name, location)
        let type = ValueType(
            scalarType(state.scalar_type, location), shape(state.n_shape, state.shape, location))
        let splat = bytes(state.initial_splat)
        let initialValue: BundleProgram.InitialValue
        if state.initial_tensor > 0 {
            let tensor = index(state.initial_tensor - 1, below: result.tensors.count, "tensor", location)
            initialValue = .tensor(tensor)
            if !splat.isEmpty {
                report(
                    .malformedProgram, "a state has two initial values", at: location,
                    expected: "one of splat and tensor")
            } else if tensor < result.tensors.count {
                let stored = result.tensors[tensor]
                let found = ValueType(stored.scalarType, stored.shape.map { SizeExpression($0) })
                if found != type {
                    report(
                        .malformedProgram, "the initial value of a state has another type than the state", at: location,
                        expected: type.description(symbolNames: result.symbolNames),
                        found: found.description(symbolNames: result.symbolNames))
                }
            }
        } else {
            initialValue = .splat(splat)
            if splat.count != type.scalarType.byteCount || type.scalarType == .bool && splat[0] > 1 {
                report(
                    .malformedProgram, "the initial value of a state is not one element", at: location,
                    expected: "\(type.scalarType.byteCount) bytes of \(type.scalarType)", found: "\(splat.count) bytes")
            }
        }
        let digest = bytes(state.initial_digest)
        let digestLength = state.initial_tensor > 0 ? 32 : 0
        if digest.count != digestLength {
            report(
                .malformedProgram, "the digest of an initial value has the wrong length", at: location,
                expected: digestLength == 0 ? "no digest beside one element" : "32 bytes",
                found: "\(digest.count) bytes")
        }
        result.states.append(
            .init(
                name: stateName, source: source, sourceName: sourceName, type: type, initialValue: initialValue,
                isNamedByAuthor: state.named_by_author != 0, initialDigest: digest))
    }

    // MARK: Functions

    private mutating func convert(function message: Statepack__Program__V1__Function, _ number: Int) {
        var function = Function(name: name(message.name, "function \(number)"))
        let place = "function `\(function.name)`"
        for (number, pointer) in list(message.n_values, message.values).enumerated() {
            let value = pointer!.pointee
            let location = "\(place), value \(number)"
            function.values.append(
                ValueType(scalarType(value.scalar_type, location), shape(value.n_shape, value.shape, location)))
        }
        let count = function.values.count
        for pointer in list(message.n_inputs, message.inputs) {
            function.inputs.append(named(pointer!.pointee, count, "\(place), input \(function.inputs.count)"))
        }
        for pointer in list(message.n_outputs, message.outputs) {
            function.outputs.append(named(pointer!.pointee, count, "\(place), output \(function.outputs.count)"))
        }
        for pointer in list(message.n_states, message.states) {
            let use = pointer!.pointee
            let location = "\(place), state \(function.states.count)"
            function.states.append(
                .init(
                    state: index(use.state, below: result.states.count, "state", location),
                    before: ValueID(index(use.before, below: count, "value", location)),
                    after: ValueID(index(use.after, below: count, "value", location)),
                    writtenBy: text(use.written_by, "how a state is written", at: location)))
        }
        for pointer in list(message.n_constants, message.constants) {
            let constant = pointer!.pointee
            let location = "\(place), constant \(function.constants.count)"
            function.constants.append(
                .init(
                    value: ValueID(index(constant.value, below: count, "value", location)),
                    tensor: index(constant.tensor, below: result.tensors.count, "tensor", location)))
        }
        checkNames(of: function, place)
        if let context = message.context { convert(context: context.pointee, of: &function, place) }
        for pointer in list(message.n_nodes, message.nodes) {
            function.nodes.append(node(pointer!.pointee, count, "\(place), node \(function.nodes.count)"))
        }
        result.functions.append(function)
    }

    private mutating func convert(
        context message: Statepack__Program__V1__ContextRules, of function: inout Function, _ place: String
    ) {
        var rules = ContextRules(positions: Int(message.positions), axes: [])
        for pointer in list(message.n_axes, message.axes) {
            rules.axes.append(.init(state: Int(pointer!.pointee.state), axis: Int(pointer!.pointee.axis)))
        }
        // Indices that are out of range have been reported, and replaced by 0: that need not be in range either.
        guard function.inputs.allSatisfy({ function.values.indices.contains($0.value.index) }),
            function.states.allSatisfy({ result.states.indices.contains($0.state) })
        else { return }
        for fault in rules.faults(in: ContextRules.Scope(function, of: result)) {
            report(
                .invalidContext, fault.message, at: "\(place), context", expected: fault.expected, found: fault.found)
        }
        function.context = rules
    }

    private mutating func named(
        _ message: Statepack__Program__V1__NamedValue, _ count: Int, _ location: String
    ) -> Function.Named {
        .init(name: name(message.name, location), value: ValueID(index(message.value, below: count, "value", location)))
    }

    private mutating func checkNames(of function: Function, _ place: String) {
        requireUnique(function.inputs.map(\.name), "inputs", at: place)
        requireUnique(function.outputs.map(\.name), "outputs", at: place)
        let others = Set(function.inputs.map(\.name) + function.outputs.map(\.name))
        for use in function.states where use.state < result.states.count {
            let name = result.states[use.state].name
            if others.contains(name) {
                report(
                    .duplicateProgramName, "a state has the name of an input or output", at: place, found: "`\(name)`")
            }
        }
    }

    private mutating func node(_ message: Statepack__Program__V1__Node, _ count: Int, _ place: String) -> Node {
        let op = name(message.op, place)
        let location = "\(place) `\(op)`"
        var arguments: [Node.Argument] = []
        for pointer in list(message.n_arguments, message.arguments) {
            let argument = pointer!.pointee
            let argumentName = name(argument.name, location)
            arguments.append(
                .init(argumentName, value(argument, count, "\(location), argument `\(argumentName)`")))
        }
        requireUnique(arguments.map(\.name), "arguments", at: location)
        var results: [ValueID] = []
        for result in list(message.n_results, message.results) {
            results.append(ValueID(index(result, below: count, "value", location)))
        }
        if results.isEmpty { report(.malformedProgram, "a node has no result", at: location) }
        var source: Int?
        if message.source > 0 { source = index(message.source - 1, below: result.sources.count, "source", location) }
        return Node(op, arguments, results: results, source: source)
    }

    private mutating func value(
        _ argument: Statepack__Program__V1__Argument, _ count: Int, _ location: String
    ) -> ArgumentValue {
        switch argument.value_case {
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_TENSOR:
            return .tensor(ValueID(index(argument.tensor, below: count, "value", location)))
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_TENSORS:
            var ids: [ValueID?] = []
            for tensor in list(argument.tensors.pointee.n_tensors, argument.tensors.pointee.tensors) {
                if tensor == -1 {
                    ids.append(nil)
                } else if let small = UInt32(exactly: tensor) {
                    ids.append(ValueID(index(small, below: count, "value", location)))
                } else {
                    report(
                        .invalidReference, "an index of a value is out of range", at: location,
                        expected: "-1 or 0..<\(count)", found: "\(tensor)")
                }
            }
            return .tensors(ids)
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_SIZE:
            return .size(size(argument.size, location))
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_SIZES:
            var sizes: [SizeExpression] = []
            for pointer in list(argument.sizes.pointee.n_sizes, argument.sizes.pointee.sizes) {
                sizes.append(size(pointer, location))
            }
            return .sizes(sizes)
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_NUMBER: return .number(argument.number)
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_FLAG: return .flag(argument.flag != 0)
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_SCALAR_TYPE:
            return .scalarType(scalarType(argument.scalar_type, location))
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_TEXT:
            return .text(text(argument.text, "a text", at: location))
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_NONE:
            if argument.none == 0 { report(.malformedProgram, "`none` is false", at: location) }
            return .none
        case STATEPACK__PROGRAM__V1__ARGUMENT__VALUE_NUMBERS:
            return .numbers(Array(list(argument.numbers.pointee.n_numbers, argument.numbers.pointee.numbers)))
        default:
            report(.malformedProgram, "an argument has no value", at: location)
            return .none
        }
    }
}
