internal import CProtobufC
@preconcurrency internal import CStatepackSchema

/// What is checked of protobuf bytes before libprotobuf-c sees them.
///
/// libprotobuf-c recurses without limit, allocates eighty bytes for an empty message of two, cuts strings at
/// NUL and does not look at their encoding. This walk follows the message descriptors and refuses all of that,
/// every wire type that does not fit its field, and, in a version of the format that this reader knows, every field
/// that it does not have: nobody has written such a field, so it can only hide something.
struct WireScan {
    struct Failure: Error, Hashable {
        enum Kind: Hashable {
            case malformed
            case limit
        }

        var kind: Kind
        var reason: String
        /// Bytes from the start of the scanned message.
        var offset: Int
    }

    /// Messages and elements of repeated fields.
    static let maximumElements = 4 << 20
    /// Messages alone: what they cost in memory is many times what they cost in the file.
    static let maximumMessages = 1 << 20

    private let bytes: UnsafeRawBufferPointer
    private let skipsUnknownFields: Bool
    private var elements = 0
    private var messages = 0

    private init(_ bytes: UnsafeRawBufferPointer, skipsUnknownFields: Bool) {
        self.bytes = bytes
        self.skipsUnknownFields = skipsUnknownFields
    }

    /// Checks a whole message of `type`. Never descends further than the schema does: no message of it contains
    /// its own kind, which `schemas/generate.py` checks, and unknown fields are not entered.
    static func check(
        _ bytes: UnsafeRawBufferPointer, as type: UnsafePointer<ProtobufCMessageDescriptor>,
        skippingUnknownFields: Bool
    ) throws(Failure) {
        var scan = WireScan(bytes, skipsUnknownFields: skippingUnknownFields)
        try scan.message(0..<bytes.count, type)
    }

    // MARK: Wire format

    struct Field {
        var number: UInt32
        var wireType: UInt8
        /// Of the value; for a length-delimited field without its length.
        var content: Range<Int>
        var value: UInt64
    }

    static func varint(_ bytes: UnsafeRawBufferPointer, _ position: inout Int, end: Int) throws(Failure) -> UInt64 {
        var value: UInt64 = 0
        var shift: UInt64 = 0
        let start = position
        while position < end {
            let byte = bytes[position]
            position += 1
            if shift == 63, byte > 1 { break }
            value |= UInt64(byte & 0x7F) << shift
            if byte < 0x80 { return value }
            shift += 7
            if shift > 63 { break }
        }
        throw Failure(kind: .malformed, reason: "a number is cut or too long", offset: start)
    }

    static func field(_ bytes: UnsafeRawBufferPointer, _ position: inout Int, end: Int) throws(Failure) -> Field {
        let start = position
        let tag = try varint(bytes, &position, end: end)
        guard tag >> 3 > 0, tag >> 3 < 1 << 29 else {
            throw Failure(kind: .malformed, reason: "a field has an invalid number", offset: start)
        }
        var field = Field(number: UInt32(tag >> 3), wireType: UInt8(tag & 7), content: position..<position, value: 0)
        let length: Int
        switch field.wireType {
        case 0:
            field.value = try varint(bytes, &position, end: end)
            field.content = field.content.lowerBound..<position
            return field
        case 1: length = 8
        case 5: length = 4
        case 2:
            let declared = try varint(bytes, &position, end: end)
            guard declared <= UInt64(end - position) else {
                throw Failure(kind: .malformed, reason: "a field is longer than what is left", offset: start)
            }
            length = Int(declared)
        default:
            throw Failure(kind: .malformed, reason: "a field has an unknown wire type", offset: start)
        }
        guard length <= end - position else {
            throw Failure(kind: .malformed, reason: "a field is longer than what is left", offset: start)
        }
        field.content = position..<(position + length)
        position += length
        return field
    }

    // MARK: Schema

    private mutating func count(_ added: Int, at offset: Int) throws(Failure) {
        elements += added
        if elements > Self.maximumElements {
            throw Failure(kind: .limit, reason: "more than \(Self.maximumElements) elements", offset: offset)
        }
    }

    private mutating func message(
        _ range: Range<Int>, _ type: UnsafePointer<ProtobufCMessageDescriptor>
    ) throws(Failure) {
        messages += 1
        if messages > Self.maximumMessages {
            throw Failure(kind: .limit, reason: "more than \(Self.maximumMessages) messages", offset: range.lowerBound)
        }
        let fields = UnsafeBufferPointer(start: type.pointee.fields, count: Int(type.pointee.n_fields))
        var seen: UInt64 = 0
        var position = range.lowerBound
        while position < range.upperBound {
            let start = position
            let field = try Self.field(bytes, &position, end: range.upperBound)
            try count(1, at: start)
            guard let index = fields.firstIndex(where: { $0.id == field.number }) else {
                if skipsUnknownFields { continue }
                throw Self.unknownField(field.number, at: start)
            }
            let declared = fields[index]
            if declared.label != PROTOBUF_C_LABEL_REPEATED {
                guard seen & 1 << index == 0 else {
                    throw Failure(kind: .malformed, reason: "a field occurs twice", offset: start)
                }
                seen |= 1 << index
            }
            try check(field, declared, start)
        }
    }

