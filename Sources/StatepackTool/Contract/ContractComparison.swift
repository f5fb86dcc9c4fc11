import StatepackBundle
import StatepackDiagnostics

extension Contract {
    /// Every difference between this contract, which callers rely on, and another one, with its class.
    /// Empty when the contract holds. In order of this contract; cost: linear but for names that differ.
    package func differences(from found: Contract) -> [ContractDifference] {
        var comparison = ContractComparison(expected: self, found: found)
        comparison.compare()
        return comparison.differences
    }
}

/// docs/contract.md has the table of classes that this implements.
private struct ContractComparison {
    let expected: Contract
    let found: Contract
    var differences: [ContractDifference] = []
    /// Symbols of both sides in one numbering, so that a renamed one has the same number on both.
    var expectedSymbols: [String] = []
    var foundSymbols: [String] = []

    init(expected: Contract, found: Contract) {
        self.expected = expected
        self.found = found
    }

    private mutating func add(
        _ class: ContractDifference.Class, _ change: ContractDifference.Change, _ code: Diagnostic.Code,
        _ message: String, at location: String, expected: String, found: String, hint: String? = nil
    ) {
        differences.append(
            ContractDifference(
                `class`, change,
                Diagnostic(code, message, at: location, expected: expected, found: found, hint: hint)))
    }

    private func list(_ names: [String], _ plural: String) -> String {
        names.isEmpty ? "no \(plural)" : names.joined(separator: ", ")
    }

    mutating func compare() {
        compareSymbols()
        compareFunctions()
    }

    // MARK: Symbols

    private mutating func compareSymbols() {
        let (expectedNames, foundNames) = (expected.symbols.map(\.name), found.symbols.map(\.name))
        let missing = expected.symbols.filter { !foundNames.contains($0.name) }
        var extra = found.symbols.filter { !expectedNames.contains($0.name) }
        var renamed: [String: Contract.Symbol] = [:]
        if missing.count == 1, extra.count == 1 {
            renamed[missing[0].name] = extra.removeFirst()
        } else {
            // With the same bounds they are told apart by order, which follows first use on both sides.
            for symbol in missing {
                guard let index = extra.firstIndex(where: { $0.min == symbol.min && $0.max == symbol.max }) else {
                    continue
                }
                renamed[symbol.name] = extra.remove(at: index)
            }
        }
        expectedSymbols = expectedNames + extra.map { _ in "" }
        foundSymbols =
            expectedNames.map { renamed[$0]?.name ?? (foundNames.contains($0) ? $0 : "") } + extra.map(\.name)
        for symbol in expected.symbols {
            let location = "symbol `\(symbol.name)`"
            let other = renamed[symbol.name] ?? found.symbols.first { $0.name == symbol.name }
            guard let other else {
                let isUsed = Self.uses(symbol.name, in: expected)
                add(
                    isUsed ? .breaking : .compatible, .removed, .contractSymbol,
                    "there is no symbol `\(symbol.name)`", at: location,
                    expected: "\(symbol.name): \(Self.bounds(symbol))", found: list(foundNames, "symbols"),
                    hint: ArgumentParser.suggestion(for: symbol.name, among: extra.map(\.name)))
                continue
            }
            if other.name != symbol.name {
                add(
                    .compatible, .renamed, .contractSymbol, "the symbol `\(symbol.name)` is called `\(other.name)`",
                    at: location, expected: symbol.name, found: other.name)
            }
            if other.min != symbol.min || other.max != symbol.max {
                let isWider = other.min <= symbol.min && other.max >= symbol.max
                add(
                    isWider ? .compatible : .breaking, .bounds, .contractSymbol,
                    isWider
                        ? "the symbol `\(symbol.name)` has wider bounds"
                        : "the symbol `\(symbol.name)` has other bounds",
                    at: location, expected: Self.bounds(symbol), found: Self.bounds(other))
            }
        }
        for symbol in extra {
            // Where it is used, the shapes differ as well, and they say what that means.
            add(
                .compatible, .added, .contractSymbol, "the symbol `\(symbol.name)` is new",
                at: "symbol `\(symbol.name)`", expected: list(expectedNames, "symbols"),
                found: "\(symbol.name): \(Self.bounds(symbol))")
        }
    }

