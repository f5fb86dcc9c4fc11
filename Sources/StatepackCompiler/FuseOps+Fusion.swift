internal import StatepackBundle
internal import StatepackIR

/// The work on one function.
struct Fusion {
    var function: Function
    let program: Program
    var counters: [String: Int] = [:]
    let tensorOf: [ValueID: Int]

    init(_ function: Function, of program: Program) {
        self.function = function
        self.program = program
        tensorOf = Dictionary(function.constants.map { ($0.value, $0.tensor) }, uniquingKeysWith: { first, _ in first })
    }

    /// Rebuilds the node list; `replace` gives the value that stands for a node's result, or nil to keep it.
    mutating func rewrite(counter: String, _ replace: (Node) throws -> [ValueID]?) rethrows {
        var replacement: [ValueID: ValueID] = [:]
        var kept: [Node] = []
        for var node in function.nodes {
            node.mapOperands { replacement[$0] ?? $0 }
            if let values = try replace(node) {
                for (result, value) in zip(node.results, values) { replacement[result] = value }
                counters[counter, default: 0] += 1
            } else {
                kept.append(node)
            }
        }
        function.nodes = kept
        for index in function.outputs.indices {
            let value = function.outputs[index].value
            function.outputs[index].value = replacement[value] ?? value
        }
        for index in function.states.indices {
            let value = function.states[index].after
            function.states[index].after = replacement[value] ?? value
        }
    }

    /// The value of a float32 constant with one element, when it is stored inline.
    func splat(_ value: ValueID) -> Float? {
        guard let tensor = tensorOf[value].map({ program.tensors[$0] }), tensor.scalarType == .float32,
            case .inline(let bytes) = tensor.data, bytes.count == 4
        else { return nil }
        return Float(bitPattern: bytes.reversed().reduce(0) { $0 << 8 | UInt32($1) })
    }

    func producers() -> [ValueID: Node] {
        var result: [ValueID: Node] = [:]
        for node in function.nodes { for value in node.results { result[value] = node } }
        return result
    }

    func useCounts() -> [ValueID: Int] {
        var result: [ValueID: Int] = [:]
        for id in function.nodes.flatMap(\.operands) + function.outputs.map(\.value) + function.states.map(\.after) {
            result[id, default: 0] += 1
        }
        return result
    }

    func users() -> [ValueID: [Node]] {
        var result: [ValueID: [Node]] = [:]
        for node in function.nodes { for value in Set(node.operands) { result[value, default: []].append(node) } }
        return result
    }

    /// Values that a state has as a whole when partial updates of it are taken off.
    ///
    /// A point-wise node may compute such a value where the state lies, also from the state itself; what would be
    /// fused with it may not, and the state would be copied.
    func wholeStateValues() -> Set<ValueID> {
        let producer = producers()
        var result: Set<ValueID> = []
        for use in function.states where use.after != use.before {
            var value = use.after
            while result.insert(value).inserted, let node = producer[value],
                node.isScatterOfView || node.signature?.isWriting == true, let base = node.operands.first
            {
                value = base
            }
        }
        return result
    }

    /// True when the value is a view of a state, or of a state in which something was replaced.
    ///
    /// A node that reads one must not move behind a write of it, or the state would be copied before.
    func readsState(_ value: ValueID, _ producer: [ValueID: Node]) -> Bool {
        let states = Set(function.states.map(\.before))
        var value = value
        while !states.contains(value) {
            guard let node = producer[value], let base = node.operands.first,
                node.isView || node.isScatterOfView || node.signature?.isWriting == true
            else { return false }
            value = base
        }
        return true
    }

    /// The node behind a value that nothing else uses, when it has that operator.
    func onlyUse(
        of value: ValueID, _ op: String, _ producer: [ValueID: Node], _ uses: [ValueID: Int]
    ) -> Node? {
        guard uses[value] == 1, let node = producer[value], node.op == op else { return nil }
        return node
    }

    /// The operands of a commutative operator, both ways round.
    func pairs(_ node: Node) throws -> [(ValueID, ValueID)] {
        let (a, b) = (try node.tensor("a"), try node.tensor("b"))
        return [(a, b), (b, a)]
    }

    mutating func count(_ fusion: String) { counters[fusion, default: 0] += 1 }
}
