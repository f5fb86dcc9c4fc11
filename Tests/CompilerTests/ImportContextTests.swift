import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

/// Context rules and initial digests in exported.pb.
@Suite struct ImportContextTests {
    private func refusals(_ fixture: ExportedFixture) -> [Diagnostic] {
        let folder = TemporaryFolder()
        let path = folder.write(fixture.file(), to: "exported.pb")
        return diagnostics { _ = try importProgram(at: path) }.map {
            var diagnostic = $0
            diagnostic.location = diagnostic.location?.replacing(path, with: "x")
            return diagnostic
        }
    }

    @Test func readsContextRules() throws {
        var fixture = ExportedFixture()
        fixture.context = .init()
        let folder = TemporaryFolder()
        let imported = try importProgram(at: folder.write(fixture.file(), to: "exported.pb"))
        #expect(imported.program.functions[0].context == ContextRules(positions: 1, axes: [.init(state: 0, axis: 0)]))
        #expect(imported.program.text().hasSuffix("    context \"positions\" indexes \"cache\" axis 0\n}\n"))
        let plain = try importProgram(at: folder.write(ExportedFixture().file(), to: "plain.pb"))
        #expect(plain.program.functions[0].context == nil)
    }

    struct Fault: Sendable, CustomTestStringConvertible {
        var id: String
        var text: String
        var change: @Sendable (inout ExportedFixture) -> Void

        var testDescription: String { id }
    }

    static let faults: [Fault] = [
        .init(
            id: "positions out of range",
            text: """
                error[E0123]: the positions of the context are no input of the function
                  --> x, function `main`, context
                  expected: 0 to 1
                  found:    2
                """
        ) { $0.context?.positions = 2 },
        .init(
            id: "positions of 2^32 - 1",
            text: """
                error[E0123]: the positions of the context are no input of the function
                  --> x, function `main`, context
                  expected: 0 to 1
                  found:    4294967295
                """
        ) { $0.context?.positions = 4_294_967_295 },
        .init(
            id: "float positions",
            text: """
                error[E0123]: the positions of the context have the wrong scalar type
                  --> x, function `main`, context
                  expected: int32 or int64
                  found:    float32
                """
        ) { $0.context?.positions = 0 },
        .init(
            id: "no axes",
            text: """
                error[E0123]: the context names no state
                  --> x, function `main`, context
                  expected: one state or more
                  found:    none
                """
        ) { $0.context?.axes = [] },
        .init(
            id: "state out of range",
            text: """
                error[E0123]: the context names a state that the function does not use
                  --> x, function `main`, context
                  expected: 0
                  found:    1
                """
        ) { $0.context?.axes = [(1, 0)] },
        .init(
            id: "state that another function uses",
            text: """
                error[E0123]: the context names a state that the function does not use
                  --> x, function `main`, context
                  expected: 0
                  found:    1
                """
        ) {
            $0.states.append(.init(name: "other"))
            $0.context?.axes = [(1, 0)]
        },
        .init(
            id: "state twice",
            text: """
                error[E0123]: the context does not name each state once, in the order of the function
                  --> x, function `main`, context
                  expected: state cache
                  found:    `cache` after `cache`
                """
        ) { $0.context?.axes = [(0, 0), (0, 1)] },
        .init(
            id: "axis that the state does not have",
            text: """
                error[E0123]: the context names an axis that state `cache` does not have
                  --> x, function `main`, context
                  expected: 0 to 1
                  found:    2
                """
        ) { $0.context?.axes = [(0, 2)] },
        .init(
            id: "digest beside a splat",
            text: """
                error[E0110]: the digest of an initial value has the wrong length
                  --> x, state `cache`
                  expected: no digest beside one element
                  found:    32 bytes
                """
        ) { $0.states[0].digest = Array(repeating: 0, count: 32) },
        .init(
            id: "short digest",
            text: """
                error[E0110]: the digest of an initial value has the wrong length
                  --> x, state `cache`
                  expected: 32 bytes
                  found:    31 bytes
                """
        ) {
            startFromATensor(&$0)
            $0.states[0].digest.removeLast()
        },
        .init(
            id: "digest of other bytes",
            text: """
                error[E0108]: the initial value of a state does not have its declared digest
                  --> x, state `cache`
                  expected: \(String(repeating: "07", count: 32))
                  found:    \(hexadecimal(digest(of: initialBytes)))
                """
        ) {
            startFromATensor(&$0)
            $0.states[0].digest = Array(repeating: 7, count: 32)
        },
    ]