    private static func bounds(_ symbol: Contract.Symbol) -> String { "\(symbol.min) to \(symbol.max)" }

    private static func uses(_ symbol: String, in contract: Contract) -> Bool {
        let names = contract.symbols.map(\.name)
        guard let index = names.firstIndex(of: symbol) else { return false }
        let others = names.enumerated().map { $0.offset == index ? "" : $0.element }
        return contract.functions.contains { function in
            Contract.Role.allCases.contains { role in
                function[role].contains { entry in
                    entry.shape.contains { (try? SizeText.parse($0, symbolNames: others)) == nil }
                }
            }
        }
    }

    /// Compared as expressions over the symbols of both, so that spelling does not count.
    private func sameShape(_ a: [String], _ b: [String]) -> Bool {
        guard a.count == b.count else { return false }
        return zip(a, b).allSatisfy { a, b in
            guard let x = try? SizeText.parse(a, symbolNames: expectedSymbols),
                let y = try? SizeText.parse(b, symbolNames: foundSymbols)
            else { return a == b }
            return x == y
        }
    }

    private func sameType(_ a: Contract.Entry, _ b: Contract.Entry) -> Bool {
        a.scalarType == b.scalarType && sameShape(a.shape, b.shape)
    }

    // MARK: Functions

    private mutating func compareFunctions() {
        let (expectedNames, foundNames) = (expected.functions.map(\.name), found.functions.map(\.name))
        var extra = found.functions.filter { !expectedNames.contains($0.name) }
        var renamed: [String: Contract.Function] = [:]
        for function in expected.functions where !foundNames.contains(function.name) {
            guard let index = extra.firstIndex(where: { sameInterface(function, $0) }) else { continue }
            renamed[function.name] = extra.remove(at: index)
        }
        for function in expected.functions {
            let location = "function `\(function.name)`"
            let other = renamed[function.name] ?? found.functions.first { $0.name == function.name }
            guard let other else {
                add(
                    .breaking, .removed, .contractFunctionMissing, "there is no function `\(function.name)`",
                    at: location, expected: list(expectedNames, "functions"), found: list(foundNames, "functions"),
                    hint: ArgumentParser.suggestion(for: function.name, among: extra.map(\.name)))
                continue
            }
            if other.name != function.name {
                add(
                    .breaking, .renamed, .contractRenamed,
                    "the function `\(function.name)` is called `\(other.name)`", at: location,
                    expected: function.name, found: other.name,
                    hint: "name it `\(function.name)` in the exporter, or change the contract and the callers together")
            }
            compare(function, with: other)
        }
        for function in extra {
            add(
                .compatible, .added, .contractFunctionExtra, "the function `\(function.name)` is new",
                at: "function `\(function.name)`", expected: list(expectedNames, "functions"),
                found: list(foundNames, "functions"))
        }
        let common = expectedNames.compactMap { name in
            renamed[name]?.name ?? (foundNames.contains(name) ? name : nil)
        }
        if common != foundNames.filter(common.contains) {
            add(
                .compatible, .order, .contractOrder, "the functions come in another order", at: "functions",
                expected: list(expectedNames, "functions"), found: list(foundNames, "functions"))
        }
    }

    /// Whether names, types and order of all arguments are the same.
    private func sameInterface(_ a: Contract.Function, _ b: Contract.Function) -> Bool {
        Contract.Role.allCases.allSatisfy { role in
            a[role].count == b[role].count
                && zip(a[role], b[role]).allSatisfy { $0.name == $1.name && sameType($0, $1) }
        }
    }

