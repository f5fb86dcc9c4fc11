import StatepackBundle

/// What the recording allows: |found - expected| <= absolute + relative * |expected|.
package struct Tolerance: Hashable, Sendable {
    package var absolute: Double
    package var relative: Double
}

/// The largest difference between found and expected elements of one tensor, and where.
struct WorstDifference: Hashable {
    /// |found - expected|; infinite when one is NaN and the other is not.
    var difference = 0.0
    /// Difference over tolerance; above 1 it fails.
    var ratio = 0.0
    var index: Int?
    var found = 0.0
    var expected = 0.0

    mutating func take(_ found: Double, _ expected: Double, _ tolerance: Tolerance, at index: Int) {
        if found == expected || (found.isNaN && expected.isNaN) { return }
        var difference = (found - expected).magnitude
        if difference.isNaN { difference = .infinity }
        let allowed = tolerance.absolute + tolerance.relative * expected.magnitude
        // NOTE: an infinite expected value allows nothing but itself, or every difference would pass.
        let ratio = allowed > 0 && expected.isFinite ? difference / allowed : .infinity
        if ratio > self.ratio || self.index == nil {
            self = WorstDifference(
                difference: max(difference, self.difference), ratio: ratio, index: index, found: found,
                expected: expected)
        } else {
            self.difference = max(difference, self.difference)
        }
    }

    mutating func merge(_ other: WorstDifference) {
        if other.ratio > ratio || (index == nil && other.index != nil) {
            let largest = max(difference, other.difference)
            self = other
            difference = largest
        } else {
            difference = max(difference, other.difference)
        }
    }
}

/// One element as a Double: exact for every type but 64-bit integers beyond 2^53, which are compared by
/// their bits before.
func element(_ type: ScalarType, _ bytes: UnsafeRawBufferPointer, _ index: Int) -> Double {
    func load<T: BitwiseCopyable>(_: T.Type) -> T {
        bytes.loadUnaligned(fromByteOffset: index * MemoryLayout<T>.size, as: T.self)
    }
    return switch type {
    case .bool, .uint8: Double(load(UInt8.self))
    case .int8: Double(load(Int8.self))
    case .int16: Double(load(Int16.self))
    case .int32: Double(load(Int32.self))
    case .int64: Double(load(Int64.self))
    case .uint16: Double(load(UInt16.self))
    case .uint32: Double(load(UInt32.self))
    case .uint64: Double(load(UInt64.self))
    case .float16: float16Value(load(UInt16.self))
    case .float32: Double(load(Float.self))
    case .float64: load(Double.self)
    case .bfloat16: Double(Float(bitPattern: UInt32(load(UInt16.self)) << 16))
    }
}

/// Spelled out, for Swift has no Float16 on Intel Macs.
private func float16Value(_ bits: UInt16) -> Double {
    let sign: Double = bits & 0x8000 == 0 ? 1 : -1
    let (exponent, fraction) = (Int(bits >> 10) & 0x1F, Double(bits & 0x3FF))
    switch exponent {
    case 0: return sign * fraction * 0x1p-24
    case 0x1F: return fraction == 0 ? sign * .infinity : .nan
    default: return sign * (1 + fraction / 1024) * Double(sign: .plus, exponent: exponent - 15, significand: 1)
    }
}

/// Compares `count` elements from `start` on with as many expected ones. Equal bytes cost one memcmp.
func compareElements(
    _ type: ScalarType, found: UnsafeRawBufferPointer, from start: Int, expected: UnsafeRawBufferPointer,
    from expectedStart: Int, count: Int, tolerance: Tolerance, into worst: inout WorstDifference
) {
    let size = type.byteCount
    let a = UnsafeRawBufferPointer(rebasing: found[start * size..<(start + count) * size])
    let b = UnsafeRawBufferPointer(rebasing: expected[expectedStart * size..<(expectedStart + count) * size])
    if haveSameBytes(a, b) { return }
    // Integers and booleans must be equal, whatever the tolerance says.
    let tolerance = type.isFloatingPoint ? tolerance : Tolerance(absolute: 0, relative: 0)
    for index in 0..<count {
        let (x, y) = (element(type, a, index), element(type, b, index))
        if x == y, !type.isFloatingPoint {
            // 64-bit integers that differ beyond 2^53.
            let range = index * size..<(index + 1) * size
            if !a[range].elementsEqual(b[range]) { worst.take(x + 1, y, tolerance, at: start + index) }
        } else {
            worst.take(x, y, tolerance, at: start + index)
        }
    }
}

/// Compares bits. Reports the first element that differs.
func compareBits(
    _ type: ScalarType, found: UnsafeRawBufferPointer, from start: Int, expected: UnsafeRawBufferPointer,
    from expectedStart: Int, count: Int
) -> Int? {
    let size = type.byteCount
    let a = UnsafeRawBufferPointer(rebasing: found[start * size..<(start + count) * size])
    let b = UnsafeRawBufferPointer(rebasing: expected[expectedStart * size..<(expectedStart + count) * size])
    if haveSameBytes(a, b) { return nil }
    return zip(a, b).enumerated().first { $0.element.0 != $0.element.1 }.map { start + $0.offset / size }
}
