import StatepackDiagnostics
import StatepackTool
import Testing

/// Every single edit of a contract is reported with its class, by `validate --descriptors` and by `diff`, and edits
/// that mean nothing are reported by neither.
@Suite struct ContractEditTests {
    struct Edit: CustomTestStringConvertible {
        var testDescription: String
        var edit: @Sendable (inout JSONValue) -> Void
        /// From the edited contract to the program, as `validate` compares.
        var `class`: String
        var code: String
        /// From the program to the edited contract.
        var reverseClass: String
        var reverseCode: String

        init(
            _ name: String, _ class: String, _ code: String, reverse: (class: String, code: String)? = nil,
            _ edit: @escaping @Sendable (inout JSONValue) -> Void
        ) {
            testDescription = name
            self.edit = edit
            self.class = `class`
            self.code = code
            (reverseClass, reverseCode) = reverse ?? (`class`, code)
        }
    }

    static let edits: [Edit] = [
        Edit("function removed", "compatible", "E0713", reverse: ("breaking", "E0712")) { $0.remove("functions", 1) },
        Edit("function added", "breaking", "E0712", reverse: ("compatible", "E0713")) {
            $0.insert(
                "functions", at: 1, $0.value("functions.1").setting("name", "encode").setting("inputs.0.name", "frame"))
        },
        Edit("function renamed", "breaking", "E0720") { $0.set("functions.1.name", "step") },
        Edit("function in another case", "breaking", "E0720") { $0.set("functions.0.name", "Prefill") },
        Edit("functions in another order", "compatible", "E0716") { $0.swap("functions", 0, 1) },
        Edit("input renamed", "breaking", "E0720") { $0.set("functions.0.inputs.0.name", "ids") },
        Edit("input that carries positions renamed", "breaking", "E0720") {
            $0.set("functions.1.inputs.1.name", "positions")
        },
        Edit("input in another case", "breaking", "E0720") { $0.set("functions.0.inputs.3.name", "Bias") },
        Edit("input removed", "breaking", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.inputs", 2)
        },
        Edit("last input removed", "breaking", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.inputs", 3)
        },
        Edit("input added", "breaking", "E0714", reverse: ("breaking", "E0715")) {
            $0.insert("functions.0.inputs", at: 1, ["name": "extra", "scalarType": "int32", "shape": [3]])
        },
        Edit("input added at the end", "breaking", "E0714", reverse: ("breaking", "E0715")) {
            $0.insert("functions.1.inputs", at: 2, ["name": "extra", "scalarType": "int32", "shape": [3]])
        },
        Edit("inputs in another order", "breaking", "E0716") { $0.swap("functions.0.inputs", 0, 1) },
        Edit("input retyped", "breaking", "E0717") { $0.set("functions.0.inputs.0.scalarType", "int32") },
        Edit("boolean input retyped", "breaking", "E0717") { $0.set("functions.0.inputs.2.scalarType", "uint8") },
        Edit("input resized", "breaking", "E0718") { $0.set("functions.0.inputs.3.shape.1", 8) },
        Edit("input of another rank", "breaking", "E0718") { $0.set("functions.1.inputs.0.shape", []) },
        Edit("input of another expression", "breaking", "E0718") {
            $0.set("functions.0.inputs.2.shape.1", "2*query + 2")
        },
        Edit("input of a fixed size", "breaking", "E0718") { $0.set("functions.0.inputs.0.shape.0", 16) },
        Edit("input of a dynamic size", "breaking", "E0718") { $0.set("functions.1.inputs.0.shape.0", "query") },
        Edit("input of another symbol", "breaking", "E0718") { $0.set("functions.0.inputs.3.shape.0", "query") },
        Edit("state renamed", "breaking", "E0720") { $0.set("functions.0.states.0.name", "keys") },
        Edit("state renamed in the second function", "breaking", "E0720") {
            $0.set("functions.1.states.1.name", "value_cache")
        },
        Edit("scalar state renamed", "breaking", "E0720") { $0.set("functions.0.states.2.name", "steps") },
        Edit("state removed", "breaking", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.states", 3)
        },
        Edit("state in the middle removed", "breaking", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.states", 2)
        },
        Edit("state added", "breaking", "E0714", reverse: ("breaking", "E0715")) {
            $0.insert("functions.1.states", at: 2, $0.value("functions.0.states.2"))
        },
        Edit("states in another order", "breaking", "E0716") { $0.swap("functions.0.states", 0, 1) },
        Edit("last states in another order", "breaking", "E0716") { $0.swap("functions.0.states", 2, 3) },
        Edit("state retyped", "breaking", "E0717") { $0.set("functions.0.states.0.scalarType", "float32") },
        Edit("state retyped to the other 16-bit type", "breaking", "E0717") {
            $0.set("functions.1.states.0.scalarType", "bfloat16")
        },
        Edit("integer state retyped", "breaking", "E0717") { $0.set("functions.0.states.2.scalarType", "int32") },
        Edit("state of another capacity", "breaking", "E0718") { $0.set("functions.0.states.0.shape.1", 512) },
        Edit("state of another row", "breaking", "E0718") { $0.set("functions.1.states.1.shape.2", 32) },
        Edit("state with an axis more", "breaking", "E0718") { $0.set("functions.0.states.1.shape", [1, 2, 256, 64]) },
        Edit("state of a dynamic size", "breaking", "E0718") { $0.set("functions.0.states.0.shape.0", "batch") },
        Edit("state that starts from another number", "numeric", "E0781") {
            $0.set("functions.0.states.0.initialValue", ["fill": .number(0.5)])
        },
        Edit("state that starts from negative zero", "numeric", "E0781") {
            $0.set("functions.0.states.0.initialValue", ["fill": "-0.0"])
        },
        Edit("state that starts from nan", "numeric", "E0781") {
            $0.set("functions.1.states.1.initialValue", ["fill": "nan"])
        },
        Edit("state that starts from other bits", "numeric", "E0781") {
            $0.set("functions.1.states.1.initialValue", ["fill": "0x7e01"])
        },
        Edit("integer state that starts from another number", "numeric", "E0781") {
            $0.set("functions.0.states.2.initialValue", ["fill": 6])
        },
        Edit("initial tensor changed", "numeric", "E0781") {
            $0.set("functions.0.states.3.initialValue", ["sha256": .string(String(repeating: "b2", count: 32))])
        },
        Edit("initial tensor replaced by a number", "numeric", "E0781") {
            $0.set("functions.0.states.3.initialValue", ["fill": 0])
        },
        Edit("initial number replaced by a tensor", "numeric", "E0781") {
            $0.set("functions.0.states.1.initialValue", ["sha256": .string(String(repeating: "b2", count: 32))])
        },
        Edit("state written by another operator", "compatible", "E0782") {
            $0.set("functions.0.states.0.writtenBy", "index_put")
        },
        Edit("state that is only read", "breaking", "E0782") {
            $0.set("functions.0.states.3.writtenBy", "index_copy")
        },
        Edit("state that was only read", "breaking", "E0782") { $0.set("functions.0.states.2.writtenBy", "none") },
        Edit("output renamed", "breaking", "E0720") { $0.set("functions.0.outputs.0.name", "scores") },
        Edit("output renamed in the second function", "breaking", "E0720") {
            $0.set("functions.1.outputs.0.name", "Logits")
        },
        Edit("last output removed", "compatible", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.outputs", 1)
        },
        Edit("first output removed", "breaking", "E0715", reverse: ("breaking", "E0714")) {
            $0.remove("functions.0.outputs", 0)
        },
        Edit("output added at the end", "breaking", "E0714", reverse: ("compatible", "E0715")) {
            $0.insert("functions.0.outputs", at: 2, ["name": "extra", "scalarType": "int32", "shape": [3]])
        },
        Edit("output added at the start", "breaking", "E0714", reverse: ("breaking", "E0715")) {
            $0.insert("functions.0.outputs", at: 0, ["name": "extra", "scalarType": "int32", "shape": [3]])
        },
        Edit("outputs in another order", "breaking", "E0716") { $0.swap("functions.0.outputs", 0, 1) },
        Edit("output retyped", "breaking", "E0717") { $0.set("functions.0.outputs.1.scalarType", "float16") },
        Edit("output resized", "breaking", "E0718") { $0.set("functions.1.outputs.0.shape.1", 101) },
        Edit("output of another expression", "breaking", "E0718") {
            $0.set("functions.0.outputs.0.shape.0", "query + 1")
        },
        Edit("larger maximum", "breaking", "E0719", reverse: ("compatible", "E0719")) { $0.set("symbols.0.max", 1024) },
        Edit("smaller maximum", "compatible", "E0719", reverse: ("breaking", "E0719")) { $0.set("symbols.0.max", 256) },
        Edit("smaller minimum", "breaking", "E0719", reverse: ("compatible", "E0719")) { $0.set("symbols.1.min", 0) },
        Edit("larger minimum", "compatible", "E0719", reverse: ("breaking", "E0719")) { $0.set("symbols.1.min", 2) },
        Edit("symbol that nothing uses", "compatible", "E0719") {
            $0.insert("symbols", at: 2, ["name": "unused", "min": 0, "max": 9])
        },
        Edit("symbol renamed", "compatible", "E0719") { $0.replaceText("query", with: "length") },
        Edit("context rules removed", "breaking", "E0780") { $0.set("functions.1.context", nil) },
        Edit("positions in another input", "breaking", "E0780") { $0.set("functions.0.context.positions", "tokens") },
        Edit("positions in an input that is not there", "breaking", "E0780") {
            $0.set("functions.0.context.positions", "position_id")
        },
        Edit("another axis", "breaking", "E0780") { $0.set("functions.0.context.axes.keyCache", 0) },
        Edit("axis of a state left out", "breaking", "E0780") { $0.set("functions.1.context.axes.valueCache", nil) },
        Edit("axis of a state added", "breaking", "E0780") { $0.set("functions.0.context.axes.table", 0) },
    ]

