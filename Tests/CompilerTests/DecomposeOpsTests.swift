import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct DecomposeOpsTests {
    /// Before and after, one function body each, without what the header says.
    struct Case: Sendable, CustomTestStringConvertible {
        var id: String
        /// Types of the inputs %0, %1, …
        var inputs: [String]
        /// Result type, then the node.
        var result: String
        var node: String
        /// Nodes afterwards, with constants by the text of their value.
        var after: [String]
        var output = true

        init(_ id: String, _ inputs: [String], _ result: String, _ node: String, _ after: [String]) {
            (self.id, self.inputs, self.result, self.node, self.after) = (id, inputs, result, node, after)
        }

        var testDescription: String { id }
    }

    static let header = "symbol q 1...16\nsymbol s 0...16\nsource \"layer (model.py:3)\"\n"

    static func before(_ inputs: [String], _ result: String, _ node: String) throws -> Program {
        var text = header + "func \"main\" {\n"
        for (index, type) in inputs.enumerated() { text += "input %\(index) \"i\(index)\": \(type)\n" }
        text += "%\(inputs.count): \(result) = \(node) @0\noutput %\(inputs.count) \"o\"\n}"
        return try Program(text: text)
    }

    /// The nodes of `main` and its output, with each constant written as its value in angle brackets.
    static func nodes(_ program: Program) -> [String] {
        let function = program.functions[0]
        var lines = program.text().split(separator: "\n").map {
            String($0.drop(while: { $0 == " " })).replacing(" @0", with: "")
        }
        lines = lines.filter { $0.hasPrefix("%") || $0.hasPrefix("output") }
        for constant in function.constants.reversed() {
            let name = program.tensors[constant.tensor].name
            for end in [",", ")", "]", " "] {
                lines = lines.map { $0.replacing("%\(constant.value.index)\(end)", with: "<\(name)>\(end)") }
            }
        }
        return lines.map { $0.replacing(" \"o\"", with: "") }
    }

    static let cases: [Case] = [
        // Promotion and numbers.
        .init(
            "adds an integer tensor to a float one", ["float32[q, 4]", "int64[4]"], "float32[q, 4]",
            "aten.add.Tensor(self=%0, other=%1, alpha=2)",
            [
                "%3: float32[4] = copy(a=%1)", "%4: float32[4] = mul(a=%3, b=<float32 2.0>)",
                "%5: float32[q, 4] = add(a=%0, b=%4)", "output %5",
            ]),
        .init(
            "subtracts from a number", ["float32[q]"], "float32[q]", "aten.rsub.Scalar(self=%0, other=1, alpha=1)",
            ["%2: float32[q] = sub(a=<float32 1.0>, b=%0)", "output %2"]),
        .init(
            "divides integers as floating point", ["int64[q]"], "float32[q]", "aten.div.Scalar(self=%0, other=2)",
            ["%2: float32[q] = copy(a=%0)", "%3: float32[q] = div(a=%2, b=<float32 2.0>)", "output %3"]),
        .init(
            "compares an integer with a fraction", ["int64[q]"], "bool[q]", "aten.lt.Scalar(self=%0, other=1.5)",
            ["%2: float32[q] = copy(a=%0)", "%3: bool[q] = lt(a=%2, b=<float32 1.5>)", "output %3"]),
        .init(
            "keeps an integer comparison in integers", ["int64[q]"], "bool[q]", "aten.ge.Scalar(self=%0, other=3)",
            ["%2: bool[q] = ge(a=%0, b=<int64 3>)", "output %2"]),
        .init(
            "adds bools as or", ["bool[q]", "bool[q]"], "bool[q]", "aten.add.Tensor(self=%0, other=%1, alpha=1)",
            ["%2: bool[q] = bitwise_or(a=%0, b=%1)", "output %2"]),
        .init(
            "reads numbers as truth values", ["float32[q]", "int64[q]"], "bool[q]",
            "aten.logical_and.default(self=%0, other=%1)",
            [
                "%2: bool[q] = copy(a=%0)", "%3: bool[q] = copy(a=%1)", "%4: bool[q] = bitwise_and(a=%2, b=%3)",
                "output %4",
            ]),
        .init(
            "negates bools logically", ["bool[q]"], "bool[q]", "aten.bitwise_not.default(self=%0)",
            ["%1: bool[q] = logical_not(a=%0)", "output %1"]),
        .init(
            "makes a number of a size", ["int64[q]"], "int64[q]", "aten.add.Tensor(self=%0, other=q, alpha=1)",
            [
                "%3: int64[q + 1] = arange(start=<int64 0>, step=<int64 1>)",
                "%4: int64[] = view.select(a=%3, dim=0, index=q)", "%5: int64[q] = add(a=%0, b=%4)", "output %5",
            ]),
        // Powers.
        .init(
            "squares", ["float32[q]"], "float32[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=2)",
            ["%1: float32[q] = mul(a=%0, b=%0)", "output %1"]),
        .init(
            "takes roots", ["float32[q]"], "float32[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=0.5)",
            ["%1: float32[q] = sqrt(a=%0)", "output %1"]),
        .init(
            "takes inverse roots", ["float32[q]"], "float32[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=-0.5)",
            ["%1: float32[q] = rsqrt(a=%0)", "output %1"]),
        .init(
            "inverts", ["float32[q]"], "float32[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=-1)",
            ["%1: float32[q] = reciprocal(a=%0)", "output %1"]),
        .init(
            "leaves the first power", ["float32[q]"], "float32[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=1)",
            ["output %0"]),
        .init(
            "raises to other powers by kernel", ["float32[q]"], "float32[q]",
            "aten.pow.Tensor_Scalar(self=%0, exponent=3)",
            ["%2: float32[q] = pow(a=%0, b=<float32 3.0>)", "output %2"]),
        .init(
            "multiplies out integer powers", ["int64[q]"], "int64[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=3)",
            ["%1: int64[q] = mul(a=%0, b=%0)", "%2: int64[q] = mul(a=%1, b=%0)", "output %2"]),
        .init(
            "raises integers to zero", ["int64[q]"], "int64[q]", "aten.pow.Tensor_Scalar(self=%0, exponent=0)",
            ["%2: int64[q] = fill(value=<int64 1>)", "output %2"]),
        // Choices.
        .init(
            "fills where a mask is true", ["float32[q, 4]", "bool[q, 1]"], "float32[q, 4]",
            "aten.masked_fill.Scalar(self=%0, mask=%1, value=-inf)",
            ["%3: float32[q, 4] = where(condition=%1, a=<float32 -inf>, b=%0)", "output %3"]),
        .init(
            "chooses between types", ["bool[q]", "float32[q]", "int64[]"], "float32[q]",
            "aten.where.self(condition=%0, self=%1, other=%2)",
            ["%3: float32[] = copy(a=%2)", "%4: float32[q] = where(condition=%0, a=%1, b=%3)", "output %4"]),
        .init(
            "clamps at one bound", ["float32[q]"], "float32[q]", "aten.clamp.default(self=%0, min=0, max=none)",
            ["%2: float32[q] = maximum(a=%0, b=<float32 0.0>)", "output %2"]),
        .init(
            "clamps at two", ["int64[q]"], "int64[q]", "aten.clamp.default(self=%0, min=1, max=4)",
            ["%3: int64[q] = maximum(a=%0, b=<int64 1>)", "%4: int64[q] = minimum(a=%3, b=<int64 4>)", "output %4"]),
        .init(
            "tells the two gelus apart", ["float32[q]"], "float32[q]",
            "aten.gelu.default(self=%0, approximate=\"tanh\")",
            ["%1: float32[q] = gelu_tanh(a=%0)", "output %1"]),
        // Views.
        .init(
            "clamps an open slice", ["float32[16, 4]"], "float32[q, 4]",
            "aten.slice.Tensor(self=%0, dim=-2, start=none, end=q, step=1)",
            ["%1: float32[q, 4] = view.slice(a=%0, dim=0, start=0, end=q, step=1)", "output %1"]),
        .init(
            "drops a slice of everything", ["float32[q]"], "float32[q]",
            "aten.slice.Tensor(self=%0, dim=0, start=0, end=9223372036854775807, step=1)", ["output %0"]),
        .init(
            "counts an index from the end", ["float32[q, 4]"], "float32[4]",
            "aten.select.int(self=%0, dim=0, index=-1)",
            ["%1: float32[4] = view.select(a=%0, dim=0, index=q - 1)", "output %1"]),
        .init(
            "squeezes nothing but ones", ["float32[q, 4]"], "float32[q, 4]", "aten.squeeze.dims(self=%0, dim={0, 1})",
            ["output %0"]),
        .init(
            "expands kept sizes", ["float32[q, 1]"], "float32[3, q, 4]",
            "aten.expand.default(self=%0, size={3, -1, 4}, implicit=false)",
            ["%1: float32[3, q, 4] = view.expand(a=%0, shape={3, q, 4})", "output %1"]),
        .init(
            "repeats by expanding", ["float32[q, 4]"], "float32[2*q, 4]",
            "aten.repeat.default(self=%0, repeats={2, 1})",
            [
                "%1: float32[1, q, 4] = view.reshape(a=%0, shape={1, q, 4})",
                "%2: float32[2, q, 4] = view.expand(a=%1, shape={2, q, 4})",
                "%3: float32[2*q, 4] = view.reshape(a=%2, shape={2*q, 4})", "output %3",
            ]),
        .init(
            "copies into the shape and type of the target", ["float32[q, 4]", "int64[4]"], "float32[q, 4]",
            "aten.copy.default(self=%0, src=%1, non_blocking=false)",
            ["%2: int64[q, 4] = view.expand(a=%1, shape={q, 4})", "%3: float32[q, 4] = copy(a=%2)", "output %3"]),
        // Factories.
        .init(
            "fills", [], "float32[q]", "aten.full.default(size={q}, fill_value=3, dtype=float32)",
            ["%1: float32[q] = fill(value=<float32 3.0>)", "output %1"]),
        .init(
            "counts up to a symbol", [], "int64[q]", "aten.arange.start_step(start=0, end=q, step=1, dtype=none)",
            ["%2: int64[q] = arange(start=<int64 0>, step=<int64 1>)", "output %2"]),
        .init(
            "joins without empty parts", ["float32[q, 4]", "float32[0]", "int64[q, 4]"], "float32[2*q, 4]",
            "aten.cat.default(tensors=[%0, %1, %2], dim=-2)",
            ["%3: float32[q, 4] = copy(a=%2)", "%4: float32[2*q, 4] = cat(parts=[%0, %3], axis=0)", "output %4"]),
        // Reductions.
        .init(
            "sums bools as integers over all axes", ["bool[q, 4]"], "int64[]",
            "aten.sum.dim_IntList(self=%0, dim={}, keepdim=false, dtype=none)",
            ["%1: int64[q, 4] = copy(a=%0)", "%2: int64[] = sum(a=%1, axes_mask=3, keep=0)", "output %2"]),
        .init(
            "means over a negative axis", ["float32[q, 4]"], "float32[q, 1]",
            "aten.mean.dim(self=%0, dim={-1}, keepdim=true, dtype=none)",
            ["%1: float32[q, 1] = mean(a=%0, axes_mask=2, keep=1)", "output %1"]),
        .init(
            "finds any in numbers", ["float32[q, 4]"], "bool[4]", "aten.any.dim(self=%0, dim=0, keepdim=false)",
            ["%1: bool[q, 4] = copy(a=%0)", "%2: bool[4] = any(a=%1, axes_mask=1, keep=0)", "output %2"]),
        .init(
            "flattens for argmax over everything", ["float32[q, 4]"], "int64[1, 1]",
            "aten.argmax.default(self=%0, dim=none, keepdim=true)",
            [
                "%1: float32[4*q] = view.reshape(a=%0, shape={4*q})", "%2: int64[] = argmax(a=%1, axis=0, keep=0)",
                "%3: int64[1, 1] = view.reshape(a=%2, shape={1, 1})", "output %3",
            ]),
        .init(
            "takes the type's epsilon for rms_norm", ["float32[q, 4]"], "float32[q, 4]",
            "aten.rms_norm.default(input=%0, normalized_shape={4}, weight=none, eps=none)",
            ["%1: float32[q, 4] = rms_norm(a=%0, weight=none, axes=1, epsilon=1.1920928955078125e-07)", "output %1"]),
        .init(
            "softens along a negative axis", ["float32[q, 4]"], "float32[q, 4]",
            "aten._softmax.default(self=%0, dim=-1, half_to_float=false)",
            ["%1: float32[q, 4] = softmax(a=%0, axis=1)", "output %1"]),
        // Products.
        .init(
            "multiplies a matrix with a vector", ["float32[q, 4]", "float32[4]"], "float32[q]",
            "aten.matmul.default(self=%0, other=%1)",
            [
                "%2: float32[4, 1] = view.reshape(a=%1, shape={4, 1})", "%3: float32[q, 1] = matmul(a=%0, b=%2)",
                "%4: float32[q] = view.reshape(a=%3, shape={q})", "output %4",
            ]),
        .init(
            "broadcasts batches", ["float32[2, q, 4]", "float32[4, 5]"], "float32[2, q, 5]",
            "aten.matmul.default(self=%0, other=%1)",
            [
                "%2: float32[2, 4, 5] = view.expand(a=%1, shape={2, 4, 5})",
                "%3: float32[2, q, 5] = matmul(a=%0, b=%2)",
                "output %3",
            ]),
        .init(
            "scales a product and its addend", ["float32[5]", "float32[q, 4]", "float32[4, 5]"], "float32[q, 5]",
            "aten.addmm.default(self=%0, mat1=%1, mat2=%2, beta=2, alpha=0.5)",
            [
                "%5: float32[q, 5] = matmul(a=%1, b=%2)", "%6: float32[q, 5] = mul(a=%5, b=<float32 0.5>)",
                "%7: float32[5] = mul(a=%0, b=<float32 2.0>)", "%8: float32[q, 5] = add(a=%6, b=%7)", "output %8",
            ]),
        .init(
            "does not read an addend times zero", ["float32[5]", "float32[q, 4]", "float32[4, 5]"], "float32[q, 5]",
            "aten.addmm.default(self=%0, mat1=%1, mat2=%2, beta=0, alpha=1)",
            ["%3: float32[q, 5] = matmul(a=%1, b=%2)", "output %3"]),
        .init(
            "gives attention four axes and groups", ["float32[8, q, 4]", "float32[2, s, 4]", "bool[q, s]"],
            "float32[8, q, 4]",
            "aten.scaled_dot_product_attention.default(query=%0, key=%1, value=%1, attn_mask=%2, dropout_p=0.0, is_causal=false, scale=none, enable_gqa=true)",
            [
                "%3: float32[1, 8, q, 4] = view.reshape(a=%0, shape={1, 8, q, 4})",
                "%4: float32[1, 2, s, 4] = view.reshape(a=%1, shape={1, 2, s, 4})",
                "%5: float32[1, 2, s, 4] = view.reshape(a=%1, shape={1, 2, s, 4})",
                "%6: float32[1, 8, q, 4] = sdpa(query=%3, key=%4, value=%5, mask=%2, causal=0, groups=4, scale=0.5)",
                "%7: float32[8, q, 4] = view.reshape(a=%6, shape={8, q, 4})", "output %7",
            ]),
        // Reads and writes at indices.
        .init(
            "brings an indexed axis to the front and back", ["float32[5, 6, 7]", "int64[q]"], "float32[5, q, 7]",
            "aten.index.Tensor(self=%0, indices=[none, %1])",
            [
                "%2: float32[6, 5, 7] = view.permute(a=%0, dims={1, 0, 2})",
                "%3: float32[q, 5, 7] = index(a=%2, indices=[%1])",
                "%4: float32[5, q, 7] = view.permute(a=%3, dims={1, 0, 2})", "output %4",
            ]),
        .init(
            "leaves scattered index axes in front", ["float32[5, 6, 7]", "int64[q]"], "float32[q, 6]",
            "aten.index.Tensor(self=%0, indices=[%1, none, %1])",
            [
                "%2: float32[5, 7, 6] = view.permute(a=%0, dims={0, 2, 1})",
                "%3: float32[q, 6] = index(a=%2, indices=[%1, %1])", "output %3",
            ]),
        .init(
            "writes rows behind other axes through a permutation", ["float32[5, 16, 4]", "int64[q]", "float32[4]"],
            "float32[5, 16, 4]", "aten.index_put.default(self=%0, indices=[none, %1], values=%2, accumulate=false)",
            [
                "%3: float32[5, q, 4] = view.expand(a=%2, shape={5, q, 4})",
                "%4: float32[q, 5, 4] = view.permute(a=%3, dims={1, 0, 2})",
                "%5: float32[16, 5, 4] = view.permute(a=%0, dims={1, 0, 2})",
                "%6: float32[16, 5, 4] = index_put(a=%5, source=%4, indices=[%1], accumulate=0)",
                "%7: float32[5, 16, 4] = view.permute(a=%6, dims={1, 0, 2})", "output %7",
            ]),
        .init(
            "writes at leading indices directly", ["float32[5, 6, 7]", "int64[q]", "float32[q, 7]"], "float32[5, 6, 7]",
            "aten.index_put.default(self=%0, indices=[%1, %1], values=%2, accumulate=true)",
            ["%3: float32[5, 6, 7] = index_put(a=%0, source=%2, indices=[%1, %1], accumulate=1)", "output %3"]),
        .init(
            "permutes for writes at two later indices", ["float32[5, 6, 7]", "int64[q]", "float32[5, q]"],
            "float32[5, 6, 7]", "aten.index_put.default(self=%0, indices=[none, %1, %1], values=%2, accumulate=false)",
            [
                "%3: float32[q, 5] = view.permute(a=%2, dims={1, 0})",
                "%4: float32[6, 7, 5] = view.permute(a=%0, dims={1, 2, 0})",
                "%5: float32[6, 7, 5] = index_put(a=%4, source=%3, indices=[%1, %1], accumulate=0)",
                "%6: float32[5, 6, 7] = view.permute(a=%5, dims={2, 0, 1})", "output %6",
            ]),
        .init(
            "normalises a slice that is written", ["float32[16, 4]", "float32[q, 4]"], "float32[16, 4]",
            "aten.slice_scatter.default(self=%0, src=%1, dim=-2, start=none, end=q, step=1)",
            ["%2: float32[16, 4] = scatter.slice(a=%0, source=%1, dim=0, start=0, end=q, step=1)", "output %2"]),
        .init(
            "normalises a row that is written", ["float32[16, 4]", "float32[4]"], "float32[16, 4]",
            "aten.select_scatter.default(self=%0, src=%1, dim=0, index=-1)",
            ["%2: float32[16, 4] = scatter.select(a=%0, source=%1, dim=0, index=15)", "output %2"]),
    ]

    @Test(arguments: cases)
    func lowers(_ row: Case) throws {
        var program = try Self.before(row.inputs, row.result, row.node)
        try Verifier.verify(program, stage: .imported)
        var report = CompilationReport()
        try DecomposeOps().run(on: &program, report: &report)
        try Verifier.verify(program, stage: .decomposed)
        #expect(Self.nodes(program) == row.after)
        #expect(program.functions[0].nodes.allSatisfy { $0.source == 0 })
    }

    @Test func splitsIntoSlices() throws {
        var program = try Program(
            text: Self.header + """
                func "main" {
                    input %0 "x": float32[q, 6]
                    %1: float32[q, 2], %2: float32[q, 4] = aten.split_with_sizes.default(self=%0, split_sizes={2, 4}, dim=-1)
                    output %2 "o"
                }
                """)
        var report = CompilationReport()
        try DecomposeOps().run(on: &program, report: &report)
        // Nobody reads the first part.
        #expect(
            Self.nodes(program)
                == ["%1: float32[q, 4] = view.slice(a=%0, dim=1, start=2, end=6, step=1)", "output %1"])
        #expect(report.counters["DecomposeOps"] == ["operators": 1, "core-operators": 1])
    }

    @Test func storesEachNumberOnce() throws {
        var program = try Program(
            text: """
                symbol q 1...16
                tensor "float32 2.0" float32[1] inline 00000040
                func "main" {
                    input %0 "x": float32[q]
                    constant %1 "float32 2.0": float32[1]
                    %2: float32[q] = aten.mul.Scalar(self=%0, other=2)
                    %3: float32[q] = aten.add.Scalar(self=%2, other=2.0, alpha=1)
                    %4: bool[q] = aten.eq.Scalar(self=%3, other=2)
                    output %4 "o"
                }
                """)
        var report = CompilationReport()
        try DecomposeOps().run(on: &program, report: &report)
        // A stored tensor of that name keeps it; the unused constant is gone.
        #expect(program.tensors.map(\.name) == ["float32 2.0", "float32 2.0'"])
        #expect(program.tensors[1].data == .inline([0, 0, 0, 0x40]))
        #expect(program.functions[0].constants.map(\.tensor) == [1])
    }

    @Test func makesAConstantOfANumberButNotOfAnOutput() throws {
        var inner = try Program(
            text: Self.header + """
                func "main" {
                    input %0 "x": float32[q]
                    %1: float32[] = aten.scalar_tensor.default(s=0.5, dtype=none)
                    %2: float32[q] = aten.mul.Tensor(self=%0, other=%1)
                    output %2 "o"
                }
                """)
        var report = CompilationReport()
        try DecomposeOps().run(on: &inner, report: &report)
        #expect(Self.nodes(inner) == ["%2: float32[q] = mul(a=%0, b=<float32 0.5>)", "output %2"])

        var outer = try Self.before([], "float32[]", "aten.scalar_tensor.default(s=0.5, dtype=none)")
        try DecomposeOps().run(on: &outer, report: &report)
        #expect(Self.nodes(outer) == ["%1: float32[] = fill(value=<float32 0.5>)", "output %1"])
    }

    // MARK: Refusals

    @Test func namesEveryUnsupportedOperatorAtOnce() throws {
        var program = try Program(
            text: """
                source "layers.0 (model.py:3)"
                source "layers.1 (model.py:3)"
                func "main" {
                    input %0 "x": float32[4]
                    %1: float32[4] = aten.mystery.default(self=%0) @0
                    %2: float32[4] = aten.mystery.default(self=%1) @1
                    %3: float32[4] = aten.fft_fft.default(self=%2) @1
                    %4: float32[4] = aten.mul.Tensor(self=%3, other=%0)
                    output %4 "o"
                }
                """)
        var report = CompilationReport()
        let found = diagnostics { try DecomposeOps().run(on: &program, report: &report) }
        #expect(found.map(\.code) == [.unknownOperator, .unknownOperator])
        #expect(
            found.map(\.message) == [
                "operator `aten.fft_fft.default` is not supported, used once",
                "operator `aten.mystery.default` is not supported, used 2 times",
            ])
        #expect(
            found.map(\.location) == [
                "function `main`, layers.1 (model.py:3)",
                "function `main`, layers.0 (model.py:3); function `main`, layers.1 (model.py:3)",
            ])
        #expect(found.allSatisfy { $0.code.exitCode == 4 && $0.hint != nil })
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("DecomposeOps", "unknown operators", actual: text))
    }

    struct Refusal: Sendable, CustomTestStringConvertible {
        var id: String
        var inputs: [String]
        var result: String
        var node: String
        var code: Diagnostic.Code
        var message: String
        var expected: String?
        var found: String?

        var testDescription: String { id }
    }

    static let refusals: [Refusal] = [
        .init(
            id: "half precision", inputs: ["float16[4]"], result: "float16[4]", node: "aten.exp.default(self=%0)",
            code: .unsupportedScalarType, message: "`aten.exp.default`: `exp` has no kernel for float16",
            expected: "float32", found: "float16"),
        .init(
            id: "number of a type without kernels", inputs: ["float64[4]"], result: "float64[4]",
            node: "aten.mul.Scalar(self=%0, other=0.1)", code: .unsupportedScalarType,
            message: "`aten.mul.Scalar`: no kernel computes with float64", expected: "float32, int32, int64, bool",
            found: "float64"),
        .init(
            id: "dropout", inputs: ["float32[1, 1, 4, 4]"], result: "float32[1, 1, 4, 4]",
            node:
                "aten.scaled_dot_product_attention.default(query=%0, key=%0, value=%0, attn_mask=none, dropout_p=0.1, is_causal=false, scale=none, enable_gqa=false)",
            code: .unsupportedArgument,
            message: "`aten.scaled_dot_product_attention.default`: attention with dropout is for training",
            expected: "dropout_p 0", found: "0.1"),
        .init(
            id: "five axes of attention", inputs: ["float32[1, 1, 1, 4, 4]"], result: "float32[1, 1, 1, 4, 4]",
            node:
                "aten.scaled_dot_product_attention.default(query=%0, key=%0, value=%0, attn_mask=none, dropout_p=0.0, is_causal=false, scale=none, enable_gqa=false)",
            code: .unsupportedArgument,
            message: "`aten.scaled_dot_product_attention.default`: attention needs at most four axes",
            expected: "batch, head, row, element", found: "float32[1, 1, 1, 4, 4]"),
        .init(
            id: "large integer power", inputs: ["int64[4]"], result: "int64[4]",
            node: "aten.pow.Tensor_Scalar(self=%0, exponent=9)", code: .unsupportedArgument,
            message: "`aten.pow.Tensor_Scalar`: an integer power needs a small exponent", expected: "0...8",
            found: "9.0"),
        .init(
            id: "number that does not fit", inputs: ["int32[4]"], result: "int32[4]",
            node: "aten.mul.Scalar(self=%0, other=4294967296)", code: .unsupportedArgument,
            message: "`aten.mul.Scalar`: a number does not fit int32", expected: "int32", found: "4294967296"),
        .init(
            id: "size of unknown sign as a number", inputs: ["int64[4]"], result: "int64[4]",
            node: "aten.mul.Scalar(self=%0, other=s - 2)", code: .unsupportedArgument,
            message: "`aten.mul.Scalar`: the sign of a size that is used as a number depends on a symbol",
            expected: nil, found: "s - 2"),
        .init(
            id: "index of a tensor without axes", inputs: ["float32[]", "int64[]"], result: "float32[]",
            node: "aten.index_select.default(self=%0, dim=0, index=%1)", code: .unsupportedArgument,
            message: "`aten.index_select.default`: a tensor without axes is indexed along one", expected: nil,
            found: "float32[]"),
        .init(
            id: "rows of unknown length", inputs: ["float32[1, 1, 4, s]"], result: "float32[1, 1, 4, s]",
            node:
                "aten.scaled_dot_product_attention.default(query=%0, key=%0, value=%0, attn_mask=none, dropout_p=0.0, is_causal=false, scale=none, enable_gqa=false)",
            code: .unsupportedArgument,
            message: "`aten.scaled_dot_product_attention.default`: the default scale needs rows of a fixed length",
            expected: nil, found: "[1, 1, 4, s]"),
        .init(
            id: "repeat of many axes", inputs: ["float32[2, 2, 2, 2, 2]"], result: "float32[4, 4, 4, 4, 4]",
            node: "aten.repeat.default(self=%0, repeats={2, 2, 2, 2, 2})", code: .unsupportedArgument,
            message: "`aten.repeat.default`: a repeat needs more than eight axes on the way", expected: nil,
            found: "10"),
        .init(
            id: "integer argmax", inputs: ["int64[4]"], result: "int64[]",
            node: "aten.argmax.default(self=%0, dim=0, keepdim=false)", code: .unsupportedScalarType,
            message: "`aten.argmax.default`: `argmax` has no kernel for int64", expected: "float32", found: "int64"),
    ]

    @Test(arguments: refusals)
    func refusesWhatNoKernelCovers(_ row: Refusal) throws {
        var program = try Self.before(row.inputs, row.result, row.node)
        try Verifier.verify(program, stage: .imported)
        var report = CompilationReport()
        let found = diagnostics { try DecomposeOps().run(on: &program, report: &report) }
        #expect(found.map(\.code) == [row.code])
        #expect(found.map(\.message) == [row.message])
        let text = ExactTexts.text(found)
        #expect(text == ExactTexts.expected("DecomposeOps", row.id, actual: text))
        #expect(found.first?.expected == row.expected)
        #expect(found.first?.found == row.found)
        #expect(found.first?.location == "function `main`, layer (model.py:3)")
        #expect(found.first?.code.exitCode == 4)
    }

    @Test func reportsOneCauseOnceHoweverOftenItOccurs() throws {
        var text = "func \"main\" {\ninput %0 \"x\": float16[4]\n"
        for index in 1...9 { text += "%\(index): float16[4] = aten.exp.default(self=%\(index - 1)) @\(index - 1)\n" }
        text = (0..<9).map { "source \"layers.\($0) (model.py:3)\"\n" }.joined() + text + "output %9 \"o\"\n}"
        var program = try Program(text: text)
        var report = CompilationReport()
        let found = diagnostics { try DecomposeOps().run(on: &program, report: &report) }
        #expect(found.count == 1)
        #expect(found.first?.location?.hasSuffix("layers.4 (model.py:3); and 4 more") == true)
    }
}
