import ExactTexts
import Statepack
import StatepackBundle
import Testing

struct ConcurrencyTests {
    @Test func manyTasksOnOneFunctionDoNotDisturbEachOther() async throws {
        let function = try SmallPrograms.cache()
        try await withThrowingTaskGroup(of: Void.self) { group in
            for sequence in 0..<40 {
                group.addTask {
                    var cache = try function.initialValue(ofState: "cache")
                    var expected = [Float](repeating: 0, count: 32)
                    for step in 0..<25 {
                        let query = 1 + (sequence + step) % 3
                        let start = (sequence * 5 + step) % (8 - query)
                        let value = Float(sequence * 100 + step)
                        var states = InferenceFunction.MutableViews()
                        states.insert(&cache, for: "cache")
                        var outputs = try await function.run(
                            inputs: [
                                "rows": NDArray(
                                    scalars: [Float](repeating: value, count: query * 4), shape: [query, 4]),
                                "position": NDArray(
                                    scalars: (start..<start + query).map(Int64.init), shape: [query]),
                            ], states: states)
                        for element in start * 4..<(start + query) * 4 { expected[element] = 2 * value }
                        let total = floats(try take("total", from: &outputs))
                        let columns = (0..<4).map { column in
                            stride(from: column, to: 32, by: 4).reduce(Float(0)) { $0 + expected[$1] }
                        }
                        #expect(total == columns)
                        #expect(floats(cache) == expected)
                    }
                }
            }
            try await group.waitForAll()
        }
        #expect(function.preparedSizeCount == 3)
    }

    /// Holds its cache in use for as long as the gate is closed.
    actor Sequence {
        var cache: NDArray
        let function: InferenceFunction
        let gate: Gate

        init(_ function: InferenceFunction, _ gate: Gate) throws {
            self.function = function
            self.gate = gate
            cache = try function.initialValue(ofState: "cache")
        }

        static func inputs(_ value: Float) -> [String: NDArray] {
            [
                "rows": NDArray(scalars: [value, value, value, value], shape: [1, 4]),
                "position": NDArray(scalars: [0] as [Int64], shape: [1]),
            ]
        }

        func slowStep() async throws {
            var states = InferenceFunction.MutableViews()
            states.insert(&cache, for: "cache")
            await gate.wait()
            _ = try await function.run(inputs: Self.inputs(1), states: states)
        }

        func step(_ value: Float) async throws {
            var states = InferenceFunction.MutableViews()
            states.insert(&cache, for: "cache")
            _ = try await function.run(inputs: Self.inputs(value), states: states)
        }

        func stepOnInput() async throws {
            var states = try function.initialStates()
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            _ = try await function.run(
                inputs: ["rows": cache, "position": NDArray(shape: [8], scalarType: .int64)], states: views)
        }

        func peek() -> Float {
            let array = cache
            return array.view(as: Float.self)[scalarAt: [0, 0]]
        }
    }

    actor Gate {
        private var isOpen = false
        private var waiting: [CheckedContinuation<Void, Never>] = []
        private var arrivals: [CheckedContinuation<Void, Never>] = []

        func wait() async {
            for arrival in arrivals { arrival.resume() }
            arrivals = []
            if isOpen { return }
            await withCheckedContinuation { waiting.append($0) }
        }

        /// Returns when somebody waits.
        func arrival() async {
            if !waiting.isEmpty { return }
            await withCheckedContinuation { arrivals.append($0) }
            await Task.yield()
        }

        func open() {
            isOpen = true
            for continuation in waiting { continuation.resume() }
            waiting = []
        }
    }

