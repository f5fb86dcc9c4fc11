import StatepackDiagnostics
import StatepackTool
import Testing

/// A command line, run in this process with both streams captured.
struct ToolRun {
    var status: Int32
    var results: String
    var diagnostics: String

    init(_ program: String, _ words: String...) async { await self.init(program, words) }

    init(_ program: String, _ words: [String]) async {
        let console = Console.capturing()
        status = Tool.run(program, words, console: console)
        results = console.results
        diagnostics = console.diagnostics
    }
}

@Suite struct CommandLineTests {
    @Test(arguments: [
        ("convert", ["--help"], "help-convert.txt"), ("validate", ["--help"], "help-validate.txt"),
        ("statepack", ["--help"], "help-statepack.txt"),
        ("statepack", ["inspect", "-h"], "help-statepack-inspect.txt"),
        ("statepack", ["help", "run"], "help-statepack-run.txt"),
        ("statepack", ["bench", "--help"], "help-statepack-bench.txt"),
        ("statepack", ["describe", "--help"], "help-statepack-describe.txt"),
        ("statepack", ["diff", "--help"], "help-statepack-diff.txt"),
        ("statepack", ["contract", "--help"], "help-statepack-contract.txt"),
    ])
    func helpIsTheGoldenText(_ program: String, _ words: [String], _ golden: String) async throws {
        let run = await ToolRun(program, words)
        #expect(run.status == 0)
        #expect(run.diagnostics == "")
        try #expect(run.results == Golden.text(golden, actual: run.results))
    }

    @Test func helpOfASubcommandDiffersFromTheOneOfItsProgramByItsNameOnly() async {
        for name in ["convert", "validate"] {
            let alone = await ToolRun(name, "--help")
            let within = await ToolRun("statepack", name, "--help")
            #expect(within.results == alone.results.replacing("usage: \(name)", with: "usage: statepack \(name)"))
        }
    }

    @Test func versionIsPrintedWhateverElseIsMissing() async {
        for (program, words) in [("convert", ["--version"]), ("statepack", ["--version"]), ("validate", ["--version"])]
        {
            let run = await ToolRun(program, words)
            #expect(run.status == 0)
            #expect(run.results == "statepack 0.1.0 (bundle format 1.0)\n")
        }
    }

    struct Usage: CustomTestStringConvertible {
        var testDescription: String
        var program: String
        var words: [String]
        var diagnostics: String
    }

