import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import Testing

/// Program sections made byte by byte: what no writer of ours would write.
@Suite struct WireFormatTests {
    /// Field of wire type 2.
    private static func message(_ field: UInt8, _ body: [UInt8]) -> [UInt8] {
        [field << 3 | 2] + varint(body.count) + body
    }

    private static func varint(_ value: Int) -> [UInt8] {
        value < 128 ? [UInt8(value)] : [UInt8(value & 127) | 128] + varint(value >> 7)
    }

    private static let digest = message(4, Array(repeating: 1, count: 32))
    private static let head: [UInt8] = [0x08, 1] + digest
    private static let type: [UInt8] = [0x08, 11]
    private static func name(_ text: String) -> [UInt8] { message(1, Array(text.utf8)) }
    private static func value(_ body: [UInt8]) -> [UInt8] { head + message(8, name("f") + message(6, body)) }
    private static func size(_ field: UInt8, _ postfix: [UInt8]) -> [UInt8] { message(field, message(1, postfix)) }

    struct Malformed: CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var message: String
        var bytes: [UInt8]
    }

    static let cases: [Malformed] = [
        .init(
            testDescription: "major version of the program", code: .bundleProgramMalformed,
            message: "the program section has another version than the header", bytes: [0x08, 2] + digest),
        .init(
            testDescription: "no digest", code: .bundleProgramMalformed,
            message: "the program digest has the wrong length", bytes: [0x08, 1]),
        .init(
            testDescription: "length past the end", code: .bundleProgramMalformed,
            message: "a length exceeds what is left of its message", bytes: head + [0x2A, 5, 0]),
        .init(
            testDescription: "length of 64 bits", code: .bundleProgramMalformed,
            message: "a length exceeds what is left of its message",
            bytes: head + [0x2A] + Array(repeating: 0xFF, count: 9) + [1]),
        .init(
            testDescription: "varint without an end", code: .bundleProgramMalformed, message: "a varint is invalid",
            bytes: [0x08, 0x80]),
        .init(
            testDescription: "varint of eleven bytes", code: .bundleProgramMalformed, message: "a varint is invalid",
            bytes: [0x08] + Array(repeating: 0x80, count: 10) + [1]),
        .init(
            testDescription: "varint beyond 64 bits", code: .bundleProgramMalformed, message: "a varint is invalid",
            bytes: [0x08] + Array(repeating: 0xFF, count: 9) + [2]),
        .init(
            testDescription: "overlong varint", code: .bundleProgramMalformed, message: "a varint is invalid",
            bytes: [0x08, 0x81, 0x00] + digest),
        .init(
            testDescription: "field number zero", code: .bundleProgramMalformed, message: "a field number is invalid",
            bytes: [0x00, 0]),
        .init(
            testDescription: "group", code: .bundleProgramMalformed, message: "a wire type is invalid",
            bytes: head + [0x2B, 0x2C]),
        .init(
            testDescription: "wire type seven", code: .bundleProgramMalformed, message: "a wire type is invalid",
            bytes: [0x0F]),
        .init(
            testDescription: "message where a number belongs", code: .bundleProgramMalformed,
            message: "field 1 has the wrong wire type", bytes: [0x0A, 0]),
        .init(
            testDescription: "number where a message belongs", code: .bundleProgramMalformed,
            message: "field 5 has the wrong wire type", bytes: head + [0x28, 0]),
        .init(
            testDescription: "fields in descending order", code: .bundleProgramMalformed,
            message: "fields are not in ascending order", bytes: digest + [0x08, 1]),
        .init(
            testDescription: "one field twice", code: .bundleProgramMalformed,
            message: "fields are not in ascending order", bytes: [0x08, 1, 0x08, 1]),
        .init(
            testDescription: "unknown field", code: .bundleProgramMalformed,
            message: "a field is not part of format 1.0", bytes: head + [0x78, 1]),
        .init(
            testDescription: "fixed field at the end", code: .bundleProgramMalformed,
            message: "a field ends after its message", bytes: head + [0x79, 1, 2]),
        .init(
            testDescription: "text that is not UTF-8", code: .bundleProgramMalformed, message: "a text is not UTF-8",
            bytes: [0x08, 1, 0x1A, 2, 0xC3, 0x28] + digest),
        .init(
            testDescription: "surrogate in UTF-8", code: .bundleProgramMalformed, message: "a text is not UTF-8",
            bytes: head + message(9, [0xED, 0xA0, 0x80])),
        .init(
            testDescription: "long text", code: .bundleProgramLimit, message: "a text is too long",
            bytes: [0x08, 1] + message(3, Array(repeating: 0x61, count: 4097)) + digest),
        .init(
            testDescription: "long name", code: .bundleProgramLimit, message: "a text is too long",
            bytes: head + message(9, Array(repeating: 0x61, count: 1025))),
        .init(
            testDescription: "name with NUL", code: .bundleName, message: "a name has a control character",
            bytes: head + message(9, [0x61, 0])),
        .init(
            testDescription: "tensor without a type", code: .bundleProgramMalformed,
            message: "a tensor's scalar type is missing", bytes: head + message(6, [])),
        .init(
            testDescription: "unknown scalar type", code: .bundleValueUnknown, message: "a scalar type is unknown",
            bytes: head + message(6, [0x10, 14])),
        .init(
            testDescription: "scalar type of 40 bits", code: .bundleProgramMalformed, message: "field 2 is too large",
            bytes: head + message(6, [0x10, 0x8B, 0x80, 0x80, 0x80, 0x80, 0x01])),
        .init(
            testDescription: "unknown layout", code: .bundleValueUnknown, message: "a layout is unknown",
            bytes: head + message(6, [0x10, 11, 0x20, 2])),
        .init(
            testDescription: "axis beyond int64", code: .bundleProgramMalformed,
            message: "a length of a shape exceeds int64",
            bytes: head + message(6, [0x10, 11] + message(3, Array(repeating: 0xFF, count: 9) + [1]))),
        .init(
            testDescription: "offset beyond int64", code: .bundleProgramMalformed, message: "field 5 is too large",
            bytes: head + message(6, [0x10, 11, 0x28] + Array(repeating: 0xFF, count: 9) + [1])),
        .init(
            testDescription: "state without an initial value", code: .bundleProgramMalformed,
            message: "a state needs one initial value", bytes: head + message(7, name("s") + [0x18, 11])),
        .init(
            testDescription: "state with two initial values", code: .bundleProgramMalformed,
            message: "a state needs one initial value",
            bytes: head + message(7, name("s") + [0x18, 11] + message(5, [0, 0, 0, 0]) + [0x30, 1])),
        .init(
            testDescription: "long initial value", code: .bundleProgramMalformed,
            message: "an initial value is longer than any element",
            bytes: head + message(7, name("s") + [0x18, 11] + message(5, Array(repeating: 0, count: 9)))),
        .init(
            testDescription: "storage missing", code: .bundleValueUnknown, message: "a storage class is unknown",
            bytes: value(type)),
        .init(
            testDescription: "unknown storage", code: .bundleValueUnknown, message: "a storage class is unknown",
            bytes: value(type + [0x18, 7])),
        .init(
            testDescription: "value without a type", code: .bundleProgramMalformed,
            message: "a value's scalar type is missing", bytes: value([0x18, 1])),
        .init(
            testDescription: "view without an offset", code: .bundleProgramMalformed,
            message: "a view's offset is missing", bytes: value(type + [0x18, 6])),
        .init(
            testDescription: "input with a lifetime", code: .bundleStorage,
            message: "a value has a field of another storage class", bytes: value(type + [0x18, 1, 0x38, 1])),
        .init(
            testDescription: "input with strides", code: .bundleStorage,
            message: "a value has a field of another storage class",
            bytes: value(type + [0x18, 1] + size(5, [0, 2]))),
        .init(
            testDescription: "scratch memory with a slot", code: .bundleStorage,
            message: "a value has a field of another storage class", bytes: value(type + [0x18, 5, 0x20, 1])),
        .init(
            testDescription: "empty size", code: .bundleSize,
            message: "a size is not an expression of the program's symbols", bytes: value(type + message(2, []))),
        .init(
            testDescription: "size of an unknown symbol", code: .bundleSize,
            message: "a size is not an expression of the program's symbols", bytes: value(type + size(2, [2, 0]))),
        .init(
            testDescription: "size that is not canonical", code: .bundleSize,
            message: "a size is not an expression of the program's symbols",
            bytes: value(type + size(2, [0, 2, 0, 2, 4, 0]))),
        .init(
            testDescription: "long size", code: .bundleProgramLimit, message: "a size is too long",
            bytes: value(type + size(2, Array(repeating: 0, count: 1281)))),
        .init(
            testDescription: "doubles with a rest", code: .bundleProgramMalformed,
            message: "a packed field of doubles has a rest",
            bytes: head + message(8, name("f") + message(7, message(5, [1, 2, 3])))),
        .init(
            testDescription: "packed varint without an end", code: .bundleProgramMalformed,
            message: "a varint is invalid", bytes: head + message(8, name("f") + message(7, message(2, [0x80])))),
    ]

    private func open(_ program: [UInt8]) throws -> [Diagnostic] {
        let folder = TemporaryFolder()
        try Fixture.write(program: program, weights: [], recording: [], sourceMap: [], to: folder.file("x"))
        return findings(readBytes(folder.file("x")))
    }

    @Test("A malformed program section gives one finding", arguments: cases)
    func refuses(_ row: Malformed) throws {
        let found = try open(row.bytes)
        #expect(found.map(\.code) == [row.code])
        #expect(found.first?.message == row.message)
        #expect(found.first?.location?.hasPrefix("x, section program, offset ") == true)
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("BundleWireFormat", row.testDescription, actual: text))
        #expect(found.first?.code.exitCode == 3)
    }

    @Test func smallestProgramIsRead() throws { #expect(try open(Self.head).isEmpty) }

    @Test func placeIsAnOffsetInTheFile() throws {
        // Header and one table row end at 96, aligned to 128; the tag of field 15 follows 36 bytes.
        let found = try open(Self.head + [0x78, 1])
        #expect(found.first?.location == "x, section program, offset \(128 + Self.head.count)")
    }

    @Test func nestingCannotBeMadeDeep() throws {
        // Messages inside each other, as a recursive reader would follow them: field 8 of field 8 of ...
        var bomb: [UInt8] = []
        for _ in 0..<2000 { bomb = Self.message(8, bomb) }
        let found = try open(Self.head + bomb)
        #expect(found.map(\.code) == [.bundleProgramMalformed])
    }

    @Test func millionsOfMessagesAreRefusedWithoutKeepingThem() throws {
        // Two bytes each; what they become in memory is bounded by the limit of messages.
        let count = BundleProgram.Limits.messages + 1
        var body: [UInt8] = Self.name("f")
        body.reserveCapacity(2 * count + 16)
        for _ in 0..<count { body += [0x3A, 0] }
        let found = try open(Self.head + Self.message(8, body))
        #expect(found.map(\.code) == [.bundleProgramLimit])
        #expect(found.first?.message == "the section has too many messages")
    }

    @Test func sectionBeyondTheLimitIsRefused() throws {
        let found = try open([UInt8](repeating: 0, count: BundleProgram.Limits.sectionBytes + 1))
        #expect(found.map(\.code) == [.bundleProgramLimit])
        #expect(found.first?.message == "the program section is too long")
    }

    @Test func sourceMapIsCheckedToo() throws {
        let folder = TemporaryFolder()
        for (id, bytes, code) in [
            ("source map that is cut", [0x0A, 9], Diagnostic.Code.bundleProgramMalformed),
            ("source map with another field", [0x12, 0], .bundleProgramMalformed),
            (
                "source with a long text", Self.message(1, Array(repeating: 0x61, count: 4097)),
                .bundleProgramLimit
            ),
            (
                "source map of too many entries",
                Array([[UInt8]](repeating: [0x0A, 0], count: BundleProgram.Limits.messages + 1).joined()),
                .bundleProgramLimit
            ),
            (
                "source map that is too long",
                [UInt8](repeating: 0, count: BundleProgram.Limits.sectionBytes + 1), .bundleProgramLimit
            ),
        ] as [(String, [UInt8], Diagnostic.Code)] {
            try Fixture.write(
                program: Self.head, weights: [], recording: [], sourceMap: bytes, to: folder.file("x"))
            let found = findings(readBytes(folder.file("x")))
            #expect(found.map(\.code) == [code])
            #expect(found.first?.location?.hasPrefix("x, section source map, offset ") == true)
            let text = ExactTexts.text(found)
            #expect(text == ExactTexts.expected("BundleWireFormat", id, actual: text))
        }
    }

    @Test func randomChangesNeverTrap() throws {
        let program = try Fixture.program().encoded()
        var random = SeededGenerator(seed: 4)
        var refused = 0
        for _ in 0..<3000 {
            var bytes = program
            for _ in 0...random.below(4) {
                switch random.below(3) {
                case 0: bytes[random.below(bytes.count)] = UInt8(random.below(256))
                case 1: bytes.remove(at: random.below(bytes.count))
                default: bytes.insert(UInt8(random.below(256)), at: random.below(bytes.count))
                }
            }
            let found = bytes.withUnsafeBytes { ProgramSection.findings($0, weightsLength: 832, sourceCount: 2) }
            if !found.isEmpty { refused += 1 }
        }
        #expect(refused > 2000)
    }
}
