internal import StatepackDiagnostics

/// Reads and checks header, section table and padding.
struct LayoutReader {
    struct Layout {
        var major: Int
        var minor: Int
        var sections: [SectionEntry]
    }

    let path: String
    let bytes: UnsafeRawBufferPointer

    private func at(_ offset: Int) -> String { "\(path), offset \(offset)" }

    private func number<Number: FixedWidthInteger>(_ offset: Int, as: Number.Type) -> Number {
        Number(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: Number.self))
    }

    private func truncated(expected: String) -> Diagnostic {
        Diagnostic(
            .bundleTruncated, "the bundle is cut off", at: path, expected: expected, found: "\(bytes.count) bytes",
            hint: "copy the file again or convert again")
    }

    /// The order matters: magic and major version mean the same in every version, the rest of the header
    /// is only read when its version is known, and fields are only believed once the checksum holds.
    func read() throws(Diagnostic) -> Layout {
        try checkMagic()
        guard bytes.count >= 12 else { throw truncated(expected: "\(FileLayout.headerBytes) bytes or more") }
        let major = number(8, as: UInt32.self)
        guard major <= BundleProgram.formatMajor else {
            throw Diagnostic(
                .bundleTooNew, "the bundle has a newer format than this version of statepack reads", at: at(8),
                expected: "format \(BundleProgram.formatMajor)", found: "format \(major)",
                hint: "update statepack, or convert again with this version")
        }
        guard bytes.count >= FileLayout.headerBytes else {
            throw truncated(expected: "\(FileLayout.headerBytes) bytes or more")
        }
        let count = Int(number(24, as: UInt32.self))
        guard count >= 1, count <= FileLayout.maximumSectionCount else {
            throw Diagnostic(
                .bundleHeaderMalformed, "the number of sections is invalid", at: at(24),
                expected: "1 to \(FileLayout.maximumSectionCount)", found: "\(count)")
        }
        let tableEnd = FileLayout.headerBytes + count * FileLayout.sectionEntryBytes
        guard bytes.count >= tableEnd else { throw truncated(expected: "\(tableEnd) bytes or more") }
        let stored = number(FileLayout.headerChecksumOffset, as: UInt32.self)
        let computed = headerChecksum(UnsafeRawBufferPointer(rebasing: bytes[..<tableEnd]))
        guard stored == computed else {
            throw Diagnostic(
                .bundleHeaderChecksum, "header and section table do not have their checksum",
                at: at(FileLayout.headerChecksumOffset), expected: hexadecimal(littleEndian(stored)),
                found: hexadecimal(littleEndian(computed)), hint: "the file was damaged: copy it again or convert again"
            )
        }
        guard major >= 1 else {
            throw Diagnostic(
                .bundleHeaderMalformed, "the major version is invalid", at: at(8), expected: "1 or more", found: "0")
        }
        let length = number(16, as: UInt64.self)
        if length > UInt64(bytes.count) { throw truncated(expected: "\(length) bytes") }
        if length < UInt64(bytes.count) {
            throw Diagnostic(
                .bundleTrailingBytes, "bytes follow the end of the bundle", at: at(Int(length)),
                expected: "\(length) bytes", found: "\(bytes.count) bytes",
                hint: "copy the file again; nothing may be appended to a bundle")
        }
        let minor = Int(number(12, as: UInt32.self))
        let sections = try readTable(count: count, minor: minor)
        try checkPadding(sections, tableEnd: tableEnd)
        return Layout(major: Int(major), minor: minor, sections: sections)
    }

    private func checkMagic() throws(Diagnostic) {
        let start = bytes.prefix(FileLayout.magic.count)
        if start.elementsEqual(FileLayout.magic) { return }
        if FileLayout.magic.starts(with: start) { throw truncated(expected: "\(FileLayout.headerBytes) bytes or more") }
        let hint =
            if start.starts(with: FileLayout.magic.prefix(4)) || start.starts(with: [0x09, 0x53, 0x50, 0x4B]) {
                "the file was changed by a transfer in text mode: copy it again in binary mode"
            } else if start.first == 0x09, bytes.count >= 18, bytes[9] == 0x11 {
                "this looks like an exported program: convert it first"
            } else {
                "pass the *.statepack file that convert wrote"
            }
        throw Diagnostic(
            .notABundle, "the file is not a bundle", at: at(0), expected: "magic \(hexadecimal(FileLayout.magic))",
            found: hexadecimal(start), hint: hint)
    }

    private func readTable(count: Int, minor: Int) throws(Diagnostic) -> [SectionEntry] {
        var sections: [SectionEntry] = []
        var end = FileLayout.headerBytes + count * FileLayout.sectionEntryBytes
        for row in 0..<count {
            let base = FileLayout.headerBytes + row * FileLayout.sectionEntryBytes
            let kind = number(base, as: UInt32.self)
            let flags = number(base + 4, as: UInt32.self)
            let known = SectionKind(rawValue: kind)
            let name = known?.name ?? "kind \(kind)"
            func malformed(_ message: String, _ offset: Int, _ expected: String, _ found: String) -> Diagnostic {
                Diagnostic(
                    .bundleHeaderMalformed, message, at: "\(path), section table row \(row), offset \(base + offset)",
                    expected: expected, found: found)
            }
            guard kind > sections.last?.kind ?? 0 else {
                throw malformed(
                    "sections are not in order of kind", 0, "a kind above \(sections.last?.kind ?? 0)", "\(kind)")
            }
            if let known {
                guard flags == known.flags else {
                    throw malformed("the flags of section \(name) are invalid", 4, "\(known.flags)", "\(flags)")
                }
            } else {
                guard minor > Int(BundleProgram.formatMinor), flags == 0 else {
                    throw malformed(
                        "a section is unknown to this version of statepack", 0,
                        "kind 1 to \(SectionKind.allCases.count)", "kind \(kind), flags \(flags)")
                }
            }
            guard number(base + 28, as: UInt32.self) == 0 else {
                throw malformed(
                    "a reserved field of section \(name) is not zero", 28, "0", "\(number(base + 28, as: UInt32.self))")
            }
            let (offset, length) = (number(base + 8, as: UInt64.self), number(base + 16, as: UInt64.self))
            let place = FileLayout.align(end, to: known?.alignment ?? FileLayout.sectionAlignment)
            // Both are compared with the file's length before they are added, so that no sum overflows.
            guard offset == UInt64(place), length > 0, length <= UInt64(bytes.count),
                place <= bytes.count, Int(length) <= bytes.count - place
            else {
                throw Diagnostic(
                    .bundleSectionRange, "section \(name) does not lie where the format puts it",
                    at: "\(path), section \(name), offset \(base + 8)",
                    expected: "offset \(place), length 1 to \(max(0, bytes.count - place))",
                    found: "offset \(offset), length \(length)")
            }
            end = place + Int(length)
            sections.append(
                SectionEntry(
                    kind: kind, flags: flags, offset: place, length: Int(length),
                    checksum: number(base + 24, as: UInt32.self),
                    digest: Array(bytes[base + 32..<base + 64])))
        }
        guard end == bytes.count else {
            throw Diagnostic(
                .bundleSectionRange, "the last section does not end at the end of the file", at: at(end),
                expected: "\(bytes.count)", found: "\(end)")
        }
        guard sections.first?.kind == SectionKind.program.rawValue else {
            throw Diagnostic(
                .bundleHeaderMalformed, "the bundle has no program section", at: at(FileLayout.headerBytes),
                expected: "kind 1", found: "kind \(sections.first?.kind ?? 0)")
        }
        return sections
    }

    private func checkPadding(_ sections: [SectionEntry], tableEnd: Int) throws(Diagnostic) {
        var end = tableEnd
        for section in sections {
            if let offset = bytes[end..<section.offset].firstIndex(where: { $0 != 0 }) {
                throw Diagnostic(
                    .bundlePadding, "a byte before section \(section.name) is not zero", at: at(offset), expected: "0",
                    found: "\(bytes[offset])")
            }
            end = section.offset + section.length
        }
    }
}
