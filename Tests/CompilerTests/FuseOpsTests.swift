import StatepackBundle
import StatepackCompiler
import StatepackIR
import Testing

@Suite struct FuseOpsTests {
    static func fuse(
        _ text: String, disabled: Set<String> = [], sourceLocation: SourceLocation = #_sourceLocation
    ) throws -> (body: String, counters: [String: Int]) {
        let original = try Program(text: text)
        try Verifier.verify(original, stage: .decomposed)
        var program = original
        var report = CompilationReport()
        try FuseOps(disabled: disabled).run(on: &program, report: &report)
        try Verifier.verify(program, stage: .fused)
        try PlanOracle.compile(original, options: .init(noFuse: disabled), sourceLocation: sourceLocation)
        let lines = program.renumbered().text().split(separator: "\n", omittingEmptySubsequences: false)
        return (
            lines.drop { !$0.hasPrefix("func ") }.joined(separator: "\n"), report.counters["FuseOps"] ?? [:]
        )
    }

    // MARK: Grouped queries

    /// Attention over repeated heads; `expand` and `merge` are the shapes of key and value on the way.
    static func attention(
        insert: String = "{1, 2, 1, 8, 4}", expand: String = "1, 2, 3, 8, 4", value: String = "%9",
        extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        state "keys" float32[1, 2, 8, 4] buffer "keys" splat 00000000
        func "main" {
            input %0 "q": float32[1, 6, n, 4]
            input %1 "mask": bool[1, 1, n, 8]
            state %2 "keys": float32[1, 2, 8, 4] writtenBy "none"
            %3: float32[\(insert.dropFirst().dropLast())] = view.reshape(a=%2, shape=\(insert))
            %4: float32[\(expand)] = view.expand(a=%3, shape={\(expand)})
            %5: float32[\(expand)] = copy(a=%4)
            %6: float32[1, 6, 8, 4] = view.reshape(a=%5, shape={1, 6, 8, 4})
            %7: float32[1, 2, 1, 8, 4] = view.reshape(a=%2, shape={1, 2, 1, 8, 4})
            %8: float32[1, 2, 3, 8, 4] = view.expand(a=%7, shape={1, 2, 3, 8, 4})
            %9: float32[1, 6, 8, 4] = view.reshape(a=%8, shape={1, 6, 8, 4})
            %10: float32[1, 6, 8, 4] = neg(a=%9)
            %11: float32[1, 6, n, 4] = sdpa(query=%0, key=%6, value=\(value), mask=%1, causal=0, groups=1, scale=0.5)
            output %11 "y"
            \(extraOutput)
        }
        """
    }

    @Test func readsGroupedKeysAndValuesWhereTheyLie() throws {
        let (body, counters) = try Self.fuse(Self.attention())
        #expect(counters["grouped-query"] == 1)
        #expect(
            body == """
                func "main" {
                    input %0 "q": float32[1, 6, n, 4]
                    input %1 "mask": bool[1, 1, n, 8]
                    state %2 "keys": float32[1, 2, 8, 4] writtenBy "none"
                    %3: float32[1, 6, n, 4] = sdpa(query=%0, key=%2, value=%2, mask=%1, causal=0, groups=3, scale=0.5)
                    output %3 "y"
                }

                """)
    }

    @Test func keepsExpandedKeysWhenValuesAreNotExpanded() throws {
        let (_, counters) = try Self.fuse(Self.attention(value: "%10"))
        #expect(counters["grouped-query"] == nil)
    }

    @Test func keepsHeadsThatAreRepeatedAsAWhole() throws {
        // Heads 0, 1, 0, 1, 0, 1 and not 0, 0, 0, 1, 1, 1.
        let (_, counters) = try Self.fuse(Self.attention(insert: "{1, 1, 2, 8, 4}", expand: "1, 3, 2, 8, 4"))
        #expect(counters["grouped-query"] == nil)
    }

    @Test func leavesGroupedQueriesAloneWhenDisabled() throws {
        let (body, counters) = try Self.fuse(Self.attention(), disabled: ["grouped-query"])
        #expect(counters["grouped-query"] == nil)
        #expect(body.contains("groups=1"))
    }

    @Test func keepsWhatElseUsesTheExpandedKeys() throws {
        let (body, counters) = try Self.fuse(Self.attention(extraOutput: "output %6 \"keys_now\""))
        #expect(counters["grouped-query"] == 1)
        #expect(body.contains("groups=3") && body.contains("view.expand"))
    }

    @Test func readsKeysBeforeALaterWriteOfTheSameLayer() throws {
        // The keys are copied before the write in the exported order; fused, attention reads the state and moves
        // before the write.
        let (_, counters) = try Self.fuse(
            """
            state "keys" float32[1, 2, 8, 4] buffer "keys" splat 00000000
            func "main" {
                input %0 "q": float32[1, 6, 1, 4]
                input %1 "k": float32[1, 2, 1, 4]
                input %2 "pos": int64[1]
                state %3 "keys": float32[1, 2, 8, 4] after %8 writtenBy "index_copy"
                %4: float32[1, 2, 1, 8, 4] = view.reshape(a=%3, shape={1, 2, 1, 8, 4})
                %5: float32[1, 2, 3, 8, 4] = view.expand(a=%4, shape={1, 2, 3, 8, 4})
                %6: float32[1, 2, 3, 8, 4] = copy(a=%5)
                %7: float32[1, 6, 8, 4] = view.reshape(a=%6, shape={1, 6, 8, 4})
                %8: float32[1, 2, 8, 4] = index_copy(a=%3, index=%2, source=%1, axis=2)
                %9: float32[1, 6, 1, 4] = sdpa(query=%0, key=%7, value=%7, mask=none, causal=0, groups=1, scale=0.5)
                output %9 "y"
            }
            """)
        #expect(counters["grouped-query"] == 1)
    }

    // MARK: Norms

    static func norm(
        square: String = "mul(a=%0, b=%0)", axes: Int = 2, weight: String = "float32[4]", extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        tensor "eps" float32[] inline acc52737
        tensor "w" \(weight) weights "w"
        func "main" {
            input %0 "x": float32[n, 4]
            constant %1 "eps": float32[]
            constant %2 "w": \(weight)
            %3: float32[n, 4] = \(square)
            %4: float32[\(axes == 2 ? "n, 1" : "1, 4")] = mean(a=%3, axes_mask=\(axes), keep=1)
            %5: float32[\(axes == 2 ? "n, 1" : "1, 4")] = add(a=%4, b=%1)
            %6: float32[\(axes == 2 ? "n, 1" : "1, 4")] = rsqrt(a=%5)
            %7: float32[n, 4] = mul(a=%0, b=%6)
            %8: float32[n, 4] = mul(a=%2, b=%7)
            output %8 "y"
            \(extraOutput)
        }
        """
    }

