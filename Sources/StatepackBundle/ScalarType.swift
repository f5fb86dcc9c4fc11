/// The element type of a tensor in both file formats. Raw values are those of the schemas.
package enum ScalarType: UInt32, Hashable, Sendable, CaseIterable {
    case bool = 1
    case int8 = 2
    case int16 = 3
    case int32 = 4
    case int64 = 5
    case uint8 = 6
    case uint16 = 7
    case uint32 = 8
    case uint64 = 9
    case float16 = 10
    case float32 = 11
    case float64 = 12
    case bfloat16 = 13

    /// Bytes of one element.
    package var byteCount: Int {
        switch self {
        case .bool, .int8, .uint8: 1
        case .int16, .uint16, .float16, .bfloat16: 2
        case .int32, .uint32, .float32: 4
        case .int64, .uint64, .float64: 8
        }
    }

    /// Bytes of a row-major tensor. Nil when they do not fit an `Int`, or when its strides would not: a length of zero
    /// makes the bytes none, and leaves the other lengths as they are.
    package func byteCount(ofShape shape: [Int]) -> Int? {
        var bytes = byteCount
        for length in shape {
            let (product, overflow) = bytes.multipliedReportingOverflow(by: max(length, 1))
            if overflow || length < 0 { return nil }
            bytes = product
        }
        return shape.contains(0) ? 0 : bytes
    }

    package var isFloatingPoint: Bool {
        switch self {
        case .float16, .float32, .float64, .bfloat16: true
        default: false
        }
    }

    /// The name people read: `float32`.
    package var name: String { "\(self)" }

    package init?(name: some StringProtocol) {
        guard let match = Self.allCases.first(where: { $0.name == name }) else { return nil }
        self = match
    }
}