    @Test("One fault gives one finding", arguments: faults)
    func refuses(_ fault: Fault) {
        var fixture = ExportedFixture()
        fixture.context = .init()
        fault.change(&fixture)
        #expect(refusals(fixture).map(\.description) == [fault.text])
        #expect(refusals(fixture).allSatisfy { $0.code.exitCode == 3 })
    }

    // MARK: Initial digests

    static let initialBytes = (0..<128).map { UInt8($0) }

    static func digest(of bytes: [UInt8]) -> [UInt8] { bytes.withUnsafeBytes { SHA256Digest.of($0) } }

    private static func hexadecimal(_ bytes: [UInt8]) -> String {
        bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }

    private static func startFromATensor(_ fixture: inout ExportedFixture) {
        fixture.tensors.append(.init(name: "start", shape: [8, 4], data: initialBytes))
        fixture.states[0].splat = []
        fixture.states[0].tensor = 2
        fixture.states[0].digest = digest(of: initialBytes)
    }

    @Test func readsAnInitialTensorWithItsDigest() throws {
        var fixture = ExportedFixture()
        Self.startFromATensor(&fixture)
        let folder = TemporaryFolder()
        let state = try importProgram(at: folder.write(fixture.file(), to: "exported.pb")).program.states[0]
        #expect(state.initialValue == .tensor(1))
        #expect(state.initialDigest == Self.digest(of: Self.initialBytes))
    }

    /// The tensor is in the weights file: a digest that lies about it is found when the file is read, and only then.
    @Test func comparesDigestsOfTensorsInTheWeightsFile() throws {
        let weights = SafetensorsWriter.encode([
            .init(name: "start", scalarType: .float32, shape: [8, 4], bytes: Self.initialBytes)
        ])
        var fixture = ExportedFixture()
        Self.startFromATensor(&fixture)
        fixture.tensors[1].isInline = false
        fixture.tensors[1].data = []
        fixture.weightsFile = "w.safetensors"
        fixture.weightsLength = UInt64(weights.count)
        fixture.weightsDigest = Self.digest(of: weights)
        let folder = TemporaryFolder()
        folder.write(weights, to: "w.safetensors")
        _ = try importProgram(at: folder.write(fixture.file(), to: "good.pb"))
        fixture.states[0].digest[0] ^= 1
        let path = folder.write(fixture.file(), to: "lie.pb")
        #expect(diagnostics { _ = try importProgram(at: path) }.map(\.code) == [.digestMismatch])
        #expect(try importProgram(at: path, weights: .map).program.states[0].initialDigest == fixture.states[0].digest)
    }

    // MARK: Without weights

    @Test func readsTheProgramWithoutItsWeightsFile() throws {
        var fixture = ExportedFixture()
        fixture.tensors[0].isInline = false
        fixture.tensors[0].data = []
        fixture.weightsFile = "w.safetensors"
        fixture.weightsLength = 4 << 30
        fixture.weightsDigest = Array(repeating: 1, count: 32)
        let folder = TemporaryFolder()
        let path = folder.write(fixture.file(), to: "exported.pb")
        let imported = try importProgram(at: path, weights: .skip)
        #expect(imported.program.tensors[0].data == .weightsFile(name: "scale"))
        #expect(imported.weightsPath == folder.path + "/w.safetensors")
        let found = diagnostics { try imported.weights.withBytes(of: imported.program.tensors[0]) { _ in } }
        #expect(found.map(\.code) == [.weightsMismatch])
        // Nor is a file that is there looked at: it is not what the program declares.
        folder.write([1, 2, 3], to: "w.safetensors")
        #expect(try importProgram(at: path, weights: .skip).program == imported.program)
    }
}
