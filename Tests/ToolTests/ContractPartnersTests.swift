import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import StatepackTool
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// `statepack contract`: which files belong together, and what is said when they do not agree.
@Suite struct ContractPartnersTests {
    /// A folder with the example's exported.pb, its bundle and its contract.
    static func partners(bundle: String = "exported.statepack") async throws -> TestFolder {
        let folder = try ConvertTests.exampleFolder()
        #expect(await ToolRun("convert", folder / "exported.pb", "-o", folder / bundle).status == 0)
        #expect(
            await ToolRun("statepack", "describe", folder / "exported.pb", "-o", folder / "exported.contract.json")
                .status
                == 0)
        return folder
    }

    static func check(_ folder: TestFolder, _ names: String..., options: [String] = []) async -> ToolRun {
        await ToolRun("statepack", ["contract"] + names.map { folder / $0 } + options)
    }

    static func editContract(_ folder: TestFolder, _ text: String, _ other: String) throws {
        let contract = String(decoding: try folder.read("exported.contract.json"), as: UTF8.self)
        let edited = contract.replacing(text, with: other)
        #expect(edited != contract)
        folder.write(edited.utf8, to: "exported.contract.json")
    }

    @Test(arguments: ["exported.pb", "exported.statepack", "exported.contract.json"])
    func anyOfTheFilesFindsTheOthers(_ name: String) async throws {
        let folder = try await Self.partners()
        let run = await Self.check(folder, name)
        #expect(run.status == 0, "\(run.diagnostics)")
        #expect(run.results == "\(folder / "exported.contract.json"): holds for exported.pb, exported.statepack\n")
    }

    @Test func filesOfOneGroupAreCheckedOnce() async throws {
        let folder = try await Self.partners(bundle: "model.statepack")
        let run = await Self.check(folder, "model.statepack", "exported.pb", "exported.contract.json")
        #expect(run.status == 0, "\(run.diagnostics)")
        #expect(run.results == "\(folder / "exported.contract.json"): holds for exported.pb, model.statepack\n")
    }

    @Test func differenceIsReportedOnceWithWhatToDo() async throws {
        let folder = try await Self.partners()
        try Self.editContract(folder, "[2, 256, 64]", "[2, 512, 64]")
        let run = await Self.check(folder, "exported.pb")
        #expect(run.status == 1)
        #expect(run.results == "")
        let contract = folder / "exported.contract.json"
        #expect(
            run.diagnostics
                == ["keyCache", "valueCache"].map { state in
                    """
                    error[E0718]: the state `\(state)` has another shape (breaking)
                      --> \(folder / "exported.pb"), function `main`, state `\(state)`
                      expected: [2, 512, 64] float32
                      found:    [2, 256, 64] float32
                      hint:     when the change is meant: statepack contract --update \(contract), and change the Swift callers, then git add \(contract)

                    """
                }.joined())
        #expect(await Self.check(folder, "exported.pb", options: ["--update"]).status == 0)
        let after = await Self.check(folder, "exported.pb")
        #expect(after.status == 0)
    }

    @Test func updateLeavesAContractThatHoldsAsItIs() async throws {
        let folder = try await Self.partners()
        try Self.editContract(folder, "\n", "\n ")
        let before = try folder.read("exported.contract.json")
        let run = await Self.check(folder, "exported.contract.json", options: ["--update"])
        #expect(run.status == 0)
        #expect(!run.results.contains("written"))
        #expect(try folder.read("exported.contract.json") == before)
    }

    @Test func updateReplacesAMalformedContract() async throws {
        let folder = try await Self.partners()
        folder.write("{".utf8, to: "exported.contract.json")
        let refused = await Self.check(folder, "exported.pb")
        #expect(refused.status == 3)
        #expect(refused.diagnostics.hasPrefix("error[E0711]: the contract is not valid JSON"))
        #expect(
            refused.diagnostics.hasSuffix(
                "  hint:     `statepack contract --update \(folder / "exported.contract.json")` writes it anew\n"))
        let run = await Self.check(folder, "exported.pb", options: ["--update"])
        #expect(run.status == 0)
        #expect(
            run.results == """
                \(folder / "exported.contract.json"): written from exported.pb
                \(folder / "exported.contract.json"): holds for exported.pb, exported.statepack

                """)
    }

    @Test func modelWithoutContractIsReportedWithTheCommandThatWritesOne() async throws {
        let folder = try ConvertTests.exampleFolder()
        let run = await Self.check(folder, "exported.pb")
        #expect(run.status == 1)
        #expect(
            run.diagnostics == """
                error[E0728]: the model has no contract
                  --> \(folder / "exported.pb")
                  expected: exported.contract.json beside it
                  found:    no such file
                  hint:     write one and commit it: statepack describe \(folder / "exported.pb") -o \(folder / "exported.contract.json")

                """)
        #expect(folder.names == ["exported.pb"])
        #expect(await Self.check(folder, "exported.pb", options: ["--update"]).status == 0)
        #expect(folder.names == ["exported.contract.json", "exported.pb"])
    }

    @Test func staleBundleIsNamedWithTheCommandThatConvertsAgain() async throws {
        let folder = try await Self.partners()
        let program = String(decoding: try folder.read("exported.statepack"), as: UTF8.self)
        #expect(!program.isEmpty)
        try RichModel.write(RichModel.program(), to: folder / "exported.statepack")
        let run = await Self.check(folder, "exported.statepack")
        #expect(run.status == 1)
        #expect(
            run.diagnostics.hasPrefix(
                """
                error[E0729]: the bundle was made from another exported program
                  --> \(folder / "exported.statepack")
                  expected: sha256 
                """))
        #expect(
            run.diagnostics.hasSuffix(
                """
                  found:    sha256 \(String(repeating: "5a", count: 32))
                  hint:     convert again: statepack convert \(folder / "exported.pb") -o \(folder / "exported.statepack")

                """))
        #expect(run.diagnostics.components(of: "error[") == 1)
    }

    @Test func bundleAloneIsComparedWithItsContract() async throws {
        let folder = try await Self.partners()
        try Self.editContract(folder, "\"logits\"", "\"scores\"")
        let other = TestFolder()
        other.write(try folder.read("exported.statepack"), to: "exported.statepack")
        other.write(try folder.read("exported.contract.json"), to: "exported.contract.json")
        let run = await Self.check(other, "exported.contract.json")
        #expect(run.status == 1)
        #expect(
            run.diagnostics == """
                error[E0720]: the output `scores` is called `logits` (breaking)
                  --> \(other / "exported.statepack"), function `main`, output `scores`
                  expected: scores: [1, query, 64] float32
                  found:    logits: [1, query, 64] float32
                  hint:     name it `scores` with output_names in the exporter, or change the contract and the callers together
                            when the change is meant: statepack contract --update \(other / "exported.contract.json"), and change the Swift callers, then git add \(other / "exported.contract.json")

                """)
    }

    @Test func contractAloneHasNothingToCompareWith() async throws {
        let folder = TestFolder()
        folder.write(ContractTests.contract.json.text.utf8, to: "a.contract.json")
        let run = await Self.check(folder, "a.contract.json")
        #expect(run.status == 0)
        #expect(run.results == "\(folder / "a.contract.json"): no model beside it to compare with\n")
        let update = await Self.check(folder, "a.contract.json", options: ["--update"])
        #expect(update.status == 2)
        #expect(
            update.diagnostics == """
                error[E0730]: the contract cannot be written from 0 models
                  --> \(folder / "a.contract.json")
                  expected: one exported program, or one bundle, beside it
                  found:    no model
                  hint:     write it with: statepack describe MODEL -o \(folder / "a.contract.json")

                """)
    }

    @Test func programOfAnotherNameBelongsToNoContractThatHasItsOwn() async throws {
        let folder = try await Self.partners()
        folder.write(try folder.read("exported.pb"), to: "other.pb")
        let run = await Self.check(folder, "other.pb")
        #expect(run.status == 1)
        #expect(run.diagnostics.hasPrefix("error[E0728]: the model has no contract\n  --> \(folder / "other.pb")\n"))
    }

    @Test func fileThatIsNotThereIsReportedByItsReader() async throws {
        let folder = TestFolder()
        for name in ["a.pb", "a.statepack", "a.contract.json"] {
            let run = await Self.check(folder, name)
            #expect(run.status == 3, "\(name): \(run.results)")
            #expect(run.diagnostics.contains("  --> \(folder / name)\n"), "\(run.diagnostics)")
        }
    }

    // MARK: Files that are searched, or gone

    /// `statepack contract` without operands, in that folder: its exit code, and all that it prints.
    private static func search(_ folder: String) throws -> (status: Int32, text: String) {
        let stream = try #require(popen("cd '\(folder)' && '\(HostileBombTests.command())' contract 2>&1", "r"))
        var text: [UInt8] = []
        while case let byte = getc(stream), byte != EOF { text.append(UInt8(byte)) }
        return (pclose(stream) >> 8, String(decoding: text, as: UTF8.self))
    }

    @Test func modelWhoseContractWasDeletedIsRefusedWithoutOperands() throws {
        let folder = try ConvertTests.exampleFolder()
        let (status, text) = try Self.search(folder.path)
        #expect(status == 1)
        #expect(
            text == """
                error[E0728]: the model has no contract
                  --> exported.pb
                  expected: exported.contract.json beside it
                  found:    no such file
                  hint:     write one and commit it: statepack describe exported.pb -o exported.contract.json

                """)
    }

    @Test func everyGroupBelowTheFolderIsCheckedWithoutOperands() async throws {
        let folder = try await Self.partners()
        let below = folder / "below"
        let hidden = ["\(folder.path)/.build", "\(folder.path)/node_modules"]
        for path in [below] + hidden { #expect(mkdir(path, 0o700) == 0) }
        defer {
            for path in [below] + hidden {
                unlink("\(path)/m.pb")
                rmdir(path)
            }
        }
        for path in [below] + hidden {
            folder.write(try folder.read("exported.pb"), to: "\(path.dropFirst(folder.path.utf8.count + 1))/m.pb")
        }
        // Neither a protobuf of another tool nor a link is looked at.
        folder.write([0x08, 0x07], to: "onnx.pb")
        #expect(symlink(below, folder / "link") == 0)
        let refused = try Self.search(folder.path)
        #expect(refused.status == 1)
        #expect(
            refused.text.hasPrefix("error[E0728]: the model has no contract\n  --> below/m.pb\n"), "\(refused.text)")
        #expect(refused.text.components(of: "error[") == 1)
        #expect(refused.text.hasSuffix("exported.contract.json: holds for exported.pb, exported.statepack\n"))
        unlink("\(below)/m.pb")
        let holds = try Self.search(folder.path)
        #expect(holds.status == 0)
        #expect(holds.text == "exported.contract.json: holds for exported.pb, exported.statepack\n")
    }

    @Test func folderWithoutModelsHoldsWithALine() throws {
        let folder = TestFolder()
        folder.write([0x08, 0x07], to: "onnx.pb")
        let (status, text) = try Self.search(folder.path)
        #expect(status == 0)
        #expect(text == "no contract and no model in this folder or below it\n")
    }

    @Test func searchThatCannotSeeEveryFolderIsRefused() {
        let folder = TestFolder()
        #expect(mkdir(folder / "below", 0o700) == 0)
        defer { rmdir(folder / "below") }
        let many = #expect(throws: Diagnostic.self) { try ContractSearch.files(in: folder.path, folderLimit: 1) }
        let missing = #expect(throws: Diagnostic.self) { try ContractSearch.files(in: folder / "missing") }
        let texts = [("many", many), ("missing", missing)].map { name, error in
            (name, (error?.description ?? "all was searched").replacing(folder.path, with: "FOLDER"))
        }
        for (name, text) in texts {
            #expect(text == ExactTexts.expected("Tool", "search of \(name) folders", actual: text))
        }
    }

    @Test func deletedContractThatIsNamedIsMissedByItsModels() async throws {
        let folder = try await Self.partners(bundle: "model.statepack")
        unlink(folder / "exported.contract.json")
        let run = await Self.check(folder, "exported.contract.json")
        #expect(run.status == 1)
        #expect(run.diagnostics.hasPrefix("error[E0728]: the model has no contract\n  --> \(folder / "exported.pb")\n"))
        #expect(run.diagnostics.components(of: "error[") == 1)
    }

    @Test func protobufOfAnotherToolIsReportedOnce() async throws {
        let folder = TestFolder()
        folder.write([0x08, 0x07], to: "onnx.pb")
        let run = await Self.check(folder, "onnx.pb")
        #expect(run.status == 3)
        #expect(
            run.diagnostics == """
                error[E0106]: the file does not start as an exported program
                  --> \(folder / "onnx.pb")
                  expected: byte 09 at offset 0
                  found:    08
                  hint:     when it is no model of Statepack's, leave it out: narrow `files:` of the hook statepack-contract

                """)
    }

    @Test func jsonNamesGroupsAndFindings() async throws {
        let folder = try await Self.partners()
        try Self.editContract(folder, "\"max\": 256", "\"max\": 512")
        let run = await Self.check(folder, "exported.pb", options: ["--format", "json"])
        #expect(run.status == 1)
        let report = try JSONReader.read(Array(run.results.utf8))
        #expect(
            report["groups"]
                == [
                    [
                        "contract": .string(folder / "exported.contract.json"),
                        "models": .strings([folder / "exported.pb", folder / "exported.statepack"]),
                        "holds": .bool(false),
                    ]
                ])
        #expect(report["findings"]?.arrayValue?.map { $0["code"] } == ["E0719"])
        #expect(report["exitCode"] == 1)
    }
}

extension String {
    fileprivate func components(of text: String) -> Int { ranges(of: text).count }
}