    /// A bundle and the text of its contract.
    static func model() async throws -> (folder: TestFolder, contract: String) {
        let folder = TestFolder()
        try RichModel.write(RichModel.program(), to: folder / "model.statepack")
        let described = await ToolRun("statepack", "describe", folder / "model.statepack")
        try #require(described.status == 0, "\(described.diagnostics)")
        return (folder, described.results)
    }

    @Test func thereAreSixtyEditsWithNamesOfTheirOwn() {
        #expect(Self.edits.count >= 60)
        #expect(Set(Self.edits.map(\.testDescription)).count == Self.edits.count)
        #expect(Self.harmless.count >= 20)
    }

    @Test(arguments: edits)
    func everyEditIsReportedWithItsClass(_ row: Edit) async throws {
        let (folder, contract) = try await Self.model()
        var document = try JSONReader.read(Array(contract.utf8))
        row.edit(&document)
        #expect(document.text != contract)
        folder.write(document.text.utf8, to: "edited.contract.json")
        let (model, edited) = (folder / "model.statepack", folder / "edited.contract.json")

        let validate = await ToolRun("validate", model, "--descriptors", edited, "--format", "json")
        #expect(validate.status == 1, "\(validate.results)")
        let findings = try JSONReader.read(Array(validate.results.utf8))["findings"]?.arrayValue ?? []
        let errors = findings.filter { $0["severity"] == "error" }
        #expect(errors.map { $0["code"]?.stringValue } == [row.code])
        #expect(errors[0]["message"]?.stringValue?.hasSuffix(" (\(row.class))") == true)
        #expect(errors[0]["location"]?.stringValue?.isEmpty == false)
        #expect(errors[0]["expected"]?.stringValue?.isEmpty == false)
        #expect(errors[0]["found"]?.stringValue?.isEmpty == false)

        try await Self.expect(row.class, row.code, from: edited, to: model)
        try await Self.expect(row.reverseClass, row.reverseCode, from: model, to: edited)
    }

