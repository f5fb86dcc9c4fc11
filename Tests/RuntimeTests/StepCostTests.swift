import AllocationMeter
import Statepack
import StatepackBundle
import Synchronization
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// What the time of a step depends on, and what it does not.
///
/// Times are processor time of the calling thread, which runs alone: what else the machine does is not counted. They
/// are only compared with times that were taken in between.
@Suite(.serialized) struct StepCostTests {
    /// False where the compiler did not optimise, or a sanitizer watches: then ratios of times are not those of a build
    /// that anybody uses.
    static var timesCount: Bool {
        #if DEBUG
            false
        #else
            !sp_is_instrumented()
        #endif
    }

    static func processorTime(of body: () throws -> Void) rethrows -> Double {
        func now() -> Double {
            var time = timespec()
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
            return Double(time.tv_sec) + Double(time.tv_nsec) / 1e9
        }
        let start = now()
        try body()
        return now() - start
    }

    /// The median of `pairs` ratios of the second time to the first, each taken right after the other.
    static func ratio(pairs: Int, _ first: (Int) throws -> Void, _ second: (Int) throws -> Void) rethrows -> Double {
        var ratios: [Double] = []
        for pair in 0..<pairs {
            // In turns, so that neither is always the one that finds the caches warm.
            if pair % 2 == 0 {
                let one = try processorTime { try first(pair) }
                ratios.append(try processorTime { try second(pair) } / one)
            } else {
                let two = try processorTime { try second(pair) }
                ratios.append(two / (try processorTime { try first(pair) }))
            }
        }
        return ratios.sorted()[pairs / 2]
    }

    /// Touches every page of the states, so that no step is the first to use one.
    static func prefault(_ states: inout [String: NDArray]) {
        for name in states.keys.sorted() {
            var array = states.removeValue(forKey: name)!
            let count = array.shape.reduce(4, *)
            array.mutableRawView().withUnsafeMutableBytes { base, _, _ in
                for offset in stride(from: 0, to: count, by: 4096) {
                    base.storeBytes(of: 0, toByteOffset: offset, as: UInt8.self)
                }
            }
            states[name] = array
        }
    }

    @Test func aStepCostsTheSameWhateverTheCapacity() throws {
        func session(_ capacity: Int) throws -> DecoderSession {
            let decoder = SmallDecoder(
                layers: 4, width: 512, heads: 8, capacity: capacity, vocabulary: 1024, longestQuery: 8)
            var session = try DecoderSession(decoder.load(threads: 1))
            Self.prefault(&session.states)
            return session
        }
        var small = try session(2048)
        var large = try session(32_768)
        // Four layers of eight heads read the keys up to the position.
        for position in 0..<64 {
            let (one, two) = (
                try small.step(token: position, position: position), try large.step(token: position, position: position)
            )
            #expect(one == two)
            #expect(one.attentionRows == 4 * 8 * (position + 1) && one.stateBytesCopied == 0)
        }
        let (one, two) = (floats(small.logits), floats(large.logits))
        #expect(one == two)
        let ratio = try Self.ratio(pairs: 15) { pair in
            for step in 0..<4 { try small.step(token: pair, position: 64 + 4 * pair + step) }
        } _: { pair in
            for step in 0..<4 { try large.step(token: pair, position: 64 + 4 * pair + step) }
        }
        #expect(ratio < 1.1 || !Self.timesCount, "\(ratio)")
    }

