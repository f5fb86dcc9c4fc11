import StatepackBundle
import StatepackTool
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct DescribeTests {
    @Test func exportedProgramAndBundleHaveTheSameContractToTheByte() async throws {
        let folder = try ConvertTests.exampleFolder()
        #expect(await ToolRun("convert", folder / "exported.pb").status == 0)
        let committed = try Golden.bytes(
            Repository.path("examples/01-stateful-transformer/exported.contract.json"))
        for name in ["exported.pb", "exported.statepack"] {
            let run = await ToolRun("statepack", "describe", folder / name)
            #expect(run.status == 0)
            #expect(run.diagnostics == "")
            #expect(Array(run.results.utf8) == committed)
            let inspect = await ToolRun("statepack", "inspect", "--json", folder / name)
            #expect(inspect.results == run.results)
            let written = await ToolRun("statepack", "describe", folder / name, "-o", folder / "c.contract.json")
            #expect(written.status == 0)
            #expect(written.results == "")
            #expect(try folder.read("c.contract.json") == committed)
        }
        #expect(folder.names == ["c.contract.json", "exported.pb", "exported.statepack"])
    }

    @Test func contractOfTwoFunctionsIsTheGoldenText() async throws {
        let folder = TestFolder()
        try RichModel.write(RichModel.program(), to: folder / "model.statepack")
        let run = await ToolRun("statepack", "describe", folder / "model.statepack")
        #expect(run.results == (try Golden.text("two-functions.contract.json", actual: run.results)))
    }

    /// Results are lines of a terminal and of a log: a name is a part of one.
    @Test func aNameNeitherEndsNorReordersALineOfResults() async throws {
        let folder = TestFolder()
        var program = try RichModel.program()
        program.states[0].name = "keys\u{2028}verdict  holds"
        program.functions[0].name = "\u{202E}llifer\u{200B}"
        program.functions[0].outputs[0].name = "logits\u{A0}"
        try RichModel.write(program, to: folder / "model.statepack")
        let inspect = await ToolRun("statepack", "inspect", folder / "model.statepack")
        let validate = await ToolRun("validate", folder / "model.statepack", "--no-replay")
        for (run, shown) in [
            (inspect, ["keys\\u{2028}verdict  holds", "\\u{202E}llifer\\u{200B}", "logits\\u{A0}"]),
            (validate, ["\\u{202E}llifer\\u{200B}"]),
        ] {
            #expect(run.status == 0)
            for name in shown { #expect(run.results.contains(name)) }
            let hidden: [Unicode.Scalar] = ["\u{2028}", "\u{202E}", "\u{200B}", "\u{A0}"]
            #expect(!run.results.unicodeScalars.contains { hidden.contains($0) })
        }
    }

    @Test func contractDoesNotOverwriteItsModel() async throws {
        let folder = try ConvertTests.exampleFolder()
        let before = try folder.read("exported.pb")
        let run = await ToolRun("statepack", "describe", folder / "exported.pb", "-o", folder / "exported.pb")
        #expect(run.status == 2)
        #expect(
            run.diagnostics == """
                error[E0732]: --output would overwrite a file that the command reads
                  --> \(folder / "exported.pb")
                  expected: a path other than \(folder / "exported.pb")
                  found:    \(folder / "exported.pb")

                """)
        #expect(try folder.read("exported.pb") == before)
    }

    @Test func contractThatCannotBeWrittenIsAnOutputFault() async throws {
        let run = await ToolRun("statepack", "describe", Repository.example, "-o", "/missing/c.contract.json")
        #expect(run.status == 5)
        #expect(
            run.diagnostics == """
                error[E0731]: the output cannot be written: No such file or directory
                  --> /missing/c.contract.json
                  hint:     create the folder /missing first

                """)
    }

    #if os(Linux)
        /// 4 GiB of weights that nobody may touch: not a page of them comes into memory.
        @Test func describeAndDiffReadNoWeightsOfALargeBundle() async throws {
            let folder = TestFolder()
            let path = folder / "large.statepack"
            let bytes = 4 << 30
            var program = try RichModel.program()
            program.tensors.append(
                .init(
                    name: "big", scalarType: .float32, shape: [bytes / 4], layout: .rowMajor, offset: 64, length: bytes)
            )
            try LargeBundle.write(program, weightsLength: 64 + bytes, to: path)
            try RichModel.write(RichModel.program(), to: folder / "small.statepack")
            let described = await ToolRun("statepack", "describe", path)
            folder.write(described.results.utf8, to: "large.contract.json")
            for words in [
                ["describe", path], ["contract", path],
                ["diff", folder / "large.contract.json", path, "--fail-on", "any"],
                ["diff", folder / "small.statepack", path, "--fail-on", "breaking"],
            ] {
                var shortest = Duration.seconds(3600)
                // The shortest of ten, for other processes may take the time of any one.
                for _ in 0..<10 {
                    let start = ContinuousClock.now
                    let run = await ToolRun("statepack", words)
                    shortest = min(shortest, ContinuousClock.now - start)
                    #expect(run.status == 0, "\(words): \(run.diagnostics)")
                }
                #expect(shortest < .milliseconds(100), "\(words)")
            }
            #expect(try LargeBundle.residentBytes(of: path) < 16 << 20)
        }
    #endif

    struct Fill: CustomTestStringConvertible {
        var type: ScalarType
        var bits: UInt64
        /// As it stands in the document.
        var text: String

        var testDescription: String { "\(type) \(text)" }
    }

    static let fills = [
        Fill(type: .bool, bits: 1, text: "true"), Fill(type: .bool, bits: 0, text: "false"),
        Fill(type: .int8, bits: 0x80, text: "-128"), Fill(type: .uint8, bits: 0xFF, text: "255"),
        Fill(type: .int16, bits: 0xFFFF, text: "-1"), Fill(type: .uint32, bits: 0xFFFF_FFFF, text: "4294967295"),
        Fill(type: .int64, bits: 1 << 63, text: "-9223372036854775808"),
        Fill(type: .uint64, bits: .max, text: "\"18446744073709551615\""),
        Fill(type: .float32, bits: 0x3DCC_CCCD, text: "0.1"), Fill(type: .float32, bits: 0x3F80_0000, text: "1"),
        Fill(type: .float32, bits: 0x8000_0000, text: "\"-0.0\""),
        Fill(type: .float32, bits: 0xFF80_0000, text: "\"-infinity\""),
        Fill(type: .float32, bits: 0x7FC0_0000, text: "\"nan\""),
        Fill(type: .float32, bits: 0x7FC0_0001, text: "\"0x7fc00001\""),
        Fill(type: .float32, bits: 0xFFC0_0000, text: "\"0xffc00000\""),
        Fill(type: .float32, bits: 1, text: "1e-45"), Fill(type: .float64, bits: 1, text: "5e-324"),
        Fill(type: .float64, bits: 0x7FF0_0000_0000_0000, text: "\"infinity\""),
        Fill(type: .float64, bits: 0x3FB9_9999_9999_999A, text: "0.1"),
        Fill(type: .float16, bits: 0xFBFF, text: "-65504"), Fill(type: .float16, bits: 0x2E66, text: "0.099975586"),
        Fill(type: .float16, bits: 0x7E01, text: "\"0x7e01\""),
        Fill(type: .bfloat16, bits: 0x3DCD, text: "0.100097656"),
        Fill(type: .bfloat16, bits: 0x7F80, text: "\"infinity\""),
    ]

    static func contract(_ type: ScalarType, _ bits: UInt64) -> Contract {
        let bytes = (0..<type.byteCount).map { UInt8(truncatingIfNeeded: bits >> UInt64(8 * $0)) }
        return Contract(
            symbols: [],
            functions: [
                .init(
                    name: "main", inputs: [],
                    states: [
                        .init(
                            name: "state", scalarType: type, shape: [],
                            rules: .init(initialValue: .fill(bytes), writtenBy: "none"))
                    ], outputs: [])
            ])
    }

    @Test(arguments: fills)
    func initialElementIsReadableAndKeepsItsBits(_ row: Fill) throws {
        let contract = Self.contract(row.type, row.bits)
        let text = contract.json.text
        #expect(text.contains("\"initialValue\": {\"fill\": \(row.text)}"), "\(text)")
        #expect(try Contract(json: Array(text.utf8), file: "c.json") == contract)
    }

    @Test(arguments: [ScalarType.float16, .bfloat16])
    func every16BitPatternKeepsItsBits(_ type: ScalarType) throws {
        for pattern in stride(from: 0, through: 0xFFFF, by: 97) {
            let contract = Self.contract(type, UInt64(pattern))
            #expect(try Contract(json: Array(contract.json.text.utf8), file: "c.json") == contract)
        }
    }

    @Test(arguments: [
        (ScalarType.int8, "128", "an integer that int8 holds", "128"),
        (.uint8, "-1", "an integer that uint8 holds", "-1"), (.bool, "1", "true or false", "1"),
        (.int32, "0.5", "an integer that int32 holds", "0.5"),
        (.int32, "\"5\"", "an integer that int32 holds", "\"5\""),
        (
            .float16, "65520.5",
            "a number that float16 holds, \"-0.0\", \"infinity\", \"-infinity\", \"nan\", or bits such as \"0x0000\"",
            "65520.5"
        ),
        (
            .float32, "\"0x7fc0\"",
            "a number that float32 holds, \"-0.0\", \"infinity\", \"-infinity\", \"nan\", or bits such as \"0x00000000\"",
            "\"0x7fc0\""
        ), (.int64, "null", "an integer that int64 holds", "null"),
    ])
    func elementThatTheTypeDoesNotHoldIsRefused(
        _ type: ScalarType, _ text: String, _ expected: String, _ found: String
    ) throws {
        let document = Self.contract(type, 0).json.text.replacing(
            "{\"fill\": \(type == .bool ? "false" : "0")}", with: "{\"fill\": \(text)}")
        let error = #expect(throws: (any Error).self) { try Contract(json: Array(document.utf8), file: "c.json") }
        #expect(
            "\(error!)" == """
                error[E0711]: the fill is no \(type)
                  --> c.json, functions[0].states[0].initialValue.fill
                  expected: \(expected)
                  found:    \(found)
                """)
    }

    @Test(arguments: [
        ("{\"sha256\": \"abc\"}", "the digest is invalid", "c.json, functions[0].states[0].initialValue.sha256"),
        ("{\"sha\": \"abc\"}", "unknown key `sha`", "c.json, functions[0].states[0].initialValue"),
        ("{}", "the contract has the wrong kind of value", "c.json, functions[0].states[0].initialValue"),
        ("0", "the contract has the wrong kind of value", "c.json, functions[0].states[0].initialValue"),
    ])
    func initialValueOfAnotherFormIsRefused(_ text: String, _ message: String, _ location: String) throws {
        let document = Self.contract(.float32, 0).json.text.replacing("{\"fill\": 0}", with: text)
        let error = #expect(throws: (any Error).self) { try Contract(json: Array(document.utf8), file: "c.json") }
        #expect("\(error!)".hasPrefix("error[E0711]: \(message)\n  --> \(location)\n"), "\(error!)")
    }

    @Test(arguments: [
        ("{\"positions\": \"x\"}", "the key `axes` is missing", "c.json, functions[0].context"),
        (
            "{\"positions\": \"x\", \"axes\": {}}", "the contract has the wrong kind of value",
            "c.json, functions[0].context.axes"
        ),
        (
            "{\"positions\": \"x\", \"axes\": {\"state\": -1}}", "the axis is invalid",
            "c.json, functions[0].context.axes.state"
        ),
        (
            "{\"positions\": 3, \"axes\": {\"state\": 1}}", "the contract has the wrong kind of value",
            "c.json, functions[0].context.positions"
        ),
    ])
    func contextRulesOfAnotherFormAreRefused(_ text: String, _ message: String, _ location: String) throws {
        let document = Self.contract(.float32, 0).json.text.replacing(
            "\"outputs\": []", with: "\"outputs\": [], \"context\": \(text)")
        let error = #expect(throws: (any Error).self) { try Contract(json: Array(document.utf8), file: "c.json") }
        #expect("\(error!)".hasPrefix("error[E0711]: \(message)\n  --> \(location)\n"), "\(error!)")
    }
}

