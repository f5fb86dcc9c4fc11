package import StatepackBundle
package import StatepackDiagnostics

/// A safetensors file, read strictly: 8 bytes of header length, a JSON header, then the tensors' bytes one
/// after another in the order of the header.
///
/// Stricter than the format asks, for two readers must never see two files in one: no duplicate names, no holes, no
/// overlaps, nothing behind the last tensor, no number but plain integers, no unknown type.
package struct Safetensors: Sendable {
    package struct Entry: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        /// Bytes from the start of the file.
        package var range: Range<Int>
    }

    /// A header longer than this is refused, as the reference implementation does.
    package static let maximumHeaderLength = 100_000_000

    /// Of tensors, and of metadata.
    package static let maximumEntryCount = 1 << 18

    /// In bytes: what the program's names may have.
    package static let maximumNameLength = 1024

    /// In file order.
    package let entries: [Entry]
    package let metadata: [String: String]
    private let file: MappedFile
    private let indices: [String: Int]

    package subscript(name: String) -> Entry? { indices[name].map { entries[$0] } }

    /// Maps and checks a file. Reads the header only.
    package init(path: String) throws(DiagnosticList) {
        try self.init(file: MappedFile(path: path), path: path)
    }

    package init(file: MappedFile, path: String) throws(DiagnosticList) {
        self.file = file
        do {
            let header = try Self.header(file.bytes)
            entries = header.entries
            metadata = header.metadata
        } catch {
            throw DiagnosticList([
                Diagnostic(
                    error.isTruncation ? .truncatedFile : .malformedWeights, error.message,
                    at: path, expected: error.expected, found: error.found)
            ])
        }
        indices = Dictionary(uniqueKeysWithValues: entries.enumerated().map { ($1.name, $0) })
    }

    package func withBytes<R, E: Error>(
        of entry: Entry, _ body: (UnsafeRawBufferPointer) throws(E) -> R
    ) throws(E) -> R {
        try body(UnsafeRawBufferPointer(rebasing: file.bytes[entry.range]))
    }

    // MARK: Header

    struct Failure: Error, Hashable {
        var message: String
        var expected: String?
        var found: String?
        var isTruncation = false
    }

    private static func header(
        _ bytes: UnsafeRawBufferPointer
    ) throws(Failure) -> (entries: [Entry], metadata: [String: String]) {
        guard bytes.count >= 8 else {
            throw Failure(
                message: "the file is shorter than the length of its header", expected: "8 bytes or more",
                found: "\(bytes.count) bytes", isTruncation: true)
        }
        let declared = UInt64(littleEndian: bytes.loadUnaligned(as: UInt64.self))
        guard declared <= UInt64(maximumHeaderLength) else {
            throw Failure(
                message: "the header is too long", expected: "at most \(maximumHeaderLength) bytes",
                found: "\(declared) bytes")
        }
        let length = Int(declared)
        guard length <= bytes.count - 8 else {
            throw Failure(
                message: "the header is longer than the file", expected: "\(length + 8) bytes or more",
                found: "\(bytes.count) bytes", isTruncation: true)
        }
        var parser = SafetensorsHeaderParser(UnsafeRawBufferPointer(rebasing: bytes[8..<(8 + length)]))
        let (tensors, metadata) = try parser.header()
        var entries: [Entry] = []
        var names: Set<String> = []
        var end = 0
        let dataStart = 8 + length
        for tensor in tensors {
            guard names.insert(tensor.name).inserted else {
                throw Failure(message: "a tensor occurs twice", found: "`\(tensor.name)`")
            }
            guard let scalarType = scalarType(of: tensor.type) else {
                throw Failure(
                    message: "tensor `\(tensor.name)` has an unknown type",
                    expected: typeNames.map(\.0).joined(separator: ", "), found: tensor.type)
            }
            guard let count = scalarType.byteCount(ofShape: tensor.shape) else {
                throw Failure(message: "the size of tensor `\(tensor.name)` overflows", found: "\(tensor.shape)")
            }
            guard tensor.start <= tensor.end, tensor.end - tensor.start == count else {
                throw Failure(
                    message: "the bytes of tensor `\(tensor.name)` do not fit its type and shape",
                    expected: "\(count) bytes", found: "\(tensor.start)..<\(tensor.end)")
            }
            guard tensor.start == end else {
                throw Failure(
                    message: tensor.start > end
                        ? "there is a hole in front of tensor `\(tensor.name)`"
                        : "tensor `\(tensor.name)` overlaps another or is not in order",
                    expected: "start \(end)", found: "start \(tensor.start)")
            }
            end = tensor.end
            guard end <= bytes.count - dataStart else {
                throw Failure(
                    message: "tensor `\(tensor.name)` reaches past the end of the file",
                    expected: "\(dataStart + end) bytes or more", found: "\(bytes.count) bytes", isTruncation: true)
            }
            entries.append(
                Entry(
                    name: tensor.name, scalarType: scalarType, shape: tensor.shape,
                    range: (dataStart + tensor.start)..<(dataStart + tensor.end)))
        }
        guard dataStart + end == bytes.count else {
            throw Failure(
                message: "bytes follow the last tensor", expected: "\(dataStart + end) bytes",
                found: "\(bytes.count) bytes")
        }
        return (entries, metadata)
    }

    private static let typeNames: [(String, ScalarType)] = [
        ("BOOL", .bool), ("I8", .int8), ("I16", .int16), ("I32", .int32), ("I64", .int64), ("U8", .uint8),
        ("U16", .uint16), ("U32", .uint32), ("U64", .uint64), ("F16", .float16), ("F32", .float32),
        ("F64", .float64), ("BF16", .bfloat16),
    ]

    static func scalarType(of name: String) -> ScalarType? { typeNames.first { $0.0 == name }?.1 }

    static func typeName(of type: ScalarType) -> String { typeNames.first { $0.1 == type }!.0 }
}

