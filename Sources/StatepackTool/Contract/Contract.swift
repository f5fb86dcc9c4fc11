import StatepackBundle
import StatepackIR

/// All descriptors of a program, as a value that can be committed and compared.
///
/// It says what a caller relies on (names, order, scalar types, shapes, bounds of the symbols) and
/// nothing else: how a state is written, weights and operators may change without a caller noticing.
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

    package struct Entry: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        /// One text per axis: a number, or an expression of symbols such as `2*query + 1`.
        package var shape: [String]

        package init(name: String, scalarType: ScalarType, shape: [String]) {
            self.name = name
            self.scalarType = scalarType
            self.shape = shape
        }

        /// `[1, query, 64] float32`
        package var typeText: String { "[\(shape.joined(separator: ", "))] \(scalarType.name)" }
    }

    package struct Function: Hashable, Sendable {
        package var name: String
        package var inputs: [Entry]
        package var states: [Entry]
        package var outputs: [Entry]

        package init(name: String, inputs: [Entry], states: [Entry], outputs: [Entry]) {
            self.name = name
            self.inputs = inputs
            self.states = states
            self.outputs = outputs
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
    package init(_ program: BundleProgram) {
        let names = program.symbols.map(\.name)
        func texts(_ shape: [SizeExpression]) -> [String] { shape.map { $0.description(symbolNames: names) } }
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
                    return Entry(name: state.name, scalarType: state.scalarType, shape: texts(state.shape))
                },
                outputs: entries(function.outputs))
        }
    }

    package init(_ program: Program) {
        let names = program.symbolNames
        func entry(_ name: String, _ type: ValueType) -> Entry {
            Entry(
                name: name, scalarType: type.scalarType, shape: type.shape.map { $0.description(symbolNames: names) })
        }
        symbols = program.symbols.map { Symbol(name: $0.name, min: $0.min, max: $0.max) }
        functions = program.functions.map { function in
            Function(
                name: function.name, inputs: function.inputs.map { entry($0.name, function[$0.value]) },
                states: function.states.map { entry(program.states[$0.state].name, program.states[$0.state].type) },
                outputs: function.outputs.map { entry($0.name, function[$0.value]) })
        }
    }
}
