/// Where things lie in a bundle. `schemas/README.md` is the normative text; all numbers are little-endian.
package enum FileLayout {
    /// The first byte is no ASCII and no UTF-8, and line ends are in it, so that a transfer that
    /// changes text shows at once.
    package static let magic: [UInt8] = [0x89, 0x53, 0x50, 0x4B, 0x0D, 0x0A, 0x1A, 0x0A]
    package static let headerBytes = 32
    package static let sectionEntryBytes = 64
    package static let maximumSectionCount = 16
    package static let sectionAlignment = 64
    /// The largest page size of the systems that Statepack runs on.
    package static let weightsAlignment = 64 << 10
    package static let tensorAlignment = 64
    /// Offset of the checksum of header and section table; its own four bytes are not part of it.
    static let headerChecksumOffset = 28

    package static func align(_ offset: Int, to alignment: Int) -> Int {
        (offset + alignment - 1) / alignment * alignment
    }
}

/// A part of a bundle. Sections lie in the file in this order.
package enum SectionKind: UInt32, Hashable, Sendable, CaseIterable, Comparable {
    /// `BundleProgram`.
    case program = 1
    /// The stored tensors.
    case weights = 2
    /// The bytes of program.proto's `Recording`.
    case recording = 3
    /// `SourceMap`: what `Instruction.source` indexes.
    case sourceMap = 4

    package static func < (a: SectionKind, b: SectionKind) -> Bool { a.rawValue < b.rawValue }

    package var name: String {
        switch self {
        case .program: "program"
        case .weights: "weights"
        case .recording: "recording"
        case .sourceMap: "source map"
        }
    }

    var alignment: Int { self == .weights ? FileLayout.weightsAlignment : FileLayout.sectionAlignment }

    /// Set on what a reader must understand to run the program: one that does not know the kind
    /// refuses the file, where it skips an unknown section without the flag.
    var flags: UInt32 { self == .program || self == .weights ? SectionEntry.requiredFlag : 0 }
}

/// One row of the section table.
package struct SectionEntry: Hashable, Sendable {
    static let requiredFlag: UInt32 = 1

    /// Raw, since a reader skips kinds of later minor versions.
    package var kind: UInt32
    package var flags: UInt32
    package var offset: Int
    package var length: Int
    package var checksum: UInt32
    package var digest: [UInt8]

    package var name: String { SectionKind(rawValue: kind)?.name ?? "kind \(kind)" }

    var encoded: [UInt8] {
        littleEndian(kind) + littleEndian(flags) + littleEndian(UInt64(offset)) + littleEndian(UInt64(length))
            + littleEndian(checksum) + littleEndian(UInt32(0)) + digest
    }
}

func littleEndian<Number: FixedWidthInteger>(_ value: Number) -> [UInt8] {
    (0..<Number.bitWidth / 8).map { UInt8(truncatingIfNeeded: value >> Number($0 * 8)) }
}

/// A SHA-256 under way. The caller brings it: the runtime must not depend on a cryptography library.
package struct IncrementalDigest {
    /// May return before the bytes are read: they stay as they are until `wait` has returned.
    package var update: (UnsafeRawBufferPointer) -> Void
    package var wait: () -> Void
    /// The 32 bytes; called once, last.
    package var finish: () -> [UInt8]

    package init(
        update: @escaping (UnsafeRawBufferPointer) -> Void, wait: @escaping () -> Void = {},
        finish: @escaping () -> [UInt8]
    ) {
        self.update = update
        self.wait = wait
        self.finish = finish
    }
}
