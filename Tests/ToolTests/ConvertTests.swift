import ExactTexts
import StatepackDiagnostics
import StatepackTool
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct ConvertTests {
    /// A folder that holds the example's exported.pb and nothing else.
    static func exampleFolder() throws -> TestFolder {
        let folder = TestFolder()
        folder.write(try Golden.bytes(Repository.example), to: "exported.pb")
        return folder
    }

    @Test func writesTheBundleBesideTheInputAndPrintsTheStates() async throws {
        let folder = try Self.exampleFolder()
        let run = await ToolRun("convert", folder / "exported.pb", "--require-in-place")
        #expect(run.status == 0)
        #expect(run.diagnostics == "")
        #expect(folder.names == ["exported.pb", "exported.statepack"])
        let lines = run.results.split(separator: "\n").map(String.init)
        #expect(lines.count == 4)
        #expect(
            lines[1].split(separator: " ", omittingEmptySubsequences: true).joined(separator: " ")
                == "keyCache key_cache [2, 256, 64] float32 128 KiB 0.0 in place (index_put)")
        #expect(
            lines[2].split(separator: " ", omittingEmptySubsequences: true).joined(separator: " ")
                == "valueCache value_cache [2, 256, 64] float32 128 KiB 0.0 in place (index_copy)")
        #expect(lines[3].hasPrefix("wrote \(folder / "exported.statepack"): 1 function, weights "))
    }

    @Test func convertingTwiceGivesEqualBytesWithoutAnyAbsolutePath() async throws {
        let folder = try Self.exampleFolder()
        for name in ["a", "b"] {
            let run = await ToolRun(
                "convert", folder / "exported.pb", "-o", folder / "\(name).statepack", "--report",
                folder / "\(name).json")
            #expect(run.status == 0)
        }
        let bundle = try folder.read("a.statepack")
        #expect(try bundle == folder.read("b.statepack"))
        let report = try folder.read("a.json")
        #expect(try report == folder.read("b.json"))
        let home = getenv("HOME").map { String(cString: $0) + "/" } ?? Repository.path("")
        for path in [folder.path, Repository.path(""), home] {
            #expect(!contains(bundle, path), "the bundle contains \(path)")
            #expect(!contains(report, path), "the report contains \(path)")
        }
    }

    @Test func progressIsToldOnRequestAndOtherwiseOnlyToATerminal() async throws {
        let folder = try Self.exampleFolder()
        let quiet = await ToolRun("convert", folder / "exported.pb")
        #expect(quiet.diagnostics == "")
        let run = await ToolRun("convert", folder / "exported.pb", "--progress", "--format", "json")
        #expect(run.status == 0)
        let lines = run.diagnostics.split(separator: "\n")
        try #require(lines.count >= 2)
        // The last line of a measure is that of the end, however long it took.
        #expect(lines[lines.count - 2].hasPrefix("converting: 278 KiB of 278 KiB, 100 %, "))
        #expect(lines[lines.count - 2].hasSuffix(" per second"))
        #expect(lines.last == "converting: flushing to the disk")
        #expect(try JSONReader.read(Array(run.results.utf8))["exitCode"] == 0)
    }

    /// What the program is accused of is printed only when its weights are those of the export.
    @Test(arguments: [
        [], ["--require-in-place"], ["--state-names", "a"], ["--descriptors", "%/no.contract.json"],
        ["--dump-ir-after", "ImportProgram"], ["--report", "%/report.json"], ["--list-ops"], ["--format", "json"],
    ])
    func damagedWeightsAreTheOnlyFinding(_ words: [String]) async throws {
        let folder = TestFolder()
        for name in ["exported.pb", "exported.safetensors"] {
            folder.write(try Golden.bytes(Repository.path("Tests/Fixtures/format-1.0/\(name)")), to: name)
        }
        var weights = try folder.read("exported.safetensors")
        weights[weights.count - 1] ^= 1
        folder.write(weights, to: "exported.safetensors")
        let run = await ToolRun(
            "convert", [folder / "exported.pb"] + words.map { $0.replacing("%", with: folder.path) })
        #expect(run.status == 3)
        if words.last == "json" {
            let document = try JSONReader.read(Array(run.results.utf8))
            #expect(document.objectValue?.map(\.key) == ["convert", "exitCode", "findings"])
            #expect(document["findings"]?.arrayValue?.count == 1)
        } else {
            #expect(run.results == "")
            #expect(
                run.diagnostics.hasPrefix(
                    """
                    error[E0119]: the weights file does not have the SHA-256 that the program declares
                      --> \(folder / "exported.safetensors")

                    """), "\(run.diagnostics)")
            #expect(run.diagnostics.split(separator: "\n").count == 4)
        }
        #expect(folder.names == ["exported.pb", "exported.safetensors"])
    }

    @Test func reportSaysHowEveryStateIsUpdated() async throws {
        let folder = try Self.exampleFolder()
        let run = await ToolRun("convert", folder / "exported.pb", "--report", folder / "report.json")
        #expect(run.status == 0)
        let report = try JSONReader.read(folder.read("report.json"))
        #expect(
            report["states"]
                == [
                    [
                        "function": "main", "name": "keyCache", "buffer": "key_cache", "writtenBy": "index_put",
                        "inPlace": .bool(true), "copiedBytes": "0",
                    ],
                    [
                        "function": "main", "name": "valueCache", "buffer": "value_cache", "writtenBy": "index_copy",
                        "inPlace": .bool(true), "copiedBytes": "0",
                    ],
                ])
        #expect(report["program"]?.stringValue?.count == 64)
        #expect(report["recordingBytes"]?.integerValue ?? 0 > 0)
    }

    @Test func theDumpIsTheOnlyResultAndNamesWritesInPlace() async throws {
        let folder = try Self.exampleFolder()
        let run = await ToolRun("convert", folder / "exported.pb", "--dump-ir-after", "RecoverStateWrites")
        #expect(run.status == 0)
        #expect(run.results.contains("index_put"))
        #expect(!run.results.contains("wrote "))
        #expect(folder.names == ["exported.pb", "exported.statepack"])
    }

    @Test func listOpsPrintsTheOperatorsAndWritesNothing() async throws {
        let folder = try Self.exampleFolder()
        let run = await ToolRun("convert", folder / "exported.pb", "--list-ops")
        #expect(run.status == 0)
        #expect(run.results.contains("2  aten.index_copy.default\n"))
        #expect(folder.names == ["exported.pb"])
    }

    @Test func everyFusionCanBeLeftOut() async throws {
        let folder = try Self.exampleFolder()
        let run = await ToolRun(
            "convert", folder / "exported.pb", "--no-fuse", "all", "-o", folder / "plain.statepack")
        #expect(run.status == 0)
        let check = await ToolRun("validate", folder / "plain.statepack")
        #expect(check.status == 0)
    }

    struct Failure: CustomTestStringConvertible {
        var testDescription: String
        /// Words after `convert FOLDER/exported.pb`; `%` stands for the folder.
        var words: [String]
        var status: Int32
        /// What the diagnostics begin with; `%` stands for the folder.
        var diagnostics: String
    }

    static let failures: [Failure] = [
        Failure(
            testDescription: "too few state names", words: ["--state-names", "keyCache"], status: 1,
            diagnostics: "error[E0301]: 1 state name was given, the program has 2\n"),
        Failure(
            testDescription: "another name than the author's", words: ["--state-names", "keys,valueCache"], status: 1,
            diagnostics: "error[E0301]: state `keyCache` was named by its author, `keys` is another name\n"),
        Failure(
            testDescription: "one name twice", words: ["--state-names", "keyCache,keyCache"], status: 1,
            diagnostics: "error[E0301]: "),
        Failure(
            testDescription: "a buffer that is none", words: ["--state-names", "keys=keyCache"], status: 1,
            diagnostics: "error[E0301]: no state comes from a buffer `keys`\n"),
        Failure(
            testDescription: "output is the input", words: ["-o", "%/../%%/exported.pb"], status: 2,
            diagnostics: """
                error[E0732]: --output would overwrite a file that the command reads
                  --> %/../%%/exported.pb
                  expected: a path other than %/exported.pb
                  found:    %/../%%/exported.pb

                """),
        Failure(
            testDescription: "report is the input", words: ["--report", "%/exported.pb"], status: 2,
            diagnostics: "error[E0732]: --report would overwrite a file that the command reads\n"),
        Failure(
            testDescription: "report is the output", words: ["--report", "%/x", "-o", "%/x"], status: 2,
            diagnostics: """
                error[E0709]: --report and --output name the same file
                  --> convert
                  found:    %/x
                  hint:     choose two files

                """),
        Failure(
            testDescription: "report is the output by another path",
            words: ["--report", "%/x", "-o", "%/../%%/x"], status: 2,
            diagnostics: "error[E0709]: --report and --output name the same file\n"),
        Failure(
            testDescription: "state name with a line end", words: ["--state-names", "keyCache,value\nCache"], status: 1,
            diagnostics: "error[E0301]: the name for `value_cache` has a control character\n"),
        Failure(
            testDescription: "no folder for the output", words: ["-o", "%/missing/m.statepack"], status: 5,
            diagnostics: "error[E0550]: cannot create the bundle: No such file or directory\n"),
        Failure(
            testDescription: "no folder for the report", words: ["--report", "%/missing/r.json"], status: 5,
            diagnostics: """
                error[E0731]: the output cannot be written: No such file or directory
                  --> %/missing/r.json
                  hint:     create the folder %/missing first

                """),
        Failure(
            testDescription: "contract missing", words: ["--descriptors", "%/missing.json"], status: 3,
            diagnostics: """
                error[E0102]: there is no such file
                  --> %/missing.json
                """),
        Failure(
            testDescription: "contract that is no contract", words: ["--descriptors", "%/exported.pb"], status: 3,
            diagnostics: "error[E0711]: the file is a model, not a contract\n"),
        Failure(
            testDescription: "unknown pass", words: ["--dump-ir-after", "RecoverStateWrite"], status: 2,
            diagnostics: "error[E0705]: option `--dump-ir-after` has an invalid value\n"),
        Failure(
            testDescription: "list of operators with a report",
            words: ["--list-ops", "--report", "%/r.json", "-o", "%/m.statepack"], status: 2,
            diagnostics: """
                error[E0709]: --list-ops prints the operators and does nothing else
                  --> convert
                  expected: --list-ops alone
                  found:    --output, --report
                  hint:     leave out --list-ops, or the other options

                """),
        Failure(
            testDescription: "unknown fusion", words: ["--no-fuse", "al"], status: 2,
            diagnostics: "error[E0705]: option `--no-fuse` has an invalid value\n"),
    ]

    @Test(arguments: failures)
    func failureNamesItsCauseAndLeavesNothing(_ row: Failure) async throws {
        let folder = try Self.exampleFolder()
        let name = String(folder.path.split(separator: "/").last!)
        func fill(_ text: String) -> String {
            text.replacing("%%", with: name).replacing("%", with: folder.path)
        }
        let before = try folder.read("exported.pb")
        let run = await ToolRun("convert", [folder / "exported.pb"] + row.words.map(fill))
        #expect(run.status == row.status)
        let text = run.diagnostics.replacing(folder.path, with: "/models").replacing(name, with: "models")
        #expect(
            text.dropLast()
                == ExactTexts.expected("Convert", row.testDescription, actual: String(text.dropLast())))
        #expect(run.results == "")
        #expect(run.diagnostics.hasPrefix(fill(row.diagnostics)), "\(run.diagnostics)")
        #expect(folder.names == ["exported.pb"])
        #expect(try folder.read("exported.pb") == before)
    }

    @Test func bundleAsInputIsToldFromABrokenProgram() async throws {
        let folder = try Self.exampleFolder()
        let convert = await ToolRun("convert", folder / "exported.pb", "-o", folder / "m.statepack")
        #expect(convert.status == 0)
        let run = await ToolRun("convert", folder / "m.statepack")
        #expect(run.status == 3)
        #expect(
            run.diagnostics == """
                error[E0106]: the file is a bundle already
                  --> \(folder / "m.statepack")
                  expected: an exported.pb
                  found:    a bundle
                  hint:     pass the exported.pb that it was made from, or check the bundle with validate

                """)
    }

    @Test func inputThatCannotBeReadIsNamed() async throws {
        let folder = TestFolder()
        folder.write([], to: "empty.pb")
        for (path, code) in [("missing.pb", "E0102"), ("empty.pb", "E0105")] {
            let run = await ToolRun("convert", folder / path)
            #expect(run.status == 3)
            #expect(run.diagnostics.hasPrefix("error[\(code)"), "\(run.diagnostics)")
            #expect(run.diagnostics.contains(folder / path))
        }
        let long = folder / String(repeating: "x", count: 300)
        let unopenable = await ToolRun("convert", long)
        #expect(unopenable.status == 3)
        #expect(
            unopenable.diagnostics == """
                error[E0101]: the file cannot be opened
                  --> \(long)
                  found:    File name too long

                """)
        let run = await ToolRun("convert", folder.path)
        #expect(run.status == 3)
        #expect(run.diagnostics.hasPrefix("error[E0103]"), "\(run.diagnostics)")
        #expect(folder.names == ["empty.pb"])
    }

    @Test func contractThatDoesNotHoldIsAnErrorWithEveryDifference() async throws {
        let folder = try Self.exampleFolder()
        let inspect = await ToolRun("statepack", "inspect", "--json", folder / "exported.pb")
        #expect(inspect.status == 0)
        folder.write(inspect.results.utf8, to: "contract.json")
        let holds = await ToolRun(
            "convert", folder / "exported.pb", "--descriptors", folder / "contract.json", "-o", folder / "m.statepack")
        #expect(holds.status == 0)
        let edited = inspect.results.replacing("[2, 256, 64]", with: "[2, 512, 64]").replacing("logits", with: "scores")
        folder.write(edited.utf8, to: "contract.json")
        let run = await ToolRun(
            "convert", folder / "exported.pb", "--descriptors", folder / "contract.json", "-o", folder / "n.statepack")
        #expect(run.status == 1)
        #expect(
            run.diagnostics == """
                error[E0718]: the state `keyCache` has another shape (breaking)
                  --> function `main`, state `keyCache`
                  expected: [2, 512, 64] float32
                  found:    [2, 256, 64] float32
                error[E0718]: the state `valueCache` has another shape (breaking)
                  --> function `main`, state `valueCache`
                  expected: [2, 512, 64] float32
                  found:    [2, 256, 64] float32
                error[E0720]: the output `scores` is called `logits` (breaking)
                  --> function `main`, output `scores`
                  expected: scores: [1, query, 64] float32
                  found:    logits: [1, query, 64] float32
                  hint:     name it `scores` with output_names in the exporter, or change the contract and the callers together

                """)
        #expect(folder.names == ["contract.json", "exported.pb", "m.statepack"])
    }

    @Test func recordingOfAnotherProgramIsRefused() async throws {
        let folder = TestFolder()
        // The recording is no part of the program's digest; its names are as long as those they replace.
        var bytes = try Golden.bytes(Repository.example)
        let name = Array("valueCache".utf8)
        let starts = (0...bytes.count - name.count).filter { bytes[$0..<$0 + name.count].elementsEqual(name) }
        let last = try #require(starts.last)
        bytes.replaceSubrange(last..<last + name.count, with: Array("valueCashe".utf8))
        ExportedFile.updateDigest(of: &bytes)
        folder.write(bytes, to: "exported.pb")
        let run = await ToolRun("convert", folder / "exported.pb")
        #expect(run.status == 3)
        #expect(run.results == "")
        #expect(run.diagnostics.hasPrefix("error[E0727]: the recording has a state that the function does not have\n"))
        #expect(
            run.diagnostics.hasSuffix(
                """
                  expected: keyCache, valueCache
                  found:    valueCashe
                  hint:     did you mean `valueCache`?

                """), "\(run.diagnostics)")
        #expect(folder.names == ["exported.pb"])
    }

    @Test func failedConvertLeavesAnEarlierBundleAsItWas() async throws {
        let folder = try Self.exampleFolder()
        folder.write(Array("an earlier bundle".utf8), to: "exported.statepack")
        let run = await ToolRun("convert", folder / "exported.pb", "--state-names", "a")
        #expect(run.status == 1)
        #expect(try folder.read("exported.statepack") == Array("an earlier bundle".utf8))
    }

    @Test func committedContractIsTheOneOfTheCommittedProgram() async throws {
        let run = await ToolRun("statepack", "inspect", "--json", Repository.example)
        let committed = try Golden.bytes(Repository.path("examples/01-stateful-transformer/exported.contract.json"))
        #expect(run.results == String(decoding: committed, as: UTF8.self))
    }

    @Test func exportedProgramCutAnywhereIsMalformed() async throws {
        let bytes = try Golden.bytes(Repository.example)
        let folder = TestFolder()
        for index in 0..<256 {
            folder.write(bytes.prefix(bytes.count * index / 256), to: "cut.pb")
            let run = await ToolRun("convert", folder / "cut.pb")
            #expect(run.status == 3, "cut after \(bytes.count * index / 256) bytes")
            #expect(run.results == "")
            #expect(run.diagnostics.hasPrefix("error[E01"))
            #expect(folder.names == ["cut.pb"])
        }
    }
}
