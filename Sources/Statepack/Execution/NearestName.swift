extension [String] {
    /// The element that a mistyped name was most likely meant to be.
    func nearest(to name: String) -> String? {
        let ranked = map { (name: $0, distance: $0.editDistance(to: name)) }.min { $0.distance < $1.distance }
        guard let ranked, ranked.distance <= Swift.max(1, Swift.min(3, name.count / 3)) else { return nil }
        return ranked.name
    }
}

extension String {
    fileprivate func editDistance(to other: String) -> Int {
        let (a, b) = (Array(unicodeScalars), Array(other.unicodeScalars))
        var row = Array(0...b.count)
        for i in 0..<a.count {
            var diagonal = row[0]
            row[0] = i + 1
            for j in 0..<b.count {
                let cost = Swift.min(diagonal + (a[i] == b[j] ? 0 : 1), row[j] + 1, row[j + 1] + 1)
                diagonal = row[j + 1]
                row[j + 1] = cost
            }
        }
        return row[b.count]
    }
}
