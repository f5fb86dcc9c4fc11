import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

@Suite struct StateNamesTests {
    static func program(named: Bool = false) throws -> Program {
        let suffix = named ? " named" : ""
        return try Program(
            text: """
                state "\(named ? "keyCache" : "layers.key")" float32[4] buffer "layers.key" splat 00000000\(suffix)
                state "layers.value" float32[4] buffer "layers.value" splat 00000000
                func "main" {
                    input %0 "features": float32[4]
                    state %1 "\(named ? "keyCache" : "layers.key")": float32[4] writtenBy "none"
                    state %2 "layers.value": float32[4] writtenBy "none"
                    output %0 "logits"
                }
                """)
    }

    @Test(arguments: [
        ["keyCache", "valueCache"], ["layers.value=valueCache", "layers.key=keyCache"],
    ])
    func namesStatesThatHadDefaultNames(names: [String]) throws {
        var program = try Self.program()
        try StateNames.apply(names, to: &program)
        #expect(program.states.map(\.name) == ["keyCache", "valueCache"])
        #expect(program.states.map(\.isNamedByAuthor) == [true, true])
    }

    @Test func acceptsTheAuthorsNames() throws {
        var program = try Self.program(named: true)
        try StateNames.apply(["keyCache", "v"], to: &program)
        #expect(program.states.map(\.name) == ["keyCache", "v"])
    }

    @Test func namesSomeStatesByPairs() throws {
        var program = try Self.program()
        try StateNames.apply(["layers.key=k"], to: &program)
        #expect(program.states.map(\.name) == ["k", "layers.value"])
    }

    struct Refusal: Sendable, CustomTestStringConvertible {
        var names: [String]
        var named = false
        var message: String
        var found: String

        var testDescription: String { message }
    }

    @Test(arguments: [
        Refusal(
            names: ["keyCache"], message: "1 state name was given, the program has 2",
            found: "layers.key = keyCache\nlayers.value = (no name)"),
        Refusal(
            names: ["a", "b", "c"], message: "3 state names were given, the program has 2",
            found: "layers.key = a\nlayers.value = b\n(no state) = c"),
        Refusal(
            names: ["a", "a"], message: "two states would be named `a`", found: "layers.key = a\nlayers.value = a"),
        Refusal(
            names: ["layers.key=layers.value"], message: "two states would be named `layers.value`",
            found: "layers.key = layers.value"),
        Refusal(
            names: ["layers.kay=a"], message: "no state comes from a buffer `layers.kay`", found: "layers.kay = a"),
        Refusal(
            names: ["layers.key=a", "layers.key=b"], message: "buffer `layers.key` is named twice",
            found: "layers.key = a\nlayers.key = b"),
        Refusal(
            names: ["a", "layers.value=b"], message: "names and pairs buffer=name are mixed",
            found: "a\nlayers.value = b"),
        Refusal(
            names: ["other", "b"], named: true,
            message: "state `keyCache` was named by its author, `other` is another name",
            found: "layers.key = other\nlayers.value = b"),
        Refusal(
            names: ["features", "b"], message: "a state would have the name of input `features` of function `main`",
            found: "layers.key = features\nlayers.value = b"),
        Refusal(
            names: ["a", "logits"], message: "a state would have the name of output `logits` of function `main`",
            found: "layers.key = a\nlayers.value = logits"),
        Refusal(
            names: ["a\nc", "b"], message: "the name for `layers.key` has a control character",
            found: "layers.key = a\nc\nlayers.value = b"),
        Refusal(
            names: ["a", " b"], message: "the name for `layers.value` starts or ends with a space",
            found: "layers.key = a\nlayers.value =  b"),
        Refusal(
            names: ["a", String(repeating: "b", count: 1025)],
            message: "the name for `layers.value` has more than 1024 bytes",
            found: "layers.key = a\nlayers.value = \(String(repeating: "b", count: 1025))"),
        Refusal(
            names: ["", "b"], message: "the name for `layers.key` is empty", found: "layers.key = \nlayers.value = b"),
    ])
    func refuses(_ refusal: Refusal) throws {
        let original = try Self.program(named: refusal.named)
        var program = original
        let list = try #require(throws: DiagnosticList.self) { try StateNames.apply(refusal.names, to: &program) }
        #expect(list.diagnostics.map(\.code) == [.stateNamesMismatch])
        #expect(list.diagnostics[0].message == refusal.message)
        #expect(list.diagnostics[0].found == refusal.found)
        #expect(
            list.diagnostics[0].expected
                == "layers.key = \(refusal.named ? "keyCache" : "any name")\nlayers.value = any name")
        #expect(list.diagnostics[0].location == "--state-names \(refusal.names.joined(separator: ","))")
        #expect(program == original)
    }

    @Test func theTableIsShownOnce() throws {
        var program = try Self.program()
        let list = try #require(throws: DiagnosticList.self) {
            try StateNames.apply(["keys ", "features"], to: &program)
        }
        #expect(
            list.description == """
                error[E0301]: the name for `layers.key` starts or ends with a space
                  --> --state-names keys ,features
                  expected: layers.key = any name
                            layers.value = any name
                  found:    layers.key = keys\u{20}
                            layers.value = features
                  hint:     write `a,b`, not `a, b`
                error[E0301]: a state would have the name of input `features` of function `main`
                  --> --state-names keys ,features
                  hint:     a name says which argument is meant: choose another one
                """)
    }
}
