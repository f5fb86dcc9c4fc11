package import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// Writes a bundle, section by section, into a temporary file beside its path and renames it at the end.
///
/// A file that stood at the path stays as it was until `finish` has written and flushed every byte, so
/// neither a reader that maps the old one nor a full disk can see half a bundle. A writer that goes away
/// without `finish`, on a throw for example, removes its temporary file. On Linux that file has no name before
/// `finish`, so that a killed process leaves nothing either.
///
///     var writer = try BundleWriter(path: path, sections: [.program, .weights], digest: sha256)
///     try writer.begin(.program)
///     try writer.append(program.encoded())
///     try writer.begin(.weights)
///     for tensor in tensors { try writer.appendTensor(tensor.bytes) }
///     try writer.finish()
///
/// Weights pass through in pieces of any size; a few hundred KiB are held.
package struct BundleWriter: ~Copyable {
    private let path: String
    private let temporaryPath: String
    /// Whether the file is still without a name.
    private var isUnnamed: Bool
    private let actions: FileActions
    private var descriptor: Int32
    private let makeDigest: () -> IncrementalDigest
    private let sections: [SectionKind]
    private var entries: [SectionEntry] = []
    private var digest: IncrementalDigest?
    private var buffer: [UInt8] = []
    /// Where the next byte goes, from the start of the file, buffered ones included.
    private var offset: Int
    private static let bufferBytes = 256 << 10

    /// Creates the temporary file. `sections` are all that will be written, in order of kind.
    /// `reserving` is the file's expected length: a disk that is too full is noticed at once.
    package init(
        path: String, sections: [SectionKind], reserving expectedLength: Int = 0, actions: FileActions = FileActions(),
        digest: @escaping () -> IncrementalDigest
    ) throws(Diagnostic) {
        precondition(zip(sections, sections.dropFirst()).allSatisfy { $0 < $1 }, "sections come in order of kind")
        if let obstacle = outputObstacle(at: path) {
            throw Diagnostic(
                .bundleWriteFailed, "cannot create the bundle: \(obstacle)", at: path, hint: "name a file")
        }
        var folder = ""
        if let slash = path.lastIndex(of: "/") { folder = String(path[...slash]) }
        let random = String(UInt64.random(in: .min ... .max), radix: 16)
        let temporaryPath = folder + ".statepack-" + random + ".tmp"
        // Before anything has this name, so that no moment is left between the two.
        Interruption.watch(temporaryPath)
        var descriptor = actions.createUnnamed(folder.isEmpty ? "." : folder)
        let isUnnamed = descriptor >= 0
        if !isUnnamed { descriptor = actions.create(temporaryPath) }
        if descriptor < 0 {
            let code = errno
            Interruption.forget(temporaryPath)
            throw Self.failure("create", path, code)
        }
        // Best effort: a file system that cannot reserve says so, and then writing finds out.
        if expectedLength > 0, actions.reserve(descriptor, expectedLength) != 0, errno == ENOSPC || errno == EDQUOT {
            let code = errno
            close(descriptor)
            if !isUnnamed { unlink(temporaryPath) }
            Interruption.forget(temporaryPath)
            throw Self.failure("write", path, code)
        }
        self.init(
            path: path, temporaryPath: temporaryPath, isUnnamed: isUnnamed, actions: actions, descriptor: descriptor,
            sections: sections, makeDigest: digest)
    }

    private init(
        path: String, temporaryPath: String, isUnnamed: Bool, actions: FileActions, descriptor: Int32,
        sections: [SectionKind], makeDigest: @escaping () -> IncrementalDigest
    ) {
        self.path = path
        self.temporaryPath = temporaryPath
        self.isUnnamed = isUnnamed
        self.actions = actions
        self.descriptor = descriptor
        self.sections = sections
        self.makeDigest = makeDigest
        offset = FileLayout.headerBytes + FileLayout.sectionEntryBytes * sections.count
    }

    deinit {
        if descriptor >= 0 {
            close(descriptor)
            if !isUnnamed { unlink(temporaryPath) }
            Interruption.forget(temporaryPath)
        }
    }

    private static func failure(_ act: String, _ path: String, _ code: Int32) -> Diagnostic {
        if code == ENOSPC || code == EDQUOT {
            return Diagnostic(
                .bundleDiskFull, "cannot \(act) the bundle: no space is left", at: path,
                hint: "free space or write elsewhere; a former file is left as it was")
        }
        return Diagnostic(
            .bundleWriteFailed, "cannot \(act) the bundle: \(systemMessage(code))", at: path,
            hint: code == ENOENT ? "create the folder first" : nil)
    }

    /// Ends the section before, if any, and starts the next.
    package mutating func begin(_ kind: SectionKind) throws(Diagnostic) {
        precondition(entries.count < sections.count && sections[entries.count] == kind, "sections come as announced")
        try endSection()
        let start = FileLayout.align(offset, to: kind.alignment)
        // Padding belongs to no section. What lies before the first one is written with the header.
        if !entries.isEmpty { try write([UInt8](repeating: 0, count: start - offset), at: offset) }
        offset = start
        digest = makeDigest()
        entries.append(
            SectionEntry(kind: kind.rawValue, flags: kind.flags, offset: offset, length: 0, checksum: 0, digest: []))
    }

    /// Appends to the section. Large pieces are written at once, small ones are gathered.
    package mutating func append(_ bytes: UnsafeRawBufferPointer) throws(Diagnostic) {
        precondition(digest != nil, "a section must begin first")
        if buffer.count + bytes.count > Self.bufferBytes { try flush() }
        if bytes.count > Self.bufferBytes {
            try emit(bytes, at: offset)
        } else {
            buffer.append(contentsOf: bytes)
        }
        offset += bytes.count
    }

    package mutating func append(_ bytes: [UInt8]) throws(Diagnostic) {
        var result: Result<Void, Diagnostic> = .success(())
        bytes.withUnsafeBytes { raw in
            do throws(Diagnostic) { try append(raw) } catch { result = .failure(error) }
        }
        try result.get()
    }

    /// Appends zeros until the section's length is a multiple of `alignment`, which divides the
    /// section's own alignment.
    package mutating func pad(to alignment: Int = FileLayout.tensorAlignment) throws(Diagnostic) {
        let start = entries[entries.count - 1].offset
        let length = offset - start
        try append([UInt8](repeating: 0, count: FileLayout.align(length, to: alignment) - length))
    }

    private mutating func endSection() throws(Diagnostic) {
        guard !entries.isEmpty else { return }
        try flush()
        let last = entries.count - 1
        entries[last].length = offset - entries[last].offset
        precondition(entries[last].length > 0, "a section without bytes is left out")
        entries[last].digest = digest!.finish()
        precondition(entries[last].digest.count == 32, "a digest has 32 bytes")
        digest = nil
    }

    private mutating func flush() throws(Diagnostic) {
        if buffer.isEmpty { return }
        let pending = buffer
        buffer.removeAll(keepingCapacity: true)
        let start = offset - pending.count
        var result: Result<Void, Diagnostic> = .success(())
        pending.withUnsafeBytes { raw in
            do throws(Diagnostic) { try emit(raw, at: start) } catch { result = .failure(error) }
        }
        try result.get()
    }

    /// Writes section bytes and takes them into checksum and digest.
    private mutating func emit(_ bytes: UnsafeRawBufferPointer, at position: Int) throws(Diagnostic) {
        let last = entries.count - 1
        digest!.update(bytes)
        defer { digest!.wait() }
        entries[last].checksum = StatepackBundle.checksum(bytes, continuing: entries[last].checksum)
        try write(bytes, at: position)
    }

    private func write(_ bytes: [UInt8], at position: Int) throws(Diagnostic) {
        var result: Result<Void, Diagnostic> = .success(())
        bytes.withUnsafeBytes { raw in
            do throws(Diagnostic) { try write(raw, at: position) } catch { result = .failure(error) }
        }
        try result.get()
    }

    private func write(_ bytes: UnsafeRawBufferPointer, at position: Int) throws(Diagnostic) {
        var done = 0
        while done < bytes.count {
            // Linux writes at most 2 GiB at once, and Darwin refuses more.
            let piece = min(bytes.count - done, 1 << 30)
            let count = actions.write(
                descriptor, UnsafeRawBufferPointer(rebasing: bytes[done..<done + piece]), position + done)
            if count < 0, errno == EINTR { continue }
            if count <= 0 { throw Self.failure("write", path, count < 0 ? errno : EIO) }
            done += count
        }
        // A full block goes on to the disk while the next one is made, so that little is left to flush at the end.
        if bytes.count >= Self.bufferBytes { actions.startFlushing(descriptor, position, bytes.count) }
    }

    /// Writes header and table, flushes the file to disk and gives it its name.
    package consuming func finish() throws(Diagnostic) {
        precondition(entries.count == sections.count, "announced sections are missing")
        try endSection()
        var header = FileLayout.magic
        header += littleEndian(BundleProgram.formatMajor) + littleEndian(BundleProgram.formatMinor)
        header += littleEndian(UInt64(offset)) + littleEndian(UInt32(entries.count)) + littleEndian(UInt32(0))
        for entry in entries { header += entry.encoded }
        let sum = header.withUnsafeBytes { headerChecksum($0) }
        header.replaceSubrange(
            FileLayout.headerChecksumOffset..<FileLayout.headerChecksumOffset + 4, with: littleEndian(sum))
        // Between the table and the first section.
        header += [UInt8](repeating: 0, count: (entries.first?.offset ?? header.count) - header.count)
        try write(header, at: 0)
        if actions.truncate(descriptor, offset) != 0 { throw Self.failure("write", path, errno) }
        if actions.sync(descriptor) != 0 { throw Self.failure("write", path, errno) }
        try name()
        Interruption.forget(temporaryPath)
        let finished = descriptor
        descriptor = -1
        // The bytes are on disk; an error here could only be about the descriptor itself.
        close(finished)
        syncFolder()
    }

    /// Gives the file its name. Where nothing stands yet, in one step, so that even `kill -9` leaves no other name.
    private mutating func name() throws(Diagnostic) {
        if isUnnamed {
            if actions.link(descriptor, path) == 0 { return }
            if errno != EEXIST || actions.link(descriptor, temporaryPath) != 0 {
                throw Self.failure("name", path, errno)
            }
            isUnnamed = false
        }
        if actions.replace(temporaryPath, path) != 0 { throw Self.failure("name", path, errno) }
    }

    /// Makes the new name last through a power failure, where the system lets a folder be flushed.
    private func syncFolder() {
        var folder = "."
        if let slash = path.lastIndex(of: "/") { folder = String(path[...slash]) }
        let descriptor = open(folder, O_RDONLY | O_CLOEXEC)
        if descriptor >= 0 {
            fsync(descriptor)
            close(descriptor)
        }
    }
}
