import StatepackDiagnostics

/// One difference between two contracts, or between two programs, with what it means for callers.
package struct ContractDifference: Hashable, Sendable {
    /// In order of weight.
    package enum Class: String, Hashable, Sendable, CaseIterable {
        /// Swift callers must change: a call that was right may be refused or mean something else.
        case breaking
        /// Callers need not change.
        case compatible
        /// Names, types and shapes stay; only values change.
        case numeric
    }

    package enum Change: String, Hashable, Sendable {
        case added
        case removed
        case renamed
        case order
        case scalarType
        case shape
        case bounds
        case context
        case initialValue
        case writtenBy
        case weights
        case graph
        case program
    }

    package var `class`: Class
    package var change: Change
    /// `expected` is the contract's or the old side, `found` the program's or the new one.
    package var diagnostic: Diagnostic

    package init(_ class: Class, _ change: Change, _ diagnostic: Diagnostic) {
        self.class = `class`
        self.change = change
        self.diagnostic = diagnostic
    }

    /// For people who look at two versions: the two sides are called `old` and `new`.
    ///
    ///     breaking[E0718]: the state `keyCache` has another shape
    ///       --> function `main`, state `keyCache`
    ///       old:  [2, 256, 64] float32
    ///       new:  [2, 512, 64] float32
    package var text: String {
        var lines = ["\(`class`.rawValue)[\(diagnostic.code)]: \(Diagnostic.printable(diagnostic.message))"]
        if let location = diagnostic.location { lines.append("  --> \(Diagnostic.printable(location))") }
        for (label, value) in [
            ("old:  ", diagnostic.expected), ("new:  ", diagnostic.found), ("hint: ", diagnostic.hint),
        ] {
            if let value { lines.append("  \(label)\(Diagnostic.printable(value))") }
        }
        return lines.joined(separator: "\n") + "\n"
    }

    package var json: JSONValue {
        [
            "class": .string(`class`.rawValue), "change": .string(change.rawValue),
            "code": .string(diagnostic.code.rawValue), "message": .string(diagnostic.message),
            "location": diagnostic.location.map { .string($0) }, "old": diagnostic.expected.map { .string($0) },
            "new": diagnostic.found.map { .string($0) }, "hint": diagnostic.hint.map { .string($0) },
        ]
    }

    /// The diagnostic with the class in its message, as `validate` and `convert` report it.
    package var finding: Diagnostic {
        var finding = diagnostic
        finding.message += " (\(`class`.rawValue))"
        return finding
    }

    /// The finding at its model, with the command that accepts the change. A contract that is not staged is refused
    /// again by a hook, so that the hint ends with that.
    func finding(in model: String, acceptedBy command: String, contract: String) -> Diagnostic {
        var finding = self.finding
        finding.location = finding.location.map { "\(model), \($0)" } ?? model
        let accept =
            "when the change is meant: \(command)"
            + (`class` == .breaking ? ", and change the Swift callers" : "") + ", then git add \(contract)"
        finding.hint = finding.hint.map { "\($0)\n\(accept)" } ?? accept
        return finding
    }
}
