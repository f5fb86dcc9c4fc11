import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

/// Programs and weights that somebody broke on purpose. ToolTests/HostileFileTests has the table of all kinds.
@Suite struct HostileProgramTests {
    private func refusals(_ fixture: ExportedFixture) -> [Diagnostic] {
        let folder = TemporaryFolder()
        let path = folder.write(fixture.file(), to: "exported.pb")
        return diagnostics { _ = try importProgram(at: path) }
    }

    private func weightsRefusal(_ json: String) -> Diagnostic? {
        let text = Array(json.utf8)
        let folder = TemporaryFolder()
        let path = folder.write(
            withUnsafeBytes(of: UInt64(text.count).littleEndian) { Array($0) } + text, to: "w.safetensors")
        return diagnostics { _ = try Safetensors(path: path) }.first
    }

    // MARK: Depth

    /// A message of every kind the schema has, one in another, is seven deep; a reader that followed a file would not stop.
    @Test func refusesMessagesDeeperThanTheSchema() {
        var fixture = ExportedFixture()
        // Argument.sizes of Size of a packed list; what is deeper is bytes in a list of numbers.
        var nested: [UInt8] = [1]
        for _ in 0..<64 { nested = Wire.bytes(1, nested) }
        fixture.nodes[0].arguments[1].1 = Wire.bytes(5, Wire.bytes(1, nested))
        let found = refusals(fixture)
        #expect(found.map(\.code) == [.invalidSize])
        #expect(found.first?.message == "a size is not an expression of the program's symbols")
    }

    // MARK: Sizes

