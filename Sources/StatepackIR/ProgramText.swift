internal import StatepackBundle

// The text form of a program: what `--dump-ir-after` prints and compiler tests compare.
//
//     program "statepack 0.1, torch 2.13.0" digest 5f0c…            (left out when both are empty)
//     symbol query 1...256
//     tensor "q.weight" float32[64, 64] weights "q.weight" aliases "k.weight"
//     tensor "float32 0.125" float32[] inline 0000003e
//     state "keyCache" float32[2, 256, 64] buffer "key_cache" splat 00000000 named
//     source "layers.0 (model.py:12)"
//
//     func "main" {
//         input %0 "features": float32[query, 64]
//         state %1 "keyCache": float32[2, 256, 64] after %5 writtenBy "index_copy"
//         constant %2 "q.weight": float32[64, 64]
//         %3: float32[query, 64] = linear(a=%0, weight=%2, bias=none) @0
//         %4: float32[256, 64] = view.select(a=%1, dim=0, index=0)
//         %5: float32[2, 256, 64] = inPlace index_copy(a=%1, index=%6, source=%3, axis=1)
//         output %3 "logits"
//         context "position_ids" indexes "keyCache" axis 1
//     }
//
// Arguments: `%3` a tensor, `[%1, none]` tensors (`tensors[]` when empty), `query + 1` a size,
// `{1, query}` sizes, `0.5` a number (always with a point, an exponent, or inf or nan),
// `numbers[0.5, 1.0]`, `true`, `float32`, `"tanh"`, `none`. `@0` is the node's source line. Comments
// run from `//` to the end of the line.
//
// Values are numbered in order of definition (inputs, states, constants, results), whatever their
// ids: two programs that differ only in value numbering print alike. `parse(print(p)) == p.renumbered()`.
// Order of sections and everything on a line is fixed, except that a parser accepts any white space.

extension Program {
    /// The text form. Takes time proportional to its length.
    ///
    /// Inline data of more than `dataLimit` bytes is left out (`elided 24576`, which reads as zeros): what
    /// `--dump-ir-after` does with 64, for people.
    package func text(dataLimit: Int = .max) -> String {
        ProgramPrinter(self, dataLimit: dataLimit).text()
    }

    /// Reads the text form. Throws `ProgramTextError`. Names are resolved, nothing else is verified.
    package init(text: String) throws {
        var parser = ProgramParser(text)
        self = try parser.program()
    }

    /// The same program with the values of each function numbered in order of definition, and values
    /// that nothing defines dropped.
    package func renumbered() -> Program {
        var copy = self
        copy.functions = functions.map { $0.renumbered() }
        return copy
    }
}

/// Why a text is not a program, for whoever wrote the text.
package struct ProgramTextError: Error, Hashable, Sendable, CustomStringConvertible {
    package var line: Int
    package var reason: String

    package var description: String { "line \(line): \(reason)" }
}

extension Function {
    /// Ids in order of definition; each at its first.
    package var definitions: [ValueID] {
        inputs.map(\.value) + states.map(\.before) + constants.map(\.value) + nodes.flatMap(\.results)
    }

    package func renumbered() -> Function {
        var numbers: [ValueID: ValueID] = [:]
        var types: [ValueType] = []
        // A value that is used but never defined gets a place behind the others, so that an invalid program
        // stays invalid in the same way.
        func number(_ id: ValueID) -> ValueID {
            if let known = numbers[id] { return known }
            let new = ValueID(types.count)
            numbers[id] = new
            types.append(id.index < values.count ? values[id.index] : ValueType(.bool, []))
            return new
        }
        for id in definitions { _ = number(id) }
        var result = self
        for index in inputs.indices { result.inputs[index].value = number(inputs[index].value) }
        for index in states.indices {
            result.states[index].before = number(states[index].before)
        }
        for index in constants.indices { result.constants[index].value = number(constants[index].value) }
        for index in nodes.indices {
            result.nodes[index].mapOperands(number)
            result.nodes[index].results = nodes[index].results.map(number)
        }
        for index in states.indices { result.states[index].after = number(states[index].after) }
        for index in outputs.indices { result.outputs[index].value = number(outputs[index].value) }
        result.values = types
        return result
    }
}

