/// One finding, as a value: what went wrong, where, what was expected, what was found, what to do.
///
/// Every tool and the runtime report through this type and print it with the one renderer below, so
/// that people and machines read the same facts:
///
///     error[E0604]: view for state `valueCache` has the wrong shape
///       --> function `decode`, run(inputs:states:outputViews:)
///       expected: [1, 8, 2048, 64] float16
///       found:    [1, 8, 1024, 64] float16
///       hint:     create the array from descriptor.stateDescriptor(of: "valueCache")
public struct Diagnostic: Error, Hashable, Sendable {
    /// A stable code such as `E0604`. `schemas/errors.json` has the whole list; its constants are generated.
    ///
    /// A structure rather than an enumeration, so that a new code breaks no client.
    public struct Code: Hashable, Sendable, CustomStringConvertible {
        public let rawValue: String

        package init(_ rawValue: String) { self.rawValue = rawValue }

        public var description: String { rawValue }
    }

    public enum Severity: String, Hashable, Sendable {
        case error
        case warning
        case note
    }

    public var severity: Severity
    public var code: Code
    /// One lowercase clause without a full stop that stands alone.
    public var message: String
    /// Where: a file, a function, an argument, a section.
    public var location: String?
    public var expected: String?
    public var found: String?
    /// What to do about it.
    public var hint: String?

    package init(
        _ code: Code, _ message: String, severity: Severity = .error, at location: String? = nil,
        expected: String? = nil, found: String? = nil, hint: String? = nil
    ) {
        self.severity = severity
        self.code = code
        self.message = Self.clipped(message)
        self.location = location.map(Self.clipped)
        self.expected = expected.map(Self.clipped)
        self.found = found.map(Self.clipped)
        self.hint = hint.map(Self.clipped)
    }

    /// The longest text that a diagnostic quotes.
    package static let maximumTextBytes = 8192

    /// What files hold may be as long as the files; a report of it must not be.
    private static func clipped(_ text: String) -> String {
        if text.utf8.count <= maximumTextBytes { return text }
        var end = text.utf8.index(text.startIndex, offsetBy: maximumTextBytes)
        while end.samePosition(in: text.unicodeScalars) == nil { end = text.utf8.index(before: end) }
        return String(text.unicodeScalars[..<end]) + "…"
    }
}

extension Diagnostic: CustomStringConvertible {
    /// The text form, without a trailing line break. Control characters in names are escaped.
    public var description: String {
        var lines = ["\(severity.rawValue)[\(code)]: \(Self.printable(message))"]
        if let location { lines.append("  --> \(Self.printable(location))") }
        for (label, value) in [("expected: ", expected), ("found:    ", found), ("hint:     ", hint)] {
            guard let value else { continue }
            let parts = value.split(separator: "\n", omittingEmptySubsequences: false).map {
                Self.printable(String($0))
            }
            lines.append("  \(label)\(parts[0])")
            for part in parts.dropFirst() { lines.append("            \(part)") }
        }
        return lines.joined(separator: "\n")
    }

    /// What a terminal obeys, what ends a line or reorders it, and what nobody sees: two names that differ in nothing
    /// else must not look alike.
    private static func isHidden(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar.properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator: true
        case .spaceSeparator: scalar != " "
        default: scalar.properties.isDefaultIgnorableCodePoint
        }
    }

    /// Names come from files; a terminal must not obey what they contain.
    package static func printable(_ text: String) -> String {
        var result = ""
        for scalar in text.unicodeScalars {
            if isHidden(scalar) {
                let hex = String(scalar.value, radix: 16, uppercase: true)
                result += "\\u{\(hex)}"
            } else {
                result.unicodeScalars.append(scalar)
            }
        }
        return result
    }
}

/// Several findings of one act, in the order they were found. Never empty of errors when thrown.
public struct DiagnosticList: Error, Hashable, Sendable, CustomStringConvertible {
    public var diagnostics: [Diagnostic]

    package init(_ diagnostics: [Diagnostic]) { self.diagnostics = diagnostics }

    public var description: String { diagnostics.map(\.description).joined(separator: "\n") }
}
