import StatepackDiagnostics
import Testing

@Suite struct RendererTests {
    @Test func rendersEveryPartInOrder() {
        let diagnostic = Diagnostic(
            .unknownArgument, "view for state `valueCache` has the wrong shape",
            at: "function `decode`, run(inputs:states:outputViews:)", expected: "[1, 8, 2048, 64] float16",
            found: "[1, 8, 1024, 64] float16",
            hint: "create the array from descriptor.stateDescriptor(of: \"valueCache\")")
        #expect(
            diagnostic.description == """
                error[E0601]: view for state `valueCache` has the wrong shape
                  --> function `decode`, run(inputs:states:outputViews:)
                  expected: [1, 8, 2048, 64] float16
                  found:    [1, 8, 1024, 64] float16
                  hint:     create the array from descriptor.stateDescriptor(of: "valueCache")
                """)
    }

    @Test func leavesOutWhatIsAbsent() {
        #expect(
            Diagnostic(.notABundle, "the file is not a bundle").description == "error[E0501]: the file is not a bundle")
        #expect(
            Diagnostic(.notABundle, "no", severity: .warning, at: "a", found: "b").description
                == "warning[E0501]: no\n  --> a\n  found:    b")
        #expect(Diagnostic(.notABundle, "no", severity: .note).description == "note[E0501]: no")
    }

    @Test func indentsFurtherLines() {
        let diagnostic = Diagnostic(
            .unknownCommand, "names differ", expected: "a\nb", found: "a\n\nc", hint: "one\ntwo")
        #expect(
            diagnostic.description == """
                error[E0703]: names differ
                  expected: a
                            b
                  found:    a
                           \u{20}
                            c
                  hint:     one
                            two
                """)
    }

    @Test(
        "A character that is obeyed or not seen never reaches the terminal",
        arguments: [
            ("\u{1B}[2Jx", "\\u{1B}[2Jx"), ("a\u{7F}b", "a\\u{7F}b"), ("\u{0}", "\\u{0}"), ("a\rb", "a\\u{D}b"),
            ("\u{9B}31m", "\\u{9B}31m"), ("naïve 🙂 漢", "naïve 🙂 漢"), ("\u{202E}abc", "\\u{202E}abc"),
            ("\u{2066}", "\\u{2066}"), ("a\u{2028}b", "a\\u{2028}b"), ("a\u{2029}b", "a\\u{2029}b"),
            ("a\u{200B}b", "a\\u{200B}b"), ("\u{FEFF}a", "\\u{FEFF}a"), ("a\u{A0}b", "a\\u{A0}b"), ("a b", "a b"),
            ("a\u{3164}b", "a\\u{3164}b"), ("a\u{FE0F}b", "a\\u{FE0F}b"), ("a\u{E0041}b", "a\\u{E0041}b"),
        ])
    func escapes(text: String, shown: String) {
        #expect(Diagnostic(.unknownCommand, text).description == "error[E0703]: \(shown)")
        #expect(Diagnostic(.unknownCommand, "m", at: text).description == "error[E0703]: m\n  --> \(shown)")
        #expect(Diagnostic(.unknownCommand, "m", found: text).description == "error[E0703]: m\n  found:    \(shown)")
    }

    @Test func lineBreaksOfMessageAndLocationAreEscaped() {
        #expect(
            Diagnostic(.unknownCommand, "a\nerror[E0001]: b", at: "c\nd").description
                == "error[E0703]: a\\u{A}error[E0001]: b\n  --> c\\u{A}d")
    }

    @Test func listPrintsOneAfterTheOther() {
        let list = DiagnosticList([Diagnostic(.unknownCommand, "one"), Diagnostic(.notABundle, "two", at: "here")])
        #expect(list.description == "error[E0703]: one\nerror[E0501]: two\n  --> here")
    }
}
