import StatepackBundle
import StatepackCompiler
import StatepackTool
import Testing

/// Files that somebody broke on purpose, through the commands as a user calls them.
///
/// What each reader does with each kind of fault, and which test says so (C: CompilerTests, B: BundleTests, T: here):
///
/// | kind | exported.pb | safetensors | bundle | contract |
/// |---|---|---|---|---|
/// | depth | C `refusesNestingThatTheSchemaDoesNotHave`, C `refusesMessagesDeeperThanTheSchema` | C `refusesAbuse` (nested value) | B `nestingCannotBeMadeDeep` | T `refusesDeepNesting` |
/// | number of elements | C `refusesAMillionEmptyMessagesWithoutUnpackingThem`, C `refusesMillionsOfPackedNumbers` | T `bombsAreRefusedInLittleMemory` | B `millionsOfMessagesAreRefusedWithoutKeepingThem`, B `millionsOfPackedNumbersAreRefused` | T `contractsHaveALimit` |
/// | size of the file or header | C `refusesProgramsOverTheirLimit` | C `refusesHeadersLongerThanTheirLimitOrTheFile` | B `sectionBeyondTheLimitIsRefused` | T `contractsHaveALimit` |
/// | offset and size overflow | C `refusesOneSpoiltField` (size overflows), C `lengthsBesideAZeroOverflowToo` | C `refusesAbuse`, C `lengthsBesideAZeroOverflowInTheWeightsToo` | B `damaged` (offset plus length overflows), B `lengthsBesideAZeroOverflowToo` | T `malformedContractIsRefusedWithItsPlace`, T `sizesOfAContractAreBounded` |
/// | shape x item size is not the bytes | C `refusesOneSpoiltField` (too few bytes) | C `refusesAbuse` | B `table` (tensor length) | no bytes in it |
/// | cycles | C `nodeThatReadsItsOwnResultIsRefused` | no references in it | B `instruction` (reads what none before it has written), B `function` (view of a view) | no references in it |
/// | missing references | C `refusesOneSpoiltField` (no value, no tensor) | C `refusesWeightsWithoutATensorOrWithAnotherShape` | B `function`, B `instruction` | T `sizesOfAContractAreBounded` (unknown symbol) |
/// | slots out of range | C `refusesOneSpoiltField` (state use of no state) | no slots in it | B `function` | T `malformedContractIsRefusedWithItsPlace` (axis) |
/// | duplicate names and keys | C `refusesOneSpoiltField` (two … of one name) | C `refusesAbuse` (duplicate …) | B `table`, B `function` | T `malformedContractIsRefusedWithItsPlace`, T `refusesWhatIsNotJSON` |
/// | unsorted or overlapping | C `refusesOneSpoiltField` (overlapping runs) | C `refusesAbuse` (overlap, not in order) | B `damaged` (section order), B `table` (tensor range) | order is free |
/// | NUL and control characters | C `refusesOneSpoiltField` (NUL, control character) | C `refusesAbuse` (NUL) | B `refuses` (name) | T `namesOfAContractReachTheTerminalEscaped` |
/// | invalid UTF-8 | C `refusesOneSpoiltField` | C `refusesAbuse` | B `refuses` | T `refusesBytesThatAreNotUTF8` |
/// | long names and texts | C `longTextsAreRefusedAndNotQuoted` | C `longNamesOfTensorsAreRefused` | B `textsThatTheReaderRefusesAreNotWritten` | T `longNamesOfAContractAreCut` |
/// | few bytes that want much memory or time | T `bombsAreRefusedInLittleMemory`, C `sizesThatExplodeAreRefused` | T `bombsAreRefusedInLittleMemory` | T `bombsAreRefusedInLittleMemory` | T `bombsAreRefusedInLittleMemory` |
/// | flipped bytes | T `flippedBytesOfAnExportedProgram` | T `flippedBytesOfWeights` | T `flippedBytesOfABundle` | T `flippedBytesOfAContract` |
/// | flipped bytes, checksums right | T `flippedBytesBehindRightDigests` | T `flippedBytesOfWeights` | T `flippedBytesBehindRightChecksums` | no checksum in it |
@Suite struct HostileFileTests {
    /// SplitMix64, so that a failure comes again.
    struct SeededGenerator: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9E37_79B9_7F4A_7C15
            var z = state
            z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
            z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
            return z ^ (z >> 31)
        }
    }

    private static let contract = Repository.path("examples/01-stateful-transformer/exported.contract.json")

    /// Every position of `header`, each with a change of its own, then `count` random ones in `rest`.
    private static func flips(header: Range<Int>, rest: Range<Int>, count: Int, seed: UInt64) -> [(Int, UInt8)] {
        var random = SeededGenerator(state: seed)
        var flips = header.map { ($0, UInt8.random(in: 1...255, using: &random)) }
        for _ in 0..<count {
            flips.append((Int.random(in: rest, using: &random), UInt8.random(in: 1...255, using: &random)))
        }
        return flips
    }

    /// Validates `bytes` under the name `name` and expects one of the exit codes, with diagnostics exactly when it fails.
    private func expect(
        _ codes: Set<Int32>, _ bytes: [UInt8], as name: String, in folder: TestFolder, _ words: [String],
        _ flip: (Int, UInt8)
    ) async -> Int32 {
        folder.write(bytes, to: name)
        let run = await ToolRun("validate", words)
        #expect(
            codes.contains(run.status), "byte \(flip.0), mask \(flip.1): exit code \(run.status)\n\(run.diagnostics)")
        #expect(
            (run.status == 0) == !run.diagnostics.contains("error["),
            "byte \(flip.0), mask \(flip.1): \(run.diagnostics)")
        return run.status
    }

    // MARK: exported.pb

    @Test func flippedBytesOfAnExportedProgram() async throws {
        let folder = TestFolder()
        let file = try Golden.bytes(Repository.example)
        for flip in Self.flips(header: 0..<18, rest: 0..<file.count, count: 2000, seed: 1) {
            var bytes = file
            bytes[flip.0] ^= flip.1
            _ = await expect([3], bytes, as: "exported.pb", in: folder, [folder / "exported.pb"], flip)
        }
        #expect(folder.names == ["exported.pb"])
    }

    /// The first two fields of exported.pb again: length and digest of the rest.
    private static func signed(_ body: [UInt8]) -> [UInt8] {
        let digest = body.withUnsafeBytes { SHA256Digest.of($0) }
        return [0x09] + (0..<8).map { UInt8(truncatingIfNeeded: body.count >> (8 * $0)) } + [0x11] + digest[..<8] + body
    }

    @Test func flippedBytesBehindRightDigests() async throws {
        let folder = TestFolder()
        // Small, so that what passes is replayed soon; its weights would be most of the bytes otherwise.
        let body = Array(try Golden.bytes(Repository.example)[18...])
        let structure = try ExportedParts(body).structure
        var counts: [Int32: Int] = [:]
        var random = SeededGenerator(state: 2)
        for _ in 0..<400 {
            let flip = (structure.randomElement(using: &random)!, UInt8.random(in: 1...255, using: &random))
            var bytes = body
            bytes[flip.0] ^= flip.1
            let status = await expect(
                [0, 1, 3, 4], Self.signed(bytes), as: "exported.pb", in: folder, [folder / "exported.pb"], flip)
            counts[status, default: 0] += 1
        }
        // Most changes break the program; some are harmless, such as one of a source line.
        #expect(counts[3, default: 0] > 100 && counts[0, default: 0] > 10, "\(counts)")
        #expect(folder.names == ["exported.pb"])
    }

    // MARK: Weights beside it

    @Test func flippedBytesOfWeights() async throws {
        let folder = TestFolder()
        let parts = try ExportedParts(Array(try Golden.bytes(Repository.example)[18...]))
        let weights = parts.weights
        let good = parts.program(weights: weights)
        folder.write(Self.signed(good), to: "exported.pb")
        folder.write(weights, to: "weights.safetensors")
        let run = await ToolRun("validate", folder / "exported.pb")
        #expect(run.status == 0, "\(run.diagnostics)")
        let header = 8 + Int(weights[0]) + Int(weights[1]) << 8
        for flip in Self.flips(header: 0..<header, rest: 0..<weights.count, count: 2000, seed: 3) {
            var bytes = weights
            bytes[flip.0] ^= flip.1
            _ = await expect([3], bytes, as: "weights.safetensors", in: folder, [folder / "exported.pb"], flip)
        }
        // With the digest that the program declares made right.
        for flip in Self.flips(header: 0..<header, rest: 0..<weights.count, count: 100, seed: 4) {
            var bytes = weights
            bytes[flip.0] ^= flip.1
            folder.write(Self.signed(parts.program(weights: bytes)), to: "exported.pb")
            _ = await expect([0, 1, 3], bytes, as: "weights.safetensors", in: folder, [folder / "exported.pb"], flip)
        }
    }

    // MARK: Bundle

    @Test func flippedBytesOfABundle() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let file = try folder.read("model.statepack")
        let header = 32 + 64 * Int(file[24])
        for flip in Self.flips(header: 0..<header, rest: 0..<file.count, count: 2000, seed: 5) {
            var bytes = file
            bytes[flip.0] ^= flip.1
            // A newer major version is the one thing that is not malformed but unsupported.
            let codes: Set<Int32> = (8..<12).contains(flip.0) ? [3, 4] : [3]
            _ = await expect(codes, bytes, as: "model.statepack", in: folder, [folder / "model.statepack"], flip)
        }
    }

    @Test func flippedBytesBehindRightChecksums() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let file = try folder.read("model.statepack")
        func number(_ offset: Int) -> Int { (0..<8).reduce(0) { $0 | Int(file[offset + $1]) << (8 * $1) } }
        let sections = (0..<Int(file[24])).map { row in
            let start = number(32 + 64 * row + 8)
            return start..<start + number(32 + 64 * row + 16)
        }
        // Weights are most of the file and least of the structure.
        var flips = Self.flips(header: 0..<32 + 64 * sections.count, rest: sections[0], count: 300, seed: 6)
        for section in sections.dropFirst() {
            flips += Self.flips(header: 0..<0, rest: section, count: 30, seed: 7)
        }
        var counts: [Int32: Int] = [:]
        for flip in flips {
            var bytes = file
            bytes[flip.0] ^= flip.1
            let status = await expect(
                [0, 1, 3, 4], Self.repaired(bytes), as: "model.statepack", in: folder, [folder / "model.statepack"],
                flip)
            counts[status, default: 0] += 1
        }
        #expect(counts[3, default: 0] > 100 && counts[1, default: 0] + counts[0, default: 0] > 10, "\(counts)")
    }

    /// Checksums and digests of header and sections made right, as far as the table still says where those are.
    static func repaired(_ bytes: [UInt8]) -> [UInt8] {
        var bytes = bytes
        func number(_ offset: Int) -> UInt64 { (0..<8).reduce(0) { $0 | UInt64(bytes[offset + $1]) << UInt64(8 * $1) } }
        let rows = min(Int(bytes[24]), 16)
        for row in 0..<rows {
            let entry = 32 + 64 * row
            let (start, length) = (number(entry + 8), number(entry + 16))
            guard start <= UInt64(bytes.count), length <= UInt64(bytes.count) - start else { continue }
            let section = Array(bytes[Int(start)..<Int(start + length)])
            bytes.replaceSubrange(entry + 24..<entry + 28, with: checksum(section))
            bytes.replaceSubrange(entry + 32..<entry + 64, with: section.withUnsafeBytes { SHA256Digest.of($0) })
        }
        bytes.replaceSubrange(28..<32, with: checksum(Array(bytes[..<28] + bytes[32..<32 + 64 * rows])))
        return bytes
    }

    private static let checksumTable: [UInt32] = (0..<256).map { index in
        (0..<8).reduce(UInt32(index)) { crc, _ in crc >> 1 ^ (crc & 1 == 1 ? 0x82F6_3B78 : 0) }
    }

    /// CRC-32C by its definition, so that the reader is not tested with its own code.
    private static func checksum(_ bytes: [UInt8]) -> [UInt8] {
        let table = checksumTable
        let crc = ~bytes.reduce(~0 as UInt32) { crc, byte in
            crc >> 8 ^ table[Int(UInt8(truncatingIfNeeded: crc) ^ byte)]
        }
        return (0..<4).map { UInt8(truncatingIfNeeded: crc >> UInt32(8 * $0)) }
    }

    // MARK: Contract

    @Test func flippedBytesOfAContract() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let file = try Golden.bytes(Self.contract)
        for flip in Self.flips(header: 0..<file.count, rest: 0..<file.count, count: 2000, seed: 8) {
            var bytes = file
            bytes[flip.0] ^= flip.1
            _ = await expect(
                [0, 1, 3], bytes, as: "contract.json", in: folder,
                [folder / "model.statepack", "--descriptors", folder / "contract.json"], flip)
        }
    }

    @Test func contractsHaveALimit() async throws {
        let folder = try await ValidateTests.bundleFolder()
        folder.write([UInt8](repeating: 0x20, count: 4 << 20 + 1), to: "contract.json")
        let run = await ToolRun("validate", folder / "model.statepack", "--descriptors", folder / "contract.json")
        #expect(run.status == 3)
        #expect(
            run.diagnostics == """
                error[E0711]: the contract is too long
                  --> \(folder / "contract.json")
                  expected: at most 4194304 bytes
                  found:    4194305 bytes

                """)
    }

    @Test(arguments: [
        (String(repeating: "(", count: 5000), "it is longer than 4096 bytes"),
        (String(repeating: "(", count: 4000), "the expression is nested too deeply"),
        ("9223372036854775807*2", "the expression is too large"),
        ((0..<65).map { "query*floordiv(query, \($0 + 2))" }.joined(separator: " + "), "the expression is too large"),
        ("cache + 1", "`cache` is not a symbol"),
    ])
    func sizesOfAContractAreBounded(_ text: String, _ message: String) {
        let found = #expect(throws: SizeText.Failure.self) { try SizeText.parse(text, symbolNames: ["query"]) }
        #expect(found?.message == message)
    }

    private func contractFaults(name: String) throws -> String {
        let json =
            "{\"contract\": 1, \"symbols\": [{\"name\": \"\(name)\", \"min\": 2, \"max\": 1}], \"functions\": []}"
        let found = #expect(throws: (any Error).self) { try Contract(json: Array(json.utf8), file: "c.json") }
        return found.map { "\($0)" } ?? ""
    }

    @Test func namesOfAContractReachTheTerminalEscaped() throws {
        #expect(
            try contractFaults(name: "a\\u0000\\u001b[31m") == """
                error[E0711]: the bounds of `a\\u{0}\\u{1B}[31m` are invalid
                  --> c.json, symbols[0]
                  expected: 0 <= min <= max
                  found:    2, 1
                error[E0711]: the name of a symbol is not an identifier
                  --> c.json, symbols[0]
                  expected: letters, digits and `_`, no digit first
                  found:    a\\u{0}\\u{1B}[31m
                """)
    }

    @Test func longNamesOfAContractAreCut() throws {
        let text = try contractFaults(name: String(repeating: "é", count: 1_000_000))
        #expect(text.utf8.count < 9000)
        #expect(text.hasSuffix("é…\n  --> c.json, symbols[0]\n  expected: 0 <= min <= max\n  found:    2, 1"))
    }
}

