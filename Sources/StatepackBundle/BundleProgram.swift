/// A planned program: the content of a bundle's program section, one Swift value per message of
/// `schemas/bundle.proto`. The compiler makes it, the writer encodes it, the runtime specialises it.
///
/// A value that came from `BundleReader` has passed `BundleProgram.check`: every index is in range
/// and every size is a valid expression, so users need no bounds checks of their own.
package struct BundleProgram: Hashable, Sendable {
    package static let formatMajor: UInt32 = 1
    package static let formatMinor: UInt32 = 0

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

    package enum Layout: UInt32, Hashable, Sendable {
        case rowMajor = 0
        /// `[N/16][K][16]` of an `[N, K]` matrix of 32-bit elements, N padded to 16 with zeros.
        case panel16 = 1
    }

    package struct Tensor: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        package var layout: Layout
        /// Bytes from the start of the weights section.
        package var offset: Int
        package var length: Int

        package init(name: String, scalarType: ScalarType, shape: [Int], layout: Layout, offset: Int, length: Int) {
            self.name = name
            self.scalarType = scalarType
            self.shape = shape
            self.layout = layout
            self.offset = offset
            self.length = length
        }
    }

    package enum InitialValue: Hashable, Sendable {
        /// One element, little-endian, repeated.
        case splat([UInt8])
        /// Index into `tensors`.
        case tensor(Int)
    }

    package struct State: Hashable, Sendable {
        package var name: String
        package var sourceName: String
        package var scalarType: ScalarType
        package var shape: [SizeExpression]
        package var initialValue: InitialValue
        /// SHA-256 of an initial tensor's elements, 32 bytes; empty with a splat.
        package var initialDigest: [UInt8]

        package init(
            name: String, sourceName: String, scalarType: ScalarType, shape: [SizeExpression],
            initialValue: InitialValue, initialDigest: [UInt8] = []
        ) {
            self.name = name
            self.sourceName = sourceName
            self.scalarType = scalarType
            self.shape = shape
            self.initialValue = initialValue
            self.initialDigest = initialDigest
        }
    }

    package struct NamedValue: Hashable, Sendable {
        package var name: String
        /// Index into `Function.values`.
        package var value: Int

        package init(name: String, value: Int) {
            self.name = name
            self.value = value
        }
    }

    package struct FunctionState: Hashable, Sendable {
        /// Index into `BundleProgram.states`.
        package var state: Int
        /// Index into `Function.values`.
        package var value: Int
        /// How the author's code writes it, for people: `index_copy`, `none`.
        package var writtenBy: String
        /// Bytes copied per step because the update could not be done in place; zero when it is.
        package var copiedBytes: SizeExpression
        /// Why, in words; empty when in place.
        package var copyReason: String

        package init(state: Int, value: Int, writtenBy: String, copiedBytes: SizeExpression, copyReason: String) {
            self.state = state
            self.value = value
            self.writtenBy = writtenBy
            self.copiedBytes = copiedBytes
            self.copyReason = copyReason
        }
    }

    package struct SymbolSource: Hashable, Sendable {
        package var symbol: Int
        /// Index into `Function.inputs`, and the axis whose length is the symbol.
        package var input: Int
        package var axis: Int

        package init(symbol: Int, input: Int, axis: Int) {
            self.symbol = symbol
            self.input = input
            self.axis = axis
        }
    }

    package enum Storage: Hashable, Sendable {
        /// Index into `Function.inputs`.
        case input(Int)
        /// Index into `Function.outputs`.
        case output(Int)
        /// Index into `Function.states` (not `BundleProgram.states`).
        case state(Int)
        /// Index into `BundleProgram.tensors`.
        case tensor(Int)
        /// Scratch memory of one run. Indices of the first and last instruction that touch it, views included.
        case arena(first: Int, last: Int)
        /// The bytes of value `base`, which is not a view itself. Strides and offset in elements.
        case view(base: Int, strides: [SizeExpression], offset: SizeExpression)
    }

    package struct Value: Hashable, Sendable {
        package var scalarType: ScalarType
        package var shape: [SizeExpression]
        package var storage: Storage

        package init(scalarType: ScalarType, shape: [SizeExpression], storage: Storage) {
            self.scalarType = scalarType
            self.shape = shape
            self.storage = storage
        }
    }

    package struct Instruction: Hashable, Sendable {
        /// Index into `BundleProgram.kernels`.
        package var kernel: Int
        /// Indices into `Function.values`; nil for an absent optional operand.
        package var operands: [Int?]
        package var results: [Int]
        package var ints: [SizeExpression]
        package var floats: [Double]
        /// Index into the source map, when known.
        package var source: Int?

        package init(
            kernel: Int, operands: [Int?], results: [Int], ints: [SizeExpression], floats: [Double], source: Int?
        ) {
            self.kernel = kernel
            self.operands = operands
            self.results = results
            self.ints = ints
            self.floats = floats
            self.source = source
        }
    }

    package struct Function: Hashable, Sendable {
        package var name: String
        package var inputs: [NamedValue]
        package var outputs: [NamedValue]
        package var states: [FunctionState]
        package var symbolSources: [SymbolSource]
        package var values: [Value]
        package var instructions: [Instruction]
        /// Nil when the author declared none.
        package var context: ContextRules?

        package init(
            name: String, inputs: [NamedValue], outputs: [NamedValue], states: [FunctionState],
            symbolSources: [SymbolSource], values: [Value], instructions: [Instruction], context: ContextRules? = nil
        ) {
            self.name = name
            self.inputs = inputs
            self.outputs = outputs
            self.states = states
            self.symbolSources = symbolSources
            self.values = values
            self.instructions = instructions
            self.context = context
        }
    }

    package var producer: String
    /// SHA-256 of the exported program, 32 bytes.
    package var programDigest: [UInt8]
    package var symbols: [Symbol]
    package var tensors: [Tensor]
    package var states: [State]
    package var functions: [Function]
    /// Kernel names that instructions refer to by index, each once.
    package var kernels: [String]

    package init(
        producer: String, programDigest: [UInt8], symbols: [Symbol], tensors: [Tensor], states: [State],
        functions: [Function], kernels: [String]
    ) {
        self.producer = producer
        self.programDigest = programDigest
        self.symbols = symbols
        self.tensors = tensors
        self.states = states
        self.functions = functions
        self.kernels = kernels
    }
}
