import ExactTexts
import Statepack
import StatepackDiagnostics
import StatepackTool
import Testing

@Suite struct RunTests {
    /// A folder with the example's bundle and inputs for three steps.
    static func folder(steps: Int = 3, start: Int = 0) async throws -> TestFolder {
        let folder = try await ValidateTests.bundleFolder()
        var inputs: [String: NDArray] = [:]
        for step in 0..<steps {
            inputs["features.\(step)"] = NDArray(
                scalars: (0..<64).map { Float(($0 * 7 + (start + step) * 13) % 11) / 5 - 1 }, shape: [1, 1, 64])
            inputs["position_ids.\(step)"] = NDArray(scalars: [Int64(start + step)], shape: [1])
        }
        try TensorFile.write(inputs, to: folder / "in.safetensors")
        return folder
    }

    static func floats(_ array: NDArray?) -> [Float] {
        guard let array, let elements = array.view(as: Float.self).contiguousElements else { return [] }
        return elements.indices.map { elements[$0] }
    }

    @Test func statesAreKeptBetweenStepsAndFromOneRunToTheNext() async throws {
        let folder = try await Self.folder()
        let all = await ToolRun(
            "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors", "--outputs",
            folder / "all.safetensors", "--states-out", folder / "end.safetensors")
        #expect(all.status == 0)
        #expect(all.diagnostics == "")
        #expect(all.results == "")
        let outputs = try TensorFile(path: folder / "all.safetensors")
        #expect(outputs.entries.map(\.name) == ["logits.0", "logits.1", "logits.2"])

        // The same three steps as one and two, the states carried by a file.
        let first = await ToolRun(
            "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors", "--steps", "1",
            "--states-out", folder / "middle.safetensors", "--outputs", folder / "first.safetensors")
        #expect(first.status == 0)
        let tail = try await Self.folder(steps: 2, start: 1)
        let second = await ToolRun(
            "statepack", "run", folder / "model.statepack", "--inputs", tail / "in.safetensors", "--states-in",
            folder / "middle.safetensors", "--states-out", folder / "end2.safetensors", "--outputs",
            folder / "second.safetensors")
        #expect(second.status == 0, "\(second.diagnostics)")
        #expect(try folder.read("end.safetensors") == folder.read("end2.safetensors"))
        let later = try TensorFile(path: folder / "second.safetensors")
        #expect(Self.floats(later["logits.1"]) == Self.floats(outputs["logits.2"]))
        #expect(Self.floats(outputs["logits.2"]).count == 64)

        // Rows that no step wrote keep their initial value.
        let states = try TensorFile(path: folder / "end.safetensors")
        let keys = Self.floats(states["keyCache"])
        #expect(keys.count == 2 * 256 * 64)
        #expect(keys[0..<3 * 64].contains { $0 != 0 })
        #expect(keys[3 * 64..<256 * 64].allSatisfy { $0 == 0 })
    }

