internal import CProtobufC
@preconcurrency internal import CStatepackSchema
internal import StatepackBundle
package import StatepackDiagnostics
package import StatepackIR

#if canImport(Darwin)
    internal import Darwin
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Glibc
#endif

/// Where the bytes of stored tensors are read.
package protocol TensorSource: Sendable {
    /// Row-major little-endian elements, valid during the call.
    func withBytes<R>(of tensor: Program.StoredTensor, _ body: (UnsafeRawBufferPointer) throws -> R) throws -> R
}

/// Inline tensors, and those of the weights file, mapped.
package struct ImportedWeights: TensorSource {
    let file: Safetensors?

    /// Without a file only inline tensors can be read.
    package init(file: Safetensors? = nil) { self.file = file }

    package func withBytes<R>(
        of tensor: Program.StoredTensor, _ body: (UnsafeRawBufferPointer) throws -> R
    ) throws -> R {
        switch tensor.data {
        case .inline(let bytes): return try bytes.withUnsafeBytes(body)
        case .weightsFile(let name):
            // importProgram has looked every name up; a program from elsewhere has no file.
            guard let file, let entry = file[name] else {
                throw DiagnosticList([
                    Diagnostic(.weightsMismatch, "a tensor is not in the weights file", found: "`\(name)`")
                ])
            }
            return try file.withBytes(of: entry, body)
        }
    }
}

/// What an exported.pb holds.
package struct ImportedProgram: Sendable {
    /// Verified against the format (indices, names, sizes, bytes), not yet by the operators' rules: `Verifier` does that.
    package var program: Program
    package var weights: ImportedWeights
    /// Where the weights file is, read or not; nil when all tensors are inline.
    package var weightsPath: String?
    package var recording: Recording?
    /// The recording's bytes for the bundle: as they stand in the file, but for fields that a newer minor version added.
    /// Empty when there is none.
    package var recordingBytes: [UInt8]
    /// SHA-256 that the program declares for the weights file; empty when all tensors are inline.
    package var weightsDigest: [UInt8] = []
    /// The check of the weights that `WeightsReading.verifyMeanwhile` started; nil when there is nothing to wait for.
    package var verification: WeightsVerification?
}

/// How much of the weights file `importProgram` reads. Tensors inside exported.pb are always read and checked.
package enum WeightsReading: Sendable {
    /// All of it: its SHA-256 is compared (half a second a gigabyte), and that of every initial value in it.
    case verify
    /// The same on another thread while the program is used: `ImportedProgram.verification` tells the result.
    case verifyMeanwhile
    /// Its length and header; tensors are mapped.
    case map
    /// Nothing: it need not exist. For whoever asks what the program is and not what it computes.
    case skip
}

/// Reads an exported program and, beside it, its weights.
///
/// Takes milliseconds with `.skip` or `.map`, whatever the weights weigh. Throws a `DiagnosticList` of E01 codes;
/// every fault of the program is in it, up to a hundred.
package func importProgram(
    at path: String, weights reading: WeightsReading = .verify
) throws(DiagnosticList) -> ImportedProgram {
    let file = try MappedFile(path: path)
    // NOTE: the parts are ranges of the mapping, which goes away with the last use of `file`.
    defer { withExtendedLifetime(file) {} }
    let parts = try ExportedFileReader.parts(of: file.bytes, path: path)
    let isNewer = try ProgramConversion.isNewerMinorVersion(parts.program, path: path)
    if let unknown = parts.unknownField, !isNewer {
        throw DiagnosticList([ExportedFileReader.diagnostic(unknown, path: path)])
    }
    var (program, weightsFile) = try ProgramConversion.program(
        parts.program, path: path, skippingUnknownFields: isNewer)
    program.digest = SHA256Digest.of(parts.program)
    var imported = ImportedProgram(program: program, weights: ImportedWeights(), recordingBytes: [])
    if let weightsFile {
        let folder = path.lastIndex(of: "/").map { String(path[...$0]) } ?? ""
        imported.weightsPath = folder + weightsFile.name
        imported.weightsDigest = weightsFile.digest
        if reading != .skip { try open(weightsFile, reading, for: &imported, path: path) }
    }
    do throws(DiagnosticList) {
        // On another thread they are checked there, behind the digest of the file.
        if imported.verification == nil {
            try checkInitialValues(of: program, imported.weights, reading, path: path)
        }
        if let bytes = parts.recording {
            imported.recording = try Recording(serialized: bytes, path: path, skippingUnknownFields: isNewer)
            do throws(WireScan.Failure) {
                imported.recordingBytes = isNewer ? try Recording.knownFields(of: bytes) : Array(bytes)
            } catch {
                throw DiagnosticList([ExportedFileReader.diagnostic(error, path: path)])
            }
        }
    } catch {
        try imported.verification?.wait()
        throw error
    }
    return imported
}

