extension InferenceFunction {
    /// Inputs as borrowed views, for callers that do not want to build a dictionary for each step.
    ///
    /// An array that was inserted cannot be changed while this value is in use.
    public struct Inputs: ~Escapable {
        // Its arrays are borrowed for as long as this value lives, or in one of the dictionaries below.
        var arguments = ArgumentList()
        private var held: [String: NDArray] = [:]
        private var heldBesides: [[String: NDArray]] = []

        @_lifetime(immortal)
        public init() {}

        @_lifetime(self: copy self, borrow value)
        public mutating func insert(
            _ value: borrowing some InferenceValue.ViewRepresentable & ~Copyable, for inputName: String
        ) {
            append(value.view().argument, for: inputName)
        }

        @_lifetime(self: copy self, copy rawView)
        public mutating func insert(_ rawView: consuming NDArray.RawView, for inputName: String) {
            append(
                Argument(
                    base: UnsafeMutableRawPointer(mutating: rawView.base), scalarType: rawView.scalarType,
                    shape: rawView.lengths, strides: rawView.steps, storage: rawView.storage, copiedByteCount: 0),
                for: inputName)
        }

        @_lifetime(self: copy self, copy view)
        public mutating func insert<Element: BitwiseCopyable>(
            _ view: consuming NDArray.View<Element>, for inputName: String
        ) {
            insert(view.rawView, for: inputName)
        }

        /// Inserts every array of a dictionary under its key: any number of inputs in one line.
        ///
        /// This value holds the arrays, so that the dictionary may go; whoever changes one meanwhile changes a copy.
        @_lifetime(self: copy self)
        public mutating func insert(contentsOf values: [String: NDArray]) {
            if held.isEmpty { held = values } else { heldBesides.append(values) }
            for (name, array) in values { append(Argument(reading: array), for: name) }
        }

        @_lifetime(self: copy self)
        private mutating func append(_ argument: Argument, for name: String) {
            var argument = argument
            argument.name = name
            arguments.append(argument)
        }
    }

    /// Arrays that a run may write, by name: all its states, or those outputs that the caller owns.
    ///
    ///     var states = InferenceFunction.MutableViews()
    ///     states.insert(&keyCache, for: "keyCache")
    ///     states.insert(&valueCache, for: "valueCache")
    ///
    /// The compiler keeps every inserted array out of reach until the run has taken the views. From `insert` until
    /// the run has ended the array belongs to these views: inserting it elsewhere makes that other run throw
    /// `E0610`, and reading it traps.
    public struct MutableViews: ~Copyable, ~Escapable {
        var arguments = ArgumentList()

        @_lifetime(immortal)
        public init() {}

        /// Copies all bytes of the array first when another value shares them; the run's statistics count that.
        @_lifetime(self: copy self, &value)
        public mutating func insert(
            _ value: inout some InferenceValue.MutableViewRepresentable & ~Copyable, for name: String
        ) {
            append(value.mutableView().argument, for: name)
        }

        @_lifetime(self: copy self, copy mutableRawView)
        public mutating func insert(_ mutableRawView: consuming NDArray.MutableRawView, for name: String) {
            append(
                Argument(
                    base: mutableRawView.base, scalarType: mutableRawView.scalarType,
                    shape: mutableRawView.lengths, strides: mutableRawView.steps, storage: mutableRawView.storage,
                    copiedByteCount: mutableRawView.copiedByteCount),
                for: name)
        }

        @_lifetime(self: copy self, copy mutableView)
        public mutating func insert<Element: BitwiseCopyable>(
            _ mutableView: consuming NDArray.MutableView<Element>, for name: String
        ) {
            insert(mutableView.mutableRawView, for: name)
        }

        /// Inserts every array of a dictionary under its key: any number of states in one line.
        @_lifetime(self: copy self, &values)
        public mutating func insert(contentsOf values: inout [String: NDArray]) {
            var index = values.startIndex
            while index != values.endIndex {
                let name = values[index].key
                append(values.values[index].mutableView().argument, for: name)
                values.formIndex(after: &index)
            }
        }

        @_lifetime(self: copy self)
        private mutating func append(_ argument: Argument, for name: String) {
            var argument = argument
            argument.name = name
            if let storage = argument.storage {
                // NOTE: a reference of its own. The compiler does not keep an actor from replacing the array in its
                // property while it awaits the run; the bytes have to live all the same.
                _ = storage.retain()
                argument.claim = storage._withUnsafeGuaranteedRef { $0.beginExclusiveUse() } ? .owner : .inUse
                if argument.claim == .inUse {
                    for index in 0..<arguments.count where arguments.elements[index].hasStorage(of: argument) {
                        argument.claim = .insertedTwice
                    }
                }
            }
            arguments.append(argument)
        }

        deinit {
            for index in 0..<arguments.count {
                let argument = arguments.elements + index
                guard let storage = argument.pointee.storage else { continue }
                if argument.pointee.claim == .owner { storage._withUnsafeGuaranteedRef { $0.endExclusiveUse() } }
                storage.release()
            }
        }
    }

    /// The outputs of one run that had no view of the caller's, each a new row-major array.
    public struct Outputs: ~Copyable, Sendable {
        private var arrays: [(name: String, array: NDArray)]
        /// What the run did, in numbers.
        public let statistics: RunStatistics

        init(arrays: consuming [(name: String, array: NDArray)], statistics: RunStatistics) {
            self.arrays = arrays
            self.statistics = statistics
        }

        public var count: Int { arrays.count }

        /// In the order of the function's descriptor.
        public var names: some Collection<String> { arrays.map(\.name) }

        /// Takes an output out. Nil when there is none of that name, or when it was taken before.
        public mutating func remove(_ outputName: String) -> InferenceValue? {
            guard let index = arrays.firstIndex(where: { $0.name == outputName }) else { return nil }
            return InferenceValue(arrays.remove(at: index).array)
        }
    }

    /// What one run read and copied beyond its arithmetic.
    public struct RunStatistics: Sendable, Hashable {
        /// Key rows that attention read, over all layers and heads; as many value rows were read.
        public internal(set) var attentionRows = 0
        /// Bytes of states that the run copied because their update could not be done in place.
        public internal(set) var stateBytesCopied = 0
        /// States and output views that had to be copied because another value shared their bytes.
        public internal(set) var copyOnWriteCopies = 0
        /// Bytes of those copies.
        public internal(set) var copyOnWriteBytes = 0

        package init() {}
    }
}
