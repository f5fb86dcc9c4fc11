// The text form of a planned program: what `--dump-ir-after PlanMemory` prints and plan tests compare.
//
//     symbol query 1...256
//     tensor 0 "head.weight" float32[64, 64] panel16 at 0, 16384 bytes
//     state 0 "keyCache" float32[2, 256, 64]
//
//     func "main" {
//         symbol query = input 0 axis 1
//         %0 "features": float32[1, query, 64] input 0
//         %1 "keyCache": float32[2, 256, 64] state 0
//         %2: float32[256, 64] view of %1 strides [64, 1] offset 0
//         %3: float32[1, query, 64] scratch 0...1
//         0: layer_norm(%0, none, none) ints [1] floats [1e-05] -> %3
//         1: index_copy(%2, %4, %3) ints [0] -> %2
//         output %5 "logits"
//         context input 1 indexes state 0 axis 1
//     }
//
// Strides and offsets count elements. `scratch a...b` is memory alive from instruction a to b.

extension BundleProgram {
    /// The text form. Takes time proportional to its length; nothing reads it back.
    package func text() -> String {
        var lines = symbols.map { "symbol \($0.name) \($0.min)...\($0.max)" }
        for (index, tensor) in tensors.enumerated() {
            // Before PackWeights a tensor has no place yet.
            let place = tensor.length == 0 ? "" : " \(tensor.layout) at \(tensor.offset), \(tensor.length) bytes"
            lines.append("tensor \(index) \(quoted(tensor.name)) \(tensor.scalarType)\(tensor.shape)\(place)")
        }
        for (index, state) in states.enumerated() {
            lines.append("state \(index) \(quoted(state.name)) \(state.scalarType)\(list(state.shape))")
        }
        for function in functions { lines += text(of: function) }
        return lines.map { $0 + "\n" }.joined()
    }

    private func text(of function: Function) -> [String] {
        var names: [Int: String] = [:]
        for input in function.inputs { names[input.value] = input.name }
        for use in function.states { names[use.value] = states[use.state].name }

        var lines = ["", "func \(quoted(function.name)) {"]
        for source in function.symbolSources {
            lines.append("    symbol \(symbols[source.symbol].name) = input \(source.input) axis \(source.axis)")
        }
        for (index, value) in function.values.enumerated() {
            let name = names[index].map { " \(quoted($0))" } ?? ""
            lines.append("    %\(index)\(name): \(value.scalarType)\(list(value.shape)) \(text(of: value.storage))")
        }
        for (index, instruction) in function.instructions.enumerated() {
            let operands = instruction.operands.map { $0.map { "%\($0)" } ?? "none" }.joined(separator: ", ")
            let results = instruction.results.map { "%\($0)" }.joined(separator: ", ")
            var line = "    \(index): \(kernels[instruction.kernel])(\(operands))"
            if !instruction.ints.isEmpty { line += " ints \(list(instruction.ints))" }
            if !instruction.floats.isEmpty { line += " floats \(instruction.floats)" }
            lines.append("\(line) -> \(results)")
        }
        for output in function.outputs { lines.append("    output %\(output.value) \(quoted(output.name))") }
        if let context = function.context {
            let axes = context.axes.map { "state \($0.state) axis \($0.axis)" }.joined(separator: ", ")
            lines.append("    context input \(context.positions) indexes \(axes)")
        }
        lines.append("}")
        return lines
    }

    private func text(of storage: Storage) -> String {
        switch storage {
        case .input(let index): "input \(index)"
        case .output(let index): "output \(index)"
        case .state(let index): "state \(index)"
        case .tensor(let index): "tensor \(index)"
        case .arena(let first, let last): "scratch \(first)...\(last)"
        case .view(let base, let strides, let offset):
            "view of %\(base) strides \(list(strides)) offset \(offset.description(symbolNames: symbols.map(\.name)))"
        }
    }

    private func list(_ sizes: [SizeExpression]) -> String {
        "[\(sizes.map { $0.description(symbolNames: symbols.map(\.name)) }.joined(separator: ", "))]"
    }

    /// Names come from files; quotes, backslashes and control characters in them are escaped.
    private func quoted(_ name: String) -> String { name.debugDescription }
}
