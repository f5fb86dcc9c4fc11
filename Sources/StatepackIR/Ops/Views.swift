package import StatepackBundle

// Operators that only rearrange. The core views take normalised arguments; `RuleInput` has the normalisation
// that the ATen rules and DecomposeOps share.

/// `start..<end` by `step` of an axis, clamped to it: what Python's slice means.
package struct NormalisedSlice: Hashable, Sendable {
    package var axis: Int
    package var start: SizeExpression
    package var end: SizeExpression
    package var step: Int
    package var length: SizeExpression

    package init(axis: Int, start: SizeExpression, end: SizeExpression, step: Int, length: SizeExpression) {
        self.axis = axis
        self.start = start
        self.end = end
        self.step = step
        self.length = length
    }
}

extension RuleInput {
    /// An index or slice bound counted from the end when negative. Nil when its sign depends on symbols.
    private func fromStart(_ index: SizeExpression, _ size: SizeExpression) throws(RuleFailure) -> SizeExpression? {
        if bounds.isProvablyNonnegative(index) { return index }
        guard bounds.isProvablyAtMost(index, SizeExpression(-1)) else { return nil }
        return try checked { () throws(SizeExpression.Failure) in try index.plus(size) }
    }

    /// Normalises `dim`, `start`, `end`, `step` of `aten.slice` and `aten.slice_scatter`.
    package func normalisedSlice(of shape: [SizeExpression]) throws(RuleFailure) -> NormalisedSlice {
        try require(!shape.isEmpty, "a tensor without axes cannot be sliced")
        let axis = try axis(named: "dim", rank: shape.count)
        let step = try integer("step")
        try require(step > 0, "`step` is not positive", expected: "1 or more", found: "\(step)")
        let size = shape[axis]
        func clamped(_ name: String, default: SizeExpression) throws(RuleFailure) -> SizeExpression {
            guard let bound = try optionalSize(name) else { return `default` }
            // PyTorch writes "to the end" as the largest int64.
            if let constant = bound.constant, constant == .max { return size }
            guard let index = try fromStart(bound, size) else {
                throw RuleFailure(
                    .unsupportedArgument, "the sign of `\(name)` depends on a symbol", found: text(bound))
            }
            return try checked { () throws(SizeExpression.Failure) in
                try bounds.minimum(bounds.maximum(index, .zero), size)
            }
        }
        let start = try clamped("start", default: .zero)
        let unordered = try clamped("end", default: size)
        let end = try checked { () throws(SizeExpression.Failure) in try bounds.maximum(start, unordered) }
        let length = try sliceLength(start, end, step)
        return NormalisedSlice(axis: axis, start: start, end: end, step: step, length: length)
    }

    func sliceLength(_ start: SizeExpression, _ end: SizeExpression, _ step: Int) throws(RuleFailure) -> SizeExpression
    {
        try checked { () throws(SizeExpression.Failure) in
            let span = try end.minus(start)
            return step == 1 ? span : try span.plus(step - 1).floorDivided(by: SizeExpression(step))
        }
    }

    /// Normalises `dim` and `index` of `aten.select` and `aten.select_scatter`.
    package func normalisedSelection(
        of shape: [SizeExpression]
    ) throws(RuleFailure) -> (axis: Int, index: SizeExpression) {
        try require(!shape.isEmpty, "a tensor without axes has nothing to select")
        let axis = try axis(named: "dim", rank: shape.count)
        let given = try size("index")
        guard let index = try fromStart(given, shape[axis]) else {
            throw RuleFailure(.unsupportedArgument, "the sign of `index` depends on a symbol", found: text(given))
        }
        try requireIndex(index, below: shape[axis], "index")
        return (axis, index)
    }

    func requireIndex(_ index: SizeExpression, below size: SizeExpression, _ name: String) throws(RuleFailure) {
        let last = try checked { () throws(SizeExpression.Failure) in try size.minus(1) }
        try require(
            bounds.isProvablyNonnegative(index) && bounds.isProvablyAtMost(index, last), "`\(name)` is out of range",
            expected: "0..<\(text(size))", found: text(index))
    }

    /// A permutation of the axes, each counted from the start.
    package func normalisedPermutation(_ dims: [Int], rank: Int) throws(RuleFailure) -> [Int] {
        var result: [Int] = []
        for dim in dims { result.append(try axis(dim, rank: rank, of: "dims")) }
        try require(
            result.sorted() == Array(0..<rank), "`dims` is not a permutation of the axes",
            expected: "\(rank) axes, each once",
            found: "\(dims)")
        return result
    }

