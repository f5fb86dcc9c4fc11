import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct OpeningTests {
    let folder = TemporaryFolder()

    private func diagnostic(_ path: String, _ access: MappedBundle.Access) -> Diagnostic? {
        do throws(DiagnosticList) {
            _ = try MappedBundle(path: path, access: access)
            return nil
        } catch {
            return error.diagnostics.count == 1 ? error.diagnostics[0] : nil
        }
    }

    @Test(arguments: [MappedBundle.Access.mapped, .copied])
    func whatIsNoBundleIsNamedForWhatItIs(access: MappedBundle.Access) throws {
        let missing = folder.file("missing.statepack")
        #expect(
            diagnostic(missing, access)
                == Diagnostic(.bundleNotFound, "there is no such bundle", at: missing, hint: "check the path"))
        let below = folder.file("file/model.statepack")
        writeBytes([1], to: folder.file("file"))
        #expect(diagnostic(below, access)?.code == .bundleNotFound)
        #expect(
            diagnostic(folder.path, access)
                == Diagnostic(
                    .bundleIsNotAFile, "the bundle is a directory", at: folder.path, expected: "a *.statepack file",
                    found: "a directory"))
        #expect(diagnostic("/dev/null", access)?.code == .bundleIsNotAFile)
        let pipe = folder.file("pipe")
        #expect(mkfifo(pipe, 0o600) == 0)
        #expect(diagnostic(pipe, access)?.code == .bundleIsNotAFile)
        let empty = folder.file("empty.statepack")
        writeBytes([], to: empty)
        #expect(
            diagnostic(empty, access)
                == Diagnostic(
                    .bundleEmpty, "the bundle is empty", at: empty, expected: "32 bytes or more", found: "0 bytes",
                    hint: "convert again: a finished convert never leaves an empty file"))
        let long = folder.file(String(repeating: "x", count: 300))
        #expect(diagnostic(long, access)?.code == .bundleUnreadable)
        for (id, path) in [
            ("missing", missing), ("a folder", folder.path), ("a device", "/dev/null"), ("a pipe", pipe),
            ("empty", empty), ("long name", long),
        ] {
            let text = ExactTexts.text([try #require(diagnostic(path, access))], in: folder.path).replacing(
                String(repeating: "x", count: 300), with: "NAME-OF-300-LETTERS")
            #expect(text == ExactTexts.expected("BundleOpening", id, actual: text))
        }
        #expect(diagnostic(long, access)?.message == "the bundle cannot be read: File name too long")
    }

    @Test(arguments: [MappedBundle.Access.mapped, .copied])
    func fileWithoutPermissionIsNamed(access: MappedBundle.Access) throws {
        let path = folder.file("secret.statepack")
        try Fixture.write(try Fixture.program(), to: path)
        chmod(path, 0)
        let found = withoutPrivilege { diagnostic(path, access) }
        let text = ExactTexts.text([try #require(found)], in: folder.path)
        #expect(text == ExactTexts.expected("BundleOpening", "without permission", actual: text))
        #expect(
            found
                == Diagnostic(
                    .bundleNotPermitted, "the bundle may not be read by this user", at: path,
                    hint: "change the permissions of the file or of the folders above it"))
    }

    /// Runs `body` as a user whom mode bits bind. Root is not; on Linux, the identity that the file system
    /// sees is a thread's own, so no other test notices.
    private func withoutPrivilege<Result>(_ body: () -> Result) -> Result {
        #if os(Linux)
            if getuid() == 0, let symbol = dlsym(nil, "setfsuid") {
                let setfsuid = unsafeBitCast(symbol, to: (@convention(c) (UInt32) -> Int32).self)
                _ = setfsuid(65534)
                defer { _ = setfsuid(0) }
                return body()
            }
        #endif
        return body()
    }

    @Test func repeatedOpeningLeaksNoDescriptor() throws {
        let good = folder.file("good.statepack")
        try Fixture.write(try Fixture.program(), to: good)
        let bad = folder.file("bad.statepack")
        writeBytes(Array("Hello".utf8), to: bad)
        // More than a process may have open.
        for _ in 0..<3000 {
            for access in [MappedBundle.Access.mapped, .copied] {
                _ = try? MappedBundle(path: good, access: access)
                _ = try? MappedBundle(path: bad, access: access)
            }
        }
        #expect(try MappedBundle(path: good).program == Fixture.program())
    }
}
