/// Byte counts as people give them to an option: `2GiB`, `1.5 GB` written together, `4096`.
package enum ByteCountText {
    static let units: [(name: String, bytes: Int)] = [
        ("B", 1), ("KB", 1000), ("KiB", 1 << 10), ("MB", 1_000_000), ("MiB", 1 << 20), ("GB", 1_000_000_000),
        ("GiB", 1 << 30), ("TB", 1_000_000_000_000), ("TiB", 1 << 40),
    ]

    static let expectation = "a number with a unit: \(units.map(\.name).joined(separator: ", ")); without one, bytes"

    /// Digits, at most one point with digits on both sides, then a unit as spelled above. Nil for anything else, for
    /// a fraction of a byte, and for what passes int64.
    package static func parse(_ text: String) -> Int? {
        let number = text.prefix { $0 == "." || $0.isASCII && $0.isNumber }
        let suffix = text[number.endIndex...]
        guard let unit = suffix.isEmpty ? 1 : units.first(where: { $0.name == suffix })?.bytes else { return nil }
        let parts = number.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count <= 2, parts.allSatisfy({ !$0.isEmpty }), let whole = Int(parts[0]) else { return nil }
        let (bytes, overflow) = whole.multipliedReportingOverflow(by: unit)
        if overflow { return nil }
        guard parts.count == 2 else { return bytes }
        var (fraction, scale) = (0, 1)
        // Nine digits say more than any unit needs, and fit.
        guard parts[1].count <= 9 else { return nil }
        for digit in parts[1] {
            fraction = fraction * 10 + digit.wholeNumberValue!
            scale *= 10
        }
        let (high, low) = fraction.multipliedFullWidth(by: unit)
        let (quotient, remainder) = scale.dividingFullWidth((high, low))
        let (sum, carry) = bytes.addingReportingOverflow(quotient)
        return remainder == 0 && !carry ? sum : nil
    }

    /// The unit that was probably meant, for a suggestion; nil when the number is the fault.
    static func suggestion(for text: String) -> String? {
        let number = text.prefix { $0 == "." || $0.isASCII && $0.isNumber }
        let suffix = text[number.endIndex...].filter { $0 != " " }.lowercased()
        guard !number.isEmpty, !suffix.isEmpty else { return nil }
        let name = units.map(\.name).first { $0.lowercased() == suffix || $0.lowercased() == suffix + "b" }
        guard let name, parse(number + name) != nil else { return nil }
        return "did you mean `\(number)\(name)`?"
    }
}
