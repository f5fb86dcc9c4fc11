import StatepackDiagnostics

/// Which intermediate value lies on top of which: enough to place all of them for any sizes, in time proportional to
/// their number.
///
/// Placing well is quadratic work (``ArenaLayout``), too much for every new length of a prompt. What it finds for one
/// set of sizes is kept as an order: in the list of values that live at one moment, sorted by place, each lies directly
/// above its neighbour. Any two values that ever live together are connected by such steps, so that an offset behind
/// the ends of the direct neighbours below keeps all of them apart, whatever the sizes are.
///
/// For the sizes it was made from the offsets are those of ``ArenaLayout``; for others the total may be larger than a
/// placement of their own would need.
package struct ArenaPlan: Sendable {
    /// Indices of the blocks, from the lowest place to the highest.
    private let order: [Int32]
    /// `below[starts[n]..<starts[n + 1]]` are the blocks directly below block `order[n]`.
    private let starts: [Int32]
    private let below: [Int32]

    /// Nil when the blocks fit no address space.
    package init?(_ blocks: [ArenaLayout.Block]) {
        guard let placement = ArenaLayout.place(blocks) else { return nil }
        let offsets = placement.offsets
        var neighbours = [Set<Int32>](repeating: [], count: blocks.count)
        // Alive at one moment, by place. Two that live together never have one offset.
        var alive: [Int] = []
        func place(of block: Int) -> Int {
            var (low, high) = (0, alive.count)
            while low < high {
                let middle = (low + high) / 2
                if offsets[alive[middle]] < offsets[block] { low = middle + 1 } else { high = middle }
            }
            return low
        }
        let births = blocks.indices.sorted { blocks[$0].lifetime.lowerBound < blocks[$1].lifetime.lowerBound }
        let deaths = blocks.indices.sorted { blocks[$0].lifetime.upperBound < blocks[$1].lifetime.upperBound }
        var dead = 0
        for block in births {
            while blocks[deaths[dead]].lifetime.upperBound < blocks[block].lifetime.lowerBound {
                let index = place(of: deaths[dead])
                alive.remove(at: index)
                if index > 0 && index < alive.count { neighbours[alive[index]].insert(Int32(alive[index - 1])) }
                dead += 1
            }
            let index = place(of: block)
            alive.insert(block, at: index)
            if index > 0 { neighbours[block].insert(Int32(alive[index - 1])) }
            if index + 1 < alive.count { neighbours[alive[index + 1]].insert(Int32(block)) }
        }
        let sorted = blocks.indices.sorted { (offsets[$0], $0) < (offsets[$1], $1) }
        var starts: [Int32] = [0]
        var below: [Int32] = []
        for block in sorted {
            below.append(contentsOf: neighbours[block].sorted())
            starts.append(Int32(below.count))
        }
        order = sorted.map(Int32.init)
        self.starts = starts
        self.below = below
    }

    /// Places blocks of these sizes, and returns the bytes of all of them together. Nil when that does not fit an `Int`.
    ///
    /// - Parameters:
    ///   - ends: One element per block, for the ends of the blocks.
    package func place(
        byteCounts: UnsafeBufferPointer<Int>, offsets: UnsafeMutableBufferPointer<Int>,
        ends: UnsafeMutableBufferPointer<Int>
    ) -> Int? {
        var total = 0
        for (position, block) in order.enumerated() {
            let block = Int(block)
            var start = 0
            for index in Int(starts[position])..<Int(starts[position + 1]) {
                start = max(start, ends[Int(below[index])])
            }
            let (padded, overflow) = max(byteCounts[block], 1).addingReportingOverflow(ArenaLayout.alignment - 1)
            if overflow { return nil }
            let (end, overflow2) = start.addingReportingOverflow(padded & ~(ArenaLayout.alignment - 1))
            if overflow2 { return nil }
            offsets[block] = start
            ends[block] = end
            total = max(total, end)
        }
        return total
    }
}
