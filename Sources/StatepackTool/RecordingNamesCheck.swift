import StatepackCompiler
import StatepackDiagnostics
import StatepackIR

extension Recording {
    /// Names in the recording that the program does not have, each once, where it occurs first.
    func namesMissing(in program: Program, file: String) -> [Diagnostic] {
        var findings: [Diagnostic] = []
        var reported: Set<[String]> = []
        func report(_ what: String, _ name: String, _ place: String, _ owner: String, _ names: [String]) {
            guard !names.contains(name), reported.insert([owner, what, name]).inserted else { return }
            findings.append(
                Diagnostic(
                    .recordingMismatch, "the recording has \(what) that the \(owner) does not have",
                    at: "\(file), recording, \(place)",
                    expected: names.isEmpty ? "none" : names.joined(separator: ", "), found: name,
                    hint: ArgumentParser.suggestion(for: name, among: names)))
        }
        for (replayIndex, replay) in replays.enumerated() {
            for (stepIndex, step) in replay.steps.enumerated() {
                let place = "replay \(replayIndex), step \(stepIndex)"
                guard let function = program.functions.first(where: { $0.name == step.function }) else {
                    report("a function", step.function, place, "program", program.functions.map(\.name))
                    continue
                }
                let here = "function `\(function.name)`, \(place)"
                for input in step.inputs {
                    report("an input", input.name, here, "function", function.inputs.map(\.name))
                }
                for output in step.outputs {
                    report("an output", output.name, here, "function", function.outputs.map(\.name))
                }
                for state in step.states {
                    report(
                        "a state", state.name, here, "function",
                        function.states.map { program.states[$0.state].name })
                }
            }
        }
        return findings
    }
}
