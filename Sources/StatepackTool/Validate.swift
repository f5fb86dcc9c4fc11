import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// `validate`: checks a model file without PyTorch and says what holds.
struct Validate {
    private let arguments: Arguments
    private let console: Console
    private let path: String

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
        path = arguments.operands[0]
    }

    func run() throws -> Int32 {
        var report = ValidationReport(file: path)
        do {
            try check(&report)
        } catch {
            report.findings += Tool.diagnostics(of: error)
        }
        for finding in report.findings { console.report(finding) }
        console.add(contentsOf: report.json)
        console.write(report.text)
        return DiagnosticList(report.findings).exitCode
    }

    private func check(_ report: inout ValidationReport) throws {
        let contract = try arguments.value("descriptors").map { try ContractFile.read($0) }
        switch ModelFileKind(path: path) {
        case .bundle:
            report.kind = .bundle
            try check(bundle: path, contract, &report)
        case .exportedProgram:
            report.kind = .exportedProgram
            // Names and shapes are compared before anything is compiled, so that a contract that does not
            // hold is reported even when the program cannot be compiled.
            let compilation = try Compilation(path: path)
            compare(contract, with: try Contract(compilation.imported), &report)
            let folder = try TemporaryFolder()
            let bundle = "\(folder.path)/model.statepack"
            _ = try compilation.write(to: bundle)
            try check(bundle: bundle, nil, &report)
        }
    }

    private func compare(_ contract: Contract?, with found: Contract, _ report: inout ValidationReport) {
        guard let contract else { return }
        let differences = contract.differences(from: found)
        report.contract = differences.isEmpty ? .holds : .differs(differences.count)
        report.findings += differences.map(\.finding)
    }

    private func check(bundle path: String, _ contract: Contract?, _ report: inout ValidationReport) throws {
        let bundle = try MappedBundle(path: path)
        report.sections = bundle.sections.map { .init(name: $0.name, bytes: $0.length) }
        report.fileBytes = bundle.bytes.count
        let byteFindings = bundle.checksumFindings() + bundle.digestFindings(using: IncrementalDigest.sha256)
        if !byteFindings.isEmpty {
            // Nothing else means anything when the bytes are not those that were written.
            report.bytesHold = false
            throw DiagnosticList(byteFindings)
        }
        report.bytesHold = true
        let program = bundle.program
        report.functions = program.functions.map(\.name)
        report.stateCount = program.states.count
        report.instructionCount = program.functions.reduce(0) { $0 + $1.instructions.count }
        compare(contract, with: Contract(bundle), &report)
        if arguments.has("no-replay") { return }
        if bundle.recording.isEmpty {
            report.replay = .absent
            report.findings.append(
                Diagnostic(
                    .recordingAbsent, "the file carries no recording: nothing was replayed", severity: .warning,
                    at: self.path, hint: "export again without leaving the recording out"))
            return
        }
        let recording = try Recording(serialized: bundle.recording, path: self.path)
        var options = SpecializationOptions.default
        options.threadCount = arguments.integer("threads")
        let model = try AIModel(bundle, options: options)
        var functions: [String: InferenceFunction] = [:]
        for name in model.functionNames { functions[name] = try model.loadFunction(named: name) }
        let replay = Replayer.run(recording, functions: functions)
        report.replay = .done(replay)
        report.findings += replay.findings
    }
}

/// Everything that `validate` found, for people and as JSON.
struct ValidationReport {
    enum Kind: String {
        case bundle
        case exportedProgram
    }

    enum ContractResult {
        case notCompared
        case holds
        case differs(Int)
    }

    enum Replay {
        case notDone
        case absent
        case done(ReplayReport)
    }

    struct Section {
        var name: String
        var bytes: Int
    }

    var file: String
    var kind: Kind?
    /// Of the bundle: the file itself, or what the exported program was compiled to. So are the sections.
    var fileBytes = 0
    var sections: [Section] = []
    /// Nil until checksums and digests were compared.
    var bytesHold: Bool?
    var functions: [String] = []
    var stateCount = 0
    var instructionCount = 0
    var contract = ContractResult.notCompared
    var replay = Replay.notDone
    var findings: [Diagnostic] = []

    init(file: String) { self.file = file }

    private var errorCount: Int { findings.count { $0.severity == .error } }

