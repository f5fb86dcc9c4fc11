import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import StatepackTool

enum ExportedTarget {
    static func run(_ bytes: UnsafeRawBufferPointer, converts: Bool) {
        read(FuzzFolder.write(bytes, to: "input"), converts: false)
        guard bytes.count >= 18 else { return }
        read(FuzzFolder.write(repaired(Array(bytes)), to: "input"), converts: converts)
    }

    /// With the length and the digest that the first two fields declare.
    static func repaired(_ bytes: [UInt8]) -> [UInt8] {
        let body = bytes[18...]
        let digest = Array(body).withUnsafeBytes { SHA256Digest.of($0) }
        return [0x09] + (0..<8).map { UInt8(truncatingIfNeeded: body.count >> (8 * $0)) } + [0x11] + digest[..<8] + body
    }

    private static func read(_ path: String, converts: Bool) {
        guard let imported = attempt({ try importProgram(at: path) }) else { return }
        if attempt({ try Verifier.verify(imported.program, stage: .imported) }) == nil { return }
        if !converts { return }
        let output = "\(FuzzFolder.path)/model.statepack"
        let written: Void? = attempt {
            let compiled = try Compiler().compile(imported.program)
            try Compiler.write(compiled, weights: imported.weights, recording: imported.recordingBytes, to: output)
        }
        if written == nil { return }
        // What convert writes, every reader takes.
        do {
            ModelRun.run(try MappedBundle(path: output))
        } catch {
            fatalError("convert wrote what does not open: \(error)")
        }
    }
}

enum SafetensorsTarget {
    static func run(_ bytes: UnsafeRawBufferPointer) {
        read(FuzzFolder.write(bytes, to: "input"))
        if let file = repaired(bytes) { read(FuzzFolder.write(file, to: "input")) }
    }

    /// With the header's length, and as many bytes behind it as its largest number says, up to 64 KiB. Nil without a
    /// header.
    static func repaired(_ bytes: UnsafeRawBufferPointer) -> [UInt8]? {
        guard bytes.count > 8, let brace = bytes.lastIndex(of: UInt8(ascii: "}")), brace >= 8 else { return nil }
        let header = Array(bytes[8...brace])
        var largest = 0
        var number = 0
        for byte in header {
            if (0x30...0x39).contains(byte) {
                number = min(number * 10 + Int(byte - 0x30), 1 << 40)
                if number <= 1 << 16 { largest = max(largest, number) }
            } else {
                number = 0
            }
        }
        let length = (0..<8).map { UInt8(truncatingIfNeeded: header.count >> (8 * $0)) }
        return length + header + [UInt8](repeating: 1, count: largest)
    }

    private static func read(_ path: String) {
        guard let file = attempt({ try Safetensors(path: path) }) else { return }
        var sum = 0
        for entry in file.entries {
            file.withBytes(of: entry) { bytes in sum += bytes.reduce(0) { $0 + Int($1) } }
            precondition(file[entry.name] == entry)
        }
        precondition(sum >= 0)
    }
}

enum BundleTarget {
    static func run(_ bytes: UnsafeRawBufferPointer) {
        read(bytes)
        var copy = Array(bytes)
        guard repair(&copy) else { return }
        copy.withUnsafeBytes { read($0) }
    }

    private static func read(_ bytes: UnsafeRawBufferPointer) {
        let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: max(bytes.count, 1), alignment: 64)
        defer { memory.deallocate() }
        memory.copyMemory(from: bytes)
        let file = UnsafeRawBufferPointer(rebasing: memory[..<bytes.count])
        guard let bundle = attempt({ try MappedBundle(path: "input", unowned: file) }) else { return }
        _ = bundle.checksumFindings()
        _ = bundle.digestFindings(using: IncrementalDigest.sha256)
        if !bundle.recording.isEmpty { _ = attempt { try Recording(serialized: bundle.recording) } }
        ModelRun.run(bundle)
    }

    /// Makes length and checksums right, as far as there is a header. The layout stays as the input has it.
    static func repair(_ bytes: inout [UInt8]) -> Bool {
        guard bytes.count >= 32 else { return false }
        func number(_ offset: Int, _ count: Int) -> UInt64 {
            (0..<count).reduce(0) { $0 | UInt64(bytes[offset + $1]) << UInt64(8 * $1) }
        }
        func set(_ value: UInt64, _ offset: Int, _ count: Int) {
            for index in 0..<count { bytes[offset + index] = UInt8(truncatingIfNeeded: value >> UInt64(8 * index)) }
        }
        bytes.replaceSubrange(0..<8, with: FileLayout.magic)
        set(UInt64(bytes.count), 16, 8)
        let rows = Int(min(number(24, 4), 16))
        let tableEnd = 32 + 64 * rows
        guard bytes.count >= tableEnd else { return false }
        for row in 0..<rows {
            let entry = 32 + 64 * row
            let (offset, length) = (number(entry + 8, 8), number(entry + 16, 8))
            guard offset <= UInt64(bytes.count), length <= UInt64(bytes.count) - offset else { continue }
            let section = Array(bytes[Int(offset)..<Int(offset + length)])
            set(UInt64(ProgramTarget.checksum(section)), entry + 24, 4)
            bytes.replaceSubrange(entry + 32..<entry + 64, with: section.withUnsafeBytes { SHA256Digest.of($0) })
        }
        set(UInt64(ProgramTarget.checksum(Array(bytes[..<28] + bytes[32..<tableEnd]))), 28, 4)
        return true
    }
}

enum ContractTarget {
    static func run(_ bytes: UnsafeRawBufferPointer) {
        if let value = try? JSONReader.read(Array(bytes)) {
            // What was read once, is read again as the same value.
            precondition((try? JSONReader.read(Array(value.text.utf8))) == value, "JSON changed")
        }
        if let text = String(validating: bytes, as: UTF8.self),
            let size = try? SizeText.parse(text, symbolNames: ["s", "query"])
        {
            let again = try? SizeText.parse(
                size.description(symbolNames: ["s", "query"]), symbolNames: ["s", "query"])
            precondition(again == size, "a size changed")
        }
        guard let contract = attempt({ try Contract(json: Array(bytes), file: "input") }) else { return }
        let again = attempt { try Contract(json: Array(contract.json.text.utf8), file: "again") }
        precondition(again == contract, "a contract changed")
        precondition(contract.differences(from: contract).isEmpty, "a contract differs from itself")
    }
}
