#if canImport(Glibc)
    import Glibc
#elseif canImport(Musl)
    import Musl
#elseif canImport(Darwin)
    import Darwin
#endif

/// What the system says about this process and this machine. What it does not say is nil.
struct ProcessFigures: Sendable, Hashable {
    /// Most bytes that were in memory at once, weights mapped from the bundle included.
    var peakBytes: Int?
    var residentBytes: Int?
    /// The part of `residentBytes` that belongs to no file.
    var anonymousBytes: Int?

    static func now() -> ProcessFigures {
        #if os(Linux)
            let status = text(ofFile: "/proc/self/status")
            func bytes(_ key: String) -> Int? {
                line(of: status, key).flatMap { Int($0.prefix { $0.isNumber }) }.map { $0 * 1024 }
            }
            return ProcessFigures(
                peakBytes: bytes("VmHWM"), residentBytes: bytes("VmRSS"), anonymousBytes: bytes("RssAnon"))
        #else
            var usage = rusage()
            return getrusage(RUSAGE_SELF, &usage) == 0
                ? ProcessFigures(peakBytes: Int(usage.ru_maxrss)) : ProcessFigures()
        #endif
    }

    /// As the system names it: `AMD EPYC 9R14`.
    static var processorName: String? {
        #if os(Linux)
            return line(of: text(ofFile: "/proc/cpuinfo"), "model name")
        #elseif canImport(Darwin)
            var length = 0
            guard sysctlbyname("machdep.cpu.brand_string", nil, &length, nil, 0) == 0 else { return nil }
            var name = [UInt8](repeating: 0, count: length)
            guard sysctlbyname("machdep.cpu.brand_string", &name, &length, nil, 0) == 0 else { return nil }
            return String(decoding: name.prefix { $0 != 0 }, as: UTF8.self)
        #else
            return nil
        #endif
    }

    #if os(Linux)
        /// What stands behind the first `key:`, without the blanks around it.
        private static func line(of text: String, _ key: String) -> String? {
            for line in text.split(separator: "\n") where line.hasPrefix(key) {
                let rest = line.dropFirst(key.count).drop { $0 == " " || $0 == "\t" }
                if rest.first == ":" { return String(rest.dropFirst().drop { $0 == " " || $0 == "\t" }) }
            }
            return nil
        }

        private static func text(ofFile path: String) -> String {
            let descriptor = open(path, O_RDONLY | O_CLOEXEC)
            if descriptor < 0 { return "" }
            defer { close(descriptor) }
            // Both files say what is asked in their first lines.
            let bytes = [UInt8](unsafeUninitializedCapacity: 1 << 14) { buffer, count in
                count = max(0, read(descriptor, buffer.baseAddress, buffer.count))
            }
            return String(decoding: bytes, as: UTF8.self)
        }
    #endif
}
