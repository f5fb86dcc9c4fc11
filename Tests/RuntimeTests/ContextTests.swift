import Foundation
import Statepack
import StatepackBundle
import Testing

/// What a run does with positions that its states have no row for.
struct ContextTests {
    static let capacity = 8

    /// Writes `rows` at `positions` into two caches, after counting the call: a late check would show.
    private static func builder(
        _ type: StatepackBundle.ScalarType, valueCapacity: Int = capacity, symbolic: Bool = false
    ) -> ProgramBuilder {
        var builder = ProgramBuilder()
        let length = builder.symbol("length", 0...64)
        let rows = builder.symbol("rows", 1...64)
        let capacity = symbolic ? rows : SizeExpression(capacity)
        let keys = builder.state("keyCache", .float32, [SizeExpression(2), capacity])
        let values = builder.state("valueCache", .float32, [symbolic ? rows : SizeExpression(valueCapacity)])
        let calls = builder.state("calls", .float32, [SizeExpression(1)])
        _ = builder.input("unused", .float32, [rows])
        let positions = builder.input("positions", type, [length])
        let new = builder.input("new", .float32, [length])
        let one = builder.weight("one", [1] as [Float], [1])
        builder.emit("add", [calls, one], [calls])
        builder.emit("index_copy", [values, positions, new], [values], ints: [.zero])
        let first = builder.view(of: keys, [capacity], strides: [.one], offset: .zero)
        builder.emit("index_copy", [first, positions, new], [first], ints: [.zero])
        builder.setContext(positions: "positions", axes: [("keyCache", 1), ("valueCache", 0)])
        return builder
    }

    private static func states(_ capacity: Int = capacity) -> [String: NDArray] {
        [
            "keyCache": NDArray(scalars: (0..<2 * capacity).map { Float($0) }, shape: [2, capacity]),
            "valueCache": NDArray(scalars: (0..<capacity).map { Float(100 + $0) }, shape: [capacity]),
            "calls": NDArray(scalars: [0] as [Float], shape: [1]),
        ]
    }

    private static func array(_ positions: [Int], _ type: StatepackBundle.ScalarType) -> NDArray {
        type == .int64
            ? NDArray(scalars: positions.map(Int64.init), shape: [positions.count])
            : NDArray(scalars: positions.map(Int32.init), shape: [positions.count])
    }

    private static func inputs(_ positions: NDArray, rows: Int = capacity) -> [String: NDArray] {
        [
            "positions": positions, "unused": NDArray(shape: [rows], scalarType: .float32),
            "new": NDArray(
                scalars: positions.shape == [0] ? [] : (1...positions.shape[0]).map { Float(-$0) },
                shape: positions.shape),
        ]
    }

    private static func run(
        _ function: InferenceFunction, _ positions: NDArray, _ states: inout [String: NDArray], rows: Int = capacity
    ) throws {
        var views = InferenceFunction.MutableViews()
        views.insert(contentsOf: &states)
        _ = try function.runSynchronously(inputs: inputs(positions, rows: rows), states: views)
    }

    private static func everyByte(_ states: [String: NDArray]) -> [String: [UInt8]] { states.mapValues(bytes) }

    struct Case: Sendable, CustomTestStringConvertible {
        var positions: [Int]
        /// Nil when the run is fine.
        var kind: ContextViolation.Kind?
        var position = 0
        var types: [StatepackBundle.ScalarType] = [.int32, .int64]

        var testDescription: String { "\(positions)" }
    }

    static let cases: [Case] = [
        .init(positions: []), .init(positions: [0]), .init(positions: [capacity - 1]),
        .init(positions: Array(0..<capacity)),
        .init(positions: [capacity], kind: .contextFull, position: capacity),
        .init(positions: [capacity + 1], kind: .positionOutOfRange, position: capacity + 1),
        .init(positions: [-1], kind: .positionOutOfRange, position: -1),
        .init(positions: [-capacity], kind: .positionOutOfRange, position: -capacity),
        .init(positions: [Int(Int32.max)], kind: .positionOutOfRange, position: Int(Int32.max)),
        .init(positions: [Int(Int32.min)], kind: .positionOutOfRange, position: Int(Int32.min)),
        .init(positions: [1 << 31], kind: .positionOutOfRange, position: 1 << 31, types: [.int64]),
        .init(positions: [1 << 40], kind: .positionOutOfRange, position: 1 << 40, types: [.int64]),
        // Cut to 32 bits it would be row 3.
        .init(positions: [1 << 40 | 3], kind: .positionOutOfRange, position: 1 << 40 | 3, types: [.int64]),
        .init(positions: [.max], kind: .positionOutOfRange, position: .max, types: [.int64]),
        .init(positions: [.min], kind: .positionOutOfRange, position: .min, types: [.int64]),
        // A block that straddles the capacity is full, one that leaves rows out is wrong.
        .init(positions: [6, 7, 8, 9], kind: .contextFull, position: 8),
        .init(positions: [9, 8], kind: .contextFull, position: 8),
        .init(positions: [6, 7, 9, 10], kind: .positionOutOfRange, position: 9),
        .init(positions: [8, -1], kind: .positionOutOfRange, position: -1),
        .init(positions: [-1, -3, 7], kind: .positionOutOfRange, position: -3),
    ]