    var text: String {
        var table = TextTable()
        if bytesHold == true {
            // The importer has compared the digests of an exported program before anything else.
            table.add(
                "bytes",
                kind == .exportedProgram
                    ? "digests hold; compiled to a temporary bundle of \(byteText(fileBytes))"
                    : "\(counted(sections.count, "section")), \(byteText(fileBytes)): checksums and SHA-256 hold")
            table.add(
                "program",
                "\(counted(functions.count, "function")) (\(functions.joined(separator: ", "))), "
                    + "\(counted(stateCount, "state")), \(counted(instructionCount, "instruction"))")
        }
        switch contract {
        case .notCompared: if bytesHold == true { table.add("contract", "not compared (--descriptors compares one)") }
        case .holds: table.add("contract", "holds")
        case .differs(let count): table.add("contract", counted(count, "difference"))
        }
        switch replay {
        case .notDone: if bytesHold == true { table.add("replay", "not done") }
        case .absent: table.add("replay", "not possible: the file carries no recording")
        case .done(let replay):
            table.add("replay", "\(counted(replay.replays, "replay")), \(counted(replay.steps, "step"))")
            for tensor in replay.tensors {
                let verdict = tensor.holds ? "within tolerance" : "fails at \(tensor.firstFailingStepText)"
                table.add(
                    "",
                    "\(tensor.role.rawValue) \(tensor.name): \(verdict), worst difference "
                        + "\(shortText(tensor.worstDifference)) (\(shortText(tensor.worstRatio)) of what is allowed)")
            }
            table.add(
                "reset",
                replay.resetEqualsFresh
                    ? "two sequences in turns, from fresh states, repeat the run byte for byte"
                    : "two sequences in turns give other bytes")
        }
        table.add("verdict", errorCount == 0 ? "holds" : counted(errorCount, "finding"))
        return table.lines(indent: "").joined(separator: "\n") + "\n"
    }

    var json: JSONValue {
        let contractText: String =
            switch contract {
            case .notCompared: "not compared"
            case .holds: "holds"
            case .differs: "differs"
            }
        let replayValue: JSONValue =
            switch replay {
            case .notDone: ["status": "not done"]
            case .absent: ["status": "no recording"]
            case .done(let replay):
                [
                    "status": .string(replay.findings.contains { $0.severity == .error } ? "differs" : "holds"),
                    "replays": .integer(replay.replays), "steps": .integer(replay.steps),
                    "resetEqualsFresh": .bool(replay.resetEqualsFresh),
                    "tensors": .array(replay.tensors.map(\.json)),
                ]
            }
        return [
            "file": .string(file),
            "kind": kind.map { .string($0.rawValue) } ?? .null,
            "holds": .bool(errorCount == 0),
            "bytes": [
                "hold": bytesHold.map { .bool($0) } ?? .null, "bundleLength": .integer(fileBytes),
                "sections": .array(sections.map { ["name": .string($0.name), "bytes": .integer($0.bytes)] }),
            ],
            "program": [
                "functions": .strings(functions), "states": .integer(stateCount),
                "instructions": .integer(instructionCount),
            ],
            "contract": .string(contractText),
            "replay": replayValue,
        ]
    }
}

extension ReplayReport.Tensor {
    var holds: Bool { firstFailure == nil && disturbed == nil && moved == nil }

    fileprivate var firstFailingStep: (replay: Int, step: Int)? {
        [firstFailure, disturbed.map { ($0.replay, $0.step) }, moved.map { ($0.replay, $0.step) }]
            .compactMap { $0 }.min { $0 < $1 }
    }

    fileprivate var firstFailingStepText: String {
        firstFailingStep.map { "replay \($0.replay), step \($0.step)" } ?? ""
    }

    fileprivate var json: JSONValue {
        [
            "function": .string(function), "role": .string(role.rawValue), "name": .string(name),
            "comparedElements": .integer(comparedElements), "worstDifference": .number(worstDifference),
            "worstRatio": .number(worstRatio), "absolute": .number(tolerance.absolute),
            "relative": .number(tolerance.relative), "holds": .bool(holds),
            "firstFailingStep": firstFailingStep.map { ["replay": .integer($0.replay), "step": .integer($0.step)] }
                ?? .null,
        ]
    }
}

extension Diagnostic {
    /// The fields of a diagnostic as JSON; absent ones are left out.
    var json: JSONValue {
        [
            "code": .string(code.rawValue), "severity": .string(severity.rawValue), "message": .string(message),
            "location": location.map { .string($0) }, "expected": expected.map { .string($0) },
            "found": found.map { .string($0) }, "hint": hint.map { .string($0) },
        ]
    }
}
