import StatepackBundle
import StatepackCompiler
import StatepackIR
import Testing

/// Programs nobody would write: states, views, partial and whole updates and reads in any order.
@Suite struct PlanRandomProgramTests {
    struct Generator: RandomNumberGenerator {
        var state: UInt64

        mutating func next() -> UInt64 {
            state &+= 0x9E37_79B9_7F4A_7C15
            var value = state
            value = (value ^ (value >> 30)) &* 0xBF58_476D_1CE4_E5B9
            value = (value ^ (value >> 27)) &* 0x94D0_49BB_1331_11EB
            return value ^ (value >> 31)
        }
    }

    /// Three states and two inputs of [4, 2, 4], some dozen nodes, random outputs and updates.
    struct Builder {
        var random: Generator
        var program = Program()
        var function = Function(name: "main")
        let whole: [Int] = [4, 2, 4]
        /// Values that later nodes may read; a value that is used for something else is not in it.
        var values: [ValueID] = []
        var index = ValueID(0)
        var gate = ValueID(0)

        init(seed: UInt64) { random = Generator(state: seed) }

        func sizes(_ shape: [Int]) -> [SizeExpression] { shape.map { SizeExpression($0) } }

        func shape(_ id: ValueID) -> [Int] { function[id].shape.map { $0.constant! } }

        mutating func pick(_ count: Int) -> Int { Int.random(in: 0..<count, using: &random) }

        mutating func add(_ op: String, _ arguments: [(String, ArgumentValue)], _ shape: [Int]) -> ValueID {
            let result = function.addValue(ValueType(.float32, sizes(shape)))
            function.nodes.append(Node(op, arguments.map { .init($0.0, $0.1) }, results: [result]))
            values.append(result)
            return result
        }

        func int(_ value: Int) -> ArgumentValue { .size(SizeExpression(value)) }

        mutating func view(of value: ValueID) -> ValueID {
            var shape = shape(value)
            switch pick(4) {
            case 0 where shape.count > 1:
                let dim = pick(shape.count)
                let index = pick(shape[dim])
                shape.remove(at: dim)
                return add("view.select", [("a", .tensor(value)), ("dim", int(dim)), ("index", int(index))], shape)
            case 1 where !shape.isEmpty:
                let dim = pick(shape.count)
                let start = pick(shape[dim])
                let end = start + 1 + pick(shape[dim] - start)
                let step = 1 + pick(2)
                shape[dim] = (end - start + step - 1) / step
                return add(
                    "view.slice",
                    [
                        ("a", .tensor(value)), ("dim", int(dim)), ("start", int(start)), ("end", int(end)),
                        ("step", int(step)),
                    ],
                    shape)
            case 2 where shape.count > 1:
                let dims = Array(shape.indices).shuffled(using: &random)
                return add(
                    "view.permute", [("a", .tensor(value)), ("dims", .sizes(sizes(dims)))], dims.map { shape[$0] })
            default:
                let count = shape.reduce(1, *)
                let choices = [[count], [1] + shape, shape + [1], [2, count / 2], [4, count / 4]]
                let target = choices[pick(5)]
                guard target.reduce(1, *) == count else { return value }
                return add("view.reshape", [("a", .tensor(value)), ("shape", .sizes(sizes(target)))], target)
            }
        }

        /// Another value of the same shape, made if need be.
        mutating func partner(of value: ValueID) -> ValueID {
            let matching = values.filter { shape($0) == shape(value) }
            return matching.isEmpty ? value : matching[pick(matching.count)]
        }

        mutating func step() {
            let value = values[pick(values.count)]
            let shape = shape(value)
            switch pick(12) {
            case 0, 1, 2: _ = view(of: value)
            case 3: _ = add("neg", [("a", .tensor(value))], shape)
            case 4: _ = add("sub", [("a", .tensor(value)), ("b", .tensor(partner(of: value)))], shape)
            case 5: _ = add("copy", [("a", .tensor(value))], shape)
            case 6:
                _ = add(
                    "where", [("condition", .tensor(gate)), ("a", .tensor(value)), ("b", .tensor(partner(of: value)))],
                    shape)
            case 7 where !shape.isEmpty && shape[0] > 1:
                // Shift along the first axis.
                let rest = add(
                    "view.slice",
                    [
                        ("a", .tensor(value)), ("dim", int(0)), ("start", int(1)), ("end", int(shape[0])),
                        ("step", int(1)),
                    ],
                    [shape[0] - 1] + shape.dropFirst())
                let first = add(
                    "view.slice",
                    [("a", .tensor(value)), ("dim", int(0)), ("start", int(0)), ("end", int(1)), ("step", int(1))],
                    [1] + shape.dropFirst())
                _ = add("cat", [("parts", .tensors([rest, first])), ("axis", int(0))], shape)
            default: update(value)
            }
        }

