import StatepackBundle
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct RuleTests {
    /// What the verifier says about one node with operands of the given types.
    private static func findings(
        _ operands: [String], _ result: String, _ node: String, stage: Verifier.Stage = .imported
    ) throws -> [Diagnostic] {
        var text = "symbol q 1...16\nsymbol s 0...16\nfunc \"f\" {\n"
        for (index, type) in operands.enumerated() { text += "input %\(index) \"i\(index)\": \(type)\n" }
        let results = result.split(separator: ";").enumerated().map { "%\(operands.count + $0): \($1)" }
        text += "\(results.joined(separator: ", ")) = \(node)\n}"
        return Verifier.findings(in: try Program(text: text), stage: stage)
    }

    struct Fit: Sendable, CustomTestStringConvertible {
        var operands: [String]
        var result: String
        var node: String

        init(_ operands: [String], _ result: String, _ node: String) {
            (self.operands, self.result, self.node) = (operands, result, node)
        }

        var testDescription: String { "\(node) of \(operands)" }
    }

    static let fits: [Fit] = [
        // Promotion: tensors with axes, then 0-dimensional ones, then numbers; by category.
        .init(["float32[q]", "int64[q]"], "float32[q]", "aten.add.Tensor(self=%0, other=%1, alpha=1)"),
        .init(["int32[q]", "int64[]"], "int32[q]", "aten.add.Tensor(self=%0, other=%1, alpha=1)"),
        .init(["int32[q]", "float64[]"], "float64[q]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(["float32[q]", "float64[]"], "float32[q]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(["float16[q]"], "float16[q]", "aten.mul.Scalar(self=%0, other=0.5)"),
        .init(["int64[q]"], "float32[q]", "aten.mul.Scalar(self=%0, other=0.5)"),
        .init(["bool[q]"], "int64[q]", "aten.add.Scalar(self=%0, other=1, alpha=1)"),
        .init(["bool[q]"], "bool[q]", "aten.bitwise_and.Scalar(self=%0, other=true)"),
        .init(["uint8[q]", "int8[q]"], "int16[q]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(["float16[q]", "bfloat16[q]"], "float32[q]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(["int64[q]", "int64[q]"], "float32[q]", "aten.div.Tensor(self=%0, other=%1)"),
        .init(["int64[q]", "float32[q]"], "bool[q]", "aten.lt.Tensor(self=%0, other=%1)"),
        // Broadcasting with symbols.
        .init(["float32[q, 1]", "float32[4]"], "float32[q, 4]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(["float32[1]", "float32[2, q + 1]"], "float32[2, q + 1]", "aten.mul.Tensor(self=%0, other=%1)"),
        .init(
            ["bool[q, 1]", "float32[]", "float32[1, s]"], "float32[q, s]",
            "aten.where.self(condition=%0, self=%1, other=%2)"),
        // Views.
        .init(["float32[q, 4]"], "float32[4*q]", "aten.view.default(self=%0, size={-1})"),
        .init(["float32[4*q]"], "float32[q, 4]", "aten.view.default(self=%0, size={-1, 4})"),
        .init(["float32[q, 4]"], "float32[q, 2, 2]", "aten.reshape.default(self=%0, shape={q, 2, 2})"),
        .init(["float32[q, 4]"], "float32[4, q]", "aten.transpose.int(self=%0, dim0=-1, dim1=0)"),
        .init(["float32[q, 4]"], "float32[4, q]", "aten.t.default(self=%0)"),
        .init(["float32[q, 1]"], "float32[q]", "aten.squeeze.dim(self=%0, dim=-1)"),
        .init(["float32[q, 4]"], "float32[q, 4]", "aten.squeeze.dims(self=%0, dim={0, 1})"),
        .init(["float32[q]"], "float32[q, 1]", "aten.unsqueeze.default(self=%0, dim=-1)"),
        .init(["float32[q, 4]"], "float32[4]", "aten.select.int(self=%0, dim=0, index=-1)"),
        .init(["float32[2, 1]"], "float32[2, q]", "aten.expand.default(self=%0, size={-1, q}, implicit=false)"),
        .init(
            ["float32[q]"], "float32[q - 1]",
            "aten.slice.Tensor(self=%0, dim=0, start=1, end=9223372036854775807, step=1)"),
        .init(["float32[q]"], "float32[q - 1]", "aten.slice.Tensor(self=%0, dim=0, start=none, end=-1, step=1)"),
        .init(["float32[20]"], "float32[q]", "aten.slice.Tensor(self=%0, dim=0, start=0, end=q, step=1)"),
        .init(["float32[8]"], "float32[min(q, 8)]", "aten.slice.Tensor(self=%0, dim=0, start=0, end=q, step=1)"),
        .init(["float32[8]"], "float32[3]", "aten.slice.Tensor(self=%0, dim=0, start=-3, end=100, step=1)"),
        .init(["float32[8]"], "float32[0]", "aten.slice.Tensor(self=%0, dim=0, start=6, end=2, step=1)"),
        .init(["float32[7]"], "float32[3]", "aten.slice.Tensor(self=%0, dim=0, start=1, end=7, step=2)"),
        .init(
            ["float32[q, 6]"], "float32[q, 2];float32[q, 4]",
            "aten.split_with_sizes.default(self=%0, split_sizes={2, 4}, dim=1)"),
        .init(["float32[2, q, 3]"], "float32[2, 3*q]", "aten.flatten.using_ints(self=%0, start_dim=1, end_dim=-1)"),
        .init(["float32[]"], "float32[1]", "aten.flatten.using_ints(self=%0, start_dim=0, end_dim=-1)"),
        .init(["float32[q, 4]"], "float32[2, q, 12]", "aten.repeat.default(self=%0, repeats={2, 1, 3})"),
        // Reductions.
        .init(["bool[q, 4]"], "int64[]", "aten.sum.dim_IntList(self=%0, dim={}, keepdim=false, dtype=none)"),
        .init(["float32[q, 4]"], "float32[1, 4]", "aten.amax.default(self=%0, dim={0}, keepdim=true)"),
        .init(["float32[q, 4]"], "int64[]", "aten.argmax.default(self=%0, dim=none, keepdim=false)"),
        .init(["float32[]"], "float32[]", "aten.mean.dim(self=%0, dim={-1}, keepdim=false, dtype=none)"),
        .init(["int32[q]"], "int64[q]", "aten.cumsum.default(self=%0, dim=-1, dtype=none)"),
        // Products.
        .init(
            ["float32[2, q, 4]", "float32[6, 4]"], "float32[2, q, 6]",
            "aten.linear.default(input=%0, weight=%1, bias=none)"),
        .init(["float32[4]", "float32[2, 4, q]"], "float32[2, q]", "aten.matmul.default(self=%0, other=%1)"),
        .init(
            ["float32[2, 1, q, 4]", "float32[3, 4, s]"], "float32[2, 3, q, s]", "aten.matmul.default(self=%0, other=%1)"
        ),
        .init(["float32[4]", "float32[4]"], "float32[]", "aten.matmul.default(self=%0, other=%1)"),
        .init(
            ["float32[1, 8, q, 4]", "float32[1, 2, s, 4]", "float32[1, 2, s, 6]", "bool[q, s]"], "float32[1, 8, q, 6]",
            "aten.scaled_dot_product_attention.default(query=%0, key=%1, value=%2, attn_mask=%3, dropout_p=0.0, is_causal=false, scale=none, enable_gqa=true)"
        ),
        // Indices.
        .init(
            ["float32[9, 4]", "int64[2, q]"], "float32[2, q, 4]",
            "aten.embedding.default(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false)"),
        .init(["float32[5, 6, 7]", "int64[q]"], "float32[5, q, 7]", "aten.index.Tensor(self=%0, indices=[none, %1])"),
        .init(["float32[5, 6, 7]", "int64[q]"], "float32[q, 6]", "aten.index.Tensor(self=%0, indices=[%1, none, %1])"),
        .init(
            ["float32[5, 6, 7]", "int64[q, 1]", "int32[3]"], "float32[5, q, 3]",
            "aten.index.Tensor(self=%0, indices=[none, %1, %2])"),
        .init(
            ["float32[5, 6]", "int64[q]", "float32[1]"], "float32[5, 6]",
            "aten.index_put.default(self=%0, indices=[none, %1], values=%2, accumulate=false)"),
        .init(
            ["float32[16, 4]", "float32[q, 4]"], "float32[16, 4]",
            "aten.slice_scatter.default(self=%0, src=%1, dim=0, start=0, end=q, step=1)"),
        // Factories.
        .init([], "int64[q]", "aten.arange.start_step(start=0, end=q, step=1, dtype=none)"),
        .init([], "float32[4]", "aten.arange.start_step(start=0, end=1, step=0.25, dtype=none)"),
        .init([], "int64[3]", "aten.arange.start_step(start=5, end=0, step=-2, dtype=none)"),
        .init([], "bool[q]", "aten.full.default(size={q}, fill_value=true, dtype=none)"),
        .init([], "float32[]", "aten.scalar_tensor.default(s=3, dtype=none)"),
        .init(
            ["float32[q, 4]", "float32[0]", "int64[2, 4]"], "float32[q + 2, 4]",
            "aten.cat.default(tensors=[%0, %1, %2], dim=0)"),
    ]

    @Test(arguments: fits)
    func derivesWhatTorchGives(_ row: Fit) throws {
        #expect(try Self.findings(row.operands, row.result, row.node).isEmpty)
    }

    struct Misfit: Sendable, CustomTestStringConvertible {
        var operands: [String]
        var node: String
        var code: Diagnostic.Code
        var message: String

        init(_ operands: [String], _ node: String, _ message: String, _ code: Diagnostic.Code = .invalidOperands) {
            (self.operands, self.node, self.message, self.code) = (operands, node, message, code)
        }

        var testDescription: String { "\(node) of \(operands)" }
    }

    static let misfits: [Misfit] = [
        .init(
            ["float32[q]", "float32[s]"], "aten.mul.Tensor(self=%0, other=%1)", "shapes cannot be broadcast together"),
        .init(
            ["float32[q]", "float32[4]"], "aten.mul.Tensor(self=%0, other=%1)", "shapes cannot be broadcast together"),
        .init(
            ["uint16[4]", "int8[4]"], "aten.mul.Tensor(self=%0, other=%1)", "these scalar types have no common type"),
        .init(
            ["float32[4]", "float32[4]"], "aten.bitwise_or.Tensor(self=%0, other=%1)",
            "a bitwise operator needs integers or bool"),
        .init(["bool[4]"], "aten.neg.default(self=%0)", "the operand has the wrong scalar type"),
        .init(["int64[4]"], "aten.silu.default(self=%0)", "the operand has the wrong scalar type"),
        .init(["float32[4]"], "aten.gelu.default(self=%0, approximate=\"fast\")", "unknown approximation"),
        .init(
            ["float32[4]", "float32[4]"], "aten.where.self(condition=%0, self=%1, other=%1)",
            "`condition` has the wrong scalar type"),
        .init(["float32[q, 4]"], "aten.view.default(self=%0, size={q, 5})", "a reshape changes the number of elements"),
        .init(["float32[q, 4]"], "aten.view.default(self=%0, size={-1, -1})", "more than one size is -1"),
        .init(
            ["float32[q, 4]"], "aten.permute.default(self=%0, dims={0, 0})", "`dims` is not a permutation of the axes"),
        .init(["float32[q, 4]"], "aten.transpose.int(self=%0, dim0=0, dim1=2)", "axis `dim1` is out of range"),
        .init(["float32[q, 4]"], "aten.select.int(self=%0, dim=1, index=4)", "`index` is out of range"),
        .init(["float32[s]"], "aten.select.int(self=%0, dim=0, index=0)", "`index` is out of range"),
        .init(
            ["float32[4]"], "aten.select.int(self=%0, dim=0, index=s - 2)", "the sign of `index` depends on a symbol",
            .unsupportedArgument),
        .init(["float32[4]"], "aten.slice.Tensor(self=%0, dim=0, start=0, end=4, step=0)", "`step` is not positive"),
        .init(
            ["float32[3]"], "aten.expand.default(self=%0, size={q}, implicit=false)",
            "the operand of an expand does not broadcast"),
        .init(
            ["float32[q]"], "aten.expand.default(self=%0, size={-1, q}, implicit=false)", "a new axis has the size -1"),
        .init(
            ["float32[6]"], "aten.split_with_sizes.default(self=%0, split_sizes={2, 3}, dim=0)",
            "the parts of a split do not add up"),
        .init(
            ["float32[q, 4]"], "aten.amax.default(self=%0, dim={0, -2}, keepdim=true)", "an axis occurs twice in `dim`"),
        .init(
            ["int64[4]"], "aten.mean.dim(self=%0, dim={0}, keepdim=false, dtype=none)",
            "the operand has the wrong scalar type"),
        .init(
            ["float32[q, 4]"],
            "aten.layer_norm.default(input=%0, normalized_shape={5}, weight=none, bias=none, eps=1e-05, cudnn_enable=false)",
            "`normalized_shape` does not end the operand's shape"),
        .init(
            ["float32[q, 4]", "float32[6, 5]"], "aten.linear.default(input=%0, weight=%1, bias=none)",
            "the inner sizes of a linear layer differ"),
        .init(
            ["float32[q, 4]", "float32[4, q]", "float32[6, 4]"], "aten.mm.default(self=%0, mat2=%2)",
            "the inner sizes of a matrix product differ"),
        .init(
            ["float32[2, q, 4]", "float32[4, 4]"], "aten.mm.default(self=%0, mat2=%1)",
            "the operands have the wrong number of axes"),
        .init(
            ["float32[9, 4]", "float32[2]"],
            "aten.embedding.default(weight=%0, indices=%1, padding_idx=-1, scale_grad_by_freq=false, sparse=false)",
            "`indices` has the wrong scalar type"),
        .init(
            ["float32[9]", "bool[9]"], "aten.index.Tensor(self=%0, indices=[%1])",
            "indexing with a mask has a result whose size depends on values", .unsupportedArgument),
        .init(["float32[9]", "int64[2]"], "aten.index.Tensor(self=%0, indices=[%1, %1])", "more indices than axes"),
        .init(
            ["float32[9, 4]", "int64[q]", "float32[q, 5]"],
            "aten.index_copy.default(self=%0, dim=0, index=%1, source=%2)",
            "`source` does not have the shape of what it replaces"),
        .init(
            ["float32[9, 4]", "int64[q]", "int64[q, 4]"],
            "aten.index_copy.default(self=%0, dim=0, index=%1, source=%2)", "`source` has the wrong scalar type"),
        .init(
            ["float32[9, 4]", "float32[3]"], "aten.select_scatter.default(self=%0, src=%1, dim=0, index=0)",
            "`src` does not have the shape of what it replaces"),
        .init(
            ["float32[9]", "int64[10]", "float32[4]"], "aten.scatter.src(self=%0, dim=0, index=%1, src=%2)",
            "`index` is larger than `src`"),
        .init(
            [], "aten.arange.start_step(start=0, end=s - 2, step=1, dtype=none)",
            "the bounds of arange do not fit its step"),
        .init([], "aten.zeros.default(size={s - 1}, dtype=none)", "a size may be negative"),
        .init(
            [], "aten.arange.start_step(start=0, end=4, step=s, dtype=none)",
            "the step of arange depends on a symbol or is 0", .unsupportedArgument),
        .init([], "aten.cat.default(tensors=tensors[], dim=0)", "nothing to join"),
        .init(
            ["float32[1, 3, q, 4]", "float32[1, 2, s, 4]"],
            "aten.scaled_dot_product_attention.default(query=%0, key=%1, value=%1, attn_mask=none, dropout_p=0.0, is_causal=false, scale=none, enable_gqa=true)",
            "the heads of query are not a multiple of those of key"),
        .init(
            ["float32[4611686018427387904]", "float32[4611686018427387904]"],
            "aten.cat.default(tensors=[%0, %1], dim=0)", "a size cannot be computed: overflow"),
        .init(
            ["float32[2, 4]", "float32[2, 5]"], "aten.cat.default(tensors=[%0, %1], dim=0)",
            "joined tensors differ outside axis 0"),
    ]

    @Test func refusesACoreIndexThatIsAbsent() throws {
        let found = try Self.findings(
            ["float32[9]"], "float32[9]", "index(a=%0, indices=[none])", stage: .decomposed)
        #expect(found.first?.message == "an index is absent")
    }

    /// Of operators that only fusion makes.
    static let fusedMisfits: [Misfit] = [
        .init(
            ["float32[3, 4]", "float32[6]"], "rotary(a=%0, cos=%1, sin=%1)",
            "`cos` and `sin` do not turn the rows of `a`"),
        .init(
            ["float32[3, 4]", "float32[3]"], "rotary(a=%0, cos=%1, sin=%1)",
            "`cos` and `sin` do not turn the rows of `a`"),
        .init(
            ["float32[3, 4]", "float32[1, 3, 4]"], "rotary(a=%0, cos=%1, sin=%1)", "`cos` has more axes than `a`"),
        .init(
            ["float32[5, 4]", "int64[2]", "float32[5, 2]", "float32[2]"],
            "rotary_index_copy(a=%0, index=%1, source=%2, cos=%3, sin=%3, axis=1)",
            "a rotary embedding cannot be written along its own axis"),
        .init(
            ["float32[q, 4]", "float32[6, 4]", "float32[6]", "float32[6]"],
            "linear_parts(a=%0, weights=[%1, %2, %3], biases=1)",
            "a linear layer in parts has 1 to 16 weights, and a bias for each or none"),
        .init(
            ["float32[q, 4]", "float32[6, 4]", "float32[5, 4]"],
            "linear_gated(a=%0, gate=%1, up=%2, gate_bias=none, up_bias=none, activation=0)",
            "the two weights of a gated layer differ"),
        .init(
            ["float32[q, 4]", "float32[6, 4]"],
            "linear_gated(a=%0, gate=%1, up=%1, gate_bias=none, up_bias=none, activation=5)",
            "there is no such activation"),
        .init(
            ["float32[q, 4]", "float32[6, 4]", "float32[6]"], "linear_add(a=%0, weight=%1, residual=%2, bias=none)",
            "the residual does not have the shape of the result"),
    ]

    @Test(arguments: fusedMisfits)
    func refusesFusedOperandsThatDoNotFit(_ row: Misfit) throws {
        let found = try Self.findings(row.operands, "float32[4]", row.node, stage: .fused)
        #expect(found.map(\.message).contains(row.message), "\(found.map(\.message))")
    }

    @Test(arguments: misfits)
    func refusesOperandsThatDoNotFit(_ row: Misfit) throws {
        let first = try #require(try Self.findings(row.operands, "float32[4]", row.node).first, "it was accepted")
        #expect(first.message == row.message)
        #expect(first.code == row.code)
        #expect(first.location?.contains("node 0") == true)
    }
}

@Suite struct SizeBoundsTests {
    private let bounds = SizeBounds([.init(name: "q", min: 1, max: 8), .init(name: "s", min: 0, max: 100)])
    private let q = SizeExpression.symbol(0)
    private let s = SizeExpression.symbol(1)

    @Test func provesWhatTheBoundsSay() throws {
        #expect(bounds.isProvablyAtMost(q, SizeExpression(8)))
        #expect(!bounds.isProvablyAtMost(q, SizeExpression(7)))
        #expect(bounds.isProvablyAtMost(try q.minus(1), q))
        #expect(!bounds.isProvablyAtMost(q, s))
        #expect(bounds.isProvablyNonnegative(try q.minus(1)))
        #expect(!bounds.isProvablyNonnegative(try s.minus(1)))
        #expect(bounds.range(of: try q.times(s).plus(1)) == 1...801)
        #expect(bounds.range(of: try s.floorDivided(by: SizeExpression(3))) == 0...33)
        #expect(bounds.range(of: try s.modulo(SizeExpression(7))) == 0...6)
    }

    @Test func simplifiesExtremesThatTheBoundsDecide() throws {
        #expect(try bounds.minimum(q, SizeExpression(8)) == q)
        #expect(try bounds.maximum(try q.minus(1), .zero) == q.minus(1))
        #expect(try bounds.minimum(q, s) == q.minimum(s))
    }

    @Test func staysAtTheEndOfInt64() throws {
        let wide = SizeBounds([.init(name: "n", min: 0, max: .max)])
        let n = SizeExpression.symbol(0)
        #expect(wide.range(of: try n.times(2)) == 0...Int.max)
        #expect(wide.isProvablyNonnegative(try n.times(n).plus(1)))
        #expect(!wide.isProvablyNonnegative(try n.times(2).minus(1)))
        #expect(wide.range(of: try n.times(-2)) == Int.min...0)
    }

    @Test func saysNothingWhereZeroMayDivide() throws {
        #expect(bounds.range(of: try q.floorDivided(by: s)) == nil)
        #expect(bounds.range(of: try q.modulo(s)) == nil)
    }
}

@Suite struct OperatorTableTests {
    @Test func knowsEveryKernelOfItsSignatures() {
        #expect(Set(OperatorTable.kernels.keys) == Set(KernelSignature.byName.keys))
        for row in OperatorTable.kernels.values {
            #expect(Set(row.arguments).count == row.arguments.count, "\(row.name)")
            #expect(!row.scalarTypes.isEmpty, "\(row.name)")
        }
    }

    @Test func knowsTheOperatorsOfTheFirstModels() {
        for op in [
            "aten.index_copy.default", "aten.scaled_dot_product_attention.default", "aten.select_scatter.default",
        ] {
            #expect(OperatorTable.operators[op] != nil)
        }
    }
}

@Suite struct PromotionTests {
    /// torch.promote_types of 2.13.0 for every pair, types in order of their numbers in the schemas (one
    /// hexadecimal digit each), - where torch refuses.
    static let table = """
        123456---abcd
        223453---abcd
        333453---abcd
        444454---abcd
        555555---abcd
        633456---abcd
        ------7--abcd
        -------8-abcd
        --------9abcd
        aaaaaaaaaabcb
        bbbbbbbbbbbcb
        ccccccccccccc
        dddddddddbbcd
        """

    @Test func promotesEveryPairAsTorch() {
        let rows = Self.table.split(separator: "\n").map { Array($0) }
        for a in ScalarType.allCases {
            for b in ScalarType.allCases {
                let digit = rows[Int(a.rawValue) - 1][Int(b.rawValue) - 1]
                let expected = digit.hexDigitValue.flatMap { ScalarType(rawValue: UInt32($0)) }
                #expect(Promotion.promote(a, b) == expected, "\(a) and \(b)")
            }
        }
    }
}
