/// A typed array of any number of axes, with value semantics.
///
/// Copies share their bytes until one of them is changed (copy-on-write). A state is such an array: hold it
/// in one place, hand it to `run` by reference, and its bytes are updated where they lie. A second reference at
/// that moment makes the run work on a copy of the whole array; `InferenceFunction.Outputs.statistics` counts
/// those copies.
///
///     var cache = NDArray(shape: [1, 8, 2048, 64], scalarType: .float32)
///     var view = cache.mutableView(as: Float.self)
///     view[scalarAt: [0, 0, 0, 0]] = 1
///
/// Initialisers and accessors trap on a broken precondition, such as a wrong element type. They also trap
/// while a run is writing the array, which only code that the compiler cannot see through can reach (an actor's
/// property touched while the same actor awaits a run).
@_addressableForDependencies
public struct NDArray: @unchecked Sendable {
    var storage: ArrayStorage
    public let scalarType: ScalarType
    public let shape: [Int]
    /// In elements, one per axis.
    public let strides: [Int]

    /// Zeroed elements, laid out row-major, 64-byte aligned.
    ///
    /// Traps when a length is negative or the size does not fit in memory.
    public init(shape: [Int], scalarType: ScalarType) {
        guard let strides = StridedLayout.rowMajorStrides(shape) else {
            preconditionFailure("an array of shape \(shape) does not fit in memory")
        }
        self.init(shape: shape, scalarType: scalarType, strides: strides)
    }

    /// Zeroed elements with the given nonnegative strides, one per axis, in elements.
    public init(shape: [Int], scalarType: ScalarType, strides: [Int]) {
        precondition(shape.count == strides.count, "\(strides.count) strides for \(shape.count) axes")
        precondition(shape.allSatisfy { $0 >= 0 }, "shape \(shape) has a negative length")
        precondition(strides.allSatisfy { $0 >= 0 }, "strides \(strides) of an array must not be negative")
        guard let byteCount = Self.byteCount(shape: shape, strides: strides, scalarType: scalarType) else {
            preconditionFailure("an array of shape \(shape) does not fit in memory")
        }
        storage = ArrayStorage(zeroedByteCount: byteCount)
        self.scalarType = scalarType
        self.shape = shape
        self.strides = strides
    }

    /// Zeroed elements, laid out row-major, or nil when there is not enough memory for them.
    package init?(availableShape shape: [Int], scalarType: ScalarType) {
        guard let strides = StridedLayout.rowMajorStrides(shape),
            let byteCount = Self.byteCount(shape: shape, strides: strides, scalarType: scalarType),
            let storage = ArrayStorage(availableByteCount: byteCount)
        else { return nil }
        self.storage = storage
        self.scalarType = scalarType
        self.shape = shape
        self.strides = strides
    }

    /// Zeroed elements as the descriptor asks for. Traps when it has a dynamic shape: resolve that first.
    public init(descriptor: consuming NDArrayDescriptor) {
        precondition(
            !descriptor.hasDynamicShape,
            "an array needs a fixed shape, not \(descriptor.shape); use resolvingDynamicDimensions(_:)")
        self.init(shape: descriptor.shape, scalarType: descriptor.scalarType)
    }

    /// The given elements in row-major order. Their Swift type decides the scalar type.
    ///
    /// Traps when there are more or fewer than the shape holds, or when `Scalar` is no element type.
    public init<Scalar: BitwiseCopyable>(scalars: some Sequence<Scalar>, shape: [Int]) {
        guard let scalarType = ScalarType(elementOf: Scalar.self) else {
            preconditionFailure("\(Scalar.self) is not an element type of NDArray")
        }
        self.init(shape: shape, scalarType: scalarType)
        let capacity = StridedLayout.elementCount(shape) ?? 0
        let elements = UnsafeMutableBufferPointer(
            start: storage.base.bindMemory(to: Scalar.self, capacity: capacity), count: capacity)
        var (rest, end) = elements.update(from: scalars)
        precondition(
            end == capacity && rest.next() == nil,
            "the number of scalars does not fit shape \(shape), which holds \(capacity)")
    }

    /// Always nil: no layout of Statepack interleaves elements. Present so that code for Core AI compiles.
    public var interleaveLayout: InterleaveLayout? { nil }

