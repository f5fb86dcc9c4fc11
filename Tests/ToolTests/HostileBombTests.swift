import StatepackBundle
import StatepackCompiler
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Files of a few megabytes that want much more memory or time: each is refused by the command in a process of its own,
/// which has one gigabyte and ten seconds.
@Suite(.serialized) struct HostileBombTests {
    struct Bomb: Sendable, CustomTestStringConvertible {
        var testDescription: String
        var name = "exported.pb"
        /// What the first line of the diagnostics says.
        var message: String
        var bytes: @Sendable () throws -> [UInt8]
    }

    // MARK: Writing

    private static func varint(_ value: Int) -> [UInt8] {
        value < 128 ? [UInt8(value)] : [UInt8(value & 127) | 128] + varint(value >> 7)
    }

    private static func message(_ field: Int, _ body: [UInt8]) -> [UInt8] {
        varint(field << 3 | 2) + varint(body.count) + body
    }

    private static func repeated(_ piece: [UInt8], _ count: Int) -> [UInt8] {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(piece.count * count)
        for _ in 0..<count { bytes += piece }
        return bytes
    }

    /// An exported.pb with this behind a program's first fields.
    private static func exported(_ rest: [UInt8], recording: [UInt8] = []) -> [UInt8] {
        let program = message(3, [1 << 3, 1] + rest) + (recording.isEmpty ? [] : message(4, recording))
        let digest = program.withUnsafeBytes { SHA256Digest.of($0) }
        return [0x09] + (0..<8).map { UInt8(truncatingIfNeeded: program.count >> (8 * $0)) } + [0x11] + digest[..<8]
            + program
    }

    /// A bundle with this program section behind its first fields, and nothing else.
    private static func bundle(_ rest: [UInt8]) throws -> [UInt8] {
        let folder = TestFolder()
        var writer = try BundleWriter(
            path: folder / "bomb", sections: [.program], digest: IncrementalDigest.sha256)
        try writer.begin(.program)
        try writer.append([1 << 3, 1] + message(4, [UInt8](repeating: 7, count: 32)) + rest)
        try writer.finish()
        return try folder.read("bomb")
    }

    private static func safetensors(_ header: [UInt8]) -> [UInt8] {
        (0..<8).map { UInt8(truncatingIfNeeded: header.count >> (8 * $0)) } + header
    }

    static let bombs: [Bomb] = [
        Bomb(testDescription: "exported.pb: a million empty values", message: "an unknown scalar type") {
            exported(message(7, message(1, Array("f".utf8)) + repeated([2 << 3 | 2, 0], 1_000_000)))
        },
        Bomb(testDescription: "exported.pb: a million empty nodes", message: "a name is empty") {
            exported(message(7, message(1, Array("f".utf8)) + repeated([7 << 3 | 2, 0], 1_000_000)))
        },
        Bomb(testDescription: "exported.pb: a million results of one node", message: "a name is empty") {
            let node = message(3, [UInt8](repeating: 0, count: 4_000_000))
            return exported(message(7, message(1, Array("f".utf8)) + message(7, node)))
        },
        Bomb(testDescription: "exported.pb: a name of a hundred megabytes", message: "a name is too long") {
            let name = [UInt8](repeating: 0x78, count: 100 << 20)
            return exported(message(7, message(1, name) + repeated([2 << 3 | 2, 0], 10_000)))
        },
        Bomb(testDescription: "exported.pb: a recording of a million steps", message: "the program has no function") {
            exported([], recording: message(1, repeated([1 << 3 | 2, 0], 1_000_000)))
        },
        Bomb(
            testDescription: "bundle: four million instructions", name: "model.statepack",
            message: "an instruction reads what none before it has written"
        ) {
            let value: [UInt8] = [1 << 3, 11, 3 << 3, 5]
            let instruction = message(2, [0])
            let function =
                message(1, Array("f".utf8)) + message(6, value) + repeated(message(7, instruction), 4_000_000)
            return try bundle(message(8, function) + message(9, Array("add".utf8)))
        },
        Bomb(
            testDescription: "bundle: four million values", name: "model.statepack",
            message: "there are too many values in scratch memory"
        ) {
            let value: [UInt8] = [1 << 3, 11, 3 << 3, 5]
            return try bundle(message(8, message(1, Array("f".utf8)) + repeated(message(6, value), 4_000_000)))
        },
        Bomb(
            testDescription: "bundle: millions of packed numbers", name: "model.statepack",
            message: "the section has too many elements"
        ) {
            let instruction = message(2, [UInt8](repeating: 0, count: 60_000_000))
            return try bundle(message(8, message(1, Array("f".utf8)) + message(7, instruction)))
        },
        Bomb(
            testDescription: "bundle: millions of names", name: "model.statepack",
            message: "the name of a kernel is used twice"
        ) {
            try bundle(repeated(message(9, Array("sixteen letters!".utf8)), 3_500_000))
        },
        Bomb(
            testDescription: "safetensors: a header of metadata", name: "inputs.safetensors",
            message: "the header is not the JSON of a safetensors file"
        ) {
            var header = Array("{\"__metadata__\":{".utf8)
            for index in 0..<7_500_000 { header += Array("\"\(index)\":\"\",".utf8) }
            return safetensors(header)
        },
        Bomb(
            testDescription: "safetensors: a header of tensors", name: "inputs.safetensors",
            message: "the header is not the JSON of a safetensors file"
        ) {
            var header: [UInt8] = [0x7B]
            for index in 0..<1_500_000 {
                header += Array("\"\(index)\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},".utf8)
            }
            return safetensors(header)
        },
        Bomb(
            testDescription: "safetensors: a header of spaces", name: "inputs.safetensors",
            message: "the header is not the JSON of a safetensors file"
        ) { safetensors([0x7B] + [UInt8](repeating: 0x20, count: 99_000_000)) },
        Bomb(
            testDescription: "contract: a million empty objects", name: "contract.json",
            message: "the list is too long"
        ) {
            Array("{\"contract\": 1, \"functions\": [], \"symbols\": [".utf8) + repeated(Array("{},".utf8), 1_300_000)
                + Array("{}]}".utf8)
        },
        Bomb(
            testDescription: "contract: a hundred thousand symbols", name: "contract.json",
            message: "the list is too long"
        ) {
            var text = Array("{\"contract\": 1, \"functions\": [], \"symbols\": [".utf8)
            for index in 0..<100_000 { text += Array("{\"name\":\"s\(index)\",\"min\":0,\"max\":1},".utf8) }
            return text + Array("{\"name\":\"s\",\"min\":0,\"max\":1}]}".utf8)
        },
    ]

