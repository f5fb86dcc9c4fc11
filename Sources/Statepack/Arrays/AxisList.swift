/// One number per axis of an array: its lengths, or its strides.
protocol AxisNumbers {
    var count: Int { get }
    subscript(axis: Int) -> Int { get }
}

extension [Int]: AxisNumbers {}

/// One number per axis, in the value itself for up to eight axes, which is what functions take: views are made, cut and
/// handed to a run without memory of their own.
struct AxisList: AxisNumbers, Sendable {
    static let inlineLimit = 8

    let count: Int
    private var inline = InlineArray<8, Int>(repeating: 0)
    /// All numbers, when there are more than fit.
    private var rest: [Int]?

    init(_ numbers: [Int]) {
        count = numbers.count
        if count > Self.inlineLimit {
            rest = numbers
            return
        }
        for axis in 0..<count { inline[axis] = numbers[axis] }
    }

    init(repeating number: Int, count: Int) {
        self.count = count
        if count > Self.inlineLimit {
            rest = [Int](repeating: number, count: count)
            return
        }
        for axis in 0..<count { inline[axis] = number }
    }

    subscript(axis: Int) -> Int {
        get {
            precondition(axis >= 0 && axis < count, "axis \(axis) of \(count)")
            return rest == nil ? inline[axis] : rest![axis]
        }
        set {
            precondition(axis >= 0 && axis < count, "axis \(axis) of \(count)")
            if rest == nil { inline[axis] = newValue } else { rest![axis] = newValue }
        }
    }

    var array: [Int] { (0..<count).map { self[$0] } }

    func contains(_ number: Int) -> Bool {
        for axis in 0..<count where self[axis] == number { return true }
        return false
    }

    var span: Span<Int> {
        @_lifetime(borrow self) borrowing get {
            if rest != nil { return _overrideLifetime(rest!.span, borrowing: self) }
            return _overrideLifetime(inline.span.extracting(0..<count), borrowing: self)
        }
    }
}

extension AxisList: Equatable {
    static func == (a: AxisList, b: AxisList) -> Bool {
        if a.count != b.count { return false }
        for axis in 0..<a.count where a[axis] != b[axis] { return false }
        return true
    }
}

extension AxisList: CustomStringConvertible {
    /// As an array prints itself: `[1, 8]`.
    var description: String { "\(array)" }
}
