extension NDArray {
    /// Which part of one axis a slice takes: a range, an index, or `.all`.
    public protocol RangeExpression: Sendable {
        func relative(to dimension: Range<Int>) -> Range<Int>
    }
}

extension Range: NDArray.RangeExpression where Bound == Int {
    public func relative(to dimension: Range<Int>) -> Range<Int> { self }
}

extension ClosedRange: NDArray.RangeExpression where Bound == Int {
    public func relative(to dimension: Range<Int>) -> Range<Int> { lowerBound..<upperBound + 1 }
}

extension PartialRangeUpTo: NDArray.RangeExpression where Bound == Int {
    public func relative(to dimension: Range<Int>) -> Range<Int> { dimension.lowerBound..<upperBound }
}

extension PartialRangeThrough: NDArray.RangeExpression where Bound == Int {
    public func relative(to dimension: Range<Int>) -> Range<Int> { dimension.lowerBound..<upperBound + 1 }
}

extension PartialRangeFrom: NDArray.RangeExpression where Bound == Int {
    public func relative(to dimension: Range<Int>) -> Range<Int> { lowerBound..<dimension.upperBound }
}

/// An index takes one element and keeps the axis, with length 1.
extension Int: NDArray.RangeExpression {
    public func relative(to dimension: Range<Int>) -> Range<Int> { self..<self + 1 }
}

/// The whole axis; written `.all`.
@frozen public struct _AllRange: NDArray.RangeExpression {
    public init() {}

    public func relative(to dimension: Range<Int>) -> Range<Int> { dimension }
}

extension NDArray.RangeExpression where Self == _AllRange {
    public static var all: _AllRange { _AllRange() }
}

/// The shape of a slice and where its first element lies, in elements.
struct SliceGeometry {
    var shape: AxisList
    var offset: Int

    /// Traps when a range leaves its axis, or when there are more ranges than axes. Axes without a range stay whole.
    init(shape: AxisList, strides: AxisList, count: Int, range: (Int) -> any NDArray.RangeExpression) {
        precondition(count <= shape.count, "a slice of \(count) ranges of an array of \(shape.count) axes")
        self.shape = shape
        offset = 0
        for axis in 0..<count {
            let dimension = 0..<shape[axis]
            let part = range(axis).relative(to: dimension)
            precondition(
                part.lowerBound >= 0 && part.upperBound <= dimension.upperBound,
                "slice \(part) leaves axis \(axis) of length \(shape[axis])")
            self.shape[axis] = part.count
            offset += part.lowerBound * strides[axis]
        }
    }
}
