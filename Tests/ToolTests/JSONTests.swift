import StatepackTool
import Testing

@Suite struct JSONTests {
    static let documents: [(String, JSONValue)] = [
        ("null", .null), ("-9223372036854775808", .integer(.min)), ("0.5", .number(0.5)),
        (
            " [1, -2.5e1, \"a\\u00e9\\ud83d\\ude00\\n\", true] ",
            .array([.integer(1), .number(-25), .string("aé😀\n"), .bool(true)])
        ),
        ("{\"a\": {}, \"b\": []}", ["a": .object([]), "b": .array([])]),
    ]

    @Test(arguments: documents)
    func readsJSON(_ text: String, _ value: JSONValue) throws {
        #expect(try JSONReader.read(Array(text.utf8)) == value)
        #expect(try JSONReader.read(Array(value.text.utf8)) == value)
    }

    @Test(arguments: [
        ("", "line 1, column 1: the document ends where a value is expected"),
        ("{\"a\": 1,\n \"a\": 2}", "line 2, column 2: duplicate key `a`"),
        ("[1,]", "line 1, column 4: expected a value"), ("[1 2]", "line 1, column 4: expected `,` or `]`"),
        ("{a: 1}", "line 1, column 2: expected a key in double quotes"),
        ("01", "line 1, column 1: a number starts with 0"), ("1.", "line 1, column 3: expected a digit"),
        ("-", "line 1, column 2: expected a digit"), ("1 1", "line 1, column 3: text after the end of the document"),
        ("\"a", "line 1, column 1: the string does not end"), ("\"\\q\"", "line 1, column 2: unknown escape"),
        ("\"\\ud800\"", "line 1, column 2: lone surrogate in a string"),
        ("\"\t\"", "line 1, column 2: control character in a string"), ("nul", "line 1, column 1: expected a value"),
        ("9223372036854775808", "line 1, column 1: the integer does not fit 64 bits"),
        ("1e999", "line 1, column 1: the number is too large"),
    ])
    func refusesWhatIsNotJSON(_ text: String, _ message: String) {
        #expect {
            try JSONReader.read(Array(text.utf8))
        } throws: {
            "\($0)" == message
        }
    }

    @Test func refusesDeepNesting() {
        let bomb = Array(repeating: UInt8(ascii: "["), count: 1_000_000)
        #expect {
            try JSONReader.read(bomb)
        } throws: {
            "\($0)".hasSuffix("more than 64 levels of nesting")
        }
    }

    @Test func refusesBytesThatAreNotUTF8() {
        #expect {
            try JSONReader.read([0x22, 0xFF, 0x22])
        } throws: {
            "\($0)" == "line 1, column 1: the string is not UTF-8"
        }
    }
}
