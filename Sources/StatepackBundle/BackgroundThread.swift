#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// A thread that does one piece of work at a time beside its owner: digests, while the owner packs and writes.
///
///     thread.start { digest.update(block) }
///     write(block)
///     thread.wait()
///
/// Where no thread can be had, `start` does the work itself. The owner uses it from one thread at a time; when the owner
/// goes, so does the thread, after the work that was started.
package final class BackgroundThread: Sendable {
    private let shared = Shared()
    private let isRunning: Bool

    package init() { isRunning = shared.startThread() }

    deinit {
        if isRunning { shared.end() }
    }

    /// Returns at once. What was started before must have been waited for.
    package func start(_ work: @escaping @Sendable () -> Void) {
        if isRunning { shared.submit(work) } else { work() }
    }

    /// Returns when the work is done, immediately when there is none.
    package func wait() {
        if isRunning { shared.waitUntilIdle() }
    }

    /// What owner and thread share; the thread keeps it until it ends.
    private final class Shared: @unchecked Sendable {
        // NOTE: POSIX primitives because they can wait; Swift's Mutex has no condition variable.
        private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
        private let change = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
        // Both: only with the mutex held.
        private var work: (@Sendable () -> Void)?
        private var isEnding = false

        init() {
            pthread_mutex_init(mutex, nil)
            pthread_cond_init(change, nil)
        }

        deinit {
            pthread_cond_destroy(change)
            pthread_mutex_destroy(mutex)
            change.deallocate()
            mutex.deallocate()
        }

        func startThread() -> Bool {
            #if os(Linux) || os(Android)
                var thread = pthread_t()
            #else
                var thread: pthread_t?
            #endif
            var attributes = pthread_attr_t()
            pthread_attr_init(&attributes)
            defer { pthread_attr_destroy(&attributes) }
            pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
            let context = Unmanaged.passRetained(self)
            let code = pthread_create(
                &thread, &attributes,
                { context in
                    #if os(Linux) || os(Android)
                        let pointer = context!
                    #else
                        let pointer = context
                    #endif
                    Unmanaged<Shared>.fromOpaque(pointer).takeRetainedValue().loop()
                    return nil
                }, context.toOpaque())
            if code != 0 { context.release() }
            return code == 0
        }

        private func loop() {
            pthread_mutex_lock(mutex)
            while true {
                if let work {
                    pthread_mutex_unlock(mutex)
                    work()
                    pthread_mutex_lock(mutex)
                    self.work = nil
                    pthread_cond_broadcast(change)
                } else if isEnding {
                    break
                } else {
                    pthread_cond_wait(change, mutex)
                }
            }
            pthread_mutex_unlock(mutex)
        }

        func submit(_ new: @escaping @Sendable () -> Void) {
            pthread_mutex_lock(mutex)
            precondition(work == nil, "the thread has work that nobody waited for")
            work = new
            pthread_cond_broadcast(change)
            pthread_mutex_unlock(mutex)
        }

        func waitUntilIdle() {
            pthread_mutex_lock(mutex)
            while work != nil { pthread_cond_wait(change, mutex) }
            pthread_mutex_unlock(mutex)
        }

        func end() {
            pthread_mutex_lock(mutex)
            isEnding = true
            pthread_cond_broadcast(change)
            pthread_mutex_unlock(mutex)
        }
    }
}