    @Test func bothFilesAreWrittenOrNeither() async throws {
        let folder = try await Self.folder(steps: 1)
        folder.write("former".utf8, to: "out.safetensors")
        let missing = folder / "missing/states.safetensors"
        let run = await ToolRun(
            "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors", "--outputs",
            folder / "out.safetensors", "--states-out", missing)
        #expect(run.status == 5)
        #expect(
            run.diagnostics == """
                error[E0731]: the output cannot be written: No such file or directory
                  --> \(missing)
                  hint:     create the folder \(folder / "missing") first

                """)
        #expect(try folder.read("out.safetensors") == Array("former".utf8))
        #expect(folder.names == ["in.safetensors", "model.statepack", "out.safetensors"])
    }

    @Test func resultsDoNotDependOnTheNumberOfThreads() async throws {
        let folder = try await Self.folder()
        for threads in ["1", "2", "3"] {
            let run = await ToolRun(
                "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors", "--threads",
                threads, "--outputs", folder / "out\(threads).safetensors")
            #expect(run.status == 0)
        }
        #expect(try folder.read("out1.safetensors") == folder.read("out2.safetensors"))
        #expect(try folder.read("out1.safetensors") == folder.read("out3.safetensors"))
    }

    @Test func withoutAFileTheOutputsArePrintedAndTimingsCountRows() async throws {
        let folder = try await Self.folder(steps: 2)
        let run = await ToolRun(
            "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors", "--timings")
        #expect(run.status == 0)
        let lines = run.results.split(separator: "\n").map(String.init)
        try #require(lines.count == 5)
        // One row for each layer and position up to its own.
        #expect(lines[0].hasPrefix("step 0: "))
        #expect(lines[0].hasSuffix(" ms, attention rows 2, state bytes copied 0"))
        #expect(lines[1].hasPrefix("step 0: logits [1, 1, 64] float32 "))
        #expect(lines[2].hasSuffix(" ms, attention rows 4, state bytes copied 0"))
        #expect(lines[4].hasPrefix("median of 2 steps: "))
    }

    struct Failure: CustomTestStringConvertible {
        var testDescription: String
        /// Words after `statepack run FOLDER/model.statepack`; `%` stands for the folder.
        var words: [String]
        var status: Int32
        var diagnostics: String
    }

    static let failures: [Failure] = [
        Failure(
            testDescription: "unknown function", words: ["--function", "mian"], status: 1,
            diagnostics: """
                error[E0744]: the bundle has no function `mian`
                  --> %/model.statepack
                  expected: main
                  found:    mian
                  hint:     did you mean `main`?

                """),
        Failure(
            testDescription: "no inputs", words: [], status: 1,
            diagnostics: """
                error[E0742]: step 0 has no tensor for the input `features`
                  --> no --inputs
                  expected: features or features.0
                  found:    no file
                  hint:     give the inputs with --inputs
                error[E0742]: step 0 has no tensor for the input `position_ids`
                  --> no --inputs
                  expected: position_ids or position_ids.0
                  found:    no file
                  hint:     give the inputs with --inputs

                """),
        Failure(
            testDescription: "more steps than inputs", words: ["--inputs", "%/in.safetensors", "--steps", "4"],
            status: 1,
            diagnostics: """
                error[E0742]: step 3 has no tensor for the input `features`
                  --> %/in.safetensors
                  expected: features or features.3

                """),
        Failure(
            testDescription: "misspelled input", words: ["--inputs", "%/misspelled.safetensors"], status: 1,
            diagnostics: """
                error[E0743]: the tensor `featuers` is for no input of `main`
                  --> %/misspelled.safetensors
                  expected: features or features.STEP, position_ids or position_ids.STEP
                  found:    featuers
                  hint:     did you mean `features`?

                """),
        Failure(
            testDescription: "inputs file that is none", words: ["--inputs", "%/model.statepack"], status: 3,
            diagnostics: """
                error[E0118]: the header is too long
                  --> %/model.statepack
                  expected: at most 100000000 bytes
                  found:    727905341988164489 bytes

                """),
        Failure(
            testDescription: "missing inputs file", words: ["--inputs", "%/missing.safetensors"], status: 3,
            diagnostics: """
                error[E0102]: there is no such file
                  --> %/missing.safetensors

                """),
        Failure(
            testDescription: "state that the function does not have",
            words: ["--inputs", "%/in.safetensors", "--states-in", "%/in.safetensors"], status: 1,
            diagnostics: """
                error[E0745]: the function has no state `features.0`
                  --> %/in.safetensors
                  expected: keyCache, valueCache
                  found:    features.0

                """),
        Failure(
            testDescription: "state of another shape",
            words: ["--inputs", "%/in.safetensors", "--states-in", "%/short.safetensors"], status: 1,
            diagnostics: """
                error[E0745]: state `keyCache` has another type or shape
                  --> %/short.safetensors
                  expected: [2, 256, 64] float32
                  found:    [2, 128, 64] float32

                """),
        Failure(
            testDescription: "output is the bundle",
            words: ["--inputs", "%/in.safetensors", "--outputs", "%/./model.statepack"], status: 2,
            diagnostics: """
                error[E0732]: --outputs would overwrite a file that the command reads
                  --> %/./model.statepack
                  expected: a path other than %/model.statepack
                  found:    %/./model.statepack

                """),
        Failure(
            testDescription: "outputs and states in one file",
            words: ["--inputs", "%/in.safetensors", "--outputs", "%/x", "--states-out", "%/x"], status: 2,
            diagnostics: "error[E0709]: --outputs and --states-out name the same file\n"),
        Failure(
            testDescription: "outputs and states in one file by two paths",
            words: ["--inputs", "%/in.safetensors", "--outputs", "%/x", "--states-out", "%/./x"], status: 2,
            diagnostics: "error[E0709]: --outputs and --states-out name the same file\n"),
        Failure(
            testDescription: "no folder for the outputs",
            words: ["--inputs", "%/in.safetensors", "--outputs", "%/missing/out.safetensors"], status: 5,
            diagnostics: """
                error[E0731]: the output cannot be written: No such file or directory
                  --> %/missing/out.safetensors
                  hint:     create the folder %/missing first

                """),
        Failure(
            testDescription: "position beyond the capacity",
            words: ["--inputs", "%/far.safetensors", "--outputs", "%/out.safetensors"], status: 1,
            diagnostics: """
                error[E0617]: the context is full: state `keyCache` has 256 rows and position 256 is the next one
                  --> function `main`, input `position_ids`, step 0
                  expected: positions in 0..<256, the length of axis 1 of state `keyCache`
                  found:    256
                  hint:     start from fresh states, drop old rows, or export with a larger capacity; no state was changed

                """),
        Failure(
            testDescription: "input of another type", words: ["--inputs", "%/typed.safetensors"], status: 1,
            diagnostics: """
                error[E0603]: input `position_ids` has the wrong scalar type
                  --> function `main`, run(inputs:states:outputViews:), step 0
                  expected: [query] int64
                  found:    [1] float32
                  hint:     create the array from descriptor.inputDescriptor(of: "position_ids")

                """),
        Failure(
            testDescription: "an exported program instead of a bundle", words: [], status: 3,
            diagnostics: "error[E0501]"),
    ]

    @Test(arguments: failures)
    func failureNamesItsCauseAndWritesNothing(_ row: Failure) async throws {
        let folder = try await Self.folder()
        let features = NDArray(shape: [1, 1, 64], scalarType: .float32)
        try TensorFile.write(
            ["featuers": features, "position_ids": NDArray(scalars: [Int64(0)], shape: [1])],
            to: folder / "misspelled.safetensors")
        try TensorFile.write(
            ["features": features, "position_ids": NDArray(scalars: [Int64(256)], shape: [1])],
            to: folder / "far.safetensors")
        try TensorFile.write(
            ["features": features, "position_ids": NDArray(scalars: [Float(0)], shape: [1])],
            to: folder / "typed.safetensors")
        try TensorFile.write(
            ["keyCache": NDArray(shape: [2, 128, 64], scalarType: .float32)], to: folder / "short.safetensors")
        let before = folder.names
        let model = row.diagnostics == "error[E0501]" ? Repository.example : folder / "model.statepack"
        let run = await ToolRun(
            "statepack", ["run", model] + row.words.map { $0.replacing("%", with: folder.path) })
        #expect(run.status == row.status)
        let expected = row.diagnostics.replacing("%", with: folder.path)
        #expect(
            run.diagnostics.hasPrefix(expected.hasSuffix("\n\n") ? String(expected.dropLast()) : expected),
            "\(run.diagnostics)")
        let text = String(
            run.diagnostics.replacing(Repository.example, with: "/models/exported.pb").replacing(
                folder.path, with: "/models"
            ).dropLast())
        #expect(text == ExactTexts.expected("RunModel", row.testDescription, actual: text))
        #expect(folder.names == before)
    }
}
