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

    private static let bundleByte: UInt8 = 0x89

    private static func firstByte(of path: String) -> UInt8? {
        // Without O_NONBLOCK opening a pipe would wait for its writer.
        let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        defer { if descriptor >= 0 { close(descriptor) } }
        var first: UInt8 = 0
        return descriptor >= 0 && read(descriptor, &first, 1) == 1 ? first : nil
    }
}
