internal import Synchronization

/// Memory for the intermediate values of one run.
final class Arena: @unchecked Sendable {
    let base: UnsafeMutableRawPointer
    let byteCount: Int

    /// Nil when there is not that much memory.
    init?(byteCount: Int) {
        guard let base = AlignedMemory.allocate(byteCount: byteCount) else { return nil }
        self.base = base
        self.byteCount = byteCount
    }

    deinit { AlignedMemory.deallocate(base) }
}

/// Arenas that no run uses at the moment, shared by all functions of a model and by all their sizes: idle memory
/// is bounded by the largest step, not by the number of sizes that were ever used.
final class ArenaPool: Sendable {
    static let idleLimit = 2

    private let idle = Mutex<[Arena]>([])

    /// The smallest idle arena that is large enough, or a new one. Nil when there is not that much memory.
    func take(byteCount: Int) -> Arena? {
        let found = idle.withLock { arenas -> Arena? in
            var best: Int?
            for index in arenas.indices where arenas[index].byteCount >= byteCount {
                if best == nil || arenas[index].byteCount < arenas[best!].byteCount { best = index }
            }
            // One that is too small will not be asked for again soon: its memory serves the larger one.
            if best == nil && !arenas.isEmpty { arenas.removeLast() }
            return best.map { arenas.remove(at: $0) }
        }
        return found ?? Arena(byteCount: byteCount)
    }

    func giveBack(_ arena: Arena) {
        idle.withLock { arenas in
            if arenas.count < Self.idleLimit { arenas.append(arena) }
        }
    }

    var idleByteCount: Int { idle.withLock { $0.reduce(0) { $0 + $1.byteCount } } }
}
