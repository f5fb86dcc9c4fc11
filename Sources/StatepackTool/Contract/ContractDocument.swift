import StatepackBundle
import StatepackDiagnostics

/// The contract as the JSON document that `schemas/contract.schema.json` describes.
extension Contract {
    /// Version of the document. A reader refuses another one.
    package static let documentVersion = 1

    /// A hundred bytes an entry: forty thousand of them.
    package static let maximumDocumentBytes = 4 << 20
    /// Symbols are compared one by one with all that sizes name; a program has a handful.
    package static let maximumSymbolCount = 1024
    /// Inputs, outputs or states of a function, and functions: what a bundle may have of each.
    package static let maximumEntryCount = 1 << 14

    package var json: JSONValue {
        [
            "contract": .integer(Self.documentVersion),
            "symbols": .array(
                symbols.map { ["name": .string($0.name), "min": .integer($0.min), "max": .integer($0.max)] }),
            "functions": .array(
                functions.map { function in
                    [
                        "name": .string(function.name),
                        "inputs": .array(function.inputs.map(\.json)),
                        "states": .array(function.states.map(\.json)),
                        "outputs": .array(function.outputs.map(\.json)),
                        "context": function.context?.json,
                    ]
                }),
        ]
    }

    /// Reads a document strictly: an unknown key is an error, for it would be a promise that nobody checks.
    /// The exceptions are `$schema`, for editors, and `details`, which `inspect --json --details` adds. Throws `DiagnosticList` with
    /// every fault of the document.
    package init(json bytes: [UInt8], file: String) throws {
        guard bytes.count <= Self.maximumDocumentBytes else {
            throw DiagnosticList([
                Diagnostic(
                    .contractMalformed, "the contract is too long", at: file,
                    expected: "at most \(Self.maximumDocumentBytes) bytes", found: "\(bytes.count) bytes")
            ])
        }
        let document: JSONValue
        do {
            document = try JSONReader.read(bytes)
        } catch {
            throw DiagnosticList([
                Diagnostic(
                    .contractMalformed, "the contract is not valid JSON: \(error.message)",
                    at: "\(file):\(error.line):\(error.column)")
            ])
        }
        var reader = ContractReader(file: file)
        self = reader.readContract(document)
        if !reader.findings.isEmpty { throw DiagnosticList(reader.findings) }
    }
}

extension Contract.Entry {
    fileprivate var json: JSONValue {
        [
            "name": .string(name),
            "scalarType": .string(scalarType.name),
            "shape": .array(shape.map { axis in Int(axis).map { .integer($0) } ?? .string(axis) }),
            "initialValue": rules.map { $0.initialValue.json(scalarType) },
            "writtenBy": rules.map { .string($0.writtenBy) },
        ]
    }
}

extension Contract.InitialValue {
    fileprivate func json(_ type: ScalarType) -> JSONValue {
        switch self {
        case .fill(let bits): ["fill": FillText.json(bits, type)]
        case .tensor(let digest): ["sha256": .string(hexadecimalText(digest))]
        }
    }
}

extension Contract.Context {
    fileprivate var json: JSONValue {
        [
            "positions": .string(positions),
            "axes": .object(axes.map { .init(key: $0.state, value: .integer($0.axis)) }),
        ]
    }
}

private struct ContractReader {
    var file: String
    private let log = FindingLog()
    var symbolNames: [String] = []
    /// False when the list of symbols has faults of its own: a size that names one that is missing is then no fault.
    var areSymbolsKnown = true

    init(file: String) { self.file = file }

    var findings: [Diagnostic] { log.findings }

    private static let maximumFindings = 100

    /// Shared, so that a fault may look at the reader while it is made.
    private final class FindingLog {
        var findings: [Diagnostic] = []
    }