    @Test func aStateThatIsOnlyWrittenCostsTheSameWhateverItsSize() throws {
        func load(_ rows: Int) throws -> (InferenceFunction, [String: NDArray]) {
            var builder = ProgramBuilder()
            let row = builder.input("row", .float32, [1, 256])
            let position = builder.input("position", .int64, [1])
            let log = builder.state("log", .float32, [SizeExpression(rows), 256])
            builder.emit("index_copy", [log, position, row], [log], ints: [0])
            let function = try builder.load(options: SpecializationOptions(threadCount: 1))
            var states = try function.initialStates()
            Self.prefault(&states)
            return (function, states)
        }
        let row = NDArray(scalars: [Float](repeating: 3, count: 256), shape: [1, 256])
        var position = NDArray(shape: [1], scalarType: .int64)
        func steps(_ function: InferenceFunction, _ states: inout [String: NDArray], _ first: Int) throws {
            let rows = states["log"]!.shape[0]
            for step in first..<first + 500 {
                do {
                    var view = position.mutableView(as: Int64.self)
                    view[scalarAt: [0]] = Int64(step * 7 % rows)
                }
                let place = position
                var inputs = InferenceFunction.Inputs()
                inputs.insert(row, for: "row")
                inputs.insert(place, for: "position")
                var views = InferenceFunction.MutableViews()
                views.insert(contentsOf: &states)
                let statistics = try function.runSynchronously(inputs: inputs, states: views).statistics
                #expect(statistics.stateBytesCopied == 0 && statistics.copyOnWriteBytes == 0)
            }
        }
        var (small, smallStates) = try load(1024)
        var (large, largeStates) = try load(262_144)
        #expect(smallStates["log"]!.shape[0] * 1024 == 1 << 20 && largeStates["log"]!.shape[0] * 1024 == 256 << 20)
        try steps(small, &smallStates, 0)
        try steps(large, &largeStates, 0)
        let ratio = try Self.ratio(pairs: 15) {
            try steps(small, &smallStates, 500 * $0)
        } _: {
            try steps(large, &largeStates, 500 * $0)
        }
        #expect(ratio < 1.5 || !Self.timesCount, "\(ratio)")
    }

    @Test func everyThreadCountGivesTheSameBits() throws {
        var results: [[UInt8]] = []
        for threads in [1, 2, 3, 8] {
            let decoder = SmallDecoder(layers: 3, width: 256, heads: 8, capacity: 256, vocabulary: 512)
            let function = try decoder.load(threads: threads)
            var prompt = try DecoderSession(function, length: 100)
            try prompt.step(token: 3, position: 0)
            var session = try DecoderSession(function)
            session.states = prompt.states
            prompt.states = [:]
            for step in 0..<20 { try session.step(token: step, position: 100 + step) }
            results.append(bytes(prompt.logits) + session.bits)
        }
        #expect(Set(results).count == 1)
        #expect(Set(results[0]).count > 100)
    }

    /// A run that takes long holds neither the threads nor the tables that a short one needs.
    ///
    /// Both on threads of their own: the pool of the system's tasks is busy with other tests.
    @Test func aShortRunDoesNotWaitForALongOne() async throws {
        let decoder = SmallDecoder(layers: 8, width: 256, heads: 4, capacity: 512)
        let function = try decoder.load(threads: 2)
        for isAwaited in [false, true] {
            let (hasStarted, isDone) = (Flag(), Flag())
            async let long: Void = withTaskExecutorPreference(OneThread()) {
                var session = try DecoderSession(function, length: 512)
                hasStarted.set()
                for _ in 0..<4 {
                    if isAwaited {
                        try await session.awaitStep(token: 1, position: 0)
                    } else {
                        try session.step(token: 1, position: 0)
                    }
                }
                isDone.set()
            }
            let steps = try await withTaskExecutorPreference(OneThread()) {
                var session = try DecoderSession(function)
                while !hasStarted.isSet { await Task.yield() }
                var steps = 0
                while !isDone.isSet {
                    if isAwaited {
                        try await session.awaitStep(token: steps, position: steps % 512)
                    } else {
                        try session.step(token: steps, position: steps % 512)
                    }
                    steps += 1
                }
                return steps
            }
            try await long
            // Four prompts of 512 tokens take some thousand times as long as a step.
            #expect(steps >= 20, "\(steps) steps beside the long run, awaited: \(isAwaited)")
        }
    }

    final class Flag: Sendable {
        private let value = Atomic<Bool>(false)
        var isSet: Bool { value.load(ordering: .acquiring) }
        func set() { value.store(true, ordering: .releasing) }
    }
}