/// Reads the one shape of JSON that a header has. Anything else is refused, duplicate keys included.
private struct SafetensorsHeaderParser {
    struct Tensor {
        var name: String
        var type: String
        var shape: [Int]
        var start: Int
        var end: Int
    }

    private let bytes: UnsafeRawBufferPointer
    private var position = 0

    init(_ bytes: UnsafeRawBufferPointer) { self.bytes = bytes }

    private func failure(_ reason: String) -> Safetensors.Failure {
        Safetensors.Failure(
            message: "the header is not the JSON of a safetensors file", found: "\(reason) at byte \(position)")
    }

    private mutating func skipSpace() {
        while position < bytes.count, [0x20, 0x09, 0x0A, 0x0D].contains(bytes[position]) { position += 1 }
    }

    private mutating func take(_ character: Unicode.Scalar) -> Bool {
        skipSpace()
        guard position < bytes.count, bytes[position] == UInt8(ascii: character) else { return false }
        position += 1
        return true
    }

    private mutating func expect(_ character: Unicode.Scalar) throws(Safetensors.Failure) {
        if !take(character) { throw failure("no \(character)") }
    }

    mutating func header() throws(Safetensors.Failure) -> ([Tensor], [String: String]) {
        // The format: the first byte is a brace, spaces may follow the last.
        guard bytes.first == UInt8(ascii: "{") else { throw failure("no {") }
        position = 1
        var tensors: [Tensor] = []
        var metadata: [String: String]?
        if !take("}") {
            repeat {
                let name = try string()
                try expect(":")
                if name == "__metadata__" {
                    if metadata != nil { throw failure("__metadata__ twice") }
                    metadata = try strings()
                } else {
                    // Sixty bytes here are three hundred in memory.
                    if tensors.count == Safetensors.maximumEntryCount { throw failure("too many tensors") }
                    tensors.append(try tensor(name))
                }
            } while take(",")
            try expect("}")
        }
        while position < bytes.count, bytes[position] == 0x20 { position += 1 }
        if position != bytes.count { throw failure("something behind the last brace") }
        return (tensors, metadata ?? [:])
    }

    private mutating func strings() throws(Safetensors.Failure) -> [String: String] {
        try expect("{")
        var result: [String: String] = [:]
        if take("}") { return result }
        repeat {
            let key = try string()
            try expect(":")
            let value = try string()
            if result.count == Safetensors.maximumEntryCount { throw failure("too many keys of __metadata__") }
            if result.updateValue(value, forKey: key) != nil { throw failure("a key twice") }
        } while take(",")
        try expect("}")
        return result
    }