    /// The target of a reshape; one size may be -1.
    package func reshaped(_ shape: [SizeExpression], to target: [SizeExpression]) throws(RuleFailure)
        -> [SizeExpression]
    {
        let count = try product(shape)
        var result = target
        let unknown = target.indices.filter { target[$0].constant == -1 }
        try require(unknown.count <= 1, "more than one size is -1", found: text(target))
        if let axis = unknown.first {
            result[axis] = .one
            let others = try product(result)
            try require(others != .zero, "-1 cannot be inferred beside a size of 0", found: text(target))
            result[axis] = try checked { () throws(SizeExpression.Failure) in try count.floorDivided(by: others) }
        }
        let found = try product(result)
        try require(
            bounds.areProvablyEqual(found, count), "a reshape changes the number of elements",
            expected: text(count), found: "\(text(found)) in \(text(target))")
        return result
    }

    /// The target of an expand; -1 keeps a size.
    package func expanded(_ shape: [SizeExpression], to target: [SizeExpression]) throws(RuleFailure)
        -> [SizeExpression]
    {
        try require(
            target.count >= shape.count, "an expand has fewer axes than its operand",
            expected: "at least \(shape.count)",
            found: "\(target.count)")
        var result = target
        let lead = target.count - shape.count
        for (index, size) in shape.enumerated() where target[lead + index].constant == -1 {
            result[lead + index] = size
        }
        try require(!result.contains { $0.constant == -1 }, "a new axis has the size -1", found: text(target))
        try requireBroadcasts(shape, to: result, "the operand of an expand")
        return result
    }

    /// Axes of length 1 among `dims`, which a squeeze removes.
    package func squeezedAxes(_ dims: [Int], of shape: [SizeExpression]) throws(RuleFailure) -> Set<Int> {
        var result: Set<Int> = []
        for dim in dims {
            let axis = try axis(dim, rank: shape.count)
            if axis < shape.count, bounds.areProvablyEqual(shape[axis], .one) { result.insert(axis) }
        }
        return result
    }
}

extension AtenRules {
    @Sendable static func view(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let operand = try input.tensor("self")
        let type = operand.scalarType
        let shape = operand.shape
        let rank = shape.count
        func result(_ shape: [SizeExpression]) -> [ValueType] { [ValueType(type, shape)] }
        switch input.node.op {
        case "aten.view.default", "aten._unsafe_view.default":
            return result(try input.reshaped(shape, to: input.sizes("size")))
        case "aten.reshape.default":
            return result(try input.reshaped(shape, to: input.sizes("shape")))
        case "aten.permute.default":
            return result(try input.normalisedPermutation(input.integers("dims"), rank: rank).map { shape[$0] })
        case "aten.transpose.int", "aten.t.default":
            return result(try transposition(input, rank: rank).map { shape[$0] })
        case "aten.unsqueeze.default":
            var new = shape
            new.insert(.one, at: try input.axis(named: "dim", rank: rank + 1))
            return result(new)
        case "aten.squeeze.dim", "aten.squeeze.dims":
            let axes = try input.squeezedAxes(input.integers("dim"), of: shape)
            return result(shape.indices.filter { !axes.contains($0) }.map { shape[$0] })
        case "aten.select.int":
            var new = shape
            new.remove(at: try input.normalisedSelection(of: shape).axis)
            return result(new)
        case "aten.slice.Tensor":
            let slice = try input.normalisedSlice(of: shape)
            var new = shape
            new[slice.axis] = slice.length
            return result(new)
        case "aten.expand.default":
            return result(try input.expanded(shape, to: input.sizes("size")))
        case "aten.split_with_sizes.default":
            return try split(input, shape).map { ValueType(type, $0) }
        case "aten.repeat.default":
            let repeats = try input.sizes("repeats")
            try input.require(
                repeats.count >= rank, "`repeats` has fewer axes than its operand", expected: "at least \(rank)",
                found: "\(repeats.count)")
            var new: [SizeExpression] = []
            for (index, times) in repeats.enumerated() {
                let axis = index - (repeats.count - rank)
                let size = axis < 0 ? .one : shape[axis]
                new.append(try input.checked { () throws(SizeExpression.Failure) in try size.times(times) })
            }
            return result(new)
        case "aten.flatten.using_ints":
            return result(try flattened(input, shape))
        default:
            // alias, detach
            return result(shape)
        }
    }

    /// The permutation behind `transpose` and `t`.
    package static func transposition(_ input: RuleInput, rank: Int) throws(RuleFailure) -> [Int] {
        var dims = Array(0..<rank)
        if input.node.op == "aten.t.default" {
            try input.require(rank <= 2, "`t` needs at most two axes", found: "\(rank)")
            return dims.reversed()
        }
        let a = try input.axis(named: "dim0", rank: rank)
        let b = try input.axis(named: "dim1", rank: rank)
        if rank > 0 { dims.swapAt(a, b) }
        return dims
    }

