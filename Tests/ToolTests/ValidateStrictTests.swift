import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import StatepackTool
import Testing

/// Each strict check on a program that has just that fault, and none on one that has none.
@Suite struct ValidateStrictTests {
    struct Row: CustomTestStringConvertible {
        var testDescription: String
        /// Lines of the clean program that are replaced.
        var changes: [(String, String)]
        var finding: String
    }

    /// Rows of a cache at given positions, read as a sum.
    static let clean = """
        symbol n 1...4
        state "keys" float32[8, 4] buffer "keys" splat 00000000
        source "cache (model.py:12)"
        func "main" {
            input %0 "x": float32[n, 4]
            input %1 "positions": int64[n]
            state %2 "keys": float32[8, 4] after %3 writtenBy "index_copy"
            %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0) @0
            %4: float32[4] = sum(a=%3, axes_mask=1, keep=0)
            output %4 "y"
        }
        """

    static let rows: [Row] = [
        Row(
            testDescription: "a state that is only written",
            changes: [("sum(a=%3", "sum(a=%0")],
            finding: """
                error[E0754]: no function reads the state `keys`
                  --> state `keys`
                  expected: a function that reads it
                  found:    none
                  hint:     take the buffer `keys` out of the module, or compute an output with it
                """),
        Row(
            testDescription: "a state that is only read",
            changes: [
                ("source \"cache", "state \"bias\" float32[4] buffer \"layer.bias\" splat 00000000\nsource \"cache"),
                ("%3: float32[8", "state %5 \"bias\": float32[4] writtenBy \"none\"\n%3: float32[8"),
                ("output %4", "%6: float32[4] = add(a=%4, b=%5)\noutput %6"),
            ],
            finding: """
                error[E0755]: no function writes the state `bias`
                  --> state `bias`
                  expected: a function that writes it
                  found:    none
                  hint:     leave `layer.bias` out of the states: it is a constant
                """),
        Row(
            testDescription: "an input that nothing reads",
            changes: [("state %2", "input %5 \"unused\": float32[n, 2]\nstate %2")],
            finding: """
                error[E0757]: nothing reads the input `unused`
                  --> function `main`
                  expected: an operator that reads it
                  found:    none
                  hint:     take it out of forward(), or use it
                """),
        Row(
            testDescription: "a state that is returned",
            changes: [("output %4 \"y\"", "output %4 \"y\"\noutput %3 \"z\"")],
            finding: """
                error[E0758]: the output `z` is the state `keys`
                  --> function `main`
                  expected: an output that is computed
                  found:    a copy of the whole state in each step
                  hint:     do not return it: callers read the state `keys` itself
                """),
        Row(
            testDescription: "a state that is returned with its axes in another order",
            changes: [
                (
                    "output %4 \"y\"",
                    "%5: float32[4, 8] = view.permute(a=%3, dims={1, 0})\noutput %4 \"y\"\noutput %5 \"z\""
                )
            ],
            finding: """
                error[E0758]: the output `z` is the state `keys`
                  --> function `main`
                  expected: an output that is computed
                  found:    a copy of the whole state in each step
                  hint:     do not return it: callers read the state `keys` itself
                """),
    ]

    static func compile(_ changes: [(String, String)], context: Bool = true) throws -> CompiledProgram {
        var text = clean
        for (old, new) in changes {
            #expect(text.contains(old), "nothing to replace: \(old)")
            text = text.replacing(old, with: new)
        }
        var compiled = try Compiler().compile(decomposed: Program(text: text))
        if context {
            let positions = compiled.bundle.functions[0].inputs.firstIndex { $0.name == "positions" }!
            compiled.bundle.functions[0].context = ContextRules(positions: positions, axes: [.init(state: 0, axis: 0)])
        }
        return compiled
    }

    /// Steps of these sizes, made of a step of the example, whose recording has all that one has.
    static func recording(_ sizes: [Int], changes: Bool = true) async throws -> Recording {
        var recording = try await ValidateTests.replayParts().recording
        let template = recording.replays[0].steps[0]
        recording.replays[0].steps = sizes.map { size in
            var step = template
            let shapes = ["features": ("x", [size, 4]), "position_ids": ("positions", [size])]
            for index in step.inputs.indices {
                (step.inputs[index].name, step.inputs[index].shape) = shapes[step.inputs[index].name]!
            }
            step.states.removeLast()
            step.states[0].name = "keys"
            step.states[0].runs = changes ? [0..<4] : []
            return step
        }
        return recording
    }

