/// What one command accepts, as data: the parser, the help text and the suggestions all read this.
struct CommandSyntax: Sendable {
    struct Operand: Sendable {
        /// As help shows it: `EXPORTED.PB`.
        var name: String
        var summary: String
        var isRequired = true
        /// Takes any number of words, at least one when it is required. Only the last operand may.
        var isRepeatable = false

        /// As usage and help show it: `MODEL...` when it repeats.
        var label: String { isRepeatable ? "\(name)..." : name }
    }

    struct Option: Sendable {
        enum Value: Sendable {
            /// A flag; takes no value.
            case none
            /// Free text; the associated value is what help calls it.
            case text(String)
            case integer(String, ClosedRange<Int>)
            case choice(String, [String])
            /// A number of bytes: `2GiB`.
            case byteCount(String)
        }

        /// Long name without dashes.
        var name: String
        var short: Character?
        var value: Value
        var isRepeatable: Bool
        var summary: String

        init(_ name: String, short: Character? = nil, _ summary: String) {
            self.init(name, short: short, .none, summary)
        }

        init(_ name: String, short: Character? = nil, _ value: Value, repeats: Bool = false, _ summary: String) {
            self.name = name
            self.short = short
            self.value = value
            self.isRepeatable = repeats
            self.summary = summary
        }

        var valueName: String? {
            switch value {
            case .none: nil
            case .text(let name), .integer(let name, _), .choice(let name, _), .byteCount(let name): name
            }
        }
    }

    var name: String
    var summary: String
    var operands: [Operand] = []
    var options: [Option] = []
    /// Paragraphs after the options.
    var notes: [String] = []
    /// A command with subcommands takes no operands of its own.
    var subcommands: [CommandSyntax] = []

    /// The options every command has, after its own.
    static let commonOptions = [
        Option("help", short: "h", "print this help and stop"),
        Option("version", "print the version and stop"),
    ]

    var allOptions: [Option] { options + Self.commonOptions }
}
