import StatepackBundle
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Committed files. A difference means that the format changed: then its version rises, its history in
/// schemas/README.md says so, and the former golden stays.
@Suite struct GoldenTests {
    static let folder =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        .joined(separator: "/") + "/Goldens"

    @Test func writerWritesTheGoldenOfTheCurrentVersion() throws {
        let folder = TemporaryFolder()
        let golden = "\(Self.folder)/version-1.0.statepack"
        try Fixture.write(try Fixture.program(), to: folder.file("now"))
        if getenv("STATEPACK_UPDATE_GOLDENS") != nil { writeBytes(readBytes(folder.file("now")), to: golden) }
        let isEqual = readBytes(folder.file("now")) == readBytes(golden)
        #expect(isEqual, "run STATEPACK_UPDATE_GOLDENS=1 swift test --filter GoldenTests and look at the difference")
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
