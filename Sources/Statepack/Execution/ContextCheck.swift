import StatepackBundle
import StatepackDiagnostics

/// Which positions of one run lie outside `0..<capacity`.
struct PositionRange {
    private var lowest = 0
    /// The smallest that is at least the capacity.
    private var firstBeyond: Int?

    /// The one to report: the lowest negative one, else the smallest that is too large. Nil when all are inside.
    var firstOutside: Int? { lowest < 0 ? lowest : firstBeyond }

    /// Reads every element once, and allocates nothing.
    ///
    /// - Parameter positions: An int32 or int64 array, which the format's check has proved.
    init(of positions: UnsafeMutablePointer<Argument>, capacity: Int) {
        let (shape, strides) = (positions.pointee.shape, positions.pointee.strides)
        let base = UnsafeRawPointer(positions.pointee.base)
        let isWide = positions.pointee.scalarType == .int64
        let size = isWide ? 8 : 4
        func note(_ position: Int, _ range: inout PositionRange) {
            if position < range.lowest { range.lowest = position }
            if position >= capacity { range.firstBeyond = min(range.firstBeyond ?? position, position) }
        }
        func position(at offset: Int) -> Int {
            let place = base + offset * size
            return isWide ? Int(place.loadUnaligned(as: Int64.self)) : Int(place.loadUnaligned(as: Int32.self))
        }
        if StridedLayout.isRowMajor(shape: shape, strides: strides) {
            for offset in 0..<(StridedLayout.elementCount(shape) ?? 0) { note(position(at: offset), &self) }
        } else {
            StridedLayout.forEachOffset(shape: shape, strides: strides) { offset in
                note(position(at: offset), &self)
                return true
            }
        }
    }
}

extension FunctionProgram {
    /// Context rules by slot.
    struct Context: Sendable {
        struct Axis: Sendable {
            /// Index into `states`.
            var state: Int
            var axis: Int
        }

        /// Index into `inputs`.
        var positions: Int
        var axes: [Axis]

        /// The rules of a function that has passed the format's check.
        init(_ rules: ContextRules, of function: BundleProgram.Function) {
            positions = rules.positions
            axes = rules.axes.map { axis in
                Axis(state: function.states.firstIndex { $0.state == axis.state }!, axis: axis.axis)
            }
        }
    }

    func contextError(_ position: Int, capacity: Int, of axis: Context.Axis) -> StatepackError {
        let (input, state) = (inputs[context!.positions].name, states[axis.state].name)
        let isFull = position == capacity
        let diagnostic = Diagnostic(
            isFull ? .contextFull : .positionOutOfRange,
            isFull
                ? "the context is full: state `\(state)` has \(capacity) rows and position \(position) is the next one"
                : "position \(position) is outside the \(capacity) rows of state `\(state)`",
            at: "function `\(descriptor.name)`, input `\(input)`",
            expected: "positions in 0..<\(capacity), the length of axis \(axis.axis) of state `\(state)`",
            found: "\(position)",
            hint: isFull
                ? "start from fresh states, drop old rows, or export with a larger capacity; no state was changed"
                : "positions count from 0 and follow each other; no state was changed")
        return StatepackError(
            [diagnostic],
            contextViolation: ContextViolation(
                kind: isFull ? .contextFull : .positionOutOfRange, function: descriptor.name, input: input,
                state: state, axis: axis.axis, position: position, capacity: capacity))
    }
}
