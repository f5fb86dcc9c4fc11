import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct PlanMemoryTests {
    static func plan(_ text: String, sourceLocation: SourceLocation = #_sourceLocation) throws -> BundleProgram {
        let program = try Program(text: text)
        return try PlanOracle.compile(
            program, options: .init(noFuse: Set(FuseOps.fusions)), sourceLocation: sourceLocation
        ).bundle
    }

    /// Kernels of the first function in order.
    static func kernels(_ program: BundleProgram) -> [String] {
        program.functions[0].instructions.map { program.kernels[$0.kernel] }
    }

    static func view(_ value: BundleProgram.Value, _ names: [String] = ["n"]) -> String {
        guard case .view(let base, let strides, let offset) = value.storage else { return "\(value.storage)" }
        let text = strides.map { $0.description(symbolNames: names) }.joined(separator: ", ")
        return "view of \(base): strides [\(text)], offset \(offset.description(symbolNames: names))"
    }

    @Test func turnsViewsIntoStridesAndAnOffset() throws {
        let program = try Self.plan(
            """
            symbol n 1...4
            func "main" {
                input %0 "x": float32[n, 24]
                %1: float32[n, 3, 8] = view.reshape(a=%0, shape={n, 3, 8})
                %2: float32[3, n, 8] = view.permute(a=%1, dims={1, 0, 2})
                %3: float32[n, 8] = view.select(a=%2, dim=0, index=2)
                %4: float32[n, 3] = view.slice(a=%3, dim=1, start=1, end=7, step=2)
                %5: float32[n, 3] = neg(a=%4)
                output %5 "y"
            }
            """)
        let function = program.functions[0]
        #expect(Self.kernels(program) == ["neg"])
        // Row i, column 2 * 8 + 1 + 2 * j of 24.
        let operand = try #require(function.instructions[0].operands[0])
        #expect(Self.view(function.values[operand]) == "view of 0: strides [24, 2], offset \(2 * 8 + 1)")
        // The result is the output itself.
        #expect(function.instructions[0].results == [function.outputs[0].value])
        #expect(function.values.count == 3)
    }

    @Test func composesViewsBackToTheWhole() throws {
        let program = try Self.plan(
            """
            func "main" {
                input %0 "x": float32[2, 3, 4]
                %1: float32[4, 3, 2] = view.permute(a=%0, dims={2, 1, 0})
                %2: float32[2, 3, 4] = view.permute(a=%1, dims={2, 1, 0})
                %3: float32[24] = view.reshape(a=%2, shape={24})
                %4: float32[2, 3, 4] = view.reshape(a=%3, shape={2, 3, 4})
                %5: float32[2, 3, 4] = neg(a=%4)
                output %5 "y"
            }
            """)
        #expect(program.functions[0].instructions[0].operands == [0])
        #expect(program.functions[0].values.count == 2)
    }

    @Test func copiesBeforeAReshapeOfElementsInAnotherOrder() throws {
        let program = try Self.plan(
            """
            symbol n 1...4
            func "main" {
                input %0 "x": float32[n, 3, 8]
                %1: float32[3, n, 8] = view.permute(a=%0, dims={1, 0, 2})
                %2: float32[3*n, 8] = view.reshape(a=%1, shape={3*n, 8})
                %3: float32[3*n, 8] = neg(a=%2)
                output %3 "y"
            }
            """)
        #expect(Self.kernels(program) == ["copy", "neg"])
        // Scratch memory of the copy lives for its two instructions.
        #expect(program.functions[0].values.contains { $0.storage == .arena(first: 0, last: 1) })
    }

    @Test(arguments: [
        // A view splits and merges axes that lie row-major among themselves, whatever is around them.
        ("split a strided axis", "4, 6", "permute", "{1, 0}", "6, 2, 2", ["neg"]),
        ("merge across a permutation", "4, 6", "permute", "{1, 0}", "24", ["copy", "neg"]),
        ("insert axes of length one", "4, 6", "permute", "{1, 0}", "6, 1, 4, 1", ["neg"]),
    ])
    func reshapesWithoutCopyWhenItCan(
        _ claim: String, shape: String, view: String, dims: String, reshaped: String, kernels: [String]
    ) throws {
        let program = try Self.plan(
            """
            func "main" {
                input %0 "x": float32[\(shape)]
                %1: float32[6, 4] = view.\(view)(a=%0, dims=\(dims))
                %2: float32[\(reshaped)] = view.reshape(a=%1, shape={\(reshaped)})
                %3: float32[\(reshaped)] = neg(a=%2)
                output %3 "y"
            }
            """)
        #expect(Self.kernels(program) == kernels, "\(claim)")
    }

    @Test func copiesBeforeAReshapeOfAnExpandedAxis() throws {
        let program = try Self.plan(
            """
            func "main" {
                input %0 "x": float32[2, 1, 4]
                %1: float32[2, 3, 4] = view.expand(a=%0, shape={2, 3, 4})
                %2: float32[6, 4] = view.reshape(a=%1, shape={6, 4})
                %3: float32[6, 4] = neg(a=%2)
                output %3 "y"
            }
            """)
        #expect(Self.kernels(program) == ["copy", "neg"])
    }

    @Test func computesIntoAReshapedOutput() throws {
        let program = try Self.plan(
            """
            func "main" {
                input %0 "x": float32[2, 12]
                %1: float32[2, 12] = neg(a=%0)
                %2: float32[2, 3, 4] = view.reshape(a=%1, shape={2, 3, 4})
                output %2 "y"
            }
            """)
        let function = program.functions[0]
        #expect(Self.kernels(program) == ["neg"])
        #expect(
            Self.view(function.values[function.instructions[0].results[0]]) == "view of 1: strides [12, 1], offset 0")
        #expect(function.values[1].storage == .output(0))
    }

    @Test func copiesOutputsThatAreSomethingElse() throws {
        let program = try Self.plan(
            """
            tensor "w" float32[4] weights "w"
            state "s" float32[4] buffer "s" splat 00000000
            func "main" {
                input %0 "x": float32[4]
                state %1 "s": float32[4] writtenBy "none"
                constant %2 "w": float32[4]
                %3: float32[4] = neg(a=%0)
                %4: float32[2] = view.slice(a=%3, dim=0, start=0, end=2, step=1)
                output %0 "input"
                output %1 "state"
                output %2 "weight"
                output %3 "fresh"
                output %3 "again"
                output %4 "part"
            }
            """)
        #expect(Self.kernels(program) == ["neg", "copy", "copy", "copy", "copy", "copy"])
    }

    @Test func producesACounterInTheState() throws {
        let program = try Self.plan(
            """
            tensor "one" float32[] inline 0000803f
            state "count" float32[4] buffer "count" splat 00000000
            func "main" {
                state %0 "count": float32[4] after %2 writtenBy "add"
                constant %1 "one": float32[]
                %2: float32[4] = add(a=%0, b=%1)
                output %2 "y"
            }
            """)
        let function = program.functions[0]
        #expect(Self.kernels(program) == ["add", "copy"])
        #expect(function.instructions[0].results == [function.states[0].value])
        #expect(function.instructions[0].operands[0] == function.states[0].value)
        #expect(function.states[0].copiedBytes == .zero)
    }

    @Test func marksTheWriteBackOfAValueComputedAnew() throws {
        let program = try Self.plan(
            """
            state "window" float32[8, 4] buffer "window" splat 00000000
            func "main" {
                input %0 "row": float32[1, 4]
                state %1 "window": float32[8, 4] after %3 writtenBy "copy"
                %2: float32[7, 4] = view.slice(a=%1, dim=0, start=1, end=8, step=1)
                %3: float32[8, 4] = cat(parts=[%2, %0], axis=0)
            }
            """)
        let function = program.functions[0]
        #expect(Self.kernels(program) == ["cat", "write"])
        #expect(function.instructions[1].ints == [.one])
        #expect(function.states[0].copiedBytes == SizeExpression(8 * 4 * 4))
    }

    @Test func writesAnInputIntoAStateWithoutCallingItACopy() throws {
        let program = try Self.plan(
            """
            state "last" float32[4] buffer "last" splat 00000000
            func "main" {
                input %0 "x": float32[4]
                state %1 "last": float32[4] after %0 writtenBy "copy"
            }
            """)
        #expect(Self.kernels(program) == ["write"])
        #expect(program.functions[0].instructions[0].ints == [.zero])
    }

    @Test func keepsAnIndexedWriteInPlaceOnOneView() throws {
        let program = try Self.plan(RecoverStateWritesTests.stackedWrites(2))
        let function = program.functions[0]
        let writes = function.instructions.filter { program.kernels[$0.kernel] == "index_copy" }
        #expect(writes.count == 2)
        #expect(writes.allSatisfy { $0.operands[0] == $0.results[0] })
        // Layer 1 starts 8 * 4 elements into the state.
        #expect(Self.view(function.values[writes[1].results[0]]) == "view of 3: strides [4, 1], offset \(8 * 4)")
    }

    @Test func readsASymbolFromTheFirstAxisThatIsIt() throws {
        let program = try Self.plan(
            """
            symbol batch 1...4
            symbol n 1...4
            func "main" {
                input %0 "x": float32[2*n, 4]
                input %1 "y": float32[4, batch, n]
                %2: float32[2*n, 4] = neg(a=%0)
                %3: float32[4, batch, n] = neg(a=%1)
                output %2 "a"
                output %3 "b"
            }
            """)
        #expect(
            program.functions[0].symbolSources == [
                .init(symbol: 0, input: 1, axis: 1), .init(symbol: 1, input: 1, axis: 2),
            ])
    }

    @Test func refusesASymbolThatNoInputDetermines() throws {
        let program = try Program(
            text: """
                symbol n 1...4
                symbol m 1...4
                func "main" {
                    input %0 "x": float32[2*n, m]
                    %1: float32[2*n, m] = neg(a=%0)
                    output %1 "y"
                }
                """)
        let list = try #require(throws: DiagnosticList.self) { try Compiler().compile(decomposed: program) }
        let text = ExactTexts.text(list.diagnostics)
        #expect(text == ExactTexts.expected("Compiler", "symbol that no input determines", actual: text))
    }

    @Test func refusesAnOperatorWithoutKernel() throws {
        var program = try Program(
            text: """
                source "layers.0 (model.py:12)"
                func "main" {
                    input %0 "x": float32[4]
                    %1: float32[4] = neg(a=%0) @0
                    output %1 "y"
                }
                """)
        program.functions[0].nodes[0].op = "teleport"
        var report = CompilationReport()
        let diagnostic = try #require(throws: Diagnostic.self) { try PlanMemory().plan(program, report: &report) }
        #expect(diagnostic.code == .unsupportedPlan)
        #expect(diagnostic.message == "no kernel implements `teleport`")
        #expect(diagnostic.location == "function `main`, layers.0 (model.py:12)")
        let text = ExactTexts.text([diagnostic])
        #expect(text == ExactTexts.expected("Compiler", "operator without a kernel", actual: text))
    }

    @Test func refusesAReshapeThatItCannotProve() throws {
        // No rule would let it pass; a plan does not rely on that.
        let program = try Program(
            text: """
                func "main" {
                    input %0 "x": float32[4]
                    %1: float32[5] = view.reshape(a=%0, shape={5})
                    %2: float32[5] = neg(a=%1)
                    output %2 "y"
                }
                """)
        var report = CompilationReport()
        let diagnostic = try #require(throws: Diagnostic.self) { try PlanMemory().plan(program, report: &report) }
        let text = ExactTexts.text([diagnostic])
        #expect(text == ExactTexts.expected("Compiler", "reshape that cannot be proved", actual: text))
    }

    @Test func refusesWeightsThatNoFileHolds() throws {
        let shape = "[1099511627776, 1048576]"
        let names = ["a", "b", "c"]
        let tensors = names.map { "tensor \"\($0)\" float32\(shape) weights \"\($0)\"\n" }.joined()
        let constants = names.enumerated().map { "constant %\($0) \"\($1)\": float32\(shape)\n" }.joined()
        let outputs = (0..<3).map { "output %\(3 + $0) \"o\($0)\"\n" }.joined()
        let nodes = (0..<3).map {
            "%\(3 + $0): float32[] = view.select(a=%\(6 + $0), dim=0, index=0)\n"
        }
        let rows = (0..<3).map { "%\(6 + $0): float32[1048576] = view.select(a=%\($0), dim=0, index=0)\n" }
        let program = try Program(
            text: tensors + "func \"main\" {\n" + constants + rows.joined() + nodes.joined() + outputs + "}")
        let diagnostic = try #require(throws: Diagnostic.self) { try Compiler().compile(decomposed: program) }
        let text = ExactTexts.text([diagnostic])
        #expect(text == ExactTexts.expected("Compiler", "weights that no file holds", actual: text))
    }

    @Test func refusesASizeBeyondInt64() throws {
        let huge = "1000000000000, 1000000000000"
        let program = try Program(
            text: """
                func "main" {
                    input %0 "x": float32[\(huge)]
                    %1: float32[\(huge)] = neg(a=%0)
                    output %1 "y"
                }
                """)
        let diagnostic = try #require(throws: Diagnostic.self) { try Compiler().compile(decomposed: program) }
        #expect(diagnostic.code == .unsupportedPlan)
        #expect(diagnostic.message == "a size of the program is too large or too complex to plan")
        #expect(diagnostic.found == "overflow")
    }

    @Test func figuresReuseScratchMemoryThatIsDead() throws {
        let program = try Self.plan(
            """
            symbol n 1...64
            state "s" float32[n, 16] buffer "s" splat 00000000
            func "main" {
                input %0 "x": float32[n, 16]
                state %9 "s": float32[n, 16] writtenBy "none"
                %1: float32[n, 16] = neg(a=%0)
                %2: float32[n, 16] = exp(a=%1)
                %3: float32[n, 16] = neg(a=%2)
                %4: float32[n, 16] = exp(a=%3)
                %5: float32[n, 16] = neg(a=%4)
                output %5 "y"
            }
            """)
        let figures = try MemoryFigures(of: program, symbols: [10])
        // Two of the four values are alive at once.
        #expect(figures.arena == ["main": 2 * 10 * 16 * 4])
        #expect(figures.statesPerSequence == 10 * 16 * 4)
        #expect(figures.weights == 0)
    }
}