/// Words that a size expression or an argument may start with: a symbol of that name is put in backquotes.
private let reservedWords: Set<String> = Set(
    [
        "none", "true", "false", "inf", "nan", "floordiv", "mod", "max", "min", "tensors", "numbers",
    ] + ScalarType.allCases.map(\.name))

private func isPlainName(_ name: String) -> Bool {
    guard let first = name.utf8.first, isNameStart(first), !reservedWords.contains(name) else { return false }
    return name.utf8.allSatisfy(isNamePart)
}

private func isNameStart(_ byte: UInt8) -> Bool {
    (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(byte | 0x20) && byte < 0x80 || byte == UInt8(ascii: "_")
}

private func isDigit(_ byte: UInt8) -> Bool { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) }

private func isNamePart(_ byte: UInt8) -> Bool { isNameStart(byte) || isDigit(byte) || byte == UInt8(ascii: ".") }

private func quoted(_ text: String) -> String {
    var result = "\""
    for scalar in text.unicodeScalars {
        switch scalar {
        case "\"": result += "\\\""
        case "\\": result += "\\\\"
        case "\n": result += "\\n"
        case "\t": result += "\\t"
        default:
            if scalar.value < 0x20 || scalar.value == 0x7F {
                result += "\\u{\(String(scalar.value, radix: 16))}"
            } else {
                result.unicodeScalars.append(scalar)
            }
        }
    }
    return result + "\""
}

private func hexadecimal(_ bytes: [UInt8]) -> String {
    let digits = Array("0123456789abcdef".utf8)
    var text: [UInt8] = []
    text.reserveCapacity(bytes.count * 2)
    for byte in bytes {
        text.append(digits[Int(byte >> 4)])
        text.append(digits[Int(byte & 15)])
    }
    return text.isEmpty ? "empty" : String(decoding: text, as: UTF8.self)
}

// MARK: Printer

private struct ProgramPrinter {
    let program: Program
    let symbolNames: [String]
    let dataLimit: Int

    init(_ program: Program, dataLimit: Int) {
        self.dataLimit = dataLimit
        self.program = program.renumbered()
        symbolNames = program.symbols.map { isPlainName($0.name) ? $0.name : "`\($0.name)`" }
    }

    func size(_ expression: SizeExpression) -> String { expression.description(symbolNames: symbolNames) }

    func type(_ type: ValueType) -> String { type.description(symbolNames: symbolNames) }

    func text() -> String {
        var lines: [String] = []
        let hasDigest = program.digest.contains { $0 != 0 }
        if hasDigest || !program.producer.isEmpty {
            lines.append("program \(quoted(program.producer)) digest \(hexadecimal(program.digest))")
        }
        for (symbol, name) in zip(program.symbols, symbolNames) {
            lines.append("symbol \(name) \(symbol.min)...\(symbol.max)")
        }
        for tensor in program.tensors {
            let shape = tensor.shape.map { "\($0)" }.joined(separator: ", ")
            var line = "tensor \(quoted(tensor.name)) \(tensor.scalarType)[\(shape)] "
            switch tensor.data {
            case .inline(let bytes) where bytes.count > dataLimit: line += "elided \(bytes.count)"
            case .inline(let bytes): line += "inline \(hexadecimal(bytes))"
            case .weightsFile(let name): line += "weights \(quoted(name))"
            }
            if !tensor.aliases.isEmpty {
                line += " aliases " + tensor.aliases.map(quoted).joined(separator: ", ")
            }
            lines.append(line)
        }
        for state in program.states {
            var line = "state \(quoted(state.name)) \(type(state.type)) "
            line += state.source == .buffer ? "buffer" : "input"
            line += " \(quoted(state.sourceName)) "
            switch state.initialValue {
            case .splat(let bytes): line += "splat \(hexadecimal(bytes))"
            case .tensor(let index): line += "tensor \(index)"
            }
            if !state.initialDigest.isEmpty { line += " sha256 \(hexadecimal(state.initialDigest))" }
            if state.isNamedByAuthor { line += " named" }
            lines.append(line)
        }
        for source in program.sources { lines.append("source \(quoted(source))") }
        for function in program.functions {
            if !lines.isEmpty { lines.append("") }
            append(function, to: &lines)
        }
        return lines.joined(separator: "\n") + "\n"
    }

