import StatepackBundle

/// The sizes at which figures are taken that have to hold for all sizes.
///
/// Every choice when there are at most 64; otherwise the ends of each symbol's bounds and, for a symbol alone, the
/// powers of two between them as well. Sizes of values grow with their symbols, so the worst choice is among them
/// for every layout but a contrived one.
package struct SymbolChoices {
    static let limit = 64

    /// One value per symbol of the program; those not asked for are at their minimum.
    package let list: [[Int]]
    let isComplete: Bool

    package init(_ symbols: [BundleProgram.Symbol], varying: some Sequence<Int>) {
        let varying = Set(varying).sorted()
        let base = symbols.map(\.min)
        var values: [[Int]] = []
        var total = 1
        for index in varying {
            let (low, high) = (symbols[index].min, symbols[index].max)
            let (difference, overflow) = high.subtractingReportingOverflow(low)
            if overflow || difference >= Self.limit {
                total = .max
            } else {
                let (product, overflow) = total.multipliedReportingOverflow(by: difference + 1)
                total = overflow ? .max : product
            }
        }
        isComplete = total <= Self.limit
        for index in varying {
            let (low, high) = (symbols[index].min, symbols[index].max)
            if isComplete {
                values.append(Array(low...high))
            } else if varying.count == 1 {
                let powers = (0..<62).map { 1 << $0 }.filter { $0 > low && $0 < high }
                values.append([low] + powers + [high])
            } else {
                values.append(low == high ? [low] : [low, high])
            }
        }
        var list = [base]
        for (position, index) in varying.enumerated() {
            if list.count * values[position].count > Self.limit {
                // Too many corners: all at their largest, and each alone.
                list = [varying.reduce(into: base) { $0[$1] = symbols[$1].max }]
                list += varying.map { varied in symbols.indices.map { $0 == varied ? symbols[$0].max : base[$0] } }
                break
            }
            list = list.flatMap { choice in
                values[position].map { value in
                    var choice = choice
                    choice[index] = value
                    return choice
                }
            }
        }
        self.list = list
    }
}

extension BundleProgram {
    /// `query = 256`, or nothing without symbols.
    func text(of choice: [Int], varying: some Sequence<Int>) -> String {
        Set(varying).sorted().map { "\(symbols[$0].name) = \(choice[$0])" }.joined(separator: ", ")
    }
}

extension BundleProgram.Function {
    /// The symbols that its inputs give a value.
    var symbolIndices: [Int] { symbolSources.map(\.symbol) }

    /// The value that owns the bytes.
    func root(of value: Int) -> Int {
        if case .view(let base, _, _) = values[value].storage { base } else { value }
    }

    /// Index into `states` when the value lies in a state.
    func stateSlot(of value: Int) -> Int? {
        if case .state(let slot) = values[root(of: value)].storage { slot } else { nil }
    }

    /// Index into `inputs` when the value lies in an input.
    func inputSlot(of value: Int) -> Int? {
        if case .input(let slot) = values[root(of: value)].storage { slot } else { nil }
    }
}
