import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import Testing

/// Bytes at an address as a mapped file has them.
func withAligned<Result>(_ bytes: [UInt8], _ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: max(1, bytes.count), alignment: 64)
    defer { memory.deallocate() }
    memory.copyBytes(from: bytes)
    return try body(UnsafeRawBufferPointer(rebasing: memory[..<bytes.count]))
}

/// The findings of opening `bytes`; empty when they are a good bundle.
func findings(_ bytes: [UInt8]) -> [Diagnostic] {
    withAligned(bytes) { raw in
        do throws(DiagnosticList) {
            _ = try MappedBundle(path: "x", unowned: raw)
            return []
        } catch {
            return error.diagnostics
        }
    }
}

/// CRC-32C by its definition, so that the reader is not tested with its own code.
private func checksum(_ bytes: some Sequence<UInt8>) -> UInt32 {
    var crc: UInt32 = ~0
    for byte in bytes {
        crc ^= UInt32(byte)
        for _ in 0..<8 { crc = crc >> 1 ^ (crc & 1 == 1 ? 0x82F6_3B78 : 0) }
    }
    return ~crc
}

/// A good file, changed at one place, with the header's checksum made right again.
func repaired(_ bytes: [UInt8]) -> [UInt8] {
    var bytes = bytes
    let tableEnd = 32 + 64 * Int(bytes[24])
    guard bytes.count >= tableEnd else { return bytes }
    let sum = checksum(bytes[..<28] + bytes[32..<tableEnd])
    for index in 0..<4 { bytes[28 + index] = UInt8(truncatingIfNeeded: sum >> UInt32(8 * index)) }
    return bytes
}

@Suite struct DamagedFileTests {
    let folder = TemporaryFolder()

    private func fixture() throws -> [UInt8] {
        let path = folder.file("good.statepack")
        try Fixture.write(try Fixture.program(), to: path)
        return readBytes(path)
    }

    /// Without weights, so that it is short.
    private func small() throws -> [UInt8] {
        var program = try Fixture.program()
        program.tensors = []
        program.states = []
        program.functions = []
        let path = folder.file("small.statepack")
        try Fixture.write(program, to: path)
        return readBytes(path)
    }