/// Whether the digests that stand for initial tensors are theirs.
private func checkInitialValues(
    of program: Program, _ weights: ImportedWeights, _ reading: WeightsReading, path: String
) throws(DiagnosticList) {
    var findings: [Diagnostic] = []
    for state in program.states {
        guard case .tensor(let index) = state.initialValue else { continue }
        let tensor = program.tensors[index]
        if case .weightsFile = tensor.data, reading == .map || reading == .skip { continue }
        let found: [UInt8]
        do { found = try weights.withBytes(of: tensor) { SHA256Digest.of($0) } } catch {
            throw error as? DiagnosticList ?? DiagnosticList([Diagnostic(.internalError, "\(error)")])
        }
        if found != state.initialDigest {
            findings.append(
                Diagnostic(
                    .digestMismatch, "the initial value of a state does not have its declared digest",
                    at: "\(path), state `\(state.name)`", expected: hexadecimal(state.initialDigest),
                    found: hexadecimal(found)))
        }
    }
    if !findings.isEmpty { throw DiagnosticList(findings) }
}

struct WeightsFile {
    var name: String
    var length: UInt64
    var digest: [UInt8]
}

private func open(
    _ declared: WeightsFile, _ reading: WeightsReading, for imported: inout ImportedProgram, path programPath: String
) throws(DiagnosticList) {
    let path = imported.weightsPath!
    let program = imported.program
    let file: MappedFile
    do { file = try MappedFile(path: path) } catch {
        var findings = error.diagnostics
        for index in findings.indices where findings[index].hint == nil {
            findings[index].hint = "the program's weights are in this file: keep both in one folder, or export again"
        }
        throw DiagnosticList(findings)
    }
    guard file.bytes.count == declared.length else {
        let code: Diagnostic.Code = file.bytes.count < declared.length ? .truncatedFile : .weightsMismatch
        throw DiagnosticList([
            Diagnostic(
                code, "the weights file does not have the length that the program declares", at: path,
                expected: "\(declared.length) bytes", found: "\(file.bytes.count) bytes")
        ])
    }
    let weights = try Safetensors(file: file, path: path)
    imported.weights = ImportedWeights(file: weights)
    let source = imported.weights
    switch reading {
    case .verify: try checkDigest(of: file, declared.digest, path: path)
    case .verifyMeanwhile:
        imported.verification = WeightsVerification { () throws(DiagnosticList) in
            try checkDigest(of: file, declared.digest, path: path)
            try checkInitialValues(of: program, source, .verify, path: programPath)
        }
    case .map, .skip: break
    }
    var findings: [Diagnostic] = []
    for tensor in program.tensors {
        guard case .weightsFile(let name) = tensor.data else { continue }
        guard let entry = weights[name] else {
            findings.append(
                Diagnostic(.weightsMismatch, "a tensor is not in the weights file", at: path, expected: "`\(name)`"))
            continue
        }
        if entry.scalarType != tensor.scalarType || entry.shape != tensor.shape {
            findings.append(
                Diagnostic(
                    .weightsMismatch, "tensor `\(name)` differs between program and weights file", at: path,
                    expected: "\(tensor.scalarType)\(tensor.shape)", found: "\(entry.scalarType)\(entry.shape)"))
        }
    }
    if !findings.isEmpty {
        try imported.verification?.wait()
        throw DiagnosticList(findings)
    }
}

private func checkDigest(of file: MappedFile, _ declared: [UInt8], path: String) throws(DiagnosticList) {
    let digest = SHA256Digest.of(file.bytes)
    if digest == declared { return }
    throw DiagnosticList([
        Diagnostic(
            .weightsMismatch, "the weights file does not have the SHA-256 that the program declares", at: path,
            expected: hexadecimal(declared), found: hexadecimal(digest))
    ])
}

func hexadecimal(_ bytes: [UInt8]) -> String {
    bytes.map { byte in
        let digits = String(byte, radix: 16)
        return digits.count == 1 ? "0" + digits : digits
    }.joined()
}

// MARK: The frame

/// The outer message of exported.pb: its two fixed-width fields, then program and recording.
enum ExportedFileReader {
    /// Tag and eight bytes, twice.
    static let frameLength = 18
    /// Weights over 1 MiB are in a file of their own and recordings end at 4 MB: an honest file is far smaller.
    static let maximumLength = 256 << 20

    struct Parts {
        var program: UnsafeRawBufferPointer
        var recording: UnsafeRawBufferPointer?
        /// The first field that the file's message does not have. Whether it may be there, the version says.
        var unknownField: WireScan.Failure?
    }

