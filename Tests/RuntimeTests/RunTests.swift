import Statepack
import StatepackBundle
import Testing

struct RunTests {
    @Test func aStateThatStartsAtFiveShowsFiveInItsFirstStep() async throws {
        let function = try SmallPrograms.counter()
        var count = try function.initialValue(ofState: "count")
        var seen: [Float] = []
        for _ in 0..<4 {
            var states = InferenceFunction.MutableViews()
            states.insert(&count, for: "count")
            var outputs = try await function.run(
                inputs: ["step": NDArray(scalars: [1] as [Float], shape: [1])], states: states)
            seen += floats(try take("seen", from: &outputs))
        }
        #expect(seen == [5, 6, 7, 8])
        #expect(floats(count) == [9])
        #expect(floats(try function.initialValue(ofState: "count")) == [5])
        #expect(floats(try #require(try function.initialStates()["count"])) == [5])
    }

    @Test func aDynamicQueryWritesItsRowsAndNoOther() async throws {
        let function = try SmallPrograms.cache()
        var cache = try function.initialValue(ofState: "cache")
        for (positions, value) in [([0, 1, 2], 1), ([3], 10), ([7, 5], 100)] as [([Int64], Float)] {
            var states = InferenceFunction.MutableViews()
            states.insert(&cache, for: "cache")
            var outputs = try await function.run(
                inputs: [
                    "rows": NDArray(
                        scalars: [Float](repeating: value, count: positions.count * 4), shape: [positions.count, 4]),
                    "position": NDArray(scalars: positions, shape: [positions.count]),
                ], states: states)
            #expect(Array(outputs.names) == ["doubled", "total"])
            let doubled = try take("doubled", from: &outputs)
            #expect(doubled.shape == [positions.count, 4] && floats(doubled).allSatisfy { $0 == 2 * value })
            let again = outputs.remove("doubled")?.ndArray
            let unknown = outputs.remove("nothing")?.ndArray
            #expect(again == nil && unknown == nil)
            #expect(outputs.count == 1)
        }
        let expected = [2, 2, 2, 20, 0, 200, 0, 200].flatMap { [Float](repeating: $0, count: 4) }
        #expect(floats(cache) == expected)
    }

