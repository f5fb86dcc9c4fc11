import StatepackBundle
import Synchronization
import Testing

@Suite struct BackgroundThreadTests {
    private final class Log: Sendable {
        let entries = Mutex<[Int]>([])
    }

    @Test func worksInOrderAndBesideItsOwner() {
        let log = Log()
        let thread = BackgroundThread()
        thread.wait()
        for index in 0..<1000 {
            thread.start { log.entries.withLock { $0.append(index) } }
            thread.wait()
            #expect(log.entries.withLock { $0.count } == index + 1)
        }
        #expect(log.entries.withLock { $0 } == Array(0..<1000))
    }

    @Test func ownerGoesOnWhileTheWorkWaits() {
        let gate = Log()
        let thread = BackgroundThread()
        thread.start {
            while gate.entries.withLock({ $0.isEmpty }) {}
            gate.entries.withLock { $0.append(2) }
        }
        // Reached at all only because `start` returned.
        gate.entries.withLock { $0.append(1) }
        thread.wait()
        #expect(gate.entries.withLock { $0 } == [1, 2])
    }

    @Test func workThatWasStartedIsDoneAlsoWhenItsOwnerGoes() {
        let log = Log()
        for index in 0..<100 {
            let thread = BackgroundThread()
            thread.start { log.entries.withLock { $0.append(index) } }
        }
        while log.entries.withLock({ $0.count }) < 100 {}
        #expect(log.entries.withLock { $0.sorted() } == Array(0..<100))
    }
}
