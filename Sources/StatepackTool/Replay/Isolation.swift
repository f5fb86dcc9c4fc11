import Statepack
import StatepackCompiler
import StatepackDiagnostics

/// Whether sequences are kept apart: what further runs of a recording gave, held byte for byte against the first.
package struct Isolation: Hashable, Sendable {
    package enum Outcome: Hashable, Sendable {
        case notDone(String)
        case holds
        /// The first difference, or why a further run did not come to its end.
        case differs([Diagnostic])

        /// Of one more replay: the first difference stays.
        mutating func take(_ findings: [Diagnostic]) {
            if case .differs = self { return }
            self = findings.isEmpty ? .holds : .differs(findings)
        }

        package var text: String {
            switch self {
            case .notDone(let reason): "not checked, \(reason)"
            case .holds: "the same bytes"
            case .differs: "other bytes"
            }
        }

        var findings: [Diagnostic] {
            if case .differs(let findings) = self { findings } else { [] }
        }
    }

    /// A sequence that starts again in arrays that were used, once they have the initial values, equals a fresh one.
    package var reset = Outcome.notDone("the recording has no replay")
    /// A sequence gives the same when another one, with its steps in reverse order, runs in turns with it.
    package var interleaved = Outcome.notDone("the recording has no replay")
    /// Replays give the same when the last comes first.
    package var order = Outcome.notDone("the recording has no replay")

    var findings: [Diagnostic] { reset.findings + interleaved.findings + order.findings }

    /// What is known to differ stays; the rest cannot be said to hold.
    mutating func isIncomplete(because reason: String) {
        for outcome in [\Isolation.reset, \.interleaved, \.order] {
            if case .differs = self[keyPath: outcome] { continue }
            self[keyPath: outcome] = .notDone(reason)
        }
    }
}

/// What a run gave, as digests: all that later runs are held against.
struct Trace {
    struct Fingerprint: Hashable {
        var shape: [Int]
        var digest: [UInt8]

        init(_ array: NDArray) {
            shape = array.shape
            digest = array.withBytes(SHA256Digest.of)
        }
    }

    /// Outputs by name, of each step that was run, in the order of the run.
    var steps: [[String: Fingerprint]] = []
    /// States after the last step.
    var states: [String: Fingerprint] = [:]
}

extension Replayer {
    /// Runs the replay again in the arrays of the first run, `states`, which get the initial values.
    ///
    /// NOTE: nothing else may hold the arrays, or the initial values would go into a copy.
    func repeatedRun(
        _ replay: Recording.Replay, _ index: Int, _ first: Trace, _ states: inout States
    ) -> [Diagnostic] {
        findings {
            for (name, fresh) in try freshStates(replay.steps, index) {
                fresh.withBytes { bytes in states[name]!.copyBytes(from: bytes) }
            }
            let steps = Array(replay.steps.enumerated())
            let trace = try trace(steps, index, &states, circumstance: ", run again after a reset")
            return difference(trace, from: first, steps.map(\.offset), index) { what, place in
                Diagnostic(
                    .replayReset, "\(what) has other bytes when the sequence starts again after a reset", at: place,
                    expected: "the bytes of the first run", found: "other bytes")
            }
        }
    }

    /// Runs the replay in turns with a second sequence that has its steps in reverse order, or in the same order
    /// where the program does not allow that.
    func runsInTurns(_ replay: Recording.Replay, _ index: Int, _ first: Trace) -> [Diagnostic] {
        let forward = Array(replay.steps.enumerated())
        var backward = Array(forward.reversed())
        // Alone first: that says what it has to give, and whether it can be run at all.
        var alone = try? freshTrace(backward, index)
        if alone == nil { (backward, alone) = (forward, first) }
        return findings {
            let circumstance = ", run in turns with another sequence"
            var states = [
                try freshStates(forward.map(\.element), index), try freshStates(backward.map(\.element), index),
            ]
            var traces = [Trace(), Trace()]
            for turn in forward.indices {
                for (sequence, steps) in [forward, backward].enumerated() {
                    let (step, recorded) = steps[turn]
                    let outputs = try perform(
                        recorded, index, step, states: &states[sequence], circumstance: circumstance)
                    traces[sequence].steps.append(outputs.mapValues(Trace.Fingerprint.init))
                }
            }
            for sequence in states.indices {
                traces[sequence].states = states[sequence].mapValues(Trace.Fingerprint.init)
            }
            for (trace, expected, steps) in [(traces[0], first, forward), (traces[1], alone!, backward)] {
                let findings = difference(trace, from: expected, steps.map(\.offset), index) { what, place in
                    Diagnostic(
                        .replayInterleaved, "\(what) has other bytes when another sequence runs in turns with this one",
                        at: place, expected: "the bytes of the sequence alone", found: "other bytes")
                }
                if !findings.isEmpty { return findings }
            }
            return []
        }
    }

    /// Runs all replays, the last one first. `forward` is what they gave in their own order.
    func runsInReverse(_ forward: [Trace], _ replays: [Recording.Replay]) -> [Diagnostic] {
        findings {
            for (index, replay) in replays.enumerated().reversed() {
                let steps = Array(replay.steps.enumerated())
                var states = try freshStates(replay.steps, index)
                let trace = try trace(steps, index, &states, circumstance: ", replays in reverse order")
                let findings = difference(trace, from: forward[index], steps.map(\.offset), index) { what, place in
                    Diagnostic(
                        .replayOrder, "\(what) has other bytes when the replays run in reverse order", at: place,
                        expected: "the bytes of the run in their own order", found: "other bytes")
                }
                if !findings.isEmpty { return findings }
            }
            return []
        }
    }

    private typealias NumberedStep = (offset: Int, element: Recording.Step)

    private func findings(_ body: () throws -> [Diagnostic]) -> [Diagnostic] {
        do { return try body() } catch { return Self.diagnostics(of: error) }
    }

    private func freshTrace(_ steps: [NumberedStep], _ replay: Int) throws -> Trace {
        var states = try freshStates(steps.map(\.element), replay)
        return try trace(steps, replay, &states, circumstance: "")
    }

    private func trace(
        _ steps: [NumberedStep], _ replay: Int, _ states: inout States, circumstance: String
    ) throws -> Trace {
        var trace = Trace()
        for (index, step) in steps {
            let outputs = try perform(step, replay, index, states: &states, circumstance: circumstance)
            trace.steps.append(outputs.mapValues(Trace.Fingerprint.init))
        }
        trace.states = states.mapValues(Trace.Fingerprint.init)
        return trace
    }

    /// At most one finding: everything after the first difference may follow from it.
    private func difference(
        _ found: Trace, from expected: Trace, _ stepNumbers: [Int], _ replay: Int,
        _ diagnostic: (_ what: String, _ place: String) -> Diagnostic
    ) -> [Diagnostic] {
        for (turn, step) in stepNumbers.enumerated() {
            let (outputs, others) = (found.steps[turn], expected.steps[turn])
            for name in Set(outputs.keys).union(others.keys).sorted() where outputs[name] != others[name] {
                return [diagnostic("output `\(name)`", "replay \(replay), step \(step)")]
            }
        }
        for name in expected.states.keys.sorted() where found.states[name] != expected.states[name] {
            return [diagnostic("state `\(name)`", "replay \(replay), after the last step")]
        }
        return []
    }
}
