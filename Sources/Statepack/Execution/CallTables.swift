internal import CStatepackKernels
import StatepackBundle

/// The instruction list that the executor walks, with all it points to, in one allocation.
///
/// Tables of a function have one size whatever its symbols are: those of a length that is not used any more become those
/// of another by writing its sizes over the old ones.
final class CallTables: @unchecked Sendable {
    let tensors: UnsafeMutablePointer<sp_tensor>
    let steps: UnsafeMutablePointer<sp_instruction>
    let stepCount: Int
    private let ints: UnsafeMutablePointer<Int64>
    /// One per value: bytes of its root, and where in them it starts.
    let byteCounts: UnsafeMutablePointer<Int>
    let byteOffsets: UnsafeMutablePointer<Int>
    private let block: UnsafeMutableRawPointer

    /// Tables with everything that does not depend on symbols.
    init(of plan: SizePlan) {
        let (valueCount, intCount) = (plan.values.count, plan.ints.count)
        stepCount = plan.steps.count
        let tensorBytes = valueCount * MemoryLayout<sp_tensor>.stride
        let stepBytes = stepCount * MemoryLayout<sp_instruction>.stride
        let words = plan.pointers.count + intCount + plan.floats.count + 2 * valueCount
        block = .allocate(
            byteCount: max(tensorBytes + stepBytes + words * 8, 8), alignment: ArenaLayout.alignment)
        tensors = block.bindMemory(to: sp_tensor.self, capacity: valueCount)
        tensors.initialize(from: plan.tensors, count: valueCount)
        steps = (block + tensorBytes).bindMemory(to: sp_instruction.self, capacity: stepCount)
        let pointers = (block + tensorBytes + stepBytes).bindMemory(
            to: UnsafeMutablePointer<sp_tensor>?.self, capacity: plan.pointers.count)
        for (index, value) in plan.pointers.enumerated() {
            (pointers + index).initialize(to: value < 0 ? nil : tensors + value)
        }
        ints = UnsafeMutableRawPointer(pointers + plan.pointers.count).bindMemory(to: Int64.self, capacity: intCount)
        ints.initialize(from: plan.ints, count: intCount)
        let floats = UnsafeMutableRawPointer(ints + intCount).bindMemory(
            to: Double.self, capacity: plan.floats.count)
        floats.initialize(from: plan.floats, count: plan.floats.count)
        byteCounts = UnsafeMutableRawPointer(floats + plan.floats.count).bindMemory(to: Int.self, capacity: valueCount)
        byteCounts.initialize(from: plan.byteCounts, count: valueCount)
        byteOffsets = UnsafeMutableRawPointer(byteCounts + valueCount).bindMemory(to: Int.self, capacity: valueCount)
        byteOffsets.initialize(from: plan.byteOffsets, count: valueCount)

        var (pointer, int, float) = (pointers, UnsafePointer(ints), UnsafePointer(floats))
        for (index, step) in plan.steps.enumerated() {
            var call = sp_call()
            call.operands = UnsafeRawPointer(pointer).assumingMemoryBound(to: UnsafePointer<sp_tensor>?.self)
            pointer += step.operandCount
            call.results = UnsafePointer(pointer)
            pointer += step.resultCount
            call.ints = int
            int += step.intCount
            call.floats = float
            float += step.floatCount
            call.operand_count = UInt32(step.operandCount)
            call.result_count = UInt32(step.resultCount)
            call.int_count = UInt32(step.intCount)
            call.float_count = UInt32(step.floatCount)
            (steps + index).initialize(to: sp_instruction(kernel: step.kernel, call: call))
        }
    }

    deinit { block.deallocate() }

    /// Notes the bytes of each of these values. Throws when a length is negative, or the bytes too many to count.
    func measure(_ list: [Int], _ numbers: [Int], _ plan: SizePlan) throws(SizeFault) {
        let (planValues, planSizes) = (plan.values, plan.sizes)
        let values = planValues.span
        let sizes = planSizes.span
        let numbers = numbers.span
        for index in list {
            let value = values[index]
            var count = 1
            var overflows = false
            for axis in value.firstSize..<value.firstSize + value.rank {
                let length = numbers[sizes[axis]]
                if length < 0 { throw .negativeLength(value: index) }
                let (product, overflow) = count.multipliedReportingOverflow(by: length)
                (count, overflows) = (product, overflows || overflow)
            }
            if value.storedByteCount >= 0 {
                byteCounts[index] = value.storedByteCount
                continue
            }
            let (bytes, overflow) = count.multipliedReportingOverflow(by: value.elementByteCount)
            if overflows || overflow { throw .tooLarge(value: index) }
            byteCounts[index] = bytes
        }
    }

