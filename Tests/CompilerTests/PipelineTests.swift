import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct PipelineTests {
    /// A stateful transformer as DecomposeOps leaves it: stacked caches, one written by index_put, one by index_copy.
    static func transformer(layers: Int = 2, context: Int = 16, width: Int = 8) -> String {
        var tensors = ["tensor \"float32 1.0\" float32[] inline 0000803f"]
        var constants: [String] = []
        var lines: [String] = []
        var next = 10
        func value(_ type: String, _ text: String) -> Int {
            lines.append("%\(next): \(type) = \(text)")
            next += 1
            return next - 1
        }
        let row = "float32[query, \(width)]"
        let layer = "float32[\(context), \(width)]"
        let cache = "float32[\(layers), \(context), \(width)]"
        let wide = "float32[1, 1, \(context), \(width)]"
        let heads = "float32[1, 1, query, \(width)]"
        func parameter(_ name: String, _ shape: String) -> Int {
            tensors.append("tensor \"\(name)\" float32[\(shape)] weights \"\(name)\"")
            constants.append("constant %\(next) \"\(name)\": float32[\(shape)]")
            next += 1
            return next - 1
        }
        func linear(_ a: Int, _ name: String) -> Int {
            let weight = parameter("\(name).weight", "\(width), \(width)")
            let bias = parameter("\(name).bias", "\(width)")
            return value(row, "linear(a=%\(a), weight=%\(weight), bias=%\(bias)) @0")
        }
        let steps = value("int64[\(context)]", "arange(start=%4, step=%5)")
        let first = value("int64[1, \(context)]", "view.reshape(a=%\(steps), shape={1, \(context)})")
        let second = value("int64[query, 1]", "view.reshape(a=%1, shape={query, 1})")
        let allowed = value("bool[query, \(context)]", "le(a=%\(first), b=%\(second))")
        let mask = value(
            "bool[1, 1, query, \(context)]", "view.reshape(a=%\(allowed), shape={1, 1, query, \(context)})")
        var (x, keys, values) = (0, 2, 3)
        for index in 0..<layers {
            let weight = parameter("norm.\(index).weight", "\(width)")
            let y = value(row, "layer_norm(a=%\(x), weight=%\(weight), bias=none, axes=1, epsilon=1e-05)")
            let oldKeys = value(layer, "view.select(a=%\(keys), dim=0, index=\(index))")
            let newKeys = value(
                layer, "index_put(a=%\(oldKeys), source=%\(linear(y, "k.\(index)")), indices=[%1], accumulate=0)")
            keys = value(cache, "scatter.select(a=%\(keys), source=%\(newKeys), dim=0, index=\(index))")
            let oldValues = value(layer, "view.select(a=%\(values), dim=0, index=\(index))")
            let newValues = value(
                layer, "index_copy(a=%\(oldValues), index=%1, source=%\(linear(y, "v.\(index)")), axis=0)")
            values = value(cache, "scatter.select(a=%\(values), source=%\(newValues), dim=0, index=\(index))")
            let q = value(heads, "view.reshape(a=%\(linear(y, "q.\(index)")), shape={1, 1, query, \(width)})")
            let k = value(layer, "view.select(a=%\(keys), dim=0, index=\(index))")
            let k4 = value(wide, "view.reshape(a=%\(k), shape={1, 1, \(context), \(width)})")
            let v = value(layer, "view.select(a=%\(values), dim=0, index=\(index))")
            let v4 = value(wide, "view.reshape(a=%\(v), shape={1, 1, \(context), \(width)})")
            let a = value(
                heads,
                "sdpa(query=%\(q), key=%\(k4), value=%\(v4), mask=%\(mask), causal=0, groups=1, scale=0.3535533905932738)"
            )
            let rows = value(row, "view.reshape(a=%\(a), shape={query, \(width)})")
            x = value(row, "add(a=%\(x), b=%\(linear(rows, "o.\(index)")))")
        }
        return """
            symbol query 1...\(context)
            \(tensors.joined(separator: "\n"))
            tensor "int64 0" int64[] inline 0000000000000000
            tensor "int64 1" int64[] inline 0100000000000000
            state "key_cache" \(cache) buffer "key_cache" splat 00000000
            state "value_cache" \(cache) buffer "value_cache" splat 00000000
            source "layers.0 (model.py:12)"
            func "main" {
                input %0 "features": \(row)
                input %1 "position_ids": int64[query]
                state %2 "key_cache": \(cache) after %\(keys) writtenBy "index_put"
                state %3 "value_cache": \(cache) after %\(values) writtenBy "index_copy"
                constant %4 "int64 0": int64[]
                constant %5 "int64 1": int64[]
                \(constants.joined(separator: "\n    "))
                \(lines.joined(separator: "\n    "))
                output %\(x) "logits"
            }
            """
    }

    @Test func compilesTheTransformerWithBothCachesInPlace() throws {
        let compiled = try PlanOracle.compile(
            Program(text: Self.transformer()), options: .init(requireInPlace: true))
        let function = compiled.bundle.functions[0]
        let kernels = function.instructions.map { compiled.bundle.kernels[$0.kernel] }
        #expect(
            kernels == ["arange", "le"]
                + (0..<2).flatMap { _ in
                    ["layer_norm", "linear_parts", "index_put", "index_copy", "sdpa", "linear_add"]
                })
        #expect(compiled.report.stateUpdates.map { $0.description(symbolNames: []) } == ["in place", "in place"])
        #expect(compiled.bundle.tensors.count { $0.layout == .panel16 } == 8)
        // The last sum is computed in the output's memory.
        #expect(function.instructions.last?.results == [function.outputs[0].value])
        // The layers over one norm stand where the first of them stood.
        #expect(function.instructions.filter { $0.source != nil }.count == 2)
    }

    /// Weights whose bytes follow from their names.
    struct MadeUpWeights: TensorSource {
        func withBytes<R>(
            of tensor: Program.StoredTensor, _ body: (UnsafeRawBufferPointer) throws -> R
        ) throws -> R {
            if case .inline(let bytes) = tensor.data { return try bytes.withUnsafeBytes(body) }
            let count = tensor.shape.reduce(1, *)
            let seed = Float(tensor.name.utf8.reduce(0) { ($0 &* 31 &+ Int($1)) % 997 })
            return try (0..<count).map { seed + Float($0) }.withUnsafeBytes(body)
        }
    }

    static func temporaryPath() -> String { "/tmp/statepack-pipeline-\(UInt64.random(in: 0 ... .max)).statepack" }

    @Test func writesABundleThatReadsBack() throws {
        let program = try Program(text: Self.transformer())
        let compiled = try Compiler().compile(decomposed: program)
        let path = Self.temporaryPath()
        defer { unlink(path) }
        var progress: [Int] = []
        let recording: [UInt8] = [0x0A, 0x00]
        try Compiler.write(compiled, weights: MadeUpWeights(), recording: recording, to: path) { done, total in
            progress.append(done)
            #expect(done <= total)
        }
        let mapped = try MappedBundle(path: path)
        #expect(mapped.program == compiled.bundle)
        #expect(mapped.sources == ["layers.0 (model.py:12)"])
        #expect(Array(mapped.recording) == recording)
        #expect(mapped.checksumFindings().isEmpty)
        #expect(mapped.digestFindings(using: IncrementalDigest.sha256).isEmpty)
        #expect(progress.count == compiled.bundle.tensors.count && progress == progress.sorted())
        // Row-major tensors are there byte by byte; panels hold row i in lane i of 16.
        for (index, tensor) in compiled.bundle.tensors.enumerated() {
            try MadeUpWeights().withBytes(of: compiled.tensors[compiled.recipes[index].source]) { source in
                let stored = mapped.bytes(ofTensor: index)
                if tensor.layout == .rowMajor {
                    #expect(Array(stored) == Array(source))
                } else {
                    let lane = stored.loadUnaligned(fromByteOffset: 3 * 4, as: Float.self)
                    #expect(lane == source.loadUnaligned(fromByteOffset: 3 * tensor.shape[1] * 4, as: Float.self))
                }
            }
        }
    }

    static func bytes(of path: String) throws -> [UInt8] {
        let file = try #require(fopen(path, "rb"))
        defer { fclose(file) }
        var bytes = [UInt8](repeating: 0, count: 1 << 20)
        let count = fread(&bytes, 1, bytes.count, file)
        return Array(bytes[..<count])
    }

    @Test func writesTheSameBytesTwice() throws {
        var files: [[UInt8]] = []
        for _ in 0..<2 {
            let compiled = try Compiler().compile(decomposed: Program(text: Self.transformer()))
            let path = Self.temporaryPath()
            defer { unlink(path) }
            try Compiler.write(compiled, weights: MadeUpWeights(), recording: [], to: path)
            files.append(try Self.bytes(of: path))
        }
        #expect(files[0].count > 4096)
        #expect(files[0] == files[1])
    }

    @Test func writesAProgramWithoutWeights() throws {
        let compiled = try Compiler().compile(
            decomposed: Program(
                text: "func \"main\" { input %0 \"x\": float32[4] %1: float32[4] = neg(a=%0) output %1 \"y\" }"))
        let path = Self.temporaryPath()
        defer { unlink(path) }
        try Compiler.write(compiled, weights: MadeUpWeights(), recording: [], to: path)
        #expect(try MappedBundle(path: path).sections.map(\.name) == ["program"])
    }

    @Test func leavesNoFileWhenWeightsCannotBeRead() throws {
        let compiled = try Compiler().compile(decomposed: Program(text: Self.transformer()))
        let path = Self.temporaryPath()
        let list = try #require(throws: DiagnosticList.self) {
            try Compiler.write(compiled, weights: ImportedWeights(), recording: [], to: path)
        }
        #expect(list.diagnostics.map(\.code) == [.weightsMismatch])
        #expect(access(path, F_OK) != 0)
    }

    @Test func requiresStatesInPlaceWhenAsked() throws {
        let program = try Program(
            text: """
                symbol n 1...8
                state "window" float32[8, 4] buffer "window" splat 00000000
                state "last" float32[8, 4] buffer "last" splat 00000000
                func "main" {
                    input %0 "row": float32[1, 4]
                    state %1 "window": float32[8, 4] after %4 writtenBy "copy"
                    state %2 "last": float32[8, 4] after %5 writtenBy "copy"
                    %3: float32[7, 4] = view.slice(a=%1, dim=0, start=1, end=8, step=1)
                    %4: float32[8, 4] = cat(parts=[%3, %0], axis=0)
                    %5: float32[8, 4] = neg(a=%4)
                }
                """)
        _ = try Compiler().compile(decomposed: program)
        let list = try #require(throws: DiagnosticList.self) {
            try Compiler(options: .init(requireInPlace: true)).compile(decomposed: program)
        }
        let text = ExactTexts.text(list.diagnostics)
        #expect(text == ExactTexts.expected("Compiler", "state that is copied", actual: text))
    }

    @Test func handsOutTheProgramAfterAPass() throws {
        var dumps: [String: String] = [:]
        let options = CompileOptions(dumpAfter: ["RecoverStateWrites", "FuseOps"])
        _ = try Compiler(options: options).compile(decomposed: Program(text: Self.transformer())) { dumps[$0] = $1 }
        #expect(dumps.keys.sorted() == ["FuseOps", "RecoverStateWrites"])
        let recovered = try #require(dumps["RecoverStateWrites"])
        #expect(recovered.contains("inPlace index_copy") && !recovered.contains("scatter"))
        #expect(try Program(text: recovered).text() == recovered)
        #expect(dumps["FuseOps"]!.contains("scatter.select"))
    }

    @Test func handsOutThePlanWithItsStorage() throws {
        var dumps: [String: String] = [:]
        let options = CompileOptions(dumpAfter: ["PlanMemory", "PackWeights"])
        let compiled = try Compiler(options: options).compile(decomposed: Program(text: Self.transformer())) {
            dumps[$0] = $1
        }
        #expect(dumps.keys.sorted() == ["PackWeights", "PlanMemory"])
        #expect(dumps["PackWeights"] == compiled.bundle.text())
        // The write's result is the view of the state that it was given: nothing else may be changed in place.
        let write = try #require(dumps["PlanMemory"]?.split(separator: "\n").first { $0.contains(": index_copy(") })
        let destination = try #require(write.split(separator: "(").last?.split(separator: ",").first)
        #expect(write.hasSuffix("-> \(destination)"), "\(write)")
        let declaration = dumps["PlanMemory"]?.split(separator: "\n").first { $0.hasPrefix("    \(destination): ") }
        #expect(declaration?.contains(" view of %") == true)
        #expect(dumps["PackWeights"]!.contains(" panel16 at "))
    }

    @Test func reportsAnInvalidProgramWithTheStageThatMadeIt() throws {
        var program = try Program(text: Self.transformer())
        program.functions[0].nodes[0].op = "teleport"
        let list = try #require(throws: DiagnosticList.self) { try Compiler().compile(decomposed: program) }
        #expect(list.diagnostics.contains { $0.code == .operatorNotAllowed })
    }
}
