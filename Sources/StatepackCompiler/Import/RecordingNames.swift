extension ImportedProgram {
    /// Renames the states of the program and, with them, those of the recording, which refers to states by name.
    ///
    /// - Parameter names: As for `StateNames.apply`, whose diagnostics it throws.
    package mutating func renameStates(_ names: [String]) throws {
        let before = program.states.map(\.name)
        try StateNames.apply(names, to: &program)
        let renamed = Dictionary(uniqueKeysWithValues: zip(before, program.states.map(\.name)))
        // The bytes have been read as a recording before, so that they cannot be malformed here.
        recordingBytes = try recordingBytes.withUnsafeBytes { bytes in
            try RecordingNames.rewrite(bytes, 0..<bytes.count, RecordingNames.stateName, renamed)
        }
        recording =
            try recordingBytes.isEmpty
            ? nil : recordingBytes.withUnsafeBytes { try Recording(serialized: $0, path: "recording") }
    }
}

/// Replaces names inside a serialised recording and leaves every other byte as it is.
enum RecordingNames {
    /// Recording.replays, Replay.steps, Step.states, RecordedState.name.
    static let stateName: [UInt32] = [1, 1, 4, 1]

    /// The message in `range` with the field at the end of `path` replaced by its new name, if it has one.
    static func rewrite(
        _ bytes: UnsafeRawBufferPointer, _ range: Range<Int>, _ path: [UInt32], _ names: [String: String]
    ) throws -> [UInt8] {
        var result: [UInt8] = []
        result.reserveCapacity(range.count)
        var position = range.lowerBound
        while position < range.upperBound {
            let start = position
            let field = try WireScan.field(bytes, &position, end: range.upperBound)
            guard field.wireType == 2, field.number == path[0] else {
                result += bytes[start..<position]
                continue
            }
            let content: [UInt8]
            if path.count > 1 {
                content = try rewrite(bytes, field.content, Array(path.dropFirst()), names)
            } else {
                let name = String(decoding: bytes[field.content], as: UTF8.self)
                content = Array((names[name] ?? name).utf8)
            }
            result += WireScan.varint(UInt64(field.number) << 3 | 2) + WireScan.varint(UInt64(content.count)) + content
        }
        return result
    }
}
