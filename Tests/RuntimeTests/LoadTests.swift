#if canImport(Glibc)
    import AllocationMeter
    import Foundation
    import Glibc
    import Statepack
    import StatepackBundle
    import Testing

    /// What opening a bundle reads, and what an open bundle takes in memory.
    struct LoadTests {
        static let rows = 2048
        static let matrixBytes = rows * rows * 4

        struct Failure: Error { var step: String }

        /// `matrices` square weights of 16 MB, one applied after the other, and a state that the sum is added to.
        ///
        /// - Parameter isSparse: Leaves the weights a hole in the file, so that it takes no time and no disk.
        static func write(matrices: Int, isSparse: Bool, in folder: URL) throws -> String {
            var builder = ProgramBuilder()
            let size = SizeExpression(rows)
            let x = builder.input("x", .float32, [1, size])
            let total = builder.state("total", .float32, [1, size])
            let out = builder.output("out", .float32, [1, size])
            var hidden = x
            for index in 0..<matrices {
                let matrix = builder.hole("matrix\(index)", [rows, rows])
                let next = index == matrices - 1 ? out : builder.temporary(.float32, [1, size])
                builder.emit("linear", [hidden, matrix, nil], [next])
                hidden = next
            }
            builder.emit("add", [total, out], [total])
            var actions = FileActions()
            if isSparse {
                let write = actions.write
                actions.write = { descriptor, bytes, offset in
                    // The length of the file is set at the end, and nothing is written where nothing is.
                    bytes.allSatisfy { $0 == 0 } ? bytes.count : write(descriptor, bytes, offset)
                }
            }
            let path = folder.appending(path: "\(UUID().uuidString).statepack").path
            var writer = try BundleWriter(path: path, sections: [.program, .weights], actions: actions) {
                IncrementalDigest(update: { _ in }, finish: { [UInt8](repeating: 0, count: 32) })
            }
            try writer.begin(.program)
            try writer.append(builder.build().encoded())
            try writer.begin(.weights)
            let block = [UInt8](repeating: 0, count: 4 << 20)
            for _ in 0..<matrices * matrixBytes / block.count { try writer.append(block) }
            try writer.finish()
            return path
        }

        static func folder() throws -> URL {
            let folder = FileManager.default.temporaryDirectory.appending(path: UUID().uuidString)
            try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: false)
            return folder
        }

        static func step(_ function: InferenceFunction, _ total: inout NDArray) throws {
            let x = NDArray(scalars: [Float](repeating: 1, count: rows), shape: [1, rows])
            var views = InferenceFunction.MutableViews()
            views.insert(&total, for: "total")
            _ = try function.runSynchronously(inputs: ["x": x], states: views)
        }

        /// Of a file of /proc, whose length nobody knows beforehand.
        static func text(of path: String) throws -> String {
            guard let file = fopen(path, "r") else { throw Failure(step: "open \(path)") }
            defer { fclose(file) }
            var bytes: [UInt8] = []
            var block = [UInt8](repeating: 0, count: 1 << 16)
            while true {
                let count = fread(&block, 1, block.count, file)
                if count == 0 { return String(decoding: bytes, as: UTF8.self) }
                bytes += block[..<count]
            }
        }

        /// Bytes of the file's pages that this process maps: fields of its part of /proc/self/smaps, in bytes.
        static func mapping(of path: String) throws -> [String: Int] {
            var fields: [String: Int] = [:]
            var isFile = false
            for line in try text(of: "/proc/self/smaps").split(separator: "\n") {
                let words = line.split(separator: " ")
                guard let first = words.first, first.hasSuffix(":") else {
                    isFile = line.hasSuffix(path)
                    continue
                }
                if isFile, words.count == 3, let kilobytes = Int(words[1]) {
                    fields[String(first.dropLast()), default: 0] += kilobytes << 10
                }
            }
            if fields.isEmpty { throw Failure(step: "find \(path) among the mappings") }
            return fields
        }

        /// The most that the process had in memory.
        static func peakResidentBytes() throws -> Int {
            let status = try text(of: "/proc/self/status")
            guard let line = status.split(separator: "\n").first(where: { $0.hasPrefix("VmHWM:") }),
                let kilobytes = line.split(separator: " ").dropFirst().first.flatMap({ Int($0) })
            else { throw Failure(step: "read the peak") }
            return kilobytes << 10
        }

        @Test func openingReadsNoWeightsHoweverManyThereAre() async throws {
            let folder = try Self.folder()
            defer { try? FileManager.default.removeItem(at: folder) }
            let path = try Self.write(matrices: 64, isSparse: true, in: folder)
            let model = try AIModel(path: path)
            let function = try #require(try model.loadFunction(named: "main"))
            _ = try function.arenaByteCount()
            _ = try function.initialStates()
            let mapping = try Self.mapping(of: path)
            #expect(mapping["Size"]! > 1 << 30)
            #expect(mapping["Rss"]! < 1 << 20, "\(mapping)")
            withExtendedLifetime(model) {}
        }

        @Test func prefaultedWeightsAreInMemoryBeforeTheFirstRun() async throws {
            let folder = try Self.folder()
            defer { try? FileManager.default.removeItem(at: folder) }
            let path = try Self.write(matrices: 2, isSparse: false, in: folder)
            var options = SpecializationOptions(prefaultsWeights: true)
            let model = try await AIModel(contentsOf: URL(filePath: path), options: options)
            let mapping = try Self.mapping(of: path)
            #expect(mapping["Rss"]! >= 2 * Self.matrixBytes, "\(mapping)")
            #expect(mapping["Anonymous"] == 0, "\(mapping)")
            withExtendedLifetime(model) {}
            // A copy has them in memory anyway, and maps nothing.
            options.copyWeights = true
            let copied = try AIModel(path: path, options: options)
            #expect(copied.functionNames == ["main"])
            #expect(SpecializationOptions.default.prefaultsWeights == false)
        }

        @Test func anOpenModelTakesItsWeightsStatesAndArenaAndLittleMore() async throws {
            let folder = try Self.folder()
            defer { try? FileManager.default.removeItem(at: folder) }
            let path = try Self.write(matrices: 16, isSparse: false, in: folder)
            await #expect(processExitsWith: .success) { [path = path as String] in
                let before = Int(sp_resident_bytes())
                let model = try AIModel(path: path, options: SpecializationOptions(threadCount: 2))
                let function = try #require(try model.loadFunction(named: "main"))
                var total = try function.initialValue(ofState: "total")
                for _ in 0..<20 { try Self.step(function, &total) }
                let needed = try 16 * Self.matrixBytes + Self.rows * 4 + function.arenaByteCount()
                let growth = Int(sp_resident_bytes()) - before
                #expect(growth >= 16 * Self.matrixBytes, "not all weights were read: \(growth)")
                #expect(growth <= needed + 16 << 20 || sp_is_instrumented(), "\(growth) bytes more, \(needed) needed")
                // Opening and running took no more for a moment either.
                let peak = try Self.peakResidentBytes()
                #expect(peak <= before + needed + 32 << 20 || sp_is_instrumented(), "\(peak)")
            }
        }

        /// Two processes that run one file hold its weights once: each is charged for half of every page.
        @Test func twoProcessesShareTheirWeights() async throws {
            let folder = try Self.folder()
            defer { try? FileManager.default.removeItem(at: folder) }
            let path = try Self.write(matrices: 4, isSparse: false, in: folder)
            let model = try AIModel(path: path)
            let function = try #require(try model.loadFunction(named: "main"))
            var total = try function.initialValue(ofState: "total")
            try Self.step(function, &total)
            await #expect(processExitsWith: .success) { [path = path as String] in
                let model = try AIModel(path: path)
                let function = try #require(try model.loadFunction(named: "main"))
                var total = try function.initialValue(ofState: "total")
                try Self.step(function, &total)
                let mapping = try Self.mapping(of: path)
                #expect(mapping["Rss"]! >= 4 * Self.matrixBytes, "\(mapping)")
                #expect(mapping["Pss"]! <= mapping["Rss"]! * 6 / 10, "\(mapping)")
                #expect(mapping["Private_Dirty"] == 0 && mapping["Anonymous"] == 0, "\(mapping)")
                withExtendedLifetime(model) {}
            }
            let mapping = try Self.mapping(of: path)
            #expect(mapping["Private_Dirty"] == 0 && mapping["Anonymous"] == 0, "\(mapping)")
            try Self.step(function, &total)
        }
    }
#endif
