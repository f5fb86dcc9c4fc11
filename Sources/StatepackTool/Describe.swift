import StatepackDiagnostics

/// `statepack describe`: writes the contract of a model.
struct Describe {
    private let arguments: Arguments
    private let console: Console

    init(_ arguments: Arguments, _ console: Console) {
        self.arguments = arguments
        self.console = console
    }

    func run() throws -> Int32 {
        let path = arguments.operands[0]
        let model = try Model(path: path)
        let text = model.contract.json.text
        guard let output = arguments.value("output") else {
            console.write(text)
            return 0
        }
        try OutputFile.refuseOverwriting(model.files(at: path), by: output, option: "--output")
        try OutputFile.write(Array(text.utf8), to: output)
        return 0
    }
}
