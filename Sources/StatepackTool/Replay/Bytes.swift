import Statepack
import StatepackBundle

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

func haveSameBytes(_ a: UnsafeRawBufferPointer, _ b: UnsafeRawBufferPointer) -> Bool {
    a.count == b.count && (a.count == 0 || memcmp(a.baseAddress!, b.baseAddress!, a.count) == 0)
}

extension NDArray {
    /// Row-major elements as bytes. The array must be contiguous, as states and outputs are.
    func withBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        let count = byteCount
        return try rawView().withUnsafeBytes { pointer, _, _ in
            try body(UnsafeRawBufferPointer(start: pointer, count: count))
        }
    }

    /// The same to write to. Copies the array first when it is shared.
    mutating func withMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer) throws -> R) rethrows -> R {
        let count = byteCount
        return try mutableRawView().withUnsafeMutableBytes { pointer, _, _ in
            try body(UnsafeMutableRawBufferPointer(start: pointer, count: count))
        }
    }

    var byteCount: Int { shape.reduce(1, *) * (scalarType.stored?.byteCount ?? 0) }

    /// Copies row-major bytes in. Their number must be the array's.
    mutating func copyBytes(from bytes: UnsafeRawBufferPointer) {
        precondition(bytes.count == byteCount, "\(bytes.count) bytes for an array of \(byteCount)")
        mutableRawView().withUnsafeMutableBytes { pointer, _, _ in
            if bytes.count > 0 { pointer.copyMemory(from: bytes.baseAddress!, byteCount: bytes.count) }
        }
    }
}

extension NDArray.ScalarType {
    /// The scalar type of the file formats, nil for the kinds that they do not store.
    var stored: StatepackBundle.ScalarType? { StatepackBundle.ScalarType(name: "\(self)") }

    init(_ type: StatepackBundle.ScalarType) {
        // Both enumerations use Core AI's names, and this one has all of the other's.
        self = Self.allCases.first { "\($0)" == type.name }!
    }
}
