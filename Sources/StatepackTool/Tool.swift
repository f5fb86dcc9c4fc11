import Statepack
import StatepackBundle
import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// The commands `convert`, `validate` and `statepack`, callable from a main or from a test.
///
/// Each command throws what it finds; this type alone prints diagnostics and chooses exit codes.
package enum Tool {
    package static let version = "0.1.0"

    /// Runs a command and ends the process with its exit code.
    package static func main(_ program: String) -> Never {
        occupyStandardDescriptors()
        // A write past the limit of `ulimit -f` is to fail, as on a full disk, and not to end the process.
        signal(SIGXFSZ, SIG_IGN)
        Interruption.removeTemporaryFiles()
        exit(run(program, Array(CommandLine.arguments.dropFirst()), console: .standard()))
    }

    /// A parent may start a process without standard input, output or error. The next file that is opened would get
    /// that number, and text meant for people would go into it. What is put there fails as a closed one does.
    private static func occupyStandardDescriptors() {
        for descriptor in STDIN_FILENO...STDERR_FILENO where fcntl(descriptor, F_GETFD) < 0 {
            _ = open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY)
        }
    }

    /// Runs a command line (without the program's name) and returns the exit code.
    package static func run(_ program: String, _ words: [String], console: Console) -> Int32 {
        var status: Int32
        if let syntax = syntax(of: program) { console.use(.requested(by: words, of: syntax)) }
        do {
            status = try dispatch(program, words, console: console)
        } catch {
            let diagnostics = diagnostics(of: error)
            for diagnostic in diagnostics { console.report(diagnostic) }
            status = DiagnosticList(diagnostics).exitCode
        }
        let command = program == CommandSyntax.statepack.name ? words.first { !$0.hasPrefix("-") } : program
        console.finish(command ?? program, exitCode: status)
        if let failure = console.resultsFailure {
            console.report(
                Diagnostic(
                    .unwritableOutput, "the results could not be written", at: "standard output",
                    found: String(cString: strerror(failure))))
            if status != Diagnostic.Code.internalError.exitCode { status = Diagnostic.Code.unwritableOutput.exitCode }
        }
        return status
    }

    private static func syntax(of program: String) -> CommandSyntax? {
        [CommandSyntax.convert, .validate, .statepack].first { $0.name == program }
    }

    private static func dispatch(_ program: String, _ words: [String], console: Console) throws -> Int32 {
        guard let syntax = syntax(of: program) else {
            throw Diagnostic.internalFault("no program `\(program)`")
        }
        let arguments = try ArgumentParser.parse(words, for: syntax, path: program)
        if arguments.has("help") {
            console.use(.text)
            let shown = arguments.commandPath == program ? syntax : arguments.syntax
            console.write(helpText(for: shown, path: arguments.commandPath))
            return 0
        }
        if arguments.has("version") {
            console.use(.text)
            console.writeLine(
                "statepack \(version) (bundle format \(BundleProgram.formatMajor).\(BundleProgram.formatMinor))")
            return 0
        }
        try DiagnosticFormat.checkSynonym(arguments)
        switch arguments.syntax.name {
        case "convert": return try Convert(arguments, console).run()
        case "validate": return try Validate.runInTurn(arguments, console)
        case "inspect": return try Inspect(arguments, console).run()
        case "describe": return try Describe(arguments, console).run()
        case "diff": return try Diff(arguments, console).run()
        case "contract": return try CheckContracts(arguments, console).run()
        case "run": return try RunModel(arguments, console).run()
        case "bench": return try Bench(arguments, console).run()
        case "help": return try help(arguments, console)
        default: return try explain(arguments, console)
        }
    }

    private static func help(_ arguments: Arguments, _ console: Console) throws -> Int32 {
        guard let name = arguments.operands.first else {
            console.write(helpText(for: .statepack, path: "statepack"))
            return 0
        }
        let commands = CommandSyntax.statepack.subcommands
        guard let command = commands.first(where: { $0.name == name }) else {
            throw Diagnostic(
                .unknownCommand, "unknown command `\(name)`", at: "statepack help",
                expected: commands.map(\.name).joined(separator: ", "), found: name,
                hint: ArgumentParser.suggestion(for: name, among: commands.map(\.name)))
        }
        console.write(helpText(for: command, path: "statepack \(name)"))
        return 0
    }

    private static func explain(_ arguments: Arguments, _ console: Console) throws -> Int32 {
        guard let word = arguments.value("explain") else {
            throw Diagnostic(
                .missingOperand, "COMMAND is missing", at: "statepack",
                expected: CommandSyntax.statepack.subcommands.map(\.name).joined(separator: ", "),
                hint: "see `statepack --help`")
        }
        return try Explain.run(word, console)
    }

    /// What a command threw, as diagnostics. Anything but a diagnostic is a fault of this tool.
    static func diagnostics(of error: any Error) -> [Diagnostic] {
        switch error {
        case let diagnostic as Diagnostic: [diagnostic]
        case let list as DiagnosticList: list.diagnostics
        case let error as StatepackError: error.diagnostics
        default: [.internalFault("unexpected error: \(error)")]
        }
    }
}
