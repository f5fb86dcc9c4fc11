import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// A bundle whose weights are a hole in the file: as large as wished, without as many bytes on disk.
///
/// Header and program are right; checksum and SHA-256 of the weights are not, and nothing but a check of them reads
/// a weight.
enum SparseBundle {
    static func write(program: [UInt8], weightsLength: Int, to path: String) throws {
        var writer = try BundleWriter(path: path, sections: [.program, .weights], digest: IncrementalDigest.sha256)
        try writer.begin(.program)
        try writer.append(program)
        try writer.begin(.weights)
        try writer.append([UInt8](repeating: 0, count: 64))
        try writer.finish()
        // The weights are the last section, so that only lengths change.
        var bytes = try Golden.bytes(path)
        let start = bytes.count - 64
        func put(_ value: Int, _ count: Int, at offset: Int) {
            for index in 0..<count { bytes[offset + index] = UInt8(truncatingIfNeeded: value >> (8 * index)) }
        }
        put(start + weightsLength, 8, at: 16)
        put(weightsLength, 8, at: FileLayout.headerBytes + FileLayout.sectionEntryBytes + 16)
        let tableEnd = FileLayout.headerBytes + 2 * FileLayout.sectionEntryBytes
        put(Int(crc32c(bytes[..<28] + bytes[32..<tableEnd])), 4, at: 28)
        guard let stream = fopen(path, "r+") else { throw Golden.Unreadable(path: path) }
        defer { fclose(stream) }
        fwrite(bytes, 1, tableEnd, stream)
        fflush(stream)
        #if canImport(Glibc)
            let status = ftruncate(fileno(stream), start + weightsLength)
        #else
            let status = ftruncate(fileno(stream), off_t(start + weightsLength))
        #endif
        if status != 0 { throw Golden.Unreadable(path: path) }
    }

    /// Bit by bit: the header is short.
    private static func crc32c(_ bytes: ArraySlice<UInt8>) -> UInt32 {
        var sum: UInt32 = 0xFFFF_FFFF
        for byte in bytes {
            sum ^= UInt32(byte)
            for _ in 0..<8 { sum = sum & 1 == 1 ? sum >> 1 ^ 0x82F6_3B78 : sum >> 1 }
        }
        return ~sum
    }
}
