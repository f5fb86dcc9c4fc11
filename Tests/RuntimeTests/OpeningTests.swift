import Foundation
import Statepack
import StatepackBundle
import Testing

struct OpeningTests {
    /// Writes a bundle of the cache program and returns its place.
    private func write(damagingWeights: Bool = false) throws -> URL {
        var builder = ProgramBuilder()
        let query = builder.symbol("query", 1...8)
        let rows = builder.input("rows", .float32, [query, 2])
        let cache = builder.state("cache", .float32, [4, 2], initial: .splat([0, 0, 0xA0, 0x40]))
        let table = builder.weight("table", [1, 2] as [Float], [2])
        let out = builder.output("out", .float32, [query, 2])
        let row = builder.view(of: cache, [2], strides: [1], offset: 2)
        builder.emit("add", [rows, table], [out])
        builder.emit("write", [table], [row], ints: [0])
        let place = FileManager.default.temporaryDirectory.appending(path: "\(UUID().uuidString).statepack")
        var writer = try BundleWriter(path: place.path, sections: [.program, .weights]) {
            IncrementalDigest(update: { _ in }, finish: { [UInt8](repeating: 0, count: 32) })
        }
        try writer.begin(.program)
        try writer.append(builder.build().encoded())
        try writer.begin(.weights)
        try writer.append(builder.weights)
        try writer.finish()
        if damagingWeights {
            let file = try FileHandle(forUpdating: place)
            try file.seek(toOffset: try file.seekToEnd() - 1)
            try file.write(contentsOf: [0x55])
            try file.close()
        }
        return place
    }

    @Test func aBundleOpensDescribesItselfAndRuns() async throws {
        let place = try write()
        defer { try? FileManager.default.removeItem(at: place) }
        for (isCopied, threads) in [(false, nil), (true, 1)] as [(Bool, Int?)] {
            var options = SpecializationOptions(threadCount: threads, verifyChecksums: true)
            options.copyWeights = isCopied
            let model = try await AIModel(contentsOf: place, options: options)
            #expect(model.functionNames == ["main"])
            let descriptor = try #require(model.functionDescriptor(for: "main"))
            #expect(descriptor.inputNames == ["rows"] && descriptor.inputCount == 1)
            #expect(descriptor.stateNames == ["cache"])
            #expect(descriptor.outputNames == ["out"] && descriptor.outputCount == 1)
            #expect(
                descriptor.inputDescriptor(of: "rows")
                    == .ndArray(NDArrayDescriptor(scalarType: .float32, shape: [-1, 2])))
            #expect(
                descriptor.stateDescriptor(of: "cache")
                    == .ndArray(NDArrayDescriptor(scalarType: .float32, shape: [4, 2])))
            #expect(descriptor.outputDescriptor(of: "cache") == nil && descriptor.inputDescriptor(of: "out") == nil)
            let function = try #require(try model.loadFunction(named: "main"))
            #expect(function.descriptor == descriptor)
            var states = try function.initialStates()
            #expect(floats(try #require(states["cache"])) == [Float](repeating: 5, count: 8))
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var outputs = try await function.run(
                inputs: ["rows": NDArray(scalars: [10, 20, 30, 40] as [Float], shape: [2, 2])], states: views)
            #expect(floats(try take("out", from: &outputs)) == [11, 22, 31, 42])
            #expect(floats(try #require(states["cache"])) == [5, 5, 1, 2, 5, 5, 5, 5])
        }
    }

    @Test func aFunctionOutlivesItsModel() async throws {
        let place = try write()
        defer { try? FileManager.default.removeItem(at: place) }
        func load() async throws -> InferenceFunction {
            let model = try await AIModel(contentsOf: place)
            return try #require(try model.loadFunction(named: "main"))
        }
        let function = try await load()
        var states = try function.initialStates()
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        var outputs = try await function.run(
            inputs: ["rows": NDArray(shape: [1, 2], scalarType: .float32)], states: views)
        #expect(floats(try take("out", from: &outputs)) == [1, 2])
    }

    @Test func aMissingOrDamagedFileIsRefused() async throws {
        func error(_ place: URL, _ options: SpecializationOptions = .default) async -> Diagnostic? {
            do { _ = try await AIModel(contentsOf: place, options: options) } catch {
                return (error as? StatepackError)?.diagnostics.first
            }
            return nil
        }
        let nowhere = URL(filePath: "/nowhere/model.statepack")
        let missing = await error(nowhere)
        #expect(missing?.code == .bundleNotFound && missing?.location == nowhere.path)
        let damaged = try write(damagingWeights: true)
        defer { try? FileManager.default.removeItem(at: damaged) }
        let accepted = await error(damaged)
        #expect(accepted == nil, "weights are not read when the file is opened")
        let refused = await error(damaged, SpecializationOptions(verifyChecksums: true))
        #expect(refused?.code == .bundleChecksum)
    }
}