    /// Evaluates nothing once there are enough findings: a hint looks at every name of the document.
    func fault(
        _ path: String, _ message: String, expected: @autoclosure () -> String? = nil, found: String? = nil,
        hint: @autoclosure () -> String? = nil
    ) {
        guard findings.count < Self.maximumFindings else { return }
        log.findings.append(
            Diagnostic(
                .contractMalformed, message, at: path.isEmpty ? file : "\(file), \(path)", expected: expected(),
                found: found, hint: hint()))
    }

    /// The members of an object with exactly these keys, `known` ones if they are there, and `ignored` ones aside.
    mutating func members(
        _ value: JSONValue, _ path: String, keys: [String], known: [String] = [], ignored: [String] = []
    ) -> [String: JSONValue]? {
        guard let members = value.objectValue else {
            fault(path, "the contract has the wrong kind of value", expected: "an object", found: value.kind)
            return nil
        }
        var result: [String: JSONValue] = [:]
        for member in members {
            if keys.contains(member.key) || known.contains(member.key) {
                result[member.key] = member.value
            } else if !ignored.contains(member.key) {
                fault(
                    path, "unknown key `\(member.key)`", expected: (keys + known).joined(separator: ", "),
                    found: member.key, hint: ArgumentParser.suggestion(for: member.key, among: keys + known))
            }
        }
        for key in keys where result[key] == nil {
            fault(path, "the key `\(key)` is missing", expected: keys.joined(separator: ", "))
        }
        return result
    }

    mutating func array(
        _ value: JSONValue?, _ path: String, limit: Int = Contract.maximumEntryCount
    ) -> [JSONValue] {
        guard let value else { return [] }
        guard let values = value.arrayValue else {
            fault(path, "the contract has the wrong kind of value", expected: "an array", found: value.kind)
            return []
        }
        if values.count <= limit { return values }
        fault(path, "the list is too long", expected: "at most \(limit)", found: "\(values.count)")
        return []
    }

    mutating func integer(_ value: JSONValue?, _ path: String) -> Int? {
        guard let value else { return nil }
        if let integer = value.integerValue { return integer }
        fault(path, "the contract has the wrong kind of value", expected: "an integer", found: value.kind)
        return nil
    }

    mutating func name(_ value: JSONValue?, _ path: String) -> String? {
        guard let value else { return nil }
        if let name = value.stringValue, !name.isEmpty { return name }
        let found = value.stringValue == nil ? value.kind : "\"\""
        fault(path, "the contract has the wrong kind of value", expected: "a name", found: found)
        return nil
    }

    mutating func readContract(_ document: JSONValue) -> Contract {
        var contract = Contract(symbols: [], functions: [])
        guard
            let top = members(
                document, "", keys: ["contract", "symbols", "functions"], ignored: ["$schema", "details"])
        else { return contract }
        if let version = integer(top["contract"], "contract"), version != Contract.documentVersion {
            // What else differs may be right in that version.
            log.findings = []
            fault(
                "contract", "the contract has another version", expected: "\(Contract.documentVersion)",
                found: "\(version)")
            return contract
        }
        var seen: Set<String> = []
        let faults = findings.count
        areSymbolsKnown = top["symbols"] != nil
        for (index, value) in array(top["symbols"], "symbols", limit: Contract.maximumSymbolCount).enumerated() {
            let path = "symbols[\(index)]"
            guard let fields = members(value, path, keys: ["name", "min", "max"]),
                let name = name(fields["name"], "\(path).name"), let min = integer(fields["min"], "\(path).min"),
                let max = integer(fields["max"], "\(path).max")
            else { continue }
            if min < 0 || max < min {
                fault(path, "the bounds of `\(name)` are invalid", expected: "0 <= min <= max", found: "\(min), \(max)")
            }
            if !name.isEmpty, !BundleProgram.isSymbolName(name) {
                fault(
                    path, "the name of a symbol is not an identifier",
                    expected: "letters, digits and `_`, no digit first", found: name)
            }
            if !seen.insert(name).inserted { fault(path, "the symbol `\(name)` occurs twice", found: name) }
            symbolNames.append(name)
            contract.symbols.append(Contract.Symbol(name: name, min: min, max: max))
        }
        seen = []
        if findings.count > faults { areSymbolsKnown = false }
        for (index, value) in array(top["functions"], "functions").enumerated() {
            guard let function = readFunction(value, "functions[\(index)]") else { continue }
            if !seen.insert(function.name).inserted {
                fault("functions[\(index)]", "the function `\(function.name)` occurs twice", found: function.name)
            }
            contract.functions.append(function)
        }
        return contract
    }

