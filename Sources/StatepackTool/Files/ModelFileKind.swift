#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// What a model file is, by its first byte: a bundle starts with one that no protobuf starts with.
///
/// A file that cannot be read, or has no bytes, counts as what its name says, so that the reader of
/// that kind explains what is wrong.
enum ModelFileKind {
    case bundle
    case exportedProgram

    init(path: String) {
        if let first = Self.firstByte(of: path) {
            self = first == Self.bundleByte || (first != 0x09 && !path.hasSuffix(".pb")) ? .bundle : .exportedProgram
        } else {
            self = path.hasSuffix(".pb") ? .exportedProgram : .bundle
        }
    }

    /// Whether the file can be read and starts as a bundle does.
    static func startsAsBundle(_ path: String) -> Bool { firstByte(of: path) == bundleByte }

    /// Whether the file can be read and starts as an exported program, or as a bundle, does.
    static func startsAsModel(_ path: String) -> Bool {
        // The tags of an exported program's first two fields.
        let start = firstBytes(of: path, 10)
        return start.first == bundleByte || start.count == 10 && start[0] == 0x09 && start[9] == 0x11
    }

    private static let bundleByte: UInt8 = 0x89

    private static func firstByte(of path: String) -> UInt8? { firstBytes(of: path, 1).first }

    private static func firstBytes(of path: String, _ count: Int) -> [UInt8] {
        // Without O_NONBLOCK opening a pipe would wait for its writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else { return [] }
        defer { close(descriptor) }
        var bytes = [UInt8](repeating: 0, count: count)
        let length = read(descriptor, &bytes, count)
        return Array(bytes.prefix(max(0, length)))
    }
}