    func append(_ function: Function, to lines: inout [String]) {
        lines.append("func \(quoted(function.name)) {")
        for input in function.inputs {
            lines.append("    input %\(input.value.index) \(quoted(input.name)): \(type(function[input.value]))")
        }
        for state in function.states {
            let name = state.state < program.states.count ? program.states[state.state].name : "#\(state.state)"
            var line = "    state %\(state.before.index) \(quoted(name)): \(type(function[state.before]))"
            if state.after != state.before { line += " after %\(state.after.index)" }
            if !state.writtenBy.isEmpty { line += " writtenBy \(quoted(state.writtenBy))" }
            if state.copiedBytes != .zero || !state.copyReason.isEmpty {
                line += " copies \(size(state.copiedBytes)) because \(quoted(state.copyReason))"
            }
            lines.append(line)
        }
        for constant in function.constants {
            let name =
                constant.tensor < program.tensors.count ? program.tensors[constant.tensor].name : "#\(constant.tensor)"
            lines.append("    constant %\(constant.value.index) \(quoted(name)): \(type(function[constant.value]))")
        }
        for node in function.nodes {
            let results = node.results.map { "%\($0.index): \(type(function[$0]))" }.joined(separator: ", ")
            let arguments = node.arguments.map { "\($0.name)=\(argument($0.value))" }.joined(separator: ", ")
            var line = "    \(results) = \(node.isInPlace ? "inPlace " : "")\(node.op)(\(arguments))"
            if let source = node.source { line += " @\(source)" }
            lines.append(line)
        }
        for output in function.outputs {
            lines.append("    output %\(output.value.index) \(quoted(output.name))")
        }
        if let context = function.context {
            let input =
                function.inputs.indices.contains(context.positions)
                ? function.inputs[context.positions].name : "#\(context.positions)"
            let axes = context.axes.map { axis in
                let isKnown = program.states.indices.contains(axis.state)
                let name = isKnown ? program.states[axis.state].name : "#\(axis.state)"
                return "\(quoted(name)) axis \(axis.axis)"
            }
            lines.append("    context \(quoted(input)) indexes \(axes.joined(separator: ", "))")
        }
        lines.append("}")
    }

    func argument(_ value: ArgumentValue) -> String {
        switch value {
        case .tensor(let id): "%\(id.index)"
        case .tensors(let ids):
            ids.isEmpty
                ? "tensors[]" : "[" + ids.map { $0.map { "%\($0.index)" } ?? "none" }.joined(separator: ", ") + "]"
        case .size(let expression): size(expression)
        case .sizes(let expressions): "{" + expressions.map(size).joined(separator: ", ") + "}"
        case .number(let number): "\(number)"
        case .numbers(let numbers): "numbers[" + numbers.map { "\($0)" }.joined(separator: ", ") + "]"
        case .flag(let flag): "\(flag)"
        case .scalarType(let type): type.name
        case .text(let text): quoted(text)
        case .none: "none"
        }
    }
}

// MARK: Parser

private struct ProgramParser {
    enum Token: Equatable {
        case name(String)
        /// A name in backquotes: a symbol, never a keyword.
        case symbol(String)
        case text(String)
        case value(Int)
        case source(Int)
        /// Digits, with a point or an exponent when `isNumber`.
        case digits(String, isNumber: Bool)
        case punctuation(UInt8)
        case ellipsis
        case end
    }

    private var tokens: [(token: Token, line: Int)] = []
    private var position = 0
    private var failure: ProgramTextError?
    private var result = Program()
    private var symbolIndices: [String: Int] = [:]

    init(_ text: String) {
        do {
            try tokenise(Array(text.utf8))
        } catch {
            failure = error
        }
    }

    // MARK: Tokens