    private mutating func check(
        _ field: Field, _ declared: ProtobufCFieldDescriptor, _ start: Int
    ) throws(Failure) {
        let expected: UInt8
        switch declared.type {
        case PROTOBUF_C_TYPE_MESSAGE, PROTOBUF_C_TYPE_STRING, PROTOBUF_C_TYPE_BYTES: expected = 2
        case PROTOBUF_C_TYPE_FIXED64, PROTOBUF_C_TYPE_SFIXED64, PROTOBUF_C_TYPE_DOUBLE: expected = 1
        case PROTOBUF_C_TYPE_FIXED32, PROTOBUF_C_TYPE_SFIXED32, PROTOBUF_C_TYPE_FLOAT: expected = 5
        default: expected = 0
        }
        let isPacked = field.wireType == 2 && expected != 2 && declared.label == PROTOBUF_C_LABEL_REPEATED
        guard field.wireType == expected || isPacked else {
            throw Failure(kind: .malformed, reason: "a field has the wrong wire type", offset: start)
        }
        if isPacked {
            try packed(field.content, expected)
            return
        }
        switch declared.type {
        case PROTOBUF_C_TYPE_MESSAGE:
            try message(
                field.content, declared.descriptor.assumingMemoryBound(to: ProtobufCMessageDescriptor.self))
        case PROTOBUF_C_TYPE_STRING:
            try string(field.content)
        case PROTOBUF_C_TYPE_BOOL:
            if field.value > 1 {
                throw Failure(kind: .malformed, reason: "a truth value is neither 0 nor 1", offset: start)
            }
        case PROTOBUF_C_TYPE_UINT32, PROTOBUF_C_TYPE_ENUM:
            // libprotobuf-c would drop the upper half.
            if field.value > UInt64(UInt32.max) {
                throw Failure(kind: .malformed, reason: "a number does not fit 32 bits", offset: start)
            }
        default: break
        }
    }

    static func unknownField(_ number: UInt32, at offset: Int) -> Failure {
        Failure(
            kind: .malformed, reason: "field \(number) is not part of this version of the format", offset: offset)
    }

    /// The message without the fields that `type` does not have, at any depth. The bytes have passed `check`.
    static func knownFields(
        of bytes: UnsafeRawBufferPointer, _ range: Range<Int>, as type: UnsafePointer<ProtobufCMessageDescriptor>
    ) throws(Failure) -> [UInt8] {
        let fields = UnsafeBufferPointer(start: type.pointee.fields, count: Int(type.pointee.n_fields))
        var result: [UInt8] = []
        var position = range.lowerBound
        while position < range.upperBound {
            let start = position
            let field = try field(bytes, &position, end: range.upperBound)
            guard let known = fields.first(where: { $0.id == field.number }) else { continue }
            if known.type != PROTOBUF_C_TYPE_MESSAGE {
                result += bytes[start..<position]
                continue
            }
            let content = try knownFields(
                of: bytes, field.content,
                as: known.descriptor.assumingMemoryBound(to: ProtobufCMessageDescriptor.self))
            result += varint(UInt64(field.number) << 3 | 2) + varint(UInt64(content.count)) + content
        }
        return result
    }

    static func varint(_ value: UInt64) -> [UInt8] {
        var rest = value
        var bytes: [UInt8] = []
        while rest >= 0x80 {
            bytes.append(UInt8(truncatingIfNeeded: rest) | 0x80)
            rest >>= 7
        }
        return bytes + [UInt8(rest)]
    }

    private mutating func packed(_ range: Range<Int>, _ wireType: UInt8) throws(Failure) {
        switch wireType {
        case 0:
            var position = range.lowerBound
            var found = 0
            while position < range.upperBound {
                _ = try Self.varint(bytes, &position, end: range.upperBound)
                found += 1
            }
            try count(found, at: range.lowerBound)
        default:
            let size = wireType == 1 ? 8 : 4
            guard range.count % size == 0 else {
                throw Failure(kind: .malformed, reason: "a packed field is cut", offset: range.lowerBound)
            }
            try count(range.count / size, at: range.lowerBound)
        }
    }

    private func string(_ range: Range<Int>) throws(Failure) {
        let content = UnsafeRawBufferPointer(rebasing: bytes[range])
        if content.contains(0) {
            throw Failure(kind: .malformed, reason: "a string contains NUL", offset: range.lowerBound)
        }
        if String(validating: content, as: UTF8.self) == nil {
            throw Failure(kind: .malformed, reason: "a string is not UTF-8", offset: range.lowerBound)
        }
    }
}

/// The memory libprotobuf-c may take for one message: more makes it give up, as if memory were short.
final class CappedAllocator {
    private var left: Int
    private(set) var isExhausted = false
    private var allocator = ProtobufCAllocator()

    init(limit: Int) {
        left = limit
    }

    /// Calls `body` with the allocator; everything it allocates through it must be freed through it, or live on
    /// as plain `malloc` memory.
    func withAllocator<R>(_ body: (UnsafeMutablePointer<ProtobufCAllocator>) -> R) -> R {
        allocator.alloc = { data, size in
            let owner = Unmanaged<CappedAllocator>.fromOpaque(data!).takeUnretainedValue()
            guard size <= owner.left else {
                owner.isExhausted = true
                return nil
            }
            owner.left -= size
            // The system's allocator takes some more for itself.
            owner.left -= 16
            return malloc(size)
        }
        allocator.free = { _, pointer in free(pointer) }
        allocator.allocator_data = Unmanaged.passUnretained(self).toOpaque()
        return withExtendedLifetime(self) { withUnsafeMutablePointer(to: &allocator, body) }
    }
}

#if canImport(Darwin)
    internal import Darwin
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Glibc
#endif
