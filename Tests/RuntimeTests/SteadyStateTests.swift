#if canImport(Glibc)
    import AllocationMeter
    import Foundation
    import Glibc
    import Statepack
    import StatepackBundle
    import Testing

    /// A step that is like the one before allocates nothing, on whatever thread, and the process does not grow.
    ///
    /// Each measurement has a process of its own, for the meter counts what all threads do.
    struct SteadyStateTests {
        static let warmUp = 100
        static let steps = 20_000
        static let growthLimit: Int64 = 1 << 20

        /// What `steps` steps after the warm-up cost.
        struct Cost: CustomStringConvertible {
            var allocations: Int64
            var bytes: Int64
            var growth: Int64

            var isNothing: Bool { allocations == 0 && growth < SteadyStateTests.growthLimit }

            var description: String { "\(allocations) allocations of \(bytes) bytes, \(growth) bytes of memory more" }
        }

        static func cost(of step: (Int) throws -> Void) rethrows -> Cost {
            for index in 0..<warmUp { try step(index) }
            let before = sp_resident_bytes()
            sp_meter_start()
            for index in 0..<steps { try step(index) }
            let allocations = sp_meter_stop()
            return Cost(allocations: allocations, bytes: sp_meter_bytes(), growth: sp_resident_bytes() - before)
        }

        nonisolated(nonsending) static func cost(
            of step: nonisolated(nonsending) (Int) async throws -> Void
        ) async rethrows -> Cost {
            for index in 0..<warmUp { try await step(index) }
            let before = sp_resident_bytes()
            sp_meter_start()
            for index in 0..<steps { try await step(index) }
            let allocations = sp_meter_stop()
            return Cost(allocations: allocations, bytes: sp_meter_bytes(), growth: sp_resident_bytes() - before)
        }

        final class Something {
            var number: Int

            init(_ number: Int) { self.number = number }
        }

        // MARK: The meter

        @Test func theMeterSeesEveryWayToAllocate() async {
            await #expect(processExitsWith: .success) {
                for way in 0..<Int32(SP_METER_WAYS) {
                    sp_meter_allocate(way, 100)
                    sp_meter_start()
                    sp_meter_allocate(way, 100)
                    #expect(sp_meter_stop() >= 1, "way \(way)")
                    #expect(sp_meter_bytes() >= (way < 5 ? 100 : 1), "way \(way)")
                    sp_meter_start()
                    sp_meter_allocate_on_thread(way, 100)
                    #expect(sp_meter_stop() >= 1, "way \(way) on a thread")
                }
                var objects: [Something] = []
                objects.reserveCapacity(10)
                sp_meter_start()
                objects.append(Something(3))
                #expect(sp_meter_stop() == 1)
                sp_meter_start()
                let numbers = [Int](repeating: objects[0].number, count: 1000)
                #expect(sp_meter_stop() == 1)
                #expect(sp_meter_bytes() >= 8000 && numbers.count == 1000)
                sp_meter_start()
                objects[0].number += 1
                #expect(sp_meter_stop() == 0)
            }
        }

        /// The measurement itself is able to fail: one allocation in twenty thousand steps is seen, and so is growth.
        @Test func oneAllocationAmongAllStepsIsSeen() async {
            await #expect(processExitsWith: .success) {
                var kept: [Something] = []
                kept.reserveCapacity(2)
                let one = Self.cost { index in if index == 19_000 { kept.append(Something(index)) } }
                #expect(one.allocations == 1 && !one.isNothing)
                nonisolated(unsafe) var leak: [UnsafeMutableRawPointer] = []
                let grown = Self.cost { index in
                    if index % 10_000 == 9_999 {
                        let block = UnsafeMutableRawPointer.allocate(byteCount: 4 << 20, alignment: 64)
                        memset(block, 1, 4 << 20)
                        leak.append(block)
                    }
                }
                #expect(grown.growth >= 4 << 20 && !grown.isNothing)
            }
        }

        // MARK: Steps

        @Test func aStepWithViewsAllocatesNothing() async {
            await #expect(processExitsWith: .success) {
                let function = try SmallPrograms.counter()
                var count = try function.initialValue(ofState: "count")
                let step = NDArray(scalars: [1] as [Float], shape: [1])
                var seen = NDArray(shape: [1], scalarType: .float32)
                let cost = try Self.cost { _ in
                    var inputs = InferenceFunction.Inputs()
                    inputs.insert(step, for: "step")
                    var states = InferenceFunction.MutableViews()
                    states.insert(&count, for: "count")
                    var outputs = InferenceFunction.MutableViews()
                    outputs.insert(&seen, for: "seen")
                    _ = try function.runSynchronously(inputs: inputs, states: states, outputViews: outputs)
                }
                #expect(cost.isNothing, "\(cost)")
                #expect(floats(count)[0] == Float(5 + Self.warmUp + Self.steps))
            }
        }

        /// On an executor that allocates nothing itself. The system's own takes a block of 64 bytes, sometimes two, each time a
        /// thread that is not one of its pool resumes a task: those are counted by the budget below.
        @Test func anAwaitedStepWithViewsAllocatesNothing() async {
            await #expect(processExitsWith: .success) {
                let executor = OneThread()
                let function = try SmallPrograms.counter()
                try await withTaskExecutorPreference(executor) {
                    var count = try function.initialValue(ofState: "count")
                    let step = NDArray(scalars: [1] as [Float], shape: [1])
                    var seen = NDArray(shape: [1], scalarType: .float32)
                    let cost = try await Self.cost { _ in
                        try await Self.awaitCounter(function, step, &count, &seen)
                    }
                    #expect(cost.isNothing, "\(cost)")
                    #expect(floats(count)[0] == Float(5 + Self.warmUp + Self.steps))
                }
                #expect(executor.jobCount > 0)
            }
        }

        private nonisolated(nonsending) static func awaitCounter(
            _ function: InferenceFunction, _ step: NDArray, _ count: inout NDArray, _ seen: inout NDArray
        ) async throws {
            var inputs = InferenceFunction.Inputs()
            inputs.insert(step, for: "step")
            var states = InferenceFunction.MutableViews()
            states.insert(&count, for: "count")
            var outputs = InferenceFunction.MutableViews()
            outputs.insert(&seen, for: "seen")
            _ = try await function.run(inputs: inputs, states: states, outputViews: outputs)
        }

        /// Forty-four states, fourteen inputs, positions that are checked, two threads, a query of dynamic length.
        @Test func aStepOfADecoderAllocatesNothing() async {
            await #expect(processExitsWith: .success) {
                let decoder = SmallDecoder(layers: 22, width: 32, capacity: 32, extraInputs: 12)
                var session = try DecoderSession(decoder.load(threads: 2))
                let cost = try Self.cost { try session.step(token: $0, position: $0 % 32) }
                #expect(cost.isNothing, "\(cost)")
            }
        }

        @Test func anAwaitedStepOfADecoderAllocatesNothing() async {
            await #expect(processExitsWith: .success) {
                let decoder = SmallDecoder(layers: 22, width: 32, capacity: 32, extraInputs: 12)
                let function = try decoder.load(threads: 2)
                try await withTaskExecutorPreference(OneThread()) {
                    var session = try DecoderSession(function)
                    let cost = try await Self.cost { try await session.awaitStep(token: $0, position: $0 % 32) }
                    #expect(cost.isNothing, "\(cost)")
                }
            }
        }

        @Test func stepsThatAlternateBetweenTwoLengthsAllocateNothing() async {
            await #expect(processExitsWith: .success) {
                let function = try SmallDecoder(layers: 2, width: 32).load(threads: 2)
                var one = try DecoderSession(function, length: 1)
                var three = try DecoderSession(function, length: 3)
                let cost = try Self.cost { index in
                    if index % 2 == 0 {
                        try one.step(token: index, position: index % 64)
                    } else {
                        try three.step(token: index, position: index % 60)
                    }
                }
                #expect(cost.isNothing, "\(cost)")
                #expect(function.preparedSizeCount == 2)
            }
        }

        /// What is overwritten is remembered in memory that the step before used.
        @Test func aStepThatCouldBeUndoneAllocatesNothing() async {
            await #expect(processExitsWith: .success) {
                let function = try SmallPrograms.twoCaches()
                #expect(function.needsUndoLog)
                var states = try function.initialStates()
                let row = NDArray(scalars: [1, 2, 3, 4] as [Float], shape: [1, 4])
                let first = NDArray(scalars: [2] as [Int64], shape: [1])
                let second = NDArray(scalars: [5] as [Int64], shape: [1])
                let cost = try Self.cost { _ in
                    var inputs = InferenceFunction.Inputs()
                    inputs.insert(row, for: "row")
                    inputs.insert(first, for: "first")
                    inputs.insert(second, for: "second")
                    var views = InferenceFunction.MutableViews()
                    views.insert(contentsOf: &states)
                    _ = try function.runSynchronously(inputs: inputs, states: views)
                }
                #expect(cost.isNothing, "\(cost)")
            }
        }

        /// Views of the caller's memory, whole and in part.
        @Test func viewsAndSlicesOfThemAllocateNothing() async {
            await #expect(processExitsWith: .success) {
                let function = try SmallPrograms.counter()
                var count = try function.initialValue(ofState: "count")
                var steps = NDArray(scalars: [1, 2, 3, 4] as [Float], shape: [4])
                var seen = [Float](repeating: 0, count: 3)
                let shape = [3]
                let cost = try Self.cost { index in
                    do {
                        var view = steps.mutableView(as: Float.self)
                        view[scalarAt: [index % 4]] = 1
                    }
                    let whole = steps.rawView()
                    var inputs = InferenceFunction.Inputs()
                    inputs.insert(whole.slice(at: [2..<3]), for: "step")
                    var states = InferenceFunction.MutableViews()
                    states.insert(count.mutableRawView(), for: "count")
                    var outputs = InferenceFunction.MutableViews()
                    let all = NDArray.MutableView(mutableSpan: seen.mutableSpan, shape: shape)
                    outputs.insert(all.slice(at: [1..<2]), for: "seen")
                    _ = try function.runSynchronously(inputs: inputs, states: states, outputViews: outputs)
                }
                #expect(cost.isNothing, "\(cost)")
                #expect(seen[1] > 20_000 && seen[0] == 0 && seen[2] == 0)
            }
        }

        // MARK: The dictionary form

        /// Allocations of one step of the counter program whose input is a dictionary and whose output is new, of one that
        /// is awaited, and of what the system takes to resume the task. AllocationBudget.json may only be lowered.
        @Test func theDictionaryFormKeepsItsBudget() async throws {
            await #expect(processExitsWith: .success) {
                let folder = URL(filePath: #filePath).deletingLastPathComponent()
                let file = try Data(contentsOf: folder.appending(path: "AllocationBudget.json"))
                let budget = try JSONDecoder().decode([String: Double].self, from: file)
                let function = try SmallPrograms.counter()
                var count = try function.initialValue(ofState: "count")
                let step = NDArray(scalars: [1] as [Float], shape: [1])
                let cost = try Self.cost { _ in
                    var states = InferenceFunction.MutableViews()
                    states.insert(&count, for: "count")
                    var outputs = try function.runSynchronously(inputs: ["step": step], states: states)
                    _ = outputs.remove("seen")
                }
                let awaited = try await Self.cost { _ in
                    var states = InferenceFunction.MutableViews()
                    states.insert(&count, for: "count")
                    var outputs = try await function.run(inputs: ["step": step], states: states)
                    _ = outputs.remove("seen")
                }
                var seen = NDArray(shape: [1], scalarType: .float32)
                let views = try await Self.cost { _ in try await Self.awaitCounter(function, step, &count, &seen) }
                let costs = [("dictionary", cost), ("dictionary, awaited", awaited), ("views, awaited", views)]
                for (name, cost) in costs {
                    let perStep = Double(cost.allocations) / Double(Self.steps)
                    let allowed = try #require(budget[name])
                    #expect(perStep <= allowed, "\(name): \(perStep) allocations in each step")
                    #expect(cost.growth < Self.growthLimit || sp_is_instrumented(), "\(name): \(cost)")
                }
            }
        }
    }
#endif
