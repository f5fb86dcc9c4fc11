package import StatepackBundle

// Reads and writes at computed places. Indices are checked when they are used; rules see their shapes only.

/// Where the axes of an advanced index end up.
package struct NormalisedIndex: Hashable, Sendable {
    /// Axes that have an index tensor, in order.
    package var indexedAxes: [Int]
    /// The others, in order.
    package var otherAxes: [Int]
    /// Shape of the index tensors broadcast together.
    package var indexShape: [SizeExpression]
    /// The result's axis at which the index axes start.
    package var position: Int
    /// Shape of the elements that the index names.
    package var shape: [SizeExpression]
}

extension RuleInput {
    func requireIndexType(_ type: ValueType, _ name: String) throws(RuleFailure) {
        try require(
            type.scalarType == .int64 || type.scalarType == .int32, "`\(name)` has the wrong scalar type",
            expected: "int64 or int32", found: type.scalarType.name)
    }

    /// Reads `indices` of `aten.index` and `aten.index_put`: adjacent index tensors leave their axes where the
    /// first stood, scattered ones move them to the front, as in NumPy.
    package func normalisedIndex(of shape: [SizeExpression]) throws(RuleFailure) -> NormalisedIndex {
        let indices = try tensorList("indices")
        try require(
            indices.count <= shape.count, "more indices than axes", expected: "at most \(shape.count)",
            found: "\(indices.count)")
        var shapes: [[SizeExpression]] = []
        var indexed: [Int] = []
        for (axis, index) in indices.enumerated() {
            guard let index else { continue }
            if index.scalarType == .bool {
                throw RuleFailure(
                    .unsupportedArgument, "indexing with a mask has a result whose size depends on values",
                    expected: "int64 or int32", found: "bool")
            }
            try requireIndexType(index, "indices")
            shapes.append(index.shape)
            indexed.append(axis)
        }
        try require(!indexed.isEmpty, "no index is given")
        let indexShape = try broadcast(shapes)
        let others = shape.indices.filter { !indexed.contains($0) }
        let isAdjacent = indexed.last! - indexed.first! == indexed.count - 1
        let position = isAdjacent ? indexed.first! : 0
        var result = others.map { shape[$0] }
        result.insert(contentsOf: indexShape, at: position)
        return NormalisedIndex(
            indexedAxes: indexed, otherAxes: others, indexShape: indexShape, position: position, shape: result)
    }

    /// Fails unless every size of `small` is provably at most that of `large`, the axes in `except` left out.
    func requireInside(
        _ small: [SizeExpression], _ large: [SizeExpression], except axis: Int?, _ message: @autoclosure () -> String
    ) throws(RuleFailure) {
        let fits =
            small.count == large.count
            && small.indices.allSatisfy { $0 == axis || bounds.isProvablyAtMost(small[$0], large[$0]) }
        try require(fits, message(), expected: "at most \(text(large))", found: text(small))
    }
}

extension AtenRules {
    @Sendable static func embedding(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (weight, indices) = (try input.tensor("weight"), try input.tensor("indices"))
        try input.require(weight.rank == 2, "`weight` is not a matrix", found: input.text(weight))
        try input.requireIndexType(indices, "indices")
        return [ValueType(weight.scalarType, indices.shape + [weight.shape[1]])]
    }

    @Sendable static func index(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        switch input.node.op {
        case "aten.index.Tensor":
            return [ValueType(operand.scalarType, try input.normalisedIndex(of: operand.shape).shape)]
        case "aten.index_select.default":
            let index = try input.tensor("index")
            try input.requireIndexType(index, "index")
            try input.require(index.rank <= 1, "`index` has more than one axis", found: input.text(index))
            let axis = try input.axis(named: "dim", rank: operand.rank)
            var shape = operand.shape
            if !shape.isEmpty { shape[axis] = index.shape.first ?? .one }
            return [ValueType(operand.scalarType, shape)]
        default:
            let index = try input.tensor("index")
            try input.requireIndexType(index, "index")
            let axis = try input.axis(named: "dim", rank: operand.rank)
            try input.requireInside(index.shape, operand.shape, except: axis, "`index` is larger than `self`")
            return [ValueType(operand.scalarType, index.shape)]
        }
    }

