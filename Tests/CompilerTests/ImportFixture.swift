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

/// Protobuf wire format, as little of it as exported.pb needs.
enum Wire {
    static func varint(_ value: UInt64) -> [UInt8] {
        var value = value
        var bytes: [UInt8] = []
        while value > 127 {
            bytes.append(UInt8(value & 127) | 128)
            value >>= 7
        }
        return bytes + [UInt8(value)]
    }

    static func number(_ field: Int, _ value: UInt64) -> [UInt8] { varint(UInt64(field) << 3) + varint(value) }

    static func fixed(_ field: Int, _ value: UInt64) -> [UInt8] {
        varint(UInt64(field) << 3 | 1) + withUnsafeBytes(of: value.littleEndian) { Array($0) }
    }

    static func bytes(_ field: Int, _ value: [UInt8]) -> [UInt8] {
        varint(UInt64(field) << 3 | 2) + varint(UInt64(value.count)) + value
    }

    static func text(_ field: Int, _ value: String) -> [UInt8] { bytes(field, Array(value.utf8)) }

    static func signed(_ values: [Int64]) -> [UInt8] {
        values.flatMap { varint(UInt64(bitPattern: $0 << 1 ^ $0 >> 63)) }
    }

    static func packed(_ field: Int, _ values: [UInt64]) -> [UInt8] {
        values.isEmpty ? [] : bytes(field, values.flatMap(varint))
    }
}

/// An exported.pb to be spoilt: good by default, every field open to change.
struct ExportedFixture {
    struct Symbol {
        var name = "query"
        var min: Int64 = 1
        var max: Int64 = 16
    }

    struct Tensor {
        var name = "scale"
        var scalarType: UInt64 = 11
        var shape: [UInt64] = [4]
        var data: [UInt8] = Array(repeating: 0, count: 16)
        var isInline = true
        var aliases: [String] = []
    }

    struct State {
        var name = "cache"
        var source: UInt64 = 1
        var sourceName = "module.cache"
        var scalarType: UInt64 = 11
        var shape: [[Int64]] = [[0, 8], [0, 4]]
        var splat: [UInt8] = [0, 0, 0, 0]
        var tensor: UInt64 = 0
        var digest: [UInt8] = []
    }

    struct Context {
        var positions: UInt64 = 1
        var axes: [(state: UInt64, axis: UInt64)] = [(0, 0)]
    }

    struct Value {
        var scalarType: UInt64 = 11
        var shape: [[Int64]] = []
    }

    struct Node {
        var op = "aten.mul.Tensor"
        /// Name and encoded value field.
        var arguments: [(String, [UInt8])] = []
        var results: [UInt64] = []
        var source: UInt64 = 1
    }

    var major: UInt64 = 1
    var minor: UInt64 = 0
    var symbols = [Symbol()]
    var tensors = [Tensor()]
    var states = [State()]
    var functionName = "main"
    var values = [
        Value(shape: [[1, 0], [0, 4]]), Value(scalarType: 5, shape: [[1, 0]]), Value(shape: [[0, 8], [0, 4]]),
        Value(shape: [[0, 4]]), Value(shape: [[1, 0], [0, 4]]), Value(shape: [[0, 8], [0, 4]]),
    ]
    var inputs: [(String, UInt64)] = [("rows", 0), ("positions", 1)]
    var outputs: [(String, UInt64)] = [("scaled", 4)]
    var stateUses: [(UInt64, UInt64, UInt64)] = [(0, 2, 5)]
    var constants: [(UInt64, UInt64)] = [(3, 0)]
    var nodes = [
        Node(arguments: [("self", Wire.number(2, 0)), ("other", Wire.number(2, 3))], results: [4]),
        Node(
            op: "aten.index_copy.default",
            arguments: [
                ("self", Wire.number(2, 2)), ("dim", ExportedFixture.size([0, 0])), ("index", Wire.number(2, 1)),
                ("source", Wire.number(2, 4)),
            ], results: [5]),
    ]
    var context: Context?
    var sources = ["layer (model.py:3)"]
    var weightsFile = ""
    var weightsLength: UInt64 = 0
    var weightsDigest: [UInt8] = []
    /// Appended to the program, for what the fields above cannot say.
    var programTail: [UInt8] = []
    var recording: [UInt8]?

    /// The `size` alternative of an argument.
    static func size(_ postfix: [Int64]) -> [UInt8] { Wire.bytes(4, Wire.bytes(1, Wire.signed(postfix))) }

    private func sizes(_ field: Int, _ shape: [[Int64]]) -> [UInt8] {
        shape.flatMap { Wire.bytes(field, Wire.bytes(1, Wire.signed($0))) }
    }

