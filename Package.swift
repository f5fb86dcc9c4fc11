// swift-tools-version: 6.2
import PackageDescription

let package = Package(
    name: "statepack",
    platforms: [.macOS("26.0")],
    products: [
        .library(name: "Statepack", targets: ["Statepack"]),
        .executable(name: "statepack", targets: ["StatepackCommand"]),
        .executable(name: "convert", targets: ["ConvertCommand"]),
        .executable(name: "validate", targets: ["ValidateCommand"]),
    ],
    targets: [
        // Codes, the Diagnostic value and its one renderer. Depends on nothing.
        .target(name: "StatepackDiagnostics"),
        .systemLibrary(
            name: "CProtobufC", pkgConfig: "libprotobuf-c",
            providers: [.apt(["libprotobuf-c-dev"]), .brew(["protobuf-c"])]),
        .systemLibrary(
            name: "CLibcrypto", pkgConfig: "libcrypto",
            providers: [.apt(["libssl-dev"]), .brew(["openssl"])]),
        // Generated protobuf-c code for schemas/program.proto. Nobody edits it.
        .target(name: "CStatepackSchema", dependencies: ["CProtobufC"]),
        .target(name: "CStatepackKernels"),
        // The packed format, and what compiler and runtime share: scalar types, sizes, the planned program.
        .target(name: "StatepackBundle", dependencies: ["StatepackDiagnostics", "CStatepackKernels"]),
        .target(name: "StatepackIR", dependencies: ["StatepackBundle", "StatepackDiagnostics"]),
        .target(
            name: "StatepackCompiler",
            dependencies: [
                "StatepackIR", "StatepackBundle", "StatepackDiagnostics", "CStatepackSchema", "CLibcrypto",
                "CStatepackKernels",
            ]),
        // The public runtime. Never imports the compiler, the IR or exported.pb.
        .target(
            name: "Statepack",
            dependencies: ["StatepackBundle", "StatepackDiagnostics", "CStatepackKernels"],
            swiftSettings: [.enableExperimentalFeature("Lifetimes"), .enableExperimentalFeature("AddressableTypes")]),
        .target(
            name: "StatepackTool",
            dependencies: ["StatepackCompiler", "Statepack", "StatepackBundle", "StatepackDiagnostics"],
            exclude: ["Commands"]),
        .executableTarget(
            name: "ConvertCommand", dependencies: ["StatepackTool"], path: "Sources/StatepackTool/Commands/Convert"),
        .executableTarget(
            name: "ValidateCommand", dependencies: ["StatepackTool"], path: "Sources/StatepackTool/Commands/Validate"),
        .executableTarget(
            name: "StatepackCommand", dependencies: ["StatepackTool"], path: "Sources/StatepackTool/Commands/Statepack"),

        // Programs that use the library as anybody would.
        .executableTarget(
            name: "Example01StatefulTransformer", dependencies: ["Statepack"],
            path: "examples/01-stateful-transformer/Example"),
        .executableTarget(
            name: "Example02SmolLM2", dependencies: ["Statepack"], path: "examples/02-smollm2/Example"),
        // Statepack's side of `make bench`.
        .executableTarget(name: "BenchmarkWorker", dependencies: ["Statepack"], path: "benchmarks/Worker"),

        // Diagnostics as text, compared character for character; Texts/ has what they have to be.
        .target(
            name: "ExactTexts", dependencies: ["StatepackDiagnostics"], path: "Tests/ExactTexts", exclude: ["Texts"]),
        .testTarget(name: "DiagnosticsTests", dependencies: ["StatepackDiagnostics"]),
        .testTarget(
            name: "BundleTests",
            dependencies: ["StatepackBundle", "StatepackDiagnostics", "CLibcrypto", "ExactTexts"],
            exclude: ["Goldens"]),
        .testTarget(
            name: "IRTests", dependencies: ["StatepackIR", "StatepackBundle", "StatepackDiagnostics", "ExactTexts"]),
        .testTarget(
            name: "CompilerTests",
            dependencies: ["StatepackCompiler", "StatepackIR", "StatepackBundle", "StatepackDiagnostics", "ExactTexts"]),
        // Malloc of the test program, which counts on request.
        .target(name: "AllocationMeter", path: "Tests/AllocationMeter"),
        .testTarget(
            name: "RuntimeTests",
            dependencies: [
                "Statepack", "StatepackBundle", "StatepackDiagnostics", "CStatepackKernels", "ExactTexts",
                "AllocationMeter",
            ],
            exclude: ["AllocationBudget.json"]),
        // Imports Statepack alone, as a user does.
        .testTarget(name: "PublicInterfaceTests", dependencies: ["Statepack"]),
        .testTarget(
            name: "ToolTests",
            dependencies: [
                "StatepackTool", "StatepackCompiler", "StatepackIR", "Statepack", "StatepackBundle",
                "StatepackDiagnostics", "ExactTexts",
            ],
            exclude: ["Goldens"]),
    ],
    swiftLanguageModes: [.v6],
    cLanguageStandard: .gnu17
)

// Only on request (`make fuzz`): they need libFuzzer's main, so a plain build does not know them.
if Context.environment["STATEPACK_FUZZING"] != nil {
    package.targets.append(
        .executableTarget(
            name: "FuzzReaders",
            dependencies: [
                "StatepackTool", "StatepackCompiler", "StatepackIR", "Statepack", "StatepackBundle",
                "StatepackDiagnostics", "CStatepackKernels",
            ],
            path: "Fuzzing/Targets"))
}
