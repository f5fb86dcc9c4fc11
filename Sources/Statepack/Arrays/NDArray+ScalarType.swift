import StatepackBundle

extension NDArray {
    /// The kind of one element. The names are those of Core AI, and so is their order.
    ///
    /// Arrays can be made of every kind. What a function takes is what its descriptor says.
    public enum ScalarType: Hashable, Sendable, CaseIterable {
        case bool
        case int2, int3, int4, int5, int6, int7, int8, int16, int32, int64, int128
        case uint1, uint2, uint3, uint4, uint5, uint6, uint7, uint8, uint16, uint32, uint64, uint128
        case float8e5m2, float8e4m3fn, float8e8m0fn, float4e2m1fn
        case float16, float32, float64, bfloat16
        case cfloat16, cfloat32, cfloat64
    }
}

extension NDArray.ScalarType {
    /// Bits of one element in memory. Kinds below a byte are packed.
    var bitWidth: Int {
        switch self {
        case .uint1: 1
        case .int2, .uint2: 2
        case .int3, .uint3: 3
        case .int4, .uint4, .float4e2m1fn: 4
        case .int5, .uint5: 5
        case .int6, .uint6: 6
        case .int7, .uint7: 7
        case .bool, .int8, .uint8, .float8e5m2, .float8e4m3fn, .float8e8m0fn: 8
        case .int16, .uint16, .float16, .bfloat16: 16
        case .int32, .uint32, .float32, .cfloat16: 32
        case .int64, .uint64, .float64, .cfloat32: 64
        case .int128, .uint128, .cfloat64: 128
        }
    }

    /// Bytes that hold `count` elements side by side. Nil on overflow.
    func byteCount(elements count: Int) -> Int? {
        let (bits, overflow) = count.multipliedReportingOverflow(by: bitWidth)
        if overflow { return nil }
        return bits / 8 + (bits % 8 == 0 ? 0 : 1)
    }

    /// The scalar type that values of a Swift type are elements of.
    init?<Scalar: BitwiseCopyable>(elementOf type: Scalar.Type) {
        if type == Float.self {
            self = .float32
        } else if type == Int32.self {
            self = .int32
        } else if type == Int64.self || type == Int.self {
            self = .int64
        } else if type == Bool.self {
            self = .bool
        } else if type == Double.self {
            self = .float64
        } else if type == BFloat16.self {
            self = .bfloat16
        } else if type == UInt8.self {
            self = .uint8
        } else if type == Int8.self {
            self = .int8
        } else if type == Int16.self {
            self = .int16
        } else if type == UInt16.self {
            self = .uint16
        } else if type == UInt32.self {
            self = .uint32
        } else if type == UInt64.self || type == UInt.self {
            self = .uint64
        } else if type == Int128.self {
            self = .int128
        } else if type == UInt128.self {
            self = .uint128
        } else {
            #if !(os(macOS) && arch(x86_64))
                if type == Float16.self {
                    self = .float16
                    return
                }
            #endif
            return nil
        }
    }

    /// The scalar type of the file formats.
    init(_ type: StatepackBundle.ScalarType) {
        switch type {
        case .bool: self = .bool
        case .int8: self = .int8
        case .int16: self = .int16
        case .int32: self = .int32
        case .int64: self = .int64
        case .uint8: self = .uint8
        case .uint16: self = .uint16
        case .uint32: self = .uint32
        case .uint64: self = .uint64
        case .float16: self = .float16
        case .float32: self = .float32
        case .float64: self = .float64
        case .bfloat16: self = .bfloat16
        }
    }
}

/// A 16-bit floating-point number with the range of `Float` and 8 significant bits.
public struct BFloat16: BitwiseCopyable, Hashable, Sendable {
    public var bitPattern: UInt16

    public init(bitPattern: UInt16) { self.bitPattern = bitPattern }

    /// The nearest value, ties to even. NaN stays NaN.
    public init(_ value: Float) {
        let bits = value.bitPattern
        if value.isNaN {
            bitPattern = UInt16(bits >> 16) | 0x40
        } else {
            bitPattern = UInt16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
        }
    }
}

extension Float {
    /// The same value: every `BFloat16` is a `Float`.
    public init(_ value: BFloat16) { self.init(bitPattern: UInt32(value.bitPattern) << 16) }
}
