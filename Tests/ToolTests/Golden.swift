#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Texts that commands print, committed beside the tests. `STATEPACK_UPDATE_GOLDENS=1` rewrites them.
enum Golden {
    static func text(_ name: String, actual: String, file: String = #filePath) throws -> String {
        let folder = file.split(separator: "/", omittingEmptySubsequences: false).dropLast().joined(separator: "/")
        let path = "\(folder)/Goldens/\(name)"
        if getenv("STATEPACK_UPDATE_GOLDENS") != nil {
            guard let stream = fopen(path, "w") else { throw Unreadable(path: path) }
            defer { fclose(stream) }
            fputs(actual, stream)
        }
        return String(decoding: try bytes(path), as: UTF8.self)
    }

    static func bytes(_ path: String) throws -> [UInt8] {
        guard let stream = fopen(path, "r") else { throw Unreadable(path: path) }
        defer { fclose(stream) }
        var bytes: [UInt8] = []
        var block = [UInt8](repeating: 0, count: 1 << 16)
        while true {
            let count = fread(&block, 1, block.count, stream)
            if count == 0 { return bytes }
            bytes += block[..<count]
        }
    }

    struct Unreadable: Error { var path: String }
}
