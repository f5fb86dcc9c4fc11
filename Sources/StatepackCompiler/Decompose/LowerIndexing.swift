internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

extension CoreBuilder {
    private func axis(_ type: ValueType) throws(RuleFailure) -> ArgumentValue {
        guard type.rank > 0 else {
            throw RuleFailure(
                .unsupportedArgument, "a tensor without axes is indexed along one", found: input.text(type))
        }
        return .size(SizeExpression(try input.axis(named: "dim", rank: type.rank)))
    }

    func read(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self")
        switch name {
        case "index": return try advancedIndex(a)
        case "index_select":
            let index = try operand("index")
            let line = self[index].rank == 0 ? try reshape(index, to: [.one]) : index
            return try emit(
                "index_select", [("a", .tensor(a)), ("index", .tensor(line)), ("axis", axis(self[a]))])
        default:
            return try emit(
                "gather", [("a", .tensor(a)), ("index", .tensor(operand("index"))), ("axis", axis(self[a]))])
        }
    }

    /// The kernel indexes leading axes: indexed axes are brought to the front, and the axes of the result
    /// back to where torch leaves them.
    private func advancedIndex(_ a: ValueID) throws(RuleFailure) -> ValueID {
        let index = try input.normalisedIndex(of: self[a].shape)
        let indices = try operandList("indices").filter { $0 != nil }
        let leading = try permute(a, index.indexedAxes + index.otherAxes)
        let result = try emit("index", [("a", .tensor(leading)), ("indices", .tensors(indices))])
        return try permute(result, Self.toTorchOrder(index))
    }

    /// Axes of `[index axes, other axes]` in the order in which torch has them.
    private static func toTorchOrder(_ index: NormalisedIndex) -> [Int] {
        let count = index.indexShape.count
        let before = (0..<index.position).map { count + $0 }
        let behind = (index.position..<index.otherAxes.count).map { count + $0 }
        return before + Array(0..<count) + behind
    }

    private static func inverse(_ dims: [Int]) -> [Int] {
        var result = dims
        for (position, axis) in dims.enumerated() { result[axis] = position }
        return result
    }

    func write(_ name: String) throws(RuleFailure) -> ValueID {
        let a = try operand("self")
        let type = self[a]
        switch name {
        case "index_put": return try indexPut(a)
        case "index_copy":
            let index = try operand("index")
            let line = self[index].rank == 0 ? try reshape(index, to: [.one]) : index
            return try emit(
                "index_copy",
                [
                    ("a", .tensor(a)), ("index", .tensor(line)), ("source", .tensor(operand("source"))),
                    ("axis", axis(type)),
                ])
        case "slice_scatter":
            let slice = try input.normalisedSlice(of: type.shape)
            return try emit(
                "scatter.slice",
                [("a", .tensor(a)), ("source", .tensor(operand("src", as: type.scalarType)))] + arguments(slice))
        case "select_scatter":
            let (axis, index) = try input.normalisedSelection(of: type.shape)
            return try emit(
                "scatter.select",
                [
                    ("a", .tensor(a)), ("source", .tensor(operand("src", as: type.scalarType))),
                    ("dim", .size(SizeExpression(axis))), ("index", .size(index)),
                ])
        default:
            return try emit(
                "scatter",
                [
                    ("a", .tensor(a)), ("index", .tensor(operand("index"))), ("source", .tensor(operand("src"))),
                    ("axis", axis(type)),
                ])
        }
    }

    private func indexPut(_ a: ValueID) throws(RuleFailure) -> ValueID {
        let index = try input.normalisedIndex(of: self[a].shape)
        let indices = try operandList("indices").compactMap { $0 }
        let accumulates = try input.flag("accumulate")
        var values = try operand("values")
        // NOTE: `cache[:, positions] = rows` is not index_copy, which refuses the negative positions that index_put counts
        // from the end. The permutation is a view: the state stays where it is.
        let order = index.indexedAxes + index.otherAxes
        if order != Array(order.indices) {
            values = try permute(expand(values, to: index.shape), Self.inverse(Self.toTorchOrder(index)))
        }
        let result = try emit(
            "index_put",
            [
                ("a", .tensor(permute(a, order))), ("source", .tensor(values)), ("indices", .tensors(indices)),
                ("accumulate", .size(accumulates ? .one : .zero)),
            ])
        return try permute(result, Self.inverse(order))
    }
}
