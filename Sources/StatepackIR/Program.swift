package import StatepackBundle

/// A program between exported.pb and the bundle: functions as graphs over numbered values.
///
/// The same types serve every stage; what differs is which operators may occur (`Verifier` has a rule
/// set for each stage). Nodes are in topological order, and from `RecoverStateWrites` on in execution
/// order: an in-place write changes what later nodes read.
package struct Program: Hashable, Sendable {
    package struct Symbol: Hashable, Sendable {
        package var name: String
        package var min: Int
        package var max: Int

        package init(name: String, min: Int, max: Int) {
            self.name = name
            self.min = min
            self.max = max
        }
    }

    /// Where a stored tensor's bytes are.
    package enum TensorData: Hashable, Sendable {
        /// Row-major little-endian elements.
        case inline([UInt8])
        /// The tensor of that name in the weights file.
        case weightsFile(name: String)
    }

    package struct StoredTensor: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        package var data: TensorData
        package var aliases: [String]

        package init(
            name: String, scalarType: ScalarType, shape: [Int], data: TensorData, aliases: [String] = []
        ) {
            self.name = name
            self.scalarType = scalarType
            self.shape = shape
            self.data = data
            self.aliases = aliases
        }
    }

    package enum StateSource: Hashable, Sendable {
        case buffer
        case input
    }

    package struct State: Hashable, Sendable {
        package var name: String
        package var source: StateSource
        /// Qualified buffer name, or the name of the mutated input.
        package var sourceName: String
        package var type: ValueType
        /// `.tensor` indexes `tensors`.
        package var initialValue: BundleProgram.InitialValue
        package var isNamedByAuthor: Bool
        /// SHA-256 of an initial tensor's elements, 32 bytes; empty with a splat.
        package var initialDigest: [UInt8]

        package init(
            name: String, source: StateSource, sourceName: String, type: ValueType,
            initialValue: BundleProgram.InitialValue, isNamedByAuthor: Bool, initialDigest: [UInt8] = []
        ) {
            self.name = name
            self.source = source
            self.sourceName = sourceName
            self.type = type
            self.initialValue = initialValue
            self.isNamedByAuthor = isNamedByAuthor
            self.initialDigest = initialDigest
        }
    }

    package var producer: String
    /// SHA-256 of the serialised program, 32 bytes.
    package var digest: [UInt8]
    package var symbols: [Symbol]
    package var tensors: [StoredTensor]
    package var states: [State]
    package var functions: [Function]
    /// What `Node.source` indexes: module path and relative source line.
    package var sources: [String]

    package init(
        producer: String = "", digest: [UInt8] = Array(repeating: 0, count: 32), symbols: [Symbol] = [],
        tensors: [StoredTensor] = [], states: [State] = [], functions: [Function] = [], sources: [String] = []
    ) {
        self.producer = producer
        self.digest = digest
        self.symbols = symbols
        self.tensors = tensors
        self.states = states
        self.functions = functions
        self.sources = sources
    }

    package var symbolNames: [String] { symbols.map(\.name) }
}

/// Scalar type and shape of a value.
package struct ValueType: Hashable, Sendable {
    package var scalarType: ScalarType
    package var shape: [SizeExpression]

    package init(_ scalarType: ScalarType, _ shape: [SizeExpression]) {
        self.scalarType = scalarType
        self.shape = shape
    }

    package var rank: Int { shape.count }

    /// `float32[1, query, 64]`
    package func description(symbolNames: [String]) -> String {
        "\(scalarType)[\(shape.map { $0.description(symbolNames: symbolNames) }.joined(separator: ", "))]"
    }
}

/// Index of a value in its function.
package struct ValueID: Hashable, Sendable, Comparable {
    package var index: Int

    package init(_ index: Int) { self.index = index }

    package static func < (a: ValueID, b: ValueID) -> Bool { a.index < b.index }
}

