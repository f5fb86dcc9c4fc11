internal import Synchronization

#if canImport(Glibc)
    internal import Glibc
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Darwin
#endif

/// The threads on which asynchronous runs work, so that they never hold a thread of Swift's cooperative pool.
///
/// A run that finds no idle thread gets a new one, up to a limit: a second run does not queue behind the first.
/// Idle threads end after a while.
final class RunnerThreads: @unchecked Sendable {
    static let shared = RunnerThreads()

    private static let threadLimit = 64
    private static let idleSeconds = 10

    // NOTE: POSIX primitives because they can wait; Swift's Mutex has no condition variable.
    private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    private let wake = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
    // All below: only with the mutex held. Waiting calls form a list through `Call.next`.
    private var first: Call?
    private var last: Call?
    private var waitingCount = 0
    private var threadCount = 0
    private var idleCount = 0

    private init() {
        pthread_mutex_init(mutex, nil)
        pthread_cond_init(wake, nil)
    }

    /// Executes a call on one of the threads and returns when it is done.
    nonisolated(nonsending) func perform(_ call: Call) async {
        await withUnsafeContinuation { (continuation: UnsafeContinuation<Void, Never>) in
            call.continuation = continuation
            submit(call)
        }
    }

    private func submit(_ call: Call) {
        pthread_mutex_lock(mutex)
        if let last { last.next = call } else { first = call }
        last = call
        waitingCount += 1
        let needsThread = idleCount < waitingCount && threadCount < Self.threadLimit
        if needsThread { threadCount += 1 }
        pthread_cond_signal(wake)
        pthread_mutex_unlock(mutex)
        if needsThread && !startThread() {
            pthread_mutex_lock(mutex)
            threadCount -= 1
            let isAlone = threadCount == 0
            pthread_mutex_unlock(mutex)
            // Nobody else will ever come: slower for the pool, but correct.
            if isAlone { work(once: true) }
        }
    }

    private func startThread() -> Bool {
        #if os(Linux) || os(Android)
            var thread = pthread_t()
        #else
            var thread: pthread_t?
        #endif
        var attributes = pthread_attr_t()
        pthread_attr_init(&attributes)
        defer { pthread_attr_destroy(&attributes) }
        pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
        return pthread_create(
            &thread, &attributes,
            { _ in
                RunnerThreads.shared.work(once: false)
                return nil
            }, nil) == 0
    }

    private func work(once: Bool) {
        pthread_mutex_lock(mutex)
        while true {
            if let call = first {
                first = call.next
                if first == nil { last = nil }
                call.next = nil
                waitingCount -= 1
                pthread_mutex_unlock(mutex)
                call.execute()
                let continuation = call.continuation
                call.continuation = nil
                // Idle from here on: a caller that goes on at once, and comes with its next step before this thread has
                // looked for one, needs no second thread.
                pthread_mutex_lock(mutex)
                idleCount += 1
                pthread_mutex_unlock(mutex)
                // NOTE: the last touch of the call; its owner goes on the moment this returns, or before.
                continuation?.resume()
                pthread_mutex_lock(mutex)
                idleCount -= 1
                if once && first == nil { break }
                continue
            }
            if once { break }
            idleCount += 1
            var deadline = timespec()
            clock_gettime(CLOCK_REALTIME, &deadline)
            deadline.tv_sec += Self.idleSeconds
            var isTimedOut = false
            while first == nil && !isTimedOut {
                isTimedOut = pthread_cond_timedwait(wake, mutex, &deadline) == ETIMEDOUT
            }
            idleCount -= 1
            if first == nil {
                threadCount -= 1
                break
            }
        }
        pthread_mutex_unlock(mutex)
    }
}
