import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR

/// What two models differ in beyond their contracts: weights and graph.
///
/// Digests in headers and programs are compared, never the weights themselves.
struct ProgramComparison {
    enum Verdict: Hashable {
        case same
        case changed
        /// Why.
        case notCompared(String)

        var text: String {
            switch self {
            case .same: "the same"
            case .changed: "changed"
            case .notCompared(let reason): "not compared: \(reason)"
            }
        }
    }

    var weights: Verdict
    var graph: Verdict
    var differences: [ContractDifference] = []

    init(old: ContractSource, new: ContractSource) {
        (weights, graph) = (.same, .same)
        let reason: String
        switch (old, new) {
        case (.model(let old), .model(let new)):
            compare(old, new)
            return
        case (.document, .document): reason = "both files are contracts"
        case (.document, .model): reason = "OLD is a contract"
        case (.model, .document): reason = "NEW is a contract"
        }
        (weights, graph) = (.notCompared(reason), .notCompared(reason))
    }

    private mutating func compare(_ old: Model, _ new: Model) {
        if old.programDigest == new.programDigest { return }
        switch (old, new) {
        case (.exportedProgram(let old, _), .exportedProgram(let new, _)):
            if old.weightsDigest != new.weightsDigest || old.program.inlineTensors != new.program.inlineTensors {
                change(weightsFrom: old.weightsDigest, to: new.weightsDigest)
            }
            compare(old.program.functions.map(FunctionGraph.init), new.program.functions.map(FunctionGraph.init))
        case (.bundle(let old), .bundle(let new)):
            if old.weightsDigest != new.weightsDigest { change(weightsFrom: old.weightsDigest, to: new.weightsDigest) }
            compare(
                old.program.functions.map { FunctionGraph($0, old.program.kernels) },
                new.program.functions.map { FunctionGraph($0, new.program.kernels) })
        default:
            // A bundle holds another form of the program, so that only the digest of the whole is common.
            weights = .notCompared(
                "the programs differ, and a bundle and an exported program have no digest of them in common")
            graph = weights
            differences.append(
                ContractDifference(
                    .numeric, .program,
                    Diagnostic(
                        .programChanged, "the program is another one: its weights, its operators, or both",
                        at: "program", expected: "sha256 \(hexadecimalText(old.programDigest))",
                        found: "sha256 \(hexadecimalText(new.programDigest))",
                        hint: "two bundles, or two exported programs, tell weights from operators")))
        }
    }

    private mutating func change(weightsFrom old: [UInt8], to new: [UInt8]) {
        weights = .changed
        func text(_ digest: [UInt8]) -> String {
            digest.isEmpty ? "inside the program" : "sha256 \(hexadecimalText(digest))"
        }
        differences.append(
            ContractDifference(
                .numeric, .weights,
                Diagnostic(
                    .weightsChanged, "the stored weights are others", at: "weights", expected: text(old),
                    found: text(new))))
    }

    private mutating func compare(_ old: [FunctionGraph], _ new: [FunctionGraph]) {
        for function in old {
            // One that is missing or renamed is a difference of the contract.
            guard let other = new.first(where: { $0.name == function.name }), other.body != function.body else {
                continue
            }
            graph = .changed
            differences.append(
                ContractDifference(
                    .numeric, .graph,
                    Diagnostic(
                        .graphChanged, "the function `\(function.name)` computes in another way",
                        at: "function `\(function.name)`", expected: function.summary,
                        found: other.summary == function.summary
                            ? "\(other.summary), connected otherwise" : other.summary)))
        }
    }
}

/// What a function computes, without names, source lines and the values of weights.
private struct FunctionGraph {
    var name: String
    var body: AnyHashable
    /// `14 operators of 9 kinds`
    var summary: String

    init(_ function: Function) {
        var body = function
        body.name = ""
        body.context = nil
        for index in body.inputs.indices { body.inputs[index].name = "" }
        for index in body.outputs.indices { body.outputs[index].name = "" }
        for index in body.states.indices { body.states[index].writtenBy = "" }
        for index in body.nodes.indices { body.nodes[index].source = nil }
        name = function.name
        self.body = body
        summary = Self.summary(function.nodes.map(\.op), "operator")
    }

    init(_ function: BundleProgram.Function, _ kernels: [String]) {
        var body = function
        body.name = ""
        body.context = nil
        for index in body.inputs.indices { body.inputs[index].name = "" }
        for index in body.outputs.indices { body.outputs[index].name = "" }
        for index in body.states.indices { body.states[index].writtenBy = "" }
        for index in body.instructions.indices {
            // Kernels are numbered by the whole program.
            body.instructions[index].kernel = 0
            body.instructions[index].source = nil
        }
        let names = function.instructions.map { kernels[$0.kernel] }
        name = function.name
        self.body = [AnyHashable(body), AnyHashable(names)]
        summary = Self.summary(names, "instruction")
    }

    private static func summary(_ names: [String], _ noun: String) -> String {
        "\(counted(names.count, noun)) of \(counted(Set(names).count, "kind"))"
    }
}

extension Program {
    /// Values that travel inside the program.
    fileprivate var inlineTensors: [StoredTensor] {
        tensors.filter { if case .inline = $0.data { true } else { false } }
    }
}

extension Model {
    /// SHA-256 of the exported program that this is or was made from.
    var programDigest: [UInt8] {
        switch self {
        case .bundle(let bundle): bundle.program.programDigest
        case .exportedProgram(let imported, _): imported.program.digest
        }
    }
}

extension MappedBundle {
    fileprivate var weightsDigest: [UInt8] {
        sections.first { $0.kind == SectionKind.weights.rawValue }?.digest ?? []
    }
}