    @Sendable static func write(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        let shape = operand.shape
        switch input.node.op {
        case "aten.index_put.default":
            let index = try input.normalisedIndex(of: shape)
            let values = try input.tensor("values")
            try input.requireType(values.scalarType, operand.scalarType, "values")
            try input.requireBroadcasts(values.shape, to: index.shape, "`values`")
            _ = try input.flag("accumulate")
        case "aten.index_copy.default":
            let (index, source) = (try input.tensor("index"), try input.tensor("source"))
            try input.requireIndexType(index, "index")
            try input.requireType(source.scalarType, operand.scalarType, "source")
            try input.require(index.rank <= 1, "`index` has more than one axis", found: input.text(index))
            let axis = try input.axis(named: "dim", rank: operand.rank)
            var expected = shape
            if !expected.isEmpty { expected[axis] = index.shape.first ?? .one }
            try input.require(
                input.areEqual(source.shape, expected), "`source` does not have the shape of what it replaces",
                expected: input.text(expected), found: input.text(source.shape))
        case "aten.slice_scatter.default":
            let slice = try input.normalisedSlice(of: shape)
            var expected = shape
            expected[slice.axis] = slice.length
            try requireSource(input, expected)
        case "aten.select_scatter.default":
            let selection = try input.normalisedSelection(of: shape)
            var expected = shape
            expected.remove(at: selection.axis)
            try requireSource(input, expected)
        default:
            let (index, source) = (try input.tensor("index"), try input.tensor("src"))
            try input.requireIndexType(index, "index")
            try input.requireType(source.scalarType, operand.scalarType, "src")
            let axis = try input.axis(named: "dim", rank: operand.rank)
            try input.requireInside(index.shape, source.shape, except: nil, "`index` is larger than `src`")
            try input.requireInside(index.shape, shape, except: axis, "`index` is larger than `self`")
        }
        return [operand]
    }

    private static func requireSource(_ input: RuleInput, _ expected: [SizeExpression]) throws(RuleFailure) {
        let source = try input.tensor("src")
        try input.require(
            input.areEqual(source.shape, expected), "`src` does not have the shape of what it replaces",
            expected: input.text(expected), found: input.text(source.shape))
    }
}

extension CoreRules {
    @Sendable static func embedding(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (weight, index) = (try input.tensor("weight"), try input.tensor("index"))
        try requireSupported(input, weight.scalarType)
        try input.requireIndexType(index, "index")
        try input.require(weight.rank == 2, "`weight` is not a matrix", found: input.text(weight))
        return [ValueType(weight.scalarType, index.shape + [weight.shape[1]])]
    }

    /// Shape of the elements that leading `indices` of `a` name: index shape, then the rest.
    private static func indexed(_ input: RuleInput, _ a: ValueType) throws(RuleFailure) -> [SizeExpression] {
        var shapes: [[SizeExpression]] = []
        for index in try input.tensorList("indices") {
            guard let index else { throw RuleFailure(.invalidArgument, "an index is absent") }
            try input.requireIndexType(index, "indices")
            shapes.append(index.shape)
        }
        try input.require(
            !shapes.isEmpty && shapes.count <= a.rank, "the number of indices does not fit", expected: "1...\(a.rank)",
            found: "\(shapes.count)")
        return try input.broadcast(shapes) + a.shape.dropFirst(shapes.count)
    }

    @Sendable static func index(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        try requireSupported(input, a.scalarType)
        return [ValueType(a.scalarType, try indexed(input, a))]
    }

    @Sendable static func indexSelect(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, index) = (try input.tensor("a"), try input.tensor("index"))
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        try input.requireIndexType(index, "index")
        try input.require(index.rank == 1, "`index` needs one axis", found: input.text(index))
        var shape = a.shape
        shape[try input.integer("axis")] = index.shape[0]
        return [ValueType(a.scalarType, shape)]
    }

    @Sendable static func gather(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, index) = (try input.tensor("a"), try input.tensor("index"))
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        try input.requireIndexType(index, "index")
        try input.requireInside(index.shape, a.shape, except: input.integer("axis"), "`index` is larger than `a`")
        return [ValueType(a.scalarType, index.shape)]
    }

    @Sendable static func indexCopy(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, index, source) = (try input.tensor("a"), try input.tensor("index"), try input.tensor("source"))
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        try input.requireIndexType(index, "index")
        try requireSameType(input, "source", source, as: a.scalarType)
        try input.require(index.rank == 1, "`index` needs one axis", found: input.text(index))
        var expected = a.shape
        expected[try input.integer("axis")] = index.shape[0]
        try input.require(
            input.areEqual(source.shape, expected), "`source` does not have the shape of what it replaces",
            expected: input.text(expected), found: input.text(source.shape))
        return [a]
    }

    @Sendable static func indexPut(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, source) = (try input.tensor("a"), try input.tensor("source"))
        try requireSupported(input, a.scalarType)
        try requireSameType(input, "source", source, as: a.scalarType)
        try input.requireBroadcasts(source.shape, to: indexed(input, a), "`source`")
        _ = try input.flag("accumulate")
        return [a]
    }

    @Sendable static func scatter(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (a, index, source) = (try input.tensor("a"), try input.tensor("index"), try input.tensor("source"))
        try requireSupported(input, a.scalarType)
        try requireAxis(input, "axis", a)
        try input.requireIndexType(index, "index")
        try requireSameType(input, "source", source, as: a.scalarType)
        try input.requireInside(index.shape, source.shape, except: nil, "`index` is larger than `source`")
        try input.requireInside(index.shape, a.shape, except: input.integer("axis"), "`index` is larger than `a`")
        return [a]
    }
}
