import CLibcrypto
import StatepackBundle
import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A small program with every kind of storage: a cache of 16 rows, a step of `query` rows written
/// through a view, scratch memory, a stored matrix and two outputs.
enum Fixture {
    static func program() throws -> BundleProgram {
        let query = SizeExpression.symbol(0)
        func size(_ value: Int) -> SizeExpression { SizeExpression(value) }
        var program = BundleProgram(
            producer: "fixture 1", programDigest: Array(0..<32),
            symbols: [.init(name: "query", min: 1, max: 8)],
            tensors: [
                .init(name: "weight", scalarType: .float32, shape: [20, 4], layout: .panel16, offset: 0, length: 0),
                .init(name: "bias", scalarType: .float32, shape: [4], layout: .rowMajor, offset: 0, length: 0),
                .init(name: "start", scalarType: .float32, shape: [16, 4], layout: .rowMajor, offset: 0, length: 0),
            ],
            states: [
                .init(
                    name: "cache", sourceName: "model.cache", scalarType: .float32, shape: [size(16), size(4)],
                    initialValue: .tensor(2), initialDigest: startDigest()),
                .init(
                    name: "count", sourceName: "model.count", scalarType: .int64, shape: [],
                    initialValue: .splat([5, 0, 0, 0, 0, 0, 0, 0])),
            ],
            functions: [], kernels: ["linear", "add", "copy"])
        program.functions = [
            .init(
                name: "main", inputs: [.init(name: "x", value: 0)],
                outputs: [.init(name: "y", value: 4), .init(name: "rows", value: 8)],
                states: [
                    .init(state: 0, value: 1, writtenBy: "slice_scatter", copiedBytes: .zero, copyReason: ""),
                    .init(
                        state: 1, value: 2, writtenBy: "copy", copiedBytes: SizeExpression(8),
                        copyReason: "its old value is an output"),
                ],
                symbolSources: [.init(symbol: 0, input: 0, axis: 0)],
                values: [
                    .init(scalarType: .float32, shape: [query, size(4)], storage: .input(0)),
                    .init(scalarType: .float32, shape: [size(16), size(4)], storage: .state(0)),
                    .init(scalarType: .int64, shape: [], storage: .state(1)),
                    .init(scalarType: .float32, shape: [query, size(4)], storage: .arena(first: 0, last: 2)),
                    .init(scalarType: .float32, shape: [query, size(20)], storage: .output(0)),
                    .init(
                        scalarType: .float32, shape: [query, size(4)],
                        storage: .view(base: 1, strides: [size(4), size(1)], offset: try query.times(4))),
                    .init(scalarType: .float32, shape: [size(20), size(4)], storage: .tensor(0)),
                    .init(scalarType: .float32, shape: [size(4)], storage: .tensor(1)),
                    .init(scalarType: .float32, shape: [size(4)], storage: .output(1)),
                    .init(
                        scalarType: .float32, shape: [size(4)],
                        storage: .view(base: 1, strides: [size(1)], offset: size(60))),
                    .init(
                        scalarType: .float32, shape: [size(4), query],
                        storage: .view(base: 3, strides: [size(1), size(4)], offset: .zero)),
                ],
                instructions: [
                    .init(kernel: 1, operands: [0, 7], results: [3], ints: [], floats: [1.5], source: 0),
                    .init(kernel: 2, operands: [3], results: [5], ints: [query], floats: [], source: 1),
                    .init(kernel: 0, operands: [3, 6, nil], results: [4], ints: [], floats: [], source: 1),
                    .init(kernel: 2, operands: [9], results: [8], ints: [], floats: [-0.0, .infinity], source: nil),
                ])
        ]
        _ = program.layOutTensors()
        return program
    }

