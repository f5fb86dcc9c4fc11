package import StatepackDiagnostics

/// What `BundleProgram.Instruction.source` indexes: module path and relative source line of the
/// author's code, for diagnostics and traces. One section, `SourceMap` of `bundle.proto`.
package enum SourceMap {
    /// The section's bytes. Empty, and then to be left out, without sources.
    package static func encode(_ sources: [String]) -> [UInt8] {
        var writer = WireWriter()
        for source in sources { writer.element(1, source.utf8) }
        return writer.bytes
    }

    /// What a reader would refuse must not be written either.
    package static func check(_ sources: [String], file: String) throws(DiagnosticList) {
        guard let index = sources.firstIndex(where: { $0.utf8.count > BundleProgram.Limits.textBytes }) else { return }
        throw DiagnosticList([
            Diagnostic(
                .bundleProgramLimit, "a source is too long", at: "\(file), section source map, entry \(index)",
                expected: "at most \(BundleProgram.Limits.textBytes) bytes",
                found: "\(sources[index].utf8.count) bytes")
        ])
    }

    static func decode(
        _ bytes: UnsafeRawBufferPointer, skippingUnknownFields: Bool
    ) throws(WireFault) -> [String] {
        var sources: [String] = []
        if bytes.isEmpty { return sources }
        guard bytes.count <= BundleProgram.Limits.sectionBytes else {
            throw WireFault(
                kind: .limit, offset: 0, message: "the source map is too long",
                expected: "at most \(BundleProgram.Limits.sectionBytes) bytes", found: "\(bytes.count) bytes")
        }
        var reader = try WireReader(bytes, budget: WireBudget(messages: 1, elements: 0))
        while let field = try reader.next(repeated: [1]) {
            if field.number != 1, skippingUnknownFields { continue }
            guard field.number == 1 else {
                throw reader.malformed(
                    "a field is not part of the source map", at: field.offset, found: "field \(field.number)")
            }
            guard sources.count < BundleProgram.Limits.messages else {
                throw WireFault(kind: .limit, offset: field.offset, message: "the source map has too many entries")
            }
            sources.append(try reader.text(field, limit: BundleProgram.Limits.textBytes))
        }
        return sources
    }
}
