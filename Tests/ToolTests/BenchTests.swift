import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import StatepackTool
import Testing

@Suite struct BenchTests {
    /// A linear layer whose weight is large enough to measure, beside a cache of 512 rows that positions index.
    static func program(hasContext: Bool = true, query: Int = 64) throws -> BundleProgram {
        func size(_ value: Int) -> SizeExpression { SizeExpression(value) }
        let n = query > 1 ? SizeExpression.symbol(0) : size(1)
        var program = BundleProgram(
            producer: "test", programDigest: Array(repeating: 0, count: 32),
            symbols: query > 1 ? [.init(name: "query", min: 1, max: query)] : [],
            tensors: [
                .init(
                    name: "weight", scalarType: .float32, shape: [1024, 512], layout: .rowMajor, offset: 0,
                    length: 2 << 20)
            ],
            states: [
                .init(
                    name: "cache", sourceName: "cache", scalarType: .float32, shape: [size(512), size(512)],
                    initialValue: .splat([0, 0, 0, 0])),
                .init(
                    name: "last", sourceName: "last", scalarType: .bool, shape: [size(3)], initialValue: .splat([0])),
            ],
            functions: [], kernels: ["linear", "index_copy", "write"])
        let values: [BundleProgram.Value] = [
            .init(scalarType: .float32, shape: [n, size(512)], storage: .input(0)),
            .init(scalarType: .int64, shape: [n], storage: .input(1)),
            .init(scalarType: .bool, shape: [size(3)], storage: .input(2)),
            .init(scalarType: .float32, shape: [size(1024), size(512)], storage: .tensor(0)),
            .init(scalarType: .float32, shape: [n, size(1024)], storage: .output(0)),
            .init(scalarType: .float32, shape: [size(512), size(512)], storage: .state(0)),
            .init(scalarType: .bool, shape: [size(3)], storage: .state(1)),
        ]
        func run(_ kernel: Int, _ operands: [Int], _ result: Int, _ ints: [Int]) -> BundleProgram.Instruction {
            .init(
                kernel: kernel, operands: operands, results: [result], ints: ints.map { SizeExpression($0) },
                floats: [], source: nil)
        }
        program.functions = [
            .init(
                name: "main",
                inputs: [.init(name: "x", value: 0), .init(name: "positions", value: 1), .init(name: "on", value: 2)],
                outputs: [.init(name: "y", value: 4)],
                states: [
                    .init(state: 0, value: 5, writtenBy: "index_copy", copiedBytes: .zero, copyReason: ""),
                    .init(state: 1, value: 6, writtenBy: "copy", copiedBytes: .zero, copyReason: ""),
                ],
                symbolSources: query > 1 ? [.init(symbol: 0, input: 0, axis: 0)] : [], values: values,
                instructions: [run(0, [0, 3], 4, []), run(1, [5, 1, 0], 5, [0]), run(2, [2], 6, [0])],
                context: hasContext ? .init(positions: 1, axes: [.init(state: 0, axis: 0)]) : nil)
        ]
        // The optional bias of `linear`.
        program.functions[0].instructions[0].operands.append(nil)
        return program
    }

    static func folder(hasContext: Bool = true, query: Int = 64) throws -> TestFolder {
        let folder = TestFolder()
        try RichModel.write(
            program(hasContext: hasContext, query: query), weights: [UInt8](repeating: 0, count: 2 << 20),
            to: folder / "model.statepack")
        return folder
    }

    static func document(_ words: [String]) async throws -> JSONValue {
        let run = await ToolRun("statepack", ["bench"] + words + ["--json"])
        #expect(run.status == 0, "\(run.results)")
        #expect(run.diagnostics == "")
        return try JSONReader.read(Array(run.results.utf8))
    }

    static func number(_ value: JSONValue?) -> Double? {
        switch value {
        case .number(let number): number
        case .integer(let integer): Double(integer)
        default: nil
        }
    }

    /// The median, once it is known to lie where a median lies.
    static func median(_ spread: JSONValue?, count: Int) throws -> Double {
        #expect(spread?["count"] == .integer(count))
        let values = try ["min", "lowerQuartile", "median", "upperQuartile", "max"].map { key in
            try #require(number(spread?[key]), "\(key)")
        }
        #expect(values == values.sorted())
        return values[2]
    }

