#if canImport(CryptoKit) && !canImport(CLibcrypto)
    internal import CryptoKit
#else
    internal import CLibcrypto
#endif

/// SHA-256, of bytes at once or piece by piece. libcrypto computes it (CryptoKit on Apple platforms without it).
package struct SHA256Digest: ~Copyable {
    #if canImport(CryptoKit) && !canImport(CLibcrypto)
        private var hash = SHA256()

        package init() {}

        package mutating func update(_ bytes: UnsafeRawBufferPointer) { hash.update(bufferPointer: bytes) }

        /// The digest of everything so far, 32 bytes.
        package consuming func finish() -> [UInt8] { Array(hash.finalize()) }
    #else
        private let context: OpaquePointer

        package init() {
            // Neither fails but for lack of memory, or of SHA-256 in libcrypto.
            guard let context = EVP_MD_CTX_new(), EVP_DigestInit_ex(context, EVP_sha256(), nil) == 1 else {
                fatalError("libcrypto has no SHA-256")
            }
            self.context = context
        }

        deinit { EVP_MD_CTX_free(context) }

        package mutating func update(_ bytes: UnsafeRawBufferPointer) {
            EVP_DigestUpdate(context, bytes.baseAddress, bytes.count)
        }

        /// The digest of everything so far, 32 bytes.
        package consuming func finish() -> [UInt8] {
            var digest = [UInt8](repeating: 0, count: 32)
            EVP_DigestFinal_ex(context, &digest, nil)
            return digest
        }
    #endif

    package static func of(_ bytes: UnsafeRawBufferPointer) -> [UInt8] {
        var digest = SHA256Digest()
        digest.update(bytes)
        return digest.finish()
    }
}
