import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import StatepackTool
import Testing

@Suite struct ValidateBudgetTests {
    // MARK: Byte counts

    static let texts: [(String, Int?)] = [
        ("0", 0), ("4096", 4096), ("1B", 1), ("2KB", 2000), ("2KiB", 2048), ("3MB", 3_000_000), ("1MiB", 1 << 20),
        ("2GiB", 2 << 30), ("1.5GiB", 3 << 29), ("0.5KiB", 512), ("2TB", 2_000_000_000_000), ("1TiB", 1 << 40),
        ("0.000000001GB", 1), ("8388607TiB", 8_388_607 << 40), ("8388608TiB", nil), ("9223372036854775807", .max),
        ("9223372036854775808", nil), ("", nil), ("GiB", nil), ("2G", nil), ("2gib", nil), ("2 GiB", nil),
        ("-1", nil), ("+1", nil), ("1.", nil), (".5GiB", nil), ("1.2.3MB", nil), ("0.5", nil), ("1e3", nil),
        ("0x10", nil), ("٣MB", nil), ("1,5GiB", nil), ("0.0001KiB", nil), ("2GiBs", nil), ("1_000", nil),
    ]

    @Test(arguments: texts)
    func byteCountsAreReadStrictly(_ text: String, _ bytes: Int?) { #expect(ByteCountText.parse(text) == bytes) }

    /// The unit is right in all of these, the number is not: there is nothing to suggest.
    @Test(arguments: ["8388608TiB", "1.gib", ".5GiB", "0.5B", "0.0000000001GiB", "1.2.3MB"])
    func aRefusedByteCountIsNotSuggestedAgain(_ text: String) async {
        let run = await ToolRun("validate", "m", "--memory-budget", text)
        #expect(run.status == 2)
        #expect(
            run.diagnostics == """
                error[E0705]: option `--memory-budget` has an invalid value
                  --> validate
                  expected: a number with a unit: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB; without one, bytes
                  found:    \(text)

                """)
    }

