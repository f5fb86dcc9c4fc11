import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct PackWeightsTests {
    static func compile(_ text: String) throws -> CompiledProgram { try PlanOracle.compile(Program(text: text)) }

    static func tensors(_ compiled: CompiledProgram) -> [String] {
        compiled.bundle.tensors.map { "\($0.name) \($0.layout) at \($0.offset), \($0.length) bytes" }
    }

    @Test func packsATiedMatrixOnceAsPanels() throws {
        let compiled = try Self.compile(
            """
            tensor "unused" float32[3] weights "unused"
            tensor "embed" float32[20, 8] weights "embed" aliases "lm_head"
            tensor "bias" float32[20] weights "bias"
            func "main" {
                input %0 "ids": int64[3]
                constant %1 "embed": float32[20, 8]
                constant %2 "bias": float32[20]
                %3: float32[3, 8] = embedding(weight=%1, index=%0)
                %4: float32[3, 20] = linear(a=%3, weight=%1, bias=%2)
                output %4 "y"
            }
            """)
        // 20 rows are padded to 32.
        #expect(
            Self.tensors(compiled) == [
                "embed panel16 at 0, \(32 * 8 * 4) bytes", "bias rowMajor at \(32 * 8 * 4), \(20 * 4) bytes",
            ])
        #expect(compiled.recipes.map(\.source) == [1, 2])
        #expect(compiled.report.counters["PackWeights"] == ["panel16": 1, "row-major": 1, "unused": 1])
    }

    @Test func keepsAMatrixRowMajorWhenAnotherKernelReadsIt() throws {
        let compiled = try Self.compile(
            """
            tensor "w" float32[8, 8] weights "w"
            func "main" {
                input %0 "x": float32[3, 8]
                constant %1 "w": float32[8, 8]
                %2: float32[3, 8] = matmul(a=%0, b=%1)
                output %2 "y"
            }
            """)
        #expect(Self.tensors(compiled) == ["w rowMajor at 0, 256 bytes"])
    }

    @Test func keepsBothLayoutsOfAMatrixThatIsReadInBothWays() throws {
        let compiled = try Self.compile(
            """
            tensor "w" float32[8, 8] weights "w"
            func "main" {
                input %0 "x": float32[3, 8]
                constant %1 "w": float32[8, 8]
                %2: float32[8, 8] = view.permute(a=%1, dims={1, 0})
                %3: float32[3, 8] = matmul(a=%0, b=%2)
                %4: float32[3, 8] = linear(a=%3, weight=%1, bias=none)
                %5: float32[3, 8] = matmul(a=%4, b=%1)
                output %5 "y"
            }
            """)
        #expect(
            Self.tensors(compiled) == [
                "w (row-major) rowMajor at 0, 256 bytes", "w panel16 at 256, \(16 * 8 * 4) bytes",
            ])
    }

    @Test func keepsAWeightThatIsAPartOfATensorRowMajor() throws {
        let compiled = try Self.compile(
            """
            tensor "qkv" float32[24, 8] weights "qkv"
            func "main" {
                input %0 "x": float32[3, 8]
                constant %1 "qkv": float32[24, 8]
                %2: float32[8, 8] = view.slice(a=%1, dim=0, start=8, end=16, step=1)
                %3: float32[3, 8] = linear(a=%0, weight=%2, bias=none)
                output %3 "y"
            }
            """)
        #expect(Self.tensors(compiled) == ["qkv rowMajor at 0, \(24 * 8 * 4) bytes"])
    }

    @Test func keepsInitialValuesRowMajor() throws {
        let compiled = try Self.compile(
            """
            tensor "w" float32[8, 8] weights "w"
            tensor "start" float32[8, 8] weights "start"
            state "s" float32[8, 8] buffer "s" tensor 1 sha256 \(String(repeating: "5a", count: 32))
            func "main" {
                input %0 "x": float32[3, 8]
                state %1 "s": float32[8, 8] writtenBy "none"
                constant %2 "w": float32[8, 8]
                %3: float32[3, 8] = linear(a=%0, weight=%2, bias=none)
                output %3 "y"
                output %1 "now"
            }
            """)
        #expect(compiled.bundle.tensors.map(\.layout) == [.panel16, .rowMajor])
        #expect(compiled.bundle.states[0].initialValue == .tensor(1))
        #expect(compiled.bundle.states[0].initialDigest == Array(repeating: 0x5a, count: 32))
    }

    @Test(arguments: [(1, 1), (16, 3), (17, 5), (300_000, 8)])
    func streamsPanelsThatHoldTheMatrix(rows: Int, columns: Int) throws {
        let values = (0..<rows * columns).map { Float($0) }
        let tensor = BundleProgram.Tensor(
            name: "w", scalarType: .float32, shape: [rows, columns], layout: .panel16, offset: 0, length: 0)
        var packed: [UInt8] = []
        var pieces = 0
        try values.withUnsafeBytes { bytes in
            try PackWeights.stream(tensor, from: bytes) { piece in
                packed.append(contentsOf: piece)
                pieces += 1
                #expect(piece.count <= 4 << 20)
            }
        }
        let padded = (rows + 15) / 16 * 16
        #expect(packed.count == padded * columns * 4)
        #expect(pieces == (rows * columns * 4 + (4 << 20) - 1) / (4 << 20))
        packed.withUnsafeBytes { bytes in
            let panels = bytes.bindMemory(to: Float.self)
            var wrong = 0
            for row in 0..<padded {
                for column in 0..<columns {
                    let found = panels[(row / 16 * columns + column) * 16 + row % 16]
                    if found != (row < rows ? Float(row * columns + column) : 0) { wrong += 1 }
                }
            }
            #expect(wrong == 0)
        }
    }

    @Test func refusesATensorOfAnotherLength() throws {
        let tensor = BundleProgram.Tensor(
            name: "w", scalarType: .float32, shape: [4], layout: .rowMajor, offset: 0, length: 16)
        let diagnostic = try #require(throws: Diagnostic.self) {
            try [UInt8](repeating: 0, count: 12).withUnsafeBytes { try PackWeights.stream(tensor, from: $0) { _ in } }
        }
        #expect(diagnostic.code == .internalError)
        #expect(
            diagnostic.description == """
                error[E0799]: this tool contradicts itself
                  found:    stored tensor `w` has 12 bytes, its shape says 16
                  hint:     report it with the command line and the file
                """)
    }
}
