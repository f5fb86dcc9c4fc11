import StatepackBundle
import StatepackCompiler
import StatepackIR

/// What `inspect` says about a model beyond its contract, from a bundle or from an exported program.
struct ModelSummary {
    struct State {
        var name: String
        var sourceName: String
        var typeText: String
        /// For the largest sizes that its symbols allow.
        var byteCount: Int
        var initialValue: String
        /// `in place (index_copy)`, `only read`, or why it is copied; nil before the compiler has decided.
        var update: String
    }

    struct Operator {
        var name: String
        var count: Int
    }

    /// Scratch memory of one run of a function, without what single kernels need on top.
    struct Scratch {
        var function: String
        var smallest: Int
        var largest: Int
    }

    var states: [State] = []
    var operators: [(function: String, list: [Operator])] = []
    var tensorCount = 0
    var weightBytes = 0
    var panelTensorCount = 0
    var scratch: [Scratch] = []
    var stateBytes: Int { states.reduce(0) { $0 + $1.byteCount } }

    var json: JSONValue {
        [
            "operators": .array(
                operators.map { function, list in
                    [
                        "function": .string(function),
                        "operators": .object(list.map { .init(key: $0.name, value: .integer($0.count)) }),
                    ]
                }),
            "weights": ["tensors": .integer(tensorCount), "bytes": .integer(weightBytes)],
            "states": .array(
                states.map { state in
                    [
                        "name": .string(state.name), "source": .string(state.sourceName),
                        "bytes": .integer(state.byteCount), "initialValue": .string(state.initialValue),
                        "update": .string(state.update),
                    ]
                }),
            "scratch": .array(
                scratch.map {
                    [
                        "function": .string($0.function), "smallest": .integer($0.smallest),
                        "largest": .integer($0.largest),
                    ]
                }),
        ]
    }

    static func operators(_ names: some Sequence<String>) -> [Operator] {
        var counts: [String: Int] = [:]
        for name in names { counts[name, default: 0] += 1 }
        return counts.sorted { ($1.value, $0.key) < ($0.value, $1.key) }.map { Operator(name: $0.key, count: $0.value) }
    }

    /// A splat as people write it: `0.0`, `5`.
    static func splatText(_ type: ScalarType, _ bytes: [UInt8]) -> String {
        guard bytes.count == type.byteCount else { return "\(bytes.count) bytes" }
        let value = bytes.withUnsafeBytes { element(type, $0, 0) }
        if type == .bool { return value == 0 ? "false" : "true" }
        return type.isFloatingPoint ? "\(value)" : decimalText(value, digits: 0)
    }
}

extension ModelSummary {
    init(_ program: BundleProgram) {
        let symbolNames = program.symbols.map(\.name)
        let (low, high) = (program.symbols.map(\.min), program.symbols.map(\.max))
        for (index, state) in program.states.enumerated() {
            let use = program.functions.lazy.flatMap(\.states).filter { $0.state == index }
            states.append(
                State(
                    name: state.name, sourceName: state.sourceName,
                    typeText:
                        "[\(state.shape.map { $0.description(symbolNames: symbolNames) }.joined(separator: ", "))] "
                        + state.scalarType.name,
                    byteCount: Self.byteCount(state.scalarType, state.shape, high) ?? Int.max,
                    initialValue: Self.text(state.initialValue, state.scalarType),
                    update: Self.updateText(
                        use.map { ($0.writtenBy, $0.copiedBytes.description(symbolNames: symbolNames), $0.copyReason) })
                ))
        }
        let smallest = try? MemoryFigures(of: program, symbols: low)
        let largest = try? MemoryFigures(of: program, symbols: high)
        for function in program.functions {
            operators.append(
                (function.name, Self.operators(function.instructions.lazy.map { program.kernels[$0.kernel] })))
            if let smallest = smallest?.arena[function.name], let largest = largest?.arena[function.name] {
                scratch.append(Scratch(function: function.name, smallest: smallest, largest: largest))
            }
        }
        tensorCount = program.tensors.count
        weightBytes = program.tensors.reduce(0) { $0 + $1.length }
        panelTensorCount = program.tensors.count { $0.layout == .panel16 }
    }

    static func text(_ value: BundleProgram.InitialValue, _ type: ScalarType) -> String {
        switch value {
        case .splat(let bytes): splatText(type, bytes)
        case .tensor: "a stored tensor"
        }
    }

    /// One phrase for all functions that use a state: writers win over readers, copies over both.
    static func updateText(_ uses: some Sequence<(writtenBy: String, copied: String, reason: String)>) -> String {
        var writers: [String] = []
        for use in uses {
            if use.copied != "0" { return "copies \(use.copied) bytes per step because \(use.reason)" }
            if use.writtenBy != "none", !use.writtenBy.isEmpty, !writers.contains(use.writtenBy) {
                writers.append(use.writtenBy)
            }
        }
        return writers.isEmpty ? "only read" : "in place (\(writers.joined(separator: ", ")))"
    }

    static func byteCount(_ type: ScalarType, _ shape: [SizeExpression], _ symbols: [Int]) -> Int? {
        var count = type.byteCount
        for size in shape {
            guard let value = try? size.evaluate(symbols) else { return nil }
            let (product, overflow) = count.multipliedReportingOverflow(by: max(value, 0))
            if overflow { return nil }
            count = product
        }
        return count
    }
}

extension ModelSummary {
    init(_ program: Program) {
        let symbolNames = program.symbolNames
        let high = program.symbols.map(\.max)
        for (index, state) in program.states.enumerated() {
            let writers = program.functions.lazy.flatMap(\.states).filter { $0.state == index && $0.before != $0.after }
                .map(\.writtenBy)
            let names = writers.reduce(into: [String]()) { if !$0.contains($1) { $0.append($1) } }
            states.append(
                State(
                    name: state.name, sourceName: state.sourceName,
                    typeText:
                        "[\(state.type.shape.map { $0.description(symbolNames: symbolNames) }.joined(separator: ", "))] "
                        + state.type.scalarType.name,
                    byteCount: Self.byteCount(state.type.scalarType, state.type.shape, high) ?? Int.max,
                    initialValue: Self.text(state.initialValue, state.type.scalarType),
                    update: names.isEmpty ? "only read" : "written by \(names.joined(separator: ", "))"))
        }
        operators = program.functions.map { ($0.name, Self.operators($0.nodes.lazy.map(\.op))) }
        tensorCount = program.tensors.count
        weightBytes = program.tensors.reduce(0) { $0 + $1.shape.reduce($1.scalarType.byteCount, *) }
    }
}