    @Test func aWrongByteCountSaysWhichUnitsThereAre() async {
        let run = await ToolRun("validate", "m", "--memory-budget", "2G", "--max-step-copies", "1.5")
        #expect(run.status == 2)
        #expect(
            run.diagnostics == """
                error[E0705]: option `--memory-budget` has an invalid value
                  --> validate
                  expected: a number with a unit: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB; without one, bytes
                  found:    2G
                  hint:     did you mean `2GB`?
                error[E0705]: option `--max-step-copies` has an invalid value
                  --> validate
                  expected: a number with a unit: B, KB, KiB, MB, MiB, GB, GiB, TB, TiB; without one, bytes
                  found:    1.5

                """)
    }

    // MARK: Sizes that are tried

    static func symbols(_ bounds: ClosedRange<Int>...) -> [BundleProgram.Symbol] {
        bounds.enumerated().map { .init(name: "s\($0)", min: $1.lowerBound, max: $1.upperBound) }
    }

    @Test func everyChoiceOfFewSizesIsTriedAndTheEndsOfMany() {
        #expect(SymbolChoices([], varying: []).list == [[]])
        #expect(SymbolChoices(Self.symbols(1...3), varying: [0]).list == [[1], [2], [3]])
        #expect(SymbolChoices(Self.symbols(1...3, 5...9), varying: [0]).list == [[1, 5], [2, 5], [3, 5]])
        #expect(
            SymbolChoices(Self.symbols(1...2, 5...6), varying: [1, 0]).list == [[1, 5], [1, 6], [2, 5], [2, 6]])
        #expect(SymbolChoices(Self.symbols(3...100), varying: [0]).list == [[3], [4], [8], [16], [32], [64], [100]])
        #expect(
            SymbolChoices(Self.symbols(0...Int.max, 1...2), varying: [0, 1]).list == [
                [0, 1], [0, 2], [Int.max, 1], [Int.max, 2],
            ])
        let many = SymbolChoices(Array(repeating: Self.symbols(1...99)[0], count: 9), varying: 0..<9).list
        #expect(many.count == 10)
        #expect(many[0] == Array(repeating: 99, count: 9))
    }

    // MARK: Memory

    @Test func figuresAreThoseOfTheRuntime() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let bundle = try MappedBundle(path: folder / "model.statepack")
        let budget = try MemoryBudget(
            bundle.program, sources: bundle.sources, sessions: 3, concurrentRuns: 2, limit: 10 << 20, threads: 1)
        var options = SpecializationOptions.default
        options.threadCount = 1
        let function = try AIModel(bundle, options: options).loadFunction(named: "main")!
        let worst = try (1...256).map { try function.arenaByteCount(symbols: ["query": $0]) }.max()!
        #expect(budget.scratch.map(\.bytes) == [worst])
        #expect(budget.scratch.map(\.sizes) == ["query = 256"])
        #expect(budget.weights == bundle.weights.count)
        // Two caches of 2 x 256 x 64 float32.
        #expect(budget.states == 2 * 2 * 256 * 64 * 4)
        #expect(budget.totalBytes == bundle.weights.count + 2 * worst + 3 * budget.states)
        #expect(budget.fittingSessions == ((10 << 20) - bundle.weights.count - 2 * worst) / budget.states)
    }

    @Test func aBudgetThatHoldsIsATableAndOneThatDoesNotAnError() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let words = [folder / "model.statepack", "--no-replay", "--threads", "1", "--sessions", "16"]
        let holds = await ToolRun("validate", words + ["--memory-budget", "2GiB", "--format", "json"])
        #expect(holds.status == 0)
        let memory = try JSONReader.read(Array(holds.results.utf8))["memory"]
        let weights = memory?["weights"]?.integerValue ?? 0
        let scratch = memory?["scratch"]?.arrayValue?.first?["bytes"]?.integerValue ?? 0
        let states = 2 * 2 * 256 * 64 * 4
        let total = weights + scratch + 16 * states
        #expect(memory?["statesPerSession"] == .integer(states))
        #expect(memory?["total"] == .integer(total))
        #expect(memory?["limit"] == .integer(2 << 30))
        #expect(memory?["fittingSessions"] == .integer(((2 << 30) - weights - scratch) / states))
        let text = await ToolRun("validate", words + ["--memory-budget", "2GiB"])
        #expect(text.results.contains("\n           states 256 KiB for a session\n"))
        #expect(text.results.contains("\n           16 sessions, 1 run at a time: "))

        let fits = (2_000_000 - weights - scratch) / states
        let fails = await ToolRun("validate", words + ["--memory-budget", "2MB"])
        #expect(fails.status == 1)
        #expect(
            fails.diagnostics == """
                error[E0750]: 16 sessions do not fit in memory
                  --> \(folder / "model.statepack")
                  expected: at most \(byteText(2_000_000)) (2000000 bytes)
                  found:    \(byteText(total)) (\(total) bytes): weights \(byteText(weights)), \
                scratch \(byteText(scratch)), states 16 x 256 KiB
                  hint:     \(fits) sessions fit

                """)
        let none = await ToolRun("validate", words + ["--memory-budget", "100KB"])
        #expect(
            none.diagnostics.hasSuffix(
                """
                  hint:     no session fits: weights and scratch memory alone need \(byteText(weights + scratch))
                            give --memory-budget \(weights + scratch + states)B or more, or make the weights and \
                scratch memory smaller: fewer positions, a smaller scalar type

                """))
        let first = await ToolRun("validate", words + ["--memory-budget", "\(weights + scratch + states)B"])
        #expect(first.diagnostics.contains("hint:     1 session fits\n"))
        let almost = await ToolRun("validate", words + ["--memory-budget", "\(weights + scratch + states - 1)B"])
        #expect(
            almost.diagnostics.contains(
                """
                hint:     no session fits: give --memory-budget \(weights + scratch + states)B or more, or make the \
                states smaller: fewer positions, a smaller scalar type

                """))
    }

    @Test func anExportedProgramIsPlannedForItsBudgetWithoutItsWeights() async throws {
        let run = await ToolRun(
            "validate", Repository.example, "--descriptors", ValidateScopeTests.contract, "--sessions", "2",
            "--format", "json", "--threads", "1")
        #expect(run.status == 0)
        let report = try JSONReader.read(Array(run.results.utf8))
        #expect(report["notChecked"] == ["checksums", "replay"])
        let folder = try await ValidateTests.bundleFolder()
        let bundle = await ToolRun(
            "validate", folder / "model.statepack", "--descriptors", ValidateScopeTests.contract, "--sessions", "2",
            "--format", "json", "--threads", "1")
        #expect(try JSONReader.read(Array(bundle.results.utf8))["memory"] == report["memory"])
    }

    // MARK: Copies

    /// A state that is doubled through its transposed self, which needs its former value; an output that is an input.
    static let copying = """
        symbol n 1...4
        state "s" float32[4, 4] buffer "s" splat 00000000
        source "layer (model.py:7)"
        func "main" {
            input %0 "x": float32[n, 8]
            state %1 "s": float32[4, 4] after %3 writtenBy "copy_"
            %2: float32[4, 4] = view.permute(a=%1, dims={1, 0})
            %3: float32[4, 4] = add(a=%1, b=%2) @0
            output %0 "y"
        }
        """

    @Test func copiesOfAStepAreCountedAndTheLargestIsNamed() async throws {
        let compiled = try Compiler().compile(decomposed: Program(text: Self.copying))
        let copies = try StepCopies(compiled.bundle, sources: compiled.sources)
        // The whole state, and four rows of the input into the output.
        #expect(copies.steps.map(\.bytes) == [4 * 4 * 4 + 4 * 8 * 4])
        #expect(copies.steps.map(\.sizes) == ["n = 4"])
        #expect(copies.findings(limit: 192) == [])
        #expect(
            copies.findings(limit: 191) == [
                Diagnostic(
                    .stepCopiesExceeded, "a step of `main` copies too many bytes", at: "function `main`",
                    expected: "at most 191 bytes",
                    found: "192 bytes at n = 4, 128 bytes of them by the copy of input `x` into output `y`")
            ])
        #expect(
            inPlaceFindings(compiled.bundle).map(\.description) == [
                """
                error[E0302]: state `s` is not updated in place
                  --> function `main`
                  expected: in place
                  found:    copies 64 bytes per step because \(compiled.bundle.functions[0].states[0].copyReason)
                  hint:     validate without --require-in-place to accept the copy
                """
            ])
    }

    @Test func copyOfAStateIsPlacedAtItsLine() throws {
        let text = Self.copying.replacing("output %0 \"y\"", with: "")
        let compiled = try Compiler().compile(decomposed: Program(text: text))
        let finding = try #require(
            try StepCopies(compiled.bundle, sources: compiled.sources).findings(limit: 0).first)
        #expect(finding.location == "function `main`, layer (model.py:7)")
        #expect(finding.found?.hasPrefix("64 bytes") == true)
    }

    @Test func aModelInPlacePassesBothLimits() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let run = await ToolRun(
            "validate", folder / "model.statepack", "--no-replay", "--require-in-place", "--max-step-copies", "0")
        #expect(run.status == 0)
        #expect(run.diagnostics == "")
        #expect(run.results.contains("\ncopies     a step of main: 0 bytes\n"))
    }

    @Test func aModelThatCopiesFailsBothLimits() async throws {
        let folder = TestFolder()
        let compiled = try Compiler().compile(decomposed: Program(text: Self.copying))
        try Compiler.write(compiled, weights: ImportedWeights(), recording: [], to: folder / "m.statepack")
        let run = await ToolRun(
            "validate", folder / "m.statepack", "--no-replay", "--require-in-place", "--max-step-copies", "100B")
        #expect(run.status == 1)
        #expect(run.diagnostics.contains("error[E0302]: state `s` is not updated in place\n"))
        #expect(run.diagnostics.contains("error[E0751]: a step of `main` copies too many bytes\n"))
    }
}
