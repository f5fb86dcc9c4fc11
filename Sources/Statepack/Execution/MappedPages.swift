#if canImport(Glibc)
    internal import Glibc
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Darwin
#endif

/// Pages of a mapped file.
enum MappedPages {
    /// Brings all bytes into memory and into this process's page table, so that no run waits for them.
    ///
    /// Costs one pass over pages that are in memory already, and reading the file otherwise. The pages stay the file's:
    /// other processes share them, and the system may take them back when memory is short.
    static func prefault(_ bytes: UnsafeRawBufferPointer) {
        guard let start = bytes.baseAddress, !bytes.isEmpty else { return }
        let page = UInt(sysconf(Int32(_SC_PAGESIZE)))
        let first = UInt(bitPattern: start) & ~(page - 1)
        let length = Int(UInt(bitPattern: start) - first) + bytes.count
        let memory = UnsafeMutableRawPointer(bitPattern: first)!
        // All of it asked for before the first page is waited for.
        _ = madvise(memory, length, Int32(MADV_WILLNEED))
        #if os(Linux)
            // MADV_POPULATE_READ: a whole table at once, where a fault brings sixteen pages. Linux 5.14 and later.
            if madvise(memory, length, 22) == 0 { return }
        #endif
        var sum: UInt8 = 0
        for offset in stride(from: 0, to: bytes.count, by: Int(page)) { sum &+= bytes[offset] }
        // Or nothing would need the loads.
        withExtendedLifetime(sum) {}
    }
}
