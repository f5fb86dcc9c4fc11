/// A JSON document as a value. Members keep their order; no two have the same key.
package indirect enum JSONValue: Hashable, Sendable {
    case null
    case bool(Bool)
    case integer(Int)
    case number(Double)
    case string(String)
    case array([JSONValue])
    case object([Member])

    package struct Member: Hashable, Sendable {
        package var key: String
        package var value: JSONValue

        package init(key: String, value: JSONValue) {
            self.key = key
            self.value = value
        }
    }

    package static func strings(_ values: some Sequence<String>) -> JSONValue { .array(values.map { .string($0) }) }

    package subscript(key: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { $0.key == key }?.value
    }

    package var stringValue: String? {
        guard case .string(let value) = self else { return nil }
        return value
    }

    package var integerValue: Int? {
        guard case .integer(let value) = self else { return nil }
        return value
    }

    package var boolValue: Bool? {
        guard case .bool(let value) = self else { return nil }
        return value
    }

    package var arrayValue: [JSONValue]? {
        guard case .array(let values) = self else { return nil }
        return values
    }

    package var objectValue: [Member]? {
        guard case .object(let members) = self else { return nil }
        return members
    }

    /// The word people use for the kind of value, for messages.
    package var kind: String {
        switch self {
        case .null: "null"
        case .bool: "a boolean"
        case .integer: "an integer"
        case .number: "a number"
        case .string: "a string"
        case .array: "an array"
        case .object: "an object"
        }
    }
}

/// An object in the order of the literal; a nil value leaves its key out.
extension JSONValue: ExpressibleByDictionaryLiteral {
    package init(dictionaryLiteral elements: (String, JSONValue?)...) {
        self = .object(elements.compactMap { key, value in value.map { Member(key: key, value: $0) } })
    }
}

extension JSONValue {
    /// Text with two blanks of indentation and a line break at the end. Equal values give equal bytes.
    ///
    /// An array of scalars, and an object of scalars that fits in 100 columns, stands on one line, so that
    /// a committed document diffs by entry.
    package var text: String {
        var text = ""
        write(to: &text, indent: 0)
        return text + "\n"
    }

    /// The text of a scalar, or the kind of another value, for messages.
    package var shortText: String {
        guard isScalar else { return kind }
        var text = ""
        write(to: &text, indent: 0)
        return text
    }

    private var isScalar: Bool {
        switch self {
        case .array, .object: false
        default: true
        }
    }

    private var isFlat: Bool {
        switch self {
        case .array(let values): values.allSatisfy(\.isScalar)
        case .object(let members):
            members.allSatisfy { member in
                if case .array(let values) = member.value { return values.allSatisfy(\.isScalar) }
                return member.value.isScalar
            }
        default: true
        }
    }

    private func write(to text: inout String, indent: Int) {
        switch self {
        case .null: text += "null"
        case .bool(let value): text += value ? "true" : "false"
        case .integer(let value): text += String(value)
        // JSON has no word for these; a string keeps the document readable everywhere.
        case .number(let value): text += value.isFinite ? "\(value)" : "\"\(value)\""
        case .string(let value): Self.writeQuoted(value, to: &text)
        case .array(let values):
            writeList(values.count, "[", "]", to: &text, indent: indent) { index, text, indent in
                values[index].write(to: &text, indent: indent)
            }
        case .object(let members):
            writeList(members.count, "{", "}", to: &text, indent: indent) { index, text, indent in
                Self.writeQuoted(members[index].key, to: &text)
                text += ": "
                members[index].value.write(to: &text, indent: indent)
            }
        }
    }

    private func writeList(
        _ count: Int, _ open: String, _ close: String, to text: inout String, indent: Int,
        element: (Int, inout String, Int) -> Void
    ) {
        if count == 0 {
            text += open + close
            return
        }
        if isFlat {
            var line = open
            for index in 0..<count {
                if index > 0 { line += ", " }
                element(index, &line, indent)
            }
            line += close
            if case .array = self {
                text += line
                return
            }
            if line.count + indent <= 100 {
                text += line
                return
            }
        }
        let inner = String(repeating: " ", count: indent + 2)
        text += open + "\n"
        for index in 0..<count {
            text += inner
            element(index, &text, indent + 2)
            text += index + 1 < count ? ",\n" : "\n"
        }
        text += String(repeating: " ", count: indent) + close
    }

    private static func writeQuoted(_ string: String, to text: inout String) {
        text += "\""
        for scalar in string.unicodeScalars {
            switch scalar {
            case "\"": text += "\\\""
            case "\\": text += "\\\\"
            case "\n": text += "\\n"
            case "\r": text += "\\r"
            case "\t": text += "\\t"
            case "\u{0}"..<"\u{20}", "\u{7F}"..."\u{9F}":
                let hex = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - hex.count) + hex
            default: text.unicodeScalars.append(scalar)
            }
        }
        text += "\""
    }
}

extension JSONValue: ExpressibleByStringLiteral, ExpressibleByIntegerLiteral, ExpressibleByArrayLiteral {
    package init(arrayLiteral elements: JSONValue...) { self = .array(elements) }
    package init(stringLiteral value: String) { self = .string(value) }
    package init(integerLiteral value: Int) { self = .integer(value) }
}
