/// Arithmetic on shapes and strides. Strides count elements.
enum StridedLayout {
    /// Row-major strides without padding. Nil when the number of elements does not fit an `Int`.
    static func rowMajorStrides(_ shape: [Int]) -> [Int]? { rowMajorSteps(shape)?.array }

    static func rowMajorSteps(_ shape: some AxisNumbers) -> AxisList? {
        var strides = AxisList(repeating: 1, count: shape.count)
        var step = 1
        for axis in (0..<shape.count).reversed() {
            strides[axis] = step
            let (product, overflow) = step.multipliedReportingOverflow(by: max(shape[axis], 1))
            if overflow { return nil }
            step = product
        }
        return strides
    }

    /// Number of elements. Nil on overflow or for a negative length.
    static func elementCount(_ shape: some AxisNumbers) -> Int? {
        var count = 1
        for axis in 0..<shape.count {
            let length = shape[axis]
            if length < 0 { return nil }
            let (product, overflow) = count.multipliedReportingOverflow(by: length)
            if overflow { return nil }
            count = product
        }
        return count
    }

    /// The lowest and highest offset that an element of the view has, in elements from its first one.
    /// Nil when it has no element; throws on overflow.
    static func reach(
        shape: some AxisNumbers, strides: some AxisNumbers, offset: Int = 0
    ) throws(SizeOverflow) -> ClosedRange<Int>? {
        var low = offset
        var high = offset
        for axis in 0..<shape.count {
            let (length, stride) = (shape[axis], strides[axis])
            if length <= 0 { return nil }
            let (span, overflow) = (length - 1).multipliedReportingOverflow(by: stride)
            if overflow { throw SizeOverflow() }
            let (sum, overflow2) = (span < 0 ? low : high).addingReportingOverflow(span)
            if overflow2 { throw SizeOverflow() }
            if span < 0 { low = sum } else { high = sum }
        }
        return low...high
    }

    /// True when the elements lie one after another in row-major order. Axes of length 1 may have any stride.
    static func isRowMajor(shape: some AxisNumbers, strides: some AxisNumbers) -> Bool {
        var step = 1
        var isDense = true
        for axis in (0..<shape.count).reversed() {
            let length = shape[axis]
            if length == 0 { return true }
            if length != 1 && strides[axis] != step { isDense = false }
            step &*= length
        }
        return isDense
    }

    /// The elements in row-major order.
    static func scalars<Element: BitwiseCopyable>(
        from base: UnsafeRawPointer, shape: some AxisNumbers, strides: some AxisNumbers
    ) -> [Element] {
        let count = elementCount(shape) ?? 0
        return [Element](unsafeUninitializedCapacity: count) { buffer, initializedCount in
            if isRowMajor(shape: shape, strides: strides) {
                UnsafeMutableRawBufferPointer(buffer).copyMemory(
                    from: UnsafeRawBufferPointer(start: base, count: count * MemoryLayout<Element>.stride))
                initializedCount = count
                return
            }
            forEachOffset(shape: shape, strides: strides) { offset in
                let place = base + offset * MemoryLayout<Element>.stride
                buffer.initializeElement(at: initializedCount, to: place.loadUnaligned(as: Element.self))
                initializedCount += 1
                return true
            }
        }
    }

    /// Calls `body` with the offset of each element in row-major order, in elements.
    static func forEachOffset(shape: some AxisNumbers, strides: some AxisNumbers, _ body: (Int) -> Bool) {
        guard let count = elementCount(shape), count > 0 else { return }
        var index = AxisList(repeating: 0, count: shape.count)
        var offset = 0
        for _ in 0..<count {
            if !body(offset) { return }
            var axis = shape.count - 1
            while axis >= 0 {
                index[axis] += 1
                offset += strides[axis]
                if index[axis] < shape[axis] { break }
                offset -= strides[axis] * shape[axis]
                index[axis] = 0
                axis -= 1
            }
        }
    }
}

struct SizeOverflow: Error {}
