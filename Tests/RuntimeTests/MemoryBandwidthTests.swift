import Statepack
import Testing

@Suite struct MemoryBandwidthTests {
    @Test(arguments: [1, 4]) func aBufferIsReadAtAFiniteSpeed(streams: Int) {
        let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 8 << 20, alignment: 64)
        defer { buffer.deallocate() }
        buffer.initializeMemory(as: UInt8.self, repeating: 1)
        let speed = MemoryBandwidth.measure(over: UnsafeRawBufferPointer(buffer), streams: streams, threadCount: 2)
        #expect(speed.isFinite && speed > 0)
    }

    @Test func aBufferBelowOneBlockHasNoSpeed() {
        #expect(
            MemoryBandwidth.measure(over: UnsafeRawBufferPointer(start: nil, count: 0), streams: 4, threadCount: 1)
                .isNaN)
    }
}
