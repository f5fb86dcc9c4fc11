import StatepackBundle
import StatepackCompiler
import StatepackIR

/// All descriptors of a program, as a value that can be committed and compared.
///
/// It says what a caller relies on: names, order, scalar types, shapes, bounds of the symbols, initial values of
/// states and context rules; and, for people, what writes each state. Weights and operators may change without it.
package struct Contract: Hashable, Sendable {
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

    package enum Role: String, Hashable, Sendable, CaseIterable {
        case input
        case state
        case output

        /// The key in the document.
        var plural: String { rawValue + "s" }
    }

    package enum InitialValue: Hashable, Sendable {
        /// The bits of one element, little-endian, that every element starts as.
        case fill([UInt8])
        /// SHA-256 of the elements, row-major and little-endian.
        case tensor(sha256: [UInt8])
    }

    /// What a state has beyond name, type and shape.
    package struct StateRules: Hashable, Sendable {
        package var initialValue: InitialValue
        /// Operators of the author's code, such as `index_copy`; `none` when the function only reads the state.
        package var writtenBy: String

        package var isWritten: Bool { writtenBy != "none" }

        package init(initialValue: InitialValue, writtenBy: String) {
            self.initialValue = initialValue
            self.writtenBy = writtenBy
        }
    }

    package struct Entry: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        /// One text per axis: a number, or an expression of symbols such as `2*query + 1`.
        package var shape: [String]
        /// Of a state; nil for inputs and outputs.
        package var rules: StateRules?

        package init(name: String, scalarType: ScalarType, shape: [String], rules: StateRules? = nil) {
            self.name = name
            self.scalarType = scalarType
            self.shape = shape
            self.rules = rules
        }

        /// `[1, query, 64] float32`
        package var typeText: String { "[\(shape.joined(separator: ", "))] \(scalarType.name)" }
    }

    /// `ContextRules` by name.
    package struct Context: Hashable, Sendable {
        package struct Axis: Hashable, Sendable {
            package var state: String
            package var axis: Int

            package init(state: String, axis: Int) {
                self.state = state
                self.axis = axis
            }
        }

        /// Name of the input that carries positions.
        package var positions: String
        /// In the order of the function's states.
        package var axes: [Axis]

        package init(positions: String, axes: [Axis]) {
            self.positions = positions
            self.axes = axes
        }

        /// `position_ids indexes keyCache axis 1, valueCache axis 1`
        package var text: String {
            "\(positions) indexes " + axes.map { "\($0.state) axis \($0.axis)" }.joined(separator: ", ")
        }
    }

    package struct Function: Hashable, Sendable {
        package var name: String
        package var inputs: [Entry]
        package var states: [Entry]
        package var outputs: [Entry]
        /// Nil when the author declared none.
        package var context: Context?

        package init(name: String, inputs: [Entry], states: [Entry], outputs: [Entry], context: Context? = nil) {
            self.name = name
            self.inputs = inputs
            self.states = states
            self.outputs = outputs
            self.context = context
        }

        package subscript(role: Role) -> [Entry] {
            switch role {
            case .input: inputs
            case .state: states
            case .output: outputs
            }
        }
    }

    package var symbols: [Symbol]
    package var functions: [Function]

    package init(symbols: [Symbol], functions: [Function]) {
        self.symbols = symbols
        self.functions = functions
    }
}

extension Contract {
    /// Reads no weights.
    package init(_ bundle: MappedBundle) {
        let program = bundle.program
        let names = program.symbols.map(\.name)
        func texts(_ shape: [SizeExpression]) -> [String] { shape.map { $0.description(symbolNames: names) } }
        let initialValues = program.states.map { state -> InitialValue in
            switch state.initialValue {
            case .splat(let bits): .fill(bits)
            case .tensor: .tensor(sha256: state.initialDigest)
            }
        }
        symbols = program.symbols.map { Symbol(name: $0.name, min: $0.min, max: $0.max) }
        functions = program.functions.map { function in
            func entries(_ named: [BundleProgram.NamedValue]) -> [Entry] {
                named.map { named in
                    let value = function.values[named.value]
                    return Entry(name: named.name, scalarType: value.scalarType, shape: texts(value.shape))
                }
            }
            return Function(
                name: function.name, inputs: entries(function.inputs),
                states: function.states.map { use in
                    let state = program.states[use.state]
                    return Entry(
                        name: state.name, scalarType: state.scalarType, shape: texts(state.shape),
                        rules: StateRules(
                            initialValue: initialValues[use.state], writtenBy: Self.writers(use.writtenBy)))
                },
                outputs: entries(function.outputs),
                context: function.context.map { rules in
                    Context(
                        positions: function.inputs[rules.positions].name,
                        axes: rules.axes.map { .init(state: program.states[$0.state].name, axis: $0.axis) })
                })
        }
    }

    /// Reads no weights.
    package init(_ imported: ImportedProgram) {
        let program = imported.program
        let names = program.symbolNames
        func entry(_ name: String, _ type: ValueType, _ rules: StateRules? = nil) -> Entry {
            Entry(
                name: name, scalarType: type.scalarType, shape: type.shape.map { $0.description(symbolNames: names) },
                rules: rules)
        }
        let initialValues = program.states.map { state -> InitialValue in
            switch state.initialValue {
            case .splat(let bits): .fill(bits)
            case .tensor: .tensor(sha256: state.initialDigest)
            }
        }
        symbols = program.symbols.map { Symbol(name: $0.name, min: $0.min, max: $0.max) }
        functions = program.functions.map { function in
            Function(
                name: function.name, inputs: function.inputs.map { entry($0.name, function[$0.value]) },
                states: function.states.map { use in
                    entry(
                        program.states[use.state].name, program.states[use.state].type,
                        StateRules(initialValue: initialValues[use.state], writtenBy: Self.writers(use.writtenBy)))
                },
                outputs: function.outputs.map { entry($0.name, function[$0.value]) },
                context: function.context.map { rules in
                    Context(
                        positions: function.inputs[rules.positions].name,
                        axes: rules.axes.map { .init(state: program.states[$0.state].name, axis: $0.axis) })
                })
        }
    }

    private static func writers(_ text: String) -> String { text.isEmpty ? "none" : text }
}
