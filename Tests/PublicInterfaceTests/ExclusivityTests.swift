import Foundation
import Testing

/// Code that the compiler must refuse: one array with two users, or a view that outlives its array.
///
/// Lifetimes and exclusivity are checked on SIL, so type checking alone would let all of these pass.
struct ExclusivityTests {
    struct Case: CustomTestStringConvertible, Sendable {
        let name: String
        let error: String
        let code: String
        var testDescription: String { name }
    }

    static let cases = [
        Case(
            name: "state changed while its view is alive", error: "overlapping accesses to 'k'",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray, _ v: inout NDArray) async throws {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    states.insert(&v, for: "v")
                    let other = k.mutableView(as: Float.self)
                    _ = consume other
                    _ = try await f.run(inputs: [:], states: states)
                }
                """),
        Case(
            name: "state read while its view is alive", error: "overlapping accesses to 'k'",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws -> Int {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    let rank = k.shape.count
                    _ = try await f.run(inputs: [:], states: states)
                    return rank
                }
                """),
        Case(
            name: "one array as two states", error: "overlapping accesses to 'k'",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    states.insert(&k, for: "v")
                    _ = try await f.run(inputs: [:], states: states)
                }
                """),
        Case(
            name: "one array as state and output view", error: "overlapping accesses to 'k'",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    var outputs = InferenceFunction.MutableViews()
                    outputs.insert(&k, for: "y")
                    _ = try await f.run(inputs: [:], states: states, outputViews: outputs)
                }
                """),
        Case(
            name: "one array as borrowed input and state", error: "overlapping accesses to 'k'",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws {
                    var inputs = InferenceFunction.Inputs()
                    inputs.insert(k, for: "x")
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    _ = try await f.run(inputs: inputs, states: states)
                }
                """),
        Case(
            name: "borrowed input changed before the run", error: "overlapping accesses to 'x'",
            code: """
                func step(_ f: InferenceFunction) async throws {
                    var x = NDArray(shape: [1], scalarType: .float32)
                    var inputs = InferenceFunction.Inputs()
                    inputs.insert(x, for: "x")
                    x = NDArray(shape: [2], scalarType: .float32)
                    _ = try await f.run(inputs: inputs)
                }
                """),
        Case(
            name: "one set of views for two runs", error: "'states' consumed more than once",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    _ = try await f.run(inputs: [:], states: states)
                    _ = try await f.run(inputs: [:], states: states)
                }
                """),
        Case(
            name: "one state in two tasks", error: "risks causing data races",
            code: """
                func step(_ f: InferenceFunction, _ k: inout NDArray) async throws {
                    var states = InferenceFunction.MutableViews()
                    states.insert(&k, for: "k")
                    _ = try await f.run(inputs: [:], states: states)
                }
                func twice(_ f: InferenceFunction) async throws {
                    var k = NDArray(shape: [1], scalarType: .float32)
                    async let one: Void = step(f, &k)
                    async let two: Void = step(f, &k)
                    try await one
                    try await two
                }
                """),
        Case(
            name: "two elements of one Swift array", error: "overlapping accesses to 'states'",
            code: """
                func step(_ f: InferenceFunction, _ states: inout [NDArray]) async throws {
                    var views = InferenceFunction.MutableViews()
                    views.insert(&states[0], for: "k")
                    views.insert(&states[1], for: "v")
                    _ = try await f.run(inputs: [:], states: views)
                }
                """),
        Case(
            name: "view that outlives its array", error: "lifetime-dependent variable 'view' escapes its scope",
            code: """
                func escape() -> Int {
                    var view = NDArray(shape: [1], scalarType: .float32).view(as: Float.self)
                    do {
                        let array = NDArray(shape: [1], scalarType: .float32)
                        view = array.view(as: Float.self)
                    }
                    return view.rank
                }
                """),
        Case(
            name: "state as a property of a class", error: "lifetime-dependent variable 'states' escapes its scope",
            code: """
                final class Holder {
                    var k = NDArray(shape: [1], scalarType: .float32)
                    func step(_ f: InferenceFunction) async throws {
                        var states = InferenceFunction.MutableViews()
                        states.insert(&k, for: "k")
                        _ = try await f.run(inputs: [:], states: states)
                    }
                }
                """),
    ]

    @Test("the compiler refuses", arguments: cases)
    func refused(_ example: Case) throws {
        let result = try BuildProducts().compile("import Statepack\n" + example.code, ["-emit-sil", "-o", "/dev/null"])
        #expect(result.status != 0)
        #expect(result.output.contains(example.error), "\(result.output)")
    }

    @Test func acceptsTheSameStepWithoutTheFault() throws {
        let code = """
            import Statepack
            func step(_ f: InferenceFunction, _ k: inout NDArray, _ v: inout NDArray) async throws -> Int {
                var states = InferenceFunction.MutableViews()
                states.insert(&k, for: "k")
                states.insert(&v, for: "v")
                _ = try await f.run(inputs: [:], states: states)
                return k.shape.count
            }
            """
        let result = try BuildProducts().compile(code, ["-emit-sil", "-o", "/dev/null"])
        #expect(result.status == 0, "\(result.output)")
    }

    /// An app or a wheel that uses the library must need nothing but the Swift runtime and libc.
    @Test func aClientLinksNoFoundationNorProtobufNorCrypto() throws {
        let products = try BuildProducts()
        let program = FileManager.default.temporaryDirectory.appending(path: "statepack-client-\(UUID().uuidString)")
        defer { try? FileManager.default.removeItem(at: program) }
        let code = """
            import Statepack
            #if canImport(FoundationEssentials)
            import FoundationEssentials
            #endif
            @main struct Client {
                static func main() async {
                    let array = NDArray(scalars: [1, 2, 3] as [Float], shape: [3])
                    let view = array.view(as: Float.self)
                    do {
                        _ = try await AIModel(contentsOf: URL(filePath: "/nowhere.statepack"))
                    } catch let error as StatepackError {
                        print(error.code, view[scalarAt: [2]])
                    } catch {}
                }
            }
            """
        let objects = try products.objects(ofTargets: [
            "Statepack", "StatepackBundle", "StatepackDiagnostics", "CStatepackKernels",
        ])
        let built = try products.compile(code, ["-parse-as-library", "-o", program.path] + objects)
        try #require(built.status == 0, "\(built.output)")
        let run = try BuildProducts.execute(program.path, [])
        #expect(run.output.hasPrefix("E05") && run.output.contains("3.0"), "\(run.output)")
        #if os(Linux)
            let libraries = try BuildProducts.execute("/usr/bin/env", ["ldd", program.path]).output
            for name in ["libFoundation.so", "ICU", "icu", "protobuf", "crypto", "ssl", "dnnl"] {
                #expect(!libraries.contains(name), "\(libraries)")
            }
        #endif
    }
}