    private static func expect(_ class: String, _ code: String, from old: String, to new: String) async throws {
        let diff = await ToolRun("statepack", "diff", old, new, "--format", "json", "--fail-on", "breaking")
        #expect(diff.status == (`class` == "breaking" ? 1 : 0))
        let report = try JSONReader.read(Array(diff.results.utf8))
        #expect(report["class"]?.stringValue == `class`)
        let differences = report["differences"]?.arrayValue ?? []
        #expect(differences.map { $0["code"]?.stringValue } == [code], "\(diff.results)")
        #expect(differences.map { $0["class"]?.stringValue } == [`class`])
        #expect(await ToolRun("statepack", "diff", old, new, "--fail-on", "any").status == 1)
    }

    struct Harmless: CustomTestStringConvertible {
        var testDescription: String
        var edit: @Sendable (String) throws -> String

        init(_ name: String, _ edit: @escaping @Sendable (String) throws -> String) {
            testDescription = name
            self.edit = edit
        }

        /// An edit of the document's value.
        init(_ name: String, value edit: @escaping @Sendable (inout JSONValue) -> Void) {
            self.init(name) { text in
                var document = try JSONReader.read(Array(text.utf8))
                edit(&document)
                return document.text
            }
        }
    }

    static let harmless: [Harmless] = [
        Harmless("no white space") {
            $0.replacing("\n", with: "").replacing(": ", with: ":").replacing("  ", with: "")
        },
        Harmless("tabs") { $0.replacing("  ", with: "\t") },
        Harmless("line ends of another system") { $0.replacing("\n", with: "\r\n") },
        Harmless("blank lines") { $0.replacing("\n", with: "\n\n") },
        Harmless("no line end at the end") { String($0.dropLast()) },
        Harmless("a reference to the schema", value: { $0.set("$schema", "https://example.org/contract.schema.json") }),
        Harmless("details", value: { $0.set("details", ["weights": 7]) }),
        Harmless("keys of the document in another order", value: { $0.reverse("") }),
        Harmless("keys of a function in another order", value: { $0.reverse("functions.0") }),
        Harmless("keys of an input in another order", value: { $0.reverse("functions.0.inputs.1") }),
        Harmless("keys of a state in another order", value: { $0.reverse("functions.1.states.0") }),
        Harmless("keys of a symbol in another order", value: { $0.reverse("symbols.0") }),
        Harmless("keys of the context in another order", value: { $0.reverse("functions.0.context") }),
        Harmless("axes of the context in another order", value: { $0.reverse("functions.0.context.axes") }),
        Harmless("symbols in another order", value: { $0.swap("symbols", 0, 1) }),
        Harmless("product the other way round") { $0.replacing("2*query + 1", with: "1 + query * 2") },
        Harmless("product as a sum") { $0.replacing("2*query + 1", with: "query + query + 1") },
        Harmless("symbol in parentheses") { $0.replacing("\"query\", 100", with: "\"(query)\", 100") },
        Harmless("symbol between blanks") { $0.replacing("[\"batch\", 4]", with: "[\"  batch \", 4]") },
        Harmless("number as an expression") { $0.replacing("[2, 256, 64]", with: "[2, \"16*16\", 64]") },
        Harmless("number as a text") { $0.replacing("[2, 256, 64]", with: "[\"2\", 256, 64]") },
        Harmless("zero with a point") { $0.replacing("{\"fill\": 0}", with: "{\"fill\": 0.0}") },
        Harmless("zero with an exponent") { $0.replacing("{\"fill\": 0}", with: "{\"fill\": 0e3}") },
        Harmless("zero as bits") { $0.replacing("{\"fill\": 0}", with: "{\"fill\": \"0x0000\"}") },
        Harmless("integer with a point") { $0.replacing("{\"fill\": 5}", with: "{\"fill\": 5.0}") },
        Harmless("escaped letter in a name") { $0.replacing("\"keyCache\"", with: "\"\\u006beyCache\"") },
    ]

