import Statepack
import StatepackBundle
import StatepackDiagnostics

/// `statepack run`: some steps of one function, its states kept from step to step.
struct RunModel {
    private let arguments: Arguments
    private let console: Console

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
    }

    func run() throws -> Int32 {
        let path = arguments.operands[0]
        let inputPaths = [path] + ["inputs", "states-in"].compactMap { arguments.value($0) }
        for option in ["outputs", "states-out"] {
            guard let output = arguments.value(option) else { continue }
            try OutputFile.refuseOverwriting(inputPaths, by: output, option: "--\(option)")
        }
        if let outputs = arguments.value("outputs"), let states = arguments.value("states-out"),
            OutputFile.areSame(outputs, states)
        {
            throw Diagnostic(
                .conflictingOptions, "--outputs and --states-out name the same file", at: arguments.commandPath,
                found: outputs, hint: "choose two files")
        }
        var options = SpecializationOptions.default
        options.threadCount = arguments.integer("threads")
        let model = try AIModel(path: path, options: options)
        let function = try arguments.loadFunction(of: model)
        let feed = try InputFeed(
            file: arguments.value("inputs"), inputs: function.descriptor.inputNames, function: function.descriptor.name)
        let steps = arguments.integer("steps") ?? feed.stepCount
        var states = try startingStates(of: function, feed)
        var outputs: [String: NDArray] = [:]
        var times: [Double] = []
        for step in 0..<steps {
            let inputs = try feed.inputs(ofStep: step)
            let start = ContinuousClock.now
            let result: (arrays: [String: NDArray], statistics: InferenceFunction.RunStatistics)
            do {
                result = try runFunction(function, inputs: inputs, states: &states)
            } catch {
                // Which of the steps it was is ours to say; the diagnostics are the runtime's.
                throw DiagnosticList(
                    Tool.diagnostics(of: error).map { diagnostic in
                        var diagnostic = diagnostic
                        diagnostic.location = (diagnostic.location.map { "\($0), " } ?? "") + "step \(step)"
                        return diagnostic
                    })
            }
            let duration = ContinuousClock.now - start
            times.append(Double(duration.components.attoseconds) / 1e15 + Double(duration.components.seconds) * 1e3)
            report(step, function, result.arrays, result.statistics, times[step])
            if arguments.has("outputs") {
                for (name, array) in result.arrays { outputs["\(name).\(step)"] = array }
            }
        }
        if arguments.has("timings"), !times.isEmpty {
            let sorted = times.sorted()
            // Of an even number of steps the mean of the two in the middle.
            let median = (sorted[(sorted.count - 1) / 2] + sorted[sorted.count / 2]) / 2
            console.writeLine("median of \(counted(steps, "step")): \(decimalText(median, digits: 3)) ms")
        }
        // Both complete on disk before either gets its name, so that a full disk leaves both or neither.
        var pendingOutputs: PendingOutput?
        var pendingStates: PendingOutput?
        if let path = arguments.value("outputs") { pendingOutputs = try TensorFile.pending(outputs, for: path) }
        if let path = arguments.value("states-out") {
            let own = states.filter { function.descriptor.stateNames.contains($0.key) }
            pendingStates = try TensorFile.pending(own, for: path)
        }
        try pendingOutputs?.commit()
        try pendingStates?.commit()
        return 0
    }

    private func startingStates(of function: InferenceFunction, _ feed: InputFeed) throws -> [String: NDArray] {
        let names = function.descriptor.stateNames
        var states: [String: NDArray] = [:]
        if let path = arguments.value("states-in") {
            let file = try TensorFile(path: path)
            var findings: [Diagnostic] = []
            for entry in file.entries {
                guard case .ndArray(let descriptor)? = function.descriptor.stateDescriptor(of: entry.name) else {
                    findings.append(
                        Diagnostic(
                            .runStateUnknown, "the function has no state `\(entry.name)`", at: path,
                            expected: names.isEmpty ? "no states" : names.joined(separator: ", "), found: entry.name,
                            hint: ArgumentParser.suggestion(for: entry.name, among: names)))
                    continue
                }
                let fits =
                    descriptor.rank == entry.shape.count
                    && zip(descriptor.shape, entry.shape).allSatisfy { $0 < 0 || $0 == $1 }
                if descriptor.scalarType.stored != entry.scalarType || !fits {
                    findings.append(
                        Diagnostic(
                            .runStateUnknown, "state `\(entry.name)` has another type or shape", at: path,
                            expected: "\(descriptor.shape) \(descriptor.scalarType)",
                            found: "\(entry.shape) \(entry.scalarType)"))
                }
            }
            if !findings.isEmpty { throw DiagnosticList(findings) }
            for name in names { states[name] = file[name] }
        }
        let missing = names.filter { states[$0] == nil }
        if missing.isEmpty { return states }
        // A state of a dynamic size has the one that the first step's inputs give it.
        let shapes = try feed.inputs(ofStep: 0).mapValues(\.shape)
        for name in missing { states[name] = try function.initialValue(ofState: name, inputShapes: shapes) }
        return states
    }

    private func report(
        _ step: Int, _ function: InferenceFunction, _ outputs: [String: NDArray],
        _ statistics: InferenceFunction.RunStatistics, _ milliseconds: Double
    ) {
        if arguments.has("timings") {
            console.writeLine(
                "step \(step): \(decimalText(milliseconds, digits: 3)) ms, attention rows \(statistics.attentionRows), "
                    + "state bytes copied \(statistics.stateBytesCopied + statistics.copyOnWriteBytes)")
        }
        // With a file for the outputs nobody needs to read them here.
        if arguments.has("outputs") { return }
        for name in function.descriptor.outputNames {
            guard let array = outputs[name] else { continue }
            console.writeLine(Diagnostic.printable("step \(step): \(name) \(array.description) \(preview(array))"))
        }
    }

    private func preview(_ array: NDArray) -> String {
        guard let type = array.scalarType.stored else { return "" }
        let count = array.shape.reduce(1, *)
        let values = array.withBytes { bytes in
            (0..<min(count, 4)).map { index in
                let value = element(type, bytes, index)
                if type == .bool { return value == 0 ? "false" : "true" }
                return type.isFloatingPoint ? shortText(value) : decimalText(value, digits: 0)
            }
        }
        return values.joined(separator: " ") + (count > 4 ? " …" : "")
    }
}

