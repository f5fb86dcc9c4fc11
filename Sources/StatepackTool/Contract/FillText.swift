import StatepackBundle

/// One element as a JSON value that gives back the same bits.
///
/// A number or a boolean where that is exact; `"-0.0"`, `"infinity"`, `"-infinity"` and `"nan"` (the quiet one without
/// payload) as texts; integers beyond 64 signed bits in decimal; anything else as its bits, `"0x7fc00001"`.
enum FillText {
    static func json(_ bits: [UInt8], _ type: ScalarType) -> JSONValue {
        guard bits.count == type.byteCount else { return .string(hexadecimal(bits)) }
        let candidates = candidates(bits, type)
        return candidates.first { Self.bits($0, type) == bits } ?? .string(hexadecimal(bits))
    }

    /// As people read it in a message: `0`, `-infinity`, `0x7fc00001`.
    static func text(_ bits: [UInt8], _ type: ScalarType) -> String {
        switch json(bits, type) {
        case .string(let text): text
        case .bool(let value): "\(value)"
        case .integer(let value): "\(value)"
        case .number(let value): "\(value)"
        default: hexadecimal(bits)
        }
    }

    /// The element's bits, little-endian; nil when the value is none of that type. A decimal number is rounded to
    /// the nearest element, as everywhere.
    static func bits(_ json: JSONValue, _ type: ScalarType) -> [UInt8]? {
        switch json {
        case .bool(let value): return type == .bool ? [value ? 1 : 0] : nil
        case .integer(let value): return integer(value, type) ?? floating(Double(value), type)
        case .number(let value):
            if type.isFloatingPoint { return floating(value, type) }
            return Int(exactly: value).flatMap { integer($0, type) }
        case .string(let text):
            if text.hasPrefix("0x") { return bits(hexadecimal: text.dropFirst(2), type) }
            if type == .uint64 { return UInt64(text).map { littleEndian($0, 8) } }
            guard type.isFloatingPoint else { return nil }
            switch text {
            case "-0.0": return floating(-0.0, type)
            case "infinity": return floating(.infinity, type)
            case "-infinity": return floating(-.infinity, type)
            case "nan": return floating(.nan, type)
            default: return nil
            }
        default: return nil
        }
    }

    /// Readable forms, the most readable first. The first one that gives back the bits is taken.
    private static func candidates(_ bits: [UInt8], _ type: ScalarType) -> [JSONValue] {
        switch type {
        case .bool: return [.bool(bits[0] != 0)]
        case .int8, .int16, .int32, .int64, .uint8, .uint16, .uint32, .uint64:
            let isSigned = [.int8, .int16, .int32, .int64].contains(type)
            let pattern = bits.reversed().reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
            let shift = UInt64(64 - 8 * bits.count)
            if isSigned { return [.integer(Int(Int64(bitPattern: pattern << shift) >> Int64(shift)))] }
            return pattern <= UInt64(Int.max) ? [.integer(Int(pattern))] : [.string(String(pattern))]
        case .float16, .float32, .float64, .bfloat16:
            let value = bits.withUnsafeBytes { element(type, $0, 0) }
            if value.isNaN { return [.string("nan")] }
            if value.isInfinite { return [.string(value < 0 ? "-infinity" : "infinity")] }
            if value == 0 { return value.sign == .minus ? [.string("-0.0")] : [.integer(0)] }
            if value.magnitude < 1e15, let integer = Int(exactly: value) { return [.integer(integer)] }
            // The shortest text of the narrower type, 0.1 rather than 0.10000000149011612.
            let short = type == .float64 ? nil : Double("\(Float(value))")
            return [short.map { .number($0) }, .number(value)].compactMap { $0 }
        }
    }

    private static func integer(_ value: Int, _ type: ScalarType) -> [UInt8]? {
        let width = type.byteCount
        let range: ClosedRange<Int>
        switch type {
        case .int8, .int16, .int32, .int64: range = (Int.min >> (64 - 8 * width))...(Int.max >> (64 - 8 * width))
        case .uint8, .uint16, .uint32: range = 0...((1 << (8 * width)) - 1)
        case .uint64: range = 0...Int.max
        default: return nil
        }
        return range.contains(value) ? littleEndian(UInt64(bitPattern: Int64(value)), width) : nil
    }

    private static func floating(_ value: Double, _ type: ScalarType) -> [UInt8]? {
        switch type {
        case .float64: return littleEndian((value.isNaN ? Double.nan : value).bitPattern, 8)
        case .float32:
            let rounded = value.isNaN ? Float.nan : Float(value)
            return rounded.isInfinite && value.isFinite ? nil : littleEndian(UInt64(rounded.bitPattern), 4)
        case .bfloat16: return half(value, type, infinity: 0x7F80, quiet: 0x7FC0)
        case .float16: return half(value, type, infinity: 0x7C00, quiet: 0x7E00)
        default: return nil
        }
    }

    /// Patterns of positive numbers rise with the numbers in both 16-bit types, so that the nearest one is searched.
    private static func half(_ value: Double, _ type: ScalarType, infinity: UInt16, quiet: UInt16) -> [UInt8]? {
        let sign: UInt64 = value.sign == .minus ? 0x8000 : 0
        if value.isNaN { return littleEndian(UInt64(quiet), 2) }
        if value.isInfinite { return littleEndian(sign | UInt64(infinity), 2) }
        func number(_ pattern: UInt16) -> Double {
            littleEndian(UInt64(pattern), 2).withUnsafeBytes { element(type, $0, 0) }
        }
        let magnitude = value.magnitude
        var (low, high) = (UInt16(0), infinity - 1)
        if magnitude > number(high) { return nil }
        while high - low > 1 {
            let middle = low + (high - low) / 2
            if number(middle) <= magnitude { low = middle } else { high = middle }
        }
        let (below, above) = (magnitude - number(low), number(high) - magnitude)
        // Ties go to the even pattern.
        let nearest = below < above || (below == above && low % 2 == 0) ? low : high
        return littleEndian(sign | UInt64(nearest), 2)
    }

    private static func littleEndian(_ pattern: UInt64, _ width: Int) -> [UInt8] {
        (0..<width).map { UInt8(truncatingIfNeeded: pattern >> UInt64(8 * $0)) }
    }

    private static func hexadecimal(_ bits: [UInt8]) -> String { "0x" + hexadecimalText(bits.reversed()) }

    private static func bits(hexadecimal text: Substring, _ type: ScalarType) -> [UInt8]? {
        guard text.utf8.count == 2 * type.byteCount, text.allSatisfy({ $0.isASCII && $0.isHexDigit }) else {
            return nil
        }
        return UInt64(text, radix: 16).map { littleEndian($0, type.byteCount) }
    }
}
