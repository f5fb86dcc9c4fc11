// Statepack's side of `make bench`: answers one line of JSON with one line of JSON, as every worker there does.
//
//     BenchmarkWorker model.statepack --threads 2
//
// benchmarks/README.md has the commands. A worker without a model only measures the machine's read bandwidth.

import Statepack

#if canImport(FoundationEssentials)
    import FoundationEssentials
    import Glibc
#else
    import Foundation
#endif

/// What the controller may ask.
struct Request: Decodable {
    var command: String
    var sequence: String?
    var tokens: [Int]?
    /// Tokens per run while a context is filled in.
    var block: Int?
    var count: Int?
    var streams: Int?
    var bytes: Int?
}

/// What it is told; absent fields are left out.
struct Answer: Encodable {
    var error: String?
    var facts: [String: String]?
    var milliseconds: [Double]?
    var tokens: [Int]?
    var cacheBytesPerPosition: Int?
    var capacity: Int?
    var bytesPerSecond: Double?
}

struct WorkerError: Error, CustomStringConvertible {
    var description: String

    init(_ description: String) { self.description = description }
}

@main
struct BenchmarkWorker {
    static func main() async {
        var path: String?
        var threads: Int?
        var rest = CommandLine.arguments.dropFirst()
        while let word = rest.popFirst() {
            if word == "--threads", let value = rest.popFirst().flatMap(Int.init), value > 0 {
                threads = value
            } else if path == nil, !word.hasPrefix("-") {
                path = word
            } else {
                print("usage: BenchmarkWorker [MODEL.STATEPACK] [--threads N]")
                exit(2)
            }
        }
        var worker = Worker(path: path, threads: threads)
        while let line = readLine() {
            var answer = Answer()
            do {
                answer = try await worker.answer(try JSONDecoder().decode(Request.self, from: Data(line.utf8)))
            } catch {
                answer.error = "\(error)"
            }
            let text = (try? JSONEncoder().encode(answer)) ?? Data(#"{"error": "the answer is not JSON"}"#.utf8)
            print(String(decoding: text, as: UTF8.self))
            fflush(nil)
        }
    }
}

/// The open model and its sequences.
struct Worker {
    let path: String?
    let threads: Int?
    private var function: InferenceFunction?
    private var sequences: [String: TokenSequence] = [:]
    private var readBuffer = ReadBuffer(byteCount: 0)

    init(path: String?, threads: Int?) {
        self.path = path
        self.threads = threads
    }

    mutating func answer(_ request: Request) async throws -> Answer {
        switch request.command {
        case "load": return try await load()
        case "fill": return try fill(request)
        case "step": return try step(request)
        case "prefill": return try prefill(request)
        case "bandwidth": return try bandwidth(request)
        default: throw WorkerError("unknown command \(request.command)")
        }
    }

    /// Opens the model and prepares its function: what has to happen before the first run.
    private mutating func load() async throws -> Answer {
        guard let path else { return Answer(milliseconds: []) }
        let begin = ContinuousClock.now
        var options = SpecializationOptions.default
        options.threadCount = threads
        let model = try await AIModel(contentsOf: URL(filePath: path), options: options)
        guard let name = model.functionNames.first, let function = try model.loadFunction(named: name) else {
            throw WorkerError("there is no function in \(path)")
        }
        let time = milliseconds(since: begin)
        self.function = function

        let caches = try TokenSequence(function).stateByteCount
        let capacity = function.descriptor.stateNames
            .compactMap { function.descriptor.contextRules?.capacity(ofState: $0) }.min()
        return Answer(
            facts: ["weights": "float32", "file": URL(filePath: path).lastPathComponent], milliseconds: [time],
            cacheBytesPerPosition: capacity.map { caches / $0 }, capacity: capacity)
    }

    /// A new sequence with these tokens in it; the answer has the token that follows.
    private mutating func fill(_ request: Request) throws -> Answer {
        let (name, tokens) = (request.sequence ?? "", request.tokens ?? [])
        guard let function, !tokens.isEmpty else { throw WorkerError("fill needs a model and tokens") }
        sequences[name] = nil
        var sequence = try TokenSequence(function)
        let block = max(1, request.block ?? tokens.count)
        for start in stride(from: 0, to: tokens.count, by: block) {
            try sequence.advance(Array(tokens[start..<min(start + block, tokens.count)]))
        }
        let next = sequence.lastToken
        sequences[name] = sequence
        return Answer(tokens: [next])
    }

    /// Single-token steps, each fed with what the one before found most likely.
    private mutating func step(_ request: Request) throws -> Answer {
        guard var sequence = sequences.removeValue(forKey: request.sequence ?? "") else {
            throw WorkerError("there is no sequence \(request.sequence ?? "")")
        }
        var answer = Answer(milliseconds: [], tokens: [])
        for _ in 0..<(request.count ?? 1) {
            let begin = ContinuousClock.now
            try sequence.step()
            answer.milliseconds?.append(milliseconds(since: begin))
            answer.tokens?.append(sequence.lastToken)
        }
        sequences[request.sequence ?? ""] = sequence
        return answer
    }

    /// All tokens in one run on a sequence of their own, which begins anew where memory for its states exists already.
    private mutating func prefill(_ request: Request) throws -> Answer {
        guard let function, let tokens = request.tokens else { throw WorkerError("prefill needs a model and tokens") }
        var sequence = try sequences.removeValue(forKey: "prefill") ?? TokenSequence(function)
        sequence.restart()
        let begin = ContinuousClock.now
        try sequence.advance(tokens)
        let time = milliseconds(since: begin)
        let next = sequence.lastToken
        sequences["prefill"] = sequence
        return Answer(milliseconds: [time], tokens: [next])
    }

    private mutating func bandwidth(_ request: Request) throws -> Answer {
        let byteCount = request.bytes ?? 0
        guard byteCount > 0, let streams = request.streams, streams == 1 || streams == 4 else {
            throw WorkerError("bandwidth needs bytes, and one stream or four")
        }
        if readBuffer.byteCount < byteCount { readBuffer = ReadBuffer(byteCount: byteCount) }
        let rate = readBuffer.bytesPerSecond(first: byteCount, streams: streams, threads: threads ?? 1)
        return Answer(bytesPerSecond: rate)
    }
}