    mutating func readFunction(_ value: JSONValue, _ path: String) -> Contract.Function? {
        guard
            let fields = members(
                value, path, keys: ["name", "inputs", "states", "outputs"], known: ["context"])
        else { return nil }
        let name = name(fields["name"], "\(path).name")
        var entries: [Contract.Role: [Contract.Entry]] = [:]
        for role in Contract.Role.allCases {
            let rolePath = "\(path).\(role.plural)"
            var list: [Contract.Entry] = []
            var seen: Set<String> = []
            for (index, value) in array(fields[role.plural], rolePath).enumerated() {
                guard let entry = readEntry(value, role, "\(rolePath)[\(index)]") else { continue }
                if !seen.insert(entry.name).inserted {
                    fault(
                        "\(rolePath)[\(index)]", "the \(role.rawValue) `\(entry.name)` occurs twice", found: entry.name)
                }
                list.append(entry)
            }
            entries[role] = list
        }
        let context = readContext(fields["context"], "\(path).context", states: entries[.state] ?? [])
        guard let name else { return nil }
        return Contract.Function(
            name: name, inputs: entries[.input] ?? [], states: entries[.state] ?? [], outputs: entries[.output] ?? [],
            context: context)
    }

    /// Names are not looked up: one that the function does not have is a difference, found when comparing.
    mutating func readContext(_ value: JSONValue?, _ path: String, states: [Contract.Entry]) -> Contract.Context? {
        guard let value, let fields = members(value, path, keys: ["positions", "axes"]) else { return nil }
        let positions = name(fields["positions"], "\(path).positions")
        guard let axesValue = fields["axes"] else { return nil }
        guard let members = axesValue.objectValue, !members.isEmpty else {
            fault(
                "\(path).axes", "the contract has the wrong kind of value", expected: "an object of states and axes",
                found: axesValue.objectValue == nil ? axesValue.kind : "an empty object")
            return nil
        }
        var axes: [Contract.Context.Axis] = []
        for member in members {
            guard let axis = integer(member.value, "\(path).axes.\(member.key)") else { continue }
            if axis < 0 {
                fault("\(path).axes.\(member.key)", "the axis is invalid", expected: "at least 0", found: "\(axis)")
            }
            axes.append(.init(state: member.key, axis: axis))
        }
        // In the order of the states, whatever the order of the keys; names of no state stay at the end.
        let order = Dictionary(states.enumerated().map { ($1.name, $0) }, uniquingKeysWith: { first, _ in first })
        let ranked = axes.enumerated().map { (order[$1.state] ?? .max, $0, $1) }
        axes = ranked.sorted { ($0.0, $0.1) < ($1.0, $1.1) }.map(\.2)
        return positions.map { Contract.Context(positions: $0, axes: axes) }
    }

