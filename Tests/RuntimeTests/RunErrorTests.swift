import ExactTexts
import Statepack
import StatepackBundle
import Testing

/// Every wrong call names its argument with expected and found, and changes no state.
struct RunErrorTests {
    struct Case: CustomTestStringConvertible, Sendable {
        let name: String
        let code: Diagnostic.Code
        let message: String
        let expected: String?
        let found: String?
        /// Changes a good call of the cache program into a wrong one.
        let change: @Sendable (inout [String: NDArray], inout [String: NDArray], inout [String: NDArray]) -> Void
        var testDescription: String { name }

        init(
            _ name: String, _ code: Diagnostic.Code, _ message: String, expected: String?, found: String?,
            _ change:
                @escaping @Sendable (inout [String: NDArray], inout [String: NDArray], inout [String: NDArray])
                -> Void
        ) {
            self.name = name
            self.code = code
            self.message = message
            self.expected = expected
            self.found = found
            self.change = change
        }
    }

    static let cases = [
        Case(
            "unknown input", .unknownArgument, "`rowz` is not an input of this function", expected: "rows, position",
            found: "rowz"
        ) { inputs, _, _ in inputs["rowz"] = NDArray(shape: [1], scalarType: .float32) },
        Case(
            "unknown state", .unknownArgument, "`rows` is not a state of this function", expected: "cache",
            found: "rows"
        ) { _, states, _ in states["rows"] = NDArray(shape: [1], scalarType: .float32) },
        Case(
            "unknown output", .unknownArgument, "`logits` is not an output of this function",
            expected: "doubled, total", found: "logits"
        ) { _, _, outputs in outputs["logits"] = NDArray(shape: [1], scalarType: .float32) },
        Case(
            "missing input", .missingArgument, "input `rows` is missing", expected: "`rows`: [query, 4] float32",
            found: "no input of that name"
        ) { inputs, _, _ in inputs["rows"] = nil },
        Case(
            "missing state", .missingArgument, "state `cache` is missing", expected: "`cache`: [8, 4] float32",
            found: "no state of that name"
        ) { _, states, _ in states["cache"] = nil },
        Case(
            "input of another type", .wrongScalarType, "input `position` has the wrong scalar type",
            expected: "[query] int64", found: "[2] int32"
        ) { inputs, _, _ in inputs["position"] = NDArray(scalars: [0, 1] as [Int32], shape: [2]) },
        Case(
            "state of another type", .wrongScalarType, "view for state `cache` has the wrong scalar type",
            expected: "[8, 4] float32", found: "[8, 4] float16"
        ) { _, states, _ in states["cache"] = NDArray(shape: [8, 4], scalarType: .float16) },
        Case(
            "output view of another type", .wrongScalarType, "view for output `total` has the wrong scalar type",
            expected: "[4] float32", found: "[4] float64"
        ) { _, _, outputs in outputs["total"] = NDArray(shape: [4], scalarType: .float64) },
        Case(
            "input of another rank", .wrongShape, "input `rows` has the wrong shape", expected: "[query, 4] float32",
            found: "[8] float32"
        ) { inputs, _, _ in inputs["rows"] = NDArray(shape: [8], scalarType: .float32) },
        Case(
            "state that is smaller", .wrongShape, "view for state `cache` has the wrong shape",
            expected: "[8, 4] float32", found: "[4, 4] float32"
        ) { _, states, _ in states["cache"] = NDArray(shape: [4, 4], scalarType: .float32) },
        Case(
            "state that is larger", .wrongShape, "view for state `cache` has the wrong shape",
            expected: "[8, 4] float32", found: "[16, 4] float32"
        ) { _, states, _ in states["cache"] = NDArray(shape: [16, 4], scalarType: .float32) },
        Case(
            "output view of another shape", .wrongShape, "view for output `total` has the wrong shape",
            expected: "[4] float32", found: "[5] float32"
        ) { _, _, outputs in outputs["total"] = NDArray(shape: [5], scalarType: .float32) },
        Case(
            "size above its bounds", .sizeOutOfBounds, "axis 0 of input `rows` is out of bounds",
            expected: "query in 1...8", found: "9"
        ) { inputs, _, _ in
            inputs["rows"] = NDArray(shape: [9, 4], scalarType: .float32)
            inputs["position"] = NDArray(shape: [9], scalarType: .int64)
        },
        Case(
            "size below its bounds", .sizeOutOfBounds, "axis 0 of input `rows` is out of bounds",
            expected: "query in 1...8", found: "0"
        ) { inputs, _, _ in
            inputs["rows"] = NDArray(shape: [0, 4], scalarType: .float32)
            inputs["position"] = NDArray(shape: [0], scalarType: .int64)
        },
        Case(
            "inputs that disagree", .inconsistentSizes, "axis 0 of input `position` does not fit the other arguments",
            expected: "query = 2 (query = 2 from axis 0 of input `rows`)", found: "3"
        ) { inputs, _, _ in inputs["position"] = NDArray(shape: [3], scalarType: .int64) },
        Case(
            "output view that disagrees", .inconsistentSizes,
            "axis 0 of view for output `doubled` does not fit the other arguments",
            expected: "query = 2 (query = 2 from axis 0 of input `rows`)", found: "1"
        ) { _, _, outputs in outputs["doubled"] = NDArray(shape: [1, 4], scalarType: .float32) },
        Case(
            "state with padding", .notContiguous, "view for state `cache` is not row-major without padding",
            expected: "strides [4, 1]", found: "strides [8, 1]"
        ) { _, states, _ in states["cache"] = NDArray(shape: [8, 4], scalarType: .float32, strides: [8, 1]) },
        Case(
            "output view in another order", .notContiguous,
            "view for output `doubled` is not row-major without padding", expected: "strides [4, 1]",
            found: "strides [1, 2]"
        ) { _, _, outputs in
            outputs["doubled"] = NDArray(shape: [2, 4], scalarType: .float32, strides: [1, 2])
        },
        Case(
            "position past the end", .indexOutOfRange,
            "index 8 is out of range for axis 0 of state `cache` in `index_copy`", expected: "0..<8", found: "8"
        ) { inputs, _, _ in inputs["position"] = NDArray(scalars: [7, 8] as [Int64], shape: [2]) },
        Case(
            "position far past the end", .indexOutOfRange,
            "index 1099511627776 is out of range for axis 0 of state `cache` in `index_copy`", expected: "0..<8",
            found: "1099511627776"
        ) { inputs, _, _ in inputs["position"] = NDArray(scalars: [0, 1 << 40] as [Int64], shape: [2]) },
    ]