#if os(Linux)
    /// A bundle whose weights are a hole in the file.
    enum LargeBundle {
        struct Failure: Error { var step: String }

        static func write(_ program: BundleProgram, weightsLength: Int, to path: String) throws {
            try RichModel.write(program, weights: [0], to: path)
            // Row 1 of the section table is the weights': offset at 8, length at 16.
            let row = FileLayout.headerBytes + FileLayout.sectionEntryBytes
            let tableEnd = row + FileLayout.sectionEntryBytes
            let descriptor = open(path, O_RDWR)
            defer { close(descriptor) }
            var head = [UInt8](repeating: 0, count: tableEnd)
            guard pread(descriptor, &head, tableEnd, 0) == tableEnd else { throw Failure(step: "read") }
            func put(_ value: Int, at offset: Int) {
                for index in 0..<8 { head[offset + index] = UInt8(truncatingIfNeeded: value >> (8 * index)) }
            }
            let start = (0..<8).reduce(0) { $0 | Int(head[row + 8 + $1]) << (8 * $1) }
            put(weightsLength, at: row + 16)
            put(start + weightsLength, at: 16)
            // The header's checksum lies at 28 and leaves itself out.
            let sum = crc32c(Array(head[..<28]) + Array(head[32...]))
            for index in 0..<4 { head[28 + index] = UInt8(truncatingIfNeeded: sum >> UInt32(8 * index)) }
            guard pwrite(descriptor, head, tableEnd, 0) == tableEnd else { throw Failure(step: "write") }
            guard ftruncate(descriptor, start) == 0, ftruncate(descriptor, start + weightsLength) == 0 else {
                throw Failure(step: "truncate")
            }
        }

        static func residentBytes(of path: String) throws -> Int {
            let descriptor = open(path, O_RDONLY)
            defer { close(descriptor) }
            var status = stat()
            fstat(descriptor, &status)
            let length = Int(status.st_size)
            guard let address = mmap(nil, length, PROT_READ, MAP_SHARED, descriptor, 0), address != MAP_FAILED else {
                throw Failure(step: "map")
            }
            defer { munmap(address, length) }
            let page = Int(sysconf(Int32(_SC_PAGESIZE)))
            var pages = [UInt8](repeating: 0, count: (length + page - 1) / page)
            guard mincore(address, length, &pages) == 0 else { throw Failure(step: "mincore") }
            return pages.count { $0 & 1 != 0 } * page
        }

        private static func crc32c(_ bytes: [UInt8]) -> UInt32 {
            ~bytes.reduce(~0 as UInt32) { sum, byte in
                (0..<8).reduce(sum ^ UInt32(byte)) { value, _ in value >> 1 ^ (value & 1 != 0 ? 0x82F6_3B78 : 0) }
            }
        }
    }
#endif
