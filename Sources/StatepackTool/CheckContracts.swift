import StatepackDiagnostics

/// `statepack contract`: whether exported programs, bundles and committed contracts that lie together agree.
struct CheckContracts {
    private let arguments: Arguments
    private let console: Console

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
    }

    func run() throws -> Int32 {
        var findings: [Diagnostic] = []
        var groups: [JSONValue] = []
        let files = arguments.operands.isEmpty ? try ContractSearch.files(in: ".") : arguments.operands
        if files.isEmpty { console.writeLine("no contract and no model in this folder or below it") }
        for group in ContractPartners.groups(of: files) {
            let check = ContractCheck(group, updates: arguments.has("update"))
            findings += check.findings
            for finding in check.findings { console.report(finding) }
            for line in check.results { console.writeLine(Diagnostic.printable(line)) }
            groups.append([
                "contract": .string(group.contract), "models": .strings(group.programs + group.bundles),
                "holds": .bool(!check.findings.contains { $0.severity == .error }),
            ])
        }
        console.add("groups", .array(groups))
        return DiagnosticList(findings).exitCode
    }
}

/// One group of partners, compared.
private struct ContractCheck {
    private let group: ContractPartners
    private let updates: Bool
    private(set) var findings: [Diagnostic] = []
    /// Lines for people.
    private(set) var results: [String] = []

    init(_ group: ContractPartners, updates: Bool) {
        self.group = group
        self.updates = updates
        let programs = read(group.programs)
        let bundles = read(group.bundles)
        if findings.isEmpty, updates { update(from: programs.isEmpty ? bundles : programs) }
        if findings.isEmpty || !updates { compareContract(programs, bundles) }
        if findings.isEmpty {
            let models = (group.programs + group.bundles).map(Self.name)
            results.append(
                models.isEmpty
                    ? "\(group.contract): no model beside it to compare with"
                    : "\(group.contract): holds for \(models.joined(separator: ", "))")
        }
    }

    private struct OpenModel {
        var path: String
        var digest: [UInt8]
        var contract: Contract
    }

    private mutating func read(_ paths: [String]) -> [OpenModel] {
        var models: [OpenModel] = []
        for path in paths {
            do {
                let model = try Model(path: path)
                models.append(OpenModel(path: path, digest: model.programDigest, contract: model.contract))
            } catch {
                findings += Tool.diagnostics(of: error).map(hintingAtOtherFiles)
            }
        }
        return models
    }

    /// A protobuf of another tool has the same suffix, but no contract.
    private func hintingAtOtherFiles(_ finding: Diagnostic) -> Diagnostic {
        guard finding.code == .notAnExportedProgram, finding.hint == nil, !group.hasContract else { return finding }
        var finding = finding
        finding.hint =
            "when it is no model of Statepack's, leave it out: narrow `files:` of the hook statepack-contract"
        return finding
    }

    /// A contract that cannot be read is written anew from the model beside it.
    private func hintingAtUpdate(_ finding: Diagnostic) -> Diagnostic {
        guard finding.code == .contractMalformed, finding.hint == nil, !(group.programs + group.bundles).isEmpty else {
            return finding
        }
        var finding = finding
        finding.hint = "`statepack contract --update \(group.contract)` writes it anew"
        return finding
    }

    private mutating func update(from models: [OpenModel]) {
        guard models.count == 1 else {
            findings.append(
                Diagnostic(
                    .contractSourceUnclear, "the contract cannot be written from \(counted(models.count, "model"))",
                    at: group.contract, expected: "one exported program, or one bundle, beside it",
                    found: models.isEmpty ? "no model" : models.map { Self.name($0.path) }.joined(separator: ", "),
                    hint: "write it with: statepack describe MODEL -o \(group.contract)"))
            return
        }
        let committed = group.hasContract ? try? ContractFile.read(group.contract) : nil
        if let committed, committed.differences(from: models[0].contract).isEmpty { return }
        do {
            try OutputFile.write(Array(models[0].contract.json.text.utf8), to: group.contract)
            results.append("\(group.contract): written from \(Self.name(models[0].path))")
        } catch {
            findings.append(error)
        }
    }

    private mutating func compareContract(_ programs: [OpenModel], _ bundles: [OpenModel]) {
        var contract: Contract?
        if group.hasContract || updates {
            do {
                contract = try ContractFile.read(group.contract)
            } catch {
                findings += Tool.diagnostics(of: error).map(hintingAtUpdate)
            }
        } else if let model = (programs.first ?? bundles.first)?.path {
            // A file that could not be read is reported already, and may be no model at all.
            findings.append(
                Diagnostic(
                    .contractAbsent, "the model has no contract", at: model,
                    expected: "\(Self.name(group.contract)) beside it", found: "no such file",
                    hint: "write one and commit it: statepack describe \(model) -o \(group.contract)"))
        }
        for program in programs { compare(contract, with: program) }
        for bundle in bundles {
            if let program = partner(of: bundle, among: programs), program.digest != bundle.digest {
                findings.append(
                    Diagnostic(
                        .bundleStale, "the bundle was made from another exported program", at: bundle.path,
                        expected: "sha256 \(hexadecimalText(program.digest)) of \(Self.name(program.path))",
                        found: "sha256 \(hexadecimalText(bundle.digest))",
                        hint: "convert again: statepack convert \(program.path) -o \(bundle.path)"))
            } else if !programs.contains(where: { $0.contract == bundle.contract }) {
                // What an exported program has said already is not said again.
                compare(contract, with: bundle)
            }
        }
    }

    /// The exported program that the bundle should have been made from: the one of its name, or the only one.
    private func partner(of bundle: OpenModel, among programs: [OpenModel]) -> OpenModel? {
        let own = bundle.path.dropLast(".statepack".count) + ".pb"
        return programs.first { $0.path == own } ?? (programs.count == 1 ? programs[0] : nil)
    }

    private mutating func compare(_ contract: Contract?, with model: OpenModel) {
        guard let contract else { return }
        for difference in contract.differences(from: model.contract) {
            findings.append(
                difference.finding(
                    in: model.path, acceptedBy: "statepack contract --update \(group.contract)",
                    contract: group.contract))
        }
    }

    private static func name(_ path: String) -> String {
        path.lastIndex(of: "/").map { String(path[path.index(after: $0)...]) } ?? path
    }
}