    static let usageErrors: [Usage] = [
        Usage(
            testDescription: "unknown option with a near name", program: "convert", words: ["a.pb", "--ouptut", "b"],
            diagnostics: """
                error[E0702]: unknown option `--ouptut`
                  --> convert
                  found:    --ouptut
                  hint:     did you mean `--output`?
                error[E0707]: unexpected argument `b`
                  --> convert
                  expected: convert EXPORTED.PB [options]
                  found:    b

                """),
        Usage(
            testDescription: "unknown option without a near name", program: "validate", words: ["m", "--xyzzy=3"],
            diagnostics: """
                error[E0702]: unknown option `--xyzzy`
                  --> validate
                  found:    --xyzzy
                  hint:     see `validate --help`

                """),
        Usage(
            testDescription: "option without its value", program: "convert", words: ["a.pb", "-o"],
            diagnostics: """
                error[E0704]: option `-o` needs a value
                  --> convert
                  expected: -o PATH
                  found:    -o at the end of the line

                """),
        Usage(
            testDescription: "option followed by another", program: "convert",
            words: ["a.pb", "-o", "--require-in-place"],
            diagnostics: """
                error[E0704]: option `-o` needs a value
                  --> convert
                  expected: -o PATH
                  found:    -o --require-in-place
                  hint:     a value that starts with a dash is written `-o=VALUE`

                """),
        Usage(
            testDescription: "flag with a value", program: "validate", words: ["m", "--json=yes"],
            diagnostics: """
                error[E0705]: option `--json` takes no value
                  --> validate
                  expected: --json
                  found:    --json=yes

                """),
        Usage(
            testDescription: "number out of range", program: "statepack", words: ["run", "m", "--threads", "0"],
            diagnostics: """
                error[E0705]: option `--threads` has an invalid value
                  --> statepack run
                  expected: an integer, 1 to 1024
                  found:    0

                """),
        Usage(
            testDescription: "empty value", program: "convert", words: ["a.pb", "--output="],
            diagnostics: """
                error[E0705]: option `--output` has an empty value
                  --> convert
                  expected: PATH
                  found:    ""

                """),
        Usage(
            testDescription: "option given twice", program: "convert", words: ["a.pb", "-o", "x", "--output=y"],
            diagnostics: """
                error[E0708]: option `--output` is given twice
                  --> convert
                  expected: one value
                  found:    x, y

                """),
        Usage(
            testDescription: "operand missing", program: "convert", words: [],
            diagnostics: """
                error[E0706]: EXPORTED.PB is missing
                  --> convert
                  expected: convert EXPORTED.PB [options]
                  hint:     see `convert --help`

                """),
        Usage(
            testDescription: "no command", program: "statepack", words: [],
            diagnostics: """
                error[E0706]: COMMAND is missing
                  --> statepack
                  expected: convert, validate, inspect, describe, diff, contract, run, bench, help
                  hint:     see `statepack --help`

                """),
        Usage(
            testDescription: "unknown command", program: "statepack", words: ["inspekt", "m"],
            diagnostics: """
                error[E0703]: unknown command `inspekt`
                  --> statepack
                  expected: convert, validate, inspect, describe, diff, contract, run, bench, help
                  found:    inspekt
                  hint:     did you mean `inspect`?

                """),
        Usage(
            testDescription: "option written as a command", program: "statepack", words: ["explain", "E0718"],
            diagnostics: """
                error[E0703]: unknown command `explain`
                  --> statepack
                  expected: convert, validate, inspect, describe, diff, contract, run, bench, help
                  found:    explain
                  hint:     did you mean `statepack --explain E0718`?

                """),
        Usage(
            testDescription: "help for an unknown command", program: "statepack", words: ["help", "rnu"],
            diagnostics: """
                error[E0703]: unknown command `rnu`
                  --> statepack help
                  expected: convert, validate, inspect, describe, diff, contract, run, bench, help
                  found:    rnu
                  hint:     did you mean `run`?

                """),
        Usage(
            testDescription: "unknown code to explain", program: "statepack", words: ["--explain", "E9999"],
            diagnostics: """
                error[E0705]: there is no diagnostic `E9999`
                  --> statepack --explain
                  expected: a code such as E0301, or a name such as stateNamesMismatch
                  found:    E9999

                """),
    ]

    @Test(arguments: usageErrors)
    func usageErrorsExitWithTwoAndSayWhatIsWrong(_ row: Usage) async {
        let run = await ToolRun(row.program, row.words)
        #expect(run.status == 2)
        #expect(run.results == "")
        #expect(run.diagnostics == row.diagnostics)
    }

    @Test func everyCodeIsExplained() async {
        for row in Diagnostic.Code.table {
            let run = await ToolRun("statepack", "--explain", row.code.rawValue.lowercased())
            #expect(run.status == 0)
            let example = row.example.split(separator: "\n", omittingEmptySubsequences: false).map { "    \($0)\n" }
            #expect(
                run.results == """
                    \(row.code) \(row.name)
                      cause:     \(row.cause)
                      example:
                    \(example.joined())  remedy:    \(row.remedy)
                      exit code: \(row.exit)

                    """)
            let byName = await ToolRun("statepack", "--explain", row.name)
            #expect(byName.results == run.results)
        }
    }

    @Test(arguments: [
        ("--ouput", ["--output", "--report"], "--output"), ("keycache", ["valueCache", "keyCache"], "keyCache"),
        ("featuers", ["features", "position_ids"], "features"), ("xyz", ["features"], nil), ("a", ["b", "A"], "A"),
        ("", ["a"], "a"), ("logits", [], nil),
    ])
    func nearestNameIsWhatWasMeant(_ word: String, _ candidates: [String], _ nearest: String?) {
        #expect(nearestName(to: word, among: candidates) == nearest)
    }

    @Test(arguments: [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("kitten", "sitting", 3), ("ab", "ba", 1)])
    func editDistanceCountsSwapsOnce(_ a: String, _ b: String, _ distance: Int) {
        #expect(editDistance(a, b) == distance)
        #expect(editDistance(b, a) == distance)
    }
}
