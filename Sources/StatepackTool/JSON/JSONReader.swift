/// Reads JSON (RFC 8259) strictly: UTF-8, one value, no duplicate keys, at most `maximumDepth` levels.
package struct JSONReader {
    /// What is wrong, and where.
    package struct Failure: Error, Hashable, Sendable, CustomStringConvertible {
        package var message: String
        /// Both from 1; columns count bytes.
        package var line: Int
        package var column: Int

        package var description: String { "line \(line), column \(column): \(message)" }
    }

    package static let maximumDepth = 64

    private let bytes: [UInt8]
    private var offset = 0

    private init(_ bytes: [UInt8]) { self.bytes = bytes }

    /// Cost: linear in the bytes. Throws `Failure` at the first fault.
    package static func read(_ bytes: [UInt8]) throws(Failure) -> JSONValue {
        var reader = JSONReader(bytes)
        if bytes.starts(with: [0xEF, 0xBB, 0xBF]) {
            throw reader.failure("it starts with a byte order mark, which JSON does not have")
        }
        reader.skipBlanks()
        let value = try reader.readValue(depth: 0)
        reader.skipBlanks()
        if reader.offset < bytes.count { throw reader.failure("text after the end of the document") }
        return value
    }

    private func failure(_ message: String, at position: Int? = nil) -> Failure {
        let end = min(position ?? offset, bytes.count)
        let before = bytes[..<end]
        let line = before.count { $0 == UInt8(ascii: "\n") } + 1
        let start = before.lastIndex(of: UInt8(ascii: "\n")).map { $0 + 1 } ?? 0
        return Failure(message: message, line: line, column: end - start + 1)
    }

    private var current: UInt8? { offset < bytes.count ? bytes[offset] : nil }

    private mutating func skipBlanks() {
        while let byte = current, byte == 0x20 || byte == 0x0A || byte == 0x0D || byte == 0x09 { offset += 1 }
    }

    private mutating func expect(_ byte: UInt8, _ what: String) throws(Failure) {
        guard current == byte else { throw failure("expected \(what)") }
        offset += 1
    }

    private mutating func readValue(depth: Int) throws(Failure) -> JSONValue {
        if depth > Self.maximumDepth { throw failure("more than \(Self.maximumDepth) levels of nesting") }
        switch current {
        case UInt8(ascii: "{"): return try readObject(depth: depth)
        case UInt8(ascii: "["): return try readArray(depth: depth)
        case UInt8(ascii: "\""): return .string(try readString())
        case UInt8(ascii: "t"): return try readWord("true", .bool(true))
        case UInt8(ascii: "f"): return try readWord("false", .bool(false))
        case UInt8(ascii: "n"): return try readWord("null", .null)
        case nil: throw failure("the document ends where a value is expected")
        case let byte?:
            guard byte == UInt8(ascii: "-") || Self.isDigit(byte) else { throw failure("expected a value") }
            return try readNumber()
        }
    }

    private mutating func readWord(_ word: String, _ value: JSONValue) throws(Failure) -> JSONValue {
        guard bytes[offset...].starts(with: word.utf8) else { throw failure("expected a value") }
        offset += word.utf8.count
        return value
    }

    private mutating func readObject(depth: Int) throws(Failure) -> JSONValue {
        offset += 1
        var members: [JSONValue.Member] = []
        var keys: Set<String> = []
        skipBlanks()
        if current == UInt8(ascii: "}") {
            offset += 1
            return .object(members)
        }
        while true {
            skipBlanks()
            let start = offset
            guard current == UInt8(ascii: "\"") else { throw failure("expected a key in double quotes") }
            let key = try readString()
            guard keys.insert(key).inserted else { throw failure("duplicate key `\(key)`", at: start) }
            skipBlanks()
            try expect(UInt8(ascii: ":"), "`:`")
            skipBlanks()
            members.append(JSONValue.Member(key: key, value: try readValue(depth: depth + 1)))
            skipBlanks()
            if current == UInt8(ascii: "}") { break }
            try expect(UInt8(ascii: ","), "`,` or `}`")
        }
        offset += 1
        return .object(members)
    }

    private mutating func readArray(depth: Int) throws(Failure) -> JSONValue {
        offset += 1
        var values: [JSONValue] = []
        skipBlanks()
        if current == UInt8(ascii: "]") {
            offset += 1
            return .array(values)
        }
        while true {
            skipBlanks()
            values.append(try readValue(depth: depth + 1))
            skipBlanks()
            if current == UInt8(ascii: "]") { break }
            try expect(UInt8(ascii: ","), "`,` or `]`")
        }
        offset += 1
        return .array(values)
    }

    private mutating func readString() throws(Failure) -> String {
        let start = offset
        offset += 1
        var content: [UInt8] = []
        while true {
            guard let byte = current else { throw failure("the string does not end", at: start) }
            offset += 1
            switch byte {
            case UInt8(ascii: "\""):
                guard let string = String(validating: content, as: UTF8.self) else {
                    throw failure("the string is not UTF-8", at: start)
                }
                return string
            case UInt8(ascii: "\\"): content += String(try readEscape()).utf8
            case 0..<0x20: throw failure("control character in a string", at: offset - 1)
            default: content.append(byte)
            }
        }
    }

    private mutating func readEscape() throws(Failure) -> Unicode.Scalar {
        let start = offset - 1
        guard let byte = current else { throw failure("the string does not end", at: start) }
        offset += 1
        switch byte {
        case UInt8(ascii: "\""): return "\""
        case UInt8(ascii: "\\"): return "\\"
        case UInt8(ascii: "/"): return "/"
        case UInt8(ascii: "b"): return "\u{8}"
        case UInt8(ascii: "f"): return "\u{C}"
        case UInt8(ascii: "n"): return "\n"
        case UInt8(ascii: "r"): return "\r"
        case UInt8(ascii: "t"): return "\t"
        case UInt8(ascii: "u"):
            let unit = try readHex(start)
            if let scalar = Unicode.Scalar(unit) { return scalar }
            // A surrogate: only the pair of a high and a low one is a scalar.
            guard (0xD800..<0xDC00).contains(unit), bytes[offset...].starts(with: "\\u".utf8) else {
                throw failure("lone surrogate in a string", at: start)
            }
            offset += 2
            let low = try readHex(start)
            guard (0xDC00..<0xE000).contains(low),
                let scalar = Unicode.Scalar(0x10000 + (unit - 0xD800) << 10 + (low - 0xDC00))
            else { throw failure("lone surrogate in a string", at: start) }
            return scalar
        default: throw failure("unknown escape", at: start)
        }
    }

    private mutating func readHex(_ start: Int) throws(Failure) -> UInt32 {
        guard offset + 4 <= bytes.count else { throw failure("incomplete \\u escape", at: start) }
        var value: UInt32 = 0
        for byte in bytes[offset..<offset + 4] {
            guard let digit = Character(Unicode.Scalar(byte)).hexDigitValue else {
                throw failure("incomplete \\u escape", at: start)
            }
            value = value << 4 | UInt32(digit)
        }
        offset += 4
        return value
    }

    private mutating func readNumber() throws(Failure) -> JSONValue {
        let start = offset
        if current == UInt8(ascii: "-") { offset += 1 }
        let leadingZero = current == UInt8(ascii: "0")
        let whole = skipDigits()
        if whole == 0 { throw failure("expected a digit") }
        if leadingZero && whole > 1 { throw failure("a number starts with 0", at: start) }
        var isInteger = true
        if current == UInt8(ascii: ".") {
            isInteger = false
            offset += 1
            if skipDigits() == 0 { throw failure("expected a digit") }
        }
        if current == UInt8(ascii: "e") || current == UInt8(ascii: "E") {
            isInteger = false
            offset += 1
            if current == UInt8(ascii: "+") || current == UInt8(ascii: "-") { offset += 1 }
            if skipDigits() == 0 { throw failure("expected a digit") }
        }
        let text = String(decoding: bytes[start..<offset], as: UTF8.self)
        if isInteger {
            guard let value = Int(text) else { throw failure("the integer does not fit 64 bits", at: start) }
            return .integer(value)
        }
        guard let value = Double(text), value.isFinite else { throw failure("the number is too large", at: start) }
        return .number(value)
    }

    private mutating func skipDigits() -> Int {
        let start = offset
        while let byte = current, Self.isDigit(byte) { offset += 1 }
        return offset - start
    }

    private static func isDigit(_ byte: UInt8) -> Bool { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) }
}
