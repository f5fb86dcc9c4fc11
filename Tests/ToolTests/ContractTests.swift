import ExactTexts
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
                    .init(
                        name: "keyCache", scalarType: .float32, shape: ["2", "1", "32", "64"],
                        rules: .init(initialValue: .fill([0, 0, 0, 0]), writtenBy: "index_copy")),
                    .init(
                        name: "valueCache", scalarType: .float32, shape: ["2", "1", "32", "64"],
                        rules: .init(
                            initialValue: .tensor(sha256: Array(repeating: 0xA1, count: 32)), writtenBy: "none")),
                ],
                outputs: [.init(name: "logits", scalarType: .float32, shape: ["1", "query", "64"])],
                context: .init(
                    positions: "position_ids",
                    axes: [.init(state: "keyCache", axis: 2), .init(state: "valueCache", axis: 2)]))
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
                        {
                          "name": "keyCache",
                          "scalarType": "float32",
                          "shape": [2, 1, 32, 64],
                          "initialValue": {"fill": 0},
                          "writtenBy": "index_copy"
                        },
                        {
                          "name": "valueCache",
                          "scalarType": "float32",
                          "shape": [2, 1, 32, 64],
                          "initialValue": {"sha256": "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"},
                          "writtenBy": "none"
                        }
                      ],
                      "outputs": [
                        {"name": "logits", "scalarType": "float32", "shape": [1, "query", 64]}
                      ],
                      "context": {
                        "positions": "position_ids",
                        "axes": {"keyCache": 2, "valueCache": 2}
                      }
                    }
                  ]
                }

                """)
    }

    @Test func contractHoldsForItself() { #expect(Self.contract.differences(from: Self.contract).isEmpty) }

    struct Difference: CustomTestStringConvertible {
        var testDescription: String
        var change: @Sendable (inout Contract) -> Void
        var expected: [ContractDifference]
    }

    static let keyCache = "function `main`, state `keyCache`"

    static let differences: [Difference] = [
        Difference(
            testDescription: "function of another name and the same arguments",
            change: { $0.functions[0].name = "step" },
            expected: [
                ContractDifference(
                    .breaking, .renamed,
                    Diagnostic(
                        .contractRenamed, "the function `main` is called `step`", at: "function `main`",
                        expected: "main", found: "step",
                        hint: "name it `main` in the exporter, or change the contract and the callers together"))
            ]),
        Difference(
            testDescription: "function that is missing, and another one",
            change: {
                $0.functions[0].name = "mian"
                $0.functions[0].inputs.removeLast()
            },
            expected: [
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractFunctionMissing, "there is no function `main`", at: "function `main`",
                        expected: "main", found: "mian", hint: "did you mean `mian`?")),
                ContractDifference(
                    .compatible, .added,
                    Diagnostic(
                        .contractFunctionExtra, "the function `mian` is new", at: "function `mian`",
                        expected: "main", found: "mian")),
            ]),
        Difference(
            testDescription: "no function at all", change: { $0.functions = [] },
            expected: [
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractFunctionMissing, "there is no function `main`", at: "function `main`",
                        expected: "main", found: "no functions"))
            ]),
        Difference(
            testDescription: "renamed state, which its context follows",
            change: {
                $0.functions[0].states[0].name = "keys"
                $0.functions[0].context?.axes[0].state = "keys"
            },
            expected: [
                ContractDifference(
                    .breaking, .renamed,
                    Diagnostic(
                        .contractRenamed, "the state `keyCache` is called `keys`", at: keyCache,
                        expected: "keyCache: [2, 1, 32, 64] float32", found: "keys: [2, 1, 32, 64] float32",
                        hint: "name it `keyCache` with state_names in the exporter, "
                            + "or change the contract and the callers together"))
            ]),
        Difference(
            testDescription: "state of another name and type",
            change: {
                $0.functions[0].states[0] = $0.functions[0].states[0].named("keycache")
                $0.functions[0].states[0].scalarType = .float16
                $0.functions[0].context?.axes[0].state = "keycache"
            },
            expected: [
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractEntryMissing, "there is no state `keyCache`", at: keyCache,
                        expected: "keyCache: [2, 1, 32, 64] float32", found: "keycache, valueCache",
                        hint: "did you mean `keycache`?")),
                ContractDifference(
                    .breaking, .added,
                    Diagnostic(
                        .contractEntryExtra, "the state `keycache` is new", at: "function `main`, state `keycache`",
                        expected: "keyCache, valueCache", found: "keycache: [2, 1, 32, 64] float16")),
                ContractDifference(
                    .breaking, .context,
                    Diagnostic(
                        .contractContext, "the function `main` has other context rules",
                        at: "function `main`, context",
                        expected: "position_ids indexes keyCache axis 2, valueCache axis 2",
                        found: "position_ids indexes keycache axis 2, valueCache axis 2")),
            ]),
        Difference(
            testDescription: "input that became a state",
            change: {
                var entry = $0.functions[0].inputs.removeLast()
                entry.rules = .init(initialValue: .fill([0, 0, 0, 0, 0, 0, 0, 0]), writtenBy: "none")
                $0.functions[0].states.append(entry)
            },
            expected: [
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractEntryMissing, "there is no input `position_ids`",
                        at: "function `main`, input `position_ids`", expected: "position_ids: [query] int64",
                        found: "features", hint: "`position_ids` is declared as a state")),
                ContractDifference(
                    .breaking, .added,
                    Diagnostic(
                        .contractEntryExtra, "the state `position_ids` is new",
                        at: "function `main`, state `position_ids`", expected: "keyCache, valueCache",
                        found: "position_ids: [query] int64")),
            ]),
        Difference(
            testDescription: "order of states", change: { $0.functions[0].states.swapAt(0, 1) },
            expected: [
                ContractDifference(
                    .breaking, .order,
                    Diagnostic(
                        .contractOrder, "the states come in another order", at: "function `main`",
                        expected: "keyCache, valueCache", found: "valueCache, keyCache"))
            ]),
        Difference(
            testDescription: "scalar type and shape of one output",
            change: {
                $0.functions[0].outputs[0].scalarType = .float16
                $0.functions[0].outputs[0].shape = ["query", "64"]
            },
            expected: [
                ContractDifference(
                    .breaking, .scalarType,
                    Diagnostic(
                        .contractScalarType, "the output `logits` has another scalar type",
                        at: "function `main`, output `logits`", expected: "[1, query, 64] float32",
                        found: "[query, 64] float16")),
                ContractDifference(
                    .breaking, .shape,
                    Diagnostic(
                        .contractShape, "the output `logits` has another shape",
                        at: "function `main`, output `logits`", expected: "[1, query, 64] float32",
                        found: "[query, 64] float16")),
            ]),
        Difference(
            testDescription: "output at the end",
            change: { $0.functions[0].outputs.append(.init(name: "hidden", scalarType: .float32, shape: ["64"])) },
            expected: [
                ContractDifference(
                    .compatible, .added,
                    Diagnostic(
                        .contractEntryExtra, "the output `hidden` is new", at: "function `main`, output `hidden`",
                        expected: "logits", found: "hidden: [64] float32"))
            ]),
        Difference(
            testDescription: "output before another one",
            change: {
                $0.functions[0].outputs.insert(.init(name: "hidden", scalarType: .float32, shape: ["64"]), at: 0)
            },
            expected: [
                ContractDifference(
                    .breaking, .added,
                    Diagnostic(
                        .contractEntryExtra, "the output `hidden` is new", at: "function `main`, output `hidden`",
                        expected: "logits", found: "hidden: [64] float32"))
            ]),
        Difference(
            testDescription: "narrower bounds of a symbol", change: { $0.symbols[0].max = 1024 },
            expected: [
                ContractDifference(
                    .breaking, .bounds,
                    Diagnostic(
                        .contractSymbol, "the symbol `query` has other bounds", at: "symbol `query`",
                        expected: "1 to 2048", found: "1 to 1024"))
            ]),
        Difference(
            testDescription: "wider bounds of a symbol", change: { $0.symbols[0].max = 4096 },
            expected: [
                ContractDifference(
                    .compatible, .bounds,
                    Diagnostic(
                        .contractSymbol, "the symbol `query` has wider bounds", at: "symbol `query`",
                        expected: "1 to 2048", found: "1 to 4096"))
            ]),
        Difference(
            testDescription: "symbol of another name",
            change: {
                $0.symbols[0].name = "length"
                $0.functions[0].inputs[0].shape[1] = "length"
                $0.functions[0].inputs[1].shape[0] = "length"
                $0.functions[0].outputs[0].shape[1] = "length"
            },
            expected: [
                ContractDifference(
                    .compatible, .renamed,
                    Diagnostic(
                        .contractSymbol, "the symbol `query` is called `length`", at: "symbol `query`",
                        expected: "query", found: "length"))
            ]),
        Difference(
            testDescription: "symbol that nothing uses",
            change: { $0.symbols.append(.init(name: "batch", min: 1, max: 4)) },
            expected: [
                ContractDifference(
                    .compatible, .added,
                    Diagnostic(
                        .contractSymbol, "the symbol `batch` is new", at: "symbol `batch`", expected: "query",
                        found: "batch: 1 to 4"))
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
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractSymbol, "there is no symbol `query`", at: "symbol `query`",
                        expected: "query: 1 to 2048", found: "no symbols")),
                ContractDifference(
                    .breaking, .shape,
                    Diagnostic(
                        .contractShape, "the input `features` has another shape",
                        at: "function `main`, input `features`", expected: "[1, query, 64] float32",
                        found: "[1, 1, 64] float32")),
                ContractDifference(
                    .breaking, .shape,
                    Diagnostic(
                        .contractShape, "the input `position_ids` has another shape",
                        at: "function `main`, input `position_ids`", expected: "[query] int64", found: "[1] int64")),
                ContractDifference(
                    .breaking, .shape,
                    Diagnostic(
                        .contractShape, "the output `logits` has another shape", at: "function `main`, output `logits`",
                        expected: "[1, query, 64] float32", found: "[1, 1, 64] float32")),
            ]),
        Difference(
            testDescription: "another initial value",
            change: { $0.functions[0].states[0].rules?.initialValue = .fill([0, 0, 0x80, 0xFF]) },
            expected: [
                ContractDifference(
                    .numeric, .initialValue,
                    Diagnostic(
                        .contractInitialValue, "the state `keyCache` starts from other values", at: keyCache,
                        expected: "0", found: "-infinity"))
            ]),
        Difference(
            testDescription: "written by other operators",
            change: { $0.functions[0].states[0].rules?.writtenBy = "index_put" },
            expected: [
                ContractDifference(
                    .compatible, .writtenBy,
                    Diagnostic(
                        .contractWrittenBy, "the state `keyCache` is written in another way", at: keyCache,
                        expected: "index_copy", found: "index_put"))
            ]),
        Difference(
            testDescription: "context rules taken away", change: { $0.functions[0].context = nil },
            expected: [
                ContractDifference(
                    .breaking, .removed,
                    Diagnostic(
                        .contractContext, "the function `main` declares no context rules",
                        at: "function `main`, context",
                        expected: "position_ids indexes keyCache axis 2, valueCache axis 2", found: "no context rules"))
            ]),
    ]

    @Test(arguments: differences)
    func everyDifferenceIsReportedWithExpectedAndFound(_ row: Difference) {
        var found = Self.contract
        row.change(&found)
        #expect(Self.contract.differences(from: found) == row.expected)
        let text = ExactTexts.text(row.expected.map(\.diagnostic))
        #expect(text == ExactTexts.expected("ContractDifferences", row.testDescription, actual: text))
    }

    @Test func contextRulesThatAreNewAreReported() {
        var old = Self.contract
        old.functions[0].context = nil
        #expect(
            old.differences(from: Self.contract) == [
                ContractDifference(
                    .breaking, .added,
                    Diagnostic(
                        .contractContext, "the function `main` declares context rules", at: "function `main`, context",
                        expected: "no context rules", found: "position_ids indexes keyCache axis 2, valueCache axis 2"))
            ])
    }

    @Test func functionThatIsNewIsReportedWhereNoneWasDeclared() {
        #expect(
            Contract(symbols: Self.contract.symbols, functions: []).differences(from: Self.contract) == [
                ContractDifference(
                    .compatible, .added,
                    Diagnostic(
                        .contractFunctionExtra, "the function `main` is new", at: "function `main`",
                        expected: "no functions", found: "main"))
            ])
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
        var other = read
        other.symbols.append(.init(name: "batch", min: 1, max: 4))
        #expect(other.differences(from: reordered).isEmpty)
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

    /// Names that Python's `Dim` takes.
    @Test(arguments: ["max", "min", "mod", "floordiv", "größe", "a·b", "क्ष", "_"])
    func aSymbolOfAnyNameIsReadBack(_ name: String) throws {
        let (symbol, names) = (SizeExpression.symbol(0), [name])
        for expression in [
            symbol, try symbol.times(2).plus(1), try symbol.maximum(SizeExpression(3)),
            try symbol.minimum(SizeExpression(3)), try symbol.modulo(SizeExpression(4)),
            try symbol.floorDivided(by: SizeExpression(2)),
        ] {
            let text = expression.description(symbolNames: names)
            #expect(try SizeText.parse(text, symbolNames: names) == expression, "\(text)")
        }
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
            testDescription: "newer version, with a key of that version", replace: "\"contract\": 1,",
            with: "\"contract\": 2, \"future\": [],",
            expected: Diagnostic(
                .contractMalformed, "the contract has another version", at: "c.json, contract", expected: "1",
                found: "2")),
        Malformed(
            testDescription: "byte order mark", replace: "{\n  \"contract\"", with: "\u{FEFF}{\n  \"contract\"",
            expected: Diagnostic(
                .contractMalformed,
                "the contract is not valid JSON: it starts with a byte order mark, which JSON does not have",
                at: "c.json:1:1")),
        Malformed(
            testDescription: "text for a bound, of a symbol that shapes use", replace: "\"max\": 2048",
            with: "\"max\": \"2048\"",
            expected: Diagnostic(
                .contractMalformed, "the contract has the wrong kind of value", at: "c.json, symbols[0].max",
                expected: "an integer", found: "a string")),
        Malformed(
            testDescription: "null for the symbols, which shapes use", replace: "\"symbols\": [",
            with: "\"symbols\": null, \"$schema\": [",
            expected: Diagnostic(
                .contractMalformed, "the contract has the wrong kind of value", at: "c.json, symbols",
                expected: "an array", found: "null")),
        Malformed(
            testDescription: "misspelled key", replace: "\"outputs\": [", with: "\"output\": [",
            expected: Diagnostic(
                .contractMalformed, "unknown key `output`", at: "c.json, functions[0]",
                expected: "name, inputs, states, outputs, context", found: "output", hint: "did you mean `outputs`?")),
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
            testDescription: "symbol that reads like a product", replace: "\"query\", \"min\"",
            with: "\"2*query\", \"min\"",
            expected: Diagnostic(
                .contractMalformed, "the name of a symbol is not an identifier", at: "c.json, symbols[0]",
                expected: "letters, digits and `_`, no digit first", found: "2*query")),
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
        // A fault is said once, not again wherever it shows; a misspelled key is missing as well.
        #expect(error?.diagnostics.count == (row.testDescription == "misspelled key" ? 2 : 1))
        let rendered = row.expected.description
        #expect(rendered == ExactTexts.expected("ContractFile", row.testDescription, actual: rendered))
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

extension Contract.Entry {
    fileprivate func named(_ name: String) -> Contract.Entry {
        var entry = self
        entry.name = name
        return entry
    }
}
