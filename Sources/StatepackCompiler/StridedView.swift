internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// Elements of one storage as a view sees them: a shape, and per axis how many elements apart neighbours are.
///
/// Equal views see the same elements in the same order, so that a view of a view that leads back to the
/// whole compares equal to the whole. Axes of length one have stride 0 here: it is never used.
struct StridedView: Hashable {
    private(set) var shape: [SizeExpression]
    private(set) var strides: [SizeExpression]
    private(set) var offset: SizeExpression

    private init(shape: [SizeExpression], strides: [SizeExpression], offset: SizeExpression) {
        self.shape = shape
        self.strides = zip(shape, strides).map { $0.constant == 1 ? .zero : $1 }
        self.offset = offset
    }

    /// The whole of a row-major tensor.
    init(contiguous shape: [SizeExpression]) throws {
        self.init(shape: shape, strides: try Self.rowMajorStrides(shape), offset: .zero)
    }

    static func rowMajorStrides(_ shape: [SizeExpression]) throws -> [SizeExpression] {
        var strides = shape
        var running = SizeExpression.one
        for axis in shape.indices.reversed() {
            strides[axis] = running
            running = try running.times(shape[axis])
        }
        return strides
    }

    static func elementCount(_ shape: [SizeExpression]) throws -> SizeExpression {
        try shape.reduce(.one) { try $0.times($1) }
    }

    /// True when the elements lie one after another in row-major order, whatever the offset.
    func isContiguous() throws -> Bool {
        if shape.contains(where: { $0.constant == 0 }) { return true }
        var running = SizeExpression.one
        for axis in shape.indices.reversed() where shape[axis].constant != 1 {
            guard strides[axis] == running else { return false }
            running = try running.times(shape[axis])
        }
        return true
    }

    /// False when two indices may see one element.
    var isInjective: Bool { zip(shape, strides).allSatisfy { $0.constant == 1 || $1 != .zero } }

    /// Strides for a file: what a row-major tensor would have on axes of length one, where any will do.
    func explicitStrides() throws -> [SizeExpression] {
        if try isContiguous() { return try Self.rowMajorStrides(shape) }
        var result = strides
        for axis in shape.indices.reversed() where shape[axis].constant == 1 {
            result[axis] = axis + 1 < shape.count ? try result[axis + 1].times(shape[axis + 1]) : .one
        }
        return result
    }

    // MARK: The five views

    func permuted(_ dims: [Int]) -> StridedView {
        StridedView(shape: dims.map { shape[$0] }, strides: dims.map { strides[$0] }, offset: offset)
    }

    func expanded(to newShape: [SizeExpression]) -> StridedView {
        let lead = newShape.count - shape.count
        let newStrides = newShape.indices.map { axis -> SizeExpression in
            axis < lead || shape[axis - lead] != newShape[axis] ? .zero : strides[axis - lead]
        }
        return StridedView(shape: newShape, strides: newStrides, offset: offset)
    }

    func sliced(_ dim: Int, start: SizeExpression, step: SizeExpression, count: SizeExpression) throws -> StridedView {
        var (newShape, newStrides) = (shape, strides)
        newShape[dim] = count
        newStrides[dim] = try strides[dim].times(step)
        return StridedView(
            shape: newShape, strides: newStrides, offset: try offset.plus(strides[dim].times(start)))
    }

    func selected(_ dim: Int, index: SizeExpression) throws -> StridedView {
        var (newShape, newStrides) = (shape, strides)
        newShape.remove(at: dim)
        newStrides.remove(at: dim)
        return StridedView(
            shape: newShape, strides: newStrides, offset: try offset.plus(strides[dim].times(index)))
    }

    /// The same elements in the same row-major order under another shape, or nil when that takes a copy, or
    /// when sizes that are only known at run time keep it from being proved.
    func reshaped(to newShape: [SizeExpression]) throws -> StridedView? {
        if shape.contains(where: { $0.constant == 0 }) {
            return StridedView(shape: newShape, strides: try Self.rowMajorStrides(newShape), offset: offset)
        }
        var newStrides = newShape.map { _ in SizeExpression.zero }
        var newAxis = newShape.count - 1
        // Runs of old axes that lie row-major among themselves may be cut anew; a run's border may not move.
        let axes = shape.indices.filter { shape[$0].constant != 1 }
        var position = axes.count - 1
        while position >= 0 {
            let base = strides[axes[position]]
            var count = shape[axes[position]]
            while position > 0, strides[axes[position - 1]] == (try base.times(count)) {
                position -= 1
                count = try count.times(shape[axes[position]])
            }
            var taken = SizeExpression.one
            while taken != count {
                guard newAxis >= 0 else { return nil }
                if newShape[newAxis].constant != 1 {
                    newStrides[newAxis] = try base.times(taken)
                    taken = try taken.times(newShape[newAxis])
                }
                newAxis -= 1
            }
            position -= 1
        }
        while newAxis >= 0 {
            guard newShape[newAxis].constant == 1 else { return nil }
            newAxis -= 1
        }
        return StridedView(shape: newShape, strides: newStrides, offset: offset)
    }
}

