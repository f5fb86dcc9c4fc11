internal import StatepackBundle
internal import StatepackIR

extension Fusion {
    // MARK: Gated activations

    /// As `linear_gated` numbers them.
    private static let activations = ["silu", "gelu", "gelu_tanh", "sigmoid", "relu"]

    mutating func fuseGated() throws {
        let producer = producers()
        let uses = useCounts()
        let states = wholeStateValues()
        for index in function.nodes.indices where function.nodes[index].op == "mul" {
            let node = function.nodes[index]
            guard !states.contains(node.results[0]), let gated = try matchGated(node, producer, uses) else { continue }
            function.nodes[index] = gated
            count("gated")
        }
        function.removeDeadNodes()
    }

    /// `activation(linear(x, gate)) * linear(x, up)`.
    private func matchGated(_ node: Node, _ producer: [ValueID: Node], _ uses: [ValueID: Int]) throws -> Node? {
        let type = function[node.results[0]]
        for (activated, lifted) in try pairs(node) where function[activated] == type && function[lifted] == type {
            guard uses[activated] == 1, let activation = producer[activated],
                let number = Self.activations.firstIndex(of: activation.op),
                let gate = onlyUse(of: try activation.tensor("a"), "linear", producer, uses),
                let up = onlyUse(of: lifted, "linear", producer, uses)
            else { continue }
            let a = try gate.tensor("a")
            let (gateWeight, upWeight) = (try gate.tensor("weight"), try up.tensor("weight"))
            guard try up.tensor("a") == a, function[gateWeight] == function[upWeight], !readsState(a, producer) else {
                continue
            }
            return Node(
                "linear_gated",
                [
                    .init("a", .tensor(a)), .init("gate", .tensor(gateWeight)), .init("up", .tensor(upWeight)),
                    .init("gate_bias", gate["bias"] ?? .none), .init("up_bias", up["bias"] ?? .none),
                    .init("activation", .size(SizeExpression(number))),
                ], results: node.results, source: node.source)
        }
        return nil
    }

    // MARK: Residuals

    mutating func fuseResiduals() throws {
        let producer = producers()
        let uses = useCounts()
        let states = wholeStateValues()
        for index in function.nodes.indices where function.nodes[index].op == "add" {
            let node = function.nodes[index]
            let type = function[node.results[0]]
            guard !states.contains(node.results[0]) else { continue }
            for (residual, product) in try pairs(node) where function[residual] == type && function[product] == type {
                guard residual != product, let linear = onlyUse(of: product, "linear", producer, uses),
                    try !readsState(residual, producer) && !readsState(linear.tensor("a"), producer)
                else { continue }
                function.nodes[index] = Node(
                    "linear_add",
                    [
                        .init("a", .tensor(try linear.tensor("a"))),
                        .init("weight", .tensor(try linear.tensor("weight"))), .init("residual", .tensor(residual)),
                        .init("bias", linear["bias"] ?? .none),
                    ], results: node.results, source: node.source)
                count("residual")
                break
            }
        }
        function.removeDeadNodes()
    }

    // MARK: Shared inputs

    mutating func fuseSharedInputs() throws {
        struct Key: Hashable {
            var a: ValueID
            var isBiased: Bool
        }
        var groups: [Key: [Int]] = [:]
        let users = users()
        for (index, node) in function.nodes.enumerated() where node.op == "linear" {
            guard let bias = try constantBias(of: node), try mayBecomeSlice(node, users) else { continue }
            groups[Key(a: try node.tensor("a"), isBiased: bias != .none), default: []].append(index)
        }
        var first: [Int: [Int]] = [:]
        var joined: Set<Int> = []
        for members in groups.values {
            // A kernel takes so many; a rest of one stays as it is.
            for start in stride(from: 0, to: members.count, by: 16) {
                let part = Array(members[start..<min(start + 16, members.count)])
                guard part.count > 1 else { continue }
                first[part[0]] = part
                joined.formUnion(part)
            }
        }
        var nodes: [Node] = []
        for (index, node) in function.nodes.enumerated() {
            if let members = first[index] {
                nodes += try sideBySide(members.map { function.nodes[$0] })
                count("shared-input")
            } else if !joined.contains(index) {
                nodes.append(node)
            }
        }
        function.nodes = nodes
    }

    /// The bias argument when it and the weight are stored; nil when either is computed, and may come too late.
    private func constantBias(of node: Node) throws -> ArgumentValue? {
        guard tensorOf[try node.tensor("weight")] != nil else { return nil }
        switch node["bias"] {
        case .tensor(let bias): return tensorOf[bias] != nil ? .tensor(bias) : nil
        default: return ArgumentValue.none
        }
    }

    /// True when nothing that looks at the result of a linear layer needs a copy once it is a part of wider rows.
    private func mayBecomeSlice(_ node: Node, _ users: [ValueID: [Node]]) throws -> Bool {
        let result = node.results[0]
        let shape = function[result].shape
        guard let width = shape.last else { return false }
        let wide = try Placement(whole: shape.dropLast() + [width.times(2)])
        let slice = slice(of: result, from: .zero, to: width, into: result)
        guard let part = try wide.applying(slice, shape: shape) else { return false }
        var pending = [(result, try Placement(whole: shape), part)]
        let kept = Set(function.outputs.map(\.value) + function.states.map(\.after))
        while let (value, alone, part) = pending.popLast() {
            if kept.contains(value) { return false }
            for user in users[value] ?? [] where user.isView {
                let shape = function[user.results[0]].shape
                // What takes a copy in any case may take it of the part.
                guard let viewed = try alone.applying(user, shape: shape) else { continue }
                guard let viewedPart = try part.applying(user, shape: shape) else { return false }
                pending.append((user.results[0], viewed, viewedPart))
            }
        }
        return true
    }

    /// `result` as columns `start..<end` of a value.
    private func slice(
        of value: ValueID, from start: SizeExpression, to end: SizeExpression, into result: ValueID
    ) -> Node {
        Node(
            "view.slice",
            [
                .init("a", .tensor(value)), .init("dim", .size(SizeExpression(function[result].rank - 1))),
                .init("start", .size(start)), .init("end", .size(end)), .init("step", .size(.one)),
            ], results: [result])
    }

    /// One layer for all, and slices of it that stand for their results.
    private mutating func sideBySide(_ members: [Node]) throws -> [Node] {
        let a = try members[0].tensor("a")
        let biases = members.compactMap { member -> ValueID? in
            if case .tensor(let bias) = member["bias"] { return bias }
            return nil
        }
        var ends: [SizeExpression] = []
        for member in members {
            let width = function[member.results[0]].shape.last!
            ends.append(try (ends.last ?? .zero).plus(width))
        }
        let type = function[members[0].results[0]]
        let whole = function.addValue(ValueType(type.scalarType, type.shape.dropLast() + [ends.last!]))
        var nodes = [
            Node(
                "linear_parts",
                [
                    .init("a", .tensor(a)),
                    .init("weights", .tensors(try members.map { try $0.tensor("weight") } + biases)),
                    .init("biases", .size(biases.isEmpty ? .zero : .one)),
                ], results: [whole], source: members[0].source)
        ]
        for (index, member) in members.enumerated() {
            var part = slice(
                of: whole, from: index == 0 ? .zero : ends[index - 1], to: ends[index], into: member.results[0])
            part.source = member.source
            nodes.append(part)
        }
        return nodes
    }
}
