import StatepackDiagnostics

/// Rows of text in columns, for results on a terminal.
struct TextTable {
    private var rows: [[String]] = []
    private var rightAligned: Set<Int>

    /// Numbers read best when their columns are aligned to the right.
    init(rightAligned: Set<Int> = []) { self.rightAligned = rightAligned }

    mutating func add(_ cells: String...) { add(cells) }

    /// Names come from files, and a cell is part of one line: what would end or reorder it is spelled out.
    mutating func add(_ cells: [String]) { rows.append(cells.map(Diagnostic.printable)) }

    var isEmpty: Bool { rows.isEmpty }

    /// Each row on a line after `indent`, columns two blanks apart, nothing trailing.
    func lines(indent: String = "  ") -> [String] {
        let columns = rows.map(\.count).max() ?? 0
        let widths = (0..<columns).map { column in rows.map { column < $0.count ? $0[column].count : 0 }.max() ?? 0 }
        return rows.map { row in
            var line = indent
            for (column, cell) in row.enumerated() {
                let padding = String(repeating: " ", count: widths[column] - cell.count)
                line += rightAligned.contains(column) ? padding + cell : cell + padding
                if column + 1 < row.count { line += "  " }
            }
            while line.last == " " { line.removeLast() }
            return line
        }
    }
}

/// `512 bytes`, `1.5 KiB`, `94.4 MiB`: three digits and no more, as people compare sizes.
package func byteText(_ count: Int) -> String {
    if count < 1024 { return count == 1 ? "1 byte" : "\(count) bytes" }
    var value = Double(count)
    for unit in ["KiB", "MiB", "GiB", "TiB"] {
        value /= 1024
        if value < 1024 || unit == "TiB" {
            return "\(decimalText(value, digits: value < 10 ? 2 : value < 100 ? 1 : 0)) \(unit)"
        }
    }
    return "\(count) bytes"
}

/// A number with that many digits after the point; without Foundation there is no format string.
func decimalText(_ value: Double, digits: Int) -> String {
    guard value.isFinite, value.magnitude < 1e15 else { return "\(value)" }
    var scale = 1.0
    for _ in 0..<digits { scale *= 10 }
    let scaled = Int((value.magnitude * scale).rounded())
    let (whole, fraction) = scaled.quotientAndRemainder(dividingBy: Int(scale))
    let sign = value < 0 && scaled != 0 ? "-" : ""
    if digits == 0 { return "\(sign)\(whole)" }
    let text = String(fraction)
    return "\(sign)\(whole).\(String(repeating: "0", count: digits - text.count))\(text)"
}

func counted(_ count: Int, _ noun: String) -> String { count == 1 ? "1 \(noun)" : "\(count) \(noun)s" }

/// Three significant digits, for differences and ratios.
func shortText(_ value: Double) -> String {
    guard value.isFinite, value != 0 else { return value == 0 ? "0" : "\(value)" }
    var exponent = 0
    var mantissa = value.magnitude
    while mantissa >= 9.995 {
        mantissa /= 10
        exponent += 1
    }
    while mantissa < 0.9995 {
        mantissa *= 10
        exponent -= 1
    }
    if (-3..<4).contains(exponent) { return decimalText(value, digits: max(0, 2 - exponent)) }
    return "\(value < 0 ? "-" : "")\(decimalText(mantissa, digits: 2))e\(exponent)"
}

func hexadecimalText(_ bytes: some Sequence<UInt8>) -> String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
}
