/// The subset of the protobuf wire format that `bundle.proto` needs, for writing.
///
/// Canonical: fields in order of number, minimal varints, scalars of a repeated field packed, default
/// values left out. One program has one byte string, so equal programs give equal files.
struct WireWriter {
    private(set) var bytes: [UInt8] = []

    mutating func varint(_ value: UInt64) {
        var rest = value
        while rest >= 0x80 {
            bytes.append(UInt8(truncatingIfNeeded: rest) | 0x80)
            rest >>= 7
        }
        bytes.append(UInt8(rest))
    }

    private mutating func tag(_ field: Int, _ wireType: UInt64) { varint(UInt64(field) << 3 | wireType) }

    /// An unsigned or int64 field; zero is left out.
    mutating func field(_ field: Int, _ value: UInt64) {
        if value == 0 { return }
        tag(field, 0)
        varint(value)
    }

    /// A string or bytes field; an empty one is left out.
    mutating func field(_ field: Int, _ value: some Collection<UInt8>) {
        if value.isEmpty { return }
        element(field, value)
    }

    /// One element of a repeated string, bytes or message field, or a message field that is present.
    mutating func element(_ field: Int, _ value: some Collection<UInt8>) {
        tag(field, 2)
        varint(UInt64(value.count))
        bytes.append(contentsOf: value)
    }

    /// A message field that is present.
    mutating func message<Failure: Error>(
        _ field: Int, _ body: (inout WireWriter) throws(Failure) -> Void
    ) throws(Failure) {
        var inner = WireWriter()
        try body(&inner)
        element(field, inner.bytes)
    }

    mutating func packed(_ field: Int, unsigned values: some Sequence<UInt64>) {
        var inner = WireWriter()
        for value in values { inner.varint(value) }
        self.field(field, inner.bytes)
    }

    mutating func packed(_ field: Int, signed values: some Sequence<Int64>) {
        packed(field, unsigned: values.lazy.map { UInt64(bitPattern: ($0 << 1) ^ ($0 >> 63)) })
    }

    mutating func packed(_ field: Int, doubles values: [Double]) {
        var inner: [UInt8] = []
        for value in values {
            let bits = value.bitPattern
            for shift in stride(from: 0, to: 64, by: 8) { inner.append(UInt8(truncatingIfNeeded: bits >> shift)) }
        }
        self.field(field, inner)
    }
}

/// What a wire reader found wrong, with the offset of the first byte that shows it.
struct WireFault: Error, Hashable {
    enum Kind: Hashable {
        case malformed
        case limit
        case unknownValue
        case name
        case size
        case storage
    }

    var kind: Kind
    /// From the start of the section.
    var offset: Int
    var message: String
    var expected: String?
    var found: String?
}

/// Field numbers below 64.
struct FieldSet: ExpressibleByArrayLiteral {
    private var bits: UInt64 = 0

    init(arrayLiteral fields: Int...) {
        for field in fields { bits |= 1 << UInt64(field) }
    }

    func contains(_ field: Int) -> Bool { field < 64 && bits & 1 << UInt64(field) != 0 }
}

/// What all readers of one section share: how many more messages and elements of packed lists it may have.
final class WireBudget {
    private var messages: Int
    private var elements: Int

    init(messages: Int, elements: Int) {
        self.messages = messages
        self.elements = elements
    }

    /// For the numbers of packed lists: a byte in the file, sixteen in memory.
    func takeElement(at offset: Int) throws(WireFault) {
        if elements == 0 {
            throw WireFault(kind: .limit, offset: offset, message: "the section has too many elements")
        }
        elements -= 1
    }

    func takeMessage(at offset: Int) throws(WireFault) {
        if messages == 0 {
            throw WireFault(kind: .limit, offset: offset, message: "the section has too many messages")
        }
        messages -= 1
    }
}

/// Reads one message of the wire format inside the bytes it was given.
///
/// Allocates nothing: strings and nested messages are ranges of the same bytes, and the caller decides
/// what to keep. Nesting is as deep as the calls of the decoder, which follow the schema, so a file
/// cannot make it deeper.
struct WireReader {
    let bytes: UnsafeRawBufferPointer
    /// Where the message starts and ends, from the start of `bytes`.
    private(set) var offset: Int
    let end: Int
    let budget: WireBudget
    private var lastField = 0

    init(_ bytes: UnsafeRawBufferPointer, budget: WireBudget) throws(WireFault) {
        try self.init(bytes, 0..<bytes.count, budget)
    }

    private init(_ bytes: UnsafeRawBufferPointer, _ range: Range<Int>, _ budget: WireBudget) throws(WireFault) {
        self.bytes = bytes
        offset = range.lowerBound
        end = range.upperBound
        self.budget = budget
        try budget.takeMessage(at: offset)
    }

    func malformed(_ message: String, at offset: Int, expected: String? = nil, found: String? = nil) -> WireFault {
        WireFault(kind: .malformed, offset: offset, message: message, expected: expected, found: found)
    }

    /// One field's number and the payload that follows.
    struct Field {
        var number: Int
        var wireType: UInt64
        var offset: Int
        /// The value of a varint field, zero otherwise.
        var integer: UInt64
        /// The payload of a length-delimited field, empty otherwise.
        var payload: Range<Int>
    }