/// The example's file taken apart: which bytes are structure, and the same program with its tensors in a file of
/// their own.
private struct ExportedParts {
    private var program: [UInt8] = []
    private var rest: [UInt8] = []
    private(set) var weights: [UInt8] = []
    /// Offsets in the body of everything but the elements of tensors, stored or recorded.
    private(set) var structure: [Int] = []

    private struct Field {
        var number: Int
        var whole: Range<Int>
        var content: Range<Int>
    }

    private struct Unexpected: Error {}

    private static func varint(_ bytes: [UInt8], _ position: inout Int) -> Int {
        var value = 0
        var shift = 0
        while true {
            let byte = bytes[position]
            position += 1
            value |= Int(byte & 0x7F) << shift
            if byte < 0x80 { return value }
            shift += 7
        }
    }

    private static func fields(_ bytes: [UInt8], _ range: Range<Int>) throws -> [Field] {
        var fields: [Field] = []
        var position = range.lowerBound
        while position < range.upperBound {
            let start = position
            let tag = varint(bytes, &position)
            var content = position..<position
            switch tag & 7 {
            case 0:
                _ = varint(bytes, &position)
                content = content.lowerBound..<position
            case 1:
                content = position..<position + 8
                position += 8
            case 2:
                let length = varint(bytes, &position)
                content = position..<position + length
                position += length
            default: throw Unexpected()
            }
            fields.append(Field(number: tag >> 3, whole: start..<position, content: content))
        }
        return fields
    }

