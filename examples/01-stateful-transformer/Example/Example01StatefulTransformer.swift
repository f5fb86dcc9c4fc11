// Several sequences on one model: each owns its caches, the function owns nothing.
//
//     swift run -c release Example01StatefulTransformer model.statepack

import Statepack

#if canImport(FoundationEssentials)
    import FoundationEssentials
    import Glibc
#else
    import Foundation
#endif

/// One sequence: its two caches, and how many of their rows are filled.
struct Sequence {
    private let function: InferenceFunction
    private var keyCache: NDArray
    private var valueCache: NDArray
    private(set) var position = 0

    init(_ function: InferenceFunction) throws {
        self.function = function
        keyCache = try function.initialValue(ofState: "keyCache")
        valueCache = try function.initialValue(ofState: "valueCache")
    }

    /// Rows that fit: the second axis of [layers, positions, hidden].
    var capacity: Int { keyCache.shape[1] }

    /// Feeds rows of features at the next positions and returns the logits of the last one.
    ///
    /// A call that throws leaves caches and position as they were.
    mutating func advance(_ rows: [[Float]]) async throws -> [Float] {
        let hidden = rows[0].count
        let nextFeatures = NDArray(scalars: rows.joined(), shape: [1, rows.count, hidden])
        let positions = NDArray(scalars: (position..<position + rows.count).map(Int64.init), shape: [rows.count])

        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(&keyCache, for: "keyCache")
        stateViews.insert(&valueCache, for: "valueCache")
        var outputs = try await function.run(
            inputs: ["features": nextFeatures, "position_ids": positions],
            states: stateViews
        )

        position += rows.count
        guard let logits = outputs.remove("logits")?.ndArray else { throw ExampleError("there is no output logits") }
        let view = logits.view(as: Float.self)
        return (0..<hidden).map { view[scalarAt: [0, rows.count - 1, $0]] }
    }
}

struct ExampleError: Error, CustomStringConvertible {
    var description: String

    init(_ description: String) { self.description = description }
}

/// Made-up features, the same in every run: row `step` of the sequence called `name`.
func features(_ name: Character, _ step: Int, count: Int) -> [Float] {
    var state = UInt64(name.asciiValue ?? 0) << 32 | UInt64(step)
    return (0..<count).map { _ in
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        return Float(Int64(bitPattern: state) >> 40) / Float(1 << 23)
    }
}

@main
struct Example01StatefulTransformer {
    static func main() async {
        guard CommandLine.arguments.count == 2 else {
            print("usage: Example01StatefulTransformer model.statepack")
            exit(2)
        }
        do {
            try await run(CommandLine.arguments[1])
        } catch {
            print("\(error)")
            exit(1)
        }
    }

    static func run(_ path: String) async throws {
        let model = try await AIModel(contentsOf: URL(filePath: path))
        guard let function = try model.loadFunction(named: "main"),
            case .ndArray(let descriptor)? = function.descriptor.inputDescriptor(of: "features")
        else { throw ExampleError("there is no function main with an input features") }
        let hidden = descriptor.shape[2]
        for name in function.descriptor.stateNames {
            guard case .ndArray(let state)? = function.descriptor.stateDescriptor(of: name) else { continue }
            print("state \(name): \(state.shape) \(state.scalarType)")
        }

        // Each sequence on its own first.
        let steps = 16
        var alone: [Character: [[Float]]] = [:]
        for name in ["A", "B"] as [Character] {
            var sequence = try Sequence(function)
            for step in 0..<steps {
                alone[name, default: []].append(try await sequence.advance([features(name, step, count: hidden)]))
            }
        }

        // Then both in turns. Their caches are different arrays, so neither can see the other.
        var a = try Sequence(function)
        var b = try Sequence(function)
        for step in 0..<steps {
            let logitsA = try await a.advance([features("A", step, count: hidden)])
            let logitsB = try await b.advance([features("B", step, count: hidden)])
            guard logitsA == alone["A"]![step] else { throw ExampleError("A was disturbed at step \(step)") }
            guard logitsB == alone["B"]![step] else { throw ExampleError("B was disturbed at step \(step)") }
        }
        print("A and B in turns: \(steps) steps each, every logit as when they run alone")
        print("A: position \(a.position) of \(a.capacity)")

        // Several rows at once: a prompt, whose last row then has the logits of 16 single steps (but for rounding).
        var prompt = try Sequence(function)
        let logits = try await prompt.advance((0..<steps).map { features("A", $0, count: hidden) })
        let difference = zip(logits, alone["A"]![steps - 1]).map { abs($0 - $1) }.max() ?? 0
        guard difference < 1e-4 else { throw ExampleError("the prompt differs by \(difference)") }
        print("prompt of \(steps) rows in one call: position \(prompt.position) of \(prompt.capacity)")

        // To the end of the caches, and one step too far.
        while prompt.position < prompt.capacity {
            _ = try await prompt.advance([features("A", prompt.position, count: hidden)])
        }
        print("filled: position \(prompt.position) of \(prompt.capacity)")
        do {
            _ = try await prompt.advance([features("A", prompt.position, count: hidden)])
            throw ExampleError("a full cache took one more row")
        } catch let error as StatepackError {
            print("one step too far is refused, and the caches are as they were:")
            print(error)
        }
    }
}