    func program() -> [UInt8] {
        var body = Wire.number(1, major) + (minor == 0 ? [] : Wire.number(2, minor)) + Wire.text(3, "test")
        for symbol in symbols {
            body += Wire.bytes(
                4,
                Wire.text(1, symbol.name) + Wire.number(2, UInt64(bitPattern: symbol.min))
                    + Wire.number(3, UInt64(bitPattern: symbol.max)))
        }
        for tensor in tensors {
            body += Wire.bytes(
                5,
                Wire.text(1, tensor.name) + Wire.number(2, tensor.scalarType) + Wire.packed(3, tensor.shape)
                    + Wire.bytes(4, tensor.data) + Wire.number(5, tensor.isInline ? 1 : 0)
                    + tensor.aliases.flatMap { Wire.text(6, $0) })
        }
        for state in states {
            body += Wire.bytes(
                6,
                Wire.text(1, state.name) + Wire.number(2, state.source) + Wire.text(3, state.sourceName)
                    + Wire.number(4, state.scalarType) + sizes(5, state.shape) + Wire.bytes(6, state.splat)
                    + Wire.number(7, state.tensor) + Wire.number(8, 1)
                    + (state.digest.isEmpty ? [] : Wire.bytes(9, state.digest)))
        }
        var function = Wire.text(1, functionName)
        for value in values {
            function += Wire.bytes(2, Wire.number(1, value.scalarType) + sizes(2, value.shape))
        }
        for (name, value) in inputs { function += Wire.bytes(3, Wire.text(1, name) + Wire.number(2, value)) }
        for (name, value) in outputs { function += Wire.bytes(4, Wire.text(1, name) + Wire.number(2, value)) }
        for (state, before, after) in stateUses {
            function += Wire.bytes(
                5, Wire.number(1, state) + Wire.number(2, before) + Wire.number(3, after) + Wire.text(4, "index_copy"))
        }
        for (value, tensor) in constants { function += Wire.bytes(6, Wire.number(1, value) + Wire.number(2, tensor)) }
        for node in nodes {
            function += Wire.bytes(
                7,
                Wire.text(1, node.op) + node.arguments.flatMap { Wire.bytes(2, Wire.text(1, $0.0) + $0.1) }
                    + Wire.packed(3, node.results) + Wire.number(4, node.source))
        }
        if let context {
            function += Wire.bytes(
                8,
                Wire.number(1, context.positions)
                    + context.axes.flatMap { Wire.bytes(2, Wire.number(1, $0.state) + Wire.number(2, $0.axis)) })
        }
        body += Wire.bytes(7, function)
        body += sources.flatMap { Wire.text(8, $0) }
        if !weightsFile.isEmpty {
            body += Wire.text(9, weightsFile) + Wire.number(10, weightsLength) + Wire.bytes(11, weightsDigest)
        }
        return body + programTail
    }

    func file() -> [UInt8] {
        Self.signed(Wire.bytes(3, program()) + (recording.map { Wire.bytes(4, $0) } ?? []))
    }

    /// The two fixed-width fields in front of a body.
    static func signed(_ body: [UInt8]) -> [UInt8] {
        let digest = body.withUnsafeBytes { SHA256Digest.of($0) }
        let first = digest.prefix(8).enumerated().reduce(0 as UInt64) { $0 | UInt64($1.element) << (8 * $1.offset) }
        return Wire.fixed(1, UInt64(body.count)) + Wire.fixed(2, first) + body
    }
}

/// A folder of one test's own, gone when the test ends.
final class TemporaryFolder {
    let path: String

    init() {
        var template = Array("/tmp/statepack-tests.XXXXXX".utf8CString)
        path = template.withUnsafeMutableBufferPointer { String(cString: mkdtemp($0.baseAddress!)) }
    }

    deinit {
        for name in names() { unlink("\(path)/\(name)") }
        rmdir(path)
    }

    private func names() -> [String] {
        guard let folder = opendir(path) else { return [] }
        defer { closedir(folder) }
        var result: [String] = []
        while let entry = readdir(folder) {
            result.append(
                withUnsafePointer(to: &entry.pointee.d_name) {
                    $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
                })
        }
        return result.filter { $0 != "." && $0 != ".." }
    }

    /// Writes a file and gives its path.
    @discardableResult
    func write(_ bytes: [UInt8], to name: String) -> String {
        let file = "\(path)/\(name)"
        let stream = fopen(file, "wb")!
        fwrite(bytes, 1, bytes.count, stream)
        fclose(stream)
        return file
    }
}

/// What `body` throws, empty when nothing.
func diagnostics(_ body: () throws -> Void) -> [Diagnostic] {
    do {
        try body()
        return []
    } catch let list as DiagnosticList {
        return list.diagnostics
    } catch let diagnostic as Diagnostic {
        return [diagnostic]
    } catch {
        Issue.record("not a diagnostic: \(error)")
        return []
    }
}