    private static func encoded(_ value: Int) -> [UInt8] {
        value < 128 ? [UInt8(value)] : [UInt8(value & 127) | 128] + encoded(value >> 7)
    }

    init(_ body: [UInt8]) throws {
        var entries: [SafetensorsWriter.Tensor] = []
        var elements: [Range<Int>] = []
        for field in try Self.fields(body, 0..<body.count) {
            guard field.number == 3 else {
                rest += body[field.whole]
                elements += try Self.recordedElements(body, field.content)
                continue
            }
            for part in try Self.fields(body, field.content) {
                guard part.number == 5 else {
                    program += body[part.whole]
                    continue
                }
                // name, scalar type, shape, data, inline
                let tensor = try Self.fields(body, part.content)
                func content(_ number: Int) -> [UInt8] {
                    tensor.first { $0.number == number }.map { Array(body[$0.content]) } ?? []
                }
                var position = 0
                var shape: [Int] = []
                let sizes = content(3)
                while position < sizes.count { shape.append(Self.varint(sizes, &position)) }
                entries.append(
                    .init(
                        name: String(decoding: content(1), as: UTF8.self),
                        scalarType: ScalarType(rawValue: UInt32(content(2)[0]))!, shape: shape, bytes: content(4)))
                let kept = tensor.filter { $0.number != 4 && $0.number != 5 }.flatMap { body[$0.whole] }
                program += [5 << 3 | 2] + Self.encoded(kept.count) + kept
                if let data = tensor.first(where: { $0.number == 4 }) { elements.append(data.content) }
            }
        }
        var start = 0
        for range in elements.sorted(by: { $0.lowerBound < $1.lowerBound }) {
            structure += start..<range.lowerBound
            start = range.upperBound
        }
        structure += start..<body.count
        weights = SafetensorsWriter.encode(entries)
    }

    /// Where a recording has the elements of its inputs, outputs and states.
    private static func recordedElements(_ body: [UInt8], _ recording: Range<Int>) throws -> [Range<Int>] {
        let numberOfElements = [2: 4, 3: 5, 4: 3]
        return try fields(body, recording).flatMap { replay in
            try fields(body, replay.content).flatMap { step in
                try fields(body, step.content).flatMap { tensor -> [Range<Int>] in
                    guard let number = numberOfElements[tensor.number] else { return [] }
                    return try fields(body, tensor.content).filter { $0.number == number }.map(\.content)
                }
            }
        }
    }

    /// The body with a program that refers to these weights.
    func program(weights: [UInt8]) -> [UInt8] {
        let digest = weights.withUnsafeBytes { SHA256Digest.of($0) }
        let name = Array("weights.safetensors".utf8)
        let whole =
            program + [9 << 3 | 2] + Self.encoded(name.count) + name + [10 << 3] + Self.encoded(weights.count)
            + [11 << 3 | 2, 32] + digest
        return [3 << 3 | 2] + Self.encoded(whole.count) + whole + rest
    }
}
