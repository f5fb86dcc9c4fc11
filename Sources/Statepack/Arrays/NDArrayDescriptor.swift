/// Scalar type and shape of an input, a state or an output.
public struct NDArrayDescriptor: Sendable, Equatable {
    public let scalarType: NDArray.ScalarType
    /// One length per axis; -1 stands for a length that may differ from call to call.
    public let shape: [Int]

    package init(scalarType: NDArray.ScalarType, shape: [Int]) {
        self.scalarType = scalarType
        self.shape = shape
    }

    public var rank: Int { shape.count }

    public var hasDynamicShape: Bool { shape.contains { $0 < 0 } }

    /// Always nil; see ``NDArray/interleaveLayout``.
    public var interleaveLayout: NDArray.InterleaveLayout? { nil }

    /// The same descriptor with every dynamic length replaced.
    ///
    /// Traps when the rank differs or when a fixed length would change.
    public func resolvingDynamicDimensions(_ newShape: [Int]) -> NDArrayDescriptor {
        precondition(newShape.count == shape.count, "shape \(newShape) has another rank than \(shape)")
        for (old, new) in zip(shape, newShape) {
            precondition(new >= 0 && (old < 0 || old == new), "shape \(newShape) does not resolve \(shape)")
        }
        return NDArrayDescriptor(scalarType: scalarType, shape: newShape)
    }

    /// Row-major strides, which is what every function prefers. Traps when the shape is dynamic.
    public var preferredStrides: [Int] {
        precondition(!hasDynamicShape, "strides need a fixed shape, not \(shape)")
        guard let strides = StridedLayout.rowMajorStrides(shape) else {
            preconditionFailure("an array of shape \(shape) does not fit in memory")
        }
        return strides
    }

    /// Bytes of an array of this shape. Traps when the shape is dynamic.
    public var minimumByteCount: Int {
        guard let count = NDArray.byteCount(shape: shape, strides: preferredStrides, scalarType: scalarType) else {
            preconditionFailure("an array of shape \(shape) does not fit in memory")
        }
        return count
    }
}
