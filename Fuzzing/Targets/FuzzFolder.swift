import Statepack
import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Files of this process, in memory where the system has a folder for that. They stay until the next run of the same
/// process number: libFuzzer ends a process without a word.
enum FuzzFolder {
    static let path: String = {
        let parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"
        let path = "\(parent)/statepack-fuzz-\(getpid())"
        mkdir(path, 0o700)
        atexit {
            for name in ["input", "bundle", "weights.safetensors", "model.statepack"] {
                unlink("\(FuzzFolder.path)/\(name)")
            }
            rmdir(FuzzFolder.path)
        }
        return path
    }()

    static func write(_ bytes: UnsafeRawBufferPointer, to name: String) -> String {
        let file = "\(path)/\(name)"
        let descriptor = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
        guard descriptor >= 0, Glibc.write(descriptor, bytes.baseAddress, bytes.count) == bytes.count else {
            fatalError("cannot write \(file)")
        }
        close(descriptor)
        return file
    }

    static func write(_ bytes: [UInt8], to name: String) -> String { bytes.withUnsafeBytes { write($0, to: name) } }
}

/// Calls a reader, which may refuse with diagnostics of exit code 1, 3 or 4, and with nothing else.
func attempt<Result>(_ body: () throws -> Result) -> Result? {
    do {
        return try body()
    } catch let list as DiagnosticList {
        for diagnostic in list.diagnostics { judge(diagnostic) }
    } catch let error as StatepackError {
        for diagnostic in error.diagnostics { judge(diagnostic) }
    } catch let diagnostic as Diagnostic {
        judge(diagnostic)
    } catch {
        fatalError("not a diagnostic: \(error)")
    }
    return nil
}

private func judge(_ diagnostic: Diagnostic) {
    precondition([1, 3, 4].contains(diagnostic.code.exitCode), "\(diagnostic)")
    let text = diagnostic.description
    precondition(text.utf8.count < 1 << 16, "a diagnostic of \(text.utf8.count) bytes")
    precondition(
        !text.unicodeScalars.contains { $0.value < 0x20 && $0 != "\n" }, "a control character reaches the terminal")
}