    @Test func refusesProgramsOverTheirLimit() throws {
        let folder = TemporaryFolder()
        // A sparse file: it takes no space and no time.
        let length = 256 << 20 + 1
        let path = folder.write(Wire.fixed(1, UInt64(length - 18)) + Wire.fixed(2, 0), to: "exported.pb")
        #expect(truncate(path, off_t(length)) == 0)
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.programLimitExceeded])
        #expect(found.first?.message == "the program is too large")
        #expect(found.first?.expected == "at most 268435456 bytes")
        #expect(found.first?.found == "\(length) bytes")
    }

    /// Whoever computes strides multiplies the other lengths too.
    @Test func lengthsBesideAZeroOverflowToo() {
        var fixture = ExportedFixture()
        fixture.tensors.append(.init(name: "none", shape: [0, 1 << 40, 1 << 40], data: []))
        let found = refusals(fixture)
        #expect(found.map(\.code) == [.invalidTensor])
        #expect(found.first?.message == "the size of a tensor overflows")
        #expect(found.first?.found == "[0, 1099511627776, 1099511627776]")
        var recorded = ExportedFixture()
        let input = Wire.text(1, "rows") + Wire.number(2, 11) + Wire.packed(3, [0, 1 << 40, 1 << 40])
        recorded.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(2, input)))
        let inRecording = refusals(recorded)
        #expect(inRecording.map(\.code) == [.malformedRecording])
        #expect(inRecording.first?.message == "the shape is too large")
    }

    @Test func lengthsBesideAZeroOverflowInTheWeightsToo() {
        let found = weightsRefusal(
            #"{"a":{"dtype":"F32","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}}"#)
        #expect(found?.code == .malformedWeights)
        #expect(found?.message == "the size of tensor `a` overflows")
    }

    /// Sixty-four pairs make a sum of sums to the sixteenth power; thousands of them would take minutes.
    @Test func sizesThatExplodeAreRefused() {
        var fixture = ExportedFixture()
        fixture.symbols += (1..<16).map { .init(name: "s\($0)") }
        let start = ContinuousClock.now
        // A product of two sums of eight over trees that compare slowly, in as many orders as there are sizes.
        func sum(_ symbols: [Int], _ salt: Int64) -> [Int64] {
            var code: [Int64] = []
            for (index, symbol) in symbols.enumerated() {
                code += [1, Int64(symbol), 0, salt + 2, 6, 0]
                if index > 0 { code += [2, 0] }
            }
            return code
        }
        var shapes: [[Int64]] = []
        for salt in 0..<4_000 {
            shapes.append(sum(Array(0..<8), Int64(salt)) + sum(Array(8..<16), Int64(salt)) + [4, 0])
        }
        let value = Wire.number(1, 11)
        let values = shapes.flatMap { Wire.bytes(2, value + Wire.bytes(2, Wire.bytes(1, Wire.signed($0)))) }
        fixture.programTail = Wire.bytes(7, Wire.text(1, "sizes") + values)
        let found = refusals(fixture)
        #expect(found.map(\.code) == [.programLimitExceeded])
        #expect(found.first?.message == "the sizes of the program take too much arithmetic")
        #expect(found.first?.expected == "sums and products of a few symbols")
        // In optimised builds half a second.
        #expect(ContinuousClock.now - start < .seconds(60))
    }

    // MARK: Graph

    @Test func nodeThatReadsItsOwnResultIsRefused() throws {
        var fixture = ExportedFixture()
        fixture.nodes[0].arguments[0].1 = Wire.number(2, 4)
        let folder = TemporaryFolder()
        let path = folder.write(fixture.file(), to: "exported.pb")
        let found = diagnostics {
            let imported = try importProgram(at: path)
            try Verifier.verify(imported.program, stage: .imported)
        }
        #expect(found.map(\.code) == [.undefinedValue])
        let first = try #require(found.first)
        #expect(
            first.description == """
                error[E0204]: value %4 is used before it is defined
                  --> function `main`, node 0 `aten.mul.Tensor`, layer (model.py:3)
                """)
    }

    // MARK: Texts

    struct LongText: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var message: String
        var expected: String
        var change: @Sendable (inout ExportedFixture, String) -> Void
    }

    static let longTexts: [LongText] = [
        .init(
            testDescription: "function", code: .invalidProgramName, message: "a name is too long",
            expected: "at most 1024 bytes"
        ) { $0.functionName = $1 },
        .init(
            testDescription: "operator", code: .invalidProgramName, message: "a name is too long",
            expected: "at most 1024 bytes"
        ) { $0.nodes[0].op = $1 },
        .init(
            testDescription: "source", code: .programLimitExceeded, message: "a source is too long",
            expected: "at most 4096 bytes"
        ) { $0.sources[0] = $1 },
        .init(
            testDescription: "text argument", code: .programLimitExceeded, message: "a text is too long",
            expected: "at most 4096 bytes"
        ) { $0.nodes[0].arguments.append(("mode", Wire.text(9, $1))) },
        .init(
            testDescription: "weights file", code: .invalidProgramName,
            message: "the name of the weights file is too long", expected: "at most 255 bytes"
        ) {
            $0.weightsFile = $1
            $0.weightsDigest = Array(repeating: 0, count: 32)
        },
    ]

    @Test(arguments: longTexts)
    func longTextsAreRefusedAndNotQuoted(_ row: LongText) {
        var fixture = ExportedFixture()
        row.change(&fixture, String(repeating: "x", count: 100_000))
        let found = refusals(fixture)
        #expect(found.map(\.code) == [row.code])
        #expect(found.first?.message == row.message)
        #expect(found.first?.expected == row.expected)
        #expect(found.first?.found?.hasPrefix("100000") == true)
        #expect((found.first?.description.utf8.count ?? .max) < 1000)
    }

    @Test func longNamesOfTensorsAreRefused() {
        let name = String(repeating: "x", count: 1025)
        let found = weightsRefusal("{\"\(name)\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}")
        #expect(found?.code == .malformedWeights)
        #expect(found?.message == "the header is not the JSON of a safetensors file")
        #expect(found?.found == "a name of more than 1024 bytes at byte 1029")
    }
}

#if canImport(Darwin)
    import Darwin
#else
    import Glibc
#endif