    private mutating func tokenise(_ bytes: [UInt8]) throws(ProgramTextError) {
        var index = 0
        var line = 1
        func byte(_ offset: Int) -> UInt8 { index + offset < bytes.count ? bytes[index + offset] : 0 }
        while index < bytes.count {
            let current = bytes[index]
            switch current {
            case UInt8(ascii: "\n"):
                line += 1
                index += 1
            case UInt8(ascii: " "), UInt8(ascii: "\t"), UInt8(ascii: "\r"):
                index += 1
            case UInt8(ascii: "/") where byte(1) == UInt8(ascii: "/"):
                while index < bytes.count, bytes[index] != UInt8(ascii: "\n") { index += 1 }
            case UInt8(ascii: "\""):
                tokens.append((.text(try string(bytes, &index, line)), line))
            case UInt8(ascii: "`"):
                guard let close = bytes[(index + 1)...].firstIndex(of: current) else {
                    throw ProgramTextError(line: line, reason: "a backquote is not closed")
                }
                tokens.append((.symbol(String(decoding: bytes[(index + 1)..<close], as: UTF8.self)), line))
                index = close + 1
            case UInt8(ascii: "%"), UInt8(ascii: "@"):
                let start = index + 1
                index = start
                while index < bytes.count, isDigit(bytes[index]) { index += 1 }
                guard let number = Int(String(decoding: bytes[start..<index], as: UTF8.self)), number < 1 << 24 else {
                    throw ProgramTextError(line: line, reason: "expected a number after % or @")
                }
                tokens.append((current == UInt8(ascii: "%") ? .value(number) : .source(number), line))
            case UInt8(ascii: ".") where byte(1) == current && byte(2) == current:
                tokens.append((.ellipsis, line))
                index += 3
            case _ where isDigit(current):
                let start = index
                // Hexadecimal bytes come as one run of digits and names; `hex()` glues them.
                while index < bytes.count, isDigit(bytes[index]) { index += 1 }
                var isNumber = false
                if index + 1 < bytes.count, bytes[index] == UInt8(ascii: "."), isDigit(bytes[index + 1]) {
                    isNumber = true
                    index += 1
                    while index < bytes.count, isDigit(bytes[index]) { index += 1 }
                }
                if index < bytes.count, bytes[index] | 0x20 == UInt8(ascii: "e"),
                    byte(1) == UInt8(ascii: "+") || byte(1) == UInt8(ascii: "-") || isDigit(byte(1)),
                    !isHexRun(bytes, from: start)
                {
                    isNumber = true
                    index += 2
                    while index < bytes.count, isDigit(bytes[index]) { index += 1 }
                }
                if !isNumber {
                    while index < bytes.count, isNamePart(bytes[index]), bytes[index] != UInt8(ascii: ".") {
                        index += 1
                    }
                }
                tokens.append(
                    (.digits(String(decoding: bytes[start..<index], as: UTF8.self), isNumber: isNumber), line))
            case _ where isNameStart(current):
                let start = index
                while index < bytes.count, isNamePart(bytes[index]) { index += 1 }
                tokens.append((.name(String(decoding: bytes[start..<index], as: UTF8.self)), line))
            default:
                tokens.append((.punctuation(current), line))
                index += 1
            }
        }
        tokens.append((.end, line))
    }

    /// Whether the previous word announces bytes, so that `1e05` is two bytes and not a number.
    private func isHexRun(_ bytes: [UInt8], from start: Int) -> Bool {
        guard case .name(let word)? = tokens.last?.token else { return false }
        return ["inline", "splat", "digest", "sha256"].contains(word)
    }

    private func string(_ bytes: [UInt8], _ index: inout Int, _ line: Int) throws(ProgramTextError) -> String {
        var content: [UInt8] = []
        index += 1
        while index < bytes.count {
            let byte = bytes[index]
            index += 1
            if byte == UInt8(ascii: "\"") { return String(decoding: content, as: UTF8.self) }
            guard byte == UInt8(ascii: "\\"), index < bytes.count else {
                content.append(byte)
                continue
            }
            let escaped = bytes[index]
            index += 1
            switch escaped {
            case UInt8(ascii: "n"): content.append(10)
            case UInt8(ascii: "t"): content.append(9)
            case UInt8(ascii: "u"):
                guard let close = bytes[index...].firstIndex(of: UInt8(ascii: "}")),
                    let value = UInt32(String(decoding: bytes[(index + 1)..<close], as: UTF8.self), radix: 16),
                    let scalar = Unicode.Scalar(value)
                else { throw ProgramTextError(line: line, reason: "invalid \\u escape") }
                content += Array(String(Character(scalar)).utf8)
                index = close + 1
            default: content.append(escaped)
            }
        }
        throw ProgramTextError(line: line, reason: "a string is not closed")
    }

