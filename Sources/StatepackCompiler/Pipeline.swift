package import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// What a user may ask of the compiler.
package struct CompileOptions: Sendable {
    /// Passes after which the program is handed to `dump`: names of `Compiler.dumpablePasses`.
    package var dumpAfter: Set<String> = []
    /// Names of `FuseOps.fusions` to leave out, to find out which one is at fault.
    package var noFuse: Set<String> = []
    /// A state that is copied is an error.
    package var requireInPlace = false

    package init(dumpAfter: Set<String> = [], noFuse: Set<String> = [], requireInPlace: Bool = false) {
        self.dumpAfter = dumpAfter
        self.noFuse = noFuse
        self.requireInPlace = requireInPlace
    }
}

/// A planned program, and where the bytes of its tensors come from.
package struct CompiledProgram: Sendable {
    /// Tensors have offsets and lengths.
    package var bundle: BundleProgram
    /// One per tensor of `bundle`.
    package var recipes: [PackWeights.Recipe]
    /// What `recipes` index.
    package var tensors: [Program.StoredTensor]
    /// What `Instruction.source` indexes.
    package var sources: [String]
    package var report: CompilationReport
}

extension CompilationReport {
    /// How one function updates one state.
    package struct StateUpdate: Hashable, Sendable {
        package var function: String
        package var state: String
        package var writtenBy: String
        package var copiedBytes: SizeExpression
        package var copyReason: String

        package var isInPlace: Bool { copiedBytes == .zero }

        /// `in place`, or `copies 2097152 bytes per step because …`.
        package func description(symbolNames: [String]) -> String {
            if isInPlace { return "in place" }
            return "copies \(copiedBytes.description(symbolNames: symbolNames)) bytes per step because \(copyReason)"
        }
    }
}

