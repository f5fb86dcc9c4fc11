internal import CStatepackKernels
internal import Synchronization

/// The threads that kernels share. Models with the same thread count use the same pool, so that ten open models
/// do not start ten pools for two processors.
final class ThreadPool: @unchecked Sendable {
    let handle: OpaquePointer?
    let threadCount: Int

    private init(threadCount: Int) {
        self.threadCount = threadCount
        // NOTE: one thread needs no pool; kernels take a null pool for "the caller alone".
        handle = threadCount > 1 ? sp_pool_create(UInt32(threadCount)) : nil
    }

    deinit {
        if let handle { sp_pool_destroy(handle) }
    }

    private struct Weak {
        weak var pool: ThreadPool?
    }

    private static let pools = Mutex<[Int: Weak]>([:])

    /// The pool of that many threads; nil asks for as many as affinity mask and control group allow.
    static func shared(threadCount: Int?) -> ThreadPool {
        let count = max(1, min(threadCount ?? Int(sp_available_threads()), 1024))
        return pools.withLock { pools in
            if let pool = pools[count]?.pool { return pool }
            let pool = ThreadPool(threadCount: count)
            pools[count] = Weak(pool: pool)
            return pool
        }
    }
}