    private var token: Token { tokens[position].token }

    private func fail(_ reason: String) -> ProgramTextError {
        ProgramTextError(line: tokens[min(position, tokens.count - 1)].line, reason: reason)
    }

    private mutating func advance() { if position < tokens.count - 1 { position += 1 } }

    private mutating func take(_ character: Unicode.Scalar) -> Bool {
        guard token == .punctuation(UInt8(ascii: character)) else { return false }
        advance()
        return true
    }

    private mutating func expect(_ character: Unicode.Scalar) throws(ProgramTextError) {
        if !take(character) { throw fail("expected \(character), found \(token)") }
    }

    private mutating func take(word: String) -> Bool {
        guard token == .name(word) else { return false }
        advance()
        return true
    }

    private mutating func expect(word: String) throws(ProgramTextError) {
        if !take(word: word) { throw fail("expected \(word), found \(token)") }
    }

    private mutating func text() throws(ProgramTextError) -> String {
        guard case .text(let text) = token else { throw fail("expected a quoted string, found \(token)") }
        advance()
        return text
    }

    private mutating func value() throws(ProgramTextError) -> ValueID {
        guard case .value(let index) = token else { throw fail("expected a value, found \(token)") }
        advance()
        return ValueID(index)
    }

    private mutating func integer() throws(ProgramTextError) -> Int {
        let isNegative = take("-")
        guard case .digits(let digits, isNumber: false) = token, let number = Int((isNegative ? "-" : "") + digits)
        else {
            throw fail("expected an integer, found \(token)")
        }
        advance()
        return number
    }

    private mutating func bytes() throws(ProgramTextError) -> [UInt8] {
        let digits: String
        switch token {
        case .name("empty"):
            advance()
            return []
        case .name(let name): digits = name
        case .digits(let text, isNumber: false): digits = text
        default: throw fail("expected bytes, found \(token)")
        }
        let ascii = Array(digits.utf8)
        var result: [UInt8] = []
        guard ascii.count % 2 == 0 else { throw fail("odd number of hexadecimal digits") }
        for index in stride(from: 0, to: ascii.count, by: 2) {
            guard let byte = UInt8(String(decoding: ascii[index..<(index + 2)], as: UTF8.self), radix: 16) else {
                throw fail("invalid hexadecimal digits")
            }
            result.append(byte)
        }
        advance()
        return result
    }

    // MARK: Sizes and types

    private mutating func size() throws(ProgramTextError) -> SizeExpression {
        do {
            var sum = take("-") ? try SizeExpression.zero.minus(product()) : try product()
            while true {
                if take("+") {
                    sum = try sum.plus(product())
                } else if take("-") {
                    sum = try sum.minus(product())
                } else {
                    return sum
                }
            }
        } catch let error as ProgramTextError {
            throw error
        } catch {
            throw fail("invalid size: \(error)")
        }
    }

    private mutating func product() throws -> SizeExpression {
        var result = try factor()
        while take("*") { result = try result.times(factor()) }
        return result
    }

    private mutating func factor() throws -> SizeExpression {
        switch token {
        case .digits(let digits, isNumber: false):
            guard let number = Int(digits) else { throw fail("expected an integer, found \(digits)") }
            advance()
            return SizeExpression(number)
        case .name(let name):
            advance()
            guard ["floordiv", "mod", "max", "min"].contains(name), take("(") else { return try symbol(name) }
            let a = try size()
            try expect(",")
            let b = try size()
            try expect(")")
            switch name {
            case "floordiv": return try a.floorDivided(by: b)
            case "mod": return try a.modulo(b)
            case "max": return try a.maximum(b)
            default: return try a.minimum(b)
            }
        case .symbol(let name):
            advance()
            return try symbol(name)
        default: throw fail("expected a size, found \(token)")
        }
    }

