import StatepackBundle
import StatepackDiagnostics

/// The contract as the JSON document that `schemas/contract.schema.json` describes.
extension Contract {
    /// Version of the document. A reader refuses another one.
    package static let documentVersion = 1

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
                    ]
                }),
        ]
    }

    /// Reads a document strictly: an unknown key is an error, for it would be a promise that nobody checks.
    /// The one exception is `details`, which `inspect --json --details` adds. Throws `DiagnosticList` with
    /// every fault of the document.
    package init(json bytes: [UInt8], file: String) throws {
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
        ]
    }
}

private struct ContractReader {
    var file: String
    var findings: [Diagnostic] = []
    var symbolNames: [String] = []

    init(file: String) { self.file = file }

    mutating func fault(
        _ path: String, _ message: String, expected: String? = nil, found: String? = nil, hint: String? = nil
    ) {
        findings.append(
            Diagnostic(
                .contractMalformed, message, at: path.isEmpty ? file : "\(file), \(path)", expected: expected,
                found: found, hint: hint))
    }

    /// The members of an object with exactly these keys, `optional` ones aside.
    mutating func members(
        _ value: JSONValue, _ path: String, keys: [String], optional: [String] = []
    ) -> [String: JSONValue]? {
        guard let members = value.objectValue else {
            fault(path, "the contract has the wrong kind of value", expected: "an object", found: value.kind)
            return nil
        }
        var result: [String: JSONValue] = [:]
        for member in members {
            if keys.contains(member.key) {
                result[member.key] = member.value
            } else if !optional.contains(member.key) {
                fault(
                    path, "unknown key `\(member.key)`", expected: keys.joined(separator: ", "), found: member.key,
                    hint: ArgumentParser.suggestion(for: member.key, among: keys))
            }
        }
        for key in keys where result[key] == nil {
            fault(path, "the key `\(key)` is missing", expected: keys.joined(separator: ", "))
        }
        return result
    }

    mutating func array(_ value: JSONValue?, _ path: String) -> [JSONValue] {
        guard let value else { return [] }
        if let values = value.arrayValue { return values }
        fault(path, "the contract has the wrong kind of value", expected: "an array", found: value.kind)
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
                document, "", keys: ["contract", "symbols", "functions"], optional: ["$schema", "details"])
        else { return contract }
        if let version = integer(top["contract"], "contract"), version != Contract.documentVersion {
            fault(
                "contract", "the contract has another version", expected: "\(Contract.documentVersion)",
                found: "\(version)")
        }
        for (index, value) in array(top["symbols"], "symbols").enumerated() {
            let path = "symbols[\(index)]"
            guard let fields = members(value, path, keys: ["name", "min", "max"]),
                let name = name(fields["name"], "\(path).name"), let min = integer(fields["min"], "\(path).min"),
                let max = integer(fields["max"], "\(path).max")
            else { continue }
            if min < 0 || max < min {
                fault(path, "the bounds of `\(name)` are invalid", expected: "0 <= min <= max", found: "\(min), \(max)")
            }
            if symbolNames.contains(name) { fault(path, "the symbol `\(name)` occurs twice", found: name) }
            symbolNames.append(name)
            contract.symbols.append(Contract.Symbol(name: name, min: min, max: max))
        }
        for (index, value) in array(top["functions"], "functions").enumerated() {
            guard let function = readFunction(value, "functions[\(index)]") else { continue }
            if contract.functions.contains(where: { $0.name == function.name }) {
                fault("functions[\(index)]", "the function `\(function.name)` occurs twice", found: function.name)
            }
            contract.functions.append(function)
        }
        return contract
    }

    mutating func readFunction(_ value: JSONValue, _ path: String) -> Contract.Function? {
        guard let fields = members(value, path, keys: ["name", "inputs", "states", "outputs"]) else { return nil }
        let name = name(fields["name"], "\(path).name")
        var entries: [Contract.Role: [Contract.Entry]] = [:]
        for role in Contract.Role.allCases {
            let rolePath = "\(path).\(role.plural)"
            var list: [Contract.Entry] = []
            for (index, value) in array(fields[role.plural], rolePath).enumerated() {
                guard let entry = readEntry(value, "\(rolePath)[\(index)]") else { continue }
                if list.contains(where: { $0.name == entry.name }) {
                    fault(
                        "\(rolePath)[\(index)]", "the \(role.rawValue) `\(entry.name)` occurs twice", found: entry.name)
                }
                list.append(entry)
            }
            entries[role] = list
        }
        guard let name else { return nil }
        return Contract.Function(
            name: name, inputs: entries[.input] ?? [], states: entries[.state] ?? [], outputs: entries[.output] ?? [])
    }

    mutating func readEntry(_ value: JSONValue, _ path: String) -> Contract.Entry? {
        guard let fields = members(value, path, keys: ["name", "scalarType", "shape"]) else { return nil }
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
                    fault(
                        axisPath, "the size `\(text)` is invalid: \(error.message)",
                        expected: "a number or an expression of \(symbolNames.joined(separator: ", "))", found: text,
                        hint: error.unknownName.flatMap { ArgumentParser.suggestion(for: $0, among: symbolNames) })
                }
            default:
                let found = value.integerValue.map(String.init) ?? value.kind
                fault(
                    axisPath, "the size is invalid", expected: "a number of at least 0, or an expression", found: found)
            }
        }
        guard let name, let scalarType else { return nil }
        return Contract.Entry(name: name, scalarType: scalarType, shape: shape)
    }
}
