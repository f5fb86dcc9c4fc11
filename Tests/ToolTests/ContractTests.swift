import StatepackBundle
import StatepackDiagnostics
import StatepackTool
import Testing

@Suite struct ContractTests {
    static let contract = Contract(
        symbols: [.init(name: "query", min: 1, max: 2048)],
        functions: [
            .init(
                name: "main",
                inputs: [
                    .init(name: "features", scalarType: .float32, shape: ["1", "query", "64"]),
                    .init(name: "position_ids", scalarType: .int64, shape: ["query"]),
                ],
                states: [
                    .init(name: "keyCache", scalarType: .float32, shape: ["2", "1", "32", "64"]),
                    .init(name: "valueCache", scalarType: .float32, shape: ["2", "1", "32", "64"]),
                ],
                outputs: [.init(name: "logits", scalarType: .float32, shape: ["1", "query", "64"])])
        ])

    @Test func documentOfAContractReadsBackAsTheSameContract() throws {
        let text = Self.contract.json.text
        let read = try Contract(json: Array(text.utf8), file: "contract.json")
        #expect(read == Self.contract)
        #expect(read.json.text == text)
        #expect(
            text == """
                {
                  "contract": 1,
                  "symbols": [
                    {"name": "query", "min": 1, "max": 2048}
                  ],
                  "functions": [
                    {
                      "name": "main",
                      "inputs": [
                        {"name": "features", "scalarType": "float32", "shape": [1, "query", 64]},
                        {"name": "position_ids", "scalarType": "int64", "shape": ["query"]}
                      ],
                      "states": [
                        {"name": "keyCache", "scalarType": "float32", "shape": [2, 1, 32, 64]},
                        {"name": "valueCache", "scalarType": "float32", "shape": [2, 1, 32, 64]}
                      ],
                      "outputs": [
                        {"name": "logits", "scalarType": "float32", "shape": [1, "query", 64]}
                      ]
                    }
                  ]
                }

                """)
    }

    @Test func contractHoldsForItself() { #expect(Self.contract.differences(from: Self.contract).isEmpty) }

    struct Difference: CustomTestStringConvertible {
        var testDescription: String
        var change: @Sendable (inout Contract) -> Void
        var expected: [Diagnostic]
    }

    static let differences: [Difference] = [
        Difference(
            testDescription: "missing function", change: { $0.functions[0].name = "mian" },
            expected: [
                Diagnostic(
                    .contractFunctionMissing, "the program has no function `main`", at: "function `main`",
                    expected: "main",
                    found: "mian", hint: "did you mean `mian`?"),
                Diagnostic(
                    .contractFunctionExtra, "the contract does not declare the function `mian`", at: "function `mian`",
                    expected: "main", found: "mian"),
            ]),
        Difference(
            testDescription: "renamed state", change: { $0.functions[0].states[0].name = "keycache" },
            expected: [
                Diagnostic(
                    .contractEntryMissing, "the function has no state `keyCache`",
                    at: "function `main`, state `keyCache`",
                    expected: "keyCache: [2, 1, 32, 64] float32", found: "keycache, valueCache",
                    hint: "did you mean `keycache`?"),
                Diagnostic(
                    .contractEntryExtra, "the contract does not declare the state `keycache`",
                    at: "function `main`, state `keycache`", expected: "keyCache, valueCache",
                    found: "keycache: [2, 1, 32, 64] float32"),
            ]),
        Difference(
            testDescription: "input that became a state",
            change: {
                let entry = $0.functions[0].inputs.removeLast()
                $0.functions[0].states.append(entry)
            },
            expected: [
                Diagnostic(
                    .contractEntryMissing, "the function has no input `position_ids`",
                    at: "function `main`, input `position_ids`", expected: "position_ids: [query] int64",
                    found: "features", hint: "`position_ids` is declared as a state"),
                Diagnostic(
                    .contractEntryExtra, "the contract does not declare the state `position_ids`",
                    at: "function `main`, state `position_ids`", expected: "keyCache, valueCache",
                    found: "position_ids: [query] int64"),
            ]),
        Difference(
            testDescription: "order of states", change: { $0.functions[0].states.swapAt(0, 1) },
            expected: [
                Diagnostic(
                    .contractOrder, "the states come in another order", at: "function `main`",
                    expected: "keyCache, valueCache", found: "valueCache, keyCache")
            ]),
        Difference(
            testDescription: "scalar type and shape of one output",
            change: {
                $0.functions[0].outputs[0].scalarType = .float16
                $0.functions[0].outputs[0].shape = ["query", "64"]
            },
            expected: [
                Diagnostic(
                    .contractScalarType, "the output `logits` has another scalar type",
                    at: "function `main`, output `logits`", expected: "[1, query, 64] float32",
                    found: "[query, 64] float16"),
                Diagnostic(
                    .contractShape, "the output `logits` has another shape", at: "function `main`, output `logits`",
                    expected: "[1, query, 64] float32", found: "[query, 64] float16"),
            ]),
        Difference(
            testDescription: "bounds of a symbol", change: { $0.symbols[0].max = 1024 },
            expected: [
                Diagnostic(
                    .contractSymbol, "the symbol `query` has other bounds", at: "symbol `query`", expected: "1 to 2048",
                    found: "1 to 1024")
            ]),
        Difference(
            testDescription: "symbol that became a constant",
            change: {
                $0.symbols = []
                $0.functions[0].inputs[0].shape[1] = "1"
                $0.functions[0].inputs[1].shape[0] = "1"
                $0.functions[0].outputs[0].shape[1] = "1"
            },
            expected: [
                Diagnostic(
                    .contractSymbol, "the program has no symbol `query`", at: "symbol `query`",
                    expected: "query: 1 to 2048", found: "no symbols"),
                Diagnostic(
                    .contractShape, "the input `features` has another shape", at: "function `main`, input `features`",
                    expected: "[1, query, 64] float32", found: "[1, 1, 64] float32"),
                Diagnostic(
                    .contractShape, "the input `position_ids` has another shape",
                    at: "function `main`, input `position_ids`", expected: "[query] int64", found: "[1] int64"),
                Diagnostic(
                    .contractShape, "the output `logits` has another shape", at: "function `main`, output `logits`",
                    expected: "[1, query, 64] float32", found: "[1, 1, 64] float32"),
            ]),
    ]

    @Test(arguments: differences)
    func everyDifferenceIsReportedWithExpectedAndFound(_ row: Difference) {
        var found = Self.contract
        row.change(&found)
        #expect(Self.contract.differences(from: found) == row.expected)
    }

    @Test func spellingOfASizeDoesNotCount() throws {
        var edited = Self.contract
        edited.functions[0].outputs[0].shape = ["1", "2*query + 1", "64"]
        let text = edited.json.text.replacing("2*query + 1", with: "1 + query*2")
        let read = try Contract(json: Array(text.utf8), file: "contract.json")
        #expect(read == edited)
        #expect(read.differences(from: edited).isEmpty)
        // Another order of symbols changes the numbering, not the meaning.
        var reordered = edited
        reordered.symbols.insert(.init(name: "batch", min: 1, max: 4), at: 0)
        #expect(read.differences(from: reordered).isEmpty)
    }

    @Test(arguments: [
        ("query", "query"), ("3 * (query - 1)", "3*query - 3"), ("floordiv(query + 7, 8)", "floordiv(query + 7, 8)"),
        ("max(query, 4) - min(2, 3)", "max(query, 4) - 2"), ("mod(query, 4)", "mod(query, 4)"),
        ("-1 + query", "query - 1"),
    ])
    func sizeTextReadsWhatPeopleWrite(_ text: String, _ canonical: String) throws {
        let expression = try SizeText.parse(text, symbolNames: ["query"])
        let again = try SizeText.parse(expression.description(symbolNames: ["query"]), symbolNames: ["query"])
        #expect(expression == again)
        #expect(try expression == SizeText.parse(canonical, symbolNames: ["query"]))
    }

    @Test(arguments: [
        ("", "it ends too early"), ("query +", "it ends too early"), ("query 2", "unexpected `2`"),
        ("qery", "`qery` is not a symbol"), ("floordiv(query)", "`floordiv` takes two sizes"),
        ("(query", "`)` is missing"), ("floordiv(query, 0)", "division by zero"),
        ("99999999999999999999", "the number does not fit 64 bits"),
        (String(repeating: "(", count: 40), "the expression is nested too deeply"),
    ])
    func sizeTextRefusesWhatIsNotASize(_ text: String, _ message: String) {
        #expect {
            try SizeText.parse(text, symbolNames: ["query"])
        } throws: {
            ($0 as? SizeText.Failure)?.message == message
        }
    }

    struct Malformed: CustomTestStringConvertible {
        var testDescription: String
        var replace: String
        var with: String
        var expected: Diagnostic
    }

    static let malformed: [Malformed] = [
        Malformed(
            testDescription: "not JSON", replace: "\"contract\": 1,", with: "\"contract\": 1",
            expected: Diagnostic(
                .contractMalformed, "the contract is not valid JSON: expected `,` or `}`", at: "c.json:3:3")),
        Malformed(
            testDescription: "duplicate key", replace: "\"contract\": 1,", with: "\"contract\": 1, \"contract\": 1,",
            expected: Diagnostic(
                .contractMalformed, "the contract is not valid JSON: duplicate key `contract`", at: "c.json:2:18")),
        Malformed(
            testDescription: "newer version", replace: "\"contract\": 1,", with: "\"contract\": 2,",
            expected: Diagnostic(
                .contractMalformed, "the contract has another version", at: "c.json, contract", expected: "1",
                found: "2")),
        Malformed(
            testDescription: "misspelled key", replace: "\"outputs\": [", with: "\"output\": [",
            expected: Diagnostic(
                .contractMalformed, "unknown key `output`", at: "c.json, functions[0]",
                expected: "name, inputs, states, outputs", found: "output", hint: "did you mean `outputs`?")),
        Malformed(
            testDescription: "unknown scalar type", replace: "\"int64\"", with: "\"int65\"",
            expected: Diagnostic(
                .contractMalformed, "unknown scalar type `int65`", at: "c.json, functions[0].inputs[1].scalarType",
                expected: ScalarType.allCases.map(\.name).joined(separator: ", "), found: "int65",
                hint: "did you mean `int64`?")),
        Malformed(
            testDescription: "unknown symbol", replace: "\"shape\": [\"query\"]", with: "\"shape\": [\"qery\"]",
            expected: Diagnostic(
                .contractMalformed, "the size `qery` is invalid: `qery` is not a symbol",
                at: "c.json, functions[0].inputs[1].shape[0]", expected: "a number or an expression of query",
                found: "qery", hint: "did you mean `query`?")),
        Malformed(
            testDescription: "negative size", replace: "\"shape\": [\"query\"]", with: "\"shape\": [-1]",
            expected: Diagnostic(
                .contractMalformed, "the size is invalid", at: "c.json, functions[0].inputs[1].shape[0]",
                expected: "a number of at least 0, or an expression", found: "-1")),
        Malformed(
            testDescription: "state twice", replace: "\"valueCache\"", with: "\"keyCache\"",
            expected: Diagnostic(
                .contractMalformed, "the state `keyCache` occurs twice", at: "c.json, functions[0].states[1]",
                found: "keyCache")),
        Malformed(
            testDescription: "bounds the wrong way round", replace: "\"max\": 2048", with: "\"max\": 0",
            expected: Diagnostic(
                .contractMalformed, "the bounds of `query` are invalid", at: "c.json, symbols[0]",
                expected: "0 <= min <= max", found: "1, 0")),
        Malformed(
            testDescription: "number for a name", replace: "\"name\": \"main\"", with: "\"name\": 7",
            expected: Diagnostic(
                .contractMalformed, "the contract has the wrong kind of value", at: "c.json, functions[0].name",
                expected: "a name", found: "an integer")),
    ]

    @Test(arguments: malformed)
    func malformedContractIsRefusedWithItsPlace(_ row: Malformed) throws {
        let text = Self.contract.json.text.replacing(row.replace, with: row.with, maxReplacements: 1)
        #expect(text != Self.contract.json.text)
        let error = #expect(throws: DiagnosticList.self) { try Contract(json: Array(text.utf8), file: "c.json") }
        #expect(error?.diagnostics.first == row.expected)
        #expect(error?.exitCode == 3)
    }

    @Test func missingKeysAreReportedTogether() {
        let error = #expect(throws: DiagnosticList.self) { try Contract(json: Array("{}".utf8), file: "c.json") }
        #expect(
            error?.diagnostics.map(\.message) == [
                "the key `contract` is missing", "the key `symbols` is missing", "the key `functions` is missing",
            ])
    }
}