    struct Damage: CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var place: String
        var expected: String?
        var found: String?
        /// Whether the header's checksum is made right after the change.
        var isRepaired = true
        var change: @Sendable (inout [UInt8]) -> Void
    }

    // Rows of the section table: 0 program, 1 weights, 2 recording, 3 source map; each has kind at 0, flags
    // at 4, offset at 8, length at 16, checksum at 24, a reserved field at 28 and the SHA-256 at 32.
    private static func row(_ index: Int, _ offset: Int) -> Int { 32 + 64 * index + offset }

    static let damages: [Damage] = [
        .init(
            testDescription: "magic", code: .notABundle, place: "x, offset 0", expected: "magic 8953504b0d0a1a0a",
            found: "8a53504b0d0a1a0a"
        ) { $0[0] += 1 },
        .init(testDescription: "text", code: .notABundle, place: "x, offset 0", found: "48656c6c6f") {
            $0 = Array("Hello".utf8)
        },
        .init(
            testDescription: "newer major", code: .bundleTooNew, place: "x, offset 8", expected: "format 1",
            found: "format 2", isRepaired: false
        ) { $0[8] = 2 },
        .init(
            testDescription: "major zero", code: .bundleHeaderMalformed, place: "x, offset 8", expected: "1 or more",
            found: "0"
        ) { $0[8] = 0 },
        .init(
            testDescription: "no section", code: .bundleHeaderMalformed, place: "x, offset 24", expected: "1 to 16",
            found: "0"
        ) { $0[24] = 0 },
        .init(
            testDescription: "too many sections", code: .bundleHeaderMalformed, place: "x, offset 24",
            expected: "1 to 16", found: "4294967295"
        ) { $0.replaceSubrange(24..<28, with: [255, 255, 255, 255]) },
        .init(testDescription: "header checksum", code: .bundleHeaderChecksum, place: "x, offset 28", isRepaired: false)
        {
            $0[28] ^= 1
        },
        .init(
            testDescription: "table without its checksum", code: .bundleHeaderChecksum, place: "x, offset 28",
            isRepaired: false
        ) { $0[row(1, 40)] ^= 1 },
        .init(testDescription: "longer than the header says", code: .bundleTrailingBytes, place: "x, offset 66479") {
            $0.append(0)
        },
        .init(testDescription: "shorter than the header says", code: .bundleTruncated, place: "x") { $0.removeLast() },
        .init(
            testDescription: "length of all bits set", code: .bundleTruncated, place: "x",
            expected: "18446744073709551615 bytes", found: "66479 bytes"
        ) { $0.replaceSubrange(16..<24, with: Array(repeating: 255, count: 8)) },
        .init(
            testDescription: "section order", code: .bundleHeaderMalformed, place: "x, section table row 2, offset 160",
            expected: "a kind above 2", found: "2"
        ) { $0[row(2, 0)] = 2 },
        .init(
            testDescription: "unknown section", code: .bundleHeaderMalformed,
            place: "x, section table row 3, offset 224",
            expected: "kind 1 to 4", found: "kind 9, flags 0"
        ) { $0[row(3, 0)] = 9 },
        .init(
            testDescription: "unknown required section of a newer minor", code: .bundleHeaderMalformed,
            place: "x, section table row 3, offset 224", expected: "kind 1 to 4", found: "kind 9, flags 1"
        ) {
            $0[12] = 1
            $0[row(3, 0)] = 9
            $0[row(3, 4)] = 1
        },
        .init(
            testDescription: "flags", code: .bundleHeaderMalformed, place: "x, section table row 1, offset 100",
            expected: "1", found: "3"
        ) { $0[row(1, 4)] = 3 },
        .init(
            testDescription: "reserved field", code: .bundleHeaderMalformed, place: "x, section table row 0, offset 60",
            expected: "0", found: "1"
        ) { $0[row(0, 28)] = 1 },
        .init(
            testDescription: "no program", code: .bundleHeaderMalformed, place: "x, section table row 0, offset 36",
            expected: "0", found: "1"
        ) { $0[row(0, 0)] = 3 },
        .init(
            testDescription: "section too far back", code: .bundleSectionRange, place: "x, section program, offset 40",
            found: "offset 384, length"
        ) { $0[row(0, 8)] += 64 },
        .init(
            testDescription: "section inside the table", code: .bundleSectionRange,
            place: "x, section program, offset 40", found: "offset 256, length"
        ) { $0[row(0, 8)] -= 64 },
        .init(
            testDescription: "weights not on a page", code: .bundleSectionRange,
            place: "x, section weights, offset 104",
            expected: "offset 65536, length 1 to 943", found: "offset 65600, length"
        ) { $0[row(1, 8)] = 64 },
        .init(
            testDescription: "section without bytes", code: .bundleSectionRange,
            place: "x, section recording, offset 168",
            found: "offset 66368, length 0"
        ) { $0.replaceSubrange(row(2, 16)..<row(2, 24), with: Array(repeating: 0, count: 8)) },
        .init(
            testDescription: "offset plus length overflows", code: .bundleSectionRange,
            place: "x, section source map, offset 232", found: "offset 66432, length 18446744073709551615"
        ) { $0.replaceSubrange(row(3, 16)..<row(3, 24), with: Array(repeating: 255, count: 8)) },
        .init(
            testDescription: "offset beyond int64", code: .bundleSectionRange,
            place: "x, section source map, offset 232",
            found: "offset 18446744073709551615, length 47"
        ) { $0.replaceSubrange(row(3, 8)..<row(3, 16), with: Array(repeating: 255, count: 8)) },
        .init(
            testDescription: "last section one byte short", code: .bundleSectionRange, place: "x, offset 66478",
            expected: "66479", found: "66478"
        ) { $0[row(3, 16)] -= 1 },
        .init(
            testDescription: "padding before the weights", code: .bundlePadding, place: "x, offset 60000",
            expected: "0",
            found: "7"
        ) { $0[60000] = 7 },
        .init(
            testDescription: "padding before the source map", code: .bundlePadding, place: "x, offset 66400",
            expected: "0", found: "1"
        ) { $0[66400] = 1 },
        .init(testDescription: "program byte", code: .bundleChecksum, place: "x, section program, offset 320") {
            $0[330] ^= 4
        },
    ]

    @Test("One changed field gives one finding with its code and place", arguments: damages)
    func damaged(_ damage: Damage) throws {
        var bytes = try fixture()
        #expect(bytes.count == 66479)
        let isRepairNeutral = repaired(bytes) == bytes
        #expect(isRepairNeutral)
        damage.change(&bytes)
        if damage.isRepaired, bytes.count > 32 { bytes = repaired(bytes) }
        let found = findings(bytes)
        #expect(found.map(\.code) == [damage.code])
        #expect(found.first?.location == damage.place)
        if let expected = damage.expected { #expect(found.first?.expected == expected) }
        if let value = damage.found { #expect(found.first?.found?.hasPrefix(value) == true, "\(found)") }
        #expect(found.first?.code.exitCode == (damage.code == .bundleTooNew ? 4 : 3))
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("BundleDamage", damage.testDescription, actual: text))
    }

    @Test(
        arguments: [
            (
                [0x09, 0x53, 0x50, 0x4B, 0x0D, 0x0A, 0x1A, 0x0A],
                "the file was changed by a transfer in text mode: copy it again in binary mode"
            ),
            (
                [0x89, 0x53, 0x50, 0x4B, 0x0A, 0x1A, 0x0A, 0x00],
                "the file was changed by a transfer in text mode: copy it again in binary mode"
            ),
            (
                [0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0x1A],
                "this looks like an exported program: convert it first"
            ),
            ([0x50, 0x4B, 3, 4, 0, 0, 0, 0], "pass the *.statepack file that convert wrote"),
        ] as [([UInt8], String)])
    func hintGuessesWhatTheFileIs(bytes: [UInt8], hint: String) {
        let found = findings(bytes)
        #expect(found.map(\.code) == [.notABundle])
        #expect(found.first?.hint == hint)
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("BundleDamage", "starts with \(bytes.prefix(5))", actual: text))
    }

    @Test func fileWithoutAProgramIsRefused() throws {
        let path = folder.file("recording.statepack")
        try Fixture.write(program: [1], weights: [], recording: [], sourceMap: [], to: path)
        var bytes = readBytes(path)
        // The only row becomes one of a recording, which is optional.
        bytes[Self.row(0, 0)] = 3
        bytes[Self.row(0, 4)] = 0
        let text = ExactTexts.text(findings(repaired(bytes)))
        #expect(text == ExactTexts.expected("BundleDamage", "file without a program", actual: text))
    }

    @Test func truncationAtEveryLengthIsMalformed() throws {
        let bytes = try small()
        #expect(findings(bytes).isEmpty)
        #expect(bytes.count < 1024)
        for length in 0..<bytes.count {
            let found = findings(Array(bytes[..<length]))
            #expect(found.map(\.code) == [.bundleTruncated], "length \(length)")
            #expect(found.first?.found == "\(length) bytes")
        }
    }

    @Test func truncationAt256LengthsIsMalformed() throws {
        let bytes = try fixture()
        var lengths = (0..<256).map { $0 * bytes.count / 256 }
        // Around every border between sections.
        for row in 0..<4 {
            let start = (0..<8).reduce(0) { $0 | Int(bytes[Self.row(row, 8) + $1]) << (8 * $1) }
            lengths += [start - 1, start, start + 1]
        }
        for length in lengths {
            #expect(findings(Array(bytes[..<length])).map(\.code) == [.bundleTruncated], "length \(length)")
        }
    }

    @Test func everyFlippedHeaderByteIsNoticed() throws {
        let bytes = try fixture()
        for index in 0..<32 + 64 * 4 {
            for mask: UInt8 in [0x01, 0x80, 0xFF] {
                var damaged = bytes
                damaged[index] ^= mask
                let found = findings(damaged)
                #expect(found.count == 1, "byte \(index), mask \(mask)")
                #expect([3, 4].contains(found.first?.code.exitCode ?? 0))
            }
        }
    }

    @Test func everyFlippedByteIsNoticedByValidation() throws {
        let bytes = try fixture()
        var random = SeededGenerator(seed: 3)
        let sections = (0..<4).map { row in
            let start = (0..<8).reduce(0) { $0 | Int(bytes[Self.row(row, 8) + $1]) << (8 * $1) }
            return start..<start + (0..<8).reduce(0) { $0 | Int(bytes[Self.row(row, 16) + $1]) << (8 * $1) }
        }
        var positions = sections.flatMap { Array($0) }
        for _ in 0..<200 { positions.append(288 + random.below(bytes.count - 288)) }
        for index in positions {
            var damaged = bytes
            damaged[index] ^= UInt8(1 + random.below(255))
            let codes = withAligned(damaged) { raw in
                do throws(DiagnosticList) {
                    let bundle = try MappedBundle(path: "x", unowned: raw)
                    let fast = bundle.checksumFindings().map(\.code)
                    let slow = bundle.digestFindings(using: sha256).map(\.code)
                    #expect(fast == [.bundleChecksum] && slow.contains(.bundleDigest), "byte \(index)")
                    return fast
                } catch {
                    return error.diagnostics.map(\.code)
                }
            }
            #expect(!codes.isEmpty, "byte \(index)")
        }
    }

    @Test func differenceNamesSectionAndBothDigests() throws {
        var bytes = try fixture()
        let stored = bytes[Self.row(1, 32)..<Self.row(1, 64)].map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }
            .joined()
        bytes[65536] ^= 1
        withAligned(bytes) { raw in
            let bundle = try? MappedBundle(path: "x", unowned: raw)
            let fast = bundle?.checksumFindings() ?? []
            #expect(fast.map(\.code) == [.bundleChecksum])
            #expect(fast.first?.location == "x, section weights, offset 65536")
            let text = ExactTexts.text(fast)
            #expect(text == ExactTexts.expected("BundleDamage", "weights byte, checksum", actual: text))
            let slow = bundle?.digestFindings(using: sha256) ?? []
            #expect(slow.map(\.code) == [.bundleDigest])
            #expect(slow.first?.expected == stored)
            #expect(slow.first?.location == "x, section weights, offset 65536")
            let slowText = ExactTexts.text(slow)
            #expect(slowText == ExactTexts.expected("BundleDamage", "weights byte, SHA-256", actual: slowText))
        }
    }

    @Test func byteBetweenTwoTensorsIsFound() throws {
        let program = try Fixture.program()
        var weights = Fixture.weights(of: program)
        // The bias ends at 528; the next tensor starts at 576.
        weights[540] = 1
        let path = folder.file("gap.statepack")
        try Fixture.write(program, to: path, weights: weights)
        let bundle = try MappedBundle(path: path)
        #expect(bundle.checksumFindings().isEmpty)
        let found = bundle.digestFindings(using: sha256)
        #expect(found.map(\.code) == [.bundlePadding])
        #expect(found.first?.location == "\(path), section weights, offset 540")
        let text = ExactTexts.text(found, in: folder.path)
        #expect(text == ExactTexts.expected("BundleDamage", "byte between two tensors", actual: text))
    }
}