/// A view together with the part of its storage that it can touch: for each axis of the storage a range.
///
/// The ranges prove that two views are disjoint (`cache[0]` and `cache[1]`, rows 0..<4 and 4..<8); where
/// they are not known they cover the axis.
struct Placement: Hashable {
    private(set) var view: StridedView
    private var lower: [SizeExpression]
    private var upper: [SizeExpression]
    /// The storage axis that an axis of the view walks element by element, when it walks one.
    private var axes: [Int?]

    init(whole shape: [SizeExpression]) throws {
        view = try StridedView(contiguous: shape)
        lower = shape.map { _ in .zero }
        upper = shape
        axes = shape.indices.map { $0 }
    }

    /// What the view node sees of this, or nil for a reshape that takes a copy.
    ///
    /// - Parameter shape: The shape of the node's result.
    func applying(_ node: Node, shape: [SizeExpression]) throws -> Placement? {
        var result = self
        switch node.op {
        case "view.permute":
            let dims = try node.sizes("dims").map { try node.constant($0) }
            result.view = view.permuted(dims)
            result.axes = dims.map { axes[$0] }
        case "view.expand":
            let lead = shape.count - view.shape.count
            result.view = view.expanded(to: shape)
            result.axes = shape.indices.map { axis in
                axis < lead || view.shape[axis - lead] != shape[axis] ? nil : axes[axis - lead]
            }
        case "view.slice", "scatter.slice":
            let dim = try node.int("dim")
            let (start, step) = (try node.size("start"), try node.size("step"))
            let count = node.op == "view.slice" ? shape[dim] : try node.sliceCount()
            result.view = try view.sliced(dim, start: start, step: step, count: count)
            if let axis = axes[dim] {
                result.lower[axis] = try lower[axis].plus(start)
                result.upper[axis] = try lower[axis].plus(step == .one ? start.plus(count) : node.size("end"))
                if step != .one { result.axes[dim] = nil }
            }
        case "view.select", "scatter.select":
            let dim = try node.int("dim")
            let index = try node.size("index")
            result.view = try view.selected(dim, index: index)
            if let axis = axes[dim] {
                result.lower[axis] = try lower[axis].plus(index)
                result.upper[axis] = try result.lower[axis].plus(1)
            }
            result.axes.remove(at: dim)
        case "view.reshape":
            guard let reshaped = try view.reshaped(to: shape) else { return nil }
            result.view = reshaped
            // Inserting and removing axes of length one keeps what the others walk.
            let walked = zip(view.shape, axes).filter { $0.0.constant != 1 }
            let kept = shape.filter { $0.constant != 1 } == walked.map { $0.0 }
            var next = walked.map { $0.1 }.makeIterator()
            result.axes = shape.map { kept && $0.constant != 1 ? next.next()! : nil }
        default:
            return nil
        }
        return result
    }

    /// True when no element is in both. False means: not proved.
    func isDisjoint(from other: Placement) -> Bool {
        if view.shape.contains(where: { $0.constant == 0 }) || other.view.shape.contains(where: { $0.constant == 0 }) {
            return true
        }
        return lower.indices.contains { axis in
            Self.isProvablyAtMost(upper[axis], other.lower[axis])
                || Self.isProvablyAtMost(other.upper[axis], lower[axis])
        }
    }

    private static func isProvablyAtMost(_ a: SizeExpression, _ b: SizeExpression) -> Bool {
        guard let difference = try? b.minus(a).constant else { return false }
        return difference >= 0
    }
}

extension SizeExpression {
    /// The symbols it depends on.
    package var symbolIndices: Set<Int> {
        let code = postfix
        return Set(stride(from: 0, to: code.count, by: 2).filter { code[$0] == 1 }.map { Int(code[$0 + 1]) })
    }
}

extension Node {
    var isView: Bool { op.hasPrefix("view.") }

    /// The dual of a view: a copy of `a` in which what the view sees is `source`.
    var isScatterOfView: Bool { op == "scatter.select" || op == "scatter.slice" }

    var signature: KernelSignature? { KernelSignature.byName[op] }

    func tensor(_ name: String) throws -> ValueID {
        guard case .tensor(let id) = self[name] else { throw malformed(name, "a tensor") }
        return id
    }

    func size(_ name: String) throws -> SizeExpression {
        switch self[name] {
        case .size(let size): return size
        case .flag(let flag): return flag ? .one : .zero
        default: throw malformed(name, "a size")
        }
    }

    func sizes(_ name: String) throws -> [SizeExpression] {
        guard case .sizes(let sizes) = self[name] else { throw malformed(name, "sizes") }
        return sizes
    }

    func int(_ name: String) throws -> Int { try constant(try size(name)) }

    func constant(_ size: SizeExpression) throws -> Int {
        guard let value = size.constant else { throw malformed("axis", "a constant") }
        return value
    }

    /// Elements along `dim` of a `scatter.slice`; its bounds are normalised.
    func sliceCount() throws -> SizeExpression {
        let step = try size("step")
        return try size("end").minus(size("start")).plus(step).minus(1).floorDivided(by: step)
    }

    func replacing(_ name: String, by value: ArgumentValue) -> Node {
        var copy = self
        for index in arguments.indices where arguments[index].name == name { copy.arguments[index].value = value }
        return copy
    }

    private func malformed(_ name: String, _ expected: String) -> Diagnostic {
        Diagnostic.internalFault(
            "argument `\(name)` of `\(op)` is not \(expected): \(self[name].map { "\($0)" } ?? "no such argument")")
    }
}
