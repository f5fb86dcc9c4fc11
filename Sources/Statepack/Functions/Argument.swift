internal import Synchronization

/// One array that a call was given: where its elements lie and who owns them.
struct Argument {
    var name = ""
    var base: UnsafeMutableRawPointer
    var scalarType: NDArray.ScalarType
    var shape: AxisList
    var strides: AxisList
    /// Nil when the bytes belong to a span of the caller's. Who keeps it alive: see ``ArgumentList``.
    var storage: Unmanaged<ArrayStorage>?
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
        base: UnsafeMutableRawPointer, scalarType: NDArray.ScalarType, shape: AxisList, strides: AxisList,
        storage: Unmanaged<ArrayStorage>?, copiedByteCount: Int
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
            base: array.storage.base, scalarType: array.scalarType, shape: AxisList(array.shape),
            strides: AxisList(array.strides), storage: .passUnretained(array.storage), copiedByteCount: 0)
    }

    var isInUse: Bool { storage?._withUnsafeGuaranteedRef { $0.isInUse } ?? false }

    func hasStorage(of other: Argument) -> Bool {
        guard let storage, let theirs = other.storage else { return false }
        return storage.toOpaque() == theirs.toOpaque()
    }

    /// Bytes from the first to behind the last element; zero when there is no element.
    var byteCount: Int { NDArray.byteCount(shape: shape, strides: strides, scalarType: scalarType) ?? 0 }

    /// `[1, 8] float32`
    var text: String { "\(shape) \(scalarType)" }
}

/// The arguments of one call in the order they were inserted.
///
/// They lie in a block of memory that later calls use again, so that a step with any number of arguments allocates
/// nothing. Copies share the block, each sees the arguments it had; one that grows after another did takes a block of
/// its own.
///
/// Holds no reference to an array: whoever makes a list keeps its arrays alive as long as the list is used.
struct ArgumentList {
    private(set) var count = 0
    private var block: ArgumentBlock?

    /// The arguments. Valid until one is appended, and as long as the list lives.
    var elements: UnsafeMutablePointer<Argument> {
        guard let block else { preconditionFailure("a list without arguments") }
        return block.elements
    }

    mutating func append(_ argument: consuming Argument) {
        if block == nil { block = ArgumentBlock.take() }
        if block!.count != count {
            let own = ArgumentBlock.take()
            for index in 0..<count { own.append(elements[index]) }
            block = own
        }
        block!.append(argument)
        count += 1
    }
}

/// Memory for the arguments of one list.
private final class ArgumentBlock: @unchecked Sendable {
    private(set) var elements: UnsafeMutablePointer<Argument>
    private(set) var count = 0
    private var capacity: Int

    /// How many blocks wait for later calls. A call has three: inputs, states and output views.
    private static let limit = 48
    private static let blocks = Mutex<[ArgumentBlock]>([])

    private init() {
        capacity = 8
        elements = .allocate(capacity: capacity)
    }

    deinit {
        elements.deinitialize(count: count)
        elements.deallocate()
    }

    /// An empty block that nobody else refers to.
    static func take() -> ArgumentBlock {
        blocks.withLock { blocks in
            for index in blocks.indices where isKnownUniquelyReferenced(&blocks[index]) {
                blocks[index].removeAll()
                return blocks[index]
            }
            let new = ArgumentBlock()
            if blocks.count < limit { blocks.append(new) }
            return new
        }
    }

    func append(_ argument: consuming Argument) {
        if count == capacity {
            let grown = UnsafeMutablePointer<Argument>.allocate(capacity: 2 * capacity)
            grown.moveInitialize(from: elements, count: count)
            elements.deallocate()
            elements = grown
            capacity *= 2
        }
        (elements + count).initialize(to: argument)
        count += 1
    }

    private func removeAll() {
        elements.deinitialize(count: count)
        count = 0
    }
}
