import StatepackDiagnostics

/// Places the intermediate values of a function in one block of memory, so that values which are never alive at
/// the same time share bytes.
package enum ArenaLayout {
    package static let alignment = 64

    package struct Block: Hashable, Sendable {
        package var byteCount: Int
        /// The first and the last instruction that touch the bytes.
        package var lifetime: ClosedRange<Int>

        package init(byteCount: Int, lifetime: ClosedRange<Int>) {
            self.byteCount = byteCount
            self.lifetime = lifetime
        }
    }

    package struct Placement: Hashable, Sendable {
        /// One per block, in bytes, multiples of `alignment`.
        package var offsets: [Int]
        package var byteCount: Int
    }

    /// Greedy best fit, largest block first: each goes into the smallest gap that is free for its whole lifetime.
    ///
    /// Quadratic in the number of blocks. Nil when the total does not fit an `Int`.
    package static func place(_ blocks: [Block]) -> Placement? {
        let order = blocks.indices.sorted {
            (blocks[$0].byteCount, $1) > (blocks[$1].byteCount, $0)
        }
        var offsets = [Int](repeating: 0, count: blocks.count)
        // Placed blocks by offset.
        var placed: [(start: Int, end: Int, lifetime: ClosedRange<Int>)] = []
        var total = 0
        for index in order {
            let block = blocks[index]
            let (padded, overflow) = max(block.byteCount, 1).addingReportingOverflow(alignment - 1)
            if overflow { return nil }
            let size = padded & ~(alignment - 1)
            var best: (start: Int, gap: Int)?
            var end = 0
            for other in placed where other.lifetime.overlaps(block.lifetime) {
                let gap = other.start - end
                if gap >= size && gap < best?.gap ?? Int.max { best = (end, gap) }
                end = max(end, other.end)
            }
            let start = best?.start ?? end
            let (stop, overflow2) = start.addingReportingOverflow(size)
            if overflow2 { return nil }
            offsets[index] = start
            total = max(total, stop)
            var low = 0
            var high = placed.count
            while low < high {
                let middle = (low + high) / 2
                if placed[middle].start <= start { low = middle + 1 } else { high = middle }
            }
            placed.insert((start, stop, block.lifetime), at: low)
        }
        return Placement(offsets: offsets, byteCount: total)
    }
}
