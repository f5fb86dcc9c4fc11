import StatepackDiagnostics
import StatepackTool
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct FormatTests {
    // MARK: Workflow commands

    struct Row: CustomTestStringConvertible {
        var testDescription: String
        var diagnostic: Diagnostic
        var text: String
    }

    static let rows: [Row] = [
        Row(
            testDescription: "everything",
            diagnostic: Diagnostic(
                .wrongShape, "view for state `keys` has the wrong shape", at: "function `decode`, run(inputs:)",
                expected: "[1, 8] float32", found: "[1, 4] float32", hint: "look at the descriptor"),
            text: """
                ::error title=E0604 wrongShape::view for state `keys` has the wrong shape\
                %0A  --> function `decode`, run(inputs:)%0A  expected: [1, 8] float32%0A  found:    [1, 4] float32\
                %0A  hint:     look at the descriptor
                """),
        Row(
            testDescription: "a warning", diagnostic: Diagnostic(.recordingAbsent, "nothing", severity: .warning),
            text: "::warning title=E0726 recordingAbsent::nothing"),
        Row(
            testDescription: "a note", diagnostic: Diagnostic(.recordingAbsent, "nothing", severity: .note),
            text: "::notice title=E0726 recordingAbsent::nothing"),
        Row(
            testDescription: "percent signs and line breaks",
            diagnostic: Diagnostic(.replayState, "100% of `a\r\n::error::b`", expected: "a\nb", found: "%0A"),
            text: """
                ::error title=E0722 replayState::100%25 of `a\\u{D}\\u{A}::error::b`\
                %0A  expected: a%0A            b%0A  found:    %250A
                """),
        Row(
            testDescription: "a file of the tree",
            diagnostic: Diagnostic(
                .bundleChecksum, "damaged", at: "here/a,b:c%.statepack, section weights, offset 4096"),
            text: """
                ::error file=a%2Cb%3Ac%25.statepack,title=E0514 bundleChecksum::damaged\
                %0A  --> here/a,b:c%25.statepack, section weights, offset 4096
                """),
        Row(
            testDescription: "a source line of the tree",
            diagnostic: Diagnostic(.stateNotInPlace, "copied", at: "function `main`, layers.0 (here/model.py:42)"),
            text: """
                ::error file=model.py,line=42,title=E0302 stateNotInPlace::copied\
                %0A  --> function `main`, layers.0 (here/model.py:42)
                """),
        Row(
            testDescription: "a folder", diagnostic: Diagnostic(.bundleIsNotAFile, "a folder", at: "here/"),
            text: "::error title=E0503 bundleIsNotAFile::a folder%0A  --> here/"),
        Row(
            testDescription: "a file outside of the tree",
            diagnostic: Diagnostic(.bundleEmpty, "empty", at: "/etc/passwd"),
            text: "::error title=E0506 bundleEmpty::empty%0A  --> /etc/passwd"),
        Row(
            testDescription: "a file that is not there",
            diagnostic: Diagnostic(.bundleNotFound, "missing", at: "here/none.statepack"),
            text: "::error title=E0502 bundleNotFound::missing%0A  --> here/none.statepack"),
    ]

    @Test(arguments: rows)
    func workflowCommandEscapesWhatItCarriesAndNamesFilesOfTheTree(_ row: Row) {
        let folder = TestFolder()
        folder.write([], to: "a,b:c%.statepack")
        folder.write([], to: "model.py")
        var diagnostic = row.diagnostic
        diagnostic.location = diagnostic.location?.replacing("here/", with: folder.path + "/")
        let text = WorkflowCommand(root: folder.path).text(of: diagnostic)
        #expect(text.replacing(folder.path + "/", with: "here/") == row.text)
    }

    @Test func resultsBetweenWorkflowCommandsAreNoCommands() {
        #expect(
            WorkflowCommand.harmless("a\n::error::b\n  ::set-env c\nx ##[command]d\n")
                == "a\n.::error::b\n.  ::set-env c\nx ## [command]d\n")
    }

    // MARK: Commands

    @Test func jsonIsOneDocumentAlsoWhenTheCommandLineIsWrong() async throws {
        for (program, words, key) in [
            ("validate", ["--format", "json", "--replays"], "validate"),
            ("validate", ["--json", "--replays"], "validate"),
            ("convert", ["--replays", "--format=json"], "convert"),
            ("statepack", ["validate", "--replays", "--format", "json"], "validate"),
        ] {
            let run = await ToolRun(program, words)
            #expect(run.status == 2)
            #expect(run.diagnostics == "")
            let document = try JSONReader.read(Array(run.results.utf8))
            #expect(document.objectValue?.map(\.key) == [key, "exitCode", "findings"])
            #expect(document["exitCode"] == 2)
            #expect(document["findings"]?.arrayValue?.compactMap { $0["code"] } == ["E0702", "E0706"])
        }
    }

    @Test func githubFormatHoldsAlsoWhenTheCommandLineIsWrong() async {
        let run = await ToolRun("validate", "m", "--format", "github", "--xyzzy")
        #expect(run.status == 2)
        #expect(run.diagnostics == "")
        #expect(
            run.results == """
                ::error title=E0702 unknownOption::unknown option `--xyzzy`%0A  --> validate%0A  found:    --xyzzy\
                %0A  hint:     see `validate --help`

                """)
    }

    @Test func formatBehindTheEndOfOptionsOrOfAnUnknownKindIsText() async {
        let behind = await ToolRun("validate", "m", "--xyzzy", "--", "--format", "json")
        #expect(behind.results == "")
        #expect(behind.diagnostics.hasPrefix("error[E0702]"))
        let unknown = await ToolRun("validate", "m", "--format", "jsn")
        #expect(unknown.status == 2)
        #expect(
            unknown.diagnostics == """
                error[E0705]: option `--format` has an invalid value
                  --> validate
                  expected: text, json, github
                  found:    jsn
                  hint:     did you mean `json`?

                """)
    }

    @Test func jsonBesideAnotherFormatIsRefused() async {
        let run = await ToolRun("validate", "m", "--format", "text", "--json")
        #expect(run.status == 2)
        #expect(
            run.diagnostics == """
                error[E0709]: --json and --format contradict each other
                  --> validate
                  expected: --format json
                  found:    --json --format text
                  hint:     leave --json out

                """)
        let same = await ToolRun("validate", "/nowhere.statepack", "--format", "json", "--json")
        #expect(same.status == 3)
    }

    @Test func helpAndVersionAreTextInEveryFormat() async {
        for format in ["json", "github"] {
            let help = await ToolRun("validate", "--help", "--format", format)
            #expect(help.results.hasPrefix("usage: validate MODEL"))
            let version = await ToolRun("convert", "--version", "--format", format)
            #expect(version.results.hasPrefix("statepack "))
        }
    }

    @Test func convertWritesItsReportIntoTheDocument() async throws {
        let folder = TestFolder()
        let output = folder / "model.statepack"
        let run = await ToolRun("convert", Repository.example, "-o", output, "--format", "json")
        #expect(run.status == 0)
        #expect(run.diagnostics == "")
        let document = try JSONReader.read(Array(run.results.utf8))
        #expect(
            document.objectValue?.map(\.key) == [
                "convert", "producer", "program", "states", "counters", "weightsBytes", "recordingBytes", "output",
                "exitCode", "findings",
            ])
        #expect(document["output"] == .string(output))
        #expect(document["findings"] == [])
        let list = await ToolRun("convert", Repository.example, "--list-ops", "--format", "json")
        let operators = try JSONReader.read(Array(list.results.utf8))
        #expect(operators["operators"]?.objectValue?.isEmpty == false)
        let dump = await ToolRun(
            "convert", Repository.example, "-o", output, "--dump-ir-after", "DecomposeOps", "--format", "json")
        #expect(try JSONReader.read(Array(dump.results.utf8))["dump"]?["text"]?.stringValue?.isEmpty == false)
    }

    @Test func aMissingFileComesOutInEveryFormat() async throws {
        let text = await ToolRun("validate", "/nowhere/a.statepack")
        #expect(text.status == 3)
        let json = await ToolRun("validate", "/nowhere/a.statepack", "--format", "json")
        #expect(json.status == 3)
        #expect(json.diagnostics == "")
        let findings = try JSONReader.read(Array(json.results.utf8))["findings"]?.arrayValue ?? []
        #expect(findings.count == 1)
        let github = await ToolRun("validate", "/nowhere/a.statepack", "--format", "github")
        #expect(github.status == 3)
        #expect(github.diagnostics == "")
        let name = Diagnostic.Code.table.first { $0.code == .bundleNotFound }!.name
        #expect(
            github.results.hasPrefix(
                "::error title=\(Diagnostic.Code.bundleNotFound) \(name)::there is no such bundle%0A  --> "))
    }
}
