import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import StatepackTool
import Testing

/// What no other test of the commands quotes in full.
@Suite struct ExactTextTests {
    @Test(
        "A command says exactly what is wrong with its line",
        arguments: [
            ["statepack", "inspect", "m", "--json", "--text"], ["statepack", "inspect", "m", "--details"],
            ["statepack", "--explain", "wrongShap"], ["frobnicate"],
        ])
    func usage(_ words: [String]) async {
        let run = await ToolRun(words[0], Array(words.dropFirst()))
        let text = String(run.diagnostics.dropLast())
        #expect(run.results == "")
        #expect(text == ExactTexts.expected("Tool", words.joined(separator: " "), actual: text))
    }

    private static let contract = """
        {"contract": 1, "symbols": [{"name": "n", "min": 1, "max": 8}], "functions": [
          {"name": "a", "inputs": [{"name": "p", "scalarType": "int64", "shape": ["n"]}],
           "states": [{"name": "s", "scalarType": "float32", "shape": [4], "initialValue": {"fill": 0}, "writtenBy": "copy"}],
           "outputs": [], "context": {"positions": "p", "axes": {"s": 0}}},
          {"name": "b", "inputs": [], "states": [], "outputs": []}]}
        """

    @Test(
        "A contract that cannot be read is refused in exact words",
        arguments: [
            ("symbol twice", "\"max\": 8}", "\"max\": 8}, {\"name\": \"n\", \"min\": 1, \"max\": 8}"),
            ("function twice", "\"name\": \"b\"", "\"name\": \"a\""),
            ("negative axis", "{\"s\": 0}", "{\"s\": -1}"),
            ("fill of another type", "{\"fill\": 0}", "{\"fill\": true}"),
            ("digest that is too short", "{\"fill\": 0}", "{\"sha256\": \"a1\"}"),
        ])
    func contractThatCannotBeRead(_ id: String, _ old: String, _ new: String) throws {
        _ = try Contract(json: Array(Self.contract.utf8), file: "c.contract.json")
        let edited = Self.contract.replacing(old, with: new)
        let error = #expect(throws: DiagnosticList.self) {
            try Contract(json: Array(edited.utf8), file: "c.contract.json")
        }
        let text = error?.description ?? "it was accepted"
        #expect(text == ExactTexts.expected("ContractFile", id, actual: text))
    }

    @Test func functionsInAnotherOrderAreReported() throws {
        let contract = try Contract(json: Array(Self.contract.utf8), file: "c.contract.json")
        var other = contract
        other.functions.reverse()
        let text = ExactTexts.text(contract.differences(from: other).map(\.diagnostic))
        #expect(text == ExactTexts.expected("ContractDifferences", "functions in another order", actual: text))
    }

    @Test(arguments: [("copy", "none"), ("none", "copy")])
    func stateThatBecomesOrCeasesToBeReadOnlyIsReported(_ old: String, _ new: String) throws {
        func contract(_ writtenBy: String) throws -> Contract {
            try Contract(
                json: Array(Self.contract.replacing("\"copy\"", with: "\"\(writtenBy)\"").utf8), file: "c.contract.json"
            )
        }
        let text = try ExactTexts.text(contract(old).differences(from: contract(new)).map(\.diagnostic))
        #expect(text == ExactTexts.expected("ContractDifferences", "written by \(old), then \(new)", actual: text))
    }

    @Test(arguments: ["\"\\u12", "\"\\u12x4\""])
    func jsonWithHalfAnEscape(_ text: String) {
        #expect {
            try JSONReader.read(Array(text.utf8))
        } throws: {
            "\($0)" == "line 1, column 2: incomplete \\u escape"
        }
    }

    @Test(arguments: [
        ("max query", "`(` is missing after `max`"),
        ("9223372036854775807 + query + 1 + 9223372036854775807", "the expression is too large"),
    ])
    func sizeThatCannotBeRead(_ text: String, _ message: String) {
        #expect {
            try SizeText.parse(text, symbolNames: ["query"])
        } throws: {
            ($0 as? SizeText.Failure)?.message == message
        }
    }

    /// A copy of a state that no computer holds.
    private static let endless: BundleProgram = {
        let shape = [SizeExpression(1 << 62)]
        var program = BundleProgram(
            producer: "", programDigest: [], symbols: [], tensors: [],
            states: [
                .init(
                    name: "s", sourceName: "s", scalarType: .float32, shape: shape, initialValue: .splat([0, 0, 0, 0]))
            ], functions: [], kernels: ["copy"])
        program.functions = [
            .init(
                name: "main", inputs: [], outputs: [],
                states: [.init(state: 0, value: 0, writtenBy: "none", copiedBytes: .zero, copyReason: "")],
                symbolSources: [],
                values: [
                    .init(scalarType: .float32, shape: shape, storage: .state(0)),
                    .init(scalarType: .float32, shape: shape, storage: .arena(first: 0, last: 0)),
                ],
                instructions: [.init(kernel: 0, operands: [0], results: [1], ints: [], floats: [], source: nil)])
        ]
        return program
    }()

    @Test func budgetOfAStateThatNoComputerHolds() throws {
        var program = Self.endless
        program.functions = []
        let error = #expect(throws: Diagnostic.self) {
            _ = try MemoryBudget(program, sources: [], sessions: 1, concurrentRuns: 1, limit: nil, threads: 1)
        }
        let text = error?.description ?? "it was counted"
        #expect(text == ExactTexts.expected("Tool", "budget of an endless state", actual: text))
    }

    @Test func budgetThatTheSessionsExceed() throws {
        var program = Self.endless
        program.functions = []
        program.states[0].shape = [SizeExpression(1 << 20)]
        let budget = try MemoryBudget(
            program, sources: [], sessions: 16, concurrentRuns: 1, limit: 40 << 20, threads: 1)
        let text = budget.finding(at: "model.statepack")?.description ?? "it fits"
        #expect(text == ExactTexts.expected("Tool", "budget that sessions exceed", actual: text))
    }

    @Test func copyOfAStateThatNoComputerHolds() throws {
        let error = #expect(throws: Diagnostic.self) { _ = try StepCopies(Self.endless, sources: []) }
        let text = error?.description ?? "it was counted"
        #expect(text == ExactTexts.expected("Tool", "copy of an endless state", actual: text))
    }
}