    @Test(arguments: harmless)
    func editThatMeansNothingIsReportedByNeither(_ row: Harmless) async throws {
        let (folder, contract) = try await Self.model()
        let edited = try row.edit(contract)
        #expect(edited != contract)
        folder.write(edited.utf8, to: "edited.contract.json")
        let validate = await ToolRun(
            "validate", folder / "model.statepack", "--descriptors", folder / "edited.contract.json")
        #expect(validate.status == 0, "\(validate.diagnostics)")
        #expect(!validate.diagnostics.contains("error["))
        for (old, new) in [("edited.contract.json", "model.statepack"), ("model.statepack", "edited.contract.json")] {
            let diff = await ToolRun("statepack", "diff", folder / old, folder / new, "--fail-on", "any")
            #expect(diff.status == 0, "\(diff.results)")
        }
    }
}

extension JSONValue {
    /// Members and elements by a path such as `functions.0.name`; the empty path is the value itself.
    private mutating func edit(_ path: String, _ body: (inout JSONValue) -> Void) {
        guard !path.isEmpty else { return body(&self) }
        let (key, rest) = Self.split(path)
        switch self {
        case .object(var members):
            guard let index = members.firstIndex(where: { $0.key == key }) else { fatalError("no \(path)") }
            members[index].value.edit(rest, body)
            self = .object(members)
        case .array(var values):
            guard let index = Int(key), values.indices.contains(index) else { fatalError("no \(path)") }
            values[index].edit(rest, body)
            self = .array(values)
        default: fatalError("no \(path)")
        }
    }

