import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// A model file of either kind, opened and checked.
enum Model {
    case bundle(MappedBundle)
    case exportedProgram(ImportedProgram, path: String)

    init(path: String) throws {
        switch ModelFileKind(path: path) {
        case .bundle: self = .bundle(try MappedBundle(path: path))
        case .exportedProgram: self = .exportedProgram(try importProgram(at: path, weights: .skip), path: path)
        }
    }

    /// What was read, for whoever must not overwrite it.
    func files(at path: String) -> [String] {
        switch self {
        case .bundle: [path]
        case .exportedProgram(let imported, _): [path] + (imported.weightsPath.map { [$0] } ?? [])
        }
    }

    var contract: Contract {
        switch self {
        case .bundle(let bundle): Contract(bundle)
        case .exportedProgram(let imported, _): Contract(imported)
        }
    }

    var summary: ModelSummary {
        switch self {
        case .bundle(let bundle): ModelSummary(bundle.program)
        case .exportedProgram(let imported, _): ModelSummary(imported.program)
        }
    }

    /// What the file is, who wrote it and which program it holds.
    var headerLines: [String] {
        var table = TextTable()
        switch self {
        case .bundle(let bundle):
            table.add(
                "bundle",
                "\(bundle.path), format \(bundle.formatMajor).\(bundle.formatMinor), \(byteText(bundle.bytes.count))")
            table.add("producer", bundle.program.producer)
            table.add("program", "sha256 \(hexadecimalText(bundle.program.programDigest))")
            let recording = bundle.recording.count
            table.add("recording", recording == 0 ? "none" : byteText(recording))
        case .exportedProgram(let imported, let path):
            table.add("exported", path)
            table.add("producer", imported.program.producer)
            table.add("program", "sha256 \(hexadecimalText(imported.program.digest))")
            table.add("recording", imported.recordingBytes.isEmpty ? "none" : byteText(imported.recordingBytes.count))
        }
        return table.lines(indent: "")
    }
}
