import StatepackBundle
import StatepackTool
import Testing

@Suite struct DiffTests {
    /// A folder with `old.statepack` and `new.statepack`, the new one changed.
    static func bundles(
        weights: [UInt8] = Array(repeating: 1, count: 64), _ change: (inout BundleProgram) -> Void
    ) throws -> TestFolder {
        let folder = TestFolder()
        var program = try RichModel.program()
        try RichModel.write(program, to: folder / "old.statepack")
        program.programDigest[0] = 0
        change(&program)
        try RichModel.write(program, weights: weights, to: folder / "new.statepack")
        return folder
    }

    static func diff(_ folder: TestFolder, _ options: String...) async -> ToolRun {
        await ToolRun("statepack", ["diff", folder / "old.statepack", folder / "new.statepack"] + options)
    }

    @Test func otherWeightsAreANumericChange() async throws {
        let folder = try Self.bundles(weights: Array(repeating: 2, count: 64)) { _ in }
        let run = await Self.diff(folder)
        #expect(run.status == 0)
        #expect(
            run.results == """
                numeric[E0783]: the stored weights are others
                  --> weights
                  old:  sha256 7c8975e1e60a5c8337f28edf8c33c3b180360b7279644a9bc1af3c51e6220bf5
                  new:  sha256 f83b332be4e6a5a4b1c56aaf6db52657da495e149870057d8590ab9d7a6167ad
                old       \(folder / "old.statepack") (a bundle)
                new       \(folder / "new.statepack") (a bundle)
                contract  the same
                weights   changed
                graph     the same
                verdict   numeric: the same names, types and shapes, other values

                """)
        #expect(await Self.diff(folder, "--fail-on", "breaking").status == 0)
        #expect(await Self.diff(folder, "--fail-on", "any").status == 1)
    }

    @Test func otherInstructionsAreANumericChangeOfTheirFunction() async throws {
        let folder = try Self.bundles { $0.functions[1].instructions[0].floats = [1] }
        let run = await Self.diff(folder)
        #expect(
            run.results.hasPrefix(
                """
                numeric[E0784]: the function `decode` computes in another way
                  --> function `decode`
                  old:  1 instruction of 1 kind
                  new:  1 instruction of 1 kind, connected otherwise

                """), "\(run.results)")
        #expect(run.results.contains("\nweights   the same\ngraph     changed\n"))
    }

    @Test func otherSourceLinesAreNoDifference() async throws {
        let folder = try Self.bundles { $0.producer = "another version" }
        let run = await Self.diff(folder, "--fail-on", "any")
        #expect(run.status == 0)
        #expect(run.results.hasSuffix("\nverdict   no difference in what was compared\n"))
    }

    @Test func bundleAndExportedProgramAreComparedByTheirProgram() async throws {
        let folder = try ConvertTests.exampleFolder()
        #expect(await ToolRun("convert", folder / "exported.pb", "-o", folder / "new.statepack").status == 0)
        let same = await ToolRun(
            "statepack", "diff", folder / "exported.pb", folder / "new.statepack", "--fail-on", "any")
        #expect(same.status == 0)
        #expect(same.results.contains("\nweights   the same\ngraph     the same\n"))
        let other = await ToolRun(
            "statepack", "diff", Repository.path("Tests/Fixtures/operators/exported.pb"), folder / "new.statepack")
        #expect(
            other.results.contains("numeric[E0785]: the program is another one: its weights, its operators, or both\n"))
        #expect(
            other.results.contains(
                "\nweights   not compared: the programs differ, and a bundle and an exported program have no digest "))
    }

    @Test func contractsSayThatTheyHaveNoWeights() async throws {
        let folder = try Self.bundles { _ in }
        #expect(
            await ToolRun("statepack", "describe", folder / "old.statepack", "-o", folder / "c.contract.json").status
                == 0)
        for (old, new, reason) in [
            ("c.contract.json", "new.statepack", "OLD is a contract"),
            ("new.statepack", "c.contract.json", "NEW is a contract"),
            ("c.contract.json", "c.contract.json", "both files are contracts"),
        ] {
            let run = await ToolRun("statepack", "diff", folder / old, folder / new)
            #expect(run.status == 0)
            #expect(run.results.contains("\nweights   not compared: \(reason)\ngraph     not compared: \(reason)\n"))
        }
    }

    @Test func breakingChangesComeFirst() async throws {
        let folder = try Self.bundles(weights: Array(repeating: 2, count: 64)) {
            $0.symbols[0].max = 1024
            $0.functions[1].inputs[0].name = "frame"
        }
        let run = await Self.diff(folder, "--format", "json")
        let report = try JSONReader.read(Array(run.results.utf8))
        let classes = report["differences"]?.arrayValue?.map { $0["class"]?.stringValue }
        #expect(classes == ["breaking", "compatible", "numeric"])
        #expect(report["counts"] == ["breaking": 1, "compatible": 1, "numeric": 1])
        #expect(report["class"] == "breaking")
        #expect(report["weights"] == "changed")
        #expect(
            report["differences"]?.arrayValue?.first == [
                "class": "breaking", "change": "renamed", "code": "E0720",
                "message": "the input `token` is called `frame`", "location": "function `decode`, input `token`",
                "old": "token: [1] int64", "new": "frame: [1] int64",
                "hint":
                    "name it `token` with input_names in the exporter, or change the contract and the callers together",
            ])
    }

    @Test func workflowCommandsMarkTheNewFile() async throws {
        let folder = try Self.bundles { $0.symbols[0].max = 256 }
        let run = await Self.diff(folder, "--format", "github")
        #expect(run.status == 0)
        #expect(
            run.results.hasPrefix(
                "::error title=E0719 contractSymbol::the symbol `query` has other bounds (breaking)%0A  --> "
                    + "\(folder / "new.statepack"), symbol `query`%0A  expected: 1 to 512%0A  found:    1 to 256\n"),
            "\(run.results)")
    }

    @Test func markdownIsTheGoldenTextAndNoNameLeavesItsCell() async throws {
        let folder = TestFolder()
        let described = try await ContractEditTests.model()
        let hostile = "<img src=x onerror=alert(1)> | `x` **b** @someone #1 [l](http://h) &amp; \\\\ \\n| a |"
        folder.write(described.contract.utf8, to: "old.contract.json")
        folder.write(
            described.contract.replacing("\"tokens\"", with: "\"\(hostile)\"").replacing(
                "[2, 256, 64]", with: "[2, 512, 64]"
            )
            .utf8, to: "new.contract.json")
        let run = await ToolRun(
            "statepack", "diff", folder / "old.contract.json", folder / "new.contract.json", "--format", "markdown")
        #expect(run.status == 0)
        let text = run.results.replacing(entities(folder.path), with: "FOLDER")
        #expect(text == (try Golden.text("diff.md", actual: text)))
        let rows = text.split(separator: "\n").filter { $0.hasPrefix("| ") }
        #expect(rows.count == 7)
        for row in rows { #expect(row.split(separator: "|").count == 5) }
        for mark in ["<img", "@someone", " #1 ", "http:", "**b**"] { #expect(!text.contains(mark)) }
    }

    private func entities(_ text: String) -> String {
        text.unicodeScalars.map { scalar in
            let isPlain = scalar.properties.isAlphabetic || scalar.properties.numericType != nil || scalar == "-"
            return isPlain ? String(scalar) : "&#\(scalar.value);"
        }.joined()
    }

    @Test func changedGraphHasTheWordsOfItsMessage() {
        #expect(ContractDifference.Change.graph.words == "computes in another way")
    }

    @Test func noDifferenceHasAMarkdownTextToo() async throws {
        let (folder, contract) = try await ContractEditTests.model()
        folder.write(contract.utf8, to: "c.json")
        let run = await ToolRun(
            "statepack", "diff", folder / "c.json", folder / "model.statepack", "--format", "markdown")
        #expect(run.results.hasPrefix("### Statepack: no difference\n\n"))
        #expect(run.results.hasSuffix("\n\n**no difference in what was compared**\n"))
    }

    @Test func bothUnreadableFilesAreReported() async {
        let run = await ToolRun("statepack", "diff", "/missing/a.contract.json", "/missing/b.statepack")
        #expect(run.status == 3)
        #expect(
            run.diagnostics == """
                error[E0102]: there is no such file
                  --> /missing/a.contract.json
                error[E0502]: there is no such bundle
                  --> /missing/b.statepack
                  hint:     check the path

                """)
        #expect(run.results == "")
    }

    @Test func oneFileIsAUsageError() async {
        let run = await ToolRun("statepack", "diff", "a.contract.json")
        #expect(run.status == 2)
        #expect(run.diagnostics.hasPrefix("error[E0706]: NEW is missing\n"))
    }
}
