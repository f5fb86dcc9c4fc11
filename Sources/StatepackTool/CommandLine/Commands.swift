import StatepackCompiler

/// What each command accepts. Help, parser and suggestions follow from these values.
extension CommandSyntax {
    private static let threads = Option(
        "threads", .integer("N", 1...1024), "threads to compute with (default: what the machine allows)")
    private static let descriptors = Option(
        "descriptors", .text("CONTRACT.JSON"),
        "compare functions, inputs, states and outputs with this contract; every difference is an error")

    static let exitCodes = """
        exit codes: 0 it holds, 1 findings, 2 usage, 3 unreadable or malformed input, 4 unsupported, 5 an output \
        could not be written, 70 a fault of this tool
        """

    static let convert = CommandSyntax(
        name: "convert",
        summary: """
            Compile an exported program into a bundle that the Statepack runtime runs. Prints the states and how \
            each is updated.
            """,
        operands: [Operand(name: "EXPORTED.PB", summary: "the file that the Python exporter wrote")],
        options: [
            Option(
                "output", short: "o", .text("PATH"),
                "where the bundle goes (default: the input's name with .statepack, in the same folder)"),
            Option(
                "state-names", .text("NAMES"),
                """
                names for the states: a list a,b in the order of the printed table, or pairs BUFFER=a,BUFFER=b; names \
                that the author chose must be given as they are
                """),
            descriptors,
            Option("report", .text("REPORT.JSON"), "write what the compiler did, as JSON"),
            Option("require-in-place", "fail when a state has to be copied in each step"),
            Option(
                "no-fuse", .text("NAME"), repeats: true,
                "leave out one fusion (\(FuseOps.fusions.joined(separator: ", "))); `all` leaves out every one"),
            Option(
                "dump-ir-after", .text("PASS"),
                """
                print the program as it stands after that pass, instead of the summary: \
                \(Compiler.dumpablePasses.joined(separator: ", "))
                """),
            Option(
                "progress",
                "say on standard error how far it has come (default: when that is a terminal)"),
            DiagnosticFormat.option,
            Option("list-ops", "print the operators of the exported program and stop; writes nothing"),
        ],
        notes: [
            """
            The bundle is written beside its final name and renamed: a failed convert leaves nothing, and a \
            bundle that a program has mapped is never changed under it.
            """,
            exitCodes,
        ])

    static let validate = CommandSyntax(
        name: "validate",
        summary: """
            Check a bundle or an exported program without PyTorch: the bytes, the program, the contract, and a replay \
            of the run that PyTorch recorded at export, state by state.
            """,
        operands: [
            Operand(
                name: "MODEL",
                summary: "a bundle (*.statepack) or an exported program (*.pb); several are checked in turn",
                isRepeatable: true)
        ],
        options: [
            descriptors,
            DiagnosticFormat.option,
            Option("json", "the same as --format json"),
            Option("checksums", "read every byte and compare checksums and digests"),
            Option("replay", "repeat the recorded run; checks the bytes first"),
            Option("no-replay", "leave the replay out"),
            Option(
                "strict",
                """
                also find what is worth a second look before a release: states never read, written or recorded, unused \
                inputs, returned states, bounds that the recording never reached, NaN and infinity in weights, float64, \
                positions without a context
                """),
            Option("memory-budget", .byteCount("SIZE"), "fail when the sessions need more memory, such as 2GiB"),
            Option("sessions", .integer("N", 1...1_000_000), "say what N sessions need in memory (default: 1)"),
            Option(
                "concurrent-runs", .integer("N", 1...1_000_000),
                "how many sessions run at the same time, each with scratch memory of its own (default: 1)"),
            Option("require-in-place", "fail when a state has to be copied in each step"),
            Option(
                "max-step-copies", .byteCount("SIZE"),
                """
                fail when a step copies more bytes than that without computing with them: whole states written back, \
                and values copied to make them contiguous, to keep or to return them
                """),
            threads,
        ],
        notes: [
            """
            Without --descriptors, --checksums and --replay everything is checked; with any of them only those named, \
            and the report says what was not. --descriptors alone reads no weights. With --strict everything is \
            checked, whatever is named; only --no-replay leaves something out.
            """,
            """
            An exported program is compiled into a temporary bundle (in TMPDIR) that is removed again.
            """,
            exitCodes,
        ])

    static let inspect = CommandSyntax(
        name: "inspect",
        summary: "Print what is in a bundle or an exported program.",
        operands: [Operand(name: "MODEL", summary: "a bundle (*.statepack) or an exported program (*.pb)")],
        options: [
            Option("json", "print the contract, for --descriptors of convert and validate"),
            Option("details", "with --json: add operators, weights, states and memory under the key `details`"),
            Option("text", "print it for people (default)"),
            Option("sessions", .integer("N", 1...1_000_000), "memory for that many sequences (default: 1)"),
        ],
        notes: [exitCodes])

    static let describe = CommandSyntax(
        name: "describe",
        summary: "Write the contract of a bundle or an exported program, to be read and committed. Reads no weights.",
        operands: [Operand(name: "MODEL", summary: "a bundle (*.statepack) or an exported program (*.pb)")],
        options: [
            Option(
                "output", short: "o", .text("CONTRACT.JSON"),
                "where the contract goes, such as exported.contract.json (default: standard output)")
        ],
        notes: [exitCodes])

