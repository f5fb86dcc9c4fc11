import StatepackBundle
import StatepackCompiler
import StatepackIR
import Testing

@Suite struct FuseRotaryTests {
    /// A rotary embedding of `x` as transformers exports it, with parts of it replaced.
    static func embedding(
        cos: String = "float32[1, 1, n, 4]", upper: String = "start=2, end=4", lower: String = "start=0, end=2",
        parts: String = "[%4, %5]", last: String = "add(a=%7, b=%8)", extraOutput: String = ""
    ) -> String {
        """
        symbol n 1...4
        func "main" {
            input %0 "x": float32[1, 3, n, 4]
            input %1 "cos": \(cos)
            input %2 "sin": float32[1, 1, n, 4]
            %3: float32[1, 3, n, 2] = view.slice(a=%0, dim=3, \(upper), step=1)
            %4: float32[1, 3, n, 2] = neg(a=%3)
            %5: float32[1, 3, n, 2] = view.slice(a=%0, dim=3, \(lower), step=1)
            %6: float32[1, 3, n, 4] = cat(parts=\(parts), axis=3)
            %7: float32[1, 3, n, 4] = mul(a=%0, b=%1)
            %8: float32[1, 3, n, 4] = mul(a=%6, b=%2)
            %9: float32[1, 3, n, 4] = \(last)
            output %9 "y"
            \(extraOutput)
        }
        """
    }

