import StatepackBundle
import StatepackCompiler
import StatepackIR
import Testing

/// `gated`, `shared-input` and `residual`: what is fused with linear layers.
@Suite struct FuseLinearTests {
    // MARK: Gates

    static func gated(
        activation: String = "silu", upInput: String = "%0", up: String = "float32[6, 4]",
        product: String = "mul(a=%5, b=%6)",
        extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        tensor "gate" float32[6, 4] weights "gate"
        tensor "up" \(up) weights "up"
        tensor "bias" float32[6] weights "bias"
        func "main" {
            input %0 "x": float32[n, 4]
            input %8 "z": float32[n, 4]
            constant %1 "gate": float32[6, 4]
            constant %2 "up": \(up)
            constant %3 "bias": float32[6]
            %4: float32[n, 6] = linear(a=%0, weight=%1, bias=%3)
            %5: float32[n, 6] = \(activation)(a=%4)
            %6: float32[n, 6] = linear(a=\(upInput), weight=%2, bias=none)
            %7: float32[n, 6] = \(product)
            output %7 "y"
            \(extraOutput)
        }
        """
    }

    @Test(arguments: [("silu", 0), ("gelu", 1), ("gelu_tanh", 2), ("sigmoid", 3), ("relu", 4)])
    func multipliesByAGateInOnePass(_ activation: String, _ number: Int) throws {
        for product in ["mul(a=%5, b=%6)", "mul(a=%6, b=%5)"] {
            let (body, counters) = try FuseOpsTests.fuse(Self.gated(activation: activation, product: product))
            #expect(counters["gated"] == 1)
            #expect(counters["shared-input"] == nil)
            #expect(
                body.contains(
                    "= linear_gated(a=%0, gate=%2, up=%3, gate_bias=%4, up_bias=none, activation=\(number))"))
        }
    }

    @Test(
        arguments: [
            (Self.gated(activation: "tanh"), "another activation"),
            (Self.gated(upInput: "%8"), "layers over different values"),
            (Self.gated(product: "add(a=%5, b=%6)"), "a sum"),
            (Self.gated(product: "mul(a=%5, b=%5)"), "a gate with itself"),
            (Self.gated(extraOutput: "output %4 \"gate\""), "a gate that something else uses"),
            (Self.gated(extraOutput: "output %5 \"activated\""), "an activation that something else uses"),
            (Self.gated(extraOutput: "output %6 \"up\""), "a factor that something else uses"),
        ])
    func keepsGates(_ text: String, _ claim: String) throws {
        let (body, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["gated"] == nil, "\(claim)")
        #expect(!body.contains("linear_gated"), "\(claim)")
    }

    @Test func leavesGatesAloneWhenDisabled() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.gated(), disabled: ["gated"])
        #expect(counters["gated"] == nil)
        #expect(body.contains("silu("))
    }

    @Test func packsBothWeightsOfAGate() throws {
        let compiled = try PlanOracle.compile(Program(text: Self.gated()))
        #expect(
            compiled.bundle.tensors.map { "\($0.name) \($0.layout)" } == [
                "gate panel16", "up panel16", "bias rowMajor",
            ])
    }

    @Test func keepsAStateThatIsComputedFromItselfInPlace() throws {
        // Point-wise products and sums are computed where the state lies; fused ones could not be.
        let text = """
            tensor "w" float32[4, 4] weights "w"
            state "s" float32[3, 4] buffer "s" splat 00000000
            func "main" {
                input %1 "x": float32[3, 4]
                state %0 "s": float32[3, 4] after %4 writtenBy "copy"
                constant %2 "w": float32[4, 4]
                %3: float32[3, 4] = linear(a=%1, weight=%2, bias=none)
                %4: float32[3, 4] = add(a=%0, b=%3)
            }
            """
        let (_, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["residual"] == nil)
        let updates = try PlanOracle.compile(Program(text: text)).report.stateUpdates
        #expect(updates.map(\.isInPlace) == [true])
    }

    // MARK: Residuals

    static func residual(
        sum: String = "add(a=%1, b=%4)", other: String = "float32[n, 6]", extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        tensor "w" float32[6, 4] weights "w"
        tensor "bias" float32[6] weights "bias"
        func "main" {
            input %0 "x": float32[n, 4]
            input %1 "residual": \(other)
            constant %2 "w": float32[6, 4]
            constant %3 "bias": float32[6]
            %4: float32[n, 6] = linear(a=%0, weight=%2, bias=%3)
            %5: float32[n, 6] = \(sum)
            output %5 "y"
            \(extraOutput)
        }
        """
    }

    @Test func addsAResidualInThePassThatComputesTheRest() throws {
        for sum in ["add(a=%1, b=%4)", "add(a=%4, b=%1)"] {
            let (body, counters) = try FuseOpsTests.fuse(Self.residual(sum: sum))
            #expect(counters["residual"] == 1)
            #expect(body.contains("%4: float32[n, 6] = linear_add(a=%0, weight=%2, residual=%1, bias=%3)"))
        }
    }