    private static func split(_ path: String) -> (key: String, rest: String) {
        let parts = path.split(separator: ".", maxSplits: 1).map(String.init)
        return (parts[0], parts.count > 1 ? parts[1] : "")
    }

    func value(_ path: String) -> JSONValue {
        var copy = self
        var result = JSONValue.null
        copy.edit(path) { result = $0 }
        return result
    }

    /// Replaces a value, adds a member that is not there, or removes one with nil.
    mutating func set(_ path: String, _ value: JSONValue?) {
        let parts = path.split(separator: ".").map(String.init)
        edit(parts.dropLast().joined(separator: ".")) { parent in
            switch parent {
            case .object(var members):
                let index = members.firstIndex { $0.key == parts.last }
                switch (index, value) {
                case (let index?, let value?): members[index].value = value
                case (let index?, nil): members.remove(at: index)
                case (nil, let value?): members.append(.init(key: parts.last!, value: value))
                case (nil, nil): fatalError("no \(path)")
                }
                parent = .object(members)
            case .array(var values):
                values[Int(parts.last!)!] = value!
                parent = .array(values)
            default: fatalError("no \(path)")
            }
        }
    }

    func setting(_ path: String, _ value: JSONValue) -> JSONValue {
        var copy = self
        copy.set(path, value)
        return copy
    }

    mutating func insert(_ path: String, at index: Int, _ value: JSONValue) {
        edit(path) { list in
            var values = list.arrayValue ?? []
            values.insert(value, at: index)
            list = .array(values)
        }
    }

    mutating func remove(_ path: String, _ index: Int) {
        edit(path) { list in
            var values = list.arrayValue ?? []
            values.remove(at: index)
            list = .array(values)
        }
    }

    mutating func swap(_ path: String, _ a: Int, _ b: Int) {
        edit(path) { list in
            var values = list.arrayValue ?? []
            values.swapAt(a, b)
            list = .array(values)
        }
    }

    /// Turns the order of an object's keys.
    mutating func reverse(_ path: String) {
        edit(path) { object in object = .object((object.objectValue ?? []).reversed()) }
    }

    mutating func replaceText(_ text: String, with other: String) {
        switch self {
        case .string(let value): self = .string(value.replacing(text, with: other))
        case .array(let values):
            self = .array(
                values.map {
                    var copy = $0
                    copy.replaceText(text, with: other)
                    return copy
                })
        case .object(let members):
            self = .object(
                members.map {
                    var copy = $0
                    copy.value.replaceText(text, with: other)
                    return copy
                })
        default: break
        }
    }
}
