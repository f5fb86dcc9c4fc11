extension NDArray {
    /// Bytes of an array, or of a part of it, to read and write.
    public struct MutableRawView: ~Copyable, ~Escapable {
        let base: UnsafeMutableRawPointer
        public let scalarType: ScalarType
        let lengths: AxisList
        let steps: AxisList
        let storage: Unmanaged<ArrayStorage>?
        let copiedByteCount: Int

        @_lifetime(immortal)
        init(
            base: UnsafeMutableRawPointer, scalarType: ScalarType, shape: AxisList, strides: AxisList,
            storage: Unmanaged<ArrayStorage>?, copiedByteCount: Int
        ) {
            self.base = base
            self.scalarType = scalarType
            lengths = shape
            steps = strides
            self.storage = storage
            self.copiedByteCount = copiedByteCount
        }

        /// Sees bytes as an array. Empty strides mean row-major.
        ///
        /// Traps when an element of the view would lie outside the bytes.
        @_lifetime(copy mutableBytes)
        public init(
            mutableBytes: consuming MutableRawSpan, byteOffset: Int = 0, scalarType: ScalarType, shape: [Int],
            strides: [Int] = []
        ) {
            let shape = AxisList(shape)
            let strides = RawView.checkedStrides(
                strides, shape: shape, scalarType: scalarType, byteOffset: byteOffset,
                byteCount: mutableBytes.byteCount)
            let start = mutableBytes.withUnsafeMutableBytes { $0.baseAddress }
            self = _overrideLifetime(
                Self(
                    base: (start ?? UnsafeMutableRawPointer(mutating: emptyBase)).advanced(by: byteOffset),
                    scalarType: scalarType, shape: shape, strides: strides, storage: nil, copiedByteCount: 0),
                copying: mutableBytes)
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

        /// The bytes from the first to behind the last element. Use one at a time.
        public var mutableBytes: MutableRawSpan {
            @_lifetime(copy self) get {
                let count = NDArray.byteCount(shape: lengths, strides: steps, scalarType: scalarType) ?? 0
                return _overrideLifetime(MutableRawSpan(_unsafeStart: base, byteCount: count), copying: self)
            }
        }

        /// The same bytes as elements. Traps when `type` does not match ``scalarType``.
        @_lifetime(copy self)
        public consuming func view<T: BitwiseCopyable>(as type: T.Type = T.self) -> MutableView<T> {
            NDArray.requireElement(type, of: scalarType)
            return _overrideLifetime(
                MutableView(
                    base: base, shape: lengths, strides: steps, storage: storage,
                    copiedByteCount: copiedByteCount),
                copying: self)
        }

        /// The address of the first element, with shape and strides. Nothing may be touched through it afterwards.
        public consuming func withUnsafeMutableBytes<R, E: Error>(
            _ body: (UnsafeMutableRawPointer, _ shape: Span<Int>, _ strides: Span<Int>) throws(E) -> R
        ) throws(E) -> R {
            let (start, shape, strides) = (base, lengths, steps)
            return try body(start, shape.span, strides.span)
        }

        /// The same bytes, to read.
        public var rawView: NDArray.RawView {
            @_lifetime(borrow self) borrowing get {
                _overrideLifetime(
                    RawView(
                        base: UnsafeRawPointer(base), scalarType: scalarType, shape: lengths, strides: steps,
                        storage: storage),
                    borrowing: self)
            }
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        @_disfavoredOverload
        public consuming func slice(at ranges: [any NDArray.RangeExpression]) -> MutableRawView {
            let part = SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, scalarType, steps, storage, copiedByteCount), copying: self)
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        public consuming func slice<let indexRank: Int>(
            at ranges: [indexRank of any NDArray.RangeExpression]
        ) -> MutableRawView {
            let part = SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, scalarType, steps, storage, copiedByteCount), copying: self)
        }

        /// A part of the view, which cannot be used itself until the part is no longer used.
        @_lifetime(&self)
        @_disfavoredOverload
        public mutating func mutatingSlice(at ranges: [any NDArray.RangeExpression]) -> MutableRawView {
            let part = SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, scalarType, steps, storage, copiedByteCount), mutating: &self)
        }

        /// A part of the view, which cannot be used itself until the part is no longer used.
        @_lifetime(&self)
        public mutating func mutatingSlice<let indexRank: Int>(
            at ranges: [indexRank of any NDArray.RangeExpression]
        ) -> MutableRawView {
            let part = SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, scalarType, steps, storage, copiedByteCount), mutating: &self)
        }

        @_lifetime(immortal)
        private static func part(
            _ geometry: SliceGeometry, _ base: UnsafeMutableRawPointer, _ scalarType: ScalarType, _ strides: AxisList,
            _ storage: Unmanaged<ArrayStorage>?, _ copiedByteCount: Int
        ) -> MutableRawView {
            MutableRawView(
                base: base.advanced(by: scalarType.byteOffset(element: geometry.offset)), scalarType: scalarType,
                shape: geometry.shape, strides: strides, storage: storage, copiedByteCount: copiedByteCount)
        }
    }
}