    private mutating func compare(_ function: Contract.Function, with other: Contract.Function) {
        var names: [Contract.Role: [String: String]] = [:]
        for role in Contract.Role.allCases { names[role] = compare(role, of: function, with: other) }
        compareContext(function, other, inputs: names[.input] ?? [:], states: names[.state] ?? [:])
    }

    /// Which extra entry is a missing one under another name: one of the same type in the same place, or
    /// else one of the same type with a name that is near.
    private func renames(_ expected: [Contract.Entry], _ found: [Contract.Entry]) -> [String: String] {
        let (expectedNames, foundNames) = (Set(expected.map(\.name)), Set(found.map(\.name)))
        var missing = expected.filter { !foundNames.contains($0.name) }
        var extra = found.filter { !expectedNames.contains($0.name) }
        var result: [String: String] = [:]
        func take(_ isMatch: (Contract.Entry, Contract.Entry) -> Bool) {
            missing.removeAll { entry in
                guard let index = extra.firstIndex(where: { isMatch(entry, $0) }) else { return false }
                result[entry.name] = extra.remove(at: index).name
                return true
            }
        }
        func place(_ name: String, _ entries: [Contract.Entry]) -> Int? { entries.firstIndex { $0.name == name } }
        take { sameType($0, $1) && place($0.name, expected) == place($1.name, found) }
        take { sameType($0, $1) && nearestName(to: $0.name, among: [$1.name]) != nil }
        return result
    }

    /// Reports what differs in one list, and returns the names that changed.
    private mutating func compare(
        _ role: Contract.Role, of function: Contract.Function, with other: Contract.Function
    ) -> [String: String] {
        let (entries, actual) = (function[role], other[role])
        let (names, actualNames) = (entries.map(\.name), actual.map(\.name))
        let renamed = renames(entries, actual)
        let newNames = Set(renamed.values)
        let (word, plural) = (role.rawValue, role.plural)
        func location(_ name: String) -> String { "function `\(function.name)`, \(word) `\(name)`" }
        for entry in entries {
            let name = renamed[entry.name] ?? entry.name
            guard let match = actual.first(where: { $0.name == name }) else {
                let extras = actualNames.filter { !names.contains($0) && !newNames.contains($0) }
                let elsewhere = Contract.Role.allCases.first { other[$0].contains { $0.name == entry.name } }
                add(
                    .breaking, .removed, .contractEntryMissing, "there is no \(word) `\(entry.name)`",
                    at: location(entry.name), expected: "\(entry.name): \(entry.typeText)",
                    found: list(actualNames, plural),
                    hint: elsewhere.map { "`\(entry.name)` is declared as \($0.article) \($0.rawValue)" }
                        ?? ArgumentParser.suggestion(for: entry.name, among: extras))
                continue
            }
            if name != entry.name {
                add(
                    .breaking, .renamed, .contractRenamed, "the \(word) `\(entry.name)` is called `\(name)`",
                    at: location(entry.name), expected: "\(entry.name): \(entry.typeText)",
                    found: "\(name): \(match.typeText)",
                    hint: "name it `\(entry.name)` with \(word)_names in the exporter, "
                        + "or change the contract and the callers together")
            }
            if match.scalarType != entry.scalarType {
                add(
                    .breaking, .scalarType, .contractScalarType, "the \(word) `\(entry.name)` has another scalar type",
                    at: location(entry.name), expected: entry.typeText, found: match.typeText)
            }
            if !sameShape(entry.shape, match.shape) {
                add(
                    .breaking, .shape, .contractShape, "the \(word) `\(entry.name)` has another shape",
                    at: location(entry.name), expected: entry.typeText, found: match.typeText)
            }
            if let rules = entry.rules, let others = match.rules {
                compareRules(rules, others, entry, match, at: location(entry.name))
            }
        }
        let kept = Set(names).union(newNames)
        for (index, entry) in actual.enumerated() where !kept.contains(entry.name) {
            // Callers of an output bind it by name, or by a position that one at the end does not move.
            let isAppended = role == .output && actual[index...].allSatisfy { !kept.contains($0.name) }
            add(
                isAppended ? .compatible : .breaking, .added, .contractEntryExtra,
                "the \(word) `\(entry.name)` is new", at: location(entry.name), expected: list(names, plural),
                found: "\(entry.name): \(entry.typeText)")
        }
        // The order of those that both have; a missing or an extra one is its own finding.
        let common = names.map { renamed[$0] ?? $0 }.filter(actualNames.contains)
        if common != actualNames.filter(kept.contains) {
            add(
                .breaking, .order, .contractOrder, "the \(plural) come in another order",
                at: "function `\(function.name)`", expected: list(names, plural), found: list(actualNames, plural))
        }
        return renamed
    }