    /// The next field, nil at the end. `repeated` names the fields that may come more than once.
    mutating func next(repeated: FieldSet) throws(WireFault) -> Field? {
        if offset == end { return nil }
        let start = offset
        let tag = try varint()
        let number = tag >> 3
        guard number >= 1, number < 1 << 29 else {
            throw malformed("a field number is invalid", at: start, expected: "1 to 536870911", found: "\(number)")
        }
        let field = Int(number)
        if field < lastField || (field == lastField && !repeated.contains(field)) {
            throw malformed(
                "fields are not in ascending order", at: start, expected: "a field after \(lastField)",
                found: "field \(field)")
        }
        lastField = field
        switch tag & 7 {
        case 0:
            let value = try varint()
            return Field(number: field, wireType: 0, offset: start, integer: value, payload: offset..<offset)
        case 1: return Field(number: field, wireType: 1, offset: start, integer: 0, payload: try take(8))
        case 2:
            let length = try varint()
            guard length <= UInt64(end - offset) else {
                throw malformed(
                    "a length exceeds what is left of its message", at: start,
                    expected: "at most \(end - offset) bytes", found: "\(length) bytes")
            }
            return Field(number: field, wireType: 2, offset: start, integer: 0, payload: try take(Int(length)))
        case 5: return Field(number: field, wireType: 5, offset: start, integer: 0, payload: try take(4))
        default:
            throw malformed(
                "a wire type is invalid", at: start, expected: "0, 1, 2 or 5", found: "\(tag & 7) in field \(field)")
        }
    }

    private mutating func take(_ count: Int) throws(WireFault) -> Range<Int> {
        guard count <= end - offset else {
            throw malformed(
                "a field ends after its message", at: offset, expected: "\(count) bytes", found: "\(end - offset)")
        }
        defer { offset += count }
        return offset..<offset + count
    }

    private mutating func varint() throws(WireFault) -> UInt64 { try Self.varint(bytes, &offset, end) }

    /// NOTE: an overlong varint is refused, so that a value has one encoding.
    private static func varint(
        _ bytes: UnsafeRawBufferPointer, _ offset: inout Int, _ end: Int
    ) throws(WireFault) -> UInt64 {
        let start = offset
        var value: UInt64 = 0
        var shift: UInt64 = 0
        while offset < end {
            let byte = bytes[offset]
            offset += 1
            if shift == 63, byte > 1 { break }
            value |= UInt64(byte & 0x7F) << shift
            if byte < 0x80 {
                if byte == 0, shift > 0 { break }
                return value
            }
            shift += 7
            if shift > 63 { break }
        }
        throw WireFault(
            kind: .malformed, offset: start, message: "a varint is invalid", expected: "a minimal varint of 64 bits",
            found: offset == end ? "the end of the message" : "another encoding")
    }

    // MARK: Payloads

    private func wants(_ wireType: UInt64, _ field: Field) throws(WireFault) {
        if field.wireType != wireType {
            throw malformed(
                "field \(field.number) has the wrong wire type", at: field.offset, expected: "\(wireType)",
                found: "\(field.wireType)")
        }
    }

    func unsigned(_ field: Field) throws(WireFault) -> UInt64 {
        try wants(0, field)
        return field.integer
    }

    /// A uint32 or uint64 field that must fit a nonnegative `Int` up to `limit`.
    func count(_ field: Field, limit: Int = .max) throws(WireFault) -> Int {
        try wants(0, field)
        guard field.integer <= UInt64(limit) else {
            throw malformed(
                "field \(field.number) is too large", at: field.offset, expected: "at most \(limit)",
                found: "\(field.integer)")
        }
        return Int(field.integer)
    }

    func index(_ field: Field) throws(WireFault) -> Int { try count(field, limit: Int(UInt32.max)) }

    func signed(_ field: Field) throws(WireFault) -> Int {
        try wants(0, field)
        return Int(Int64(bitPattern: field.integer))
    }

    func payload(_ field: Field) throws(WireFault) -> UnsafeRawBufferPointer {
        try wants(2, field)
        return UnsafeRawBufferPointer(rebasing: bytes[field.payload])
    }

    func message(_ field: Field) throws(WireFault) -> WireReader {
        try wants(2, field)
        return try WireReader(bytes, field.payload, budget)
    }

    func text(_ field: Field, limit: Int) throws(WireFault) -> String {
        let payload = try payload(field)
        guard payload.count <= limit else {
            throw WireFault(
                kind: .limit, offset: field.offset, message: "a text is too long", expected: "at most \(limit) bytes",
                found: "\(payload.count) bytes")
        }
        guard let text = String(validating: payload, as: UTF8.self) else {
            throw malformed("a text is not UTF-8", at: field.offset)
        }
        return text
    }

    /// Calls `body` with each varint of a packed field.
    func packed(_ field: Field, _ body: (UInt64) -> Void) throws(WireFault) {
        try wants(2, field)
        var position = field.payload.lowerBound
        while position < field.payload.upperBound {
            try budget.takeElement(at: position)
            body(try Self.varint(bytes, &position, field.payload.upperBound))
        }
    }

    func signedArray(_ field: Field) throws(WireFault) -> [Int64] {
        var values: [Int64] = []
        values.reserveCapacity(min(field.payload.count, 64))
        try packed(field) { values.append(Int64(bitPattern: $0 >> 1) ^ -Int64(bitPattern: $0 & 1)) }
        return values
    }

    func doubles(_ field: Field) throws(WireFault) -> [Double] {
        let payload = try payload(field)
        guard payload.count % 8 == 0 else {
            throw malformed(
                "a packed field of doubles has a rest", at: field.offset, expected: "a multiple of 8 bytes",
                found: "\(payload.count) bytes")
        }
        for _ in 0..<payload.count / 8 { try budget.takeElement(at: field.offset) }
        return (0..<payload.count / 8).map {
            let bits = UInt64(littleEndian: payload.loadUnaligned(fromByteOffset: 8 * $0, as: UInt64.self))
            return Double(bitPattern: bits)
        }
    }
}