    /// Writes lengths, strides and offset of each of these values. Throws when an element would lie outside its root,
    /// whose bytes `measure` has noted.
    func place(_ list: [Int], _ numbers: [Int], _ plan: SizePlan) throws(SizeFault) {
        let (planValues, planSizes) = (plan.values, plan.sizes)
        let values = planValues.span
        let sizes = planSizes.span
        let numbers = numbers.span
        for index in list {
            let value = values[index]
            let tensor = UnsafeMutableRawPointer(tensors + index)
            let lengths = (tensor + Self.shapeOffset).assumingMemoryBound(to: Int64.self)
            let strides = (tensor + Self.stridesOffset).assumingMemoryBound(to: Int64.self)
            let (first, rank) = (value.firstSize, value.rank)
            for axis in 0..<rank { lengths[axis] = Int64(numbers[sizes[first + axis]]) }
            var offset = 0
            if value.kind == .view {
                for axis in 0..<rank { strides[axis] = Int64(numbers[sizes[first + rank + axis]]) }
                offset = numbers[sizes[first + 2 * rank]]
            } else {
                var step: Int64 = 1
                for axis in (0..<rank).reversed() {
                    strides[axis] = step
                    let (product, overflow) = step.multipliedReportingOverflow(by: max(lengths[axis], 1))
                    if overflow { throw .tooLarge(value: index) }
                    step = product
                }
            }
            if value.kind != .packed {
                // The lowest and the highest element.
                var (low, high) = (offset, offset)
                var (isEmpty, overflows) = (false, false)
                for axis in 0..<rank where !isEmpty {
                    if lengths[axis] == 0 { isEmpty = true }
                    let (span, overflow) = (Int(lengths[axis]) - 1).multipliedReportingOverflow(by: Int(strides[axis]))
                    let (sum, overflow2) = (span < 0 ? low : high).addingReportingOverflow(span)
                    overflows = overflows || overflow || overflow2
                    if span < 0 { low = sum } else { high = sum }
                }
                if isEmpty {
                    // No element to reach; the address stays inside all the same.
                    offset = 0
                } else if overflows {
                    throw .strideOverflow(value: index)
                } else if low < 0 || high >= byteCounts[value.root] / value.elementByteCount {
                    throw .leavesRoot(value: index, elements: low...high)
                }
            }
            let root = values[value.root]
            if value.kind == .view && root.kind == .view { throw .viewOfView(value: index) }
            byteOffsets[index] = offset * value.elementByteCount
            if root.storedByteCount >= 0 {
                guard let bytes = root.storedBytes ?? (root.storedByteCount == 0 ? Self.nowhere : nil) else {
                    throw .leavesWeights(value: index)
                }
                tensors[index].data = bytes + byteOffsets[index]
            }
        }
    }

    func setInts(_ numbers: [Int], _ plan: SizePlan) {
        for int in plan.dynamicInts { ints[int.position] = Int64(numbers[int.size]) }
    }

    private static let shapeOffset = MemoryLayout<sp_tensor>.offset(of: \.shape)!
    private static let stridesOffset = MemoryLayout<sp_tensor>.offset(of: \.strides)!
    /// Of a stored tensor without bytes, in a bundle without weights.
    private static var nowhere: UnsafeMutableRawPointer? { UnsafeMutableRawPointer(bitPattern: ArenaLayout.alignment) }

    /// Operands and results of a call, for a diagnostic.
    func text(ofStep index: Int) -> String {
        let call = steps[index].call
        func text(_ tensor: UnsafePointer<sp_tensor>?) -> String {
            guard let tensor else { return "none" }
            let shape = withUnsafeBytes(of: tensor.pointee.shape) { bytes in
                (0..<Int(tensor.pointee.rank)).map { bytes.load(fromByteOffset: $0 * 8, as: Int64.self) }
            }
            let type = StatepackBundle.ScalarType(rawValue: UInt32(tensor.pointee.scalar_type))
            return "\(shape) \(type?.name ?? "?")"
        }
        let operands = (0..<Int(call.operand_count)).map { text(call.operands[$0]) }
        let results = (0..<Int(call.result_count)).map { text(UnsafePointer(call.results[$0])) }
        return "(\(operands.joined(separator: ", "))) -> (\(results.joined(separator: ", ")))"
    }
}