/// One entry point.
package struct Function: Hashable, Sendable {
    package struct Named: Hashable, Sendable {
        package var name: String
        package var value: ValueID

        package init(name: String, value: ValueID) {
            self.name = name
            self.value = value
        }
    }

    package struct StateUse: Hashable, Sendable {
        /// Index into `Program.states`.
        package var state: Int
        /// Holds the state when the function starts.
        package var before: ValueID
        /// Holds it when the function ends. Equal to `before` when the function only reads the state,
        /// and for every state once `RecoverStateWrites` has run.
        package var after: ValueID
        package var writtenBy: String
        /// Set by `RecoverStateWrites`: bytes copied per step, zero when in place, and why.
        package var copiedBytes: SizeExpression
        package var copyReason: String

        package init(
            state: Int, before: ValueID, after: ValueID, writtenBy: String, copiedBytes: SizeExpression = .zero,
            copyReason: String = ""
        ) {
            self.state = state
            self.before = before
            self.after = after
            self.writtenBy = writtenBy
            self.copiedBytes = copiedBytes
            self.copyReason = copyReason
        }
    }

    package struct Constant: Hashable, Sendable {
        package var value: ValueID
        /// Index into `Program.tensors`.
        package var tensor: Int

        package init(value: ValueID, tensor: Int) {
            self.value = value
            self.tensor = tensor
        }
    }

    package var name: String
    /// Type of each value; `ValueID.index` indexes it.
    package var values: [ValueType]
    package var inputs: [Named]
    package var outputs: [Named]
    package var states: [StateUse]
    package var constants: [Constant]
    package var nodes: [Node]
    /// Which input carries positions; nil when the author declared none.
    package var context: ContextRules?

    package init(
        name: String, values: [ValueType] = [], inputs: [Named] = [], outputs: [Named] = [],
        states: [StateUse] = [], constants: [Constant] = [], nodes: [Node] = [], context: ContextRules? = nil
    ) {
        self.name = name
        self.values = values
        self.inputs = inputs
        self.outputs = outputs
        self.states = states
        self.constants = constants
        self.nodes = nodes
        self.context = context
    }

    package subscript(id: ValueID) -> ValueType {
        get { values[id.index] }
        set { values[id.index] = newValue }
    }

    package mutating func addValue(_ type: ValueType) -> ValueID {
        values.append(type)
        return ValueID(values.count - 1)
    }
}

/// One operator application.
package struct Node: Hashable, Sendable {
    package struct Argument: Hashable, Sendable {
        package var name: String
        package var value: ArgumentValue

        package init(_ name: String, _ value: ArgumentValue) {
            self.name = name
            self.value = value
        }
    }

    /// `aten.index_copy.default` up to DecomposeOps; after it a kernel name of ops.json (`index_copy`)
    /// or a view: `view.reshape`, `view.permute`, `view.expand`, `view.slice`, `view.select`; or the dual of
    /// a view: `scatter.slice`, `scatter.select`; from RecoverStateWrites on also `write`.
    package var op: String
    package var arguments: [Argument]
    package var results: [ValueID]
    /// Index into `Program.sources`.
    package var source: Int?
    /// The first result occupies the storage of the first tensor argument, and the operator changes only
    /// the elements it names. Set by `RecoverStateWrites` on operators whose ops.json row says `writes`.
    package var isInPlace: Bool

    package init(
        _ op: String, _ arguments: [Argument], results: [ValueID], source: Int? = nil, isInPlace: Bool = false
    ) {
        self.op = op
        self.arguments = arguments
        self.results = results
        self.source = source
        self.isInPlace = isInPlace
    }

    package subscript(name: String) -> ArgumentValue? {
        arguments.first { $0.name == name }?.value
    }

    /// Every value the node reads, in argument order; a value used twice occurs twice.
    package var operands: [ValueID] {
        arguments.flatMap { argument -> [ValueID] in
            switch argument.value {
            case .tensor(let id): [id]
            case .tensors(let ids): ids.compactMap { $0 }
            default: []
            }
        }
    }

    /// Replaces every operand by what `replacement` gives for it.
    package mutating func mapOperands(_ replacement: (ValueID) -> ValueID) {
        for index in arguments.indices {
            switch arguments[index].value {
            case .tensor(let id): arguments[index].value = .tensor(replacement(id))
            case .tensors(let ids): arguments[index].value = .tensors(ids.map { $0.map(replacement) })
            default: break
            }
        }
    }
}

package enum ArgumentValue: Hashable, Sendable {
    case tensor(ValueID)
    case tensors([ValueID?])
    case size(SizeExpression)
    case sizes([SizeExpression])
    case number(Double)
    case flag(Bool)
    case scalarType(ScalarType)
    case text(String)
    case numbers([Double])
    case none
}
