extension NDArray {
    /// Bytes of an array, or of a part of it, to read.
    public struct RawView: ~Escapable {
        let base: UnsafeRawPointer
        public let scalarType: ScalarType
        let lengths: AxisList
        let steps: AxisList
        let storage: Unmanaged<ArrayStorage>?

        @_lifetime(immortal)
        init(
            base: UnsafeRawPointer, scalarType: ScalarType, shape: AxisList, strides: AxisList,
            storage: Unmanaged<ArrayStorage>?
        ) {
            self.base = base
            self.scalarType = scalarType
            lengths = shape
            steps = strides
            self.storage = storage
        }

        /// Sees bytes as an array. Empty strides mean row-major.
        ///
        /// Traps when an element of the view would lie outside the bytes.
        @_lifetime(copy bytes)
        public init(bytes: RawSpan, byteOffset: Int = 0, scalarType: ScalarType, shape: [Int], strides: [Int] = []) {
            let shape = AxisList(shape)
            let strides = Self.checkedStrides(
                strides, shape: shape, scalarType: scalarType, byteOffset: byteOffset, byteCount: bytes.byteCount)
            let start = bytes.withUnsafeBytes { $0.baseAddress }
            self = _overrideLifetime(
                Self(
                    base: (start ?? emptyBase).advanced(by: byteOffset), scalarType: scalarType, shape: shape,
                    strides: strides, storage: nil),
                copying: bytes)
        }

        static func checkedStrides(
            _ strides: [Int], shape: AxisList, scalarType: ScalarType, byteOffset: Int, byteCount: Int
        ) -> AxisList {
            precondition(byteOffset >= 0 && byteOffset <= byteCount, "offset \(byteOffset) of \(byteCount) bytes")
            let capacity = (byteCount - byteOffset) * 8 / scalarType.bitWidth
            return View<UInt8>.checkedStrides(strides, shape: shape, capacity: capacity)
        }

        public var shape: Span<Int> {
            @_lifetime(borrow self) borrowing get { _overrideLifetime(lengths.span, borrowing: self) }
        }

        /// In elements.
        public var strides: Span<Int> {
            @_lifetime(borrow self) borrowing get { _overrideLifetime(steps.span, borrowing: self) }
        }

        /// Always nil; see ``NDArray/interleaveLayout``.
        public var interleaveLayout: NDArray.InterleaveLayout? { nil }

        /// The bytes from the first to behind the last element.
        public var bytes: RawSpan {
            @_lifetime(copy self) borrowing get {
                let count = NDArray.byteCount(shape: lengths, strides: steps, scalarType: scalarType) ?? 0
                return _overrideLifetime(RawSpan(_unsafeStart: base, byteCount: count), copying: self)
            }
        }

        /// The address of the first element, with shape and strides. Nothing may be read through it afterwards.
        public func withUnsafeBytes<R, E: Error>(
            _ body: (UnsafeRawPointer, _ shape: Span<Int>, _ strides: Span<Int>) throws(E) -> R
        ) throws(E) -> R {
            try body(base, lengths.span, steps.span)
        }

        /// The same bytes as elements. Traps when `type` does not match ``scalarType``.
        @_lifetime(copy self)
        public consuming func view<T: BitwiseCopyable>(as type: T.Type = T.self) -> View<T> {
            NDArray.requireElement(type, of: scalarType)
            return _overrideLifetime(
                View(base: base, shape: lengths, strides: steps, storage: storage), copying: self)
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        @_disfavoredOverload
        public func slice(at ranges: [any NDArray.RangeExpression]) -> RawView {
            sliced(SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] })
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        public func slice<let indexRank: Int>(at ranges: [indexRank of any NDArray.RangeExpression]) -> RawView {
            sliced(SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] })
        }

        @_lifetime(copy self)
        private func sliced(_ geometry: SliceGeometry) -> RawView {
            _overrideLifetime(
                RawView(
                    base: base.advanced(by: scalarType.byteOffset(element: geometry.offset)), scalarType: scalarType,
                    shape: geometry.shape, strides: steps, storage: storage),
                copying: self)
        }
    }
}

extension NDArray.ScalarType {
    /// Traps when the element does not start at a byte.
    func byteOffset(element: Int) -> Int {
        let bits = element * bitWidth
        precondition(bits % 8 == 0, "element \(element) of \(self) does not start at a byte")
        return bits / 8
    }
}
