extension BundleProgram {
    /// What a program section may have at most. `schemas/README.md` gives the reasons.
    package enum Limits {
        package static let sectionBytes = 64 << 20
        /// Messages in a section, the program itself included.
        package static let messages = 1 << 22
        /// Numbers in packed lists, those of sizes included.
        package static let elements = 1 << 22
        /// Symbols of a program; inputs, outputs and states of a function, each. They are looked up by name.
        package static let arguments = 1 << 14
        /// Values of a function in scratch memory. Placing them takes the square of their number.
        package static let arenaValues = 1 << 16
        package static let nameBytes = 1024
        package static let textBytes = 4096
        package static let rank = 8
    }

    /// Reads a program section. `check(weightsLength:sourceCount:)` must follow.
    ///
    /// - Parameter formatMinor: The minor version that the header has.
    init(
        decoding bytes: UnsafeRawBufferPointer, formatMinor: Int = Int(BundleProgram.formatMinor)
    ) throws(WireFault) {
        guard bytes.count <= Limits.sectionBytes else {
            throw WireFault(
                kind: .limit, offset: 0, message: "the program section is too long",
                expected: "at most \(Limits.sectionBytes) bytes", found: "\(bytes.count) bytes")
        }
        var decoder = try ProgramDecoder(bytes)
        self = try decoder.program(formatMinor: formatMinor)
    }
}

/// One method per message of `bundle.proto`.
private struct ProgramDecoder {
    private var root: WireReader
    private var major: Int = 0
    private var minor: Int = 0
    private var symbolCount = 0
    /// Sizes repeat thousands of times in a program; equal ones share their storage.
    private var sizes: [ArraySlice<UInt8>: SizeExpression] = [:]

    init(_ bytes: UnsafeRawBufferPointer) throws(WireFault) {
        root = try WireReader(
            bytes,
            budget: WireBudget(messages: BundleProgram.Limits.messages, elements: BundleProgram.Limits.elements))
    }

    /// A field of a later minor version is skipped; this version has no others.
    private func skip(_ reader: WireReader, _ field: WireReader.Field) throws(WireFault) {
        if minor <= Int(BundleProgram.formatMinor) {
            throw reader.malformed(
                "a field is not part of format \(major).\(minor)", at: field.offset, found: "field \(field.number)")
        }
    }

    private func name(_ reader: WireReader, _ field: WireReader.Field) throws(WireFault) -> String {
        let text = try reader.text(field, limit: BundleProgram.Limits.nameBytes)
        if text.unicodeScalars.contains(where: { $0.value < 0x20 || (0x7F...0x9F).contains($0.value) }) {
            throw WireFault(
                kind: .name, offset: field.offset, message: "a name has a control character", found: text)
        }
        return text
    }

    private func scalarType(
        _ reader: WireReader, _ field: WireReader.Field
    ) throws(WireFault) -> ScalarType {
        let number = try reader.index(field)
        guard let type = ScalarType(rawValue: UInt32(number)) else {
            throw WireFault(
                kind: .unknownValue, offset: field.offset, message: "a scalar type is unknown", expected: "1 to 13",
                found: "\(number)")
        }
        return type
    }

    private func required<T>(_ value: T?, _ what: String, _ reader: WireReader) throws(WireFault) -> T {
        guard let value else { throw reader.malformed("\(what) is missing", at: reader.end) }
        return value
    }

