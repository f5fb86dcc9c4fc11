import StatepackBundle
import StatepackDiagnostics
import Testing

@Suite struct RoundTripTests {
    let folder = TemporaryFolder()

    @Test func readerReturnsWhatTheWriterWasGiven() throws {
        let program = try Fixture.program()
        let path = folder.file("model.statepack")
        try Fixture.write(program, to: path)
        for access in [MappedBundle.Access.mapped, .copied] {
            let bundle = try MappedBundle(path: path, access: access)
            #expect(bundle.program == program)
            #expect(bundle.sources == Fixture.sources)
            #expect(Array(bundle.recording) == Fixture.recording)
            #expect(Array(bundle.weights) == Fixture.weights(of: program))
            #expect(Array(bundle.bytes(ofTensor: 1)) == Array(Fixture.weights(of: program)[512..<528]))
            #expect(bundle.checksumFindings().isEmpty)
            #expect(bundle.digestFindings(using: sha256).isEmpty)
            #expect(Int(bitPattern: bundle.weights.baseAddress) % 4096 == 0)
        }
    }

    @Test func sameProgramGivesSameBytes() throws {
        try Fixture.write(try Fixture.program(), to: folder.file("a"))
        try Fixture.write(try Fixture.program(), to: folder.file("b"))
        #expect(readBytes(folder.file("a")) == readBytes(folder.file("b")))
        #expect(folder.names == ["a", "b"])
    }
}
