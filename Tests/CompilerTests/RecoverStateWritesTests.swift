import ExactTexts
import StatepackBundle
import StatepackCompiler
import StatepackDiagnostics
import StatepackIR
import Testing

/// Programs before and after the pass, as text; each is also compiled and run against its functional form.
@Suite struct RecoverStateWritesTests {
    /// The functions of the recovered program as text, and the update of each state of the first function.
    static func recover(
        _ text: String, sourceLocation: SourceLocation = #_sourceLocation
    ) throws -> (body: String, updates: [CompilationReport.StateUpdate], counters: [String: Int]) {
        let original = try Program(text: text)
        try Verifier.verify(original, stage: .decomposed)
        var program = original
        var report = CompilationReport()
        try RecoverStateWrites().run(on: &program, report: &report)
        try Verifier.verify(program, stage: .inPlace)
        // Without fusion, too: a program must be right before it is fast.
        try PlanOracle.compile(original, options: .init(noFuse: Set(FuseOps.fusions)), sourceLocation: sourceLocation)
        let compiled = try PlanOracle.compile(original, sourceLocation: sourceLocation)
        let lines = program.renumbered().text().split(separator: "\n", omittingEmptySubsequences: false)
        let body = lines.drop { !$0.hasPrefix("func ") }.joined(separator: "\n")
        return (body, compiled.report.stateUpdates, report.counters["RecoverStateWrites"] ?? [:])
    }

    static func expect(
        _ before: String, becomes after: String, sourceLocation: SourceLocation = #_sourceLocation
    ) throws {
        let body = try recover(before, sourceLocation: sourceLocation).body
        #expect(body == after + "\n", sourceLocation: sourceLocation)
    }

    /// `copies … because …` per state.
    static func updates(_ text: String, sourceLocation: SourceLocation = #_sourceLocation) throws -> [String] {
        try recover(text, sourceLocation: sourceLocation).updates.map {
            "\($0.state): \($0.description(symbolNames: ["n"]))"
        }
    }

    // MARK: Parts of a state

    @Test func writesOneRowOfAStackedStateInPlace() throws {
        try Self.expect(
            """
            state "cache" float32[2, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[2, 8, 4] after %5 writtenBy "index_copy"
                %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                %4: float32[8, 4] = index_copy(a=%3, index=%1, source=%0, axis=0)
                %5: float32[2, 8, 4] = scatter.select(a=%2, source=%4, dim=0, index=0)
                %6: float32[8, 4] = view.select(a=%5, dim=0, index=0)
                %7: float32[8, 4] = neg(a=%6)
                output %7 "y"
            }
            """,
            becomes: """
                func "main" {
                    input %0 "k": float32[1, 4]
                    input %1 "pos": int64[1]
                    state %2 "cache": float32[2, 8, 4] writtenBy "index_copy"
                    %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                    %4: float32[8, 4] = inPlace index_copy(a=%3, index=%1, source=%0, axis=0)
                    %5: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                    %6: float32[8, 4] = neg(a=%5)
                    output %6 "y"
                }
                """)
    }

