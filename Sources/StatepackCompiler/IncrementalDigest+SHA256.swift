package import StatepackBundle

extension IncrementalDigest {
    /// SHA-256 for the bundle's writer and checker: the runtime links no digest, the tools do.
    package static func sha256() -> IncrementalDigest {
        let state = State()
        return IncrementalDigest(update: state.update, finish: state.finish)
    }

    private final class State {
        private var digest: SHA256Digest? = SHA256Digest()

        func update(_ bytes: UnsafeRawBufferPointer) { digest?.update(bytes) }

        func finish() -> [UInt8] { digest.take()?.finish() ?? [] }
    }
}
