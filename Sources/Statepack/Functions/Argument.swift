/// One array that a call was given: where its elements lie and who owns them.
struct Argument {
    var name = ""
    var base: UnsafeMutableRawPointer
    var scalarType: NDArray.ScalarType
    var shape: [Int]
    var strides: [Int]
    /// Kept alive for the call; nil when the bytes belong to a span of the caller's.
    var storage: ArrayStorage?
    /// Bytes that copy-on-write copied so that the call may write.
    var copiedByteCount = 0
    var claim = Claim.none

    enum Claim {
        /// Only read, or bytes that are not in an `ArrayStorage`.
        case none
        /// This call owns the storage until it ends.
        case owner
        /// Another view of the same call owns it.
        case insertedTwice
        /// Another call owns it.
        case inUse
    }

    init(
        base: UnsafeMutableRawPointer, scalarType: NDArray.ScalarType, shape: [Int], strides: [Int],
        storage: ArrayStorage?, copiedByteCount: Int
    ) {
        self.base = base
        self.scalarType = scalarType
        self.shape = shape
        self.strides = strides
        self.storage = storage
        self.copiedByteCount = copiedByteCount
    }

    init(reading array: NDArray) {
        self.init(
            base: array.storage.base, scalarType: array.scalarType, shape: array.shape, strides: array.strides,
            storage: array.storage, copiedByteCount: 0)
    }

    /// `[1, 8] float32`
    var text: String { "\(shape) \(scalarType)" }
}

/// The arguments of one call in the order they were inserted.
///
/// The first eight live in the value itself, so that a step with few states allocates nothing for them.
struct ArgumentList {
    private(set) var count = 0
    private var inline = InlineArray<8, Argument?>(repeating: nil)
    private var rest: [Argument] = []

    subscript(index: Int) -> Argument {
        get { index < 8 ? inline[index]! : rest[index - 8] }
        set { if index < 8 { inline[index] = newValue } else { rest[index - 8] = newValue } }
    }

    mutating func append(_ argument: Argument) {
        if count < 8 { inline[count] = argument } else { rest.append(argument) }
        count += 1
    }

    /// The first argument of that name.
    func index(of name: String) -> Int? {
        for index in 0..<count where self[index].name == name { return index }
        return nil
    }
}
