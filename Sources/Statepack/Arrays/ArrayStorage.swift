internal import Synchronization

#if canImport(Glibc)
    internal import Glibc
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Darwin
#endif

/// The bytes behind one or more `NDArray` values, and the flag that gives them one owner at a time.
///
/// The compiler keeps two users of one array apart wherever it sees both (`~Escapable` views). It does not see
/// an actor's property that is handed to a run, then touched by the same actor while the run awaits. The flag
/// closes that gap: a view that goes into a run sets it, and whoever comes second is refused.
final class ArrayStorage: @unchecked Sendable {
    /// 64-byte aligned.
    let base: UnsafeMutableRawPointer
    let byteCount: Int
    private let allocation: UnsafeMutableRawPointer
    private let hasOwner = Atomic<Bool>(false)

    static let alignment = 64

    /// Zeroed bytes. Traps when there is not enough memory.
    convenience init(zeroedByteCount byteCount: Int) {
        guard let block = Self.allocate(byteCount) else {
            fatalError("cannot allocate \(byteCount) bytes for an NDArray")
        }
        self.init(owning: block, byteCount: byteCount)
    }

    /// Zeroed bytes, or nil when there is not enough memory: for sizes that come from a bundle.
    convenience init?(availableByteCount byteCount: Int) {
        guard let block = Self.allocate(byteCount) else { return nil }
        self.init(owning: block, byteCount: byteCount)
    }

    /// Large blocks come as untouched pages from the system, so zeroing them costs nothing here.
    private static func allocate(_ byteCount: Int) -> UnsafeMutableRawPointer? {
        precondition(byteCount >= 0, "an array needs a nonnegative number of bytes")
        let (total, overflow) = byteCount.addingReportingOverflow(alignment)
        // NOTE: the one place that allocates array memory. Forks by copy-on-write mappings will replace it.
        return overflow ? nil : calloc(1, total)
    }

    private init(owning block: UnsafeMutableRawPointer, byteCount: Int) {
        allocation = block
        let address = UInt(bitPattern: block)
        base = block.advanced(by: Int(address.roundedUp(toMultipleOf: UInt(Self.alignment)) - address))
        self.byteCount = byteCount
    }

    deinit { free(allocation) }

    /// Makes the caller the one owner, or returns false because somebody else is.
    func beginExclusiveUse() -> Bool {
        hasOwner.compareExchange(expected: false, desired: true, ordering: .acquiringAndReleasing).exchanged
    }

    func endExclusiveUse() { hasOwner.store(false, ordering: .releasing) }

    var isInUse: Bool { hasOwner.load(ordering: .acquiring) }

    /// Traps instead of handing out bytes that a run is writing at this moment.
    func requireIdle() {
        precondition(!isInUse, "NDArray accessed while a run is writing it; await the run first")
    }
}

extension UInt {
    fileprivate func roundedUp(toMultipleOf alignment: UInt) -> UInt { (self + alignment - 1) & ~(alignment - 1) }
}

/// How often an array's bytes were copied because two values shared them, since the process started.
package enum CopyOnWrite {
    private static let copies = Atomic<Int>(0)

    package static var copyCount: Int { copies.load(ordering: .relaxed) }

    static func countCopy() { copies.add(1, ordering: .relaxed) }
}
