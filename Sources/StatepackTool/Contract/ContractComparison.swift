import StatepackBundle
import StatepackDiagnostics

extension Contract {
    /// Every difference between this contract, which a caller relies on, and the descriptors of a program.
    /// Empty when the contract holds. In order of the contract; cost: linear but for the suggestions.
    package func differences(from found: Contract) -> [Diagnostic] {
        var findings = symbolDifferences(from: found)
        let foundNames = found.functions.map(\.name)
        let expectedNames = functions.map(\.name)
        for function in functions {
            guard let other = found.functions.first(where: { $0.name == function.name }) else {
                let extras = foundNames.filter { !expectedNames.contains($0) }
                findings.append(
                    Diagnostic(
                        .contractFunctionMissing, "the program has no function `\(function.name)`",
                        at: "function `\(function.name)`", expected: expectedNames.joined(separator: ", "),
                        found: foundNames.joined(separator: ", "),
                        hint: ArgumentParser.suggestion(for: function.name, among: extras)))
                continue
            }
            for role in Role.allCases { findings += differences(role, of: function, from: other, in: found) }
        }
        for name in foundNames where !expectedNames.contains(name) {
            findings.append(
                Diagnostic(
                    .contractFunctionExtra, "the contract does not declare the function `\(name)`",
                    at: "function `\(name)`", expected: expectedNames.joined(separator: ", "),
                    found: foundNames.joined(separator: ", ")))
        }
        return findings
    }

    private func symbolDifferences(from found: Contract) -> [Diagnostic] {
        symbols.compactMap { symbol in
            let expected = "\(symbol.min) to \(symbol.max)"
            guard let other = found.symbols.first(where: { $0.name == symbol.name }) else {
                return Diagnostic(
                    .contractSymbol, "the program has no symbol `\(symbol.name)`", at: "symbol `\(symbol.name)`",
                    expected: "\(symbol.name): \(expected)",
                    found: found.symbols.isEmpty ? "no symbols" : found.symbols.map(\.name).joined(separator: ", "),
                    hint: ArgumentParser.suggestion(for: symbol.name, among: found.symbols.map(\.name)))
            }
            if other.min == symbol.min && other.max == symbol.max { return nil }
            return Diagnostic(
                .contractSymbol, "the symbol `\(symbol.name)` has other bounds", at: "symbol `\(symbol.name)`",
                expected: expected, found: "\(other.min) to \(other.max)")
        }
    }

    private func differences(
        _ role: Role, of function: Function, from other: Function, in found: Contract
    ) -> [Diagnostic] {
        let (expected, actual) = (function[role], other[role])
        let (expectedNames, actualNames) = (expected.map(\.name), actual.map(\.name))
        func location(_ name: String) -> String { "function `\(function.name)`, \(role.rawValue) `\(name)`" }
        var findings: [Diagnostic] = []
        for entry in expected {
            guard let match = actual.first(where: { $0.name == entry.name }) else {
                let extras = actualNames.filter { !expectedNames.contains($0) }
                let elsewhere = Role.allCases.first { other[$0].contains { $0.name == entry.name } }
                findings.append(
                    Diagnostic(
                        .contractEntryMissing, "the function has no \(role.rawValue) `\(entry.name)`",
                        at: location(entry.name), expected: "\(entry.name): \(entry.typeText)",
                        found: actualNames.isEmpty ? "no \(role.plural)" : actualNames.joined(separator: ", "),
                        hint: elsewhere.map { "`\(entry.name)` is declared as \($0.article) \($0.rawValue)" }
                            ?? ArgumentParser.suggestion(for: entry.name, among: extras)))
                continue
            }
            if match.scalarType != entry.scalarType {
                findings.append(
                    Diagnostic(
                        .contractScalarType, "the \(role.rawValue) `\(entry.name)` has another scalar type",
                        at: location(entry.name), expected: entry.typeText, found: match.typeText))
            }
            if !sameShape(entry.shape, match.shape, in: found) {
                findings.append(
                    Diagnostic(
                        .contractShape, "the \(role.rawValue) `\(entry.name)` has another shape",
                        at: location(entry.name), expected: entry.typeText, found: match.typeText))
            }
        }
        for entry in actual where !expectedNames.contains(entry.name) {
            findings.append(
                Diagnostic(
                    .contractEntryExtra, "the contract does not declare the \(role.rawValue) `\(entry.name)`",
                    at: location(entry.name),
                    expected: expectedNames.isEmpty ? "no \(role.plural)" : expectedNames.joined(separator: ", "),
                    found: "\(entry.name): \(entry.typeText)"))
        }
        // The order of those that both have; a missing or an extra one is its own finding.
        let common = expectedNames.filter(actualNames.contains)
        let order = actualNames.filter(expectedNames.contains)
        if common != order {
            findings.append(
                Diagnostic(
                    .contractOrder, "the \(role.plural) come in another order", at: "function `\(function.name)`",
                    expected: expectedNames.joined(separator: ", "), found: actualNames.joined(separator: ", ")))
        }
        return findings
    }

    /// Compared as expressions over the symbols of both, so that spelling does not count.
    private func sameShape(_ a: [String], _ b: [String], in found: Contract) -> Bool {
        guard a.count == b.count else { return false }
        var names = symbols.map(\.name)
        names += found.symbols.map(\.name).filter { !names.contains($0) }
        return zip(a, b).allSatisfy { a, b in
            guard let x = try? SizeText.parse(a, symbolNames: names), let y = try? SizeText.parse(b, symbolNames: names)
            else { return a == b }
            return x == y
        }
    }
}

extension Contract.Role {
    fileprivate var article: String { self == .state ? "a" : "an" }
}