    /// Of the tensor `start` as `weights(of:)` fills it: 256 bytes from offset 576 on.
    static func startDigest() -> [UInt8] {
        let bytes = (0..<256).map { UInt8(truncatingIfNeeded: $0 &* 7 &+ 576) }
        let digest = sha256()
        bytes.withUnsafeBytes { digest.update($0) }
        return digest.finish()
    }

    static let sources = ["layer (model.py:3)", "layer.linear (model.py:4)"]
    static let recording: [UInt8] = Array("a recording".utf8)

    static func weights(of program: BundleProgram) -> [UInt8] {
        var program = program
        let length = program.layOutTensors() ?? 0
        var bytes = [UInt8](repeating: 0, count: length)
        for tensor in program.tensors {
            for index in 0..<tensor.length {
                bytes[tensor.offset + index] = UInt8(truncatingIfNeeded: index &* 7 &+ tensor.offset)
            }
        }
        return bytes
    }

    /// Writes a bundle without asking whether the program is sound.
    static func write(
        _ program: BundleProgram, to path: String, weights: [UInt8]? = nil, recording: [UInt8] = recording,
        sources: [String] = sources
    ) throws {
        try write(
            program: try program.encoded(), weights: weights ?? self.weights(of: program), recording: recording,
            sourceMap: SourceMap.encode(sources), to: path)
    }

    static func write(
        program: [UInt8], weights: [UInt8], recording: [UInt8], sourceMap: [UInt8], to path: String
    ) throws {
        let contents: [(SectionKind, [UInt8])] = [
            (.program, program), (.weights, weights), (.recording, recording), (.sourceMap, sourceMap),
        ].filter { !$0.1.isEmpty }
        // Without flushing to the disk: a test's file need not survive a power failure.
        var actions = FileActions()
        actions.sync = { _ in 0 }
        var writer = try BundleWriter(path: path, sections: contents.map(\.0), actions: actions, digest: sha256)
        for (kind, bytes) in contents {
            try writer.begin(kind)
            try writer.append(bytes)
        }
        try writer.finish()
    }
}

func sha256() -> IncrementalDigest {
    let context = EVP_MD_CTX_new()
    EVP_DigestInit_ex(context, EVP_sha256(), nil)
    return IncrementalDigest(
        update: { EVP_DigestUpdate(context, $0.baseAddress, $0.count) },
        finish: {
            var digest = [UInt8](repeating: 0, count: 32)
            EVP_DigestFinal_ex(context, &digest, nil)
            EVP_MD_CTX_free(context)
            return digest
        })
}

/// A folder that is removed, with all it holds, when the instance goes away.
final class TemporaryFolder: Sendable {
    let path: String

    init() {
        let parent = getenv("TMPDIR").map { String(cString: $0) } ?? "/tmp"
        var template = Array("\(parent)/statepack-test-XXXXXX".utf8CString)
        path = String(cString: mkdtemp(&template))
    }

    func file(_ name: String) -> String { "\(path)/\(name)" }

    var names: [String] {
        guard let folder = opendir(path) else { return [] }
        defer { closedir(folder) }
        var names: [String] = []
        while let entry = readdir(folder) {
            let name = withUnsafePointer(to: &entry.pointee.d_name) {
                $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
            }
            if name != ".", name != ".." { names.append(name) }
        }
        return names.sorted()
    }

    deinit {
        for name in names {
            unlink(file(name))
            rmdir(file(name))
        }
        rmdir(path)
    }
}

func readBytes(_ path: String) -> [UInt8] {
    guard let file = fopen(path, "rb") else { return [] }
    defer { fclose(file) }
    var bytes: [UInt8] = []
    var piece = [UInt8](repeating: 0, count: 1 << 16)
    while true {
        let count = fread(&piece, 1, piece.count, file)
        if count == 0 { return bytes }
        bytes += piece[..<count]
    }
}

func writeBytes(_ bytes: [UInt8], to path: String) {
    guard let file = fopen(path, "wb") else { return }
    fwrite(bytes, 1, bytes.count, file)
    fclose(file)
}
