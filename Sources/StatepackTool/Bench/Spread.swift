/// Repeated measurements in figures that one slow moment does not move.
package struct Spread: Sendable, Hashable {
    package let count: Int
    package let median: Double
    package let minimum: Double
    package let maximum: Double
    /// A quarter of the measurements lies below the first and above the second.
    package let quartiles: (lower: Double, upper: Double)

    /// Of no measurement there is no spread: nil.
    package init?(of values: [Double]) {
        guard let minimum = values.min(), let maximum = values.max() else { return nil }
        let sorted = values.sorted()
        /// Between two neighbours on a straight line, as numpy does by default.
        func quantile(_ part: Double) -> Double {
            let place = part * Double(sorted.count - 1)
            let low = Int(place)
            let high = min(low + 1, sorted.count - 1)
            return sorted[low] + (sorted[high] - sorted[low]) * (place - Double(low))
        }
        count = values.count
        median = quantile(0.5)
        self.minimum = minimum
        self.maximum = maximum
        quartiles = (quantile(0.25), quantile(0.75))
    }

    package static func == (a: Spread, b: Spread) -> Bool {
        (a.count, a.median, a.minimum, a.maximum) == (b.count, b.median, b.minimum, b.maximum)
            && a.quartiles == b.quartiles
    }

    package func hash(into hasher: inout Hasher) {
        for value in [median, minimum, maximum, quartiles.lower, quartiles.upper] { hasher.combine(value) }
    }

    var json: JSONValue {
        [
            "median": .number(median), "min": .number(minimum), "lowerQuartile": .number(quartiles.lower),
            "upperQuartile": .number(quartiles.upper), "max": .number(maximum), "count": .integer(count),
        ]
    }

    /// `12.1 (11.8 to 14.0)`: median, least and largest.
    func text(digits: Int) -> String {
        "\(decimalText(median, digits: digits)) (\(decimalText(minimum, digits: digits)) to "
            + "\(decimalText(maximum, digits: digits)))"
    }
}
