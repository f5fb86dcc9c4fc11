import Statepack
import Testing

struct ArenaLayoutTests {
    private func block(_ byteCount: Int, _ lifetime: ClosedRange<Int>) -> ArenaLayout.Block {
        ArenaLayout.Block(byteCount: byteCount, lifetime: lifetime)
    }

    @Test func valuesThatFollowEachOtherShareBytes() throws {
        let placement = try #require(ArenaLayout.place([block(100, 0...1), block(100, 2...3), block(100, 1...2)]))
        #expect(placement.offsets == [0, 0, 128])
        #expect(placement.byteCount == 2 * 128)
    }

    @Test func theSmallestGapThatFitsIsTaken() throws {
        // After the first four are placed, 640 and 1280 bytes are free while the last two live.
        let blocks = [
            block(64 * 20, 0...0), block(64 * 2, 0...9), block(64 * 10, 0...0), block(64, 0...9),
            block(64 * 9, 1...9),
        ]
        let placement = try #require(ArenaLayout.place(blocks))
        check(placement, blocks)
        #expect(placement.byteCount == 64 * (20 + 10 + 2 + 1))
        // 20 at 0, 10 at 20: gone when the 9 come alive, which find 30 free in front of the 2 and the 1.
        #expect(placement.offsets == [0, 64 * 30, 64 * 20, 64 * 32, 0])
    }

    @Test func emptyValuesAndNoneAtAllHaveAPlace() throws {
        #expect(try #require(ArenaLayout.place([])).byteCount == 0)
        let placement = try #require(ArenaLayout.place([block(0, 0...5), block(1, 0...5)]))
        check(placement, [block(0, 0...5), block(1, 0...5)])
    }

    @Test func aSizeThatOverflowsHasNoPlace() {
        #expect(ArenaLayout.place([block(Int.max, 0...1)]) == nil)
        #expect(ArenaLayout.place([block(Int.max - 127, 0...1), block(Int.max - 127, 0...1)]) == nil)
    }

    @Test func overlappingLifetimesNeverShareBytes() throws {
        var random = SplitMix(state: 7)
        for round in 0..<200 {
            let count = Int(random.next() % 60)
            var blocks: [ArenaLayout.Block] = []
            for _ in 0..<count {
                let first = Int(random.next() % 40)
                let length = Int(random.next() % (round % 2 == 0 ? 4 : 40))
                blocks.append(block(Int(random.next() % 5000), first...first + length))
            }
            let placement = try #require(ArenaLayout.place(blocks))
            check(placement, blocks)
            #expect(ArenaLayout.place(blocks) == placement)
        }
    }

    /// Knows nothing of how blocks are placed.
    private func check(_ placement: ArenaLayout.Placement, _ blocks: [ArenaLayout.Block]) {
        #expect(placement.offsets.count == blocks.count)
        for (one, a) in blocks.enumerated() {
            #expect(placement.offsets[one] % 64 == 0 && placement.offsets[one] >= 0)
            #expect(placement.offsets[one] + a.byteCount <= placement.byteCount)
            for (two, b) in blocks.enumerated().dropFirst(one + 1) where a.lifetime.overlaps(b.lifetime) {
                let areDisjoint =
                    placement.offsets[one] + a.byteCount <= placement.offsets[two]
                    || placement.offsets[two] + b.byteCount <= placement.offsets[one]
                #expect(areDisjoint, "blocks \(one) and \(two)")
            }
        }
    }
}

/// A small generator with a seed, so that a failing case comes back.
struct SplitMix: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return z ^ (z >> 31)
    }
}
