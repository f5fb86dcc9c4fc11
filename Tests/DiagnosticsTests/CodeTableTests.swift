import StatepackDiagnostics
import Testing

@Suite struct CodeTableTests {
    @Test func codesAreUniqueAndInOrder() {
        let codes = Diagnostic.Code.table.map(\.code.rawValue)
        #expect(codes == codes.sorted())
        #expect(Set(codes).count == codes.count)
        #expect(Set(Diagnostic.Code.table.map(\.name)).count == codes.count)
    }

    @Test func textsFollowTheStyle() {
        for row in Diagnostic.Code.table {
            #expect(!row.cause.isEmpty && !row.cause.hasSuffix("."), "\(row.code)")
            #expect(!row.remedy.isEmpty && !row.remedy.hasSuffix("."), "\(row.code)")
            #expect(row.example.contains("[\(row.code)]: "), "\(row.code)")
            #expect([1, 2, 3, 4, 5, 70].contains(row.exit), "\(row.code)")
        }
    }

    @Test(
        "A code has the exit code of its class",
        arguments: [
            (Diagnostic.Code.unknownCommand, Int32(2)), (.notABundle, 3), (.bundleTooNew, 4), (.bundleDiskFull, 5),
            (.internalError, 70), (.exportMismatch, 1),
        ])
    func exitCode(code: Diagnostic.Code, exit: Int32) {
        #expect(code.exitCode == exit)
        #expect(DiagnosticList([Diagnostic(code, "x")]).exitCode == exit)
    }

    @Test func listTakesTheMostSpecificExitCode() {
        func exit(_ codes: Diagnostic.Code...) -> Int32 { DiagnosticList(codes.map { Diagnostic($0, "x") }).exitCode }
        #expect(exit(.exportMismatch, .notABundle, .bundleTooNew) == 3)
        #expect(exit(.exportMismatch, .bundleTooNew) == 4)
        #expect(exit(.notABundle, .internalError) == 70)
        #expect(DiagnosticList([Diagnostic(.unknownCommand, "x", severity: .warning)]).exitCode == 0)
        #expect(DiagnosticList([]).exitCode == 0)
    }
}
