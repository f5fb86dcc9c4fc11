import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct ImportWeightsTests {
    private static func header(_ json: String, data: Int = 0) -> [UInt8] {
        let text = Array(json.utf8)
        return withUnsafeBytes(of: UInt64(text.count).littleEndian) { Array($0) } + text
            + Array(repeating: 7, count: data)
    }

    private func refusal(_ bytes: [UInt8]) -> Diagnostic? {
        let folder = TemporaryFolder()
        let path = folder.write(bytes, to: "w.safetensors")
        let found = diagnostics { _ = try Safetensors(path: path) }
        #expect(found.count <= 1)
        return found.first
    }

    private static let good = #"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#

    struct Abuse: Sendable, CustomTestStringConvertible {
        var id: String
        var message: String
        var json: String
        var data = 8
        var code: Diagnostic.Code = .malformedWeights

        var testDescription: String { id }
    }

    static let abuses: [Abuse] = [
        .init(
            id: "duplicate tensor", message: "a tensor occurs twice",
            json:
                #"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#
        ),
        .init(
            id: "duplicate tensor by escape", message: "a tensor occurs twice",
            json:
                #"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#
        ),
        .init(
            id: "duplicate key", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        .init(
            id: "unknown key", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}}"#),
        .init(
            id: "missing key", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","data_offsets":[0,8]}}"#),
        .init(
            id: "overlap", message: "tensor `b` overlaps another or is not in order",
            json:
                #"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#
        ),
        .init(
            id: "not in order", message: "there is a hole in front of tensor `a`",
            json:
                #"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#
        ),
        .init(
            id: "hole", message: "there is a hole in front of tensor `b`",
            json:
                #"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#,
            data: 12),
        .init(
            id: "bytes behind the last tensor", message: "bytes follow the last tensor", json: good, data: 9),
        .init(
            id: "cut data", message: "tensor `a` reaches past the end of the file", json: good, data: 7,
            code: .truncatedFile),
        .init(
            id: "unknown type", message: "tensor `a` has an unknown type",
            json: #"{"a":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}}"#),
        .init(
            id: "size that overflows", message: "the size of tensor `a` overflows",
            json: #"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}"#),
        .init(
            id: "integer over 64 bits", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}}"#),
        .init(
            id: "negative size", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#),
        .init(
            id: "fraction", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}"#),
        .init(
            id: "leading zero", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}"#),
        .init(
            id: "end before start", message: "the bytes of tensor `a` do not fit its type and shape",
            json: #"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#),
        .init(
            id: "shape that does not fit", message: "the bytes of tensor `a` do not fit its type and shape",
            json: #"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#),
        .init(
            id: "nine axes", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[2,1,1,1,1,1,1,1,1],"data_offsets":[0,8]}}"#),
        .init(
            id: "something behind the JSON", message: "the header is not the JSON of a safetensors file",
            json: good + "x"),
        .init(
            id: "space in front", message: "the header is not the JSON of a safetensors file", json: " " + good),
        .init(
            id: "half a surrogate pair", message: "the header is not the JSON of a safetensors file",
            json: #"{"\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        .init(
            id: "metadata that is no text", message: "the header is not the JSON of a safetensors file",
            json: #"{"__metadata__":{"a":1}}"#, data: 0),
        .init(
            id: "metadata twice", message: "the header is not the JSON of a safetensors file",
            json: #"{"__metadata__":{},"__metadata__":{}}"#, data: 0),
        .init(
            id: "metadata key twice", message: "the header is not the JSON of a safetensors file",
            json: #"{"__metadata__":{"a":"1","a":"2"}}"#, data: 0),
        .init(
            id: "empty name", message: "the header is not the JSON of a safetensors file",
            json: #"{"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        .init(
            id: "word for a number", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":{"dtype":"F32","shape":[x],"data_offsets":[0,8]}}"#),
        .init(
            id: "NUL in a name", message: "the header is not the JSON of a safetensors file",
            json: #"{"\u0000":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        .init(
            id: "line break in a name", message: "the header is not the JSON of a safetensors file",
            json: "{\"a\nb\":{}}"),
        .init(
            id: "name without an end", message: "the header is not the JSON of a safetensors file", json: #"{"abc"#),
        .init(
            id: "unknown escape", message: "the header is not the JSON of a safetensors file", json: #"{"\q":{}}"#),
        .init(
            id: "escape of three digits", message: "the header is not the JSON of a safetensors file",
            json: #"{"\u00g":{}}"#),
        .init(
            id: "deep JSON", message: "the header is not the JSON of a safetensors file",
            json: #"{"a":"# + String(repeating: "[", count: 100_000)),
    ]

    @Test(arguments: abuses)
    func refusesAbuse(_ row: Abuse) throws {
        let found = try #require(refusal(Self.header(row.json, data: row.data)), "it was accepted")
        #expect(found.code == row.code)
        #expect(found.message == row.message)
        #expect(found.code.exitCode == 3)
        let text = ExactTexts.text([found]).replacing(found.location ?? "", with: "w.safetensors")
        #expect(text == ExactTexts.expected("ImportWeights", row.id, actual: text))
    }

    @Test func refusesMoreEntriesThanAHeaderMayHave() throws {
        let tensor = #":{"dtype":"BOOL","shape":[0],"data_offsets":[0,0]}"#
        for (id, json) in [
            ("too many tensors", (0...Safetensors.maximumEntryCount).map { "\"\($0)\"\(tensor)" }),
            ("too many keys of the metadata", (0...Safetensors.maximumEntryCount).map { "\"\($0)\":\"\"" }),
        ] {
            let list = "{\(json.joined(separator: ","))}"
            let found = try #require(
                refusal(Self.header(id == "too many tensors" ? list : "{\"__metadata__\":\(list)}")), "it was accepted")
            let text = ExactTexts.text([found]).replacing(found.location ?? "", with: "w.safetensors")
            #expect(text == ExactTexts.expected("ImportWeights", id, actual: text))
        }
    }

    @Test func refusesHeadersLongerThanTheirLimitOrTheFile() throws {
        let bomb = withUnsafeBytes(of: UInt64(1 << 40).littleEndian) { Array($0) } + Array("{}".utf8)
        let long = withUnsafeBytes(of: UInt64(50).littleEndian) { Array($0) } + Array("{}".utf8)
        for (id, bytes, code) in [
            ("header longer than its limit", bomb, Diagnostic.Code.malformedWeights),
            ("header longer than the file", long, .truncatedFile), ("no length", [1, 2, 3], .truncatedFile),
        ] {
            let found = try #require(refusal(bytes), "it was accepted")
            #expect(found.code == code)
            let text = ExactTexts.text([found]).replacing(found.location ?? "", with: "w.safetensors")
            #expect(text == ExactTexts.expected("ImportWeights", id, actual: text))
        }
    }

    @Test func readsWhatTheReferenceImplementationWrites() throws {
        // Saved by safetensors 0.7.0: {"b": float32 [2, 2] of 1..4, "a": int64 [] of 5} with metadata {"format": "pt"}.
        let json =
            #"{"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]}}   "#
        let folder = TemporaryFolder()
        let file = try Safetensors(path: folder.write(Self.header(json, data: 24), to: "w.safetensors"))
        #expect(file.entries.map(\.name) == ["a", "b"])
        #expect(file.metadata == ["format": "pt"])
        #expect(file["b"]?.shape == [2, 2])
        #expect(file["b"]?.scalarType == .float32)
        #expect(file["c"] == nil)
        let entry = try #require(file["b"])
        #expect(file.withBytes(of: entry) { Array($0) } == Array(repeating: 7, count: 16))
    }

    @Test func readsWhatItWrites() throws {
        let tensors: [SafetensorsWriter.Tensor] = [
            .init(name: "flags", scalarType: .bool, shape: [3], bytes: [1, 0, 1]),
            .init(name: "größe \"x\"\n", scalarType: .int64, shape: [], bytes: [1, 2, 3, 4, 5, 6, 7, 8]),
            .init(name: "none", scalarType: .float32, shape: [0, 4], bytes: []),
            .init(name: "half", scalarType: .bfloat16, shape: [1], bytes: [0x80, 0x3F]),
        ]
        let folder = TemporaryFolder()
        let path = folder.path + "/out.safetensors"
        try SafetensorsWriter.write(tensors, metadata: ["step": "3"], to: path)
        let file = try Safetensors(path: path)
        #expect(file.metadata == ["step": "3"])
        for tensor in tensors {
            let entry = try #require(file[tensor.name])
            #expect(entry.shape == tensor.shape && entry.scalarType == tensor.scalarType)
            #expect(file.withBytes(of: entry) { Array($0) } == tensor.bytes)
            #expect(entry.range.lowerBound % tensor.scalarType.byteCount == 0)
        }
    }

    @Test func refusesToWriteWhereItMayNot() {
        let found = diagnostics { try SafetensorsWriter.write([], to: "/nowhere/out.safetensors") }
        #expect(found.map(\.code) == [.outputNotWritten])
        #expect(found.first?.code.exitCode == 5)
        #expect(found.first?.location == "/nowhere/out.safetensors")
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("ImportWeights", "file that cannot be written", actual: text))
    }

    // MARK: Beside a program

    private static let weights = SafetensorsWriter.encode([
        .init(name: "scale", scalarType: .float32, shape: [4], bytes: Array(0..<16))
    ])

    private func fixture(for weights: [UInt8]) -> ExportedFixture {
        var fixture = ExportedFixture()
        fixture.tensors[0].isInline = false
        fixture.tensors[0].data = []
        fixture.weightsFile = "w.safetensors"
        fixture.weightsLength = UInt64(weights.count)
        fixture.weightsDigest = weights.withUnsafeBytes { SHA256Digest.of($0) }
        return fixture
    }

    @Test func readsWeightsBesideTheProgram() throws {
        let folder = TemporaryFolder()
        folder.write(Self.weights, to: "w.safetensors")
        let imported = try importProgram(at: folder.write(fixture(for: Self.weights).file(), to: "exported.pb"))
        let bytes = try imported.weights.withBytes(of: imported.program.tensors[0]) { Array($0) }
        #expect(bytes == Array(0..<16))
    }

    @Test func refusesMissingWeights() {
        let folder = TemporaryFolder()
        let path = folder.write(fixture(for: Self.weights).file(), to: "exported.pb")
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.fileNotFound])
        #expect(found.first?.location == folder.path + "/w.safetensors")
        let text = ExactTexts.text(found, in: folder.path)
        #expect(text == ExactTexts.expected("ImportWeights", "no file beside the program", actual: text))
    }

    @Test func refusesTruncatedWeightsAtEveryLength() {
        let folder = TemporaryFolder()
        let path = folder.write(fixture(for: Self.weights).file(), to: "exported.pb")
        for length in 0..<Self.weights.count {
            folder.write(Array(Self.weights.prefix(length)), to: "w.safetensors")
            let found = diagnostics { _ = try importProgram(at: path) }
            #expect(found.map(\.code) == [length == 0 ? .emptyFile : .truncatedFile], "length \(length)")
            #expect(found.first?.code.exitCode == 3)
            if length == 20 {
                let text = ExactTexts.text(found, in: folder.path)
                #expect(text == ExactTexts.expected("ImportWeights", "cut beside the program", actual: text))
            }
        }
    }

    @Test func refusesWeightsOfAnotherExport() throws {
        let folder = TemporaryFolder()
        let path = folder.write(fixture(for: Self.weights).file(), to: "exported.pb")
        var other = Self.weights
        other[other.count - 1] ^= 1
        folder.write(other, to: "w.safetensors")
        let found = diagnostics { _ = try importProgram(at: path) }
        #expect(found.map(\.code) == [.weightsMismatch])
        #expect(found.first?.expected != found.first?.found)
        let text = ExactTexts.text(found, in: folder.path)
        #expect(text == ExactTexts.expected("ImportWeights", "weights of another export", actual: text))
        // Whoever has checked the digest before may leave it out.
        _ = try importProgram(at: path, weights: .map)
    }

    @Test(arguments: [
        "digest", "digest and shape", "digest and initial value", "digest and recording", "shape",
        "shape and recording", "initial value", "initial value and recording", "recording", "nothing",
    ])
    func checkOnAnotherThreadFindsWhatTheCheckBeforehandFinds(_ fault: String) throws {
        let folder = TemporaryFolder()
        var weights = SafetensorsWriter.encode([
            .init(
                name: "scale", scalarType: .float32, shape: fault.contains("shape") ? [2, 2] : [4],
                bytes: Array(0..<16)),
            .init(name: "start", scalarType: .float32, shape: [8, 4], bytes: Array(repeating: 0, count: 128)),
        ])
        var fixture = fixture(for: weights)
        fixture.tensors.append(.init(name: "start", shape: [8, 4], data: [], isInline: false))
        fixture.states[0].splat = []
        fixture.states[0].tensor = 2
        fixture.states[0].digest = [UInt8](repeating: fault.contains("initial") ? 1 : 0, count: 128).withUnsafeBytes {
            SHA256Digest.of($0)
        }
        if fault.contains("recording") { fixture.recording = [0xFF] }
        if fault.contains("digest") { weights[weights.count - 1] ^= 1 }
        folder.write(weights, to: "w.safetensors")
        let path = folder.write(fixture.file(), to: "exported.pb")
        let before = diagnostics { _ = try importProgram(at: path) }
        let meanwhile = diagnostics { try importProgram(at: path, weights: .verifyMeanwhile).verification!.wait() }
        #expect(before == meanwhile)
        // The first of several faults, in the order in which the file is read.
        let codes: [Diagnostic.Code] =
            if fault.contains("digest") || fault.contains("shape") {
                [.weightsMismatch]
            } else if fault.contains(
                "initial")
            { [.digestMismatch] } else if fault.contains("recording") { [.malformedProgram] } else { [] }
        #expect(before.map(\.code) == codes)
    }

    @Test func checkThatIsWaitedForTwiceSaysTheSame() throws {
        let folder = TemporaryFolder()
        let path = folder.write(fixture(for: Self.weights).file(), to: "exported.pb")
        folder.write(Self.weights.dropLast() + [255], to: "w.safetensors")
        let imported = try importProgram(at: path, weights: .verifyMeanwhile)
        let first = diagnostics { try imported.verification!.wait() }
        #expect(first.map(\.code) == [.weightsMismatch])
        #expect(diagnostics { try imported.verification!.wait() } == first)
    }

    @Test func refusesWeightsWithoutATensorOrWithAnotherShape() {
        for (name, shape, message) in [
            ("other", [4], "a tensor is not in the weights file"),
            ("scale", [2, 2], "tensor `scale` differs between program and weights file"),
        ] {
            let weights = SafetensorsWriter.encode([
                .init(name: name, scalarType: .float32, shape: shape, bytes: Array(0..<16))
            ])
            let folder = TemporaryFolder()
            folder.write(weights, to: "w.safetensors")
            let path = folder.write(fixture(for: weights).file(), to: "exported.pb")
            let found = diagnostics { _ = try importProgram(at: path) }
            #expect(found.map(\.code) == [.weightsMismatch])
            #expect(found.map(\.message) == [message])
            let text = ExactTexts.text(found, in: folder.path)
            #expect(text == ExactTexts.expected("ImportWeights", "tensor \(name) of shape \(shape)", actual: text))
        }
    }
}

@Suite struct ImportDigestTests {
    @Test func hashesLikeTheStandard() {
        let empty = [UInt8]().withUnsafeBytes { SHA256Digest.of($0) }
        #expect(empty.prefix(4) == [0xE3, 0xB0, 0xC4, 0x42])
        var pieces = SHA256Digest()
        for part in ["a", "b", "c"] { Array(part.utf8).withUnsafeBytes { pieces.update($0) } }
        #expect(pieces.finish().prefix(4) == [0xBA, 0x78, 0x16, 0xBF])
    }
}