    @Test func fusesARootMeanSquareNorm() throws {
        let (body, counters) = try Self.fuse(Self.norm())
        #expect(counters["rms-norm"] == 1)
        #expect(
            body == """
                func "main" {
                    input %0 "x": float32[n, 4]
                    constant %1 "eps": float32[]
                    constant %2 "w": float32[4]
                    %3: float32[n, 4] = rms_norm(a=%0, weight=%2, axes=1, epsilon=9.999999747378752e-06)
                    output %3 "y"
                }

                """)
    }

    @Test(arguments: [
        ("another value is squared", norm(square: "mul(a=%0, b=%2)")),
        ("the mean is over the first axis", norm(axes: 1)),
        ("the weight is one number", norm(weight: "float32[1]")),
        ("the product is an output, too", norm(extraOutput: "output %7 \"scaled\"")),
        ("the root is an output, too", norm(extraOutput: "output %6 \"root\"")),
    ])
    func keepsANormWhen(_ claim: String, text: String) throws {
        let (body, counters) = try Self.fuse(text)
        #expect(counters["rms-norm"] == nil, "\(claim)")
        #expect(body.contains("rsqrt"))
    }

    // MARK: Identities and common subexpressions

    @Test func forwardsMultiplicationsByOneAndCopies() throws {
        let (body, counters) = try Self.fuse(
            """
            tensor "one" float32[] inline 0000803f
            func "main" {
                input %0 "x": float32[2, 4]
                constant %1 "one": float32[]
                %2: float32[2, 4] = mul(a=%0, b=%1)
                %3: float32[2, 4] = copy(a=%2)
                %4: float32[2, 4] = view.permute(a=%3, dims={0, 1})
                %5: float32[2, 4] = view.slice(a=%4, dim=0, start=0, end=2, step=1)
                %6: float32[2, 4] = neg(a=%5)
                output %6 "y"
            }
            """)
        #expect(counters["identities"] == 4)
        #expect(body.contains("neg(a=%0)"))
    }

    @Test func keepsMultiplicationsAndCopiesThatChangeSomething() throws {
        let (body, counters) = try Self.fuse(
            """
            tensor "two" float32[] inline 00000040
            tensor "one" float32[3, 1, 1] inline 0000803f0000803f0000803f
            tensor "integer" int64[] inline 0100000000000000
            func "main" {
                input %0 "x": float32[2, 4]
                input %1 "i": int64[4]
                constant %2 "two": float32[]
                constant %3 "one": float32[3, 1, 1]
                constant %4 "integer": int64[]
                %5: float32[2, 4] = mul(a=%0, b=%2)
                %6: float32[3, 2, 4] = mul(a=%5, b=%3)
                %7: int64[4] = mul(a=%1, b=%4)
                %8: float32[4] = copy(a=%7)
                %9: float32[4, 2] = view.permute(a=%5, dims={1, 0})
                %10: float32[1, 4] = view.slice(a=%5, dim=0, start=0, end=1, step=1)
                output %6 "y"
                output %8 "z"
                output %9 "u"
                output %10 "v"
            }
            """)
        #expect(counters == [:])
        #expect(body.split(separator: "\n").count { $0.contains(" = ") } == 6)
    }

    @Test func computesTheSameThingOnce() throws {
        let (body, counters) = try Self.fuse(
            """
            func "main" {
                input %0 "x": float32[2, 4]
                %1: float32[1, 2, 4] = view.reshape(a=%0, shape={1, 2, 4})
                %2: float32[1, 2, 4] = view.reshape(a=%0, shape={1, 2, 4})
                %3: float32[1, 2, 4] = cos(a=%1)
                %4: float32[1, 2, 4] = cos(a=%2)
                %5: float32[1, 2, 4] = sub(a=%3, b=%4)
                output %5 "y"
            }
            """)
        #expect(counters["common-subexpressions"] == 2)
        #expect(body.contains("sub(a=%2, b=%2)"))
    }

    @Test func keepsNodesThatDifferInOneArgument() throws {
        let (_, counters) = try Self.fuse(
            """
            func "main" {
                input %0 "x": float32[2, 4]
                %1: float32[2] = sum(a=%0, axes_mask=2, keep=0)
                %2: float32[4] = sum(a=%0, axes_mask=1, keep=0)
                %3: float32[2, 1] = sum(a=%0, axes_mask=2, keep=1)
                output %1 "y"
                output %2 "z"
                output %3 "u"
            }
            """)
        #expect(counters == [:])
    }

    @Test func keepsEqualReadsOfAStateApartWhenAWriteLiesBetween() throws {
        let (body, _) = try Self.fuse(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[8, 4] after %4 writtenBy "index_copy"
                %3: float32[8, 4] = neg(a=%2)
                %4: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                %5: float32[8, 4] = neg(a=%4)
                %6: float32[8, 4] = neg(a=%2)
                output %3 "x"
                output %5 "y"
                output %6 "z"
            }
            """)
        #expect(body.split(separator: "\n").count { $0.contains("neg(") } == 2)
    }

    @Test func removesWhatNothingNeeds() throws {
        let (body, _) = try Self.fuse(
            """
            func "main" {
                input %0 "x": float32[4]
                %1: float32[4] = exp(a=%0)
                %2: float32[4] = neg(a=%1)
                output %0 "y"
            }
            """)
        #expect(!body.contains("exp") && !body.contains("neg"))
    }
}