    /// A layout that groups `factor` neighbours of an axis. No array of Statepack has one.
    public struct InterleaveLayout: Sendable, Equatable {
        public let dimension: Int
        public let factor: Int

        public init(dimension: Int, factor: Int) {
            self.dimension = dimension
            self.factor = factor
        }
    }

    /// Reads elements as Swift values. Traps when `type` does not match ``scalarType``.
    @_lifetime(borrow self)
    public func view<T: BitwiseCopyable>(as type: T.Type = T.self) -> View<T> {
        storage.requireIdle()
        Self.requireElement(type, of: scalarType)
        return _overrideLifetime(
            View(
                base: UnsafeRawPointer(storage.base), shape: AxisList(shape), strides: AxisList(strides),
                storage: .passUnretained(storage)),
            borrowing: self)
    }

    /// A copy of all elements in row-major order.
    ///
    ///     let logits = outputs["logits"].scalars(as: Float.self)
    ///
    /// Works where ``view(as:)`` would escape its scope: on a `var`, an `inout` parameter or a property. Traps when
    /// `type` does not match ``scalarType``. Costs one allocation and one pass over the elements.
    public func scalars<T: BitwiseCopyable>(as type: T.Type = T.self) -> [T] {
        storage.requireIdle()
        Self.requireElement(type, of: scalarType)
        return StridedLayout.scalars(from: UnsafeRawPointer(storage.base), shape: shape, strides: strides)
    }

    /// Reads and writes elements as Swift values. Traps when `type` does not match ``scalarType``.
    ///
    /// Copies all bytes first when another value shares them.
    @_lifetime(&self)
    public mutating func mutableView<T: BitwiseCopyable>(as type: T.Type = T.self) -> MutableView<T> {
        storage.requireIdle()
        Self.requireElement(type, of: scalarType)
        let copied = makeUnique()
        return _overrideLifetime(
            MutableView(
                base: storage.base, shape: AxisList(shape), strides: AxisList(strides),
                storage: .passUnretained(storage),
                copiedByteCount: copied),
            mutating: &self)
    }

    /// Reads bytes.
    @_lifetime(borrow self)
    public func rawView() -> RawView {
        storage.requireIdle()
        return _overrideLifetime(
            RawView(
                base: UnsafeRawPointer(storage.base), scalarType: scalarType, shape: AxisList(shape),
                strides: AxisList(strides),
                storage: .passUnretained(storage)),
            borrowing: self)
    }

    /// Reads and writes bytes. Copies all of them first when another value shares them.
    @_lifetime(&self)
    public mutating func mutableRawView() -> MutableRawView {
        storage.requireIdle()
        let copied = makeUnique()
        return _overrideLifetime(
            MutableRawView(
                base: storage.base, scalarType: scalarType, shape: AxisList(shape), strides: AxisList(strides),
                storage: .passUnretained(storage), copiedByteCount: copied),
            mutating: &self)
    }

    /// Makes the bytes this value's own and returns how many were copied for that.
    mutating func makeUnique() -> Int {
        if isKnownUniquelyReferenced(&storage) { return 0 }
        let copy = ArrayStorage(zeroedByteCount: storage.byteCount)
        copy.base.copyMemory(from: storage.base, byteCount: storage.byteCount)
        storage = copy
        CopyOnWrite.countCopy()
        return copy.byteCount
    }

    static func requireElement<T: BitwiseCopyable>(_ type: T.Type, of scalarType: ScalarType) {
        precondition(ScalarType(elementOf: type) == scalarType, "\(type) is not the element type of \(scalarType)")
    }

    /// Bytes from the first to behind the last element. Nil on overflow.
    static func byteCount(
        shape: some AxisNumbers, strides: some AxisNumbers, scalarType: ScalarType
    ) -> Int? {
        guard let reach = try? StridedLayout.reach(shape: shape, strides: strides) else {
            // Either empty or too large; an empty one has a zero among its lengths.
            for axis in 0..<shape.count where shape[axis] == 0 { return 0 }
            return nil
        }
        let (count, overflow) = reach.upperBound.addingReportingOverflow(1)
        return overflow ? nil : scalarType.byteCount(elements: count)
    }
}

extension NDArray: CustomStringConvertible {
    /// Type and shape, as diagnostics print them: `[1, 8] float32`.
    public var description: String { "\(shape) \(scalarType)" }
}
