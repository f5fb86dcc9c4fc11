#if canImport(Glibc)
    internal import Glibc
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Darwin
#endif

/// Memory at addresses that suit every kernel.
enum AlignedMemory {
    static let alignment = 64

    /// Uninitialised memory, or nil when there is not that much.
    static func allocate(byteCount: Int) -> UnsafeMutableRawPointer? {
        var pointer: UnsafeMutableRawPointer?
        return posix_memalign(&pointer, alignment, max(byteCount, 1)) == 0 ? pointer : nil
    }

    static func deallocate(_ pointer: UnsafeMutableRawPointer) { free(pointer) }
}
