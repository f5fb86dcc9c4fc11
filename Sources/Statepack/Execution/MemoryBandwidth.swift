internal import CStatepackKernels

/// How fast this machine reads memory, as the limit that a step is measured against.
package enum MemoryBandwidth {
    /// Reads a buffer once on the library's threads, and returns bytes per second.
    ///
    /// With four streams each thread reads from four places at once, with one from a single place; both prefetch.
    /// The buffer is read in place and should be much larger than the last cache: the weights of the model are the
    /// right one. Nan when it is smaller than 1 MiB. Costs as long as a step over as many bytes.
    ///
    /// - Parameters:
    ///   - buffer: Aligned to 16 bytes.
    ///   - streams: 1 or 4.
    package static func measure(over buffer: UnsafeRawBufferPointer, streams: Int, threadCount: Int) -> Double {
        precondition(streams == 1 || streams == 4, "one stream or four")
        let pool = ThreadPool.shared(threadCount: threadCount)
        var sum: UInt64 = 0
        var byteCount = 0
        let duration = ContinuousClock().measure {
            byteCount = sp_read_streams(pool.handle, buffer.baseAddress, buffer.count, UInt32(streams), &sum)
        }
        if byteCount == 0 { return .nan }
        let (seconds, attoseconds) = duration.components
        return Double(byteCount) / (Double(seconds) + Double(attoseconds) * 1e-18)
    }
}
