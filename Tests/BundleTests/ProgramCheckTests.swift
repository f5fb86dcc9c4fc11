import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import Testing

/// A sound program, changed at one place: one finding with its code and place.
@Suite struct ProgramCheckTests {
    struct Fault: CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var place: String
        var expected: String?
        var found: String?
        var change: @Sendable (inout BundleProgram) throws -> Void
    }

    private static let main = "function `main`"

    static let tableFaults: [Fault] = [
        .init(
            testDescription: "digest", code: .bundleProgramMalformed, place: "header", expected: "32 bytes",
            found: "31 bytes"
        ) { $0.programDigest.removeLast() },
        .init(testDescription: "two tensors of one name", code: .bundleName, place: "tensors", found: "bias") {
            $0.tensors[0].name = "bias"
        },
        .init(testDescription: "two states of one name", code: .bundleName, place: "states", found: "cache") {
            $0.states[1].name = "cache"
            $0.functions = []
        },
        .init(testDescription: "two functions of one name", code: .bundleName, place: "functions", found: "main") {
            $0.functions.append($0.functions[0])
        },
        .init(testDescription: "two symbols of one name", code: .bundleName, place: "symbols", found: "query") {
            $0.symbols.append($0.symbols[0])
        },
        .init(
            testDescription: "symbol that reads like a number", code: .bundleName, place: "symbols",
            expected: "letters, digits and `_`, no digit first", found: "2query"
        ) { $0.symbols[0].name = "2query" },
        .init(testDescription: "two kernels of one name", code: .bundleName, place: "kernels", found: "add") {
            $0.kernels.append("add")
        },
        .init(
            testDescription: "empty name", code: .bundleName, place: "tensors", expected: "1 to 1024 bytes",
            found: "0 bytes"
        ) { $0.tensors[1].name = "" },
        .init(testDescription: "name with NUL", code: .bundleName, place: "tensors", found: "a\u{0}b") {
            $0.tensors[1].name = "a\u{0}b"
        },
        .init(testDescription: "name with a line break", code: .bundleName, place: "tensors", found: "a\nb") {
            $0.tensors[1].name = "a\nb"
        },
        .init(testDescription: "name of 1,025 bytes", code: .bundleName, place: "kernels", found: "1025 bytes") {
            $0.kernels[2] = String(repeating: "k", count: 1025)
        },
        .init(
            testDescription: "symbol with min above max", code: .bundleSymbol, place: "symbol `query`",
            expected: "0 <= min <= max", found: "min 9, max 8"
        ) { $0.symbols[0].min = 9 },
        .init(testDescription: "symbol below zero", code: .bundleSymbol, place: "symbol `query`") {
            $0.symbols[0].min = -1
        },
        .init(testDescription: "tensor of rank nine", code: .bundleRank, place: "tensor `bias`") {
            $0.tensors[1].shape = Array(repeating: 1, count: 9)
            $0.functions = []
        },
        .init(
            testDescription: "length without type", code: .bundleTensorLength, place: "tensor `bias`",
            expected: "16 bytes", found: "20 bytes, float32[4] rowMajor"
        ) { $0.tensors[1].length = 20 },
        .init(
            testDescription: "shape that overflows", code: .bundleTensorLength, place: "tensor `bias`",
            expected: "a size below 2^63 bytes"
        ) {
            $0.tensors[1].shape = [1 << 32, 1 << 32]
            $0.functions = []
        },
        .init(
            testDescription: "panels of a vector", code: .bundleTensorLength, place: "tensor `bias`",
            expected: "a matrix of 32-bit elements for layout panel16"
        ) { $0.tensors[1].layout = .panel16 },
        .init(testDescription: "panels of 16-bit elements", code: .bundleTensorLength, place: "tensor `weight`") {
            $0.tensors[0].scalarType = .float16
            $0.functions = []
        },
        .init(
            testDescription: "tensor not aligned", code: .bundleTensorRange, place: "tensor `bias`",
            expected: "offset 512, length up to 320", found: "offset 516, length 16"
        ) { $0.tensors[1].offset = 516 },
        .init(testDescription: "tensors overlap", code: .bundleTensorRange, place: "tensor `start`") {
            $0.tensors[2].offset = 512
        },
        .init(testDescription: "hole between tensors", code: .bundleTensorRange, place: "tensor `start`") {
            $0.tensors[2].offset = 640
        },
        .init(testDescription: "tensor beyond the section", code: .bundleTensorRange, place: "tensor `more`") {
            $0.tensors.append(
                .init(name: "more", scalarType: .int8, shape: [1], layout: .rowMajor, offset: 832, length: 1))
        },
        .init(
            testDescription: "bytes after the last tensor", code: .bundleTensorRange, place: "tensors",
            expected: "528 bytes", found: "832 bytes"
        ) {
            $0.tensors.removeLast()
            $0.states[0].initialValue = .splat([0, 0, 0, 0])
            $0.states[0].initialDigest = []
        },
        .init(
            testDescription: "initial element of another size", code: .bundleInitialValue, place: "state `count`",
            expected: "8 bytes of int64", found: "05"
        ) { $0.states[1].initialValue = .splat([5]) },
        .init(testDescription: "initial boolean that is neither", code: .bundleInitialValue, place: "state `flag`") {
            $0.states.append(
                .init(name: "flag", sourceName: "", scalarType: .bool, shape: [], initialValue: .splat([2])))
        },
        .init(testDescription: "initial tensor that does not exist", code: .bundleIndex, place: "state `cache`") {
            $0.states[0].initialValue = .tensor(3)
        },
        .init(
            testDescription: "initial tensor of another shape", code: .bundleInitialValue, place: "state `cache`",
            expected: "float32[16, 4] rowMajor", found: "float32[4] rowMajor"
        ) { $0.states[0].initialValue = .tensor(1) },
        .init(
            testDescription: "digest of an initial element", code: .bundleInitialValue, place: "state `count`",
            expected: "no digest"
        ) { $0.states[1].initialDigest = Array(0..<32) },
        .init(testDescription: "initial tensor in panels", code: .bundleInitialValue, place: "state `other`") {
            $0.states.append(
                .init(
                    name: "other", sourceName: "", scalarType: .float32,
                    shape: [SizeExpression(20), SizeExpression(4)],
                    initialValue: .tensor(0), initialDigest: Array(0..<32)))
        },
        .init(
            testDescription: "initial tensor without a digest", code: .bundleInitialValue, place: "state `cache`",
            expected: "32 bytes", found: "0 bytes"
        ) { $0.states[0].initialDigest = [] },
        .init(
            testDescription: "initial tensor with a short digest", code: .bundleInitialValue, place: "state `cache`",
            expected: "32 bytes", found: "31 bytes"
        ) {
            $0.states[0].initialDigest.removeLast()
        },
    ]

    /// Positions as a second input, which indexes both states where they have rows.
    private static func addContext(_ program: inout BundleProgram, _ axes: [ContextRules.Axis]) {
        program.functions[0].inputs.append(.init(name: "positions", value: program.functions[0].values.count))
        program.functions[0].values.append(
            .init(scalarType: .int32, shape: [.symbol(0)], storage: .input(1)))
        program.functions[0].context = ContextRules(positions: 1, axes: axes)
    }

    @Test func contextRulesThatFitAreAccepted() throws {
        var program = try Fixture.program()
        Self.addContext(&program, [.init(state: 0, axis: 0)])
        try program.check(weightsLength: 832, sourceCount: 2)
        #expect(program.text().hasSuffix("    context input 1 indexes state 0 axis 0\n}\n"))
    }

    static let functionFaults: [Fault] = [
        .init(
            testDescription: "positions that are no input", code: .bundleContext, place: "\(main), context",
            expected: "0 to 1", found: "2"
        ) {
            addContext(&$0, [.init(state: 0, axis: 0)])
            $0.functions[0].context?.positions = 2
        },
        .init(
            testDescription: "positions that are no integers", code: .bundleContext, place: "\(main), context",
            expected: "int32 or int64", found: "float32"
        ) {
            addContext(&$0, [.init(state: 0, axis: 0)])
            $0.functions[0].context?.positions = 0
        },
        .init(
            testDescription: "context of no state", code: .bundleContext, place: "\(main), context",
            expected: "one state or more", found: "none"
        ) { addContext(&$0, []) },
        .init(
            testDescription: "context of a state that does not exist", code: .bundleContext,
            place: "\(main), context", expected: "0, 1", found: "2"
        ) { addContext(&$0, [.init(state: 2, axis: 0)]) },
        .init(
            testDescription: "context that names a state twice", code: .bundleContext, place: "\(main), context",
            found: "`cache` after `cache`"
        ) { addContext(&$0, [.init(state: 0, axis: 0), .init(state: 0, axis: 1)]) },
        .init(
            testDescription: "context of an axis too many", code: .bundleContext, place: "\(main), context",
            expected: "0 to 1", found: "2"
        ) { addContext(&$0, [.init(state: 0, axis: 2)]) },
        .init(
            testDescription: "context of a state without axes", code: .bundleContext, place: "\(main), context",
            expected: "an axis", found: "0"
        ) { addContext(&$0, [.init(state: 0, axis: 0), .init(state: 1, axis: 0)]) },
        .init(testDescription: "two inputs of one name", code: .bundleName, place: main, found: "x") {
            $0.functions[0].inputs.append(.init(name: "x", value: 11))
            $0.functions[0].values.append(.init(scalarType: .bool, shape: [], storage: .input(1)))
        },
        .init(testDescription: "two outputs of one name", code: .bundleName, place: main, found: "y") {
            $0.functions[0].outputs[1].name = "y"
        },
        .init(testDescription: "state named like an input", code: .bundleName, place: "\(main), state 0", found: "x") {
            $0.states[0].name = "x"
        },
        .init(testDescription: "state named like an output", code: .bundleName, place: "\(main), state 1", found: "y") {
            $0.states[1].name = "y"
        },
        .init(testDescription: "input of a value that does not exist", code: .bundleIndex, place: "\(main), input `x`")
        {
            $0.functions[0].inputs[0].value = 99
            $0.functions[0].values[0].storage = .tensor(2)
            $0.functions[0].values[0].shape = [SizeExpression(16), SizeExpression(4)]
            $0.functions[0].symbolSources = []
            for index in [3, 4, 5, 10] { $0.functions[0].values[index].shape = [] }
            $0.functions[0].values[5].storage = .view(base: 1, strides: [], offset: .zero)
            $0.functions[0].values[10].storage = .view(base: 3, strides: [], offset: .zero)
            $0.functions[0].instructions[1].ints = []
        },
        .init(
            testDescription: "state that does not exist", code: .bundleIndex, place: "\(main), state 0",
            expected: "0 to 1 of 2", found: "2"
        ) { $0.functions[0].states[0].state = 2 },
        .init(testDescription: "state listed twice", code: .bundleState, place: "\(main), state 1", found: "cache") {
            $0.functions[0].states[1].state = 0
        },
        .init(
            testDescription: "state of another shape", code: .bundleState, place: "\(main), state 0",
            expected: "float32[16, 4]", found: "float32[17, 4]"
        ) { $0.functions[0].values[1].shape[0] = SizeExpression(17) },
        .init(testDescription: "copy without a reason", code: .bundleState, place: "\(main), state 1") {
            $0.functions[0].states[1].copyReason = ""
        },
        .init(
            testDescription: "reason without a copy", code: .bundleState, place: "\(main), state 0",
            found: "0 bytes, a reason"
        ) { $0.functions[0].states[0].copyReason = "why" },
        .init(testDescription: "value of an output that does not exist", code: .bundleIndex, place: "\(main), value 11")
        {
            $0.functions[0].values.append(.init(scalarType: .float32, shape: [], storage: .output(2)))
        },
        .init(
            testDescription: "two values in one output", code: .bundleStorage, place: "\(main), value 11",
            expected: "value 4", found: "value 11"
        ) { $0.functions[0].values.append(.init(scalarType: .float32, shape: [], storage: .output(0))) },
        .init(testDescription: "tensor that does not exist", code: .bundleIndex, place: "\(main), value 7") {
            $0.functions[0].values[7].storage = .tensor(3)
        },
        .init(
            testDescription: "value of another shape than its tensor", code: .bundleStorage, place: "\(main), value 7",
            expected: "float32[4]", found: "float32[5]"
        ) { $0.functions[0].values[7].shape = [SizeExpression(5)] },
        .init(testDescription: "value of another type than its tensor", code: .bundleStorage, place: "\(main), value 7")
        {
            $0.functions[0].values[7].scalarType = .int32
        },
        .init(testDescription: "rank nine", code: .bundleRank, place: "\(main), value 3") {
            $0.functions[0].values[3].shape = Array(repeating: .one, count: 9)
        },
        .init(testDescription: "negative length", code: .bundleSize, place: "\(main), value 3", found: "-1") {
            $0.functions[0].values[3].shape = [SizeExpression(-1)]
        },
        .init(testDescription: "lifetime backwards", code: .bundleLifetime, place: "\(main), value 3", found: "2 to 0")
        {
            $0.functions[0].values[3].storage = .arena(first: 2, last: 0)
        },
        .init(
            testDescription: "lifetime past the end", code: .bundleLifetime, place: "\(main), value 3",
            expected: "first <= last <= 3"
        ) { $0.functions[0].values[3].storage = .arena(first: 0, last: 4) },
        .init(testDescription: "view of a view", code: .bundleStorage, place: "\(main), value 10", found: "value 5") {
            $0.functions[0].values[10].storage = .view(
                base: 5, strides: [SizeExpression(1), SizeExpression(4)], offset: .zero)
        },
        .init(testDescription: "view of itself", code: .bundleStorage, place: "\(main), value 10", found: "value 10") {
            $0.functions[0].values[10].storage = .view(
                base: 10, strides: [SizeExpression(1), SizeExpression(4)], offset: .zero)
        },
        .init(testDescription: "view of nothing", code: .bundleIndex, place: "\(main), value 9") {
            $0.functions[0].values[9].storage = .view(base: 11, strides: [.one], offset: .zero)
        },
        .init(testDescription: "view of another type", code: .bundleStorage, place: "\(main), value 9") {
            $0.functions[0].values[9].scalarType = .int32
        },
        .init(testDescription: "view of panels", code: .bundleStorage, place: "\(main), value 9") {
            $0.functions[0].values[9].storage = .view(base: 6, strides: [.one], offset: .zero)
        },
        .init(
            testDescription: "view with a stride too few", code: .bundleRank, place: "\(main), value 10", expected: "2",
            found: "1"
        ) { $0.functions[0].values[10].storage = .view(base: 3, strides: [.one], offset: .zero) },
        .init(
            testDescription: "view past the end", code: .bundleStorage, place: "\(main), value 9",
            expected: "inside [16, 4]", found: "shape [4], strides [1], offset 61"
        ) { $0.functions[0].values[9].storage = .view(base: 1, strides: [.one], offset: SizeExpression(61)) },
        .init(testDescription: "view before the start", code: .bundleStorage, place: "\(main), value 9") {
            $0.functions[0].values[9].storage = .view(
                base: 1, strides: [SizeExpression(-1)], offset: SizeExpression(2))
        },
        .init(testDescription: "view whose reach overflows", code: .bundleStorage, place: "\(main), value 9") {
            $0.functions[0].values[9].storage = .view(base: 1, strides: [SizeExpression(Int.max)], offset: .one)
        },
        .init(
            testDescription: "symbol without a source", code: .bundleSymbol, place: main, found: "query"
        ) { $0.functions[0].symbolSources = [] },
        .init(
            testDescription: "symbol from the wrong axis", code: .bundleSymbol, place: "\(main), symbol source 0",
            found: "4"
        ) {
            $0.functions[0].symbolSources[0].axis = 1
        },
        .init(
            testDescription: "symbol from an axis that does not exist", code: .bundleIndex,
            place: "\(main), symbol source 0"
        ) {
            $0.functions[0].symbolSources.insert(.init(symbol: 0, input: 0, axis: 2), at: 0)
        },
        .init(
            testDescription: "symbol with two sources", code: .bundleSymbol, place: "\(main), symbol source 1",
            found: "query"
        ) {
            $0.functions[0].symbolSources.append($0.functions[0].symbolSources[0])
        },
        .init(testDescription: "source of no symbol", code: .bundleIndex, place: "\(main), symbol source 1") {
            $0.functions[0].symbolSources.append(.init(symbol: 1, input: 0, axis: 0))
        },
        .init(testDescription: "source from no input", code: .bundleIndex, place: "\(main), symbol source 1") {
            $0.functions[0].symbolSources.append(.init(symbol: 0, input: 1, axis: 0))
        },
    ]

    static let instructionFaults: [Fault] = [
        .init(
            testDescription: "kernel", code: .bundleIndex, place: "\(main), instruction 1", expected: "0 to 2 of 3",
            found: "3"
        ) { $0.functions[0].instructions[1].kernel = 3 },
        .init(
            testDescription: "operand", code: .bundleIndex, place: "\(main), instruction 0 (add), operand 1",
            found: "11"
        ) { $0.functions[0].instructions[0].operands[1] = 11 },
        .init(
            testDescription: "negative operand", code: .bundleIndex,
            place: "\(main), instruction 0 (add), operand 1", found: "-2"
        ) { $0.functions[0].instructions[0].operands[1] = -2 },
        .init(testDescription: "result", code: .bundleIndex, place: "\(main), instruction 1", found: "11") {
            $0.functions[0].instructions[1].results = [11]
        },
        .init(
            testDescription: "source map entry", code: .bundleIndex, place: "\(main), instruction 0",
            expected: "0 to 1 of 2", found: "2"
        ) { $0.functions[0].instructions[0].source = 2 },
        .init(testDescription: "write of an input", code: .bundleWrite, place: "\(main), instruction 1") {
            $0.functions[0].instructions[1].results = [0]
        },
        .init(testDescription: "write of a weight", code: .bundleWrite, place: "\(main), instruction 1") {
            $0.functions[0].instructions[1].results = [7]
        },
        .init(testDescription: "write of a weight through a view", code: .bundleWrite, place: "\(main), instruction 1")
        {
            $0.functions[0].values[9].storage = .view(base: 7, strides: [.one], offset: .zero)
            $0.functions[0].instructions[1].results = [9]
        },
        .init(
            testDescription: "one result twice", code: .bundleWrite, place: "\(main), instruction 1", found: "value 5"
        ) {
            $0.functions[0].instructions[1].results = [5, 5]
        },
        .init(testDescription: "output that nothing writes", code: .bundleWrite, place: "\(main), output `rows`") {
            $0.functions[0].instructions.removeLast()
        },
        .init(
            testDescription: "read before the write", code: .bundleLifetime,
            place: "\(main), instruction 0 (add), operand 0", found: "value 3"
        ) { $0.functions[0].instructions[0].operands[0] = 3 },
        .init(
            testDescription: "read through a view before the write", code: .bundleLifetime,
            place: "\(main), instruction 0 (add), operand 0", found: "value 10"
        ) { $0.functions[0].instructions[0].operands[0] = 10 },
        .init(
            testDescription: "output read before the write", code: .bundleLifetime,
            place: "\(main), instruction 0 (add), operand 0", found: "value 8"
        ) { $0.functions[0].instructions[0].operands[0] = 8 },
        .init(
            testDescription: "use after the lifetime", code: .bundleLifetime,
            place: "\(main), instruction 2 (linear), operand 0", expected: "instruction 0 to 1",
            found: "value 3 in instruction 2"
        ) { $0.functions[0].values[3].storage = .arena(first: 0, last: 1) },
        .init(
            testDescription: "use of a view after the lifetime", code: .bundleLifetime,
            place: "\(main), instruction 3 (copy), operand 0", expected: "instruction 0 to 2",
            found: "value 10 in instruction 3"
        ) { $0.functions[0].instructions[3].operands = [10] },
        .init(testDescription: "write before the lifetime", code: .bundleLifetime, place: "\(main), instruction 0") {
            $0.functions[0].values[3].storage = .arena(first: 1, last: 2)
        },
    ]

    @Test("One fault in the tables gives one finding", arguments: tableFaults)
    func table(_ fault: Fault) throws { try check(fault) }

    @Test("One fault in a function gives one finding", arguments: functionFaults)
    func function(_ fault: Fault) throws { try check(fault) }

    @Test("One fault in an instruction gives one finding", arguments: instructionFaults)
    func instruction(_ fault: Fault) throws { try check(fault) }

    private func check(_ fault: Fault) throws {
        var program = try Fixture.program()
        let weights = Fixture.weights(of: program)
        try fault.change(&program)
        do {
            try program.check(weightsLength: weights.count, sourceCount: 2, file: "x")
            Issue.record("no finding")
        } catch {
            #expect(error.diagnostics.count == 1, "\(error)")
            let found = error.diagnostics[0]
            #expect(found.code == fault.code, "\(error)")
            #expect(found.location == "x, section program, \(fault.place)")
            if let expected = fault.expected { #expect(found.expected == expected) }
            if let value = fault.found { #expect(found.found == value) }
            #expect(found.code.exitCode == 3)
            let text = ExactTexts.expected("BundleProgram", fault.testDescription, actual: error.diagnostics)
            #expect(found.description == text)
        }
    }

    @Test func argumentsWhoseValuesLieElsewhereAreFound() throws {
        for (id, change) in [
            ("input", { $0.functions[0].inputs[0].value = 3 }), ("output", { $0.functions[0].outputs[0].value = 3 }),
            ("state", { $0.functions[0].states[0].value = 3 }),
            ("splat with a digest", { $0.states[1].initialDigest = [1] }),
            ("digest of one byte", { $0.states[0].initialDigest = [1] }),
        ] as [(String, (inout BundleProgram) -> Void)] {
            var program = try Fixture.program()
            let weights = Fixture.weights(of: program)
            change(&program)
            do throws(DiagnosticList) {
                try program.check(weightsLength: weights.count, sourceCount: 2, file: "x")
                Issue.record("no finding")
            } catch {
                #expect(error.description == ExactTexts.expected("BundleArguments", id, actual: error.diagnostics))
            }
        }
    }

    @Test func unknownSymbolOfASizeIsFound() throws {
        var program = try Fixture.program()
        program.functions[0].instructions[1].ints = [.symbol(1)]
        do throws(DiagnosticList) {
            try program.check(weightsLength: 832, sourceCount: 2)
            Issue.record("no finding")
        } catch {
            #expect(error.diagnostics.map(\.code) == [.bundleSize])
            #expect(
                error.description
                    == ExactTexts.expected("BundleProgram", "unknown symbol of a size", actual: error.diagnostics))
        }
    }

    @Test func atMostTwentyFindingsAreKept() throws {
        var program = try Fixture.program()
        program.kernels = (0..<50).map { _ in "same" }
        #expect {
            try program.check(weightsLength: 832, sourceCount: 2)
        } throws: {
            ($0 as? DiagnosticList)?.diagnostics.count == 20
        }
    }

    @Test func severalFaultsAreReportedAtOnce() throws {
        var program = try Fixture.program()
        program.states[1].initialValue = .splat([])
        program.symbols[0].max = 0
        program.functions[0].values[9].scalarType = .bool
        #expect {
            try program.check(weightsLength: 832, sourceCount: 2)
        } throws: {
            ($0 as? DiagnosticList)?.diagnostics.map(\.code) == [.bundleSymbol, .bundleInitialValue, .bundleStorage]
        }
    }

    @Test func faultsOfAFileAreFoundWhenItIsOpened() throws {
        let folder = TemporaryFolder()
        var program = try Fixture.program()
        program.functions[0].instructions[0].operands[0] = 3
        try Fixture.write(program, to: folder.file("bad.statepack"))
        #expect {
            try MappedBundle(path: folder.file("bad.statepack"))
        } throws: {
            ($0 as? DiagnosticList)?.diagnostics.map(\.code) == [.bundleLifetime]
        }
    }

    @Test(
        arguments: [
            ([2, 3], [3, 1], 0, [6], true), ([2, 3], [3, 1], 1, [6], false), ([], [], 0, [], true),
            ([], [], 1, [], false),
            ([0], [100], 100, [1], true), ([3], [-1], 2, [3], true), ([3], [-1], 1, [3], false),
            ([5], [0], 4, [5], true),
            ([2, 2], [1, -1], 1, [3], true), ([2, 2], [1, -1], 0, [3], false), ([1], [.max], 0, [1], true),
            ([3], [.max], 0, [1], false), ([2], [.max], 1, [.max], false), ([1], [1], 0, [0], false),
            ([1], [1], 0, [.max, .max], false), ([-1], [1], 0, [1], false),
        ] as [([Int], [Int], Int, [Int], Bool)])
    func viewRangeKnowsWhatIsInside(shape: [Int], strides: [Int], offset: Int, baseShape: [Int], isInside: Bool) {
        #expect(
            ViewRange.isInside(shape: shape, strides: strides, offset: offset, baseShape: baseShape) == isInside)
    }
}