    private func symbol(_ name: String) throws(ProgramTextError) -> SizeExpression {
        guard let index = symbolIndices[name] else { throw fail("unknown symbol \(name)") }
        return .symbol(index)
    }

    private mutating func sizes(until close: Unicode.Scalar) throws(ProgramTextError) -> [SizeExpression] {
        var result: [SizeExpression] = []
        if take(close) { return result }
        repeat { result.append(try size()) } while take(",")
        try expect(close)
        return result
    }

    private mutating func type() throws(ProgramTextError) -> ValueType {
        guard case .name(let name) = token, let scalarType = ScalarType(name: name) else {
            throw fail("expected a type, found \(token)")
        }
        advance()
        try expect("[")
        return ValueType(scalarType, try sizes(until: "]"))
    }

    // MARK: Program

    mutating func program() throws(ProgramTextError) -> Program {
        if let failure { throw failure }
        if take(word: "program") {
            result.producer = try text()
            try expect(word: "digest")
            result.digest = try bytes()
        }
        while take(word: "symbol") {
            let name: String
            switch token {
            case .name(let text), .symbol(let text): name = text
            default: throw fail("expected a symbol name, found \(token)")
            }
            advance()
            let low = try integer()
            guard token == .ellipsis else { throw fail("expected ..., found \(token)") }
            advance()
            symbolIndices[name] = result.symbols.count
            result.symbols.append(.init(name: name, min: low, max: try integer()))
        }
        while take(word: "tensor") { result.tensors.append(try storedTensor()) }
        while take(word: "state") { result.states.append(try state()) }
        while take(word: "source") { result.sources.append(try text()) }
        while take(word: "func") { result.functions.append(try function()) }
        guard token == .end else { throw fail("expected func, found \(token)") }
        return result
    }

    private mutating func storedTensor() throws(ProgramTextError) -> Program.StoredTensor {
        let name = try text()
        let type = try type()
        var shape: [Int] = []
        for size in type.shape {
            guard let constant = size.constant else { throw fail("a stored tensor has a symbolic size") }
            shape.append(constant)
        }
        let data: Program.TensorData
        if take(word: "inline") {
            data = .inline(try bytes())
        } else if take(word: "elided") {
            data = .inline(Array(repeating: 0, count: try integer()))
        } else {
            try expect(word: "weights")
            data = .weightsFile(name: try text())
        }
        var aliases: [String] = []
        if take(word: "aliases") {
            repeat { aliases.append(try text()) } while take(",")
        }
        return .init(name: name, scalarType: type.scalarType, shape: shape, data: data, aliases: aliases)
    }

    private mutating func state() throws(ProgramTextError) -> Program.State {
        let name = try text()
        let type = try type()
        let isBuffer = take(word: "buffer")
        if !isBuffer { try expect(word: "input") }
        let sourceName = try text()
        let initialValue: BundleProgram.InitialValue
        if take(word: "splat") {
            initialValue = .splat(try bytes())
        } else {
            try expect(word: "tensor")
            initialValue = .tensor(try integer())
        }
        let digest = take(word: "sha256") ? try bytes() : []
        return .init(
            name: name, source: isBuffer ? .buffer : .input, sourceName: sourceName, type: type,
            initialValue: initialValue, isNamedByAuthor: take(word: "named"), initialDigest: digest)
    }