    mutating func readInitialValue(_ value: JSONValue?, _ type: ScalarType?, _ path: String) -> Contract.InitialValue? {
        guard let value else { return nil }
        let expected = "{\"fill\": element} or {\"sha256\": digest}"
        guard let members = value.objectValue, members.count == 1 else {
            fault(
                path, "the contract has the wrong kind of value", expected: expected,
                found: value.objectValue == nil ? value.kind : "an object of \(value.objectValue?.count ?? 0) keys")
            return nil
        }
        switch members[0].key {
        case "fill":
            guard let type else { return nil }
            if let bits = FillText.bits(members[0].value, type) { return .fill(bits) }
            fault(
                "\(path).fill", "the fill is no \(type.name)",
                expected: type == .bool
                    ? "true or false"
                    : type.isFloatingPoint
                        ? "a number that \(type.name) holds, \"-0.0\", \"infinity\", \"-infinity\", \"nan\", or bits such as "
                            + "\"0x\(String(repeating: "0", count: 2 * type.byteCount))\""
                        : "an integer that \(type.name) holds",
                found: members[0].value.shortText)
        case "sha256":
            let text = members[0].value.stringValue ?? ""
            if text.utf8.count == 64, text.utf8.allSatisfy({ (48...57).contains($0) || (97...102).contains($0) }) {
                let digits = Array(text)
                return .tensor(
                    sha256: stride(from: 0, to: 64, by: 2).compactMap { UInt8(String(digits[$0...$0 + 1]), radix: 16) })
            }
            fault(
                "\(path).sha256", "the digest is invalid", expected: "64 digits, 0 to 9 and a to f",
                found: members[0].value.shortText)
        default:
            fault(
                path, "unknown key `\(members[0].key)`", expected: "fill, sha256", found: members[0].key,
                hint: ArgumentParser.suggestion(for: members[0].key, among: ["fill", "sha256"]))
        }
        return nil
    }

    mutating func readEntry(_ value: JSONValue, _ role: Contract.Role, _ path: String) -> Contract.Entry? {
        let keys = ["name", "scalarType", "shape"] + (role == .state ? ["initialValue", "writtenBy"] : [])
        guard let fields = members(value, path, keys: keys) else { return nil }
        let name = name(fields["name"], "\(path).name")
        var scalarType: ScalarType?
        if let word = self.name(fields["scalarType"], "\(path).scalarType") {
            scalarType = ScalarType(name: word)
            if scalarType == nil {
                let names = ScalarType.allCases.map(\.name)
                fault(
                    "\(path).scalarType", "unknown scalar type `\(word)`", expected: names.joined(separator: ", "),
                    found: word, hint: ArgumentParser.suggestion(for: word, among: names))
            }
        }
        var shape: [String] = []
        for (axis, value) in array(fields["shape"], "\(path).shape").enumerated() {
            let axisPath = "\(path).shape[\(axis)]"
            switch value {
            case .integer(let size) where size >= 0: shape.append(String(size))
            case .string(let text):
                do {
                    let expression = try SizeText.parse(text, symbolNames: symbolNames)
                    shape.append(expression.description(symbolNames: symbolNames))
                } catch {
                    if error.unknownName != nil, !areSymbolsKnown { continue }
                    fault(
                        axisPath, "the size `\(text)` is invalid: \(error.message)",
                        expected: symbolNames.isEmpty
                            ? "a number, for the contract has no symbols"
                            : "a number or an expression of \(symbolNames.joined(separator: ", "))", found: text,
                        hint: error.unknownName.flatMap { ArgumentParser.suggestion(for: $0, among: symbolNames) })
                }
            default:
                let found = value.integerValue.map(String.init) ?? value.kind
                fault(
                    axisPath, "the size is invalid", expected: "a number of at least 0, or an expression", found: found)
            }
        }
        var rules: Contract.StateRules?
        if role == .state {
            let initialValue = readInitialValue(fields["initialValue"], scalarType, "\(path).initialValue")
            let writtenBy = self.name(fields["writtenBy"], "\(path).writtenBy")
            guard let initialValue, let writtenBy else { return nil }
            rules = Contract.StateRules(initialValue: initialValue, writtenBy: writtenBy)
        }
        guard let name, let scalarType else { return nil }
        return Contract.Entry(name: name, scalarType: scalarType, shape: shape, rules: rules)
    }
}
