import ExactTexts
import StatepackBundle
import StatepackIR
import Testing

@Suite struct ProgramTextTests {
    static let text = """
        program "statepack 0.1 \\"quoted\\"" digest 00000000000000000000000000000000000000000000000000000000000001e5
        symbol query 1...256
        symbol `max` 0...9
        tensor "w" float32[64, 64] weights "w" aliases "v", "u"
        tensor "one" float32[] inline 1e050000
        tensor "none" float32[0] inline empty
        state "keyCache" float32[2, 256, 64] buffer "key_cache" splat 00000000 named
        state "x" float32[query, `max`] input "x" tensor 0 sha256 1e050000000000000000000000000000000000000000000000000000000000ff named
        source "layers.0 (model.py:12)"

        func "main" {
            input %0 "features": float32[query, 64]
            state %1 "keyCache": float32[2, 256, 64] after %5 writtenBy "index_copy" copies 4*query because "a read"
            constant %2 "w": float32[64, 64]
            %3: float32[query, 64] = linear(a=%0, weight=%2, bias=none) @0
            %4: float32[256, 64] = view.select(a=%1, dim=0, index=0)
            %5: float32[2, 256, 64] = inPlace index_put(a=%1, source=%3, indices=[%4, none], accumulate=0)
            %6: bool[], %7: int64[2*query + 1] = many(s={1, query - 1}, e={}, t=tensors[], n=-0.5, i=-inf, m=numbers[1.0, 1e-05], f=true, d=int64, x="a\\n", k=-3, q=max(query, `max`))
            output %3 "logits"
            context "features" indexes "keyCache" axis 1
        }

        """

    @Test func printsWhatItParsed() throws {
        #expect(try Program(text: Self.text).text() == Self.text)
    }

    @Test func parsesWhatItPrinted() throws {
        let program = try Program(text: Self.text)
        #expect(try Program(text: program.text()) == program.renumbered())
        #expect(program.digest.count == 32)
        #expect(program.states[1].initialDigest.count == 32 && program.states[1].initialDigest[1] == 5)
        #expect(program.functions[0].context == ContextRules(positions: 0, axes: [.init(state: 0, axis: 1)]))
        #expect(program.tensors[1].data == .inline([0x1e, 5, 0, 0]))
    }

    @Test func printsValuesInOrderOfDefinition() throws {
        let scrambled = try Program(
            text: """
                func "f" {
                    input %7 "x": float32[2]
                    %3: float32[2] = neg(a=%7)
                    output %3 "y"
                }
                """)
        #expect(
            scrambled.text() == """
                func "f" {
                    input %0 "x": float32[2]
                    %1: float32[2] = neg(a=%0)
                    output %1 "y"
                }

                """)
    }

    @Test(arguments: [
        ("func \"f\" { input %0 \"x\": float33[2] }", 1, "expected a type"),
        ("symbol s 1...2\nfunc \"f\" {\n input %0 \"x\": float32[t] }", 3, "unknown symbol t"),
        ("func \"f\" { state %0 \"k\": bool[] }", 1, "unknown state k"),
        ("func \"f\" { constant %0 \"k\": bool[] }", 1, "unknown tensor k"),
        ("tensor \"a\" bool[] inline 0", 1, "odd number"),
        ("func \"f\" { context \"p\" indexes \"k\" axis 0 }", 1, "unknown input p"),
        ("func \"f\" { input %0 \"p\": int64[] context \"p\" indexes \"k\" axis 0 }", 1, "unknown state k"),
        ("func \"f", 1, "not closed"),
        ("func \"f\" {", 1, "expected }"),
    ])
    func rejectsTextWithLineAndReason(text: String, line: Int, reason: String) throws {
        let error = try #require(throws: ProgramTextError.self) { try Program(text: text) }
        #expect(error.line == line)
        #expect(error.reason.contains(reason))
    }

    @Test(
        "What is wrong with a text is said by its line",
        arguments: [
            "symbol `a", "func \"f\" { output % }", "source \"\\u{zz}\"", "source \"abc", "func \"f\" [", "func x",
            "func \"f\" { input x", "symbol s x", "tensor \"a\" bool[] inline \"x\"", "tensor \"a\" bool[] inline 0",
            "tensor \"a\" bool[] inline zz", "tensor \"a\" bool[floordiv(1, 0)] inline 00", "tensor \"a\" bool[\"x\"]",
            "tensor \"a\" x", "symbol \"s\"", "symbol s 1 2", "x", "symbol s 1...2 tensor \"a\" bool[s] inline 00",
            "func \"f\" { %0: bool[] = 5 }", "func \"f\" { %0: bool[] = neg(5) }",
            "func \"f\" { %0: bool[] = f(m=numbers[x]) }", "tensor \"a\" bool[s]",
        ])
    func saysWhatIsWrong(text: String) throws {
        let error = try #require(throws: ProgramTextError.self) { try Program(text: text) }
        let found = "line \(error.line): \(error.reason)"
        #expect(found == ExactTexts.expected("ProgramText", text, actual: found))
    }

    @Test func leavesLongDataOutForPeople() throws {
        let program = try Program(text: "tensor \"w\" float32[2] inline 0102030405060708\n")
        let text = program.text(dataLimit: 4)
        #expect(text == "tensor \"w\" float32[2] elided 8\n")
        #expect(try Program(text: text).tensors[0].data == .inline(Array(repeating: 0, count: 8)))
    }
}
