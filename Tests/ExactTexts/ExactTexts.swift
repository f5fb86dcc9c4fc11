import StatepackDiagnostics
import Synchronization

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// The texts of diagnostics that tests compare character for character, in files that people read: `Texts/NAME.txt`
/// has a heading `== ID` for each case and the text below it.
///
/// `STATEPACK_UPDATE_TEXTS=1` writes what the tests produce; the difference is then read before it is committed.
/// `schemas/check_messages.py` looks for every message and for the examples of errors.json in these files.
package enum ExactTexts {
    private typealias Sections = [String: String]

    private static let files = Mutex<[String: Sections]>([:])
    private static let updates = getenv("STATEPACK_UPDATE_TEXTS") != nil

    /// The text that case `id` of file `name` has to have. When texts are updated, it becomes `actual`.
    package static func expected(_ name: String, _ id: String, actual: String) -> String {
        files.withLock { files in
            var sections = files[name] ?? read(name)
            defer { files[name] = sections }
            if updates, sections[id] != actual {
                sections[id] = actual
                write(sections, name)
            }
            return sections[id] ?? "Texts/\(name).txt has no text `\(id)`: run with STATEPACK_UPDATE_TEXTS=1"
        }
    }

    /// The same for diagnostics; `folder`, in which the test keeps its files, is left out of their places.
    package static func expected(
        _ name: String, _ id: String, actual diagnostics: [Diagnostic], in folder: String? = nil
    ) -> String { expected(name, id, actual: text(diagnostics, in: folder)) }

    package static func text(_ diagnostics: [Diagnostic], in folder: String? = nil) -> String {
        let text = diagnostics.map(\.description).joined(separator: "\n")
        guard let folder else { return text }
        return text.replacing("\(folder)/", with: "").replacing(folder, with: "FOLDER")
    }

    private static func path(_ name: String) -> String {
        let folder = #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast().joined(separator: "/")
        return "\(folder)/Texts/\(name).txt"
    }

    private static func read(_ name: String) -> Sections {
        guard let stream = fopen(path(name), "r") else { return [:] }
        defer { fclose(stream) }
        var bytes: [UInt8] = []
        var block = [UInt8](repeating: 0, count: 1 << 16)
        while case let count = fread(&block, 1, block.count, stream), count > 0 { bytes += block[..<count] }
        var sections: Sections = [:]
        for section in String(decoding: bytes, as: UTF8.self).split(separator: "\n\n== ") {
            let lines = section.split(separator: "\n", omittingEmptySubsequences: false)
            let id = lines[0].hasPrefix("== ") ? lines[0].dropFirst(3) : lines[0]
            var text = lines.dropFirst().joined(separator: "\n")
            while text.hasSuffix("\n") { text.removeLast() }
            sections[String(id)] = text
        }
        return sections
    }

    private static func write(_ sections: Sections, _ name: String) {
        guard let stream = fopen(path(name), "w") else { return }
        defer { fclose(stream) }
        fputs(
            sections.sorted { $0.key < $1.key }.map { "== \($0.key)\n\($0.value)\n" }.joined(separator: "\n"), stream)
    }
}