    @Test func turnsRowsInOneInstruction() throws {
        for last in ["add(a=%7, b=%8)", "add(a=%8, b=%7)"] {
            let (body, counters) = try FuseOpsTests.fuse(Self.embedding(last: last))
            #expect(counters["rotary"] == 1)
            #expect(
                body == """
                    func "main" {
                        input %0 "x": float32[1, 3, n, 4]
                        input %1 "cos": float32[1, 1, n, 4]
                        input %2 "sin": float32[1, 1, n, 4]
                        %3: float32[1, 3, n, 4] = rotary(a=%0, cos=%1, sin=%2)
                        output %3 "y"
                    }

                    """)
        }
    }

    @Test(
        arguments: [
            (Self.embedding(cos: "float32[1]"), "cosines of another length"),
            (Self.embedding(upper: "start=1, end=3"), "another part that is negated"),
            (Self.embedding(lower: "start=2, end=4"), "the upper half twice"),
            (Self.embedding(parts: "[%5, %4]"), "halves the other way round"),
            (Self.embedding(last: "sub(a=%7, b=%8)"), "a difference"),
            (Self.embedding(extraOutput: "output %6 \"halves\""), "halves that something else uses"),
            (Self.embedding(extraOutput: "output %4 \"negated\""), "a negated half that something else uses"),
            (Self.embedding(extraOutput: "output %8 \"turned\""), "a product that something else uses"),
        ])
    func keeps(_ text: String, _ claim: String) throws {
        let (body, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["rotary"] == nil, "\(claim)")
        #expect(!body.contains("rotary"), "\(claim)")
    }

    @Test func leavesEmbeddingsAloneWhenDisabled() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.embedding(), disabled: ["rotary"])
        #expect(counters["rotary"] == nil)
        #expect(body.contains("cat("))
    }

    static func partial(tail: String = "start=4, end=6", extraOutput: String = "") -> String {
        """
        symbol n 1...4
        func "main" {
            input %0 "x": float32[1, 3, n, 6]
            input %1 "cos": float32[n, 4]
            input %2 "sin": float32[n, 4]
            %3: float32[1, 3, n, 4] = view.slice(a=%0, dim=3, start=0, end=4, step=1)
            %4: float32[1, 3, n, 2] = view.slice(a=%0, dim=3, \(tail), step=1)
            %5: float32[1, 3, n, 4] = mul(a=%3, b=%1)
            %6: float32[1, 3, n, 2] = view.slice(a=%3, dim=3, start=2, end=4, step=1)
            %7: float32[1, 3, n, 2] = neg(a=%6)
            %8: float32[1, 3, n, 2] = view.slice(a=%3, dim=3, start=0, end=2, step=1)
            %9: float32[1, 3, n, 4] = cat(parts=[%7, %8], axis=3)
            %10: float32[1, 3, n, 4] = mul(a=%9, b=%2)
            %11: float32[1, 3, n, 4] = add(a=%5, b=%10)
            %12: float32[1, 3, n, 6] = cat(parts=[%11, %4], axis=3)
            output %12 "y"
            \(extraOutput)
        }
        """
    }

    @Test func passesTheTailOfARowThrough() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.partial())
        #expect(counters["rotary"] == 1)
        #expect(body.contains("%3: float32[1, 3, n, 6] = rotary(a=%0, cos=%1, sin=%2)\n    output %3"))
    }

    @Test func joinsOnlyTheTailThatFollows() throws {
        for text in [Self.partial(tail: "start=3, end=5"), Self.partial(extraOutput: "output %11 \"turned\"")] {
            let (body, counters) = try FuseOpsTests.fuse(text)
            #expect(counters["rotary"] == 1)
            #expect(body.contains("cat("))
        }
    }

    // MARK: Writes

    /// Keys that are turned and written into a state, with parts of it replaced.
    static func write(source: String = "%10", axis: Int = 2, extraNode: String = "", extraOutput: String = "") -> String
    {
        """
        symbol n 1...4
        state "keys" float32[1, 3, 8, 4] buffer "keys" splat 00000000
        func "main" {
            input %0 "x": float32[1, 3, n, 4]
            input %1 "cos": float32[1, 1, n, 4]
            input %2 "sin": float32[1, 1, n, 4]
            input %3 "pos": int64[n]
            state %4 "keys": float32[1, 3, 8, 4] after %11 writtenBy "index_copy"
            \(extraNode)
            %5: float32[1, 3, n, 2] = view.slice(a=%0, dim=3, start=2, end=4, step=1)
            %6: float32[1, 3, n, 2] = neg(a=%5)
            %7: float32[1, 3, n, 2] = view.slice(a=%0, dim=3, start=0, end=2, step=1)
            %8: float32[1, 3, n, 4] = cat(parts=[%6, %7], axis=3)
            %9: float32[1, 3, n, 4] = mul(a=%0, b=%1)
            %13: float32[1, 3, n, 4] = mul(a=%8, b=%2)
            %10: float32[1, 3, n, 4] = add(a=%9, b=%13)
            %11: float32[1, 3, 8, 4] = index_copy(a=%4, index=%3, source=\(source), axis=\(axis))
            %12: float32[1, 3, 8, 4] = neg(a=%11)
            output %12 "y"
            \(extraOutput)
        }
        """
    }

    @Test func turnsKeysWhereTheyAreWritten() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.write())
        #expect(counters["rotary-write"] == 1)
        #expect(
            body.contains(
                "%5: float32[1, 3, 8, 4] = rotary_index_copy(a=%4, index=%3, source=%0, cos=%1, sin=%2, axis=2)"))
        let updates = try PlanOracle.compile(Program(text: Self.write())).report.stateUpdates
        #expect(updates.map(\.isInPlace) == [true])
    }

    @Test func keepsTurnedKeysThatSomethingElseUses() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.write(extraOutput: "output %10 \"turned\""))
        #expect(counters["rotary"] == 1)
        #expect(counters["rotary-write"] == nil)
        #expect(body.contains(" = index_copy("))
    }

    @Test func writesOtherRowsAsTheyAre() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.write(source: "%0"))
        #expect(counters["rotary-write"] == nil)
        #expect(body.contains(" = index_copy("))
    }

    @Test func leavesWritesAloneWhenDisabled() throws {
        let (body, counters) = try FuseOpsTests.fuse(Self.write(), disabled: ["rotary-write"])
        #expect(counters["rotary"] == 1)
        #expect(counters["rotary-write"] == nil)
        #expect(body.contains(" = rotary(") && body.contains(" = index_copy("))
        let (plain, _) = try FuseOpsTests.fuse(Self.write(), disabled: ["rotary"])
        #expect(plain.contains(" = index_copy("))
    }

    @Test func readsOldKeysBeforeTheyAreOverwritten() throws {
        // A read of the old value between.
        let between = Self.write(
            extraNode: "%14: float32[1, 3, 8, 4] = neg(a=%4)", extraOutput: "output %14 \"old\"")
        let (_, counters) = try FuseOpsTests.fuse(between)
        #expect(counters["rotary-write"] == 1)
    }

    @Test func turnsRowsOfTheStateItselfBeforeTheyAreWritten() throws {
        // As one they would read what they overwrite, and the state would have to be copied.
        let own = """
            state "keys" float32[1, 3, 8, 4] buffer "keys" splat 00000000
            func "main" {
                input %1 "cos": float32[1, 1, 2, 4]
                input %2 "sin": float32[1, 1, 2, 4]
                input %3 "pos": int64[2]
                state %4 "keys": float32[1, 3, 8, 4] after %11 writtenBy "index_copy"
                %0: float32[1, 3, 2, 4] = view.slice(a=%4, dim=2, start=0, end=2, step=1)
                %5: float32[1, 3, 2, 2] = view.slice(a=%0, dim=3, start=2, end=4, step=1)
                %6: float32[1, 3, 2, 2] = neg(a=%5)
                %7: float32[1, 3, 2, 2] = view.slice(a=%0, dim=3, start=0, end=2, step=1)
                %8: float32[1, 3, 2, 4] = cat(parts=[%6, %7], axis=3)
                %9: float32[1, 3, 2, 4] = mul(a=%0, b=%1)
                %12: float32[1, 3, 2, 4] = mul(a=%8, b=%2)
                %10: float32[1, 3, 2, 4] = add(a=%9, b=%12)
                %11: float32[1, 3, 8, 4] = index_copy(a=%4, index=%3, source=%10, axis=2)
            }
            """
        let (_, counters) = try FuseOpsTests.fuse(own)
        #expect(counters["rotary"] == 1)
        #expect(counters["rotary-write"] == nil)
        let updates = try PlanOracle.compile(Program(text: own)).report.stateUpdates
        #expect(updates.map(\.isInPlace) == [true])
    }

    @Test func keepsAStateThatIsTurnedAsAWholeInPlace() throws {
        let text = """
            state "s" float32[3, 4] buffer "s" splat 00000000
            func "main" {
                input %1 "cos": float32[3, 4]
                input %2 "sin": float32[3, 4]
                state %0 "s": float32[3, 4] after %8 writtenBy "copy"
                %3: float32[3, 2] = view.slice(a=%0, dim=1, start=2, end=4, step=1)
                %4: float32[3, 2] = neg(a=%3)
                %5: float32[3, 2] = view.slice(a=%0, dim=1, start=0, end=2, step=1)
                %6: float32[3, 4] = cat(parts=[%4, %5], axis=1)
                %7: float32[3, 4] = mul(a=%0, b=%1)
                %9: float32[3, 4] = mul(a=%6, b=%2)
                %8: float32[3, 4] = add(a=%7, b=%9)
            }
            """
        let (_, counters) = try FuseOpsTests.fuse(text)
        #expect(counters["rotary"] == nil)
        let updates = try PlanOracle.compile(Program(text: text)).report.stateUpdates
        #expect(updates.map(\.isInPlace) == [true])
    }
}
