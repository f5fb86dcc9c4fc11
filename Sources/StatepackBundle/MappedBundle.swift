package import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// A bundle in memory, checked.
///
/// Opening checks the header, the section table, the padding between sections and the whole program;
/// it reads no weights. What it hands out holds for as long as the instance lives.
///
/// NOTE: a mapped file that somebody truncates takes the process down (SIGBUS) at the next weight that
/// is read. `Access.copied` reads the file once and is safe from that, for its size in memory.
package final class MappedBundle: @unchecked Sendable {
    package enum Access: Hashable, Sendable {
        case mapped
        case copied
    }

    package let path: String
    /// The whole file.
    package let bytes: UnsafeRawBufferPointer
    package let formatMajor: Int
    package let formatMinor: Int
    package let sections: [SectionEntry]
    package let program: BundleProgram
    /// Module paths and source lines that `Instruction.source` indexes.
    package let sources: [String]
    private let release: @Sendable () -> Void

    /// Costs the length of header, program and source map. Throws everything it found.
    package convenience init(path: String, access: Access = .mapped) throws(DiagnosticList) {
        do throws(Diagnostic) {
            let (bytes, release) = try Self.load(path, access)
            try self.init(path: path, bytes: bytes, release: release)
        } catch {
            throw DiagnosticList([error])
        }
        let findings = program.findings(weightsLength: weights.count, sourceCount: sources.count, file: path)
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    /// `bytes` must outlive the instance and start at a multiple of 64; for tests and fuzzing.
    package convenience init(path: String, unowned bytes: UnsafeRawBufferPointer) throws(DiagnosticList) {
        do throws(Diagnostic) {
            try self.init(path: path, bytes: bytes, release: {})
        } catch {
            throw DiagnosticList([error])
        }
        let findings = program.findings(weightsLength: weights.count, sourceCount: sources.count, file: path)
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    private init(
        path: String, bytes: UnsafeRawBufferPointer, release: @escaping @Sendable () -> Void
    ) throws(Diagnostic) {
        self.path = path
        self.bytes = bytes
        self.release = release
        do throws(Diagnostic) {
            let layout = try LayoutReader(path: path, bytes: bytes).read()
            formatMajor = layout.major
            formatMinor = layout.minor
            sections = layout.sections
            func section(_ kind: SectionKind) -> UnsafeRawBufferPointer {
                guard let entry = layout.sections.first(where: { $0.kind == kind.rawValue }) else {
                    return UnsafeRawBufferPointer(start: nil, count: 0)
                }
                return UnsafeRawBufferPointer(rebasing: bytes[entry.offset..<entry.offset + entry.length])
            }
            func start(_ kind: SectionKind) -> Int {
                layout.sections.first { $0.kind == kind.rawValue }?.offset ?? 0
            }
            // The program is small, so its checksum costs nothing next to decoding it.
            if let entry = layout.sections.first(where: { $0.kind == SectionKind.program.rawValue }),
                let fault = Self.checksumFault(entry, bytes, path)
            {
                throw fault
            }
            do throws(WireFault) {
                program = try BundleProgram(decoding: section(.program), formatMinor: layout.minor)
            } catch {
                throw error.diagnostic(file: path, section: .program, sectionOffset: start(.program))
            }
            do throws(WireFault) {
                sources = try SourceMap.decode(
                    section(.sourceMap), skippingUnknownFields: layout.minor > Int(BundleProgram.formatMinor))
            } catch {
                throw error.diagnostic(file: path, section: .sourceMap, sectionOffset: start(.sourceMap))
            }
        } catch {
            release()
            throw error
        }
    }

    deinit { release() }

    /// The bytes of a section; empty when the bundle has none of that kind.
    package func section(_ kind: SectionKind) -> UnsafeRawBufferPointer {
        guard let entry = sections.first(where: { $0.kind == kind.rawValue }) else {
            return UnsafeRawBufferPointer(start: nil, count: 0)
        }
        return UnsafeRawBufferPointer(rebasing: bytes[entry.offset..<entry.offset + entry.length])
    }

    /// True when the bundle's minor version is newer than this reader: sections may have fields that it does not know.
    package var isNewerMinorVersion: Bool { formatMinor > Int(BundleProgram.formatMinor) }

    package var weights: UnsafeRawBufferPointer { section(.weights) }

    /// The bytes of program.proto's `Recording`; empty when none was kept.
    package var recording: UnsafeRawBufferPointer { section(.recording) }

    /// The bytes of a stored tensor, 64-byte aligned.
    package func bytes(ofTensor index: Int) -> UnsafeRawBufferPointer {
        let tensor = program.tensors[index]
        if tensor.length == 0 { return UnsafeRawBufferPointer(start: nil, count: 0) }
        return UnsafeRawBufferPointer(rebasing: weights[tensor.offset..<tensor.offset + tensor.length])
    }

    // MARK: Bytes against table

    private static func checksumFault(
        _ entry: SectionEntry, _ bytes: UnsafeRawBufferPointer, _ path: String
    ) -> Diagnostic? {
        let found = checksum(UnsafeRawBufferPointer(rebasing: bytes[entry.offset..<entry.offset + entry.length]))
        if found == entry.checksum { return nil }
        return Diagnostic(
            .bundleChecksum, "section \(entry.name) does not have the checksum in the table",
            at: "\(path), section \(entry.name), offset \(entry.offset)",
            expected: hexadecimal(littleEndian(entry.checksum)),
            found: hexadecimal(littleEndian(found)), hint: "the file was damaged: copy it again or convert again")
    }

    /// Compares each section with its CRC-32C. Reads the whole file once.
    package func checksumFindings() -> [Diagnostic] {
        sections.compactMap { Self.checksumFault($0, bytes, path) }
    }

    /// Compares each section with its SHA-256, and the gaps between tensors with zero. Reads the whole file once.
    package func digestFindings(using makeDigest: () -> IncrementalDigest) -> [Diagnostic] {
        var findings: [Diagnostic] = []
        for entry in sections {
            let digest = makeDigest()
            digest.update(UnsafeRawBufferPointer(rebasing: bytes[entry.offset..<entry.offset + entry.length]))
            let found = digest.finish()
            if found != entry.digest {
                findings.append(
                    Diagnostic(
                        .bundleDigest, "section \(entry.name) does not have the SHA-256 in the table",
                        at: "\(path), section \(entry.name), offset \(entry.offset)",
                        expected: hexadecimal(entry.digest),
                        found: hexadecimal(found), hint: "the file was damaged: copy it again or convert again"))
            }
        }
        var end = 0
        for tensor in program.tensors {
            if let gap = weights[end..<tensor.offset].firstIndex(where: { $0 != 0 }) {
                findings.append(
                    Diagnostic(
                        .bundlePadding, "a byte between two tensors is not zero",
                        at: "\(path), section weights, offset \(gap)", expected: "0", found: "\(weights[gap])"))
            }
            end = tensor.offset + tensor.length
        }
        return findings
    }

    // MARK: Loading

    private static func load(
        _ path: String, _ access: Access
    ) throws(Diagnostic) -> (UnsafeRawBufferPointer, @Sendable () -> Void) {
        // Without O_NONBLOCK a named pipe would wait for a writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        if descriptor < 0 { throw openFailure(path, errno) }
        defer { close(descriptor) }
        var status = stat()
        if fstat(descriptor, &status) != 0 { throw openFailure(path, errno) }
        guard status.st_mode & S_IFMT == S_IFREG else {
            let what = status.st_mode & S_IFMT == S_IFDIR ? "a directory" : "no regular file"
            throw Diagnostic(
                .bundleIsNotAFile, "the bundle is \(what)", at: path, expected: "a *.statepack file", found: what)
        }
        let length = Int(status.st_size)
        guard length > 0 else {
            throw Diagnostic(
                .bundleEmpty, "the bundle is empty", at: path, expected: "\(FileLayout.headerBytes) bytes or more",
                found: "0 bytes", hint: "convert again: a finished convert never leaves an empty file")
        }
        switch access {
        case .mapped:
            guard let address = mmap(nil, length, PROT_READ, MAP_PRIVATE, descriptor, 0), address != MAP_FAILED else {
                throw openFailure(path, errno)
            }
            let mapping = Mapping(address: address, length: length)
            return (UnsafeRawBufferPointer(start: address, count: length), { munmap(mapping.address, mapping.length) })
        case .copied:
            var memory: UnsafeMutableRawPointer?
            guard posix_memalign(&memory, FileLayout.weightsAlignment, length) == 0, let memory else {
                throw openFailure(path, ENOMEM)
            }
            let mapping = Mapping(address: memory, length: length)
            var done = 0
            while done < length {
                let count = pread(descriptor, memory + done, min(length - done, 1 << 30), off_t(done))
                if count < 0, errno == EINTR { continue }
                if count <= 0 {
                    let code = count < 0 ? errno : EIO
                    free(memory)
                    throw openFailure(path, code)
                }
                done += count
            }
            return (UnsafeRawBufferPointer(start: memory, count: length), { free(mapping.address) })
        }
    }

    private struct Mapping: @unchecked Sendable {
        var address: UnsafeMutableRawPointer
        var length: Int
    }

    private static func openFailure(_ path: String, _ code: Int32) -> Diagnostic {
        switch code {
        case ENOENT, ENOTDIR:
            Diagnostic(.bundleNotFound, "there is no such bundle", at: path, hint: "check the path")
        case EACCES, EPERM:
            Diagnostic(
                .bundleNotPermitted, "the bundle may not be read by this user", at: path,
                hint: "change the permissions of the file or of the folders above it")
        default:
            Diagnostic(.bundleUnreadable, "the bundle cannot be read: \(systemMessage(code))", at: path)
        }
    }
}

func hexadecimal(_ bytes: some Sequence<UInt8>) -> String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
}

extension WireFault {
    fileprivate func diagnostic(file: String, section: SectionKind, sectionOffset: Int) -> Diagnostic {
        let code: Diagnostic.Code =
            switch kind {
            case .malformed: .bundleProgramMalformed
            case .limit: .bundleProgramLimit
            case .unknownValue: .bundleValueUnknown
            case .name: .bundleName
            case .size: .bundleSize
            case .storage: .bundleStorage
            }
        return Diagnostic(
            code, message, at: "\(file), section \(section.name), offset \(sectionOffset + offset)",
            expected: expected, found: found)
    }
}

/// A program section by itself, for tests and fuzzing: no header, no checksum.
package enum ProgramSection {
    /// The program, read but not checked yet.
    package static func program(_ bytes: UnsafeRawBufferPointer) throws(DiagnosticList) -> BundleProgram {
        do throws(WireFault) {
            return try BundleProgram(decoding: bytes)
        } catch {
            throw DiagnosticList([error.diagnostic(file: "section", section: .program, sectionOffset: 0)])
        }
    }

    /// What reading and checking the section finds; empty when a bundle with it would open.
    package static func findings(
        _ bytes: UnsafeRawBufferPointer, weightsLength: Int, sourceCount: Int,
        formatMinor: Int = Int(BundleProgram.formatMinor)
    ) -> [Diagnostic] {
        do throws(WireFault) {
            let program = try BundleProgram(decoding: bytes, formatMinor: formatMinor)
            return program.findings(weightsLength: weightsLength, sourceCount: sourceCount, file: "section")
        } catch {
            return [error.diagnostic(file: "section", section: .program, sectionOffset: 0)]
        }
    }
}
