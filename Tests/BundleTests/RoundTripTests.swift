import StatepackBundle
import StatepackDiagnostics
import Testing

@Suite struct RoundTripTests {
    let folder = TemporaryFolder()

    @Test(arguments: [MappedBundle.Access.mapped, .copied])
    func readerReturnsWhatTheWriterWasGiven(access: MappedBundle.Access) throws {
        let program = try Fixture.program()
        let path = folder.file("model.statepack")
        try Fixture.write(program, to: path)
        let bundle = try MappedBundle(path: path, access: access)
        #expect(bundle.program == program)
        #expect(bundle.formatMajor == 1)
        #expect(bundle.formatMinor == 0)
        #expect(bundle.sections.map(\.kind) == [1, 2, 3, 4])
        #expect(bundle.sources == Fixture.sources)
        #expect(Array(bundle.recording) == Fixture.recording)
        #expect(Array(bundle.weights) == Fixture.weights(of: program))
        #expect(Array(bundle.bytes(ofTensor: 1)) == Array(Fixture.weights(of: program)[512..<528]))
        #expect(bundle.checksumFindings().isEmpty)
        #expect(bundle.digestFindings(using: sha256).isEmpty)
        #expect(Int(bitPattern: bundle.weights.baseAddress) % 64 == 0)
        #expect(bundle.sections[1].offset % (64 << 10) == 0)
    }

    @Test func absentSectionsReadAsEmpty() throws {
        var program = try Fixture.program()
        program.tensors = []
        program.states = []
        program.functions = []
        let path = folder.file("empty.statepack")
        try Fixture.write(program, to: path, recording: [], sources: [])
        let bundle = try MappedBundle(path: path)
        #expect(bundle.program == program)
        #expect(bundle.weights.isEmpty && bundle.recording.isEmpty && bundle.sources.isEmpty)
        #expect(bundle.digestFindings(using: sha256).isEmpty)
    }

    @Test func sameProgramGivesSameBytes() throws {
        try Fixture.write(try Fixture.program(), to: folder.file("a"))
        try Fixture.write(try Fixture.program(), to: folder.file("b"))
        let isEqual = readBytes(folder.file("a")) == readBytes(folder.file("b"))
        #expect(isEqual)
        #expect(folder.names == ["a", "b"])
    }

    @Test func randomProgramsSurviveTheTrip() throws {
        let path = folder.file("random.statepack")
        for seed in 0..<400 {
            let program = try RandomProgram.make(seed: UInt64(seed))
            let weights = Fixture.weights(of: program)
            try program.check(weightsLength: weights.count, sourceCount: Fixture.sources.count)
            try Fixture.write(program, to: path, weights: weights)
            let bundle = try MappedBundle(path: path)
            #expect(bundle.program == program, "seed \(seed)")
            #expect(try bundle.program.encoded() == Array(bundle.section(.program)), "seed \(seed)")
        }
    }

    @Test func pieceSizesDoNotChangeTheFile() throws {
        // Pieces around the size of the writer's buffer, and one larger than it.
        let total = 3 << 18
        let weights = (0..<total).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ $0 >> 8) }
        var program = try Fixture.program()
        program.functions = []
        program.states = []
        program.tensors = [
            .init(name: "w", scalarType: .uint8, shape: [total], layout: .rowMajor, offset: 0, length: total)
        ]
        var files: [[UInt8]] = []
        for pieces in [
            [total], [1, total - 1], [256 << 10, 1, (512 << 10) - 1], Array(repeating: total / 96, count: 96),
        ] {
            let path = folder.file("pieces")
            var writer = try BundleWriter(path: path, sections: [.program, .weights], digest: sha256)
            try writer.begin(.program)
            try writer.append(program.encoded())
            try writer.begin(.weights)
            var start = 0
            for piece in pieces {
                try writer.append(Array(weights[start..<start + piece]))
                start += piece
            }
            try writer.finish()
            let bundle = try MappedBundle(path: path)
            #expect(bundle.checksumFindings().isEmpty)
            #expect(bundle.digestFindings(using: sha256).isEmpty)
            #expect(bundle.weights.elementsEqual(weights))
            files.append(readBytes(path))
        }
        #expect(Set(files).count == 1)
    }

    @Test func padFillsUpToTheNextTensor() throws {
        var program = try Fixture.program()
        program.functions = []
        program.states = []
        program.tensors = ["a", "b"].map {
            .init(name: $0, scalarType: .int8, shape: [3], layout: .rowMajor, offset: 0, length: 0)
        }
        #expect(program.layOutTensors() == 67)
        var writer = try BundleWriter(path: folder.file("x"), sections: [.program, .weights], digest: sha256)
        try writer.begin(.program)
        try writer.append(program.encoded())
        try writer.begin(.weights)
        for byte: UInt8 in [1, 2] {
            try writer.pad()
            try writer.append([byte, byte, byte])
        }
        try writer.finish()
        let bundle = try MappedBundle(path: folder.file("x"))
        #expect(Array(bundle.bytes(ofTensor: 0)) == [1, 1, 1])
        #expect(Array(bundle.bytes(ofTensor: 1)) == [2, 2, 2])
    }
}