    private mutating func tensor(_ name: String) throws(Safetensors.Failure) -> Tensor {
        if name.isEmpty { throw failure("an empty name") }
        if name.utf8.count > Safetensors.maximumNameLength {
            throw failure("a name of more than \(Safetensors.maximumNameLength) bytes")
        }
        try expect("{")
        var type: String?
        var shape: [Int]?
        var offsets: [Int]?
        repeat {
            let key = try string()
            try expect(":")
            switch key {
            case "dtype" where type == nil: type = try string()
            case "shape" where shape == nil: shape = try integers()
            case "data_offsets" where offsets == nil: offsets = try integers()
            default: throw failure("an unknown key or a key twice")
            }
        } while take(",")
        try expect("}")
        guard let type, let shape, let offsets, offsets.count == 2 else { throw failure("an incomplete tensor") }
        if shape.count > 8 { throw failure("more than 8 axes") }
        return Tensor(name: name, type: type, shape: shape, start: offsets[0], end: offsets[1])
    }

    private mutating func integers() throws(Safetensors.Failure) -> [Int] {
        try expect("[")
        var result: [Int] = []
        if take("]") { return result }
        repeat { result.append(try integer()) } while take(",")
        try expect("]")
        return result
    }

    private mutating func integer() throws(Safetensors.Failure) -> Int {
        skipSpace()
        let start = position
        var value = 0
        while position < bytes.count, (0x30...0x39).contains(bytes[position]) {
            let (product, overflow) = value.multipliedReportingOverflow(by: 10)
            let (sum, carried) = product.addingReportingOverflow(Int(bytes[position] - 0x30))
            if overflow || carried { throw failure("an integer that is too large") }
            value = sum
            position += 1
        }
        if position == start { throw failure("no integer") }
        if position - start > 1, bytes[start] == 0x30 { throw failure("an integer with a leading zero") }
        return value
    }

    private mutating func string() throws(Safetensors.Failure) -> String {
        try expect("\"")
        var content: [UInt8] = []
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            switch byte {
            case UInt8(ascii: "\""):
                guard let text = String(validating: content, as: UTF8.self), !content.contains(0) else {
                    throw failure("a string that is not UTF-8 or contains NUL")
                }
                return text
            case UInt8(ascii: "\\"): try escape(into: &content)
            case 0..<0x20: throw failure("a control character in a string")
            default: content.append(byte)
            }
        }
        throw failure("a string that is not closed")
    }

    private mutating func escape(into content: inout [UInt8]) throws(Safetensors.Failure) {
        guard position < bytes.count else { throw failure("a string that is not closed") }
        let byte = bytes[position]
        position += 1
        switch byte {
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): content.append(byte)
        case UInt8(ascii: "b"): content.append(8)
        case UInt8(ascii: "f"): content.append(12)
        case UInt8(ascii: "n"): content.append(10)
        case UInt8(ascii: "r"): content.append(13)
        case UInt8(ascii: "t"): content.append(9)
        case UInt8(ascii: "u"):
            var value = UInt32(try codeUnit())
            if (0xD800..<0xDC00).contains(value) {
                guard position + 1 < bytes.count, bytes[position] == UInt8(ascii: "\\"),
                    bytes[position + 1] == UInt8(ascii: "u")
                else { throw failure("half a surrogate pair") }
                position += 2
                let low = UInt32(try codeUnit())
                guard (0xDC00..<0xE000).contains(low) else { throw failure("half a surrogate pair") }
                value = 0x10000 + (value - 0xD800) << 10 + (low - 0xDC00)
            }
            guard let scalar = Unicode.Scalar(value) else { throw failure("half a surrogate pair") }
            content += Array(String(Character(scalar)).utf8)
        default: throw failure("an unknown escape")
        }
    }

    private mutating func codeUnit() throws(Safetensors.Failure) -> UInt16 {
        guard position + 4 <= bytes.count else { throw failure("a string that is not closed") }
        let digits = bytes[position..<(position + 4)]
        guard digits.allSatisfy({ (0x30...0x39).contains($0) || (0x61...0x66).contains($0 | 0x20) }),
            let value = UInt16(String(decoding: digits, as: UTF8.self), radix: 16)
        else { throw failure("an escape without four digits") }
        position += 4
        return value
    }
}