    private mutating func function() throws(ProgramTextError) -> Function {
        var function = Function(name: try text())
        func define(_ id: ValueID, _ type: ValueType) {
            while function.values.count <= id.index { function.values.append(ValueType(.bool, [])) }
            function[id] = type
        }
        try expect("{")
        while take(word: "input") {
            let id = try value()
            let name = try text()
            try expect(":")
            define(id, try type())
            function.inputs.append(.init(name: name, value: id))
        }
        while take(word: "state") {
            let id = try value()
            let name = try text()
            guard let index = result.states.firstIndex(where: { $0.name == name }) else {
                throw fail("unknown state \(name)")
            }
            try expect(":")
            define(id, try type())
            var use = Function.StateUse(state: index, before: id, after: id, writtenBy: "")
            if take(word: "after") { use.after = try value() }
            if take(word: "writtenBy") { use.writtenBy = try text() }
            if take(word: "copies") {
                use.copiedBytes = try size()
                try expect(word: "because")
                use.copyReason = try text()
            }
            function.states.append(use)
        }
        while take(word: "constant") {
            let id = try value()
            let name = try text()
            guard let index = result.tensors.firstIndex(where: { $0.name == name }) else {
                throw fail("unknown tensor \(name)")
            }
            try expect(":")
            define(id, try type())
            function.constants.append(.init(value: id, tensor: index))
        }
        while case .value = token {
            var results: [ValueID] = []
            repeat {
                let id = try value()
                try expect(":")
                define(id, try type())
                results.append(id)
            } while take(",")
            try expect("=")
            let isInPlace = take(word: "inPlace")
            guard case .name(let op) = token else { throw fail("expected an operator, found \(token)") }
            advance()
            try expect("(")
            var arguments: [Node.Argument] = []
            if !take(")") {
                repeat {
                    guard case .name(let name) = token else { throw fail("expected an argument name, found \(token)") }
                    advance()
                    try expect("=")
                    arguments.append(.init(name, try argument()))
                } while take(",")
                try expect(")")
            }
            var node = Node(op, arguments, results: results, isInPlace: isInPlace)
            if case .source(let index) = token {
                node.source = index
                advance()
            }
            function.nodes.append(node)
        }
        while take(word: "output") {
            let id = try value()
            function.outputs.append(.init(name: try text(), value: id))
        }
        if take(word: "context") { function.context = try context(of: function) }
        try expect("}")
        return function
    }

    private mutating func context(of function: Function) throws(ProgramTextError) -> ContextRules {
        let input = try text()
        guard let positions = function.inputs.firstIndex(where: { $0.name == input }) else {
            throw fail("unknown input \(input)")
        }
        try expect(word: "indexes")
        var rules = ContextRules(positions: positions, axes: [])
        repeat {
            let name = try text()
            guard let state = result.states.firstIndex(where: { $0.name == name }) else {
                throw fail("unknown state \(name)")
            }
            try expect(word: "axis")
            rules.axes.append(.init(state: state, axis: try integer()))
        } while take(",")
        return rules
    }

    private mutating func number() throws(ProgramTextError) -> Double {
        let sign = take("-") ? -1.0 : 1.0
        switch token {
        case .digits(let digits, _):
            guard let number = Double(digits) else { throw fail("expected a number, found \(digits)") }
            advance()
            return sign * number
        case .name("inf"):
            advance()
            return sign * .infinity
        case .name("nan"):
            advance()
            return .nan
        default: throw fail("expected a number, found \(token)")
        }
    }

    private mutating func argument() throws(ProgramTextError) -> ArgumentValue {
        switch token {
        case .value: return .tensor(try value())
        case .text: return .text(try text())
        case .punctuation(UInt8(ascii: "[")):
            advance()
            var ids: [ValueID?] = []
            repeat {
                if take(word: "none") { ids.append(nil) } else { ids.append(try value()) }
            } while take(",")
            try expect("]")
            return .tensors(ids)
        case .punctuation(UInt8(ascii: "{")):
            advance()
            return .sizes(try sizes(until: "}"))
        case .punctuation(UInt8(ascii: "-")):
            let next = tokens[min(position + 1, tokens.count - 1)].token
            switch next {
            case .digits(_, isNumber: true), .name("inf"): return .number(try number())
            default: return .size(try size())
            }
        case .digits(_, isNumber: true), .name("inf"), .name("nan"): return .number(try number())
        case .name("none"):
            advance()
            return .none
        case .name("true"), .name("false"):
            let flag = token == .name("true")
            advance()
            return .flag(flag)
        case .name("tensors"):
            advance()
            try expect("[")
            try expect("]")
            return .tensors([])
        case .name("numbers"):
            advance()
            try expect("[")
            var numbers: [Double] = []
            if take("]") { return .numbers(numbers) }
            repeat { numbers.append(try number()) } while take(",")
            try expect("]")
            return .numbers(numbers)
        case .name(let name):
            if let scalarType = ScalarType(name: name) {
                advance()
                return .scalarType(scalarType)
            }
            return .size(try size())
        default: return .size(try size())
        }
    }
}
