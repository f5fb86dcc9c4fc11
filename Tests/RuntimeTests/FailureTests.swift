import Statepack
import StatepackBundle
import Testing

/// What goes wrong during a run, and in preparing one.
struct FailureTests {
    private func inputs(first: Int64, second: Int64) -> [String: NDArray] {
        [
            "row": NDArray(scalars: [1, 2, 3, 4] as [Float], shape: [1, 4]),
            "first": NDArray(scalars: [first], shape: [1]),
            "second": NDArray(scalars: [second], shape: [1]),
        ]
    }

    @Test func aFailureAfterAStateWriteRestoresEveryState() async throws {
        let function = try SmallPrograms.twoCaches()
        #expect(function.needsUndoLog)
        var states = [
            "counter": NDArray(scalars: (0..<6).map(Float.init), shape: [2, 3]),
            "one": NDArray(scalars: (0..<32).map(Float.init), shape: [8, 4]),
            "two": NDArray(scalars: (32..<64).map(Float.init), shape: [8, 4]),
        ]
        let before = states.mapValues(bytes)
        for (first, second, value) in [(3, 8, 8), (3, -1, -1), (-9, 3, -9), (8, 3, 8)] as [(Int64, Int64, Int)] {
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            do {
                _ = try await function.run(inputs: inputs(first: first, second: second), states: views)
                Issue.record("the call went through")
            } catch let thrown as StatepackError {
                let error = thrown.diagnostics[0]
                #expect(error.code == .indexOutOfRange)
                #expect(error.found == "\(value)")
                #expect(error.expected == "0..<8")
                let isSecond = first == 3
                #expect(error.message.contains(isSecond ? "state `two`" : "state `one`"))
                #expect(
                    error.location == (isSecond ? "function `main`, model.py:31 (layers.1)" : "function `main`"))
            }
            #expect(states.mapValues(bytes) == before)
        }
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        _ = try await function.run(inputs: inputs(first: 0, second: 7), states: views)
        #expect(floats(try #require(states["counter"])) == [0, 2, 2, 3, 5, 5])
        #expect(Array(floats(try #require(states["one"]))[0..<5]) == [1, 2, 3, 4, 4])
        #expect(Array(floats(try #require(states["two"]))[27..<32]) == [59, 1, 2, 3, 4])
    }

    @Test func noUndoLogWhereEverythingFallibleComesFirst() throws {
        #expect(try !SmallPrograms.cache().needsUndoLog)
        #expect(try !SmallPrograms.counter().needsUndoLog)
    }

    @Test func aTableLookUpNamesItsLimit() throws {
        var builder = ProgramBuilder()
        let table = builder.weight("table", (0..<12).map(Float.init), [6, 2])
        let token = builder.input("token", .int64, [1])
        let row = builder.output("row", .float32, [1, 2])
        builder.emit("embedding", [table, token], [row], source: "model.py:7 (embed)")
        let function = try builder.load()
        for value in [6, -1] as [Int64] {
            do {
                _ = try function.runSynchronously(inputs: ["token": NDArray(scalars: [value], shape: [1])])
                Issue.record("the call went through")
            } catch let thrown as StatepackError {
                let error = thrown.diagnostics[0]
                #expect(error.code == .indexOutOfRange)
                #expect(error.message == "index \(value) is out of range for axis 0 in `embedding`")
                #expect(error.expected == "0..<6" && error.found == "\(value)")
                #expect(error.location == "function `main`, model.py:7 (embed)")
            }
        }
    }

    // MARK: Malformed functions

    private func loading(_ builder: ProgramBuilder) -> Diagnostic? {
        let memory = WeightMemory(builder.weights)
        do {
            _ = try AIModel(builder.build(), weights: memory.bytes, owner: memory).loadFunction(named: "main")
        } catch { return (error as? StatepackError)?.diagnostics.first }
        return nil
    }

    private func running(_ builder: ProgramBuilder, _ inputs: [String: NDArray] = [:]) -> Diagnostic? {
        let memory = WeightMemory(builder.weights)
        do {
            let model = AIModel(builder.build(), weights: memory.bytes, owner: memory, sources: builder.sources)
            _ = try model.loadFunction(named: "main")?.runSynchronously(inputs: inputs)
        } catch { return (error as? StatepackError)?.diagnostics.first }
        return nil
    }

    @Test func anUnknownKernelIsNamedAtLoad() {
        var builder = ProgramBuilder()
        let out = builder.output("out", .float32, [1])
        builder.emit("frobnicate", [], [out])
        let error = loading(builder)
        #expect(
            error?.description == """
                error[E0615]: there is no kernel `frobnicate`
                  --> function `main`
                  found:    frobnicate
                  hint:     update statepack, or convert the model again with this version
                """)
        #expect(Diagnostic.Code.unknownKernel.exitCode == 4)
    }

    @Test func anUnknownFunctionIsNil() throws {
        #expect(try ProgramBuilder().model().loadFunction(named: "decode") == nil)
        #expect(try ProgramBuilder().model().functionDescriptor(for: "decode") == nil)
    }

    @Test func aWriteToAnInputOrAWeightIsRefusedAtLoad() {
        var builder = ProgramBuilder()
        let x = builder.input("x", .float32, [1])
        builder.emit("neg", [x], [x])
        #expect(loading(builder)?.code == .malformedFunction)
        #expect(loading(builder)?.message == "instruction 0 writes an input or a weight")
        var other = ProgramBuilder()
        let weight = other.weight("w", [1] as [Float], [1])
        let view = other.view(of: weight, [1], strides: [1], offset: 0)
        other.emit("neg", [weight], [view])
        #expect(loading(other)?.message == "instruction 0 writes an input or a weight")
    }

    @Test func aViewThatLeavesItsValueIsRefusedBeforeTheRun() {
        for (length, stride, offset, reach) in [
            (4, 1, 1, "elements 1...4"), (2, 4, 0, "elements 0...4"), (2, -1, 0, "elements -1...0"),
            (4, 1, -1, "elements -1...2"),
        ] {
            var builder = ProgramBuilder()
            let n = builder.symbol("n", 1...100)
            let x = builder.input("x", .float32, [n])
            let view = builder.view(
                of: x, [SizeExpression(length)], strides: [SizeExpression(stride)], offset: SizeExpression(offset))
            let out = builder.output("out", .float32, [SizeExpression(length)])
            builder.emit("neg", [view], [out])
            let error = running(builder, ["x": NDArray(shape: [4], scalarType: .float32)])
            #expect(error?.code == .malformedFunction)
            #expect(error?.message == "value 1 leaves the 4 elements of value 0")
            #expect(error?.found == reach)
            #expect(error?.location == "function `main` with n = 4")
        }
    }

    @Test func aCallThatItsKernelRefusesIsMalformed() {
        var builder = ProgramBuilder()
        let x = builder.input("x", .float32, [2])
        let out = builder.output("out", .float32, [3])
        builder.emit("neg", [x], [out], source: "model.py:3 (root)")
        let error = running(builder, ["x": NDArray(shape: [2], scalarType: .float32)])
        #expect(error?.code == .malformedFunction)
        #expect(error?.message.hasPrefix("instruction 0 (`neg`) is invalid: ") == true)
        #expect(error?.found == "([2] float32) -> ([3] float32)")
        #expect(error?.location == "function `main`, model.py:3 (root)")
    }

    @Test func sizesThatOverflowOrGoNegativeAreRefused() throws {
        for (size, message) in [
            (try SizeExpression.symbol(0).times(1 << 62), "the shape of value 1 has no value"),
            (try SizeExpression.symbol(0).minus(10), "the shape of value 1 has a negative length"),
        ] {
            var builder = ProgramBuilder()
            let n = builder.symbol("n", 1...100)
            let x = builder.input("x", .float32, [n])
            let temporary = builder.temporary(.float32, [size])
            builder.emit("neg", [x], [temporary])
            let error = running(builder, ["x": NDArray(shape: [4], scalarType: .float32)])
            #expect(error?.code == .malformedFunction && error?.message == message)
        }
    }

    @Test func aRunThatDoesNotFitInMemoryIsRefused() {
        var builder = ProgramBuilder()
        let one = builder.weight("one", [1] as [Int64], [])
        // 2^49 bytes: more than an address space of 47 bits holds.
        let large = builder.temporary(.int64, [SizeExpression(1 << 46)])
        builder.emit("fill", [one], [large])
        let error = running(builder)
        #expect(error?.code == .outOfMemory)
        #expect(
            error?.description == """
                error[E0613]: there is not enough memory for a run
                  --> function `main`
                  expected: 562949953421312 bytes for intermediate values
                """)
    }

    @Test func writeBacksThatCostMoreThanCanBeCountedAreRefused() throws {
        var builder = ProgramBuilder()
        for name in ["a", "b", "c"] { _ = builder.state(name, .float32, [1]) }
        var program = builder.build()
        for index in 0..<3 { program.functions[0].states[index].copiedBytes = SizeExpression(1 << 62) }
        let memory = WeightMemory(builder.weights)
        do {
            let function = try AIModel(program, weights: memory.bytes, owner: memory).loadFunction(named: "main")
            _ = try function?.arenaByteCount()
            Issue.record("it was counted")
        } catch {
            #expect(
                "\(error)" == """
                    error[E0614]: the cost of the write backs has no value
                      --> function `main`
                      hint:     convert the model again with this version
                    """)
        }
    }

    @Test func intermediateValuesBeyondAnAddressSpaceAreRefused() throws {
        var builder = ProgramBuilder()
        let one = builder.weight("one", [1] as [Int64], [])
        // 2^58 bytes each, 2^63 together.
        for _ in 0..<32 { builder.emit("fill", [one], [builder.temporary(.int64, [SizeExpression(1 << 55)])]) }
        var program = builder.build()
        let values = program.functions[0].values.indices.suffix(32)
        for index in values { program.functions[0].values[index].storage = .arena(first: 0, last: 31) }
        let memory = WeightMemory(builder.weights)
        func refusal(_ program: BundleProgram) -> String? {
            do {
                let model = AIModel(program, weights: memory.bytes, owner: memory)
                _ = try model.loadFunction(named: "main")?.runSynchronously(inputs: [:])
                return nil
            } catch { return "\(error)" }
        }
        #expect(
            refusal(program) == """
                error[E0613]: the intermediate values do not fit in memory
                  --> function `main`
                """)
        for index in values { program.functions[0].values[index].shape = [SizeExpression(1 << 62)] }
        #expect(
            refusal(program) == """
                error[E0614]: value 1 does not fit in memory
                  --> function `main`
                  found:    [4611686018427387904]
                  hint:     convert the model again with this version
                """)
    }

    @Test func whatTheExecutorReliesOnIsCheckedAtLoad() throws {
        var builder = ProgramBuilder()
        let x = builder.input("x", .float32, [2])
        let state = builder.state("s", .float32, [2])
        let weight = builder.weight("w", (0..<4).map(Float.init), [2, 2])
        let view = builder.view(of: weight, [2], strides: [1], offset: 0)
        let y = builder.output("y", .float32, [2])
        builder.emit("add", [x, view], [y])
        let good = builder.build()
        let memory = WeightMemory(builder.weights)
        func message(_ change: (inout BundleProgram) -> Void) -> String? {
            var program = good
            change(&program)
            do {
                let model = AIModel(program, weights: memory.bytes, owner: memory)
                guard let function = try model.loadFunction(named: "main") else { return nil }
                _ = try function.arenaByteCount()
                return nil
            } catch let thrown as StatepackError {
                let error = thrown.diagnostics[0]
                return error.code == .malformedFunction ? error.message : "\(error)"
            } catch { return "\(error)" }
        }
        #expect(message { _ in } == nil)
        #expect(
            message { $0.functions[0].values[x].storage = .arena(first: 0, last: 0) }
                == "the value of input `x` has other storage")
        #expect(
            message { $0.functions[0].values[y].storage = .arena(first: 0, last: 0) }
                == "the value of output `y` has other storage")
        #expect(
            message { $0.functions[0].values[state].shape = [3] }
                == "the value of state `s` has other storage, type or shape")
        #expect(
            message { $0.functions[0].values[x].shape = [SizeExpression](repeating: 1, count: 9) }
                == "value \(x) has 9 axes, at most 8 are possible")
        #expect(
            message { $0.functions[0].values[view].scalarType = .int32 }
                == "view \(view) has another type than value \(weight), or a wrong number of strides")
        #expect(
            message { $0.functions[0].values[view].storage = .view(base: weight, strides: [], offset: 0) }
                == "view \(view) has another type than value \(weight), or a wrong number of strides")
        #expect(message { $0.tensors[0].layout = .panel16 } == "view \(view) sees into a packed weight")
        #expect(message { $0.tensors[0].offset = 4 } == "weight `w` leaves the weights section")
        #expect(
            message {
                $0.functions[0].values[y].storage = .output(0)
                $0.functions[0].values[x].storage = .input(0)
                $0.functions[0].values[view].storage = .view(base: view, strides: [1], offset: 0)
            } == "value \(view) is a view of a view")
        var wrongInitial = good
        wrongInitial.states[0].initialValue = .tensor(0)
        let model = AIModel(wrongInitial, weights: memory.bytes, owner: memory)
        let function = try #require(try model.loadFunction(named: "main"))
        do {
            _ = try function.initialValue(ofState: "s")
            Issue.record("an initial value of another size went through")
        } catch let thrown as StatepackError {
            let error = thrown.diagnostics[0]
            #expect(error.code == .malformedFunction)
            #expect(
                error.description == """
                    error[E0614]: the initial value of state `s` has another size than the state
                      --> function `main`
                      expected: 8 bytes
                      found:    16 bytes
                    """)
        }
    }

    // MARK: Initial values

    @Test func anInitialValueIsThatOfTheExportedModule() throws {
        var builder = ProgramBuilder()
        let n = builder.symbol("n", 1...9)
        _ = builder.input("x", .float32, [n])
        _ = builder.state("splat", .int32, [2, 3], initial: .splat([7, 1, 0, 0]))
        let ramp = builder.tensor("ramp", (0..<4).map(Int64.init), [4])
        _ = builder.state("ramp", .int64, [4], initial: .tensor(ramp))
        _ = builder.state("grows", .float32, [n, 2], initial: .splat([0, 0, 0x80, 0x3F]))
        let function = try builder.load()
        let splat = try function.initialValue(ofState: "splat")
        #expect(splat.view(as: Int32.self)[scalarAt: [1, 2]] == 263)
        let array = try function.initialValue(ofState: "ramp")
        #expect(array.view(as: Int64.self)[scalarAt: [3]] == 3)
        #expect(floats(try function.initialValue(ofState: "grows", shape: [2, 2])) == [1, 1, 1, 1])
        func error(_ body: () throws -> NDArray) -> Diagnostic? {
            do { _ = try body() } catch { return (error as? StatepackError)?.diagnostics.first }
            return nil
        }
        let dynamic = error { try function.initialValue(ofState: "grows") }
        #expect(
            dynamic?.description == """
                error[E0616]: state `grows` has a dynamic size
                  --> function `main`
                  expected: a fixed shape
                  found:    [n, 2] float32
                  hint:     use initialValue(ofState:shape:)
                """)
        let wrong = error { try function.initialValue(ofState: "grows", shape: [2, 3]) }
        #expect(
            wrong?.description == """
                error[E0604]: the shape does not fit state `grows`
                  --> function `main`
                  expected: [n, 2] float32
                  found:    [2, 3]
                """)
        let unknown = error { try function.initialValue(ofState: "ramps") }
        #expect(unknown?.code == .unknownArgument && unknown?.expected == "splat, ramp, grows")
    }
}
