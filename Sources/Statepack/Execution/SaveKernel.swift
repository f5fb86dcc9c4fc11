internal import CStatepackKernels
import StatepackBundle

#if canImport(Glibc)
    internal import Glibc
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Darwin
#endif

/// A kernel that remembers the bytes of its result before the next instruction overwrites them.
///
/// Kernels that update a state in place save what they overwrite themselves, row by row. Any other kernel may have
/// a state as its result too; where something can fail after it, this runs in front of it.
enum SaveKernel {
    nonisolated(unsafe) static let pointer: UnsafePointer<sp_kernel> = {
        let kernel = UnsafeMutablePointer<sp_kernel>.allocate(capacity: 1)
        kernel.initialize(
            to: sp_kernel(
                name: UnsafePointer(strdup("save")), check: { _ in nil }, scratch: { _, _ in 0 },
                run: { call, run in save(call!.pointee.results[0]!.pointee, run!) }, fallible: true, writes: false))
        return UnsafePointer(kernel)
    }()

    private static func save(_ tensor: sp_tensor, _ run: UnsafeMutablePointer<sp_run>) -> Bool {
        guard let type = StatepackBundle.ScalarType(rawValue: UInt32(tensor.scalar_type)), let data = tensor.data else {
            return true
        }
        return withUnsafeBytes(of: tensor.shape) { shape in
            withUnsafeBytes(of: tensor.strides) { strides in
                func length(_ axis: Int) -> Int { Int(shape.load(fromByteOffset: axis * 8, as: Int64.self)) }
                func stride(_ axis: Int) -> Int { Int(strides.load(fromByteOffset: axis * 8, as: Int64.self)) }
                // The trailing axes that lie densely are one block.
                var outer = Int(tensor.rank)
                var block = type.byteCount
                while outer > 0 && (stride(outer - 1) * type.byteCount == block || length(outer - 1) == 1) {
                    outer -= 1
                    block *= length(outer)
                }
                if block == 0 { return true }
                func saveAxis(_ axis: Int, _ data: UnsafeMutableRawPointer) -> Bool {
                    if axis == outer { return sp_run_save(run, data, block) }
                    for index in 0..<length(axis)
                    where !saveAxis(axis + 1, data + index * stride(axis) * type.byteCount) {
                        return false
                    }
                    return true
                }
                return saveAxis(0, data)
            }
        }
    }
}
