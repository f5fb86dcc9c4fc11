import Foundation
import Testing

/// Every Swift snippet of the documentation compiles as it stands, with what it mentions as parameters.
struct DocumentationTests {
    private static let root = URL(filePath: #filePath).deletingLastPathComponent().deletingLastPathComponent()
        .deletingLastPathComponent()

    static let pages = ["README.md", "docs/core-ai.md", "examples/01-stateful-transformer/README.md"]

    /// The contents of the page's fenced blocks of a language.
    static func snippets(of page: String, language: String) throws -> [String] {
        let text = try String(contentsOf: root.appending(path: page), encoding: .utf8)
        return text.components(separatedBy: "```\(language)\n").dropFirst().map { part in
            String(part.components(separatedBy: "\n```")[0])
        }
    }

    @Test(arguments: pages) func snippetsCompileAsTheyStand(page: String) throws {
        for snippet in try Self.snippets(of: page, language: "swift") {
            let lines = snippet.components(separatedBy: "\n")
            let isImport = { (line: String) in line.hasPrefix("import ") }
            let code = """
                import Statepack
                #if canImport(FoundationEssentials)
                import FoundationEssentials
                #else
                import Foundation
                #endif
                \(lines.filter(isImport).joined(separator: "\n"))
                func snippet(
                    _ url: URL, _ function: InferenceFunction, _ keyCache: inout NDArray, _ valueCache: inout NDArray,
                    _ nextFeatures: NDArray, _ positions: NDArray
                ) async throws {
                \(lines.filter { !isImport($0) }.joined(separator: "\n"))
                _ = outputs.remove("logits")
                }
                """
            let result = try BuildProducts().compile(code, ["-emit-sil", "-o", "/dev/null"])
            #expect(result.status == 0, "\(page):\n\(snippet)\n\(result.output)")
        }
    }

    @Test func theReadmeShowsSwift() throws {
        #expect(try !Self.snippets(of: "README.md", language: "swift").isEmpty)
    }
}
