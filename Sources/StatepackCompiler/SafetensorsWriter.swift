package import StatepackBundle
package import StatepackDiagnostics

#if canImport(Darwin)
    internal import Darwin
#elseif canImport(Musl)
    internal import Musl
#else
    internal import Glibc
#endif

/// Writes a safetensors file that `Safetensors` and the reference implementation read.
///
/// Widest types first, then by name, so that every tensor is aligned; the header is padded to 8 bytes.
/// Deterministic: same tensors, same bytes.
package enum SafetensorsWriter {
    package struct Tensor {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        /// Row-major little-endian elements.
        package var bytes: [UInt8]

        package init(name: String, scalarType: ScalarType, shape: [Int], bytes: [UInt8]) {
            self.name = name
            self.scalarType = scalarType
            self.shape = shape
            self.bytes = bytes
        }
    }

    /// The bytes of a file. Names must be unique and `bytes` must fit type and shape; both are the caller's faults.
    package static func encode(_ tensors: [Tensor], metadata: [String: String] = [:]) -> [UInt8] {
        let ordered = tensors.sorted {
            ($1.scalarType.byteCount, $0.name) < ($0.scalarType.byteCount, $1.name)
        }
        var rows: [String] = []
        if !metadata.isEmpty {
            let pairs = metadata.sorted { $0.key < $1.key }.map { "\(quoted($0.key)):\(quoted($0.value))" }
            rows.append("\"__metadata__\":{\(pairs.joined(separator: ","))}")
        }
        var offset = 0
        for tensor in ordered {
            precondition(tensor.bytes.count == tensor.shape.reduce(tensor.scalarType.byteCount, *))
            let shape = tensor.shape.map(String.init).joined(separator: ",")
            let end = offset + tensor.bytes.count
            rows.append(
                "\(quoted(tensor.name)):{\"dtype\":\"\(Safetensors.typeName(of: tensor.scalarType))\","
                    + "\"shape\":[\(shape)],\"data_offsets\":[\(offset),\(end)]}")
            offset = end
        }
        var header = Array("{\(rows.joined(separator: ","))}".utf8)
        while header.count % 8 != 0 { header.append(0x20) }
        var file: [UInt8] = []
        file.reserveCapacity(8 + header.count + offset)
        withUnsafeBytes(of: UInt64(header.count).littleEndian) { file.append(contentsOf: $0) }
        file += header
        for tensor in ordered { file += tensor.bytes }
        return file
    }

    /// Writes to a temporary file beside `path` and renames it, so that nobody sees half a file.
    /// Throws `outputNotWritten`.
    package static func write(
        _ tensors: [Tensor], metadata: [String: String] = [:], to path: String
    ) throws(DiagnosticList) {
        let bytes = encode(tensors, metadata: metadata)
        let temporary = "\(path).\(getpid()).tmp"
        func failure(_ act: String) -> DiagnosticList {
            let reason = String(cString: strerror(errno))
            unlink(temporary)
            return DiagnosticList([
                Diagnostic(.outputNotWritten, "the file cannot be \(act)", at: path, found: reason)
            ])
        }
        let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o666)
        guard descriptor >= 0 else { throw failure("created") }
        let isWritten = bytes.withUnsafeBytes { content -> Bool in
            var done = 0
            while done < content.count {
                let count = Self.writeSome(descriptor, content.baseAddress! + done, content.count - done)
                if count < 0 {
                    if errno == EINTR { continue }
                    return false
                }
                done += count
            }
            return true
        }
        guard isWritten, fsync(descriptor) == 0 else {
            let error = errno
            close(descriptor)
            errno = error
            throw failure("written")
        }
        guard close(descriptor) == 0 else { throw failure("written") }
        guard rename(temporary, path) == 0 else { throw failure("renamed") }
    }

    private static func writeSome(_ descriptor: Int32, _ bytes: UnsafeRawPointer, _ count: Int) -> Int {
        #if canImport(Darwin)
            Darwin.write(descriptor, bytes, count)
        #elseif canImport(Musl)
            Musl.write(descriptor, bytes, count)
        #else
            Glibc.write(descriptor, bytes, count)
        #endif
    }

    private static func quoted(_ text: String) -> String {
        var result = "\""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"": result += "\\\""
            case "\\": result += "\\\\"
            case _ where scalar.value < 0x20:
                let digits = String(scalar.value, radix: 16)
                result += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: result.unicodeScalars.append(scalar)
            }
        }
        return result + "\""
    }
}