/// From an imported program to a bundle. Read this file first: it says what happens and why in that order.
package struct Compiler: Sendable {
    private let options: CompileOptions

    package init(options: CompileOptions = CompileOptions()) { self.options = options }

    package static let dumpablePasses = [
        "ImportProgram", DecomposeOps.name, FuseOps.name, RecoverStateWrites.name, PlanMemory.name, PackWeights.name,
    ]

    /// Compiles the program.
    ///
    /// - Parameter dump: Called with a pass's name and the program as text, for each of `options.dumpAfter`.
    package func compile(
        _ imported: Program, dump: (String, String) -> Void = { _, _ in }
    ) throws -> CompiledProgram {
        var program = imported
        var report = CompilationReport()

        // --- What torch gave ---------------------------------------------------------------------
        // Everything is a value: a buffer update is a new tensor that the signature ties to the buffer.
        try finish(.imported, program, dump)

        // --- A small language --------------------------------------------------------------------
        // ATen operators become kernels and views; promotion, broadcasting and defaults become explicit.
        try DecomposeOps().run(on: &program, report: &report)
        return try compile(decomposed: program, report: report, dump: dump)
    }

    /// The same for a program of core operators, where compiler tests begin.
    package func compile(
        decomposed: Program, report: CompilationReport = CompilationReport(),
        dump: (String, String) -> Void = { _, _ in }
    ) throws -> CompiledProgram {
        do {
            return try compileChecked(decomposed, report, dump)
        } catch let failure as SizeExpression.Failure {
            throw Diagnostic(
                .unsupportedPlan, "a size of the program is too large or too complex to plan", found: "\(failure)",
                hint: "lower the upper bounds of the dynamic sizes")
        }
    }

    private func compileChecked(
        _ decomposed: Program, _ before: CompilationReport, _ dump: (String, String) -> Void
    ) throws -> CompiledProgram {
        var program = decomposed
        var report = before
        try finish(.decomposed, program, dump)

        // --- Fewer operators ---------------------------------------------------------------------
        // While everything is a value, a read may move anywhere and a copy means nothing, so fusion needs
        // no thought of writes.
        // NOTE: must run before RecoverStateWrites. Behind it, each fusion would have to prove that no write
        // in place lies between where it reads and where the pattern did.
        try FuseOps(disabled: options.noFuse).run(on: &program, report: &report)
        try finish(.fused, program, dump)

        // --- States in place ---------------------------------------------------------------------
        // From here on nodes are in execution order, and reading a value twice may give two answers.
        try RecoverStateWrites().run(on: &program, report: &report)
        try finish(.inPlace, program, dump)
        report.stateUpdates = Self.stateUpdates(in: program)
        if options.requireInPlace { try requireInPlace(report.stateUpdates, program) }

        // --- Storage -----------------------------------------------------------------------------
        // Views become strides, values become places in arguments, states, weights or scratch memory.
        let plan = try PlanMemory(choosesLayouts: !options.noFuse.contains("output-layout")).plan(
            program, report: &report)
        if options.dumpAfter.contains(PlanMemory.name) { dump(PlanMemory.name, plan.text()) }
        // Which kernels read a weight decides its layout, so that this comes last.
        let packed = try PackWeights().pack(plan, report: &report)
        if options.dumpAfter.contains(PackWeights.name) { dump(PackWeights.name, packed.program.text()) }
        try PlanVerifier.verify(packed.program)
        // The check that every reader makes: what convert writes, load accepts.
        let weightsLength = packed.program.tensors.map { $0.offset + $0.length }.max() ?? 0
        try packed.program.check(weightsLength: weightsLength, sourceCount: program.sources.count, file: "convert")
        try SourceMap.check(program.sources, file: "convert")
        return CompiledProgram(
            bundle: packed.program, recipes: packed.recipes, tensors: program.tensors, sources: program.sources,
            report: report)
    }

    private func finish(
        _ stage: Verifier.Stage, _ program: Program, _ dump: (String, String) -> Void
    ) throws {
        try Verifier.verify(program, stage: stage)
        if options.dumpAfter.contains(stage.rawValue) { dump(stage.rawValue, program.text(dataLimit: 64)) }
    }

    private static func stateUpdates(in program: Program) -> [CompilationReport.StateUpdate] {
        program.functions.flatMap { function in
            function.states.map { use in
                .init(
                    function: function.name, state: program.states[use.state].name, writtenBy: use.writtenBy,
                    copiedBytes: use.copiedBytes, copyReason: use.copyReason)
            }
        }
    }

    private func requireInPlace(_ updates: [CompilationReport.StateUpdate], _ program: Program) throws {
        let findings = updates.filter { !$0.isInPlace }.map { update in
            Diagnostic(
                .stateNotInPlace, "state `\(update.state)` is not updated in place",
                at: "function `\(update.function)`", expected: "in place",
                found: update.description(symbolNames: program.symbolNames),
                hint: "convert without --require-in-place to accept the copy")
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }
}

extension Compiler {
    /// Writes the bundle: to a temporary file beside `path`, which gets its name when it is complete.
    ///
    /// Memory does not grow with the weights: they go through in blocks of rows.
    ///
    /// - Parameters:
    ///   - weights: Where the bytes of the program's tensors come from.
    ///   - recording: The serialised recording, empty for none.
    ///   - progress: Called after each block with the bytes of weights written and those in all, for the last time before
    ///     what is written is flushed to the disk.
    ///   - beforeNaming: Called when everything is written; what it throws leaves no bundle.
    package static func write(
        _ compiled: CompiledProgram, weights: some TensorSource, recording: [UInt8], to path: String,
        progress: (Int, Int) -> Void = { _, _ in }, beforeNaming: () throws -> Void = {}
    ) throws {
        let program = try compiled.bundle.encoded()
        let sources = SourceMap.encode(compiled.sources)
        let weightsLength = compiled.bundle.tensors.map { $0.offset + $0.length }.max() ?? 0
        var sections: [SectionKind] = [.program]
        if weightsLength > 0 { sections.append(.weights) }
        if !recording.isEmpty { sections.append(.recording) }
        if !sources.isEmpty { sections.append(.sourceMap) }

        var writer = try BundleWriter(
            path: path, sections: sections,
            reserving: program.count + weightsLength + recording.count + sources.count,
            digest: IncrementalDigest.sha256InBackground)
        try writer.begin(.program)
        try writer.append(program)
        if weightsLength > 0 {
            try writer.begin(.weights)
            for (tensor, recipe) in zip(compiled.bundle.tensors, compiled.recipes) {
                try writer.pad()
                var written = tensor.offset
                try weights.withBytes(of: compiled.tensors[recipe.source]) { bytes in
                    try PackWeights.stream(tensor, from: bytes) { block in
                        try writer.append(block)
                        written += block.count
                        progress(written, weightsLength)
                    }
                }
            }
        }
        if !recording.isEmpty {
            try writer.begin(.recording)
            try writer.append(recording)
        }
        if !sources.isEmpty {
            try writer.begin(.sourceMap)
            try writer.append(sources)
        }
        try beforeNaming()
        try writer.finish()
    }
}