/// The modules and objects that this very build made, for compiling code against them.
struct BuildProducts {
    let folder: URL

    init() throws {
        // The test program lies in the folder of the build configuration.
        #if os(Linux)
            var place = URL(filePath: try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe"))
        #else
            var place = URL(filePath: CommandLine.arguments[0])
        #endif
        while !FileManager.default.fileExists(atPath: place.appending(path: "Modules/Statepack.swiftmodule").path) {
            try #require(place.path != "/", "no build folder above the test program")
            place = place.deletingLastPathComponent()
        }
        folder = place
    }

    /// What the build links of these targets. Its own list, for a build folder may hold objects of deleted files.
    func objects(ofTargets targets: [String]) throws -> [String] {
        let list = folder.appending(path: "statepackPackageTests.product/Objects.LinkFileList")
        let paths = try String(contentsOf: list, encoding: .utf8).split(separator: "\n").map {
            $0.trimmingCharacters(in: CharacterSet(charactersIn: "'\""))
        }
        return paths.filter { path in targets.contains { path.contains("/\($0).build/") } }
    }

    func compile(_ code: String, _ arguments: [String]) throws -> (status: Int32, output: String) {
        let source = FileManager.default.temporaryDirectory.appending(path: "statepack-\(UUID().uuidString).swift")
        try code.write(to: source, atomically: true, encoding: .utf8)
        defer { try? FileManager.default.removeItem(at: source) }
        let map = folder.appending(path: "CStatepackKernels.build/module.modulemap").path
        return try Self.execute(
            "/usr/bin/env",
            [
                "swiftc", "-swift-version", "6", "-module-name", "Client", "-I", folder.appending(path: "Modules").path,
                "-Xcc", "-fmodule-map-file=\(map)", source.path,
            ] + arguments)
    }

    static func execute(_ program: String, _ arguments: [String]) throws -> (status: Int32, output: String) {
        let process = Process()
        process.executableURL = URL(filePath: program)
        process.arguments = arguments
        let pipe = Pipe()
        process.standardOutput = pipe
        process.standardError = pipe
        try process.run()
        let data = pipe.fileHandleForReading.readDataToEndOfFile()
        process.waitUntilExit()
        return (process.terminationStatus, String(decoding: data, as: UTF8.self))
    }
}
