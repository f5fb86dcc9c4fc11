/// What a function takes and gives. The only kind on every platform is an array.
public struct InferenceValue: ~Copyable, Sendable {
    let array: NDArray

    init(_ array: NDArray) { self.array = array }

    public var ndArray: NDArray? { array }

    public var kind: Kind { .ndArray }

    public enum Kind: Sendable, Hashable {
        case ndArray
    }

    public enum Descriptor: Sendable, Equatable {
        case ndArray(NDArrayDescriptor)
    }

    /// A borrowed value, to read.
    public struct View: ~Escapable {
        let argument: Argument

        @_lifetime(immortal)
        init(argument: Argument) { self.argument = argument }
    }

    /// A borrowed value, to read and write.
    public struct MutableView: ~Copyable, ~Escapable {
        let argument: Argument

        @_lifetime(immortal)
        init(argument: Argument) { self.argument = argument }
    }

    /// What can be an input.
    public protocol ViewRepresentable: ~Copyable {
        @_lifetime(borrow self)
        func view() -> InferenceValue.View
    }

    /// What can be a state or take an output.
    public protocol MutableViewRepresentable: ~Copyable {
        @_lifetime(&self)
        mutating func mutableView() -> InferenceValue.MutableView
    }
}

extension NDArray: InferenceValue.ViewRepresentable, InferenceValue.MutableViewRepresentable {
    @_lifetime(borrow self)
    public func view() -> InferenceValue.View {
        _overrideLifetime(InferenceValue.View(argument: Argument(reading: self)), borrowing: self)
    }

    /// Copies all bytes first when another value shares them, unless a run is writing them: then the view says so
    /// and the run that it is meant for is refused.
    @_lifetime(&self)
    public mutating func mutableView() -> InferenceValue.MutableView {
        let copied = storage.isInUse ? 0 : makeUnique()
        let argument = Argument(
            base: storage.base, scalarType: scalarType, shape: AxisList(shape), strides: AxisList(strides),
            storage: .passUnretained(storage), copiedByteCount: copied)
        return _overrideLifetime(InferenceValue.MutableView(argument: argument), mutating: &self)
    }
}
