import Dispatch
import StatepackBundle
import StatepackCompiler
import StatepackTool
import Synchronization

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// `statepack run --inputs`: the bytes are the safetensors file, the model is STATEPACK_FUZZ_MODEL, an exported.pb.
enum InputsTarget {
    private static let model: String = {
        guard let path = getenv("STATEPACK_FUZZ_MODEL").map({ String(cString: $0) }) else {
            fatalError("STATEPACK_FUZZ_MODEL names the exported.pb to run")
        }
        let output = "\(FuzzFolder.path)/model.statepack"
        do {
            let imported = try importProgram(at: path)
            let compiled = try Compiler().compile(imported.program)
            try Compiler.write(compiled, weights: imported.weights, recording: imported.recordingBytes, to: output)
        } catch {
            fatalError("\(error)")
        }
        return output
    }()

    static func run(_ bytes: UnsafeRawBufferPointer) {
        let model = model
        run(model, FuzzFolder.write(bytes, to: "input"))
        if let file = SafetensorsTarget.repaired(bytes) { run(model, FuzzFolder.write(file, to: "input")) }
    }

    private static func run(_ model: String, _ inputs: String) {
        let done = DispatchSemaphore(value: 0)
        let status = Mutex<Int32>(-1)
        let console = Console.capturing()
        Task.detached {
            let code = await Tool.run(
                "statepack", ["run", model, "--inputs", inputs, "--threads", "1"], console: console)
            status.withLock { $0 = code }
            done.signal()
        }
        done.wait()
        let code = status.withLock { $0 }
        precondition([0, 1, 3, 4].contains(code), "exit code \(code): \(console.diagnostics)")
        precondition((code == 0) == console.diagnostics.isEmpty, "exit code \(code): \(console.diagnostics)")
    }
}
