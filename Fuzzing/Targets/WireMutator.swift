/// Changes one place in a tree of protobuf fields and writes it again with lengths that fit.
///
/// Knows no schema: a length-delimited field whose content reads as fields is taken for a message.
struct WireMutator {
    private enum Payload {
        case varint(UInt64)
        /// Of wire type 1 or 5.
        case fixed([UInt8], UInt64)
        case bytes([UInt8])
        case message([Field])
    }

    private struct Field {
        var number: UInt64
        var payload: Payload
    }

    private var state: UInt64

    init(seed: UInt64) { state = seed &* 0x9E37_79B9_7F4A_7C15 | 1 }

    private mutating func random(below limit: Int) -> Int {
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        return Int(state >> 1) % max(limit, 1)
    }

    /// Nil when the bytes are no fields.
    mutating func mutate(_ bytes: [UInt8]) -> [UInt8]? {
        var position = 0
        guard var fields = Self.parse(bytes[...], &position, depth: 0), !fields.isEmpty else { return nil }
        // Some at once: a reference and what it refers to change together.
        for _ in 0..<1 + random(below: 3) { change(&fields) }
        var result: [UInt8] = []
        for field in fields { Self.write(field, to: &result) }
        return result
    }

    private mutating func change(_ fields: inout [Field]) {
        let index = random(below: fields.count)
        guard !fields.isEmpty else { return }
        if case .message(var inner) = fields[index].payload, !inner.isEmpty, random(below: 8) != 0 {
            change(&inner)
            fields[index].payload = .message(inner)
            return
        }
        switch random(below: 10) {
        case 0: fields.remove(at: index)
        case 1: fields.insert(fields[index], at: index)
        case 2: fields.swapAt(index, random(below: fields.count))
        case 3: fields[index].payload = fields[random(below: fields.count)].payload
        case 4 where random(below: 4) == 0: fields[index].number = UInt64(random(below: 16))
        default: changePayload(&fields[index])
        }
    }

    private mutating func changePayload(_ field: inout Field) {
        switch field.payload {
        case .varint(let value): field.payload = .varint(changed(value))
        case .fixed(var bytes, let type):
            bytes[random(below: bytes.count)] = UInt8(random(below: 256))
            field.payload = .fixed(bytes, type)
        case .bytes(let bytes): field.payload = .bytes(changed(bytes))
        case .message(let inner):
            var bytes: [UInt8] = []
            for field in inner { Self.write(field, to: &bytes) }
            field.payload = .bytes(changed(bytes))
        }
    }

    private mutating func changed(_ value: UInt64) -> UInt64 {
        switch random(below: 8) {
        case 0: value &+ 1
        case 1: value &- 1
        case 2: 0
        case 3: UInt64(random(below: 16))
        case 4: 1 << UInt64(random(below: 64))
        case 5: .max >> UInt64(random(below: 64))
        case 6: value ^ 1 << UInt64(random(below: 64))
        default: value &* UInt64(2 + random(below: 8))
        }
    }

    private mutating func changed(_ bytes: [UInt8]) -> [UInt8] {
        // Packed varints, most of the time.
        if let values = Self.varints(bytes), !values.isEmpty, random(below: 4) != 0 {
            var values = values
            let index = random(below: values.count)
            switch random(below: 6) {
            case 0: values.remove(at: index)
            case 1: values.insert(values[index], at: index)
            case 2: values.append(UInt64(random(below: 16)))
            default: values[index] = changed(values[index])
            }
            var result: [UInt8] = []
            for value in values { Self.varint(value, to: &result) }
            return result
        }
        var result = bytes
        let count = bytes.count
        result.append(contentsOf: repeatElement(0, count: 16))
        let length = result.withUnsafeMutableBufferPointer { mutateBytes($0.baseAddress!, count, count + 16) }
        return Array(result[..<min(length, count + 16)])
    }

    // MARK: Wire format

    private static func varint(_ bytes: ArraySlice<UInt8>, _ position: inout Int) -> UInt64? {
        var value: UInt64 = 0
        var shift: UInt64 = 0
        while position < bytes.endIndex, shift < 64 {
            let byte = bytes[position]
            position += 1
            value |= UInt64(byte & 0x7F) << shift
            if byte < 0x80 { return value }
            shift += 7
        }
        return nil
    }

    private static func varints(_ bytes: [UInt8]) -> [UInt64]? {
        var values: [UInt64] = []
        var position = 0
        while position < bytes.count {
            guard let value = varint(bytes[...], &position) else { return nil }
            values.append(value)
        }
        return values
    }

    private static func varint(_ value: UInt64, to bytes: inout [UInt8]) {
        var rest = value
        while rest >= 0x80 {
            bytes.append(UInt8(truncatingIfNeeded: rest) | 0x80)
            rest >>= 7
        }
        bytes.append(UInt8(rest))
    }

    private static func parse(_ bytes: ArraySlice<UInt8>, _ position: inout Int, depth: Int) -> [Field]? {
        var fields: [Field] = []
        position = bytes.startIndex
        while position < bytes.endIndex {
            guard let tag = varint(bytes, &position), tag >> 3 > 0, tag >> 3 < 64 else { return nil }
            let number = tag >> 3
            switch tag & 7 {
            case 0:
                guard let value = varint(bytes, &position) else { return nil }
                fields.append(Field(number: number, payload: .varint(value)))
            case 1, 5:
                let count = tag & 7 == 1 ? 8 : 4
                guard bytes.endIndex - position >= count else { return nil }
                fields.append(
                    Field(number: number, payload: .fixed(Array(bytes[position..<position + count]), tag & 7)))
                position += count
            case 2:
                guard let length = varint(bytes, &position), length <= UInt64(bytes.endIndex - position) else {
                    return nil
                }
                let content = bytes[position..<position + Int(length)]
                position += Int(length)
                var inner = 0
                if depth < 8, content.count > 1, let message = parse(content, &inner, depth: depth + 1) {
                    fields.append(Field(number: number, payload: .message(message)))
                } else {
                    fields.append(Field(number: number, payload: .bytes(Array(content))))
                }
            default: return nil
            }
        }
        return fields
    }

    private static func write(_ field: Field, to bytes: inout [UInt8]) {
        switch field.payload {
        case .varint(let value):
            varint(field.number << 3, to: &bytes)
            varint(value, to: &bytes)
        case .fixed(let content, let type):
            varint(field.number << 3 | type, to: &bytes)
            bytes += content
        case .bytes(let content):
            varint(field.number << 3 | 2, to: &bytes)
            varint(UInt64(content.count), to: &bytes)
            bytes += content
        case .message(let fields):
            var inner: [UInt8] = []
            for field in fields { write(field, to: &inner) }
            varint(field.number << 3 | 2, to: &bytes)
            varint(UInt64(inner.count), to: &bytes)
            bytes += inner
        }
    }
}
