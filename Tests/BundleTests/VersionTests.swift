import StatepackBundle
import StatepackDiagnostics
import Testing

/// What this reader makes of bundles of later versions: schemas/README.md, Evolution.
@Suite struct VersionTests {
    let folder = TemporaryFolder()

    /// Version `1.minor`, whose program section has `fields` behind its own.
    private func bundle(
        minor: UInt8, adding fields: [UInt8] = [], sourceMap: [UInt8] = [], newSection: Bool = false
    ) throws -> [UInt8] {
        var program = try Fixture.program().encoded()
        if minor > 0 { program.insert(contentsOf: [0x10, minor], at: 2) }
        let path = folder.file("bundle")
        let known = SourceMap.encode(Fixture.sources)
        // Fields of the program come before field 15, those of the source map before field 2.
        try Fixture.write(
            program: program + fields, weights: Fixture.weights(of: Fixture.program()), recording: Fixture.recording,
            sourceMap: known + sourceMap, to: path)
        var bytes = readBytes(path)
        bytes[12] = minor
        if newSection { bytes[32 + 3 * 64] = 9 }
        return repaired(bytes)
    }

    private func findings(_ bytes: [UInt8]) -> [Diagnostic] { withAligned(bytes) { open($0) } }

    private func open(_ bytes: UnsafeRawBufferPointer) -> [Diagnostic] {
        do throws(DiagnosticList) {
            _ = try MappedBundle(path: "x", unowned: bytes)
            return []
        } catch {
            return error.diagnostics
        }
    }

    @Test func newerMajorVersionIsRefusedBeforeAnythingElseIsRead() throws {
        // Nothing but magic and version is what this version would expect, and the file ends there.
        for length in [12, 13, 31, 40, 200] {
            var bytes = [UInt8](repeating: 0xEE, count: length)
            bytes.replaceSubrange(0..<12, with: [0x89, 0x53, 0x50, 0x4B, 0x0D, 0x0A, 0x1A, 0x0A, 2, 0, 0, 0])
            #expect(
                findings(bytes).map(\.description) == [
                    """
                    error[E0509]: the bundle has a newer format than this version of statepack reads
                      --> x, offset 8
                      expected: format 1
                      found:    format 2
                      hint:     update statepack, or convert again with this version
                    """
                ])
        }
    }

    @Test func newerMinorVersionIsReadWithoutWhatItAdds() throws {
        // Field 15 of the program, varint and message; field 2 of the source map.
        let added = try bundle(minor: 1, adding: [0x78, 7, 0x82, 1, 2, 0x08, 1], sourceMap: [0x12, 1, 0])
        try withAligned(added) { raw in
            let bundle = try MappedBundle(path: "x", unowned: raw)
            #expect(bundle.program == (try Fixture.program()))
            #expect(bundle.sources == Fixture.sources)
            #expect(bundle.formatMinor == 1 && bundle.isNewerMinorVersion)
        }
    }

    @Test func newerMinorVersionMayHaveSectionsThatMayBeSkipped() throws {
        // The source map becomes a section that this version does not know; sources are then out of range.
        let found = findings(try bundle(minor: 1, newSection: true))
        #expect(found.map(\.code) == [.bundleIndex, .bundleIndex, .bundleIndex])
        #expect(found.allSatisfy { $0.message.contains("source") })
        #expect(findings(try bundle(minor: 0, newSection: true)).map(\.code) == [.bundleHeaderMalformed])
    }

    @Test func knownVersionIsRefusedWithWhatItDoesNotHave() throws {
        #expect(findings(try bundle(minor: 0)).isEmpty)
        let program = findings(try bundle(minor: 0, adding: [0x78, 7]))
        #expect(program.map(\.code) == [.bundleProgramMalformed])
        #expect(program.first?.message == "a field is not part of format 1.0")
        #expect(program.first?.found == "field 15")
        let sources = findings(try bundle(minor: 0, sourceMap: [0x12, 1, 0]))
        #expect(sources.map(\.code) == [.bundleProgramMalformed])
        #expect(sources.first?.message == "a field is not part of the source map")
    }

    @Test func headerAndProgramSectionHaveOneVersion() throws {
        var bytes = try bundle(minor: 0)
        bytes[12] = 1
        let found = findings(repaired(bytes))
        #expect(found.map(\.message) == ["the program section has another version than the header"])
        #expect(found.map(\.expected) == ["1.1"] && found.map(\.found) == ["1.0"])
    }

    // MARK: Every message

    private static func message(_ field: UInt8, _ body: [UInt8]) -> [UInt8] {
        [field << 3 | 2, UInt8(body.count)] + body
    }

    /// A message of each kind that holds a field of its own number 15, in a program that is sound but for it.
    static let carriers: [(String, [UInt8])] = {
        let unknown: [UInt8] = [0x78, 1]
        let name: [UInt8] = [0x0A, 1, 0x66]
        let size = message(1, [0, 2])
        func function(_ field: UInt8, _ body: [UInt8]) -> [UInt8] { message(8, name + message(field, body)) }
        return [
            ("symbol", message(5, name + [0x18, 1] + unknown)),
            ("tensor", message(6, name + [0x10, 11, 0x1A, 1, 0] + unknown)),
            ("state", message(7, name + [0x18, 1] + message(5, [0]) + unknown)),
            ("function", message(8, name + unknown)),
            ("size", message(7, name + [0x18, 1] + message(4, size + unknown) + message(5, [0]))),
            ("value", function(6, [0x08, 11] + message(2, size) + [0x18, 5] + unknown)),
            ("input", function(2, name + unknown)),
            ("state of a function", function(4, unknown)),
            ("symbol source", function(5, unknown)),
            ("instruction", function(7, unknown)),
            ("context", function(8, unknown)),
            ("axis of the context", function(8, message(2, unknown))),
        ]
    }()

    @Test(arguments: carriers)
    func unknownFieldsOfEveryMessageFollowTheRule(name: String, body: [UInt8]) {
        func findings(_ minor: UInt8) -> [Diagnostic] {
            let head: [UInt8] = [0x08, 1] + (minor == 0 ? [] : [0x10, minor]) + [0x22, 32] + Array(0..<32)
            return (head + body).withUnsafeBytes {
                ProgramSection.findings($0, weightsLength: 0, sourceCount: 0, formatMinor: Int(minor))
            }
        }
        #expect(findings(0).map(\.message) == ["a field is not part of format 1.0"], "\(name)")
        #expect(findings(0).map(\.found) == ["field 15"])
        // The newer one is read past the field: what is left to complain about is what the program lacks.
        #expect(!findings(1).contains { $0.code == .bundleProgramMalformed || $0.found == "field 15" }, "\(name)")
    }
}
