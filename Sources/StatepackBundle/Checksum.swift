import CStatepackKernels

/// CRC-32C of bytes, continuing from `seed`.
func checksum(_ bytes: UnsafeRawBufferPointer, continuing seed: UInt32 = 0) -> UInt32 {
    sp_crc32c(seed, bytes.baseAddress, bytes.count)
}

/// Checksum of header and section table, without the four bytes that hold it.
func headerChecksum(_ bytes: UnsafeRawBufferPointer) -> UInt32 {
    let before = checksum(UnsafeRawBufferPointer(rebasing: bytes[..<FileLayout.headerChecksumOffset]))
    return checksum(
        UnsafeRawBufferPointer(rebasing: bytes[(FileLayout.headerChecksumOffset + 4)...]), continuing: before)
}
