extension NDArray {
    /// Elements of an array, or of a part of it, to read and write.
    public struct MutableView<Element: BitwiseCopyable>: ~Copyable, ~Escapable {
        let base: UnsafeMutableRawPointer
        let lengths: AxisList
        let steps: AxisList
        let storage: Unmanaged<ArrayStorage>?
        /// Bytes that copy-on-write copied to make this view.
        let copiedByteCount: Int

        @_lifetime(immortal)
        init(
            base: UnsafeMutableRawPointer, shape: AxisList, strides: AxisList, storage: Unmanaged<ArrayStorage>?,
            copiedByteCount: Int
        ) {
            self.base = base
            lengths = shape
            steps = strides
            self.storage = storage
            self.copiedByteCount = copiedByteCount
        }

        /// Sees the elements of a span as an array. Empty strides mean row-major.
        ///
        /// Traps when an element of the view would lie outside the span.
        @_lifetime(copy mutableSpan)
        public init(mutableSpan: consuming MutableSpan<Element>, shape: [Int], strides: [Int] = []) {
            let shape = AxisList(shape)
            let strides = View<Element>.checkedStrides(strides, shape: shape, capacity: mutableSpan.count)
            let start = mutableSpan.withUnsafeMutableBufferPointer { UnsafeMutableRawPointer($0.baseAddress) }
            self = _overrideLifetime(
                Self(
                    base: start ?? UnsafeMutableRawPointer(mutating: emptyBase), shape: shape, strides: strides,
                    storage: nil, copiedByteCount: 0),
                copying: mutableSpan)
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

        // NOTE: a consuming getter cannot be declared on Swift 6.3, so two live mutable spans are not rejected.
        /// All elements in row-major order, or nil when they do not lie that way. Use one at a time.
        public var contiguousElements: MutableSpan<Element>? {
            @_lifetime(copy self) get {
                guard isContiguous, let count = StridedLayout.elementCount(lengths) else { return nil }
                let span = MutableSpan(_unsafeStart: base.assumingMemoryBound(to: Element.self), count: count)
                return _overrideLifetime(span, copying: self)
            }
        }

        /// One element. Traps when the index has another rank or leaves the array.
        public subscript<let rank: Int>(scalarAt index: InlineArray<rank, Int>) -> Element {
            get {
                let offset = elementOffset(rank, lengths, steps) { index[$0] }
                return base.loadUnaligned(fromByteOffset: offset * MemoryLayout<Element>.stride, as: Element.self)
            }
            @_lifetime(self: copy self)
            set {
                let offset = elementOffset(rank, lengths, steps) { index[$0] }
                base.storeBytes(of: newValue, toByteOffset: offset * MemoryLayout<Element>.stride, as: Element.self)
            }
        }

        /// Writes the elements of a sequence in row-major order; fewer than the view holds leave the rest as it is.
        ///
        /// Traps when the sequence has more.
        @_lifetime(self: copy self)
        public mutating func copyElements(from sequence: some Sequence<Element>) {
            let capacity = StridedLayout.elementCount(lengths) ?? 0
            let start = base.assumingMemoryBound(to: Element.self)
            if isContiguous {
                var (rest, _) = UnsafeMutableBufferPointer(start: start, count: capacity).update(from: sequence)
                precondition(rest.next() == nil, "more elements than the \(capacity) of the view")
                return
            }
            var elements = sequence.makeIterator()
            StridedLayout.forEachOffset(shape: lengths, strides: steps) { offset in
                guard let element = elements.next() else { return false }
                start[offset] = element
                return true
            }
            precondition(elements.next() == nil, "more elements than the \(capacity) of the view")
        }

        /// Writes the elements of a collection in row-major order; fewer than the view holds leave the rest as it is.
        ///
        /// Traps, before it writes, when the collection has more.
        @_lifetime(self: copy self)
        public mutating func copyElements(fromContentsOf collection: some Collection<Element>) {
            let capacity = StridedLayout.elementCount(lengths) ?? 0
            precondition(collection.count <= capacity, "\(collection.count) elements for the \(capacity) of the view")
            copyElements(from: collection)
        }

        /// The address of the first element, with shape and strides. Nothing may be touched through it afterwards.
        public consuming func withUnsafeMutablePointer<R, E: Error>(
            _ body: (UnsafeMutablePointer<Element>, _ shape: Span<Int>, _ strides: Span<Int>) throws(E) -> R
        ) throws(E) -> R {
            let (start, shape, strides) = (base, lengths, steps)
            return try body(start.assumingMemoryBound(to: Element.self), shape.span, strides.span)
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        @_disfavoredOverload
        public consuming func slice(at ranges: [any NDArray.RangeExpression]) -> MutableView<Element> {
            let part = SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] }
            return _overrideLifetime(Self.part(part, base, steps, storage, copiedByteCount), copying: self)
        }

        /// A part of the view, of the same rank. Axes without a range stay whole. Traps when a range leaves its axis.
        @_lifetime(copy self)
        public consuming func slice<let indexRank: Int>(
            at ranges: [indexRank of any NDArray.RangeExpression]
        ) -> MutableView<Element> {
            let part = SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] }
            return _overrideLifetime(Self.part(part, base, steps, storage, copiedByteCount), copying: self)
        }

        /// A part of the view, which cannot be used itself until the part is no longer used.
        @_lifetime(&self)
        @_disfavoredOverload
        public mutating func mutatingSlice(at ranges: [any NDArray.RangeExpression]) -> MutableView<Element> {
            let part = SliceGeometry(shape: lengths, strides: steps, count: ranges.count) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, steps, storage, copiedByteCount), mutating: &self)
        }

        /// A part of the view, which cannot be used itself until the part is no longer used.
        @_lifetime(&self)
        public mutating func mutatingSlice<let indexRank: Int>(
            at ranges: [indexRank of any NDArray.RangeExpression]
        ) -> MutableView<Element> {
            let part = SliceGeometry(shape: lengths, strides: steps, count: indexRank) { ranges[$0] }
            return _overrideLifetime(
                Self.part(part, base, steps, storage, copiedByteCount), mutating: &self)
        }

        @_lifetime(immortal)
        private static func part(
            _ geometry: SliceGeometry, _ base: UnsafeMutableRawPointer, _ strides: AxisList,
            _ storage: Unmanaged<ArrayStorage>?, _ copiedByteCount: Int
        ) -> MutableView<Element> {
            MutableView(
                base: base.advanced(by: geometry.offset * MemoryLayout<Element>.stride), shape: geometry.shape,
                strides: strides, storage: storage, copiedByteCount: copiedByteCount)
        }

        /// The same elements, to read.
        public var view: NDArray.View<Element> {
            @_lifetime(borrow self) borrowing get {
                _overrideLifetime(
                    View(base: UnsafeRawPointer(base), shape: lengths, strides: steps, storage: storage),
                    borrowing: self)
            }
        }

        /// The same elements as bytes.
        public var mutableRawView: NDArray.MutableRawView {
            @_lifetime(copy self) get {
                guard let scalarType = ScalarType(elementOf: Element.self) else {
                    preconditionFailure("\(Element.self) is not an element type of NDArray")
                }
                return _overrideLifetime(
                    MutableRawView(
                        base: base, scalarType: scalarType, shape: lengths, strides: steps, storage: storage,
                        copiedByteCount: copiedByteCount),
                    copying: self)
            }
        }
    }
}
