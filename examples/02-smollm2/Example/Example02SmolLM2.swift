// Greedy decoding with a chat model whose layers' caches are stacked into two states.
//
//     swift run -c release Example02SmolLM2 model.statepack --prompt-tokens 1,2,3 --max-tokens 32 --timings

import Statepack

#if canImport(FoundationEssentials)
    import FoundationEssentials
    import Glibc
#else
    import Foundation
#endif

/// One conversation: its caches and how many positions they hold.
struct Conversation {
    private let function: InferenceFunction
    private var keyCache: NDArray
    private var valueCache: NDArray
    private(set) var position = 0

    init(_ function: InferenceFunction) throws {
        self.function = function
        keyCache = try function.initialValue(ofState: "keyCache")
        valueCache = try function.initialValue(ofState: "valueCache")
        guard keyCache.shape.count == 5 else {
            throw ExampleError("this is not the model of example 02: keyCache has the shape \(keyCache.shape)")
        }
    }

    /// Positions that fit: the fourth axis of [layers, batch, heads, positions, head size].
    var capacity: Int { keyCache.shape[3] }

    /// Feeds tokens, a prompt or a single one, and returns the most likely next token.
    mutating func advance(_ tokens: [Int]) async throws -> Int {
        let nextTokens = NDArray(scalars: tokens.map(Int64.init), shape: [1, tokens.count])
        let positions = NDArray(
            scalars: (position..<position + tokens.count).map(Int64.init), shape: [1, tokens.count])

        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(&keyCache, for: "keyCache")
        stateViews.insert(&valueCache, for: "valueCache")
        var outputs = try await function.run(
            inputs: ["input_ids": nextTokens, "position_ids": positions],
            states: stateViews
        )

        position += tokens.count
        guard let logits = outputs.remove("logits")?.ndArray else { throw ExampleError("there is no output logits") }
        // The function returns the logits of the last position only.
        let view = logits.view(as: Float.self)
        guard let scores = view.contiguousElements else { throw ExampleError("the logits are not contiguous") }
        var best = 0
        for index in scores.indices where scores[index] > scores[best] { best = index }
        return best
    }
}

struct ExampleError: Error, CustomStringConvertible {
    var description: String

    init(_ description: String) { self.description = description }
}

/// What the command line asks for.
struct Options {
    static let usage = """
        usage: Example02SmolLM2 MODEL.STATEPACK --prompt-tokens IDS [options]

          --prompt-tokens IDS    1,2,3, or a JSON file: {"tokens": [1, 2, 3]}
          --max-tokens N         tokens to generate at most (default: 64)
          --stop-token ID        stop behind this token (default: 2, the end of a message)
          --output-tokens FILE   write the generated ids there, in the same form
          --threads N            threads to compute with (default: what the machine allows)
          --timings              measure prefill, and decoding at a context of 128
        """

    var model = ""
    var prompt: [Int] = []
    var maxTokens = 64
    var stopToken = 2
    var output: String?
    var threads: Int?
    var measures = false

    init(_ arguments: [String]) throws {
        var rest = arguments[...]
        func value(_ option: String) throws -> String {
            guard let value = rest.popFirst() else { throw ExampleError("\(option) needs a value\n\n\(Self.usage)") }
            return value
        }
        func number(_ option: String) throws -> Int {
            let text = try value(option)
            guard let number = Int(text), number >= 0 else { throw ExampleError("\(option) \(text): not a number") }
            return number
        }
        while let word = rest.popFirst() {
            switch word {
            case "--prompt-tokens": prompt = try Self.tokens(value(word))
            case "--max-tokens": maxTokens = try number(word)
            case "--stop-token": stopToken = try number(word)
            case "--output-tokens": output = try value(word)
            case "--threads": threads = try number(word)
            case "--timings": measures = true
            case _ where word.hasPrefix("-") || !model.isEmpty:
                throw ExampleError("unexpected \(word)\n\n\(Self.usage)")
            default: model = word
            }
        }
        if model.isEmpty || prompt.isEmpty { throw ExampleError(Self.usage) }
    }

