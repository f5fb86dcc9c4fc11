import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

/// What this reader makes of exported programs of later versions: schemas/README.md, Evolution.
@Suite struct ImportVersionTests {
    let folder = TemporaryFolder()

    private func refusals(_ bytes: [UInt8]) -> [Diagnostic] {
        let path = folder.write(bytes, to: "exported.pb")
        return diagnostics { _ = try importProgram(at: path) }
    }

    @Test func newerMajorVersionIsRefusedBeforeAnythingElseIsParsed() {
        // Behind the version nothing is protobuf.
        let program = Wire.number(1, 2) + [0xFF, 0xFF, 0xFF, 0x07]
        let found = refusals(ExportedFixture.signed(Wire.bytes(3, program)))
        #expect(found.map(\.code) == [.newerProgramFormat])
        #expect(found.first?.expected == "version 1" && found.first?.found == "version 2")
    }

    /// Field 100 of the file, the program, each message of it, and the recording.
    static let places: [(String, @Sendable ([UInt8]) -> [UInt8])] = {
        let unknown = Wire.number(100, 5)
        func inProgram(_ field: Int, _ body: [UInt8]) -> @Sendable ([UInt8]) -> [UInt8] {
            { ExportedFixture.signed(Wire.bytes(3, $0 + Wire.bytes(field, body + unknown))) }
        }
        let type = Wire.number(1, 1)
        let function = Wire.text(1, "other")
        return [
            ("file", { ExportedFixture.signed(Wire.bytes(3, $0) + unknown) }),
            ("program", { ExportedFixture.signed(Wire.bytes(3, $0 + unknown)) }),
            ("symbol", inProgram(4, Wire.text(1, "s") + Wire.number(3, 1))),
            ("tensor", inProgram(5, Wire.text(1, "t") + Wire.number(2, 1) + Wire.bytes(4, [1]) + Wire.number(5, 1))),
            (
                "state",
                inProgram(
                    6,
                    Wire.text(1, "s") + Wire.number(2, 1) + Wire.text(3, "s") + Wire.number(4, 1) + Wire.bytes(6, [0]))
            ),
            ("function", inProgram(7, function)),
            ("value", inProgram(7, function + Wire.bytes(2, type + unknown))),
            ("size", inProgram(7, function + Wire.bytes(2, type + Wire.bytes(2, Wire.bytes(1, [0, 2]) + unknown)))),
            ("recording", { ExportedFixture.signed(Wire.bytes(3, $0) + Wire.bytes(4, unknown)) }),
            ("replay", { ExportedFixture.signed(Wire.bytes(3, $0) + Wire.bytes(4, Wire.bytes(1, unknown))) }),
        ]
    }()

    @Test(arguments: places)
    func unknownFieldsAreSkippedInANewerMinorVersionAndRefusedInThisOne(
        name: String, file: @Sendable ([UInt8]) -> [UInt8]
    ) throws {
        var fixture = ExportedFixture()
        let found = refusals(file(fixture.program()))
        #expect(found.map(\.code) == [.malformedProgram], "\(name)")
        #expect(found.first?.message == "field 100 is not part of this version of the format", "\(name)")
        fixture.minor = 1
        let imported = try importProgram(at: folder.write(file(fixture.program()), to: "minor.pb"))
        #expect(imported.program.functions[0].name == "main")
        // What goes into a bundle of this version has none of it.
        _ = try imported.recordingBytes.withUnsafeBytes { try Recording(serialized: $0) }
    }

    @Test func theVersionIsTheFirstField() {
        var late = ExportedFixture().program()
        late.removeFirst(2)
        let found = refusals(ExportedFixture.signed(Wire.bytes(3, late + Wire.number(1, 1))))
        #expect(found.map(\.message) == ["the program does not start with its format version"])
    }
}