    @Test func everyFormOfTheCallGivesTheSame() async throws {
        let function = try SmallPrograms.cache()
        let rows = NDArray(scalars: (0..<8).map(Float.init), shape: [2, 4])
        let position = NDArray(scalars: [1, 6] as [Int64], shape: [2])
        var results: [[Float]] = []
        var caches: [[Float]] = []
        for form in 0..<5 {
            var states = try function.initialStates()
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var outputs: InferenceFunction.Outputs
            if form < 2 {
                let inputs = ["rows": rows, "position": position]
                outputs =
                    form == 0
                    ? try await function.run(inputs: inputs, states: views)
                    : try function.runSynchronously(inputs: inputs, states: views)
            } else if form == 4 {
                var inputs = InferenceFunction.Inputs()
                inputs.insert(contentsOf: ["rows": rows, "position": position])
                outputs = try function.runSynchronously(inputs: inputs, states: views)
            } else {
                var inputs = InferenceFunction.Inputs()
                inputs.insert(rows, for: "rows")
                inputs.insert(position.view(as: Int64.self), for: "position")
                outputs =
                    form == 2
                    ? try await function.run(inputs: inputs, states: views)
                    : try function.runSynchronously(inputs: inputs, states: views)
            }
            results.append(floats(try take("total", from: &outputs)))
            caches.append(floats(try #require(states["cache"])))
        }
        #expect(results[0] == [8, 12, 16, 20])
        #expect(Set(results).count == 1 && Set(caches).count == 1)
    }

    @Test func anInputOfAnyLayoutIsAccepted() throws {
        let function = try SmallPrograms.cache()
        var states = try function.initialStates()
        // Every other row and column of a larger array, at an odd address.
        let padded = NDArray(scalars: (0..<64).map(Float.init), shape: [4, 16])
        let raw: [UInt8] = [0] + [Int64(0), 3].flatMap { withUnsafeBytes(of: $0.littleEndian, Array.init) }
        var inputs = InferenceFunction.Inputs()
        inputs.insert(padded.view(as: Float.self).slice(at: [1..<3, 4..<8]), for: "rows")
        inputs.insert(
            NDArray.RawView(bytes: raw.span.bytes, byteOffset: 1, scalarType: .int64, shape: [2]), for: "position")
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        _ = try function.runSynchronously(inputs: inputs, states: views)
        let cache = floats(try #require(states["cache"]))
        #expect(Array(cache[0..<4]) == [40, 42, 44, 46])
        #expect(Array(cache[12..<16]) == [72, 74, 76, 78])
    }

    // MARK: Output views

    @Test func anOutputViewIsWrittenInPlaceAndNotReturned() async throws {
        let function = try SmallPrograms.cache()
        var states = try function.initialStates()
        var doubled = NDArray(shape: [2, 4], scalarType: .float32)
        let address = doubled.rawView().withUnsafeBytes { pointer, _, _ in pointer }
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var outputViews = InferenceFunction.MutableViews()
        outputViews.insert(&doubled, for: "doubled")
        let outputs = try await function.run(
            inputs: [
                "rows": NDArray(scalars: (0..<8).map(Float.init), shape: [2, 4]),
                "position": NDArray(scalars: [0, 1] as [Int64], shape: [2]),
            ], states: views, outputViews: outputViews)
        #expect(Array(outputs.names) == ["total"])
        #expect(floats(doubled) == (0..<8).map { Float(2 * $0) })
        #expect(doubled.rawView().withUnsafeBytes { pointer, _, _ in pointer } == address)
    }

    @Test func aSliceOfLeadingAxesServesAsStateAndOutput() throws {
        let function = try SmallPrograms.counter()
        var many = NDArray(scalars: [1, 2, 3, 4] as [Float], shape: [4])
        var seen = NDArray(shape: [3], scalarType: .float32)
        var views = InferenceFunction.MutableViews()
        views.insert(many.mutableRawView().slice(at: [2]), for: "count")
        var outputViews = InferenceFunction.MutableViews()
        outputViews.insert(seen.mutableView(as: Float.self).slice(at: [1..<2]), for: "seen")
        let outputs = try function.runSynchronously(
            inputs: ["step": NDArray(scalars: [0.5] as [Float], shape: [1])], states: views, outputViews: outputViews)
        #expect(outputs.count == 0)
        #expect(floats(many) == [1, 2, 3.5, 4])
        #expect(floats(seen) == [0, 3, 0])
    }

    @Test func returnedOutputsDoNotShareBytesWithStates() throws {
        let function = try SmallPrograms.counter()
        var states = try function.initialStates()
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var outputs = try function.runSynchronously(
            inputs: ["step": NDArray(scalars: [1] as [Float], shape: [1])], states: views)
        var seen = try take("seen", from: &outputs)
        var view = seen.mutableView(as: Float.self)
        view[scalarAt: [0]] = 1000
        #expect(floats(try #require(states["count"])) == [6])
    }

    // MARK: Statistics

    @Test func aCopyOnWriteOfAStateIsCounted() throws {
        let function = try SmallPrograms.cache()
        var cache = try function.initialValue(ofState: "cache")
        let inputs = [
            "rows": NDArray(scalars: [1, 1, 1, 1] as [Float], shape: [1, 4]),
            "position": NDArray(scalars: [0] as [Int64], shape: [1]),
        ]
        func step() throws -> InferenceFunction.RunStatistics {
            var states = InferenceFunction.MutableViews()
            states.insert(&cache, for: "cache")
            return try function.runSynchronously(inputs: inputs, states: states).statistics
        }
        #expect(try step() == InferenceFunction.RunStatistics())
        let fork = cache
        let statistics = try step()
        #expect(statistics.copyOnWriteCopies == 1 && statistics.copyOnWriteBytes == 8 * 4 * 4)
        #expect(try step().copyOnWriteCopies == 0)
        #expect(floats(fork) == floats(cache))
    }

    @Test func bytesOfWriteBacksAreCounted() throws {
        var builder = ProgramBuilder()
        let count = builder.state("count", .float32, [16], copiedBytes: 64)
        let one = builder.weight("one", [1] as [Float], [])
        let sum = builder.temporary(.float32, [16])
        builder.emit("add", [count, one], [sum])
        builder.emit("write", [sum], [count], ints: [1])
        let function = try builder.load()
        var states = try function.initialStates()
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        #expect(try function.runSynchronously(inputs: [:], states: views).statistics.stateBytesCopied == 64)
        #expect(floats(try #require(states["count"])) == [Float](repeating: 1, count: 16))
    }

    @Test func aFunctionWithoutArgumentsRuns() async throws {
        var builder = ProgramBuilder()
        let one = builder.weight("one", [1, 2, 3] as [Float], [3])
        let out = builder.output("out", .float32, [3])
        builder.emit("neg", [one], [out])
        let function = try builder.load()
        var outputs = try await function.run(inputs: [:])
        let result = floats(try take("out", from: &outputs))
        #expect(result == [-1, -2, -3])
    }

    // MARK: Specialisation

    @Test func preparedSizesAreBounded() throws {
        let function = try SmallPrograms.cache()
        var states = try function.initialStates()
        for round in 0..<3 {
            for query in 1...8 {
                var views = InferenceFunction.MutableViews()
                views.insert(contentsOf: &states)
                _ = try function.runSynchronously(
                    inputs: [
                        "rows": NDArray(shape: [query, 4], scalarType: .float32),
                        "position": NDArray(scalars: (0..<query).map(Int64.init), shape: [query]),
                    ], states: views)
                #expect(function.preparedSizeCount == (round == 0 ? query : 8))
            }
        }
        #expect(FunctionLimits.preparedSizes == 8)
    }

    @Test func theLeastRecentlyUsedSizesAreForgotten() throws {
        var builder = ProgramBuilder()
        let n = builder.symbol("n", 0...100)
        let x = builder.input("x", .float32, [n])
        let y = builder.output("y", .float32, [n])
        builder.emit("neg", [x], [y])
        let function = try builder.load()
        for length in 0..<30 {
            for value in [length, 50] {
                var outputs = try function.runSynchronously(
                    inputs: ["x": NDArray(scalars: [Float](repeating: 1, count: value), shape: [value])])
                let result = try take("y", from: &outputs)
                #expect(floats(result) == [Float](repeating: -1, count: value))
            }
        }
        #expect(function.preparedSizeCount == 8)
        #expect(function.preparedSizes.first == [50])
        #expect(function.preparedSizes.contains([29]) && !function.preparedSizes.contains([20]))
    }

    @Test func memoryOfAChoiceOfSizesIsKnown() throws {
        var builder = ProgramBuilder()
        let n = builder.symbol("n", 1...1000)
        let x = builder.input("x", .float32, [n])
        let y = builder.output("y", .float32, [n])
        let a = builder.temporary(.float32, [n])
        let b = builder.temporary(.float32, [n])
        let c = builder.temporary(.float32, [n])
        builder.emit("neg", [x], [a])
        builder.emit("neg", [a], [b])
        builder.emit("neg", [b], [c])
        builder.emit("neg", [c], [y])
        let function = try builder.load()
        // a and c are never alive together: two places, each a multiple of 64 bytes.
        #expect(try function.arenaByteCount(symbols: ["n": 100]) == 2 * 448)
        #expect(try function.arenaByteCount(symbols: ["n": 16]) == 2 * 64)
        #expect(function.kernelNames == ["neg"])
    }
}

/// What a run costs beyond its arithmetic.
struct RunCostTests {
    /// One query over a cache of eight rows of which the mask lets four through.
    @Test func attentionRowsAreThoseThatTheMaskLetsThrough() throws {
        var builder = ProgramBuilder()
        let query = builder.input("query", .float32, [1, 2, 1, 4])
        let keys = builder.state("keys", .float32, [1, 1, 8, 4])
        let values = builder.state("values", .float32, [1, 1, 8, 4])
        let mask = builder.input("mask", .bool, [1, 1, 1, 8])
        let out = builder.output("out", .float32, [1, 2, 1, 4])
        builder.emit("sdpa", [query, keys, values, mask], [out], ints: [0, 2], floats: [0.5])
        let function = try builder.load()
        for used in [1, 4, 8] {
            var states = try function.initialStates()
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            let outputs = try function.runSynchronously(
                inputs: [
                    "query": NDArray(scalars: [Float](repeating: 1, count: 8), shape: [1, 2, 1, 4]),
                    "mask": NDArray(scalars: (0..<8).map { $0 < used }, shape: [1, 1, 1, 8]),
                ], states: views)
            #expect(outputs.statistics.attentionRows == used)
        }
    }

    @Test func idleMemoryIsThatOfTheLargestStepNotOfAllOfThem() throws {
        var builder = ProgramBuilder()
        let n = builder.symbol("n", 1...64)
        let x = builder.input("x", .float32, [n, 1000])
        let a = builder.temporary(.float32, [n, 1000])
        let y = builder.output("y", .float32, [n, 1000])
        builder.emit("neg", [x], [a])
        builder.emit("neg", [a], [y])
        let function = try builder.load()
        for _ in 0..<2 {
            for length in 1...64 {
                _ = try function.runSynchronously(inputs: ["x": NDArray(shape: [length, 1000], scalarType: .float32)])
            }
        }
        let largest = try function.arenaByteCount(symbols: ["n": 64])
        #expect(largest == 64 * 1000 * 4)
        #expect(function.idleArenaByteCount >= largest && function.idleArenaByteCount <= 2 * largest)
    }
}