    mutating func program(formatMinor: Int) throws(WireFault) -> BundleProgram {
        var program = BundleProgram(
            producer: "", programDigest: [], symbols: [], tensors: [], states: [], functions: [], kernels: [])
        while let field = try root.next(repeated: [5, 6, 7, 8, 9]) {
            switch field.number {
            case 1: major = try root.index(field)
            case 2: minor = try root.index(field)
            case 3: program.producer = try root.text(field, limit: BundleProgram.Limits.textBytes)
            case 4: program.programDigest = Array(try root.payload(field))
            case 5:
                program.symbols.append(try symbol(root.message(field)))
                symbolCount += 1
            case 6: program.tensors.append(try tensor(root.message(field)))
            case 7: program.states.append(try state(root.message(field)))
            case 8: program.functions.append(try function(root.message(field)))
            case 9: program.kernels.append(try name(root, field))
            default: try skip(root, field)
            }
        }
        guard major == Int(BundleProgram.formatMajor), minor == formatMinor else {
            throw root.malformed(
                "the program section has another version than the header", at: 0,
                expected: "\(BundleProgram.formatMajor).\(formatMinor)", found: "\(major).\(minor)")
        }
        guard program.programDigest.count == 32 else {
            throw root.malformed(
                "the program digest has the wrong length", at: 0, expected: "32 bytes",
                found: "\(program.programDigest.count) bytes")
        }
        return program
    }