    static let diff = CommandSyntax(
        name: "diff",
        summary: """
            Print what changes for callers between two versions of a model: breaking, compatible, or numeric (other \
            values, the same names, types and shapes). Reads no weights.
            """,
        operands: [
            Operand(name: "OLD", summary: "a contract (*.contract.json), an exported program or a bundle"),
            Operand(name: "NEW", summary: "another one, of any of these kinds"),
        ],
        options: [
            Option(
                "fail-on", .choice("CLASS", ["breaking", "any"]),
                "exit with 1 when there is a breaking change, or any change (default: exit with 0)"),
            Option(
                "format", .choice("FORMAT", DiagnosticFormat.allCases.map(\.rawValue) + ["markdown"]),
                "text (default), json, github (workflow commands), or markdown (a comment for a pull request)"),
        ],
        notes: [
            "Weights and operators are compared by their digests, where both files carry such.", exitCodes,
        ])

    static let contract = CommandSyntax(
        name: "contract",
        summary: """
            Check that exported programs, bundles and contracts that lie together agree: exported.pb, \
            exported.statepack and exported.contract.json, or all models beside the only contract. Reads no weights.
            """,
        operands: [
            Operand(
                name: "FILE",
                summary: """
                    any of these files; its partners are found (default: all files in this folder and below it, but \
                    for folders such as .build and node_modules)
                    """,
                isRequired: false, isRepeatable: true)
        ],
        options: [
            Option("update", "write the contract anew where it differs from the exported program, or the bundle"),
            DiagnosticFormat.option,
        ],
        notes: [exitCodes])

    static let run = CommandSyntax(
        name: "run",
        summary: "Run a function of a bundle for some steps, its states kept from step to step.",
        operands: [Operand(name: "MODEL.STATEPACK", summary: "the bundle")],
        options: [
            Option("function", .text("NAME"), "the function (default: the only one, or `main`)"),
            Option("inputs", .text("IN.SAFETENSORS"), "the inputs"),
            Option(
                "steps", .integer("N", 1...1_000_000), "number of steps (default: what the inputs file numbers, or 1)"),
            Option("outputs", .text("OUT.SAFETENSORS"), "write the outputs of every step"),
            Option("states-in", .text("IN.SAFETENSORS"), "start from these states; others from their initial value"),
            Option("states-out", .text("OUT.SAFETENSORS"), "write the states after the last step"),
            threads,
            Option("timings", "print the time of every step"),
        ],
        notes: [
            """
            Step i, from 0, takes for the input `x` the tensor `x.i` of the inputs file, else the tensor `x`. Outputs \
            are written as `y.i`, states under their own names.
            """,
            exitCodes,
        ])

    static let bench = CommandSyntax(
        name: "bench",
        summary: """
            Measure a bundle on this machine: what a step costs as its context grows, beside the time that reading its \
            bytes from memory takes.
            """,
        operands: [Operand(name: "MODEL.STATEPACK", summary: "the bundle")],
        options: [
            Option("function", .text("NAME"), "the function (default: the only one, or `main`)"),
            Option(
                "contexts", .text("LIST"),
                """
                positions at which a step is measured (default: those of \
                \(BenchPlan.defaultContexts.map(String.init).joined(separator: ",")) that the states have rows for)
                """),
            Option(
                "prefill", .integer("N", 0...Int.max),
                """
                how many positions one run takes at once (default: \(BenchPlan.defaultPrefill), or as many as the \
                bundle allows); 0 leaves it out
                """),
            Option(
                "repetitions", .integer("N", 1...100_000),
                "how many times each step is measured (default: \(Bench.defaultRepetitions))"),
            Option(
                "warm-up", .integer("N", 0...100_000),
                "how many times each step runs before that (default: \(Bench.defaultWarmUp))"),
            threads,
            DiagnosticFormat.option,
            Option("json", "the same as --format json"),
        ],
        notes: [
            """
            A context of N: the step writes row N of each state and reads the rows before it. Nothing is computed to get \
            there: the rows are filled with seeded values, which takes no time and changes none. Which input carries \
            positions is what the model's author declared; other inputs are taken from the recording where it has a step \
            of these sizes, else they are zeros, true, or seeded floats.
            """,
            """
            Steps at all contexts and reads of a buffer as large as the weights, with one and with four streams, take \
            turns. The last column is the time of a step over the time that four streams need for its bytes: the weights, \
            and the valid rows of its states.
            """,
            exitCodes,
        ])

    static let help = CommandSyntax(
        name: "help", summary: "Print the help of a command.",
        operands: [Operand(name: "COMMAND", summary: "the command (default: all of them)", isRequired: false)])

    static let statepack = CommandSyntax(
        name: "statepack",
        summary: "From an exported PyTorch program with named states to a bundle that Swift runs.",
        options: [
            Option(
                "explain", .text("CODE"),
                "print cause, example and remedy of a diagnostic such as E0301 or stateNamesMismatch")
        ],
        notes: ["`statepack COMMAND --help` describes a command.", exitCodes],
        subcommands: [convert, validate, inspect, describe, diff, contract, run, bench, help])
}