    private static func split(
        _ input: RuleInput, _ shape: [SizeExpression]
    ) throws(RuleFailure) -> [[SizeExpression]] {
        let axis = try input.axis(named: "dim", rank: shape.count)
        let sizes = try input.sizes("split_sizes")
        var sum = SizeExpression.zero
        for size in sizes { sum = try input.checked { () throws(SizeExpression.Failure) in try sum.plus(size) } }
        try input.require(
            axis < shape.count && input.bounds.areProvablyEqual(sum, shape[axis]), "the parts of a split do not add up",
            expected: axis < shape.count ? input.text(shape[axis]) : "an axis", found: input.text(sum))
        return sizes.map { size in
            var part = shape
            part[axis] = size
            return part
        }
    }

    private static func flattened(_ input: RuleInput, _ shape: [SizeExpression]) throws(RuleFailure) -> [SizeExpression]
    {
        if shape.isEmpty { return [.one] }
        let start = try input.axis(named: "start_dim", rank: shape.count)
        let end = try input.axis(named: "end_dim", rank: shape.count)
        try input.require(start <= end, "`start_dim` is behind `end_dim`", found: "\(start) and \(end)")
        return Array(shape[..<start]) + [try input.product(Array(shape[start...end]))] + Array(shape[(end + 1)...])
    }
}

extension CoreRules {
    @Sendable static func reshape(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        let target = try input.sizes("shape")
        try input.require(
            !target.contains { $0.constant == -1 }, "`shape` is not normalised", found: input.text(target))
        return [ValueType(a.scalarType, try input.reshaped(a.shape, to: target))]
    }

    @Sendable static func permute(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        let dims = try input.integers("dims")
        try input.require(dims.allSatisfy { $0 >= 0 }, "`dims` is not normalised", found: "\(dims)")
        return [ValueType(a.scalarType, try input.normalisedPermutation(dims, rank: a.rank).map { a.shape[$0] })]
    }

    @Sendable static func expand(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        let target = try input.sizes("shape")
        try input.require(
            !target.contains { $0.constant == -1 }, "`shape` is not normalised", found: input.text(target))
        return [ValueType(a.scalarType, try input.expanded(a.shape, to: target))]
    }

    @Sendable static func slice(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        return [ValueType(a.scalarType, try sliced(input, a))]
    }

    @Sendable static func select(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let a = try input.tensor("a")
        return [ValueType(a.scalarType, try selected(input, a))]
    }

    private static func sliced(_ input: RuleInput, _ a: ValueType) throws(RuleFailure) -> [SizeExpression] {
        try requireAxis(input, "dim", a)
        let axis = try input.integer("dim")
        let step = try input.integer("step")
        let (start, end) = (try input.size("start"), try input.size("end"))
        try input.require(step > 0, "`step` is not positive", expected: "1 or more", found: "\(step)")
        let bounds = input.bounds
        try input.require(
            bounds.isProvablyNonnegative(start) && bounds.isProvablyAtMost(start, end)
                && bounds.isProvablyAtMost(end, a.shape[axis]), "a slice is not inside its axis",
            expected: "0 <= start <= end <= \(input.text(a.shape[axis]))",
            found: "\(input.text(start))..<\(input.text(end))")
        var shape = a.shape
        shape[axis] = try input.sliceLength(start, end, step)
        return shape
    }

    private static func selected(_ input: RuleInput, _ a: ValueType) throws(RuleFailure) -> [SizeExpression] {
        try requireAxis(input, "dim", a)
        let axis = try input.integer("dim")
        try input.requireIndex(input.size("index"), below: a.shape[axis], "index")
        var shape = a.shape
        shape.remove(at: axis)
        return shape
    }

    private static func scatter(_ input: RuleInput, _ shape: [SizeExpression]) throws(RuleFailure) -> [ValueType] {
        let (a, source) = (try input.tensor("a"), try input.tensor("source"))
        try requireSameType(input, "source", source, as: a.scalarType)
        try input.require(
            input.areEqual(source.shape, shape), "`source` does not have the shape of what it replaces",
            expected: input.text(shape), found: input.text(source.shape))
        return [a]
    }

    @Sendable static func scatterSlice(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        try scatter(input, sliced(input, input.tensor("a")))
    }

    @Sendable static func scatterSelect(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        try scatter(input, selected(input, input.tensor("a")))
    }

    @Sendable static func write(_ input: RuleInput) throws(RuleFailure) -> [ValueType] {
        let (destination, source) = (try input.tensor("destination"), try input.tensor("source"))
        try requireSameType(input, "source", source, as: destination.scalarType)
        try input.require(
            input.areEqual(source.shape, destination.shape), "`source` does not have the shape of what it replaces",
            expected: input.text(destination.shape), found: input.text(source.shape))
        return [destination]
    }
}
