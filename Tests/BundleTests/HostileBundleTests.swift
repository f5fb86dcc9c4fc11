import StatepackBundle
import StatepackDiagnostics
import Testing

/// Programs that somebody broke on purpose. ToolTests/HostileFileTests has the table of all kinds.
@Suite struct HostileBundleTests {
    private func findings(_ program: BundleProgram) -> [Diagnostic] {
        do {
            let length = program.tensors.map { $0.offset + $0.length }.max() ?? 0
            try program.check(weightsLength: length, sourceCount: 2)
            return []
        } catch {
            return error.diagnostics
        }
    }

    struct LongText: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var message: String
        var expected: String
        var change: @Sendable (inout BundleProgram, String) -> Void
    }

    static let longTexts: [LongText] = [
        .init(
            testDescription: "producer", code: .bundleProgramLimit, message: "the producer is too long",
            expected: "at most 4096 bytes"
        ) { $0.producer = $1 },
        .init(
            testDescription: "written by", code: .bundleProgramLimit, message: "how a state is written is too long",
            expected: "at most 4096 bytes"
        ) { $0.functions[0].states[0].writtenBy = $1 },
        .init(
            testDescription: "copy reason", code: .bundleProgramLimit, message: "why a state is copied is too long",
            expected: "at most 4096 bytes"
        ) { $0.functions[0].states[1].copyReason = $1 },
        .init(
            testDescription: "source name", code: .bundleName, message: "the source of a state is no name",
            expected: "at most 1024 bytes without control characters"
        ) { $0.states[0].sourceName = $1 },
    ]

    @Test(arguments: longTexts)
    func textsThatTheReaderRefusesAreNotWritten(_ row: LongText) throws {
        var program = try Fixture.program()
        row.change(&program, String(repeating: "x", count: 4097))
        let found = findings(program)
        #expect(found.map(\.code) == [row.code])
        #expect(found.first?.message == row.message)
        #expect(found.first?.expected == row.expected)
        #expect(found.first?.found == "4097 bytes")
        // The longest that the check takes, the reader takes too.
        row.change(&program, String(repeating: "x", count: row.code == .bundleName ? 1024 : 4096))
        #expect(findings(program).isEmpty)
        let read = try program.encoded().withUnsafeBytes { try ProgramSection.program($0) }
        #expect(read == program)
    }

    @Test func sourcesThatTheReaderRefusesAreNotWritten() throws {
        let long = String(repeating: "x", count: 4097)
        let found = #expect(throws: DiagnosticList.self) { try SourceMap.check(["a", long], file: "x") }
        #expect(
            found?.description == """
                error[E0521]: a source is too long
                  --> x, section source map, entry 1
                  expected: at most 4096 bytes
                  found:    4097 bytes
                """)
        try SourceMap.check([String(repeating: "x", count: 4096)], file: "x")
    }

    @Test func lengthsBesideAZeroOverflowToo() throws {
        var program = try Fixture.program()
        program.tensors[2].shape = [0, 1 << 40, 1 << 40]
        program.tensors[2].length = 0
        program.states[0].initialValue = .splat([0, 0, 0, 0])
        program.states[0].initialDigest = []
        #expect(program.layOutTensors() == nil)
        let found = findings(program)
        #expect(found.map(\.code) == [.bundleTensorLength])
        #expect(found.first?.expected == "a size below 2^63 bytes")
    }

    /// One byte each in the file, sixteen in memory.
    @Test func millionsOfPackedNumbersAreRefused() throws {
        func message(_ field: UInt8, _ body: [UInt8]) -> [UInt8] {
            var length = body.count
            var bytes = [field << 3 | 2]
            while length >= 128 {
                bytes.append(UInt8(length & 127) | 128)
                length >>= 7
            }
            return bytes + [UInt8(length)] + body
        }
        let head: [UInt8] = [1 << 3, 1] + message(4, [UInt8](repeating: 7, count: 32))
        for (field, number) in [(2 as UInt8, "operands"), (3, "results")] {
            let instruction = message(field, [UInt8](repeating: 0, count: 1 << 22 + 1))
            let section = head + message(8, message(7, instruction))
            let found = #expect(throws: DiagnosticList.self, "\(number)") {
                try section.withUnsafeBytes { try ProgramSection.program($0) }
            }
            #expect(found?.diagnostics.map(\.code) == [.bundleProgramLimit])
            #expect(found?.diagnostics.first?.message == "the section has too many elements")
        }
    }

    struct LongList: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var limit: Int
        var fill: @Sendable (inout BundleProgram, Int) -> Void
    }

    static let longLists: [LongList] = [
        .init(testDescription: "symbols", limit: 16_384) { program, count in
            let query = program.symbols[0]
            program.symbols = [query] + (1..<count).map { .init(name: "s\($0)", min: 1, max: 8) }
        },
        .init(testDescription: "values in scratch memory", limit: 65_536) { program, count in
            let value = BundleProgram.Value(scalarType: .bool, shape: [], storage: .arena(first: 0, last: 0))
            program.functions[0].values += [BundleProgram.Value](repeating: value, count: count - 1)
        },
    ]

    @Test(arguments: longLists)
    func listsThatCostTheirSquareAreBounded(_ row: LongList) throws {
        var program = try Fixture.program()
        row.fill(&program, row.limit)
        #expect(findings(program).isEmpty)
        program = try Fixture.program()
        row.fill(&program, row.limit + 1)
        let found = findings(program)
        #expect(found.map(\.code) == [.bundleProgramLimit])
        #expect(found.first?.message == "there are too many \(row.testDescription)")
        #expect(found.first?.expected == "at most \(row.limit)")
        #expect(found.first?.found == "\(row.limit + 1)")
    }

    /// Texts for findings that nobody sees must not be made: each may be as long as the list of symbols.
    @Test func manyFaultsCostNoMoreThanTwenty() throws {
        var program = try Fixture.program()
        program.symbols += (0..<10_000).map { .init(name: "symbol \($0)", min: 0, max: 1) }
        let value = BundleProgram.Value(
            scalarType: .float32, shape: [.symbol(1)], storage: .view(base: 0, strides: [], offset: .zero))
        program.functions[0].values += [BundleProgram.Value](repeating: value, count: 20_000)
        let start = ContinuousClock.now
        #expect(findings(program).count == 20)
        #expect(ContinuousClock.now - start < .seconds(10))
    }
}