    private mutating func compareRules(
        _ rules: Contract.StateRules, _ others: Contract.StateRules, _ entry: Contract.Entry, _ match: Contract.Entry,
        at location: String
    ) {
        // The bits of another type are another value of no account: the type is the difference.
        if entry.scalarType == match.scalarType, rules.initialValue != others.initialValue {
            add(
                .numeric, .initialValue, .contractInitialValue, "the state `\(entry.name)` starts from other values",
                at: location, expected: rules.initialValue.text(entry.scalarType),
                found: others.initialValue.text(match.scalarType))
        }
        if rules.writtenBy == others.writtenBy { return }
        // What a caller put into a state that is only read stays there; what a call left in one that is written is
        // what the next call starts from. Neither holds any longer when the one becomes the other.
        if rules.isWritten, others.isWritten {
            add(
                .compatible, .writtenBy, .contractWrittenBy, "the state `\(entry.name)` is written in another way",
                at: location, expected: rules.writtenBy, found: others.writtenBy)
        } else {
            add(
                .breaking, .writtenBy, .contractWrittenBy,
                rules.isWritten
                    ? "the function no longer writes the state `\(entry.name)`"
                    : "the function writes the state `\(entry.name)`, which it only read",
                at: location, expected: "written by \(rules.writtenBy)", found: "written by \(others.writtenBy)")
        }
    }

    // MARK: Context rules

    private mutating func compareContext(
        _ function: Contract.Function, _ other: Contract.Function, inputs: [String: String], states: [String: String]
    ) {
        let (rules, others) = (function.context, other.context)
        if rules == nil, others == nil { return }
        let location = "function `\(function.name)`, context"
        guard let rules else {
            add(
                .breaking, .added, .contractContext, "the function `\(function.name)` declares context rules",
                at: location, expected: "no context rules", found: others?.text ?? "")
            return
        }
        guard let others else {
            add(
                .breaking, .removed, .contractContext, "the function `\(function.name)` declares no context rules",
                at: location, expected: rules.text, found: "no context rules")
            return
        }
        // A name that changed is reported where it is declared, whether the rules follow it or not.
        func isSame(_ name: String, _ other: String, _ renamed: [String: String]) -> Bool {
            name == other || renamed[name] == other
        }
        if isSame(rules.positions, others.positions, inputs), rules.axes.count == others.axes.count,
            rules.axes.allSatisfy({ axis in
                others.axes.contains { $0.axis == axis.axis && isSame(axis.state, $0.state, states) }
            })
        {
            return
        }
        add(
            .breaking, .context, .contractContext, "the function `\(function.name)` has other context rules",
            at: location, expected: rules.text, found: others.text)
    }
}

extension Contract.InitialValue {
    /// `0.5`, or `a tensor with sha256 …`
    package func text(_ type: ScalarType) -> String {
        switch self {
        case .fill(let bits): FillText.text(bits, type)
        case .tensor(let digest): "a tensor with sha256 \(hexadecimalText(digest))"
        }
    }
}

extension Contract.Role {
    fileprivate var article: String { self == .state ? "a" : "an" }
}