    private func symbol(_ message: WireReader) throws(WireFault) -> BundleProgram.Symbol {
        var message = message
        var symbol = BundleProgram.Symbol(name: "", min: 0, max: 0)
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: symbol.name = try name(message, field)
            case 2: symbol.min = try message.signed(field)
            case 3: symbol.max = try message.signed(field)
            default: try skip(message, field)
            }
        }
        return symbol
    }

    private func tensor(_ message: WireReader) throws(WireFault) -> BundleProgram.Tensor {
        var message = message
        var tensorName = ""
        var type: ScalarType?
        var shape: [Int] = []
        var layout = BundleProgram.Layout.rowMajor
        var offset = 0
        var length = 0
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: tensorName = try name(message, field)
            case 2: type = try scalarType(message, field)
            case 3:
                var fits = true
                try message.packed(field) { size in
                    guard let size = Int(exactly: size), shape.count <= BundleProgram.Limits.rank else {
                        fits = fits && shape.count > BundleProgram.Limits.rank
                        return
                    }
                    shape.append(size)
                }
                if !fits { throw message.malformed("a length of a shape exceeds int64", at: field.offset) }
            case 4:
                let number = try message.index(field)
                guard let known = BundleProgram.Layout(rawValue: UInt32(number)) else {
                    throw WireFault(
                        kind: .unknownValue, offset: field.offset, message: "a layout is unknown", expected: "0 or 1",
                        found: "\(number)")
                }
                layout = known
            case 5: offset = try message.count(field)
            case 6: length = try message.count(field)
            default: try skip(message, field)
            }
        }
        return BundleProgram.Tensor(
            name: tensorName, scalarType: try required(type, "a tensor's scalar type", message), shape: shape,
            layout: layout, offset: offset, length: length)
    }

    private mutating func state(_ message: WireReader) throws(WireFault) -> BundleProgram.State {
        var message = message
        var stateName = ""
        var sourceName = ""
        var type: ScalarType?
        var shape: [SizeExpression] = []
        var splat: [UInt8]?
        var tensor: Int?
        var digest: [UInt8] = []
        while let field = try message.next(repeated: [4]) {
            switch field.number {
            case 1: stateName = try name(message, field)
            case 2: sourceName = try name(message, field)
            case 3: type = try scalarType(message, field)
            case 4: shape.append(try size(message, field))
            case 5:
                let payload = try message.payload(field)
                guard payload.count <= 8 else {
                    throw message.malformed(
                        "an initial value is longer than any element", at: field.offset, expected: "at most 8 bytes",
                        found: "\(payload.count) bytes")
                }
                splat = Array(payload)
            case 6:
                let number = try message.index(field)
                tensor = number == 0 ? nil : number - 1
            case 7:
                let payload = try message.payload(field)
                guard payload.count == 32 else {
                    throw message.malformed(
                        "the digest of an initial value has the wrong length", at: field.offset, expected: "32 bytes",
                        found: "\(payload.count) bytes")
                }
                digest = Array(payload)
            default: try skip(message, field)
            }
        }
        let initialValue: BundleProgram.InitialValue
        switch (splat, tensor) {
        case (let element?, nil): initialValue = .splat(element)
        case (nil, let index?): initialValue = .tensor(index)
        default:
            throw message.malformed(
                "a state needs one initial value", at: message.end, expected: "an element or a tensor",
                found: splat == nil ? "neither" : "both")
        }
        return BundleProgram.State(
            name: stateName, sourceName: sourceName, scalarType: try required(type, "a state's scalar type", message),
            shape: shape, initialValue: initialValue, initialDigest: digest)
    }

    private mutating func size(_ parent: WireReader, _ field: WireReader.Field) throws(WireFault) -> SizeExpression {
        let payload = try parent.payload(field)
        // A constant below 64 or a lone symbol, as most sizes are, hashes a few bytes.
        let key = ArraySlice(payload)
        if let known = sizes[key] { return known }
        var message = try parent.message(field)
        var postfix: [Int64] = []
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1:
                guard field.payload.count <= 10 * SizeExpression.maximumPostfixCount else {
                    throw WireFault(
                        kind: .limit, offset: field.offset, message: "a size is too long",
                        expected: "at most \(SizeExpression.maximumPostfixCount) numbers",
                        found: "\(field.payload.count) bytes")
                }
                postfix = try message.signedArray(field)
            default: try skip(message, field)
            }
        }
        let expression: SizeExpression
        do throws(SizeExpression.Failure) {
            expression = try SizeExpression(canonicalPostfix: postfix, symbolCount: symbolCount)
        } catch {
            throw WireFault(
                kind: .size, offset: field.offset, message: "a size is not an expression of the program's symbols",
                expected: "a canonical postfix program over \(symbolCount) symbols", found: "\(error)")
        }
        sizes[key] = expression
        return expression
    }

    private mutating func function(_ message: WireReader) throws(WireFault) -> BundleProgram.Function {
        var message = message
        var function = BundleProgram.Function(
            name: "", inputs: [], outputs: [], states: [], symbolSources: [], values: [], instructions: [])
        while let field = try message.next(repeated: [2, 3, 4, 5, 6, 7]) {
            switch field.number {
            case 1: function.name = try name(message, field)
            case 2: function.inputs.append(try namedValue(message.message(field)))
            case 3: function.outputs.append(try namedValue(message.message(field)))
            case 4: function.states.append(try functionState(message.message(field)))
            case 5: function.symbolSources.append(try symbolSource(message.message(field)))
            case 6: function.values.append(try value(message.message(field)))
            case 7: function.instructions.append(try instruction(message.message(field)))
            case 8: function.context = try contextRules(message.message(field))
            default: try skip(message, field)
            }
        }
        return function
    }

    private func contextRules(_ message: WireReader) throws(WireFault) -> ContextRules {
        var message = message
        var rules = ContextRules(positions: 0, axes: [])
        while let field = try message.next(repeated: [2]) {
            switch field.number {
            case 1: rules.positions = try message.index(field)
            case 2: rules.axes.append(try contextAxis(message.message(field)))
            default: try skip(message, field)
            }
        }
        return rules
    }

    private func contextAxis(_ message: WireReader) throws(WireFault) -> ContextRules.Axis {
        var message = message
        var axis = ContextRules.Axis(state: 0, axis: 0)
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: axis.state = try message.index(field)
            case 2: axis.axis = try message.index(field)
            default: try skip(message, field)
            }
        }
        return axis
    }

    private func namedValue(_ message: WireReader) throws(WireFault) -> BundleProgram.NamedValue {
        var message = message
        var named = BundleProgram.NamedValue(name: "", value: 0)
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: named.name = try name(message, field)
            case 2: named.value = try message.index(field)
            default: try skip(message, field)
            }
        }
        return named
    }

    private mutating func functionState(_ message: WireReader) throws(WireFault) -> BundleProgram.FunctionState {
        var message = message
        var state = BundleProgram.FunctionState(
            state: 0, value: 0, writtenBy: "", copiedBytes: .zero, copyReason: "")
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: state.state = try message.index(field)
            case 2: state.value = try message.index(field)
            case 3: state.writtenBy = try message.text(field, limit: BundleProgram.Limits.textBytes)
            case 4: state.copiedBytes = try size(message, field)
            case 5: state.copyReason = try message.text(field, limit: BundleProgram.Limits.textBytes)
            default: try skip(message, field)
            }
        }
        return state
    }

    private func symbolSource(_ message: WireReader) throws(WireFault) -> BundleProgram.SymbolSource {
        var message = message
        var source = BundleProgram.SymbolSource(symbol: 0, input: 0, axis: 0)
        while let field = try message.next(repeated: []) {
            switch field.number {
            case 1: source.symbol = try message.index(field)
            case 2: source.input = try message.index(field)
            case 3: source.axis = try message.index(field)
            default: try skip(message, field)
            }
        }
        return source
    }

    private mutating func value(_ message: WireReader) throws(WireFault) -> BundleProgram.Value {
        var message = message
        var type: ScalarType?
        var shape: [SizeExpression] = []
        var storageNumber = 0
        var slot: Int?
        var strides: [SizeExpression] = []
        var offset: SizeExpression?
        var first: Int?
        var last: Int?
        while let field = try message.next(repeated: [2, 5]) {
            switch field.number {
            case 1: type = try scalarType(message, field)
            case 2: shape.append(try size(message, field))
            case 3: storageNumber = try message.index(field)
            case 4: slot = try message.index(field)
            case 5: strides.append(try size(message, field))
            case 6: offset = try size(message, field)
            case 7: first = try message.index(field)
            case 8: last = try message.index(field)
            default: try skip(message, field)
            }
        }
        let storage: BundleProgram.Storage
        switch storageNumber {
        case 1: storage = .input(slot ?? 0)
        case 2: storage = .output(slot ?? 0)
        case 3: storage = .state(slot ?? 0)
        case 4: storage = .tensor(slot ?? 0)
        case 5: storage = .arena(first: first ?? 0, last: last ?? 0)
        case 6:
            storage = .view(base: slot ?? 0, strides: strides, offset: try required(offset, "a view's offset", message))
        default:
            throw WireFault(
                kind: .unknownValue, offset: message.end, message: "a storage class is unknown", expected: "1 to 6",
                found: "\(storageNumber)")
        }
        // What another storage class would use would be ignored, and a file must not hide anything.
        let isArena = storageNumber == 5
        let isView = storageNumber == 6
        if (!isArena && (first != nil || last != nil)) || (!isView && (!strides.isEmpty || offset != nil))
            || (isArena && slot != nil)
        {
            throw WireFault(
                kind: .storage, offset: message.end, message: "a value has a field of another storage class",
                found: "storage class \(storageNumber)")
        }
        return BundleProgram.Value(
            scalarType: try required(type, "a value's scalar type", message), shape: shape, storage: storage)
    }

    private mutating func instruction(_ message: WireReader) throws(WireFault) -> BundleProgram.Instruction {
        var message = message
        var instruction = BundleProgram.Instruction(
            kernel: 0, operands: [], results: [], ints: [], floats: [], source: nil)
        while let field = try message.next(repeated: [4]) {
            switch field.number {
            case 1: instruction.kernel = try message.index(field)
            case 2: instruction.operands = try message.signedArray(field).map { $0 == -1 ? nil : Int($0) }
            case 3:
                var results: [Int] = []
                try message.packed(field) { results.append(Int(truncatingIfNeeded: min($0, UInt64(UInt32.max)))) }
                instruction.results = results
            case 4: instruction.ints.append(try size(message, field))
            case 5: instruction.floats = try message.doubles(field)
            case 6:
                let number = try message.index(field)
                instruction.source = number == 0 ? nil : number - 1
            default: try skip(message, field)
            }
        }
        return instruction
    }
}
