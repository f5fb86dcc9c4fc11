import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

#if canImport(Darwin)
    import Darwin
#else
    import Glibc
#endif

@Suite struct ImportMalformedTests {
    struct Case: Sendable, CustomTestStringConvertible {
        var id: String
        var code: Diagnostic.Code
        var message: String
        var expected: String? = nil
        var found: String? = nil
        var change: @Sendable (inout ExportedFixture) -> Void

        var testDescription: String { id }
    }

    /// Of the file, at the start of a finding's place.
    private func path(of finding: Diagnostic) -> String {
        String(finding.location?.prefix { $0 != "," } ?? "")
    }

    private func refusals(_ fixture: ExportedFixture) -> [Diagnostic] {
        let folder = TemporaryFolder()
        let path = folder.write(fixture.file(), to: "exported.pb")
        return diagnostics { _ = try importProgram(at: path) }
    }

    @Test func acceptsTheFixtureItself() throws {
        let folder = TemporaryFolder()
        let imported = try importProgram(at: folder.write(ExportedFixture().file(), to: "exported.pb"))
        try Verifier.verify(imported.program, stage: .imported)
        #expect(imported.program.digest == ExportedFixture().program().withUnsafeBytes { SHA256Digest.of($0) })
        #expect(imported.recording == nil)
        #expect(imported.recordingBytes.isEmpty)
        #expect(
            imported.program.text().split(separator: "\n").suffix(9).joined(separator: "\n") == """
                func "main" {
                    input %0 "rows": float32[query, 4]
                    input %1 "positions": int64[query]
                    state %2 "cache": float32[8, 4] after %5 writtenBy "index_copy"
                    constant %3 "scale": float32[4]
                    %4: float32[query, 4] = aten.mul.Tensor(self=%0, other=%3) @0
                    %5: float32[8, 4] = aten.index_copy.default(self=%2, dim=0, index=%1, source=%4) @0
                    output %4 "scaled"
                }
                """)
    }

    static let cases: [Case] = [
        Case(
            id: "newer major version", code: .newerProgramFormat,
            message: "the program has a newer format than this reader",
            expected: "version 1", found: "version 2"
        ) { $0.major = 2 },
        Case(
            id: "no version", code: .malformedProgram, message: "the program does not start with its format version",
            expected: "version 1", found: "no version"
        ) { $0.major = 0 },
        Case(
            id: "symbol with min over max", code: .invalidSize, message: "the bounds of a symbol are not possible",
            expected: "0 <= min <= max", found: "3...2"
        ) {
            $0.symbols[0].min = 3
            $0.symbols[0].max = 2
        },
        Case(
            id: "symbol with negative min", code: .invalidSize, message: "the bounds of a symbol are not possible",
            expected: "0 <= min <= max", found: "-1...16"
        ) { $0.symbols[0].min = -1 },
        Case(
            id: "two symbols of one name", code: .duplicateProgramName, message: "two symbols have one name",
            found: "`query`"
        ) { $0.symbols.append(.init()) },
        Case(
            id: "symbol that reads like a sum", code: .invalidProgramName,
            message: "the name of a symbol is not an identifier", expected: "letters, digits and `_`, no digit first",
            found: "query + 1"
        ) { $0.symbols[0].name = "query + 1" },
        Case(id: "empty name", code: .invalidProgramName, message: "a name is empty") { $0.states[0].name = "" },
        Case(
            id: "long name", code: .invalidProgramName, message: "a name is too long",
            expected: "at most 1024 bytes",
            found: "1026"
        ) { $0.states[0].name = String(repeating: "é", count: 513) },
        Case(
            id: "control character", code: .invalidProgramName, message: "a name has a control character",
            found: "a\u{1B}[31m"
        ) { $0.functionName = "a\u{1B}[31m" },
        Case(id: "NUL in a name", code: .malformedProgram, message: "a string contains NUL") {
            $0.functionName = "a\0b"
        },
        Case(id: "name that is not UTF-8", code: .malformedProgram, message: "a string is not UTF-8") {
            $0.programTail = Wire.bytes(8, [0xC3, 0x28])
        },
        Case(
            id: "unknown scalar type", code: .malformedProgram, message: "an unknown scalar type", expected: "1...13",
            found: "14"
        ) { $0.values[1].scalarType = 14 },
        Case(
            id: "scalar type left out", code: .malformedProgram, message: "an unknown scalar type", expected: "1...13",
            found: "0"
        ) { $0.values[1].scalarType = 0 },
        Case(
            id: "number over 32 bits", code: .malformedProgram, message: "a number does not fit 32 bits"
        ) { $0.outputs[0].1 = 1 << 32 },
        Case(
            id: "tensor with too few bytes", code: .invalidTensor,
            message: "a tensor's bytes do not fit its scalar type and shape", expected: "16 bytes for float32[4]",
            found: "15 bytes"
        ) { $0.tensors[0].data.removeLast() },
        Case(id: "tensor whose size overflows", code: .invalidTensor, message: "the size of a tensor overflows") {
            $0.tensors[0].shape = [1 << 40, 1 << 40]
        },
        Case(
            id: "tensor of rank 9", code: .invalidTensor, message: "a tensor has too many axes", expected: "at most 8",
            found: "9"
        ) {
            $0.tensors[0].shape = Array(repeating: 1, count: 9)
            $0.tensors[0].data = [0, 0, 0, 0]
        },
        Case(id: "bool of 2", code: .invalidTensor, message: "a bool is neither 0 nor 1") {
            $0.tensors.append(.init(name: "mask", scalarType: 1, shape: [1], data: [2]))
        },
        Case(
            id: "tensor inline and outside", code: .invalidTensor,
            message: "a tensor is both inline and in the weights file"
        ) {
            $0.tensors[0].isInline = false
            $0.weightsFile = "w.safetensors"
            $0.weightsDigest = Array(repeating: 0, count: 32)
        },
        Case(
            id: "weights file missing from the program", code: .malformedProgram,
            message: "tensors are not inline, but there is no weights file"
        ) {
            $0.tensors[0].isInline = false
            $0.tensors[0].data = []
        },
        Case(
            id: "weights file in another folder", code: .invalidProgramName,
            message: "the weights file is not beside the program", expected: "a file name without folders",
            found: "../w.safetensors"
        ) {
            $0.weightsFile = "../w.safetensors"
            $0.weightsDigest = Array(repeating: 0, count: 32)
        },
        Case(
            id: "short digest", code: .malformedProgram, message: "the digest of the weights file is no SHA-256",
            expected: "32 bytes", found: "31 bytes"
        ) {
            $0.weightsFile = "w.safetensors"
            $0.weightsDigest = Array(repeating: 0, count: 31)
        },
        Case(
            id: "two tensors of one name", code: .duplicateProgramName, message: "two tensors have one name",
            found: "`scale`"
        ) { $0.tensors.append(.init()) },
        Case(
            id: "state of unknown source", code: .malformedProgram, message: "an unknown source of a state",
            expected: "1 or 2", found: "3"
        ) { $0.states[0].source = 3 },
        Case(
            id: "state without initial value", code: .malformedProgram,
            message: "the initial value of a state is not one element", expected: "4 bytes of float32", found: "0 bytes"
        ) { $0.states[0].splat = [] },
        Case(
            id: "state with two initial values", code: .malformedProgram, message: "a state has two initial values",
            expected: "one of splat and tensor"
        ) {
            $0.states[0].tensor = 1
            $0.states[0].digest = Array(repeating: 0, count: 32)
        },
        Case(
            id: "initial tensor of another type", code: .malformedProgram,
            message: "the initial value of a state has another type than the state", expected: "float32[8, 4]",
            found: "float32[4]"
        ) {
            $0.states[0].splat = []
            $0.states[0].tensor = 1
            $0.states[0].digest = Array(repeating: 0, count: 32)
        },
        Case(
            id: "initial tensor out of range", code: .invalidReference, message: "an index of a tensor is out of range",
            expected: "0..<1", found: "1"
        ) {
            $0.states[0].splat = []
            $0.states[0].tensor = 2
            $0.states[0].digest = Array(repeating: 0, count: 32)
            $0.states[0].shape = [[0, 4]]
            $0.values[2].shape = [[0, 4]]
        },
        Case(
            id: "size without tokens", code: .invalidSize,
            message: "a size is not an expression of the program's symbols"
        ) { $0.values[0].shape[0] = [] },
        Case(
            id: "size with an unknown symbol", code: .invalidSize,
            message: "a size is not an expression of the program's symbols", found: "malformed(\"symbol 1 of 1\")"
        ) { $0.values[0].shape[0] = [1, 1] },
        Case(
            id: "size with an unknown opcode", code: .invalidSize,
            message: "a size is not an expression of the program's symbols", found: "malformed(\"unknown opcode 9\")"
        ) { $0.values[0].shape[0] = [0, 1, 9, 0] },
        Case(
            id: "size that divides by zero", code: .invalidSize,
            message: "a size is not an expression of the program's symbols", found: "divisionByZero"
        ) { $0.values[0].shape[0] = [0, 1, 0, 0, 5, 0] },
        Case(
            id: "size that overflows", code: .invalidSize,
            message: "a size is not an expression of the program's symbols", found: "overflow"
        ) { $0.values[0].shape[0] = [0, .max, 0, .max, 4, 0] },
        Case(id: "negative size", code: .invalidSize, message: "a size of a shape may be negative", found: "query - 2")
        {
            $0.values[0].shape[0] = [1, 0, 0, 2, 3, 0]
        },
        Case(
            id: "value of rank 9", code: .invalidTensor, message: "a shape has too many axes", expected: "at most 8",
            found: "9"
        ) { $0.values[0].shape = Array(repeating: [0, 1], count: 9) },
        Case(
            id: "input that is no value", code: .invalidReference, message: "an index of a value is out of range",
            expected: "0..<6", found: "6"
        ) { $0.inputs[0].1 = 6 },
        Case(
            id: "state use of no state", code: .invalidReference, message: "an index of a state is out of range",
            expected: "0..<1", found: "1"
        ) { $0.stateUses[0].0 = 1 },
        Case(
            id: "constant of no tensor", code: .invalidReference, message: "an index of a tensor is out of range",
            expected: "0..<1", found: "7"
        ) { $0.constants[0].1 = 7 },
        Case(
            id: "operand that is no value", code: .invalidReference, message: "an index of a value is out of range",
            expected: "0..<6", found: "99"
        ) { $0.nodes[0].arguments[1].1 = Wire.number(2, 99) },
        Case(
            id: "tensor list with -2", code: .invalidReference, message: "an index of a value is out of range",
            expected: "-1 or 0..<6", found: "-2"
        ) { $0.nodes[0].arguments[1].1 = Wire.bytes(3, Wire.bytes(1, Wire.signed([-1, -2]))) },
        Case(
            id: "source out of range", code: .invalidReference, message: "an index of a source is out of range",
            expected: "0..<1", found: "4"
        ) { $0.nodes[0].source = 5 },
        Case(id: "argument without value", code: .malformedProgram, message: "an argument has no value") {
            $0.nodes[0].arguments[1].1 = []
        },
        Case(
            id: "two arguments of one name", code: .duplicateProgramName, message: "two arguments have one name",
            found: "`self`"
        ) { $0.nodes[0].arguments[1].0 = "self" },
        Case(id: "node without result", code: .malformedProgram, message: "a node has no result") {
            $0.nodes[0].results = []
        },
        Case(id: "operator without name", code: .invalidProgramName, message: "a name is empty") {
            $0.nodes[0].op = ""
        },
        Case(
            id: "two inputs of one name", code: .duplicateProgramName, message: "two inputs have one name",
            found: "`rows`"
        ) { $0.inputs[1].0 = "rows" },
        Case(
            id: "state named like an input", code: .duplicateProgramName,
            message: "a state has the name of an input or output", found: "`cache`"
        ) { $0.inputs[0].0 = "cache" },
        Case(id: "field that occurs twice", code: .malformedProgram, message: "a field occurs twice") {
            $0.programTail = Wire.number(2, 0) + Wire.number(2, 0)
        },
        Case(id: "field of another wire type", code: .malformedProgram, message: "a field has the wrong wire type") {
            $0.programTail = Wire.number(8, 1)
        },
        Case(id: "group", code: .malformedProgram, message: "a field has an unknown wire type") {
            $0.programTail = [100 << 3 & 0x7F | 0x80 | 3, 6]
        },
        Case(
            id: "recording with a wrong length", code: .malformedRecording,
            message: "the bytes do not fit scalar type and number of elements", expected: "2 elements of float32",
            found: "3 bytes"
        ) {
            let input = Wire.text(1, "rows") + Wire.number(2, 11) + Wire.packed(3, [2]) + Wire.bytes(4, [1, 2, 3])
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(2, input)))
        },
        Case(
            id: "recording with overlapping runs", code: .malformedRecording,
            message: "the runs are not sorted, or overlap, or are empty", expected: "start 4 or more", found: "3, 1"
        ) {
            let state =
                Wire.text(1, "cache") + Wire.packed(2, [0, 4, 3, 1]) + Wire.bytes(3, Array(repeating: 0, count: 16))
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(4, state)))
        },
        Case(
            id: "recording with a run without a length", code: .malformedRecording, message: "a run has no length",
            found: "3 numbers"
        ) {
            let state =
                Wire.text(1, "cache") + Wire.packed(2, [0, 4, 8]) + Wire.bytes(3, Array(repeating: 0, count: 16))
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(4, state)))
        },
        Case(
            id: "recording with bytes beside its runs", code: .malformedRecording,
            message: "the bytes do not fit the runs", expected: "whole elements, 4 of them", found: "15 bytes"
        ) {
            let state = Wire.text(1, "cache") + Wire.packed(2, [0, 4]) + Wire.bytes(3, Array(repeating: 0, count: 15))
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(4, state)))
        },
        Case(
            id: "recording with a negative tolerance", code: .malformedRecording,
            message: "the tolerance is negative or not finite", found: "-1.0, 0.0"
        ) {
            let state = Wire.text(1, "cache") + Wire.fixed(4, (-1.0).bitPattern)
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(4, state)))
        },
        Case(
            id: "recording with a shape that overflows", code: .malformedRecording, message: "the shape is too large",
            found: "[4611686018427387904, 8]"
        ) {
            let input =
                Wire.text(1, "rows") + Wire.number(2, 11) + Wire.packed(3, [1 << 62, 8]) + Wire.bytes(4, [0, 0, 0, 0])
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(2, input)))
        },
        Case(id: "`none` that is false", code: .malformedProgram, message: "`none` is false") {
            $0.nodes[0].arguments[1].1 = Wire.number(10, 0)
        },
        Case(
            id: "recording with a sample out of range", code: .malformedRecording, message: "an index is out of range",
            expected: "0..<2", found: "2"
        ) {
            let output =
                Wire.text(1, "scaled") + Wire.number(2, 11) + Wire.packed(3, [2]) + Wire.packed(4, [2])
                + Wire.bytes(5, [0, 0, 0, 0])
            $0.recording = Wire.bytes(1, Wire.bytes(1, Wire.text(1, "main") + Wire.bytes(3, output)))
        },
    ]

    @Test(arguments: cases)
    func refusesOneSpoiltField(_ row: Case) throws {
        var fixture = ExportedFixture()
        row.change(&fixture)
        let found = refusals(fixture)
        let first = try #require(found.first, "it was accepted")
        #expect(first.code == row.code)
        #expect(first.message == row.message)
        if let expected = row.expected { #expect(first.expected == expected) }
        if let text = row.found { #expect(first.found == text) }
        #expect(first.location?.contains("exported.pb") == true)
        #expect(first.code.exitCode == (row.code == .newerProgramFormat ? 4 : 3))
        #expect(!first.message.contains("\n"))
        let text = ExactTexts.text(found).replacing(path(of: first), with: "exported.pb")
        #expect(text == ExactTexts.expected("ImportProgram", row.id, actual: text))
        // One fault, one finding: what follows from it is not reported, too.
        #expect(found.count == 1, "\(found)")
    }

    @Test func reportsEveryFaultOfAProgramAtOnce() {
        var fixture = ExportedFixture()
        fixture.states[0].source = 9
        fixture.nodes[0].results = []
        fixture.inputs[1].0 = "rows"
        #expect(refusals(fixture).map(\.code) == [.malformedProgram, .duplicateProgramName, .malformedProgram])
    }

    // MARK: Bytes

    @Test func refusesEveryTruncationWithExitCode3() {
        let folder = TemporaryFolder()
        let file = ExportedFixture().file()
        let lengths = (0..<256).map { $0 * (file.count - 1) / 255 }
        for length in lengths {
            let path = folder.write(Array(file.prefix(length)), to: "exported.pb")
            let found = diagnostics { _ = try importProgram(at: path) }
            #expect(found.count == 1, "length \(length)")
            #expect(found.first?.code == (length == 0 ? .emptyFile : .truncatedFile), "length \(length)")
            #expect(found.first?.code.exitCode == 3)
        }
    }

    @Test func refusesEveryFlippedBit() {
        let folder = TemporaryFolder()
        let file = ExportedFixture().file()
        for position in 0..<file.count {
            var spoilt = file
            spoilt[position] ^= 1 << (position % 8)
            let path = folder.write(spoilt, to: "exported.pb")
            let found = diagnostics { _ = try importProgram(at: path) }
            #expect(found.first?.code.exitCode == 3, "byte \(position)")
        }
    }

    @Test func refusesBytesBehindTheDeclaredEnd() {
        let folder = TemporaryFolder()
        let path = folder.write(ExportedFixture().file() + [0], to: "exported.pb")
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.truncatedFile])
        let text = ExactTexts.text(found, in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", "bytes behind the declared end", actual: text))
    }

    @Test func refusesAFileThatIsCutInItsFirstFields() {
        let folder = TemporaryFolder()
        let path = folder.write(Array(ExportedFixture().file().prefix(12)), to: "exported.pb")
        let text = ExactTexts.text(diagnostics { _ = try importProgram(at: path) }, in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", "cut in its first fields", actual: text))
    }

    @Test(
        "Bytes that are no message of the schema are refused where they stand",
        arguments: [
            ("program twice", Wire.bytes(3, []) + Wire.bytes(3, [])),
            ("number without an end", [0x1A, 0x80]),
            ("number beyond 64 bits", [0x1A] + Array(repeating: 0xFF, count: 9) + [2]),
            ("field number zero", [0x02, 0]),
            ("field longer than what is left", [0x1A, 5, 0]),
            ("fixed field longer than what is left", [0x29, 1, 2]),
            ("group", [0x1B]),
            ("truth value of 2", Wire.bytes(3, Wire.number(1, 1) + Wire.bytes(5, Wire.number(5, 2)))),
            ("packed doubles with a rest", packedNumbers),
            // What the scan accepts and libprotobuf-c does not.
            ("overlong tag", Wire.bytes(3, [0x88, 0x80, 0x80, 0x80, 0x80, 0x00, 1])),
            ("no function", Wire.bytes(3, Wire.number(1, 1) + Wire.text(3, "test"))),
        ] as [(String, [UInt8])])
    func refusesWhatIsNoMessage(_ id: String, _ body: [UInt8]) {
        let folder = TemporaryFolder()
        let path = folder.write(ExportedFixture.signed(body), to: "exported.pb")
        let text = ExactTexts.text(diagnostics { _ = try importProgram(at: path) }, in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", id, actual: text))
    }

    /// Program, function, node, argument, list of numbers.
    private static let packedNumbers = Wire.bytes(
        3,
        Wire.number(1, 1)
            + Wire.bytes(7, Wire.bytes(7, Wire.bytes(2, Wire.bytes(11, Wire.bytes(1, [1, 2, 3]))))))

    @Test func refusesAProgramLargerThanItsLimit() {
        let folder = TemporaryFolder()
        let path = folder.write(
            ExportedFixture.signed(Array(repeating: 0, count: 256 << 20)), to: "exported.pb")
        let text = ExactTexts.text(diagnostics { _ = try importProgram(at: path) }, in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", "larger than its limit", actual: text))
    }

    @Test func refusesAWrongDigest() throws {
        let folder = TemporaryFolder()
        var file = ExportedFixture().file()
        file[10] ^= 1
        let path = folder.write(file, to: "exported.pb")
        let found = try #require(diagnostics { _ = try importProgram(at: path) }.first)
        #expect(found.code == .digestMismatch)
        #expect(found.expected != nil && found.found != nil && found.expected != found.found)
        let text = ExactTexts.text([found], in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", "wrong digest", actual: text))
    }

    @Test func refusesAnotherKindOfFile() {
        let folder = TemporaryFolder()
        let path = folder.write(Array("PK\u{3}\u{4} a zip archive, as torch.save writes".utf8), to: "model.pt2")
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.notAnExportedProgram])
        let text = ExactTexts.text(found, in: folder.path)
        #expect(text == ExactTexts.expected("ImportFile", "another kind of file", actual: text))
    }

    @Test func refusesAFileWithoutProgram() {
        let folder = TemporaryFolder()
        let path = folder.write(ExportedFixture.signed([]), to: "exported.pb")
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.malformedProgram])
        #expect(found.map(\.message) == ["the file has no program"])
    }

    @Test func tellsMissingFolderAndEmptyFilesApart() throws {
        let folder = TemporaryFolder()
        for (id, path, code) in [
            ("missing", folder.path + "/missing.pb", Diagnostic.Code.fileNotFound),
            ("a folder", folder.path, .notAFile), ("a device", "/dev/null", .notAFile),
            ("empty", folder.write([], to: "empty.pb"), .emptyFile),
            ("long name", folder.path + "/" + String(repeating: "x", count: 300), .unreadableFile),
        ] {
            let found = diagnostics { _ = try importProgram(at: path) }
            #expect(found.map(\.code) == [code], "\(id)")
            let text = ExactTexts.text(found, in: folder.path).replacing(
                String(repeating: "x", count: 300), with: "NAME-OF-300-LETTERS")
            #expect(text == ExactTexts.expected("ImportFile", id, actual: text))
        }
    }

    #if os(Linux)
        @Test func tellsWhatTheSystemRefuses() {
            let folder = TemporaryFolder()
            let path = folder.write(ExportedFixture().file(), to: "exported.pb")
            chmod(path, 0)
            let secret = withoutPrivilege { diagnostics { _ = try importProgram(at: path) } }
            #expect(
                ExactTexts.text(secret, in: folder.path)
                    == ExactTexts.expected("ImportFile", "not readable", actual: secret, in: folder.path))
            // The kernel's own files are regular ones that cannot be mapped.
            let unmapped = diagnostics { _ = try importProgram(at: "/sys/kernel/profiling") }
            #expect(
                ExactTexts.text(unmapped) == ExactTexts.expected("ImportFile", "cannot be mapped", actual: unmapped))
        }

        /// Runs `body` as a user whom mode bits bind. Root is not; the identity that the file system sees is a
        /// thread's own, so no other test notices.
        private func withoutPrivilege<Result>(_ body: () -> Result) -> Result {
            guard getuid() == 0, let symbol = dlsym(nil, "setfsuid") else { return body() }
            let setfsuid = unsafeBitCast(symbol, to: (@convention(c) (UInt32) -> Int32).self)
            _ = setfsuid(65534)
            defer { _ = setfsuid(0) }
            return body()
        }
    #endif

    // MARK: Bombs

    @Test func refusesARecordingThatTakesTooMuchMemory() {
        let step = Wire.bytes(1, Wire.text(1, String(repeating: "f", count: 1000)))
        let found = Wire.bytes(1, step).withUnsafeBytes { bytes in
            diagnostics { _ = try Recording(serialized: bytes, memory: 512) }
        }
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("ImportFile", "more memory than allowed", actual: text))
    }

    @Test func refusesNestingThatTheSchemaDoesNotHave() {
        // No message of the schema contains its own kind, so an honest reader never goes deeper than seven;
        // what is nested below that is an unknown field, never descended into.
        var deep: [UInt8] = []
        for _ in 0..<10_000 { deep = Wire.bytes(7, deep) }
        var fixture = ExportedFixture()
        fixture.programTail = Wire.bytes(7, Wire.bytes(7, deep))
        #expect(refusals(fixture).map(\.message) == ["field 7 is not part of this version of the format"])
        fixture.minor = 1
        let found = refusals(fixture)
        #expect(found.contains { $0.code == .malformedProgram && $0.message == "a node has no result" })
        #expect(found.allSatisfy { $0.code.exitCode == 3 })
    }

    @Test func refusesAMillionEmptyMessagesWithoutUnpackingThem() throws {
        var fixture = ExportedFixture()
        // Two bytes each in the file, a hundred in memory.
        fixture.programTail = Array(repeatElement([0x22, 0x00], count: 1 << 20).joined())
        let found = try #require(refusals(fixture).first)
        #expect(found.code == .programLimitExceeded)
        #expect(found.message == "more than 1048576 messages")
    }

    @Test func refusesMillionsOfPackedNumbers() throws {
        var fixture = ExportedFixture()
        fixture.programTail = Wire.bytes(5, Wire.bytes(3, Array(repeating: 1, count: 5 << 20)))
        let found = try #require(refusals(fixture).first)
        #expect(found.code == .programLimitExceeded)
        #expect(found.message == "more than 4194304 elements")
    }
}