    // MARK: Running

    /// AddressSanitizer keeps freed memory for a while and needs a multiple of all.
    private static let isInstrumented = dlsym(nil, "__asan_init") != nil

    /// Built beside the tests.
    static func command() throws -> String {
        let test = try #require(
            realpath("/proc/self/exe", nil).map { pointer in
                defer { free(pointer) }
                return String(cString: pointer)
            })
        let folder = test[..<(try #require(test.lastIndex(of: "/")))]
        return "\(folder)/statepack"
    }

    private struct Outcome {
        var status: Int32
        var diagnostics: String
        /// Of the process, so that what else the machine does costs nothing.
        var processorSeconds: Double
    }

    /// Runs the command with a gigabyte of address space: what does not fit there ends it with a signal.
    private static func spawn(_ words: [String], _ folder: TestFolder) throws -> Outcome {
        var actions = posix_spawn_file_actions_t()
        posix_spawn_file_actions_init(&actions)
        defer { posix_spawn_file_actions_destroy(&actions) }
        posix_spawn_file_actions_addopen(
            &actions, STDERR_FILENO, folder / "diagnostics", O_WRONLY | O_CREAT | O_TRUNC, 0o600)
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0)
        // AddressSanitizer reserves terabytes for its own use.
        let limit = isInstrumented ? "" : "ulimit -v 1048576; "
        let shell = ["/bin/sh", "-c", limit + "exec \"$@\"", "sh"] + words
        var arguments: [UnsafeMutablePointer<CChar>?] = shell.map { strdup($0) } + [nil]
        defer { for argument in arguments { free(argument) } }
        var child = pid_t()
        let failure = posix_spawn(&child, shell[0], &actions, nil, &arguments, environ)
        try #require(failure == 0, "\(shell[0]): \(String(cString: strerror(failure)))")
        var status: Int32 = 0
        var usage = rusage()
        #expect(wait4(child, &status, 0, &usage) == child)
        // A signal leaves its number in the low bits.
        let code = status & 0x7F == 0 ? status >> 8 & 0xFF : -(status & 0x7F)
        func seconds(_ time: timeval) -> Double { Double(time.tv_sec) + Double(time.tv_usec) / 1e6 }
        return Outcome(
            status: code, diagnostics: String(decoding: try folder.read("diagnostics"), as: UTF8.self),
            processorSeconds: seconds(usage.ru_utime) + seconds(usage.ru_stime))
    }

    private static var isOptimised: Bool {
        #if DEBUG
            false
        #else
            !isInstrumented
        #endif
    }

    @Test(arguments: bombs)
    func bombsAreRefusedInLittleMemory(_ bomb: Bomb) async throws {
        let folder = TestFolder()
        folder.write(try bomb.bytes(), to: bomb.name)
        let command = try Self.command()
        var words = [command, "validate", folder / bomb.name]
        if bomb.name == "contract.json" {
            words = [command, "validate", Repository.example, "--descriptors", folder / bomb.name]
        } else if bomb.name == "inputs.safetensors" {
            let run = await ToolRun("convert", Repository.example, "-o", folder / "model.statepack")
            #expect(run.status == 0)
            words = [command, "run", folder / "model.statepack", "--inputs", folder / bomb.name]
        }
        let outcome = try Self.spawn(words, folder)
        #expect([1, 3].contains(outcome.status), "\(outcome.diagnostics.prefix(500))")
        #expect(outcome.diagnostics.prefix { $0 != "\n" }.contains(bomb.message), "\(outcome.diagnostics.prefix(500))")
        #expect(outcome.diagnostics.utf8.count < 1 << 20)
        #expect(outcome.processorSeconds < (Self.isOptimised ? 10 : 120), "\(outcome.processorSeconds) s")
    }
}