    @Test(
        arguments: [
            (Self.residual(other: "float32[6]"), "a sum that broadcasts"),
            (Self.residual(sum: "sub(a=%1, b=%4)"), "a difference"),
            (Self.residual(sum: "add(a=%4, b=%4)"), "a product that is doubled"),
            (Self.residual(extraOutput: "output %4 \"product\""), "a product that something else uses"),
        ])
    func keepsSums(_ text: String, _ claim: String) throws {
        let (body, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["residual"] == nil, "\(claim)")
        #expect(!body.contains("linear_add"), "\(claim)")
    }

    @Test func leavesResidualsAloneWhenDisabled() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.residual(), disabled: ["residual"])
        #expect(counters["residual"] == nil)
        #expect(body.contains("add(a=%"))
    }

    @Test func readsAStateBeforeItIsWrittenAndNotWithTheSum() throws {
        // The layer reads the state before the write, the sum needs what is read after it: as one they would have
        // to copy the state.
        let text = """
            tensor "w" float32[4, 4] weights "w"
            state "s" float32[3, 4] buffer "s" splat 00000000
            func "main" {
                input %1 "rows": float32[1, 4]
                input %6 "at": int64[1]
                state %0 "s": float32[3, 4] after %4 writtenBy "index_copy"
                constant %2 "w": float32[4, 4]
                %3: float32[3, 4] = linear(a=%0, weight=%2, bias=none)
                %4: float32[3, 4] = index_copy(a=%0, index=%6, source=%1, axis=0)
                %7: float32[3, 4] = neg(a=%4)
                %5: float32[3, 4] = add(a=%7, b=%3)
                output %5 "y"
            }
            """
        let (_, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["residual"] == nil)
        let updates = try PlanOracle.compile(Program(text: text)).report.stateUpdates
        #expect(updates.map(\.isInPlace) == [true])
    }

    // MARK: Shared inputs

    static func shared(
        second: String = "%0", bias: String = "none", keysWeight: String = "%2",
        view: String = "view.reshape(a=%5, shape={n, 3, 2})", viewed: String = "float32[n, 3, 2]",
        extraNode: String = "",
        extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        tensor "q" float32[6, 4] weights "q"
        tensor "k" float32[3, 4] weights "k"
        tensor "bias" float32[3] weights "bias"
        func "main" {
            input %0 "x": float32[n, 4]
            input %8 "z": float32[n, 4]
            input %9 "w": float32[3, 4]
            constant %1 "q": float32[6, 4]
            constant %2 "k": float32[3, 4]
            constant %3 "bias": float32[3]
            %5: float32[n, 6] = linear(a=%0, weight=%1, bias=none)
            %6: \(viewed) = \(view)
            %7: float32[n, 3] = linear(a=\(second), weight=\(keysWeight), bias=\(bias))
            %10: \(viewed) = neg(a=%6)
            %11: float32[n, 3] = neg(a=%7)
            output %10 "queries"
            output %11 "keys"
            \(extraNode)
            \(extraOutput)
        }
        """
    }

    @Test func computesLayersOverOneValueInOnePass() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.shared())
        #expect(counters["shared-input"] == 1)
        #expect(
            body.contains(
                """
                    %6: float32[n, 9] = linear_parts(a=%0, weights=[%3, %4], biases=0)
                    %7: float32[n, 6] = view.slice(a=%6, dim=1, start=0, end=6, step=1)
                    %8: float32[n, 3] = view.slice(a=%6, dim=1, start=6, end=9, step=1)
                """))
        let compiled = try PlanOracle.compile(Program(text: Self.shared()))
        // Each weight is stored once, under its own name.
        #expect(compiled.bundle.tensors.map { "\($0.name) \($0.layout)" } == ["q panel16", "k panel16"])
        #expect(compiled.report.counters["PlanMemory"]?["copied-reshapes"] == nil)
    }

    @Test func putsBiasesBehindTheWeights() throws {
        let text = Self.shared(bias: "%3").replacing(
            "tensor \"q\"", with: "tensor \"qbias\" float32[6] weights \"qbias\"\ntensor \"q\""
        )
        .replacing("constant %1", with: "constant %12 \"qbias\": float32[6]\n    constant %1")
        .replacing("weight=%1, bias=none", with: "weight=%1, bias=%12")
        let (body, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["shared-input"] == 1)
        #expect(body.contains("biases=1"))
    }

    @Test(
        arguments: [
            (Self.shared(second: "%8"), "layers over different values"),
            (Self.shared(bias: "%3"), "one layer with a bias and one without"),
            (Self.shared(keysWeight: "%9"), "a weight that is an input"),
            (Self.shared(extraOutput: "output %7 \"plain\""), "a result that is an output"),
            (
                Self.shared(view: "view.reshape(a=%5, shape={6*n})", viewed: "float32[6*n]"),
                "a reshape that would have to copy"
            ),
        ])
    func keepsLayersApart(_ text: String, _ claim: String) throws {
        let (body, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["shared-input"] == nil, "\(claim)")
        #expect(!body.contains("linear_parts"), "\(claim)")
    }

    @Test func leavesSharedInputsAloneWhenDisabled() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.shared(), disabled: ["shared-input"])
        #expect(counters["shared-input"] == nil)
        #expect(!body.contains("linear_parts"))
    }

    @Test func storesAMatrixOnceThatIsTheEmbeddingToo() throws {
        let compiled = try PlanOracle.compile(
            Program(
                text: """
                    tensor "embed" float32[20, 8] weights "embed"
                    tensor "w" float32[5, 8] weights "w"
                    func "main" {
                        input %0 "ids": int64[3]
                        constant %1 "embed": float32[20, 8]
                        constant %2 "w": float32[5, 8]
                        %3: float32[3, 8] = embedding(weight=%1, index=%0)
                        %4: float32[3, 20] = linear(a=%3, weight=%1, bias=none)
                        %5: float32[3, 5] = linear(a=%3, weight=%2, bias=none)
                        %6: float32[3, 20] = neg(a=%4)
                        %7: float32[3, 5] = neg(a=%5)
                        output %6 "y"
                        output %7 "z"
                    }
                    """))
        #expect(compiled.report.counters["FuseOps"]?["shared-input"] == 1)
        #expect(compiled.bundle.tensors.map { "\($0.name) \($0.layout)" } == ["embed panel16", "w panel16"])
    }

    @Test func takesSixteenLayersAtOnce() throws {
        let numbers = 0..<17
        let text = """
            func "main" {
                input %0 "x": float32[2, 4]
            \(numbers.map { "    constant %\($0 + 1) \"w\($0)\": float32[3, 4]" }.joined(separator: "\n"))
            \(numbers.map { "    %\($0 + 18): float32[2, 3] = linear(a=%0, weight=%\($0 + 1), bias=none)" }.joined(separator: "\n"))
            \(numbers.map { "    %\($0 + 35): float32[2, 3] = neg(a=%\($0 + 18))" }.joined(separator: "\n"))
            \(numbers.map { "    output %\($0 + 35) \"y\($0)\"" }.joined(separator: "\n"))
            }
            """
        let tensors = numbers.map { "tensor \"w\($0)\" float32[3, 4] weights \"w\($0)\"\n" }.joined()
        let (body, counters) = try FuseOpsTests.fuse(tensors + text)
        #expect(counters["shared-input"] == 1)
        #expect(body.contains("float32[2, 48] = linear_parts(") && body.contains("= linear("))
    }

    // MARK: Layouts

    /// Attention whose result goes back to one row per token.
    static func attention(dims: String = "{0, 2, 1, 3}", shape: String = "1, n, 24", extraOutput: String = "") -> String
    {
        """
        symbol n 1...4
        func "main" {
            input %0 "q": float32[1, 6, n, 4]
            input %1 "k": float32[1, 6, 8, 4]
            %2: float32[1, 6, n, 4] = sdpa(query=%0, key=%1, value=%1, mask=none, causal=0, groups=1, scale=0.5)
            %3: float32[1, n, 6, 4] = view.permute(a=%2, dims=\(dims))
            %4: float32[\(shape)] = view.reshape(a=%3, shape={\(shape)})
            %5: float32[\(shape)] = neg(a=%4)
            output %5 "y"
            \(extraOutput)
        }
        """
    }

    static func counters(_ text: String, noFuse: Set<String> = []) throws -> [String: Int] {
        let compiled = try PlanOracle.compile(Program(text: text), options: .init(noFuse: noFuse))
        return compiled.report.counters["PlanMemory"] ?? [:]
    }

    @Test func computesAttentionInTheOrderThatIsReadNext() throws {
        let counters = try Self.counters(Self.attention())
        #expect(counters["chosen-layouts"] == 1)
        #expect(counters["copied-reshapes"] == nil)
    }

    @Test func computesAnOutputThatIsAReshapeOfAttentionInPlace() throws {
        let counters = try Self.counters(Self.attention(extraOutput: "").replacing("output %5", with: "output %4"))
        #expect(counters["chosen-layouts"] == 1)
        #expect(counters["copied-outputs"] == nil)
    }

    @Test(
        arguments: [
            (Self.attention(extraOutput: "output %2 \"attention\""), "attention that is an output, too"),
            (Self.attention(extraOutput: "output %3 \"permuted\""), "a permutation that something else uses"),
            (Self.attention(shape: "1, n, 6, 2, 2"), "a reshape that takes no copy"),
        ])
    func keepsTheOrderOfAttention(_ text: String, _ claim: String) throws {
        #expect(try Self.counters(text)["chosen-layouts"] == nil, "\(claim)")
    }

    @Test func leavesLayoutsAloneWhenDisabled() throws {
        let counters = try Self.counters(Self.attention(), noFuse: ["output-layout"])
        #expect(counters["chosen-layouts"] == nil)
        #expect(counters["copied-reshapes"] == 1)
    }
}
