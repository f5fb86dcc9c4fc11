import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct VerifierTests {
    static let header = """
        symbol query 1...16
        tensor "w" float32[4] inline 00000000000000000000000000000000
        state "cache" float32[8, 4] buffer "cache" splat 00000000
        source "layer (model.py:3)"

        """

    static func program(_ body: String) throws -> Program { try Program(text: header + body) }

    static let core = """
        func "main" {
            input %0 "rows": float32[query, 4]
            input %1 "positions": int64[query]
            state %2 "cache": float32[8, 4] after %5 writtenBy "index_copy"
            constant %3 "w": float32[4]
            %4: float32[query, 4] = mul(a=%0, b=%3) @0
            %5: float32[8, 4] = index_copy(a=%2, index=%1, source=%4, axis=0) @0
            output %4 "scaled"
        }
        """

    @Test func acceptsAGoodProgramAtEveryStage() throws {
        let aten = Self.core.replacing("mul(a=%0, b=%3)", with: "aten.mul.Tensor(self=%0, other=%3)").replacing(
            "index_copy(a=%2, index=%1, source=%4, axis=0)",
            with: "aten.index_copy.default(self=%2, dim=0, index=%1, source=%4)")
        try Verifier.verify(Self.program(aten), stage: .imported)
        try Verifier.verify(Self.program(Self.core), stage: .decomposed)
        try Verifier.verify(Self.program(Self.core), stage: .fused)
        let inPlace = Self.core.replacing(" after %5", with: "").replacing("= index_copy", with: "= inPlace index_copy")
        try Verifier.verify(Self.program(inPlace), stage: .inPlace)
    }

    @Test func acceptsWritesThroughViewsOfAState() throws {
        try Verifier.verify(
            Self.program(
                """
                func "main" {
                    input %0 "row": float32[4]
                    state %1 "cache": float32[8, 4]
                    %2: float32[4] = view.select(a=%1, dim=0, index=3)
                    %3: float32[4] = inPlace write(destination=%2, source=%0)
                    %4: float32[1, 4] = view.reshape(a=%3, shape={1, 4})
                    %5: float32[1, 4] = inPlace write(destination=%4, source=%4)
                    output %0 "row out"
                }
                """), stage: .inPlace)
    }

    struct Case: Sendable, CustomTestStringConvertible {
        var id: String
        var stage: Verifier.Stage = .decomposed
        /// Replaced in `core`.
        var old: String
        var new: String
        var code: Diagnostic.Code
        var message: String
        var expected: String? = nil
        var found: String? = nil
        var location = "function `main`, node 0 `mul`, layer (model.py:3)"

        var testDescription: String { id }
    }

    static let cases: [Case] = [
        .init(
            id: "use before definition", old: "mul(a=%0, b=%3)", new: "mul(a=%5, b=%3)", code: .undefinedValue,
            message: "value %5 is used before it is defined"),
        .init(
            id: "two definitions", old: "%4: float32[query, 4] = mul", new: "%0: float32[query, 4] = mul",
            code: .redefinedValue, message: "value %0 is defined twice"),
        .init(
            id: "shape that the rule does not derive", old: "%4: float32[query, 4]", new: "%4: float32[query, 5]",
            code: .typeMismatch, message: "%4 has another type than `mul` gives", expected: "float32[query, 4]",
            found: "float32[query, 5]"),
        .init(
            id: "scalar type that the rule does not derive", old: "%4: float32[query, 4]", new: "%4: int32[query, 4]",
            code: .typeMismatch, message: "%4 has another type than `mul` gives", expected: "float32[query, 4]",
            found: "int32[query, 4]"),
        .init(
            id: "operand of another type", old: "mul(a=%0, b=%3)", new: "mul(a=%0, b=%1)", code: .invalidOperands,
            message: "operand `b` has the wrong scalar type", expected: "float32", found: "int64"),
        .init(
            id: "shapes that do not broadcast", old: "mul(a=%0, b=%3)", new: "mul(a=%0, b=%2)", code: .invalidOperands,
            message: "shapes cannot be broadcast together",
            expected: "equal sizes, or 1, on every axis counted from the last",
            found: "[query, 4] and [8, 4]"),
        .init(
            id: "missing argument", old: "mul(a=%0, b=%3)", new: "mul(a=%0)", code: .invalidArgument,
            message: "`mul` has other arguments than its operator declares", expected: "a, b", found: "a"),
        .init(
            id: "unknown argument", old: "mul(a=%0, b=%3)", new: "mul(a=%0, b=%3, c=%3)", code: .invalidArgument,
            message: "`mul` has other arguments than its operator declares", expected: "a, b", found: "a, b, c"),
        .init(
            id: "argument of another kind", old: "mul(a=%0, b=%3)", new: "mul(a=%0, b=2)", code: .invalidArgument,
            message: "argument `b` has the wrong kind", expected: "a tensor", found: "a size"),
        .init(
            id: "two results", old: "%4: float32[query, 4] = mul", new: "%4: float32[query, 4], %9: bool[] = mul",
            code: .typeMismatch, message: "`mul` has another number of results", expected: "1", found: "2"),
        .init(
            id: "ATen operator after decomposition", old: "mul(a=%0, b=%3)", new: "aten.mul.Tensor(self=%0, other=%3)",
            code: .operatorNotAllowed, message: "`aten.mul.Tensor` may not occur after DecomposeOps",
            location: "function `main`, node 0 `aten.mul.Tensor`, layer (model.py:3)"),
        .init(
            id: "in place too early", old: "= index_copy", new: "= inPlace index_copy", code: .invalidInPlace,
            message: "`index_copy` may not be in place",
            location: "function `main`, node 1 `index_copy`, layer (model.py:3)"),
        .init(
            id: "in place without a state", stage: .inPlace, old: "after %5 writtenBy \"index_copy\"\n", new: "\n",
            code: .invalidInPlace, message: "`mul` may not be in place"),
        .init(
            id: "state with another type", old: "after %5", new: "after %4", code: .stateTypeMismatch,
            message: "the state has another type where the function ends", expected: "float32[8, 4]",
            found: "float32[query, 4]", location: "function `main`, state `cache`"),
        .init(
            id: "state that is not in place", stage: .inPlace, old: "after %5", new: "after %5", code: .invalidInPlace,
            message: "the state is not updated in place", expected: "%2", found: "%5",
            location: "function `main`, state `cache`"),
        .init(
            id: "constant of another type", old: "constant %3 \"w\": float32[4]", new: "constant %3 \"w\": float32[1]",
            code: .typeMismatch, message: "a constant does not have the type of its tensor", expected: "float32[4]",
            found: "float32[1]", location: "function `main`, constant `w`"),
        .init(
            id: "output that is never defined", old: "output %4 \"scaled\"", new: "output %9 \"scaled\"",
            code: .invalidReference, message: "a value does not exist", found: "%9",
            location: "function `main`, output `scaled`"),
        .init(
            id: "axis out of range", old: "axis=0)", new: "axis=2)", code: .invalidOperands,
            message: "axis `axis` is out of range", expected: "0..<2", found: "2",
            location: "function `main`, node 1 `index_copy`, layer (model.py:3)"),
    ]

    @Test(arguments: cases)
    func reportsOneFaultWithItsPlace(_ row: Case) throws {
        var text = Self.core.replacing(row.old, with: row.new)
        if row.id == "in place without a state" {
            text = text.replacing("= mul", with: "= inPlace mul").replacing(
                "= index_copy", with: "= inPlace index_copy")
        }
        let found = Verifier.findings(in: try Self.program(text), stage: row.stage)
        let first = try #require(found.first, "it was accepted")
        #expect(first.code == row.code)
        #expect(first.message == row.message)
        if let expected = row.expected { #expect(first.expected == expected) }
        if let text = row.found { #expect(first.found == text) }
        #expect(first.location == row.location)
        let rendered = ExactTexts.text(found)
        #expect(rendered == ExactTexts.expected("Verifier", row.id, actual: rendered))
    }

    @Test func reportsAllFaultsAtOnce() throws {
        let text = Self.core.replacing("mul(a=%0, b=%3)", with: "mul(a=%0, b=%1)").replacing("axis=0)", with: "axis=2)")
        let found = Verifier.findings(in: try Self.program(text), stage: .decomposed)
        #expect(found.map(\.code) == [.invalidOperands, .invalidOperands])
    }

    @Test(arguments: Verifier.Stage.allCases)
    func refusesContextRulesThatDoNotFit(stage: Verifier.Stage) throws {
        let text = """
            func "main" {
                input %0 "positions": float32[4]
                state %1 "cache": float32[8, 4]
                context "positions" indexes "cache" axis 2, "cache" axis 0
            }
            """
        let found = Verifier.findings(in: try Self.program(text), stage: stage)
        #expect(found.allSatisfy { $0.code == .invalidContext && $0.location == "function `main`, context" })
        #expect(
            found.map(\.message) == [
                "the positions of the context have the wrong scalar type",
                "the context names an axis that state `cache` does not have",
                "the context does not name each state once, in the order of the function",
            ])
    }

    @Test func blamesTheCompilerForWhatItsPassesMade() throws {
        let text = Self.core.replacing("axis=0)", with: "axis=2)")
        let program = try Self.program(text)
        let error = try #require(throws: DiagnosticList.self) { try Verifier.verify(program, stage: .decomposed) }
        #expect(error.diagnostics.map(\.code) == [.invalidProgram, .invalidOperands])
        #expect(error.diagnostics[0].message == "DecomposeOps made an invalid program")
        #expect(error.exitCode == 70)
        let rendered = error.description
        #expect(rendered == ExactTexts.expected("Verifier", "fault of a pass", actual: rendered))
    }

    @Test func refusesAWriteToSomethingThatIsNoState() throws {
        let text = """
            func "main" {
                input %0 "x": float32[4]
                %1: float32[4] = neg(a=%0)
                %2: float32[4] = inPlace write(destination=%1, source=%0)
                %3: float32[4] = write(destination=%1, source=%0)
                output %2 "y"
            }
            """
        let found = Verifier.findings(in: try Self.program(text), stage: .inPlace)
        #expect(
            found.map(\.message) == [
                "%1 is not a state or a copy, nor a view of one", "`write` is not marked in place",
            ])
        #expect(found.allSatisfy { $0.code == .invalidInPlace })
    }

    @Test func leavesUnknownOperatorsToDecomposeOps() throws {
        let text = """
            func "main" {
                input %0 "x": float32[4]
                %1: float32[9] = aten.mystery.default(self=%0)
                output %1 "y"
            }
            """
        try Verifier.verify(Self.program(text), stage: .imported)
    }

    @Test func refusesReferencesThatTheTextCannotSay() throws {
        let good = try Self.program(Self.core)
        for (id, change) in [
            ("initial value of no tensor", { $0.states[0].initialValue = .tensor(1) }),
            ("constant of no tensor", { $0.functions[0].constants[0].tensor = 1 }),
            ("use of no state", { $0.functions[0].states[0].state = 1 }),
        ] as [(String, (inout Program) -> Void)] {
            var program = good
            change(&program)
            let rendered = ExactTexts.text(Verifier.findings(in: program, stage: .decomposed))
            #expect(rendered == ExactTexts.expected("Verifier", id, actual: rendered))
        }
    }

    @Test func refusesAStateListedTwice() throws {
        let text = """
            func "main" {
                state %0 "cache": float32[8, 4]
                state %1 "cache": float32[8, 4]
                output %0 "y"
            }
            """
        let found = Verifier.findings(in: try Self.program(text), stage: .decomposed)
        #expect(found.map(\.message) == ["a function lists a state twice"])
    }
}
