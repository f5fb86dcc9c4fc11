/// The candidate that `word` was most likely meant to be, or nil when none is near.
///
/// Near means that at most a third of the letters (one at least) were added, dropped, replaced or
/// swapped with a neighbour. Of equally near ones the first wins. Case counts half: `KEYCACHE` finds `keyCache`.
package func nearestName(to word: String, among candidates: some Sequence<String>) -> String? {
    var best: (name: String, distance: Int)?
    for candidate in candidates where candidate != word {
        let limit = max(1, max(word.count, candidate.count) / 3)
        let exact = editDistance(word, candidate)
        let folded = editDistance(word.lowercased(), candidate.lowercased())
        guard folded <= limit else { continue }
        let distance = exact + folded
        if best.map({ distance < $0.distance }) ?? true { best = (candidate, distance) }
    }
    return best?.name
}

/// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
/// Cost: product of the lengths, each cut at 128.
package func editDistance(_ a: String, _ b: String) -> Int {
    let (a, b) = (Array(a.prefix(128)), Array(b.prefix(128)))
    if a.isEmpty || b.isEmpty { return max(a.count, b.count) }
    var beforePrevious: [Int] = []
    var previous = Array(0...b.count)
    for i in 1...a.count {
        var current = [i]
        for j in 1...b.count {
            var distance = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1))
            if i > 1, j > 1, a[i - 1] == b[j - 2], a[i - 2] == b[j - 1] {
                distance = min(distance, beforePrevious[j - 2] + 1)
            }
            current.append(distance)
        }
        (beforePrevious, previous) = (previous, current)
    }
    return previous[b.count]
}
