import Foundation
import Statepack
import StatepackBundle
import Testing

#if canImport(Glibc)
    import AllocationMeter
#endif

/// Preparing a function for new sizes: what it costs, what is kept, and that nothing gets mixed up.
struct SpecializationTests {
    /// Each length once, in this order, on a session of its own; the logits of the last row.
    private static func logits(_ function: InferenceFunction, _ length: Int) throws -> [Float] {
        var session = try DecoderSession(function, length: length)
        try session.step(token: length, position: 0)
        return Array(floats(session.logits).suffix(96))
    }

    @Test func tablesThatServedOtherSizesGiveTheSameBits() throws {
        let decoder = SmallDecoder(layers: 2, width: 32, capacity: 64, longestQuery: 64)
        let function = try decoder.load(threads: 2)
        let lengths = [1, 64, 1, 7, 33, 2, 64, 5, 6, 8, 9, 10, 11, 12, 1, 40, 1]
        for length in lengths {
            // A function that never had another length.
            let alone = try decoder.load(threads: 2)
            let (found, expected) = (try Self.logits(function, length), try Self.logits(alone, length))
            #expect(found == expected, "length \(length)")
        }
        #expect(function.preparedSizeCount == FunctionLimits.preparedSizes)
        #expect(function.idleTableCount <= FunctionLimits.idleTables)
    }

    @Test func runsThatOverlapHaveTablesOfTheirOwn() async throws {
        let decoder = SmallDecoder(layers: 2, width: 32, capacity: 64, longestQuery: 64)
        let function = try decoder.load(threads: 2)
        let expected = try (1...24).map { try Self.logits(decoder.load(threads: 1), $0) }
        try await withThrowingTaskGroup(of: Void.self) { group in
            for task in 0..<12 {
                group.addTask {
                    for round in 0..<20 {
                        let length = 1 + (task * 7 + round * (task % 3 + 1)) % 24
                        let found = try Self.logits(function, length)
                        #expect(found == expected[length - 1])
                    }
                }
            }
            try await group.waitForAll()
        }
        #expect(function.idleTableCount <= FunctionLimits.idleTables)
        #expect(function.preparedSizeCount == FunctionLimits.preparedSizes)
    }

    #if canImport(Glibc)
        @Test func aSecondPassOverAllLengthsAddsNothing() async {
            await #expect(processExitsWith: .success) {
                let decoder = SmallDecoder(layers: 1, width: 16, heads: 2, capacity: 512)
                let function = try decoder.load(threads: 1)
                var resident: [Int64] = []
                var sums: [[Float]] = []
                var states = try function.initialStates()
                for _ in 0..<3 {
                    var sum: [Float] = []
                    for length in 1...512 {
                        var views = InferenceFunction.MutableViews()
                        views.insert(contentsOf: &states)
                        var outputs = try function.runSynchronously(
                            inputs: [
                                "tokens": NDArray(scalars: (0..<length).map { Int64($0 % 90) }, shape: [length]),
                                "positions": NDArray(scalars: (0..<length).map(Int64.init), shape: [length]),
                            ], states: views)
                        let logits = try take("logits", from: &outputs)
                        let view = logits.view(as: Float.self)
                        sum.append(view[scalarAt: [length - 1, 0]])
                        #expect(function.preparedSizeCount <= FunctionLimits.preparedSizes)
                        #expect(function.idleTableCount <= FunctionLimits.idleTables)
                    }
                    sums.append(sum)
                    resident.append(sp_resident_bytes())
                }
                #expect(sums[0] == sums[1] && sums[0] == sums[2])
                #expect(Set(sums[0]).count > 200)
                #expect(resident[2] - resident[1] < 1 << 20 || sp_is_instrumented(), "\(resident)")
            }
        }

        /// What is kept for a choice of sizes is a few numbers for each different size and each intermediate value.
        @Test func aPreparedChoiceOfSizesIsSmall() async {
            await #expect(processExitsWith: .success) {
                let function = try SmallDecoder(layers: 12, width: 32, capacity: 64).load(threads: 1)
                for length in 1...20 { _ = try function.arenaByteCount(symbols: ["query": length]) }
                sp_meter_start()
                _ = try function.arenaByteCount(symbols: ["query": 21])
                #expect(sp_meter_stop() < 40)
                #expect(sp_meter_bytes() < 32 << 10)
            }
        }
    #endif

    /// In one process and on one thread, so that what else the machine does counts for both.
    @Test func preparingANewLengthIsASmallPartOfItsStep() throws {
        let decoder = SmallDecoder(layers: 12, width: 256, heads: 4, capacity: 512)
        let function = try decoder.load(threads: 1)
        var session = try DecoderSession(function)
        let clock = ContinuousClock()
        try session.step(token: 1, position: 0)
        var ratios: [Double] = []
        for round in 0..<15 {
            let step = try clock.measure {
                for _ in 0..<2 { try session.step(token: round, position: round) }
            }
            let preparing = try clock.measure {
                for length in 0..<2 { _ = try function.arenaByteCount(symbols: ["query": 20 + 2 * round + length]) }
            }
            ratios.append(preparing / step)
        }
        // A real model has a thousand times the weights for each instruction: there it is well below a hundredth.
        let ratio = ratios.sorted()[ratios.count / 2]
        #expect(ratio < 0.25 || !StepCostTests.timesCount, "\(ratios)")
    }
}
