import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics

/// `convert`: compiles an exported program into a bundle.
struct Convert {
    private let arguments: Arguments
    private let console: Console
    private let input: String

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
        input = arguments.operands[0]
    }

    func run() throws -> Int32 {
        let start = ContinuousClock.now
        let options = try compileOptions()
        try refuseWhatListingIgnores()
        if ModelFileKind.startsAsBundle(input) {
            throw Diagnostic(
                .notAnExportedProgram, "the file is a bundle already", at: input,
                expected: "an exported.pb", found: "a bundle",
                hint: "pass the exported.pb that it was made from, or check the bundle with validate")
        }
        let output = arguments.value("output") ?? Self.defaultOutput(for: input)
        try refuseOverwriting(output)
        let compilation = try Compilation(path: input)
        let results = Results(console)
        defer { results.print() }
        do {
            return try run(compilation, output, options, results, since: start)
        } catch {
            // Damaged weights are the only finding; what was found out about the program meanwhile means nothing.
            do { try compilation.imported.verification?.wait() } catch {
                results.discard()
                throw error
            }
            throw error
        }
    }

    private func run(
        _ imported: Compilation, _ output: String, _ options: CompileOptions, _ results: Results,
        since start: ContinuousClock.Instant
    ) throws -> Int32 {
        var compilation = imported
        if let weights = compilation.imported.weightsPath {
            try OutputFile.refuseOverwriting([weights], by: output, option: "--output")
            if let report = arguments.value("report") {
                try OutputFile.refuseOverwriting([weights], by: report, option: "--report")
            }
        }
        if arguments.has("list-ops") {
            try compilation.imported.verification?.wait()
            return listOperators(of: compilation.imported)
        }
        if let names = arguments.value("state-names") {
            try compilation.imported.renameStates(
                names.split(separator: ",", omittingEmptySubsequences: false).map(String.init))
        }
        if let recording = compilation.imported.recording {
            let findings = recording.namesMissing(in: compilation.imported.program, file: input)
            if !findings.isEmpty { throw DiagnosticList(findings) }
        }
        if let path = arguments.value("descriptors") {
            let differences = try ContractFile.read(path).differences(from: Contract(compilation.imported))
            if !differences.isEmpty { throw DiagnosticList(differences.map(\.finding)) }
        }
        var report: PendingOutput?
        let progress = Progress(console, verb: "converting", isWanted: arguments.has("progress"))
        defer { progress.end() }
        let compiled = try compilation.write(
            to: output, options: options,
            dump: { pass, text in
                results.add { console in
                    console.write(text.hasSuffix("\n") ? text : text + "\n")
                    console.add("dump", ["pass": .string(pass), "text": .string(text)])
                }
            },
            beforeWriting: { compiled in
                results.add { console in
                    for warning in compiled.report.warnings { console.report(warning) }
                }
                if console.format == .json {
                    // The document has an end of its own for the warnings.
                    let report = reportJSON(compiled, compilation.imported).objectValue ?? []
                    let members = report.filter { $0.key != "convert" && $0.key != "warnings" }
                    results.add { $0.add(contentsOf: .object(members)) }
                }
                if let path = arguments.value("report") {
                    // Complete on disk before the bundle gets its name, so that neither comes without the other.
                    report = try PendingOutput(reportJSON(compiled, compilation.imported).text, for: path)
                }
            },
            progress: progress.show, beforeNaming: { progress.show("flushing to the disk") })
        try report?.commit()
        progress.end()
        results.print()
        console.add("output", .string(output))
        if !arguments.has("dump-ir-after") {
            console.write(summary(compiled, output, ContinuousClock.now - start))
        }
        return 0
    }

    /// What is to be printed once the weights are known to be good.
    private final class Results {
        private let console: Console
        private var actions: [(Console) -> Void] = []

        init(_ console: Console) { self.console = console }

        func add(_ action: @escaping (Console) -> Void) { actions.append(action) }

        func print() {
            for action in actions { action(console) }
            discard()
        }

        func discard() { actions = [] }
    }

    /// `exported.pb` → `exported.statepack` in the same folder.
    static func defaultOutput(for input: String) -> String {
        let nameStart = input.lastIndex(of: "/").map { input.index(after: $0) } ?? input.startIndex
        let name = input[nameStart...]
        let stem = name.lastIndex(of: ".").map { $0 == name.startIndex ? name : name[..<$0] } ?? name
        return "\(input[..<nameStart])\(stem).statepack"
    }

    private func compileOptions() throws -> CompileOptions {
        var options = CompileOptions(requireInPlace: arguments.has("require-in-place"))
        if let pass = arguments.value("dump-ir-after") {
            try require(pass, among: Compiler.dumpablePasses, option: "--dump-ir-after")
            options.dumpAfter = [pass]
        }
        for name in arguments.all("no-fuse") {
            try require(name, among: FuseOps.fusions + ["all"], option: "--no-fuse")
            options.noFuse.formUnion(name == "all" ? FuseOps.fusions : [name])
        }
        return options
    }

    /// `--list-ops` compiles nothing and writes nothing.
    private func refuseWhatListingIgnores() throws {
        guard arguments.has("list-ops") else { return }
        let ignored = [
            "output", "state-names", "descriptors", "report", "require-in-place", "no-fuse", "dump-ir-after",
            "progress",
        ]
        let given = ignored.filter { arguments.has($0) }.map { "--\($0)" }
        if given.isEmpty { return }
        throw Diagnostic(
            .conflictingOptions, "--list-ops prints the operators and does nothing else", at: arguments.commandPath,
            expected: "--list-ops alone", found: given.joined(separator: ", "),
            hint: "leave out --list-ops, or the other options")
    }

    private func require(_ word: String, among choices: [String], option: String) throws {
        if choices.contains(word) { return }
        throw Diagnostic(
            .invalidOptionValue, "option `\(option)` has an invalid value", at: arguments.commandPath,
            expected: choices.joined(separator: ", "), found: word,
            hint: ArgumentParser.suggestion(for: word, among: choices))
    }

    private func refuseOverwriting(_ output: String) throws {
        let read = [input] + (arguments.value("descriptors").map { [$0] } ?? [])
        try OutputFile.refuseOverwriting(read, by: output, option: "--output")
        guard let report = arguments.value("report") else { return }
        try OutputFile.refuseOverwriting(read, by: report, option: "--report")
        if OutputFile.areSame(report, output) {
            throw Diagnostic(
                .conflictingOptions, "--report and --output name the same file", at: arguments.commandPath,
                found: report, hint: "choose two files")
        }
    }

    private func listOperators(of imported: ImportedProgram) -> Int32 {
        var table = TextTable(rightAligned: [0])
        let operators = ModelSummary.operators(imported.program.functions.lazy.flatMap(\.nodes).map(\.op))
        for entry in operators { table.add("\(entry.count)", entry.name) }
        for line in table.lines(indent: "") { console.writeLine(line) }
        console.add("operators", .object(operators.map { .init(key: $0.name, value: .integer($0.count)) }))
        return 0
    }

    private func summary(_ compiled: CompiledProgram, _ output: String, _ time: Duration) -> String {
        var lines: [String] = []
        let states = ModelSummary(compiled.bundle).states
        lines += states.isEmpty ? ["no states"] : stateTable(states).lines(indent: "")
        let weights = compiled.bundle.tensors.map { $0.offset + $0.length }.max() ?? 0
        let seconds = Double(time.components.seconds) + Double(time.components.attoseconds) / 1e18
        lines.append(
            "wrote \(output): \(counted(compiled.bundle.functions.count, "function")), weights \(byteText(weights)), "
                + "in \(decimalText(seconds, digits: 2)) s")
        return lines.map(Diagnostic.printable).joined(separator: "\n") + "\n"
    }

    /// No path and no time, so that equal programs give equal reports.
    private func reportJSON(_ compiled: CompiledProgram, _ imported: ImportedProgram) -> JSONValue {
        let symbolNames = compiled.bundle.symbols.map(\.name)
        return [
            "convert": 1,
            "producer": .string(compiled.bundle.producer),
            "program": .string(hexadecimalText(compiled.bundle.programDigest)),
            "states": .array(
                compiled.report.stateUpdates.map { update in
                    let state = compiled.bundle.states.first { $0.name == update.state }
                    return [
                        "function": .string(update.function), "name": .string(update.state),
                        "buffer": state.map { .string($0.sourceName) }, "writtenBy": .string(update.writtenBy),
                        "inPlace": .bool(update.isInPlace),
                        "copiedBytes": .string(update.copiedBytes.description(symbolNames: symbolNames)),
                        "reason": update.isInPlace ? nil : .string(update.copyReason),
                    ]
                }),
            "counters": .object(
                compiled.report.counters.sorted { $0.key < $1.key }.map { pass, counters in
                    .init(
                        key: pass,
                        value: .object(
                            counters.sorted { $0.key < $1.key }.map { .init(key: $0.key, value: .integer($0.value)) }))
                }),
            "weightsBytes": .integer(compiled.bundle.tensors.map { $0.offset + $0.length }.max() ?? 0),
            "recordingBytes": .integer(imported.recordingBytes.count),
            "warnings": .array(compiled.report.warnings.map(\.json)),
        ]
    }
}