    static func parts(of bytes: UnsafeRawBufferPointer, path: String) throws(DiagnosticList) -> Parts {
        func refuse(
            _ code: Diagnostic.Code, _ message: String, expected: String? = nil, found: String? = nil
        ) -> DiagnosticList {
            DiagnosticList([Diagnostic(code, message, at: path, expected: expected, found: found)])
        }
        let tags: [(offset: Int, byte: UInt8)] = [(0, 0x09), (9, 0x11)]
        for tag in tags where tag.offset < bytes.count && bytes[tag.offset] != tag.byte {
            throw refuse(
                .notAnExportedProgram, "the file does not start as an exported program",
                expected: "byte \(hexadecimal([tag.byte])) at offset \(tag.offset)",
                found: hexadecimal([bytes[tag.offset]]))
        }
        guard bytes.count >= frameLength else {
            throw refuse(
                .truncatedFile, "the file is cut inside its first fields", expected: "\(frameLength) bytes or more",
                found: "\(bytes.count) bytes")
        }
        let length = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: 1, as: UInt64.self))
        let digest = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: 10, as: UInt64.self))
        guard length == UInt64(bytes.count - frameLength) else {
            throw refuse(
                .truncatedFile, "the file is not as long as it declares",
                expected: length > UInt64(Int.max) - 18 ? "\(length) bytes after the first 18" : "\(length + 18) bytes",
                found: "\(bytes.count) bytes")
        }
        guard bytes.count <= maximumLength else {
            throw refuse(
                .programLimitExceeded, "the program is too large", expected: "at most \(maximumLength) bytes",
                found: "\(bytes.count) bytes")
        }
        let body = UnsafeRawBufferPointer(rebasing: bytes[frameLength...])
        let found = SHA256Digest.of(body).prefix(8).enumerated().reduce(0 as UInt64) { $0 | UInt64($1.1) << (8 * $1.0) }
        guard found == digest else {
            throw refuse(
                .digestMismatch, "the file's content does not have its declared digest",
                expected: String(digest, radix: 16), found: String(found, radix: 16))
        }
        do {
            return try split(body)
        } catch {
            throw DiagnosticList([diagnostic(error, path: path)])
        }
    }

    private static func split(_ body: UnsafeRawBufferPointer) throws(WireScan.Failure) -> Parts {
        var program: UnsafeRawBufferPointer?
        var recording: UnsafeRawBufferPointer?
        var unknownField: WireScan.Failure?
        var position = 0
        while position < body.count {
            let start = position
            let field = try WireScan.field(body, &position, end: body.count)
            let content = UnsafeRawBufferPointer(rebasing: body[field.content])
            switch (field.number, field.wireType) {
            case (3, 2) where program == nil: program = content
            case (4, 2) where recording == nil: recording = content
            case (1...4, _):
                throw WireScan.Failure(
                    kind: .malformed,
                    reason: "field \(field.number) of the file occurs twice or has the wrong wire type",
                    offset: start)
            default: unknownField = unknownField ?? WireScan.unknownField(field.number, at: start)
            }
        }
        guard let program else {
            throw WireScan.Failure(kind: .malformed, reason: "the file has no program", offset: 0)
        }
        return Parts(program: program, recording: recording, unknownField: unknownField)
    }

    static func diagnostic(_ failure: WireScan.Failure, path: String) -> Diagnostic {
        Diagnostic(
            failure.kind == .limit ? .programLimitExceeded : .malformedProgram, failure.reason,
            at: "\(path), byte \(failure.offset) of its message")
    }
}

// MARK: libprotobuf-c

/// Five hundred bytes of memory for each of a million messages, and the bytes themselves.
let unpackedMemory = 512 << 20

/// Calls `body` with an unpacked message and frees it. `memory` bounds what it may take.
func withUnpacked<Message, R>(
    _ bytes: UnsafeRawBufferPointer, path: String, skippingUnknownFields: Bool, memory: Int = unpackedMemory,
    descriptor: UnsafePointer<ProtobufCMessageDescriptor>, as type: Message.Type,
    _ body: (UnsafePointer<Message>) throws(DiagnosticList) -> R
) throws(DiagnosticList) -> R {
    do {
        try WireScan.check(bytes, as: descriptor, skippingUnknownFields: skippingUnknownFields)
    } catch {
        throw DiagnosticList([ExportedFileReader.diagnostic(error, path: path)])
    }
    let allocator = CappedAllocator(limit: memory)
    var result: Result<R, DiagnosticList>?
    allocator.withAllocator { pointer in
        guard
            let message = protobuf_c_message_unpack(
                descriptor, pointer, bytes.count, bytes.baseAddress?.assumingMemoryBound(to: UInt8.self))
        else { return }
        defer { protobuf_c_message_free_unpacked(message, pointer) }
        do throws(DiagnosticList) {
            result = .success(try body(UnsafeRawPointer(message).assumingMemoryBound(to: Message.self)))
        } catch {
            result = .failure(error)
        }
    }
    guard let result else {
        throw DiagnosticList([
            allocator.isExhausted
                ? Diagnostic(
                    .programLimitExceeded, "the program takes too much memory", at: path,
                    expected: "at most \(memory) bytes")
                : Diagnostic(.malformedProgram, "the program is not the wire format of program.proto", at: path)
        ])
    }
    return try result.get()
}
