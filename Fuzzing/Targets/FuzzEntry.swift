import StatepackBundle

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// What libFuzzer calls for each input. Which reader gets it, STATEPACK_FUZZ_TARGET says: one binary holds them all,
/// for the instrumented build is what takes long.
@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzOneInput(_ data: UnsafePointer<UInt8>?, _ size: Int) -> CInt {
    FuzzTarget.selected.run(UnsafeRawBufferPointer(start: data, count: size))
    return 0
}

/// What libFuzzer calls to change an input of `size` bytes in place, to at most `maximum` bytes.
///
/// Protobuf nests lengths in lengths, so that a changed byte mostly gives a file that ends at its first field. Most
/// changes are therefore made to the tree of fields, which is written again with lengths that fit.
@_cdecl("LLVMFuzzerCustomMutator")
public func fuzzMutate(_ data: UnsafeMutablePointer<UInt8>, _ size: Int, _ maximum: Int, _ seed: UInt32) -> Int {
    let prefix = FuzzTarget.selected.wirePrefix
    guard let prefix, size > prefix, seed % 8 != 0 else { return mutateBytes(data, size, maximum) }
    var mutator = WireMutator(seed: UInt64(seed))
    let body = Array(UnsafeBufferPointer(start: data + prefix, count: size - prefix))
    guard let changed = mutator.mutate(body), prefix + changed.count <= maximum else {
        return mutateBytes(data, size, maximum)
    }
    for (index, byte) in changed.enumerated() { data[prefix + index] = byte }
    return prefix + changed.count
}

/// libFuzzer's own mutations. For two pointers-or-integers Swift's calling convention is C's.
@_silgen_name("LLVMFuzzerMutate")
func mutateBytes(_ data: UnsafeMutablePointer<UInt8>, _ size: Int, _ maximum: Int) -> Int

/// A reader under test.
///
/// Files carry checksums, which no mutation guesses: each reader gets the bytes as they are, and where they have
/// checksums a second time with those made right.
enum FuzzTarget: String, CaseIterable {
    /// exported.pb with program and recording, up to the verified program.
    case exported
    /// exported.pb, converted to a bundle; what convert writes must open, and what opens is run.
    case convert
    case safetensors
    /// A whole bundle file: header, table, sections.
    case bundle
    /// A bundle's program section by itself; what passes the check is specialised and run.
    case program
    /// A contract's JSON and the sizes in it.
    case contract
    /// The safetensors file that `statepack run --inputs` reads.
    case inputs

    static let selected: FuzzTarget = {
        let name = getenv("STATEPACK_FUZZ_TARGET").map { String(cString: $0) } ?? ""
        guard let target = FuzzTarget(rawValue: name) else {
            fatalError("STATEPACK_FUZZ_TARGET is one of \(allCases.map(\.rawValue).joined(separator: ", "))")
        }
        return target
    }()

    /// Where the bytes are protobuf from; nil where they are not.
    var wirePrefix: Int? {
        switch self {
        // Two fixed-width fields, which the target makes right.
        case .exported, .convert: 0
        case .program: 0
        case .safetensors, .bundle, .contract, .inputs: nil
        }
    }

    func run(_ bytes: UnsafeRawBufferPointer) {
        switch self {
        case .exported: ExportedTarget.run(bytes, converts: false)
        case .convert: ExportedTarget.run(bytes, converts: true)
        case .safetensors: SafetensorsTarget.run(bytes)
        case .bundle: BundleTarget.run(bytes)
        case .program: ProgramTarget.run(bytes)
        case .contract: ContractTarget.run(bytes)
        case .inputs: InputsTarget.run(bytes)
        }
    }
}