        /// A chain as torch writes it: views down, an update, scatters back up.
        mutating func update(_ base: ValueID) {
            var levels: [(ValueID, Node)] = []
            var value = base
            for _ in 0..<pick(3) {
                let next = view(of: value)
                guard next != value, let node = function.nodes.last, ["view.select", "view.slice"].contains(node.op)
                else {
                    break
                }
                levels.append((value, node))
                value = next
            }
            let shape = shape(value)
            var updated: ValueID
            if !shape.isEmpty, pick(2) == 0 {
                let source = add(
                    "view.slice",
                    [
                        ("a", .tensor(partner(of: value))), ("dim", int(0)), ("start", int(0)), ("end", int(1)),
                        ("step", int(1)),
                    ],
                    [1] + shape.dropFirst())
                updated = add(
                    "index_copy",
                    [("a", .tensor(value)), ("index", .tensor(index)), ("source", .tensor(source)), ("axis", int(0))],
                    shape)
            } else {
                updated = partner(of: value)
            }
            for (outer, node) in levels.reversed() {
                let arguments = node.arguments.dropFirst().map { ($0.name, $0.value) }
                updated = add(
                    node.op.replacing("view.", with: "scatter."),
                    [("a", .tensor(outer)), ("source", .tensor(updated))] + arguments, self.shape(outer))
            }
        }

        mutating func build() -> Program {
            let type = ValueType(.float32, sizes(whole))
            for name in ["a", "b", "c"] {
                program.states.append(
                    .init(
                        name: name, source: .buffer, sourceName: name, type: type, initialValue: .splat([0, 0, 0, 0]),
                        isNamedByAuthor: false))
                let value = function.addValue(type)
                function.states.append(
                    .init(state: program.states.count - 1, before: value, after: value, writtenBy: "?"))
                values.append(value)
            }
            for name in ["x", "y"] {
                let value = function.addValue(type)
                function.inputs.append(.init(name: name, value: value))
                values.append(value)
            }
            index = function.addValue(ValueType(.int64, sizes([1])))
            function.inputs.append(.init(name: "index", value: index))
            gate = function.addValue(ValueType(.bool, sizes([1])))
            function.inputs.append(.init(name: "gate", value: gate))
            // Updates of what was just updated are what real programs do.
            for _ in 0..<(4 + pick(20)) {
                if pick(3) == 0 {
                    let recent = values.suffix(12).filter { shape($0) == whole }
                    if let last = recent.last { update(last) }
                }
                step()
            }
            for position in function.states.indices where pick(4) != 0 {
                let candidates = values.filter { shape($0) == whole }
                function.states[position].after = pick(2) == 0 ? candidates.last! : candidates[pick(candidates.count)]
            }
            for position in 0..<(1 + pick(4)) {
                function.outputs.append(.init(name: "out\(position)", value: values[pick(values.count)]))
            }
            program.functions = [function]
            return program
        }
    }

    @Test(arguments: 0..<20)
    func computesWhatTheFunctionalFormDoes(block: Int) throws {
        for seed in block * 15..<(block + 1) * 15 {
            var builder = Builder(seed: UInt64(seed))
            let program = builder.build()
            try #require(Verifier.findings(in: program, stage: .decomposed).isEmpty, "seed \(seed)")
            do {
                try PlanOracle.compile(program, options: .init(noFuse: Set(FuseOps.fusions)))
                try PlanOracle.compile(program)
            } catch {
                Issue.record("seed \(seed): \(error)\n\(program.text())")
            }
        }
    }
}