    @Test func aSecondStepOnAnActorsStateIsRefusedNotInterleaved() async throws {
        let gate = Gate()
        let sequence = try Sequence(SmallPrograms.cache(), gate)
        let slow = Task { try await sequence.slowStep() }
        await gate.arrival()
        for _ in 0..<3 {
            do {
                try await sequence.step(50)
                Issue.record("the second step went through")
            } catch let thrown as StatepackError {
                let error = thrown.diagnostics[0]
                #expect(error.code == .stateInUse)
                #expect(error.message == "view for state `cache` is in use by another run")
            }
        }
        do {
            try await sequence.stepOnInput()
            Issue.record("an array that a run writes was read")
        } catch let thrown as StatepackError {
            let error = thrown.diagnostics[0]
            #expect(
                error.description == ExactTexts.expected("Run", "input that another run writes", actual: [error]))
        }
        await gate.open()
        try await slow.value
        #expect(await sequence.peek() == 2)
        try await sequence.step(3)
        #expect(await sequence.peek() == 6)
    }

    @Test func readingAnArrayThatARunWritesTraps() async {
        await #expect(processExitsWith: .failure) {
            let gate = Gate()
            let sequence = try Sequence(SmallPrograms.cache(), gate)
            let slow = Task { try await sequence.slowStep() }
            await gate.arrival()
            _ = await sequence.peek()
            await gate.open()
            try await slow.value
        }
    }

    @Test func viewsThatAreNeverUsedLetTheirArraysGo() async throws {
        let function = try SmallPrograms.counter()
        var count = try function.initialValue(ofState: "count")
        do {
            var views = InferenceFunction.MutableViews()
            views.insert(&count, for: "count")
        }
        #expect(floats(count) == [5])
        var views = InferenceFunction.MutableViews()
        views.insert(&count, for: "count")
        _ = try await function.run(inputs: ["step": NDArray(scalars: [1] as [Float], shape: [1])], states: views)
        #expect(floats(count) == [6])
    }

    @Test func aCancelledTaskLeavesItsStatesAsAfterAWholeStep() async throws {
        let function = try SmallPrograms.counter()
        for round in 0..<200 {
            let task = Task { () -> (steps: Int, count: Float) in
                var count = try function.initialValue(ofState: "count")
                var steps = 0
                do {
                    for _ in 0..<20 {
                        var views = InferenceFunction.MutableViews()
                        views.insert(&count, for: "count")
                        _ = try await function.run(
                            inputs: ["step": NDArray(scalars: [1] as [Float], shape: [1])], states: views)
                        steps += 1
                    }
                } catch is CancellationError {}
                return (steps, floats(count)[0])
            }
            for _ in 0..<round % 7 { await Task.yield() }
            task.cancel()
            let result = try await task.value
            #expect(result.count == 5 + Float(result.steps))
        }
    }

    @Test func aTaskThatIsCancelledBeforehandDoesNotStart() async throws {
        let function = try SmallPrograms.counter()
        let task = Task { () -> Float in
            withUnsafeCurrentTask { $0?.cancel() }
            var count = try function.initialValue(ofState: "count")
            var views = InferenceFunction.MutableViews()
            views.insert(&count, for: "count")
            do {
                _ = try await function.run(
                    inputs: ["step": NDArray(scalars: [1] as [Float], shape: [1])], states: views)
                Issue.record("a cancelled task ran")
            } catch is CancellationError {}
            return floats(count)[0]
        }
        #expect(try await task.value == 5)
    }

    @Test func everyThreadCountGivesTheSameBytes() throws {
        var results: Set<[Float]> = []
        for threads in [1, 2, 3] {
            let function = try SmallPrograms.cache(options: SpecializationOptions(threadCount: threads))
            var states = try function.initialStates()
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var outputs = try function.runSynchronously(
                inputs: [
                    "rows": NDArray(scalars: (0..<32).map { 1 / Float($0 + 1) }, shape: [8, 4]),
                    "position": NDArray(scalars: (0..<8).map(Int64.init), shape: [8]),
                ], states: views)
            results.insert(floats(try take("total", from: &outputs)) + floats(states["cache"]!))
        }
        #expect(results.count == 1)
    }
}
