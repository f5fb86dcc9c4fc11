package import StatepackBundle

extension IncrementalDigest {
    /// SHA-256 for the bundle's writer and checker: the runtime links no digest, the tools do.
    package static func sha256() -> IncrementalDigest {
        let state = State()
        return IncrementalDigest(update: state.update, finish: state.finish)
    }

    /// The same computed on a thread of its own: `update` returns at once, and `wait` when the bytes may change.
    package static func sha256InBackground() -> IncrementalDigest {
        let state = State()
        let thread = BackgroundThread()
        return IncrementalDigest(
            update: { bytes in
                nonisolated(unsafe) let bytes = bytes
                thread.start { state.update(bytes) }
            },
            wait: thread.wait, finish: state.finish)
    }

    // NOTE: never used by two threads at once; `wait` comes between any two uses.
    private final class State: @unchecked Sendable {
        private var digest: SHA256Digest? = SHA256Digest()

        func update(_ bytes: UnsafeRawBufferPointer) { digest?.update(bytes) }

        func finish() -> [UInt8] { digest.take()?.finish() ?? [] }
    }
}
