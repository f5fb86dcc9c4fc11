import StatepackBundle
import Testing

/// Committed files, which nothing writes again. A difference means that the format changed: then its version rises,
/// its history in schemas/README.md says so, and the former golden stays.
@Suite struct GoldenTests {
    static let folder =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        .joined(separator: "/") + "/Goldens"

    @Test func writerWritesTheGoldenOfTheCurrentVersion() throws {
        let folder = TemporaryFolder()
        let golden = "\(Self.folder)/version-1.0.statepack"
        try Fixture.write(try Fixture.program(), to: folder.file("now"))
        let isEqual = readBytes(folder.file("now")) == readBytes(golden)
        #expect(isEqual, "version 1.0 is frozen: the writer must write it as before, or raise the version")
    }

    @Test(arguments: ["version-1.0.statepack"])
    func goldenIsReadWhole(name: String) throws {
        let bundle = try MappedBundle(path: "\(Self.folder)/\(name)")
        #expect(bundle.program == (try Fixture.program()))
        #expect(bundle.sources == Fixture.sources)
        #expect(Array(bundle.recording) == Fixture.recording)
        let isEqual = Array(bundle.weights) == Fixture.weights(of: bundle.program)
        #expect(isEqual)
        #expect(bundle.checksumFindings().isEmpty)
        #expect(bundle.digestFindings(using: sha256).isEmpty)
    }
}