    static func findings(_ compiled: CompiledProgram, _ recording: Recording? = nil) -> [String] {
        StrictChecks(compiled.bundle, sources: compiled.sources, recording: recording).findings.map(\.description)
    }

    @Test(arguments: rows)
    func aFaultIsOneFinding(_ row: Row) throws {
        #expect(try Self.findings(Self.compile(row.changes)) == [row.finding])
    }

    @Test func everyWayToWriteRowsAtPositionsNeedsAContext() throws {
        let scattered = [
            (
                "%3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0) @0",
                """
                %5: int64[n, 1] = view.reshape(a=%1, shape={n, 1})
                %6: int64[n, 4] = view.expand(a=%5, shape={n, 4})
                %3: float32[8, 4] = scatter(a=%2, index=%6, source=%0, axis=0) @0
                """
            )
        ]
        #expect(
            try Self.findings(Self.compile(scattered, context: false)) == [
                """
                error[E0762]: the input `positions` says which rows of a state are written, but no context is declared
                  --> function `main`, cache (model.py:12)
                  expected: a context with the positions `positions`
                  found:    rows of `keys` written without one
                  hint:     export with context=statepack.Context(positions="positions", axes={"keys": 0})
                """
            ])
        #expect(try Self.findings(Self.compile(scattered)) == [])
    }

    @Test func aCleanProgramHasNone() async throws {
        #expect(try await Self.findings(Self.compile([]), Self.recording([1, 4])) == [])
    }

    @Test func rowsOfAStateThatAreReturnedAreNoAlias() throws {
        let compiled = try Self.compile([
            ("output %4 \"y\"", "%5: float32[4] = view.select(a=%3, dim=0, index=2)\noutput %4 \"y\"\noutput %5 \"z\"")
        ])
        #expect(Self.findings(compiled) == [])
    }

    @Test func anInputThatAloneGivesASizeIsUsed() throws {
        let compiled = try Self.compile([
            ("symbol n 1...4", "symbol n 1...4\nsymbol m 1...2"),
            ("state %2", "input %5 \"shape\": float32[m, 2]\nstate %2"),
            (
                "output %4",
                "%6: float32[m, 4] = view.expand(a=%7, shape={m, 4})\n%8: float32[m, 4] = neg(a=%6)\noutput %4"
            ),
            (
                "%4: float32[4] = sum(a=%3, axes_mask=1, keep=0)",
                "%4: float32[4] = sum(a=%3, axes_mask=1, keep=0)\n%7: float32[1, 4] = view.reshape(a=%4, shape={1, 4})"
            ),
            ("output %4 \"y\"", "output %4 \"y\"\noutput %8 \"z\""),
        ])
        #expect(Self.findings(compiled) == [])
    }

    // MARK: What the recording reached

    @Test func aStateThatNoStepChangesIsFound() async throws {
        #expect(
            try await Self.findings(Self.compile([]), Self.recording([1, 4], changes: false)) == [
                """
                error[E0756]: no recorded step changes the state `keys`
                  --> state `keys`
                  expected: a step of `main` that changes it
                  found:    2 steps without a change
                  hint:     pass recording_inputs with such a step
                """
            ])
    }

    @Test func boundsThatNoStepReachesAreFound() async throws {
        func finding(_ end: String, _ value: Int, _ seen: String) -> String {
            """
            error[E0759]: no recorded step has the \(end) `n`
              --> symbol `n`
              expected: a step with n = \(value)
              found:    n = \(seen)
              hint:     add such a step to recording_inputs, or give the Dim the bounds that are used
            """
        }
        let compiled = try Self.compile([])
        #expect(
            try await Self.findings(compiled, Self.recording([2])) == [
                finding("smallest", 1, "2"), finding("largest", 4, "2"),
            ])
        #expect(try await Self.findings(compiled, Self.recording([1, 3])) == [finding("largest", 4, "1, 3")])
        #expect(try await Self.findings(compiled, Self.recording([4, 2])) == [finding("smallest", 1, "2, 4")])
    }

    @Test func whatNoRecordingCanReachIsNotAskedFor() async throws {
        // A thousand positions do not fit into eight rows, so that eight is all that can be recorded.
        let beyondCapacity = try Self.compile([("1...4", "1...1000")])
        #expect(try await Self.findings(beyondCapacity, Self.recording([1, 8])) == [])
        #expect(try await Self.findings(beyondCapacity, Self.recording([1, 7])).count == 1)
        // Without a context the inputs of a recording, 4 MB of 24 bytes a row, are the limit.
        let beyondInputs = try Self.compile([("1...4", "1...1000000")], context: false)
        let bounds = try await Self.findings(beyondInputs, Self.recording([1])).filter { $0.contains("E0759") }
        #expect(bounds.count == 1)
        #expect(bounds.first?.contains("expected: a step with n = \(4_000_000 / 24)\n") == true)
    }

    // MARK: Contexts

    @Test func positionsWithoutAContextAreFoundWithWhatToDeclare() throws {
        #expect(
            try Self.findings(Self.compile([], context: false)) == [
                """
                error[E0762]: the input `positions` says which rows of a state are written, but no context is declared
                  --> function `main`, cache (model.py:12)
                  expected: a context with the positions `positions`
                  found:    rows of `keys` written without one
                  hint:     export with context=statepack.Context(positions="positions", axes={"keys": 0})
                """
            ])
    }

    @Test func aLayerOfAStackedStateHasTheAxisOfTheState() throws {
        let compiled = try Self.compile(
            [
                ("float32[8, 4] buffer", "float32[2, 8, 4] buffer"),
                ("state %2 \"keys\": float32[8, 4] after %3", "state %2 \"keys\": float32[2, 8, 4] after %6"),
                (
                    "%3: float32[8, 4] = index_copy(a=%2,",
                    "%5: float32[8, 4] = view.select(a=%2, dim=0, index=1)\n%3: float32[8, 4] = index_copy(a=%5,"
                ),
                (
                    "%4: float32[4] =",
                    "%6: float32[2, 8, 4] = scatter.select(a=%2, source=%3, dim=0, index=1)\n%4: float32[4] ="
                ),
            ], context: false)
        let findings = Self.findings(compiled)
        #expect(findings.count == 1)
        #expect(findings.first?.contains("axes={\"keys\": 1})") == true)
    }

    @Test func indicesThatAreComputedAreNoPositions() throws {
        let compiled = try Self.compile(
            [
                ("%3: float32", "%5: int64[n] = abs(a=%1)\n%3: float32"), ("index=%1", "index=%5"),
            ], context: false)
        #expect(Self.findings(compiled) == [])
    }

    // MARK: Types and weights

    @Test func float64IsFoundWhereverItIs() throws {
        var compiled = try Self.compile([])
        let function = compiled.bundle.functions[0]
        compiled.bundle.functions[0].values[function.inputs[0].value].scalarType = .float64
        compiled.bundle.states[0].scalarType = .float64
        compiled.bundle.tensors.append(
            .init(name: "w", scalarType: .float64, shape: [1], layout: .rowMajor, offset: 0, length: 8))
        func finding(_ what: String, _ place: String, _ hint: String) -> String {
            """
            error[E0761]: \(what) is float64
              --> \(place)
              expected: float32
              found:    float64
              hint:     \(hint)
            """
        }
        #expect(
            Self.findings(compiled) == [
                finding("the state `keys`", "state `keys`", "register `keys` as float32"),
                finding("the weight `w`", "weight `w`", "call module.float() before exporting"),
                finding("the input `x`", "function `main`", "cast it in the model: x.float()"),
            ])
    }

    static func weights(_ values: [Float], _ shape: [Int], _ layout: BundleProgram.Layout = .rowMajor) -> [Diagnostic] {
        let program = BundleProgram(
            producer: "", programDigest: [], symbols: [],
            tensors: [
                .init(
                    name: "w", scalarType: .float32, shape: shape, layout: layout, offset: 0, length: values.count * 4)
            ], states: [], functions: [], kernels: [])
        return values.withUnsafeBytes { bytes in weightFindings(program) { _ in bytes } }
    }

    @Test func weightsThatAreNotFiniteAreFoundWithTheFirstElement() {
        #expect(Self.weights([1, -.greatestFiniteMagnitude, 0, .leastNonzeroMagnitude], [4]) == [])
        #expect(
            Self.weights([1, .infinity, .nan, .nan, -.infinity, 2], [2, 3]).map(\.description) == [
                """
                error[E0760]: the weight `w` has 2 NaNs and 2 infinities
                  --> weight `w`
                  expected: finite numbers
                  found:    inf at element 1
                  hint:     repair the checkpoint; a mask can use torch.finfo(dtype).min
                """
            ])
        #expect(Self.weights([.nan], [1]).first?.message == "the weight `w` has 1 NaN")
        #expect(Self.weights([-.infinity], [1]).first?.message == "the weight `w` has 1 infinity")
    }

    @Test func elementsOfAPackedWeightAreCountedAsTheAuthorDoes() {
        // [17, 2] in panels of 16 rows: element [16, 1] comes first in row-major order after [3, 1].
        var packed = [Float](repeating: 0, count: 2 * 2 * 16)
        packed[(1 * 2 + 1) * 16 + 0] = .nan
        #expect(Self.weights(packed, [17, 2], .panel16).first?.found == "nan at element 33")
        packed[(0 * 2 + 1) * 16 + 3] = .infinity
        #expect(Self.weights(packed, [17, 2], .panel16).first?.found == "inf at element 7")
    }

    @Test func initialValuesMayBeInfinite() throws {
        let program = BundleProgram(
            producer: "", programDigest: [], symbols: [],
            tensors: [.init(name: "m", scalarType: .float32, shape: [1], layout: .rowMajor, offset: 0, length: 4)],
            states: [
                .init(
                    name: "m", sourceName: "m", scalarType: .float32, shape: [SizeExpression(1)],
                    initialValue: .tensor(0))
            ], functions: [], kernels: [])
        let bytes: [Float] = [-.infinity]
        #expect(bytes.withUnsafeBytes { bytes in weightFindings(program) { _ in bytes } } == [])
    }

    // MARK: The command

    @Test func strictFindsWhatTheExampleDoesNotReachAndOtherwiseIsSilent() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let silent = await ToolRun("validate", folder / "model.statepack")
        #expect(silent.status == 0)
        #expect(silent.diagnostics == "")
        let strict = await ToolRun("validate", folder / "model.statepack", "--strict")
        #expect(strict.status == 0, "\(strict.diagnostics)")
        #expect(strict.diagnostics == "")
        #expect(strict.results.contains("strict     nothing found\n"))
    }

    @Test func aFileWithoutARecordingFailsStrictly() async throws {
        let folder = TestFolder()
        let compiled = try Self.compile([])
        try Compiler.write(compiled, weights: ImportedWeights(), recording: [], to: folder / "m.statepack")
        let plain = await ToolRun("validate", folder / "m.statepack")
        #expect(plain.status == 0)
        #expect(plain.diagnostics.hasPrefix("warning[E0726]"))
        let strict = await ToolRun("validate", folder / "m.statepack", "--strict")
        #expect(strict.status == 1)
        #expect(strict.diagnostics.hasPrefix("error[E0726]"))
        #expect(strict.results.contains("unchecked  contract, replay (no recording)\n"))
    }

    @Test(arguments: [["--descriptors", ValidateScopeTests.contract], ["--checksums"], ["--replay"]])
    func strictChecksEverythingWhateverIsNamed(_ words: [String]) async throws {
        let folder = try await ValidateTests.bundleFolder()
        for path in [folder / "model.statepack", Repository.example] {
            let run = await ToolRun("validate", [path, "--strict", "--format", "json"] + words)
            let report = try JSONReader.read(Array(run.results.utf8))
            #expect(report["bytes"]?["status"] == "hold")
            #expect(report["replay"]?["status"] == "holds")
            #expect(report["notChecked"] == (words[0] == "--descriptors" ? [] : ["contract"]))
            let short = await ToolRun("validate", [path, "--strict", "--no-replay", "--format", "json"] + words)
            if words[0] == "--replay" { continue }
            #expect(try JSONReader.read(Array(short.results.utf8))["replay"]?["status"] == "notDone")
        }
    }
}
