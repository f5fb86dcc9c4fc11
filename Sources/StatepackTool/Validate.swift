import Statepack
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// `validate`: checks a model file without PyTorch and says what holds.
///
/// Alone it checks everything. Once a check is named (`--descriptors`, `--checksums`, `--replay`) only those named are
/// done, and the report says what was left out. Budgets come on top of either; with `--strict`, which is for a release,
/// a named check leaves nothing out.
struct Validate {
    private let arguments: Arguments
    private let console: Console
    private let path: String
    private let scope: Scope

    /// What is read and done.
    struct Scope {
        /// Every byte is read and compared with checksums and digests.
        var checksums: Bool
        /// The recording is repeated, which needs the bytes to hold.
        var replay: Bool

        init(_ arguments: Arguments) throws(Diagnostic) {
            if arguments.has("replay"), arguments.has("no-replay") {
                throw Diagnostic(
                    .conflictingOptions, "--replay and --no-replay exclude each other", at: arguments.commandPath,
                    hint: "give one of them")
            }
            let isNamed =
                !arguments.has("strict") && ["descriptors", "checksums", "replay"].contains { arguments.has($0) }
            replay = arguments.has("replay") || !isNamed && !arguments.has("no-replay")
            checksums = replay || arguments.has("checksums") || !isNamed
        }
    }

    init(_ arguments: Arguments, _ console: Console) throws(Diagnostic) {
        self.arguments = arguments
        self.console = console
        path = arguments.operands[0]
        scope = try Scope(arguments)
    }

    func run() throws -> Int32 {
        var report = ValidationReport(file: path, isStrict: arguments.has("strict"))
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
            try check(MappedBundle(path: path), contract, &report)
        case .exportedProgram:
            report.kind = .exportedProgram
            try check(exportedProgram: path, contract, &report)
        }
    }

    private func compare(_ contract: Contract?, with found: Contract, _ report: inout ValidationReport) {
        guard let contract else { return }
        let differences = contract.differences(from: found)
        report.contract = differences.isEmpty ? .holds : .differs(differences)
        guard let file = arguments.value("descriptors") else { return }
        report.findings += differences.map {
            $0.finding(in: path, acceptedBy: "statepack describe \(path) -o \(file)", contract: file)
        }
    }

    // MARK: Exported programs

    private func check(exportedProgram path: String, _ contract: Contract?, _ report: inout ValidationReport) throws {
        let isBundleNeeded =
            scope.replay || !arguments.has("descriptors") || scope.checksums && arguments.has("strict")
        let imported = try importProgram(
            at: path, weights: scope.checksums ? .verify : isBundleNeeded ? .map : .skip)
        // Names and shapes are compared before anything is compiled, so that a contract that does not
        // hold is reported even when the program cannot be compiled.
        compare(contract, with: Contract(imported), &report)
        if scope.checksums { report.bytes = .hold }
        let compilation = Compilation(imported: imported)
        if isBundleNeeded {
            try check(temporaryBundle(of: compilation), nil, &report)
        } else if isPlanNeeded {
            let compiled = try Compiler().compile(imported.program)
            try check(
                Plan(
                    program: compiled.bundle, sources: imported.program.sources, recording: imported.recording), &report
            )
        }
    }

    /// The file is gone when this returns; its bytes stay as long as they are mapped. A process that is killed during
    /// the replay leaves nothing.
    private func temporaryBundle(of compilation: Compilation) throws -> MappedBundle {
        let folder = try TemporaryFolder()
        let path = folder.file("model.statepack")
        _ = try compilation.write(to: path)
        return try MappedBundle(path: path)
    }

    // MARK: Bundles

    private func check(_ bundle: MappedBundle, _ contract: Contract?, _ report: inout ValidationReport) throws {
        report.sections = bundle.sections.map { .init(name: $0.name, bytes: $0.length) }
        report.fileBytes = bundle.bytes.count
        report.count(bundle.program)
        if scope.checksums {
            let byteFindings = bundle.checksumFindings() + bundle.digestFindings(using: IncrementalDigest.sha256)
            if !byteFindings.isEmpty {
                // Nothing else means anything when the bytes are not those that were written.
                report.bytes = .damaged
                throw DiagnosticList(byteFindings)
            }
            report.bytes = .hold
        }
        compare(contract, with: Contract(bundle), &report)
        var recording: Recording?
        if !bundle.recording.isEmpty, scope.replay || report.isStrict {
            recording = try Recording(
                serialized: bundle.recording, path: self.path, skippingUnknownFields: bundle.isNewerMinorVersion)
        }
        if isPlanNeeded {
            try check(Plan(program: bundle.program, sources: bundle.sources, recording: recording), &report)
        }
        if report.isStrict, scope.checksums {
            report.areWeightsScanned = true
            report.findings += weightFindings(bundle.program, bytes: bundle.bytes(ofTensor:))
        }
        if scope.replay { try replay(recording, bundle, &report) }
    }

    private func replay(_ recording: Recording?, _ bundle: MappedBundle, _ report: inout ValidationReport) throws {
        guard let recording else {
            report.replay = .absent
            report.findings.append(
                Diagnostic(
                    .recordingAbsent, "the file carries no recording: nothing was replayed",
                    severity: report.isStrict ? .error : .warning, at: path,
                    hint: "export again without leaving the recording out"))
            return
        }
        var options = SpecializationOptions.default
        options.threadCount = arguments.integer("threads")
        let model = try AIModel(bundle, options: options)
        var functions: [String: InferenceFunction] = [:]
        for name in model.functionNames { functions[name] = try model.loadFunction(named: name) }
        let replay = Replayer.run(recording, functions: functions)
        report.replay = .done(replay)
        report.findings += replay.findings
    }

    // MARK: Checks of the plan

    /// A planned program without its weights.
    private struct Plan {
        var program: BundleProgram
        var sources: [String]
        var recording: Recording?
    }

    private var isPlanNeeded: Bool {
        ["strict", "memory-budget", "sessions", "concurrent-runs", "require-in-place", "max-step-copies"]
            .contains { arguments.has($0) }
    }

    private func check(_ plan: Plan, _ report: inout ValidationReport) throws {
        report.count(plan.program)
        if ["memory-budget", "sessions", "concurrent-runs"].contains(where: arguments.has) {
            let budget = try MemoryBudget(
                plan.program, sources: plan.sources, sessions: arguments.integer("sessions") ?? 1,
                concurrentRuns: arguments.integer("concurrent-runs") ?? 1, limit: arguments.byteCount("memory-budget"),
                threads: arguments.integer("threads"))
            report.budget = budget
            if let finding = budget.finding(at: path) { report.findings.append(finding) }
        }
        if arguments.has("require-in-place") { report.findings += inPlaceFindings(plan.program) }
        if let limit = arguments.byteCount("max-step-copies") {
            let copies = try StepCopies(plan.program, sources: plan.sources)
            report.copies = copies
            report.findings += copies.findings(limit: limit)
        }
        if report.isStrict {
            report.findings +=
                StrictChecks(
                    plan.program, sources: plan.sources, recording: plan.recording
                ).findings
        }
    }
}