extension Arguments {
    /// The function that `--function` names, else the only one, else `main`.
    func loadFunction(of model: AIModel) throws -> InferenceFunction {
        let names = model.functionNames
        let name = value("function") ?? (names.count == 1 ? names[0] : "main")
        guard let function = try model.loadFunction(named: name) else {
            throw Diagnostic(
                .runFunctionUnknown, "the bundle has no function `\(name)`", at: operands[0],
                expected: names.joined(separator: ", "), found: name,
                hint: ArgumentParser.suggestion(for: name, among: names)
                    ?? (has("function") ? nil : "name one with --function"))
        }
        return function
    }
}

/// The inputs of each step, from a safetensors file: `x.i` for step i, else `x` for every step.
struct InputFeed {
    /// More steps than anybody numbers one by one: a larger number would run for days, or past an integer's end.
    private static let maximumStepCount = 1 << 20

    private let file: TensorFile?
    private let path: String
    private let inputs: [String]
    private let function: String
    /// One more than the largest step that the file numbers; 1 when it numbers none.
    let stepCount: Int

    init(file path: String?, inputs: [String], function: String) throws {
        file = try path.map { try TensorFile(path: $0) }
        self.path = path ?? "no --inputs"
        self.inputs = inputs
        self.function = function
        var findings: [Diagnostic] = []
        var last = 0
        for entry in file?.entries ?? [] where !inputs.contains(entry.name) {
            guard let dot = entry.name.lastIndex(of: "."), let step = Int(entry.name[entry.name.index(after: dot)...]),
                (0..<Self.maximumStepCount).contains(step), inputs.contains(String(entry.name[..<dot]))
            else {
                findings.append(
                    Diagnostic(
                        .runInputUnused, "the tensor `\(entry.name)` is for no input of `\(function)`",
                        at: self.path,
                        expected: inputs.isEmpty
                            ? "no inputs" : inputs.map { "\($0) or \($0).STEP" }.joined(separator: ", "),
                        found: entry.name, hint: ArgumentParser.suggestion(for: entry.name, among: inputs)))
                continue
            }
            last = max(last, step)
        }
        stepCount = last + 1
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    func inputs(ofStep step: Int) throws -> [String: NDArray] {
        var arrays: [String: NDArray] = [:]
        var findings: [Diagnostic] = []
        for name in inputs {
            if let array = file?["\(name).\(step)"] ?? file?[name] {
                arrays[name] = array
            } else {
                findings.append(
                    Diagnostic(
                        .runInputMissing, "step \(step) has no tensor for the input `\(name)`", at: path,
                        expected: "\(name) or \(name).\(step)",
                        found: file.map { $0.entries.map(\.name).prefix(20).joined(separator: ", ") } ?? "no file",
                        hint: file == nil ? "give the inputs with --inputs" : nil))
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
        return arrays
    }
}