    @Test func keepsCopyOfAnUpdateThatIsNotTheState() throws {
        // The updated cache is an output alone: the state itself must stay.
        try Self.expect(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[8, 4] writtenBy "none"
                %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                output %3 "y"
            }
            """,
            becomes: """
                func "main" {
                    input %0 "k": float32[1, 4]
                    input %1 "pos": int64[1]
                    state %2 "cache": float32[8, 4] writtenBy "none"
                    %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                    output %3 "y"
                }
                """)
    }

    @Test func writesAForeignValueIntoAPartOfTheState() throws {
        try Self.expect(
            """
            symbol n 1...4
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[n, 4]
                state %1 "cache": float32[8, 4] after %3 writtenBy "slice_scatter"
                %2: float32[n, 4] = neg(a=%0)
                %3: float32[8, 4] = scatter.slice(a=%1, source=%2, dim=0, start=0, end=n, step=1)
            }
            """,
            becomes: """
                func "main" {
                    input %0 "k": float32[n, 4]
                    state %1 "cache": float32[8, 4] writtenBy "slice_scatter"
                    %2: float32[n, 4] = neg(a=%0)
                    %3: float32[n, 4] = view.slice(a=%1, dim=0, start=0, end=n, step=1)
                    %4: float32[n, 4] = inPlace write(destination=%3, source=%2)
                }
                """)
    }

    @Test func seesThroughTwoLevelsOfViews() throws {
        try Self.expect(
            """
            state "cache" float32[2, 3, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[2, 3, 8, 4] after %7 writtenBy "index_put"
                %3: float32[3, 8, 4] = view.select(a=%2, dim=0, index=1)
                %4: float32[2, 8, 4] = view.slice(a=%3, dim=0, start=1, end=3, step=1)
                %8: float32[8, 2, 4] = view.permute(a=%4, dims={1, 0, 2})
                %9: float32[8, 2, 4] = index_put(a=%8, source=%0, indices=[%1], accumulate=0)
                %5: float32[2, 8, 4] = view.permute(a=%9, dims={1, 0, 2})
                %6: float32[3, 8, 4] = scatter.slice(a=%3, source=%5, dim=0, start=1, end=3, step=1)
                %7: float32[2, 3, 8, 4] = scatter.select(a=%2, source=%6, dim=0, index=1)
            }
            """,
            becomes: """
                func "main" {
                    input %0 "k": float32[1, 4]
                    input %1 "pos": int64[1]
                    state %2 "cache": float32[2, 3, 8, 4] writtenBy "index_put"
                    %3: float32[3, 8, 4] = view.select(a=%2, dim=0, index=1)
                    %4: float32[2, 8, 4] = view.slice(a=%3, dim=0, start=1, end=3, step=1)
                    %5: float32[8, 2, 4] = view.permute(a=%4, dims={1, 0, 2})
                    %6: float32[8, 2, 4] = inPlace index_put(a=%5, source=%0, indices=[%1], accumulate=0)
                }
                """)
    }

    @Test func copiesWhenTheUpdatedPartGoesToAnotherPlace() throws {
        // cache[1] = cache[0] with one row replaced: layer 0 must keep its rows.
        let (body, updates, _) = try Self.recover(
            """
            state "cache" float32[2, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[2, 8, 4] after %5 writtenBy "index_copy"
                %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                %4: float32[8, 4] = index_copy(a=%3, index=%1, source=%0, axis=0)
                %5: float32[2, 8, 4] = scatter.select(a=%2, source=%4, dim=0, index=1)
            }
            """)
        #expect(body.contains("= index_copy(a="))
        #expect(body.contains("inPlace write(destination="))
        #expect(updates[0].isInPlace)
    }

    static func stackedWrites(_ count: Int) -> String {
        var lines: [String] = []
        var next = 4
        var cache = 2
        var sum = 0
        for layer in 0..<count {
            lines += [
                "%\(next): float32[8, 4] = view.select(a=%\(cache), dim=0, index=\(layer))",
                "%\(next + 1): float32[8, 4] = index_copy(a=%\(next), index=%1, source=%\(sum), axis=0)",
                "%\(next + 2): float32[\(count), 8, 4] = scatter.select(a=%\(cache), source=%\(next + 1), dim=0, index=\(layer))",
                "%\(next + 3): float32[8, 4] = view.select(a=%\(next + 2), dim=0, index=\(layer))",
                "%\(next + 4): float32[1, 4] = sum(a=%\(next + 3), axes_mask=1, keep=1)",
                "%\(next + 5): float32[1, 4] = add(a=%\(sum), b=%\(next + 4))",
            ]
            cache = next + 2
            sum = next + 5
            next += 6
        }
        return """
            state "cache" float32[\(count), 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[\(count), 8, 4] after %\(cache) writtenBy "index_copy"
                \(lines.joined(separator: "\n    "))
                output %\(sum) "y"
            }
            """
    }

    @Test func writesManyTimesToOneStackedStateWithReadsBetween() throws {
        let (body, updates, counters) = try Self.recover(Self.stackedWrites(30))
        #expect(counters["in-place"] == 30)
        #expect(counters["copies"] == nil)
        #expect(!body.contains("scatter") && !body.contains("= copy("))
        #expect(updates.map { $0.description(symbolNames: []) } == ["in place"])
    }

    @Test func copiesThePartThatIsReadAfterItsWrite() throws {
        // The old layer 0 is multiplied with something that depends on the write: it cannot move before it.
        let updates = try Self.updates(
            """
            state "cache" float32[2, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[2, 8, 4] after %5 writtenBy "index_copy"
                %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                %4: float32[8, 4] = index_copy(a=%3, index=%1, source=%0, axis=0)
                %5: float32[2, 8, 4] = scatter.select(a=%2, source=%4, dim=0, index=0)
                %6: float32[8, 4] = view.select(a=%5, dim=0, index=0)
                %7: float32[8, 4] = mul(a=%6, b=%3)
                output %7 "y"
            }
            """)
        #expect(
            updates == [
                "cache: copies 128 bytes per step because its former value is read by `mul` after `index_copy` writes"
            ])
    }

    @Test func movesAReadBeforeTheWriteWhenItCan() throws {
        let (_, updates, counters) = try Self.recover(
            """
            state "cache" float32[2, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[2, 8, 4] after %5 writtenBy "index_copy"
                %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                %4: float32[8, 4] = index_copy(a=%3, index=%1, source=%0, axis=0)
                %5: float32[2, 8, 4] = scatter.select(a=%2, source=%4, dim=0, index=0)
                %6: float32[8, 4] = neg(a=%3)
                output %6 "y"
            }
            """)
        #expect(counters == ["in-place": 1, "moved-reads": 1])
        #expect(updates[0].isInPlace)
    }

    @Test func leavesAReadOfADisjointPartAfterTheWrite() throws {
        // Layer 1 of the old value, and rows 4... of the old layer 0, are not what the write touches.
        let (body, updates, counters) = try Self.recover(
            """
            state "cache" float32[2, 8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[4, 4]
                state %2 "cache": float32[2, 8, 4] after %5 writtenBy "slice_scatter"
                %3: float32[8, 4] = view.select(a=%2, dim=0, index=0)
                %4: float32[8, 4] = scatter.slice(a=%3, source=%0, dim=0, start=0, end=4, step=1)
                %5: float32[2, 8, 4] = scatter.select(a=%2, source=%4, dim=0, index=0)
                %6: float32[8, 4] = view.select(a=%2, dim=0, index=1)
                %7: float32[4, 4] = view.slice(a=%3, dim=0, start=4, end=8, step=1)
                %8: float32[8, 4] = neg(a=%6)
                %9: float32[4, 4] = neg(a=%7)
                output %8 "y"
                output %9 "z"
            }
            """)
        #expect(counters == ["in-place": 1])
        #expect(updates[0].isInPlace)
        #expect(body.firstRange(of: "write(")!.lowerBound < body.firstRange(of: "neg(")!.lowerBound)
    }

    @Test func copiesASourceThatTheWriteWouldOverwrite() throws {
        // cache[1:] = cache[:-1]: source and destination overlap.
        let updates = try Self.updates(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                state %0 "cache": float32[8, 4] after %2 writtenBy "slice_scatter"
                %1: float32[7, 4] = view.slice(a=%0, dim=0, start=0, end=7, step=1)
                %2: float32[8, 4] = scatter.slice(a=%0, source=%1, dim=0, start=1, end=8, step=1)
            }
            """)
        #expect(
            updates == [
                "cache: copies 112 bytes per step because `slice_scatter` reads what it overwrites"
            ])
    }

    @Test func writesADisjointPartOfTheSameStateWithoutCopy() throws {
        // cache[0] = cache[1]
        let updates = try Self.updates(
            """
            state "cache" float32[2, 4] buffer "cache" splat 00000000
            func "main" {
                state %0 "cache": float32[2, 4] after %2 writtenBy "select_scatter"
                %1: float32[4] = view.select(a=%0, dim=0, index=1)
                %2: float32[2, 4] = scatter.select(a=%0, source=%1, dim=0, index=0)
            }
            """)
        #expect(updates == ["cache: in place"])
    }

    @Test func delaysAWriteUntilTheOldValueHasBeenRead() throws {
        // A ring buffer whose next row is a state: it is advanced first, but the write of the ring reads the old one.
        let updates = try Self.updates(
            """
            tensor "one" int64[] inline 0100000000000000
            state "ring" float32[8, 4] buffer "ring" splat 00000000
            state "next" int64[1] buffer "next" splat 0000000000000000
            func "main" {
                input %0 "k": float32[1, 4]
                state %1 "ring": float32[8, 4] after %5 writtenBy "index_copy"
                state %2 "next": int64[1] after %4 writtenBy "add"
                constant %3 "one": int64[]
                %4: int64[1] = add(a=%2, b=%3)
                %5: float32[8, 4] = index_copy(a=%1, index=%2, source=%0, axis=0)
            }
            """)
        #expect(updates == ["ring: in place", "next: in place"])
    }

    // MARK: Whole values

    static let twoStates = """
        state "a" float32[4] buffer "a" splat 00000000
        state "b" float32[4] buffer "b" splat 00000000
        state "c" float32[4] buffer "c" splat 00000000

        """

    @Test func swapsTwoStates() throws {
        let (body, updates, _) = try Self.recover(
            Self.twoStates + """
                func "main" {
                    state %0 "a": float32[4] after %1 writtenBy "copy"
                    state %1 "b": float32[4] after %0 writtenBy "copy"
                }
                """)
        let nodes = body.split(separator: "\n").filter { $0.contains(" = ") }
        #expect(
            nodes.map { String($0.drop { $0 == " " }) } == [
                "%2: float32[4] = copy(a=%0)",
                "%3: float32[4] = inPlace write(destination=%0, source=%1)",
                "%4: float32[4] = inPlace write(destination=%1, source=%2)",
            ])
        // One copy of each state, and one of a to survive the write of b's value into it.
        #expect(updates.map(\.copiedBytes) == [SizeExpression(2 * 16), SizeExpression(16)])
        #expect(
            updates.map(\.copyReason) == [
                "it takes over the value of state `b`; its former value goes to state `b` after the new one is written",
                "it takes over the value of state `a`",
            ])
    }

    @Test func rotatesThreeStatesWithOneCopy() throws {
        let (body, _, counters) = try Self.recover(
            Self.twoStates + """
                func "main" {
                    state %0 "a": float32[4] after %1 writtenBy "copy"
                    state %1 "b": float32[4] after %2 writtenBy "copy"
                    state %2 "c": float32[4] after %0 writtenBy "copy"
                }
                """)
        #expect(counters["copies"] == 1)
        #expect(body.split(separator: "\n").count { $0.contains("inPlace write") } == 3)
    }

    @Test func handsADelayLineOnWithoutExtraCopy() throws {
        // b becomes a, a becomes the input: b is written first.
        let (_, updates, counters) = try Self.recover(
            Self.twoStates + """
                func "main" {
                    input %2 "x": float32[4]
                    state %0 "a": float32[4] after %2 writtenBy "copy"
                    state %1 "b": float32[4] after %0 writtenBy "copy"
                }
                """)
        #expect(counters["copies"] == nil)
        #expect(updates.map(\.isInPlace) == [true, false])
        #expect(updates[1].copyReason == "it takes over the value of state `a`")
    }

    @Test func shiftsARegisterWithACopy() throws {
        let updates = try Self.updates(
            """
            state "window" float32[8, 4] buffer "window" splat 00000000
            func "main" {
                input %0 "row": float32[1, 4]
                state %1 "window": float32[8, 4] after %3 writtenBy "copy"
                %2: float32[7, 4] = view.slice(a=%1, dim=0, start=1, end=8, step=1)
                %3: float32[8, 4] = cat(parts=[%2, %0], axis=0)
                output %3 "window_now"
            }
            """)
        #expect(
            updates == ["window: copies 128 bytes per step because the whole value is computed anew by `cat`"])
    }

    @Test func returnsTheOldValueAndThenOverwritesIt() throws {
        try Self.expect(
            """
            state "last" float32[4] buffer "last" splat 00000000
            func "main" {
                input %0 "x": float32[4]
                state %1 "last": float32[4] after %0 writtenBy "copy"
                output %1 "before"
            }
            """,
            becomes: """
                func "main" {
                    input %0 "x": float32[4]
                    state %1 "last": float32[4] writtenBy "copy"
                    %2: float32[4] = copy(a=%1)
                    %3: float32[4] = inPlace write(destination=%1, source=%0)
                    output %2 "before"
                }
                """)
    }

    @Test func advancesACounterInPlace() throws {
        try Self.expect(
            """
            tensor "one" float32[] inline 0000803f
            state "count" float32[4] buffer "count" splat 00000000
            func "main" {
                state %0 "count": float32[4] after %2 writtenBy "add"
                constant %1 "one": float32[]
                %2: float32[4] = add(a=%0, b=%1)
                %3: float32[4] = neg(a=%2)
                output %3 "y"
                output %2 "z"
            }
            """,
            becomes: """
                func "main" {
                    state %0 "count": float32[4] writtenBy "add"
                    constant %1 "one": float32[]
                    %2: float32[4] = add(a=%0, b=%1)
                    %3: float32[4] = inPlace write(destination=%0, source=%2)
                    %4: float32[4] = neg(a=%3)
                    output %4 "y"
                    output %3 "z"
                }
                """)
    }

    @Test func reportsACounterAndAGatedUpdateInPlace() throws {
        let updates = try Self.updates(
            """
            tensor "decay" float32[] inline 0000003f
            state "mean" float32[4] buffer "mean" splat 00000000
            state "flag" float32[4] buffer "flag" splat 00000000
            func "main" {
                input %0 "x": float32[4]
                input %1 "gate": bool[1]
                state %2 "mean": float32[4] after %6 writtenBy "add"
                state %3 "flag": float32[4] after %7 writtenBy "copy"
                constant %4 "decay": float32[]
                %5: float32[4] = mul(a=%2, b=%4)
                %6: float32[4] = add(a=%5, b=%0)
                %7: float32[4] = where(condition=%1, a=%0, b=%3)
                output %6 "y"
            }
            """)
        #expect(updates == ["mean: in place", "flag: in place"])
    }

    @Test func decaysAndThenWritesARowInPlace() throws {
        let (body, updates, _) = try Self.recover(
            """
            tensor "decay" float32[] inline 0000003f
            state "m" float32[8, 4] buffer "m" splat 00000000
            func "main" {
                input %0 "row": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "m": float32[8, 4] after %5 writtenBy "index_copy"
                constant %3 "decay": float32[]
                %4: float32[8, 4] = mul(a=%2, b=%3)
                %5: float32[8, 4] = index_copy(a=%4, index=%1, source=%0, axis=0)
            }
            """)
        #expect(updates[0].isInPlace)
        #expect(body.contains("inPlace index_copy"))
    }

    @Test func doesNotProduceInPlaceWhatReadsTheStateInAnotherOrder() throws {
        // a + a.flip-like view: elements are read after they would be overwritten.
        let updates = try Self.updates(
            """
            state "m" float32[4, 4] buffer "m" splat 00000000
            func "main" {
                state %0 "m": float32[4, 4] after %2 writtenBy "add"
                %1: float32[4, 4] = view.permute(a=%0, dims={1, 0})
                %2: float32[4, 4] = add(a=%0, b=%1)
            }
            """)
        #expect(updates == ["m: copies 64 bytes per step because the whole value is computed anew by `add`"])
    }

    @Test func doesNotProduceABroadcastSourceInPlaceWrongly() throws {
        // The new value is the first row everywhere.
        let updates = try Self.updates(
            """
            state "m" float32[4, 4] buffer "m" splat 00000000
            func "main" {
                input %3 "x": float32[4, 4]
                state %0 "m": float32[4, 4] after %2 writtenBy "add"
                %1: float32[1, 4] = view.slice(a=%0, dim=0, start=0, end=1, step=1)
                %2: float32[4, 4] = add(a=%3, b=%1)
            }
            """)
        #expect(updates == ["m: copies 64 bytes per step because the whole value is computed anew by `add`"])
    }

    @Test func rearrangesAStateThroughACopy() throws {
        let updates = try Self.updates(
            """
            state "m" float32[4, 4] buffer "m" splat 00000000
            func "main" {
                state %0 "m": float32[4, 4] after %1 writtenBy "copy"
                %1: float32[4, 4] = view.permute(a=%0, dims={1, 0})
            }
            """)
        #expect(
            updates == [
                "m: copies 128 bytes per step because its new value is its former one, rearranged; its former value "
                    + "is read while the new one is written"
            ])
    }

    @Test func takesAValueFromAnInputInPlace() throws {
        let updates = try Self.updates(
            """
            state "m" float32[4] buffer "m" splat 00000000
            func "main" {
                input %0 "x": float32[1, 4]
                state %1 "m": float32[4] after %2 writtenBy "copy"
                %2: float32[4] = view.reshape(a=%0, shape={4})
                output %2 "same"
            }
            """)
        #expect(updates == ["m: in place"])
    }

    @Test func storesOneValueInTwoStatesAndAnOutput() throws {
        let updates = try Self.updates(
            Self.twoStates + """
                func "main" {
                    input %2 "x": float32[4]
                    state %0 "a": float32[4] after %3 writtenBy "copy"
                    state %1 "b": float32[4] after %3 writtenBy "copy"
                    %3: float32[4] = neg(a=%2)
                    output %3 "y"
                }
                """)
        #expect(
            updates == [
                "a: in place", "b: copies 16 bytes per step because it takes over the value of state `a`",
            ])
    }

    @Test func usesAnUpdatedValueTwice() throws {
        let (_, updates, counters) = try Self.recover(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[8, 4] after %3 writtenBy "index_copy"
                %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                %4: float32[8, 4] = add(a=%3, b=%3)
                %5: float32[8, 4] = mul(a=%4, b=%3)
                output %5 "y"
                output %3 "cache_now"
            }
            """)
        #expect(counters == ["in-place": 1])
        #expect(updates[0].isInPlace)
    }

    @Test func keepsOneOfTwoUpdatesOfTheSameValueOutOfPlace() throws {
        let (body, updates, _) = try Self.recover(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                input %6 "other": int64[1]
                state %2 "cache": float32[8, 4] after %3 writtenBy "index_copy"
                %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                %4: float32[8, 4] = index_copy(a=%2, index=%6, source=%0, axis=0)
                output %4 "trial"
            }
            """)
        #expect(updates[0].isInPlace)
        #expect(
            body.firstRange(of: " index_copy(a=%3, index=%2")!.lowerBound < body.firstRange(of: "inPlace")!.lowerBound)
    }

    @Test func copiesOutAViewOfAStateThatALaterWriteChanges() throws {
        let (body, updates, _) = try Self.recover(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                state %2 "cache": float32[8, 4] after %3 writtenBy "index_copy"
                %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
                %4: float32[4] = view.select(a=%2, dim=0, index=0)
                %5: float32[4] = view.select(a=%3, dim=0, index=0)
                output %4 "old_row"
                output %5 "new_row"
            }
            """)
        #expect(updates[0].isInPlace)
        #expect(body.firstRange(of: "= copy(")!.lowerBound < body.firstRange(of: "inPlace")!.lowerBound)
    }

    @Test func leavesAStateAloneThatIsOnlyRead() throws {
        try Self.expect(
            """
            state "table" float32[8, 4] buffer "table" splat 00000000
            func "main" {
                state %0 "table": float32[8, 4] writtenBy "none"
                %1: float32[8, 4] = neg(a=%0)
                output %1 "y"
                output %0 "table_now"
            }
            """,
            becomes: """
                func "main" {
                    state %0 "table": float32[8, 4] writtenBy "none"
                    %1: float32[8, 4] = neg(a=%0)
                    output %1 "y"
                    output %0 "table_now"
                }
                """)
    }

    @Test func updatesAnEmptyState() throws {
        let updates = try Self.updates(
            """
            state "none" float32[0, 4] buffer "none" splat 00000000
            func "main" {
                input %0 "x": float32[0, 4]
                state %1 "none": float32[0, 4] after %3 writtenBy "copy"
                %2: float32[0, 4] = view.slice(a=%1, dim=0, start=0, end=0, step=1)
                %3: float32[0, 4] = cat(parts=[%2, %0], axis=0)
                output %1 "y"
            }
            """)
        #expect(updates == ["none: in place"])
    }

    @Test func sharesAStateBetweenFunctions() throws {
        let updates = try Self.updates(
            """
            symbol n 1...4
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "prefill" {
                input %0 "k": float32[n, 4]
                input %1 "pos": int64[n]
                state %2 "cache": float32[8, 4] after %3 writtenBy "index_copy"
                %3: float32[8, 4] = index_copy(a=%2, index=%1, source=%0, axis=0)
            }
            func "get" {
                state %0 "cache": float32[8, 4] writtenBy "none"
                output %0 "y"
            }
            func "reset" {
                input %0 "value": float32[]
                state %1 "cache": float32[8, 4] after %2 writtenBy "copy"
                %2: float32[8, 4] = view.expand(a=%0, shape={8, 4})
            }
            """)
        #expect(updates == ["cache: in place", "cache: in place", "cache: in place"])
    }

    @Test func movesWhatCanFailBeforeTheFirstWrite() throws {
        let (body, _, counters) = try Self.recover(
            """
            state "cache" float32[8, 4] buffer "cache" splat 00000000
            func "main" {
                input %0 "k": float32[1, 4]
                input %1 "pos": int64[1]
                input %2 "rows": int64[2]
                state %3 "cache": float32[8, 4] after %4 writtenBy "index_copy"
                %4: float32[8, 4] = index_copy(a=%3, index=%1, source=%0, axis=0)
                %5: int64[2] = add(a=%2, b=%1)
                %6: float32[2, 4] = index_select(a=%0, index=%5, axis=0)
                %7: float32[2, 4] = index_select(a=%4, index=%2, axis=0)
                output %6 "x"
                output %7 "y"
            }
            """)
        #expect(counters["hoisted-fallible"] == 1)
        let write = try #require(body.firstRange(of: "inPlace")).lowerBound
        #expect(try #require(body.firstRange(of: "index_select(a=%0")).lowerBound < write)
        #expect(try #require(body.firstRange(of: "index_select(a=%6")).lowerBound > write)
    }

    @Test func replacesAScatterOfAValueThatIsNoState() throws {
        try Self.expect(
            """
            func "main" {
                input %0 "x": float32[2, 4]
                input %1 "row": float32[4]
                %2: float32[2, 4] = scatter.select(a=%0, source=%1, dim=0, index=1)
                output %2 "y"
            }
            """,
            becomes: """
                func "main" {
                    input %0 "x": float32[2, 4]
                    input %1 "row": float32[4]
                    %2: float32[2, 4] = copy(a=%0)
                    %3: float32[4] = view.select(a=%2, dim=0, index=1)
                    %4: float32[4] = inPlace write(destination=%3, source=%1)
                    output %2 "y"
                }
                """)
    }

    @Test func keepsTheTypeOfAStateThatTakesAConvertedValue() throws {
        let updates = try Self.updates(
            """
            state "total" float32[4] buffer "total" splat 00000000
            state "count" int64[4] buffer "count" splat 0000000000000000
            func "main" {
                input %0 "x": int64[4]
                state %1 "total": float32[4] after %4 writtenBy "copy"
                state %2 "count": int64[4] after %3 writtenBy "copy"
                %3: int64[4] = copy(a=%1)
                %4: float32[4] = copy(a=%0)
                %5: float32[4] = copy(a=%2)
                output %5 "count_before"
            }
            """)
        #expect(
            updates == [
                "total: in place", "count: copies 32 bytes per step because it takes over the value of state `total`",
            ])
    }

    @Test func refusesAnUpdateThatChangesTheType() throws {
        var program = try Program(
            text: """
                state "count" int64[4] buffer "count" splat 0000000000000000
                func "main" {
                    input %1 "x": float32[4]
                    state %0 "count": int64[4] after %1 writtenBy "copy"
                }
                """)
        var report = CompilationReport()
        let list = try #require(throws: DiagnosticList.self) {
            try RecoverStateWrites().run(on: &program, report: &report)
        }
        #expect(list.diagnostics.map(\.code) == [.stateUpdateChangesType])
        let text = ExactTexts.text(list.diagnostics)
        #expect(text == ExactTexts.expected("Compiler", "state that changes its type", actual: text))
    }
}
