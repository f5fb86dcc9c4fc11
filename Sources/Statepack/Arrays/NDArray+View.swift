extension NDArray {
    /// Elements of an array, or of a part of it, to read.
    public struct View<Element: BitwiseCopyable>: ~Escapable {
        /// The element at index zero of every axis.
        let base: UnsafeRawPointer
        let lengths: AxisList
        let steps: AxisList
        // Unmanaged: a view must not count as a reference, or it would make its own array look shared.
        let storage: Unmanaged<ArrayStorage>?

        @_lifetime(immortal)
        init(base: UnsafeRawPointer, shape: AxisList, strides: AxisList, storage: Unmanaged<ArrayStorage>?) {
            self.base = base
            lengths = shape
            steps = strides
            self.storage = storage
        }

        /// Sees the elements of a span as an array. Empty strides mean row-major.
        ///
        /// Traps when an element of the view would lie outside the span.
        @_lifetime(copy span)
        public init(span: Span<Element>, shape: [Int], strides: [Int] = []) {
            let shape = AxisList(shape)
            let strides = Self.checkedStrides(strides, shape: shape, capacity: span.count)
            let start = span.withUnsafeBufferPointer { UnsafeRawPointer($0.baseAddress) }
            self = _overrideLifetime(
                Self(base: start ?? emptyBase, shape: shape, strides: strides, storage: nil), copying: span)
        }

        static func checkedStrides(_ strides: [Int], shape: AxisList, capacity: Int) -> AxisList {
            precondition(
                strides.isEmpty || strides.count == shape.count, "\(strides.count) strides for \(shape.count) axes")
            for axis in 0..<shape.count { precondition(shape[axis] >= 0, "shape \(shape) has a negative length") }
            guard let result = strides.isEmpty ? StridedLayout.rowMajorSteps(shape) : AxisList(strides) else {
                preconditionFailure("a view of shape \(shape) does not fit in memory")
            }
            if shape.contains(0) { return result }
            guard let reach = try? StridedLayout.reach(shape: shape, strides: result) else {
                preconditionFailure("a view of shape \(shape) does not fit in memory")
            }
            precondition(
                reach.lowerBound >= 0 && reach.upperBound < capacity,
                "a view of shape \(shape) leaves its \(capacity) elements")
            return result
        }

        public var rank: Int { lengths.count }

        public var shape: Span<Int> {
            @_lifetime(borrow self) borrowing get { _overrideLifetime(lengths.span, borrowing: self) }
        }

        /// In elements.
        public var strides: Span<Int> {
            @_lifetime(borrow self) borrowing get { _overrideLifetime(steps.span, borrowing: self) }
        }

        /// Always nil; see ``NDArray/interleaveLayout``.
        public var interleaveLayout: NDArray.InterleaveLayout? { nil }

        /// True when the elements lie one after another in row-major order.
        public var isContiguous: Bool { StridedLayout.isRowMajor(shape: lengths, strides: steps) }

        /// All elements in row-major order, or nil when they do not lie that way.
        public var contiguousElements: Span<Element>? {
            @_lifetime(copy self) borrowing get {
                guard isContiguous, let count = StridedLayout.elementCount(lengths) else { return nil }
                let span = Span(_unsafeStart: base.assumingMemoryBound(to: Element.self), count: count)
                return _overrideLifetime(span, copying: self)
            }
        }

        /// A copy of all elements in row-major order, however they lie.
        public func scalars() -> [Element] {
            StridedLayout.scalars(from: base, shape: lengths, strides: steps)
        }

        /// One element. Traps when the index has another rank or leaves the array.
        public subscript<let rank: Int>(scalarAt index: InlineArray<rank, Int>) -> Element {
            let offset = elementOffset(rank, lengths, steps) { index[$0] }
            return base.loadUnaligned(fromByteOffset: offset * MemoryLayout<Element>.stride, as: Element.self)
        }

        /// The address of the first element, with shape and strides. Nothing may be read through it afterwards.
        public func withUnsafePointer<R, E: Error>(
            _ body: (UnsafePointer<Element>, _ shape: Span<Int>, _ strides: Span<Int>) throws(E) -> R
        ) throws(E) -> R {
            try body(base.assumingMemoryBound(to: Element.self), lengths.span, steps.span)
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        @_disfavoredOverload
        public func slice(at ranges: [any NDArray.RangeExpression]) -> View<Element> {
            sliced(SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] })
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        public func slice<let indexRank: Int>(at ranges: [indexRank of any NDArray.RangeExpression]) -> View<Element> {
            sliced(SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] })
        }

        @_lifetime(copy self)
        private func sliced(_ geometry: SliceGeometry) -> View<Element> {
            let start = base.advanced(by: geometry.offset * MemoryLayout<Element>.stride)
            return _overrideLifetime(
                View(base: start, shape: geometry.shape, strides: steps, storage: storage), copying: self)
        }

        /// The same elements as bytes.
        public var rawView: NDArray.RawView {
            @_lifetime(copy self) borrowing get {
                guard let scalarType = ScalarType(elementOf: Element.self) else {
                    preconditionFailure("\(Element.self) is not an element type of NDArray")
                }
                return _overrideLifetime(
                    RawView(
                        base: base, scalarType: scalarType, shape: lengths, strides: steps, storage: storage),
                    copying: self)
            }
        }
    }
}

/// An address for views that hold no element. Never read.
var emptyBase: UnsafeRawPointer { UnsafeRawPointer(bitPattern: 64)! }

/// Where the element at an index lies, in elements. Traps when it lies outside.
func elementOffset(_ rank: Int, _ shape: AxisList, _ strides: AxisList, _ index: (Int) -> Int) -> Int {
    precondition(rank == shape.count, "an index of rank \(rank) into an array of rank \(shape.count)")
    var offset = 0
    for axis in 0..<rank {
        let position = index(axis)
        precondition(
            position >= 0 && position < shape[axis], "index \(position) leaves axis \(axis) of length \(shape[axis])")
        offset += position * strides[axis]
    }
    return offset
}
