import Statepack

/// Memory to read, and how fast the machine reads it.
final class ReadBuffer {
    let byteCount: Int
    private let bytes: UnsafeMutableRawBufferPointer

    /// Written once, so that every page is there and none is the shared page of zeros.
    init(byteCount: Int) {
        self.byteCount = byteCount
        bytes = .allocate(byteCount: byteCount, alignment: 64)
        bytes.initializeMemory(as: UInt8.self, repeating: 1)
    }

    deinit { bytes.deallocate() }

    /// Reads the first `count` bytes once with all threads.
    func bytesPerSecond(first count: Int, streams: Int, threads: Int) -> Double {
        MemoryBandwidth.measure(
            over: UnsafeRawBufferPointer(rebasing: bytes[..<count]), streams: streams, threadCount: threads)
    }
}

func milliseconds(since begin: ContinuousClock.Instant) -> Double {
    let time = (ContinuousClock.now - begin).components
    return Double(time.seconds) * 1000 + Double(time.attoseconds) / 1e15
}