    @Test func everyFigureIsThereAndFollowsFromTheOthers() async throws {
        let folder = try Self.folder()
        let report = try await Self.document([
            folder / "model.statepack", "--contexts", "400,7", "--repetitions", "9", "--warm-up", "1", "--threads",
            "1",
        ])
        #expect(
            report.objectValue?.map(\.key) == [
                "bench", "file", "function", "processor", "instructionSet", "threads", "repetitions", "warmUp", "sizes",
                "inputs", "capacity", "filledRows", "load", "memory", "bandwidth", "steps", "growth", "prefill",
                "notes", "exitCode", "findings",
            ])
        #expect(report["threads"] == 1)
        #expect(report["repetitions"] == 9)
        #expect(report["sizes"] == ["query": 1])
        #expect(report["capacity"] == 512)
        #expect(report["filledRows"] == 401)
        #expect(
            report["inputs"]?.arrayValue?.map { $0["elements"]?.stringValue } == ["seeded", "context", "trues"])
        #expect(try Self.median(report["load"]?["milliseconds"], count: 5) > 0)

        let memory = report["memory"]
        #expect(memory?["weights"] == .integer(2 << 20))
        #expect(memory?["states"] == .integer(512 * 512 * 4 + 3))
        #if os(Linux)
            let resident = try #require(memory?["resident"]?.integerValue)
            let peak = try #require(memory?["peak"]?.integerValue)
            #expect(resident > 0 && peak >= resident)
            #expect(try #require(memory?["peakWithPrefill"]?.integerValue) >= peak)
        #endif

        let bandwidth = report["bandwidth"]
        #expect(bandwidth?["bytes"] == .integer(2 << 20))
        let fourStreams = try Self.median(bandwidth?["fourStreams"], count: 9)
        #expect(try Self.median(bandwidth?["oneStream"], count: 9) > 0)

        let steps = try #require(report["steps"]?.arrayValue)
        #expect(steps.map { $0["context"] } == [7, 400])
        for (step, context) in zip(steps, [7, 400]) {
            // The weight, the rows up to the one that the step writes, and a state without rows.
            let bytes = (2 << 20) + (context + 1) * 512 * 4 + 3
            #expect(step["bytes"]?["total"] == .integer(bytes))
            #expect(step["bytes"]?["cacheRows"] == .integer((context + 1) * 2048))
            let milliseconds = try Self.median(step["milliseconds"], count: 9)
            let ratio = try #require(Self.number(step["ratio"]))
            #expect(abs(ratio - milliseconds / 1e3 / (Double(bytes) / fourStreams)) <= ratio * 1e-9)
        }

        let growth = report["growth"]
        #expect(growth?["from"] == 7)
        #expect(growth?["to"] == 400)
        let perThousand = try Self.median(growth?["millisecondsPer1000Positions"], count: 9)
        let ratio = try #require(Self.number(growth?["ratio"]))
        #expect(abs(ratio - perThousand / 1e3 / (2048 * 1000 / fourStreams)) <= abs(ratio) * 1e-9)

        let prefill = report["prefill"]
        #expect(prefill?["positions"] == 64)
        let milliseconds = try Self.median(prefill?["milliseconds"], count: 5)
        let rate = try #require(Self.number(prefill?["positionsPerSecond"]))
        #expect(abs(rate - 64 / (milliseconds / 1e3)) <= rate * 1e-9)
        #expect(prefill?["inputs"]?.arrayValue?.first?["shape"] == [64, 512])
    }

    @Test func defaultContextsAreThoseThatTheStatesHaveRowsFor() async throws {
        let folder = try Self.folder()
        let report = try await Self.document([folder / "model.statepack", "--repetitions", "1"])
        // 512 is the first row that a cache of 512 does not have.
        #expect(report["steps"]?.arrayValue?.map { $0["context"] } == [128])
        #expect(report["growth"] == .null)
        #expect(report["notes"]?.arrayValue?.contains("no growth: that needs two contexts") == true)
    }

    @Test func recordedInputsAreUsedWhereTheSizesAreThoseOfAStep() async throws {
        let folder = try await ValidateTests.bundleFolder()
        let report = try await Self.document([folder / "model.statepack", "--repetitions", "2", "--prefill", "7"])
        #expect(report["inputs"]?.arrayValue?.map { $0["elements"] } == ["recording", "context"])
        // A recorded step takes one position or all 256.
        #expect(report["prefill"]?["inputs"]?.arrayValue?.map { $0["elements"] } == ["seeded", "context"])
        // Two layers, and the rows up to the one written.
        #expect(report["steps"]?.arrayValue?.first?["attentionRows"] == .integer(2 * 129))
        #expect(
            report["steps"]?.arrayValue?.first?["bytes"]?["cacheRows"] == .integer(2 * 129 * (64 + 64) * 4))
        #expect(report["bandwidth"] == .null)
        #expect(report["steps"]?.arrayValue?.first?["ratio"] == .null)
    }

    @Test func withoutDeclaredPositionsStepsHaveNoContextAndTheReportSaysWhy() async throws {
        let folder = try Self.folder(hasContext: false, query: 1)
        let report = try await Self.document([folder / "model.statepack", "--repetitions", "2"])
        let steps = try #require(report["steps"]?.arrayValue)
        #expect(steps.map { $0["context"] } == [.null])
        // Nothing says which rows are valid, so that all may be.
        #expect(steps[0]["bytes"]?["otherStates"] == .integer(512 * 512 * 4 + 3))
        #expect(report["capacity"] == .null)
        #expect(report["growth"] == .null)
        #expect(report["prefill"] == .null)
        #expect(
            report["notes"]?.arrayValue?.prefix(2) == [
                "no contexts: the function declares none, so that nothing says which input carries positions",
                "no prefill: no dynamic axis says how many positions one run takes",
            ])
        let run = await ToolRun("statepack", "bench", folder / "model.statepack", "--repetitions", "2")
        #expect(run.status == 0)
        #expect(run.results.contains("\nms per step"))
        #expect(!run.results.contains("\ncontext"))
    }

    @Test func modelThatOnlyKeepsARecurrentStateIsMeasured() async throws {
        let report = try await Self.document([
            Repository.path("Tests/Fixtures/format-1.0/sum.statepack"), "--repetitions", "3",
        ])
        let step = report["steps"]?.arrayValue?.first
        #expect(step?["bytes"] == ["weights": 0, "cacheRows": 0, "otherStates": 8, "total": 8])
        #expect(try Self.median(step?["milliseconds"], count: 3) > 0)
    }

    @Test func textIsTheSameInEveryRunButForItsFigures() async throws {
        let folder = try Self.folder()
        var texts: [String] = []
        for _ in 0..<2 {
            let run = await ToolRun(
                "statepack", "bench", folder / "model.statepack", "--contexts", "7,400", "--repetitions", "2",
                "--threads", "2")
            #expect(run.status == 0)
            #expect(run.diagnostics == "")
            texts.append(Self.withoutFigures(run.results, folder))
        }
        #expect(texts[0] == texts[1])
        try #expect(texts[0] == Golden.text("bench.txt", actual: texts[0]))
    }

    /// Measured numbers as `#`, columns as one blank, and the machine without its name.
    static func withoutFigures(_ text: String, _ folder: TestFolder) -> String {
        text.replacing(folder.path, with: "FOLDER").split(separator: "\n", omittingEmptySubsequences: false).map {
            line in
            var words = line.split(separator: " ").map(String.init)
            if words.first == "machine" { return "machine #, 2 threads" }
            let isMeasured = [
                "load", "memory", "weights", "bandwidth", "one", "growth", "quartiles", "prefill", "peak",
            ]
            .contains(words.first ?? "")
            let isRow = words.first.flatMap { Int($0) } != nil
            guard isMeasured || isRow else { return words.joined(separator: " ") }
            for index in words.indices where isMeasured || index > 0 {
                let bare = words[index].filter { !"(),".contains($0) }
                if Double(bare) != nil { words[index] = words[index].replacing(bare, with: "#") }
                for unit in ["KiB", "MiB", "GiB"] { words[index] = words[index].replacing(unit, with: "bytes") }
            }
            return words.joined(separator: " ")
        }.joined(separator: "\n")
    }

    struct Failure: CustomTestStringConvertible {
        var testDescription: String
        /// Words after `statepack bench`; `%` stands for the folder.
        var words: [String]
        var status: Int32
    }

    static let failures: [Failure] = [
        Failure(testDescription: "no such file", words: ["%/missing.statepack"], status: 3),
        Failure(testDescription: "an exported program", words: ["%/exported.pb"], status: 3),
        Failure(testDescription: "unknown function", words: ["%/model.statepack", "--function", "mian"], status: 1),
        Failure(
            testDescription: "context that has no row", words: ["%/model.statepack", "--contexts", "7,512"], status: 2),
        Failure(
            testDescription: "contexts without declared positions", words: ["%/plain.statepack", "--contexts", "7"],
            status: 2),
        Failure(
            testDescription: "contexts that are no numbers", words: ["%/model.statepack", "--contexts", "7,x"],
            status: 2),
        Failure(
            testDescription: "a context given twice", words: ["%/model.statepack", "--contexts", "7,8,7"], status: 2),
        Failure(
            testDescription: "prefill beyond the bounds", words: ["%/model.statepack", "--prefill", "65"], status: 2),
        Failure(
            testDescription: "prefill without a dynamic axis", words: ["%/plain.statepack", "--prefill", "8"],
            status: 2),
        Failure(
            testDescription: "step longer than the states", words: ["%/short.statepack", "--contexts", "0"], status: 2),
        Failure(testDescription: "input that no computer holds", words: ["%/endless.statepack"], status: 1),
        Failure(testDescription: "size that cannot be computed", words: ["%/overflow.statepack"], status: 1),
    ]

    @Test(arguments: failures)
    func failureNamesItsCause(_ row: Failure) async throws {
        let folder = try Self.folder()
        let weights = [UInt8](repeating: 0, count: 2 << 20)
        try RichModel.write(
            Self.program(hasContext: false, query: 1), weights: weights, to: folder / "plain.statepack")
        folder.write(try Golden.bytes(Repository.example), to: "exported.pb")
        func changed(_ name: String, _ change: (inout BundleProgram) throws -> Void) throws {
            var program = try Self.program()
            try change(&program)
            try RichModel.write(program, weights: weights, to: folder / name)
        }
        try changed("short.statepack") { program in
            program.symbols[0].min = 600
            program.symbols[0].max = 700
        }
        try changed("endless.statepack") { program in
            program.functions[0].inputs.append(.init(name: "huge", value: program.functions[0].values.count))
            program.functions[0].values.append(
                .init(scalarType: .float32, shape: [SizeExpression(1 << 59)], storage: .input(3)))
        }
        try changed("overflow.statepack") { program in
            let huge = try SizeExpression.symbol(0).times(1 << 62).plus(1 << 62)
            program.functions[0].inputs.append(.init(name: "huge", value: program.functions[0].values.count))
            program.functions[0].values.append(.init(scalarType: .float32, shape: [huge], storage: .input(3)))
        }
        let run = await ToolRun("statepack", ["bench"] + row.words.map { $0.replacing("%", with: folder.path) })
        #expect(run.status == row.status)
        #expect(run.results == "")
        let text = String(run.diagnostics.replacing(folder.path, with: "/models").dropLast())
        #expect(text == ExactTexts.expected("Bench", row.testDescription, actual: text))
    }

    @Test func spreadIsThatOfSortedValues() throws {
        #expect(Spread(of: []) == nil)
        let one = try #require(Spread(of: [3]))
        #expect((one.count, one.median, one.minimum, one.maximum) == (1, 3, 3, 3))
        let even = try #require(Spread(of: [4, 1, 3, 2]))
        #expect((even.median, even.minimum, even.maximum) == (2.5, 1, 4))
        #expect(even.quartiles == (1.75, 3.25))
        let odd = try #require(Spread(of: [50, 10, 20, 40, 30]))
        #expect(odd.median == 30)
        #expect(odd.quartiles == (20, 40))
    }
}