    /// A list on the command line, or a JSON file whose first array holds the ids, as tokens.py writes it.
    private static func tokens(_ text: String) throws -> [Int] {
        if text.allSatisfy({ $0.isNumber || $0 == "," }) { return try numbers(text[...], text) }
        let file = String(decoding: try Data(contentsOf: URL(filePath: text)), as: UTF8.self)
        guard let start = file.firstIndex(of: "["), let end = file[start...].firstIndex(of: "]") else {
            throw ExampleError("there is no array in \(text)")
        }
        return try numbers(file[file.index(after: start)..<end], text)
    }

    private static func numbers(_ list: Substring, _ source: String) throws -> [Int] {
        let words = list.split { ", \n\t\r".contains($0) }
        let tokens = words.compactMap { Int($0) }
        guard tokens.count == words.count, !tokens.isEmpty else { throw ExampleError("no token ids in \(source)") }
        return tokens
    }
}

@main
struct Example02SmolLM2 {
    static func main() async {
        do {
            try await run(Options(Array(CommandLine.arguments.dropFirst())))
        } catch {
            print("\(error)")
            exit(1)
        }
    }

    static func run(_ options: Options) async throws {
        var specialization = SpecializationOptions.default
        specialization.threadCount = options.threads
        let model = try await AIModel(contentsOf: URL(filePath: options.model), options: specialization)
        guard let function = try model.loadFunction(named: "main") else {
            throw ExampleError("there is no function main")
        }

        let tokens = try await generate(function, options)
        print("tokens: \(tokens.map(String.init).joined(separator: " "))")
        if let path = options.output {
            let text = "{\"tokens\": [\(tokens.map(String.init).joined(separator: ", "))]}\n"
            try Data(text.utf8).write(to: URL(filePath: path), options: .atomic)
        }
        if options.measures { try await measure(function, options.prompt) }
    }

    /// The prompt at once, then one token after the other, until the model stops or the caches are full.
    static func generate(_ function: InferenceFunction, _ options: Options) async throws -> [Int] {
        var conversation = try Conversation(function)
        guard options.prompt.count <= conversation.capacity else {
            throw ExampleError(
                "\(options.prompt.count) prompt tokens do not fit into \(conversation.capacity) positions")
        }
        var tokens = [try await conversation.advance(options.prompt)]
        while tokens.count < options.maxTokens, tokens.last != options.stopToken,
            conversation.position < conversation.capacity
        {
            tokens.append(try await conversation.advance([tokens[tokens.count - 1]]))
        }
        return tokens
    }

    /// Prefill of 112 tokens, then 32 steps around a context of 128: medians, for one slow step says nothing.
    static func measure(_ function: InferenceFunction, _ prompt: [Int]) async throws {
        let tokens = (0..<112).map { prompt[$0 % prompt.count] }
        let clock = ContinuousClock()
        var prefills: [Duration] = []
        var steps: [Duration] = []
        for round in 0..<3 {
            var conversation = try Conversation(function)
            var token = 0
            prefills.append(try await clock.measure { token = try await conversation.advance(tokens) })
            // Only the last round counts: the ones before warm up caches and frequencies.
            for _ in 0..<(round == 2 ? 32 : 8) {
                let next = token
                let time = try await clock.measure { token = try await conversation.advance([next]) }
                if round == 2 { steps.append(time) }
            }
        }
        let prefill = milliseconds(prefills.sorted()[prefills.count / 2])
        let step = milliseconds(steps.sorted()[steps.count / 2])
        print("")
        print("| measured                        | ms     | tokens/s |")
        print("|---------------------------------|--------|----------|")
        print("| prefill of 112 tokens           | \(cell(prefill, 6)) | \(cell(112_000 / prefill, 8)) |")
        print("| one token at context 112 to 143 | \(cell(step, 6)) | \(cell(1000 / step, 8)) |")
    }

    static func milliseconds(_ duration: Duration) -> Double {
        Double(duration.components.seconds) * 1000 + Double(duration.components.attoseconds) / 1e15
    }

    /// One digit after the point, aligned to the right.
    static func cell(_ value: Double, _ width: Int) -> String {
        let tenths = Int((value * 10).rounded())
        let text = "\(tenths / 10).\(tenths % 10)"
        return String(repeating: " ", count: max(0, width - text.count)) + text
    }
}