    private func goodInputs() -> [String: NDArray] {
        [
            "rows": NDArray(scalars: (1...8).map(Float.init), shape: [2, 4]),
            "position": NDArray(scalars: [2, 3] as [Int64], shape: [2]),
        ]
    }

    @Test("a wrong call is refused by name and changes no state", arguments: cases)
    func refused(_ example: Case) async throws {
        let function = try SmallPrograms.cache()
        var inputs = goodInputs()
        var states = ["cache": NDArray(scalars: (0..<32).map(Float.init), shape: [8, 4])]
        var outputs: [String: NDArray] = [:]
        example.change(&inputs, &states, &outputs)
        let before = states.mapValues(bytes)
        for isSynchronous in [false, true] {
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var outputViews = InferenceFunction.MutableViews()
            outputViews.insert(contentsOf: &outputs)
            do {
                if isSynchronous {
                    _ = try function.runSynchronously(inputs: inputs, states: views, outputViews: outputViews)
                } else {
                    _ = try await function.run(inputs: inputs, states: views, outputViews: outputViews)
                }
                Issue.record("the call went through")
            } catch let thrown as StatepackError {
                let error = thrown.diagnostics[0]
                #expect(error.code == example.code)
                #expect(error.message == example.message)
                #expect(error.expected == example.expected)
                #expect(error.found == example.found)
                #expect(error.location?.contains("function `main`") == true)
                let text = ExactTexts.text([error])
                #expect(text == ExactTexts.expected("Run", example.name, actual: text))
            }
            #expect(states.mapValues(bytes) == before)
        }
        // The next good call works, with the arrays of the refused one where they fit.
        var good = try function.initialStates()
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &good)
        _ = try await function.run(inputs: goodInputs(), states: views)
        #expect(Array(floats(try #require(good["cache"]))[8..<16]) == (1...8).map { Float(2 * $0) })
    }

    @Test func allFindingsOfOneCallAreReported() async throws {
        let function = try SmallPrograms.cache()
        var states = ["cach": NDArray(shape: [8, 4], scalarType: .float32)]
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        do {
            _ = try await function.run(
                inputs: [
                    "position": NDArray(shape: [2], scalarType: .int32),
                    "row": NDArray(shape: [2, 4], scalarType: .float32),
                ],
                states: views)
            Issue.record("the call went through")
        } catch let list as StatepackError {
            #expect(
                list.diagnostics.map(\.code) == [
                    .unknownArgument, .unknownArgument, .missingArgument, .missingArgument, .wrongScalarType,
                ])
            #expect(list.diagnostics[0].hint == "did you mean `rows`?")
            #expect(list.diagnostics[1].hint == "did you mean `cache`?")
        }
    }

    @Test func aStateAmongTheInputsIsToldWhereItBelongs() throws {
        let function = try SmallPrograms.cache()
        var inputs = goodInputs()
        inputs["cache"] = NDArray(shape: [8, 4], scalarType: .float32)
        do {
            _ = try function.runSynchronously(inputs: inputs)
            Issue.record("the call went through")
        } catch let list as StatepackError {
            #expect(list.diagnostics.map(\.code) == [.unknownArgument, .missingArgument])
            #expect(list.diagnostics[0].hint == "`cache` is a state of this function; pass it in `states:`")
        }
    }

    @Test func oneNameTwiceIsRefused() throws {
        let function = try SmallPrograms.counter()
        var one = NDArray(shape: [1], scalarType: .float32)
        var two = NDArray(shape: [1], scalarType: .float32)
        let step = NDArray(scalars: [1] as [Float], shape: [1])
        var views = InferenceFunction.MutableViews()
        views.insert(&one, for: "count")
        views.insert(&two, for: "count")
        var inputs = InferenceFunction.Inputs()
        inputs.insert(step, for: "step")
        inputs.insert(step, for: "step")
        do {
            _ = try function.runSynchronously(inputs: inputs, states: views)
            Issue.record("the call went through")
        } catch let list as StatepackError {
            #expect(list.diagnostics.map(\.code) == [.duplicateArgument, .duplicateArgument])
            #expect(
                list.description == ExactTexts.expected("Run", "names given twice", actual: list.diagnostics))
        }
        #expect(floats(one) == [0] && floats(two) == [0])
    }

    // MARK: Overlap

    @Test func viewsThatShareBytesAreRefused() throws {
        let function = try SmallPrograms.twoCaches()
        var memory = [Float](repeating: 3, count: 80)
        let before = memory
        var counter = NDArray(shape: [2, 3], scalarType: .float32)
        let error = memory.withUnsafeMutableBufferPointer { buffer -> Diagnostic? in
            // Two spans over one buffer: what only unsafe code can make.
            let one = MutableSpan(_unsafeStart: buffer.baseAddress!, count: 32)
            let two = MutableSpan(_unsafeStart: buffer.baseAddress! + 30, count: 32)
            var views = InferenceFunction.MutableViews()
            views.insert(&counter, for: "counter")
            views.insert(NDArray.MutableView(mutableSpan: one, shape: [8, 4]), for: "one")
            views.insert(NDArray.MutableView(mutableSpan: two, shape: [8, 4]), for: "two")
            do {
                _ = try function.runSynchronously(
                    inputs: [
                        "row": NDArray(shape: [1, 4], scalarType: .float32),
                        "first": NDArray(shape: [1], scalarType: .int64),
                        "second": NDArray(shape: [1], scalarType: .int64),
                    ], states: views)
                return nil
            } catch { return (error as? StatepackError)?.diagnostics.first }
        }
        #expect(error?.code == .overlappingViews)
        #expect(error?.message == "state `one` and state `two` share bytes")
        #expect(error?.found == "8 bytes in common")
        #expect(memory == before)
    }

    @Test func anOutputViewOverAnInputIsRefused() throws {
        let function = try SmallPrograms.cache()
        var states = try function.initialStates()
        var memory = [Float](repeating: 1, count: 8)
        let error = memory.withUnsafeMutableBufferPointer { buffer -> Diagnostic? in
            let input = Span(_unsafeStart: UnsafePointer(buffer.baseAddress!), count: 8)
            let output = MutableSpan(_unsafeStart: buffer.baseAddress!, count: 8)
            let position = NDArray(scalars: [0, 1] as [Int64], shape: [2])
            var inputs = InferenceFunction.Inputs()
            inputs.insert(NDArray.View(span: input, shape: [2, 4]), for: "rows")
            inputs.insert(position, for: "position")
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var outputViews = InferenceFunction.MutableViews()
            outputViews.insert(NDArray.MutableView(mutableSpan: output, shape: [2, 4]), for: "doubled")
            do {
                _ = try function.runSynchronously(inputs: inputs, states: views, outputViews: outputViews)
                return nil
            } catch { return (error as? StatepackError)?.diagnostics.first }
        }
        #expect(error?.code == .overlappingViews)
        #expect(error?.message == "output `doubled` and input `rows` share bytes")
        #expect(error?.found == "32 bytes in common")
    }

    @Test func anOutputViewAtAnOddAddressIsRefused() throws {
        let function = try SmallPrograms.counter()
        var states = try function.initialStates()
        var memory = [UInt8](repeating: 7, count: 16)
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var error: Diagnostic?
        do {
            var outputViews = InferenceFunction.MutableViews()
            var span = memory.mutableSpan
            outputViews.insert(
                NDArray.MutableRawView(
                    mutableBytes: span.mutableBytes, byteOffset: 1, scalarType: .float32, shape: [1]), for: "seen")
            _ = try function.runSynchronously(
                inputs: ["step": NDArray(shape: [1], scalarType: .float32)], states: views, outputViews: outputViews)
        } catch let thrown as StatepackError {
            error = thrown.diagnostics[0]
        }
        #expect(error?.code == .notContiguous)
        #expect(error?.found == "an address that is not a multiple of an element")
        #expect(memory == [UInt8](repeating: 7, count: 16))
        #expect(floats(try #require(states["count"])) == [5])
    }

    @Test func stateThatDoesNotFitInMemoryIsAnError() throws {
        var builder = ProgramBuilder()
        _ = builder.state("cache", .float32, [SizeExpression(1 << 46)])
        let function = try builder.load()
        #expect {
            _ = try function.initialValue(ofState: "cache")
        } throws: {
            ($0 as? StatepackError)?.diagnostics.first?.code == .outOfMemory
                && ($0 as? StatepackError)?.diagnostics.first?.message == "there is not enough memory for state `cache`"
                && ($0 as? StatepackError)?.diagnostics.first?.expected == "memory for [\(1 << 46)] float32"
        }
    }

    @Test func outputThatDoesNotFitInMemoryIsAnErrorAndChangesNoState() throws {
        var builder = ProgramBuilder()
        let step = builder.input("step", .float32, [1])
        let count = builder.state("count", .float32, [1])
        let repeated = builder.view(of: step, [SizeExpression(1 << 46)], strides: [0], offset: 0)
        builder.emit("write", [step], [count], ints: [0])
        let long = builder.output("long", .float32, [SizeExpression(1 << 46)])
        builder.emit("copy", [repeated], [long])
        let function = try builder.load()
        var states = ["count": NDArray(scalars: [5] as [Float], shape: [1])]
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var error: Diagnostic?
        do {
            _ = try function.runSynchronously(
                inputs: ["step": NDArray(shape: [1], scalarType: .float32)], states: views)
        } catch let thrown as StatepackError {
            error = thrown.diagnostics[0]
        }
        #expect(error?.code == .outOfMemory)
        #expect(error?.message == "there is not enough memory for output `long`")
        #expect(floats(try #require(states["count"])) == [5])
    }

    @Test func oneArrayForTwoNamesIsRefused() throws {
        // The compiler refuses this; a lifetime override, which Core AI's own code needs, hides it.
        let function = try SmallPrograms.twoCaches()
        var cache = NDArray(shape: [8, 4], scalarType: .float32)
        var counter = NDArray(shape: [2, 3], scalarType: .float32)
        let one = _overrideLifetime(cache.mutableRawView(), borrowing: Void())
        let two = _overrideLifetime(cache.mutableRawView(), borrowing: Void())
        var views = InferenceFunction.MutableViews()
        views.insert(&counter, for: "counter")
        views.insert(one, for: "one")
        views.insert(two, for: "two")
        var error: Diagnostic?
        do {
            _ = try function.runSynchronously(
                inputs: [
                    "row": NDArray(shape: [1, 4], scalarType: .float32),
                    "first": NDArray(shape: [1], scalarType: .int64),
                    "second": NDArray(shape: [1], scalarType: .int64),
                ], states: views)
        } catch let thrown as StatepackError {
            error = thrown.diagnostics[0]
        }
        #expect(error?.code == .overlappingViews)
        let text = ExactTexts.text([try #require(error)])
        #expect(text == ExactTexts.expected("Run", "one array for two names", actual: text))
    }
}