    @Test(arguments: cases)
    func aPositionWithoutARowIsRefusedAndNothingIsWritten(_ row: Case) async throws {
        for type in row.types {
            let function = try #require(try Self.builder(type).model().loadFunction(named: "main"))
            var states = Self.states()
            let before = Self.everyByte(states)
            var error: StatepackError?
            do { try Self.run(function, Self.array(row.positions, type), &states) } catch let found as StatepackError {
                error = found
            }
            #expect(error?.contextViolation?.kind == row.kind)
            guard let kind = row.kind else {
                #expect(floats(states["calls"]!) == [1])
                continue
            }
            #expect(Self.everyByte(states) == before)
            #expect(
                error?.contextViolation
                    == ContextViolation(
                        kind: kind, function: "main", input: "positions", state: "keyCache", axis: 1,
                        position: row.position, capacity: Self.capacity))
            #expect(error?.code == (kind == .contextFull ? .contextFull : .positionOutOfRange))
            // The next call is served as if there had been none.
            try Self.run(function, Self.array([2], type), &states)
            #expect(floats(states["calls"]!) == [1])
            #expect(floats(states["keyCache"]!)[..<4] == [0, 1, -1, 3])

            // The asynchronous form checks as well, on whatever thread it is called.
            let again = Self.everyByte(states)
            do {
                var views = InferenceFunction.MutableViews()
                views.insert(contentsOf: &states)
                let inputs = Self.inputs(Self.array(row.positions, type))
                _ = try await function.run(inputs: inputs, states: views)
                Issue.record("it was accepted")
            } catch let found as StatepackError { #expect(found == error) }
            #expect(Self.everyByte(states) == again)
        }
    }

    @Test func theTextSaysWhatToDo() throws {
        let function = try #require(try Self.builder(.int64).model().loadFunction(named: "main"))
        var states = Self.states()
        func text(_ position: Int) throws -> String {
            do { try Self.run(function, Self.array([position], .int64), &states) } catch let error as StatepackError {
                #expect(error.localizedDescription == error.description)
                return "\(error)"
            }
            return "none"
        }
        #expect(
            try text(8) == """
                error[E0617]: the context is full: state `keyCache` has 8 rows and position 8 is the next one
                  --> function `main`, input `positions`
                  expected: positions in 0..<8, the length of axis 1 of state `keyCache`
                  found:    8
                  hint:     start from fresh states, drop old rows, or export with a larger capacity; no state was changed
                """)
        #expect(
            try text(-1) == """
                error[E0618]: position -1 is outside the 8 rows of state `keyCache`
                  --> function `main`, input `positions`
                  expected: positions in 0..<8, the length of axis 1 of state `keyCache`
                  found:    -1
                  hint:     positions count from 0 and follow each other; no state was changed
                """)
    }

    @Test func theSmallestOfSeveralCapacitiesCounts() throws {
        let function = try #require(try Self.builder(.int32, valueCapacity: 5).model().loadFunction(named: "main"))
        var states = Self.states()
        states["valueCache"] = NDArray(shape: [5], scalarType: .float32)
        let before = Self.everyByte(states)
        #expect {
            try Self.run(function, Self.array([5], .int32), &states)
        } throws: {
            let found = ($0 as? StatepackError)?.contextViolation
            return found?.state == "valueCache" && found?.capacity == 5 && found?.axis == 0
                && found?.kind == .contextFull
        }
        #expect(Self.everyByte(states) == before)
    }

    /// The capacity of a state with a dynamic axis is that of the array that is given.
    @Test(arguments: [1, 3, 64]) func aDynamicCapacityIsTheArraysOwn(capacity: Int) throws {
        let function = try #require(
            try Self.builder(.int64, symbolic: true).model().loadFunction(named: "main"))
        var states = Self.states(capacity)
        try Self.run(function, Self.array([capacity - 1], .int64), &states, rows: capacity)
        let before = Self.everyByte(states)
        #expect {
            try Self.run(function, Self.array([capacity], .int64), &states, rows: capacity)
        } throws: {
            ($0 as? StatepackError)?.contextViolation?.capacity == capacity
        }
        #expect(Self.everyByte(states) == before)
        let rules = try #require(function.descriptor.contextRules)
        #expect(rules.capacity(ofState: "keyCache") == nil && rules.axes == ["keyCache": 1, "valueCache": 0])
    }

    /// Every second element of a column that is read backwards.
    @Test func positionsMayLieAnywhere() throws {
        let function = try #require(try Self.builder(.int64).model().loadFunction(named: "main"))
        for (last, isFine) in [(7, true), (8, false)] {
            let storage = [Int64(last), 99, 1, 99, 0]
            var states = Self.states()
            var views = InferenceFunction.MutableViews()
            views.insert(contentsOf: &states)
            var inputs = InferenceFunction.Inputs()
            let positions = NDArray.View(span: storage.span, shape: [3], strides: [2])
            inputs.insert(positions, for: "positions")
            let (unused, new) = (NDArray(shape: [8], scalarType: .float32), NDArray(shape: [3], scalarType: .float32))
            inputs.insert(unused, for: "unused")
            inputs.insert(new, for: "new")
            do {
                _ = try function.runSynchronously(inputs: inputs, states: views)
                #expect(isFine)
            } catch let error as StatepackError {
                #expect(!isFine && error.contextViolation?.position == 8)
            }
        }
    }

    @Test func theDescriptorTellsTheRules() throws {
        let function = try #require(try Self.builder(.int64).model().loadFunction(named: "main"))
        let rules = try #require(function.descriptor.contextRules)
        #expect(rules.positionsInputName == "positions")
        #expect(rules.axes == ["keyCache": 1, "valueCache": 0])
        #expect(rules.capacity(ofState: "valueCache") == 8 && rules.capacity(ofState: "calls") == nil)
        var plain = Self.builder(.int64)
        plain.removeContext()
        let free = try #require(try plain.model().loadFunction(named: "main"))
        #expect(free.descriptor.contextRules == nil)
        var states = Self.states()
        #expect {
            try Self.run(free, Self.array([8], .int64), &states)
        } throws: {
            ($0 as? StatepackError)?.code == .indexOutOfRange
        }
    }
}
