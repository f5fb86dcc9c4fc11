import StatepackBundle
import StatepackDiagnostics

/// Everything that `validate` found, for people and as JSON (`schemas/validate-report.schema.json`).
struct ValidationReport {
    enum Kind: String {
        case bundle
        case exportedProgram
    }

    enum Bytes: String {
        case notCompared
        case hold
        case damaged
    }

    enum ContractResult {
        case notCompared
        case holds
        case differs([ContractDifference])
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

    struct Program {
        var functions: [String]
        var stateCount: Int
        var instructionCount: Int
    }

    var file: String
    var isStrict: Bool
    var kind: Kind?
    /// Of the bundle: the file itself, or what the exported program was compiled to. So are the sections.
    var fileBytes = 0
    var sections: [Section] = []
    var bytes = Bytes.notCompared
    /// Nil until a plan was read or made.
    var program: Program?
    var contract = ContractResult.notCompared
    var budget: MemoryBudget?
    var copies: StepCopies?
    var areWeightsScanned = false
    var replay = Replay.notDone
    var findings: [Diagnostic] = []

    init(file: String, isStrict: Bool) {
        self.file = file
        self.isStrict = isStrict
    }

    mutating func count(_ program: BundleProgram) {
        self.program = Program(
            functions: program.functions.map(\.name), stateCount: program.states.count,
            instructionCount: program.functions.reduce(0) { $0 + $1.instructions.count })
    }

    private var errorCount: Int { findings.count { $0.severity == .error } }

    /// What a report that holds does not speak for.
    private var notChecked: [String] {
        var list: [String] = []
        if bytes == .notCompared { list.append("checksums") }
        if case .notCompared = contract { list.append("contract") }
        switch replay {
        case .notDone: list.append("replay")
        case .absent: list.append("replay (no recording)")
        case .done: break
        }
        if isStrict, !areWeightsScanned { list.append("NaN and infinity in weights") }
        return list
    }

    // MARK: Text

    var text: String {
        var table = TextTable()
        if bytes == .hold {
            // The importer has compared the digests of an exported program before anything else.
            table.add(
                "bytes",
                kind == .exportedProgram
                    ? "digests hold"
                        + (fileBytes > 0 ? "; compiled to a temporary bundle of \(byteText(fileBytes))" : "")
                    : "\(counted(sections.count, "section")), \(byteText(fileBytes)): checksums and SHA-256 hold")
        }
        if bytes == .damaged { table.add("bytes", "damaged") }
        if let program, bytes != .damaged {
            table.add(
                "program",
                "\(counted(program.functions.count, "function")) (\(program.functions.joined(separator: ", "))), "
                    + "\(counted(program.stateCount, "state")), "
                    + counted(program.instructionCount, "instruction"))
        }
        switch contract {
        case .notCompared: break
        case .holds: table.add("contract", "holds")
        case .differs(let differences):
            let counts = ContractDifference.Class.allCases.compactMap { kind -> String? in
                let count = differences.count { $0.class == kind }
                return count == 0 ? nil : "\(count) \(kind.rawValue)"
            }
            table.add(
                "contract", "\(counted(differences.count, "difference")): \(counts.joined(separator: ", "))")
        }
        budget?.add(to: &table)
        copies?.add(to: &table)
        if case .done(let replay) = replay { add(replay, to: &table) }
        if isStrict {
            let codes = Set(findings.lazy.filter { $0.code.isStrict }.map(\.code))
            table.add(
                "strict",
                codes.isEmpty ? "nothing found" : codes.map(\.rawValue).sorted().joined(separator: ", "))
        }
        if bytes != .damaged, !notChecked.isEmpty, program != nil || kind == .exportedProgram {
            table.add("unchecked", notChecked.joined(separator: ", "))
        }
        table.add("verdict", errorCount == 0 ? "holds" : counted(errorCount, "finding"))
        return table.lines(indent: "").joined(separator: "\n") + "\n"
    }

    private func add(_ replay: ReplayReport, to table: inout TextTable) {
        table.add("replay", "\(counted(replay.replays, "replay")), \(counted(replay.steps, "step"))")
        for tensor in replay.tensors {
            let verdict = tensor.holds ? "within tolerance" : "fails at \(tensor.firstFailingStepText)"
            table.add(
                "",
                "\(tensor.role.rawValue) \(tensor.name): \(verdict), worst difference "
                    + "\(shortText(tensor.worstDifference)) (\(shortText(tensor.worstRatio)) of what is allowed)")
        }
        table.add("isolation", "a reset equals a fresh start: \(replay.isolation.reset.text)")
        table.add("", "two sequences in turns: \(replay.isolation.interleaved.text)")
        table.add("", "replays in reverse order: \(replay.isolation.order.text)")
    }

    // MARK: JSON

    /// The console adds the command's name before, and exit code and findings after these members.
    var json: JSONValue {
        [
            "file": .string(file),
            "kind": kind.map { .string($0.rawValue) } ?? .null,
            "holds": .bool(errorCount == 0),
            "notChecked": .strings(notChecked),
            "bytes": [
                "status": .string(bytes.rawValue), "bundleLength": .integer(fileBytes),
                "sections": .array(sections.map { ["name": .string($0.name), "bytes": .integer($0.bytes)] }),
            ],
            "program": program.map {
                [
                    "functions": .strings($0.functions), "states": .integer($0.stateCount),
                    "instructions": .integer($0.instructionCount),
                ]
            } ?? .null,
            "contract": contractJSON,
            "memory": budget?.json,
            "stepCopies": copies?.json,
            "replay": replayJSON,
        ]
    }

    private var contractJSON: JSONValue {
        switch contract {
        case .notCompared: ["status": "notCompared", "differences": []]
        case .holds: ["status": "holds", "differences": []]
        case .differs(let differences):
            [
                "status": "differs",
                "differences": .array(
                    differences.map {
                        [
                            "class": .string($0.class.rawValue), "change": .string($0.change.rawValue),
                            "code": .string($0.diagnostic.code.rawValue),
                            "location": $0.diagnostic.location.map { .string($0) },
                            "expected": $0.diagnostic.expected.map { .string($0) },
                            "found": $0.diagnostic.found.map { .string($0) },
                        ]
                    }),
            ]
        }
    }

    private var replayJSON: JSONValue {
        switch replay {
        case .notDone: ["status": "notDone"]
        case .absent: ["status": "noRecording"]
        case .done(let replay):
            [
                "status": .string(replay.findings.contains { $0.severity == .error } ? "differs" : "holds"),
                "replays": .integer(replay.replays), "steps": .integer(replay.steps),
                "isolation": [
                    "reset": replay.isolation.reset.json, "interleaved": replay.isolation.interleaved.json,
                    "order": replay.isolation.order.json,
                ],
                "tensors": .array(replay.tensors.map(\.json)),
            ]
        }
    }
}

extension Isolation.Outcome {
    fileprivate var json: JSONValue {
        switch self {
        case .notDone(let reason): ["status": "notDone", "reason": .string(reason)]
        case .holds: ["status": "holds"]
        case .differs: ["status": "differs"]
        }
    }
}

extension Diagnostic.Code {
    /// Raised by `--strict` alone.
    fileprivate var isStrict: Bool {
        [
            .stateNeverRead, .stateNeverWritten, .stateNotRecorded, .inputUnused, .outputIsState, .boundNotRecorded,
            .weightNotFinite, .float64Left, .contextUndeclared,
        ].contains(self)
    }
}

extension ReplayReport.Tensor {
    var holds: Bool { firstFailure == nil && disturbed == nil && moved == nil }

    private var firstFailingStep: (replay: Int, step: Int)? {
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
