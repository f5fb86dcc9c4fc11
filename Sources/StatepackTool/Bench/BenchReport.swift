import Statepack
import StatepackDiagnostics

/// What a bench measured, as text for people and as JSON.
struct BenchReport {
    struct Step {
        /// Nil without declared positions.
        var context: Int?
        var milliseconds: Spread
        var attentionRows: Int
        var bytes: StepBytes
    }

    struct Bandwidth {
        /// Of the buffer that was read.
        var byteCount: Int
        /// Bytes per second.
        var oneStream: Spread
        var fourStreams: Spread
    }

    struct Growth {
        var from: Int
        var to: Int
        /// Per 1,000 positions.
        var milliseconds: Spread
    }

    struct Prefill {
        var length: Int
        var milliseconds: Spread
        var inputs: [BenchPlan.Input]

        var positionsPerSecond: Double { Double(length) / milliseconds.median * 1e3 }
    }

    /// Below that a buffer may stay in the processor's caches.
    private static let cacheBytes = 64 << 20

    let file: String
    let plan: BenchPlan
    let threadCount: Int
    let load: Spread
    var repetitions = 0
    var warmUp = 0
    var afterLoad = ProcessFigures()
    var afterSteps = ProcessFigures()
    var atTheEnd = ProcessFigures()
    var stateBytes = 0
    var steps: [Step] = []
    var bandwidth: Bandwidth?
    var growth: Growth?
    var prefill: Prefill?

    init(file: String, plan: BenchPlan, threadCount: Int, load: Spread) {
        self.file = file
        self.plan = plan
        self.threadCount = threadCount
        self.load = load
    }

    /// How many times as long a step takes as reading its bytes would: 1 is what the memory allows. From the medians.
    func ratio(_ step: Step) -> Double? {
        guard let bandwidth, step.bytes.total > 0 else { return nil }
        return step.milliseconds.median / (Double(step.bytes.total) / bandwidth.fourStreams.median * 1e3)
    }

    /// The same for what a step takes longer at the larger context.
    var growthRatio: Double? {
        guard let growth, let bandwidth, let first = steps.first, let last = steps.last else { return nil }
        let bytes = last.bytes.total - first.bytes.total
        guard bytes > 0 else { return nil }
        let perThousand = Double(bytes) * 1000 / Double(growth.to - growth.from)
        return growth.milliseconds.median / (perThousand / bandwidth.fourStreams.median * 1e3)
    }

    private var weightBytes: Int { plan.program.tensors.reduce(0) { $0 + $1.length } }

    private var notes: [String] {
        var notes = plan.notes
        if bandwidth == nil {
            notes.append("no bandwidth: the bundle has less than 1 MiB of weights to read")
        } else if bandwidth!.byteCount < Self.cacheBytes {
            notes.append(
                "the weights may fit into the processor's caches: bandwidth and ratio are then not those of the memory")
        }
        if plan.contexts?.list.count == 1 { notes.append("no growth: that needs two contexts") }
        return notes
    }

    // MARK: JSON

    var json: JSONValue {
        [
            "file": .string(file),
            "function": .string(plan.function.name),
            "processor": ProcessFigures.processorName.map { .string($0) } ?? .null,
            "instructionSet": .string(InstructionSet.inUse),
            "threads": .integer(threadCount),
            "repetitions": .integer(repetitions),
            "warmUp": .integer(warmUp),
            "sizes": sizes(plan.symbols),
            "inputs": .array(((try? plan.inputs(plan.symbols)) ?? []).map(Self.json)),
            "capacity": plan.contexts.map { .integer($0.capacity) } ?? .null,
            "filledRows": .integer(plan.filledRows),
            "load": ["milliseconds": load.json],
            "memory": memoryJSON,
            "bandwidth": bandwidth.map { bandwidth in
                [
                    "bytes": .integer(bandwidth.byteCount), "unit": "bytes per second",
                    "oneStream": bandwidth.oneStream.json, "fourStreams": bandwidth.fourStreams.json,
                ]
            } ?? .null,
            "steps": .array(
                steps.map { step in
                    [
                        "context": step.context.map { .integer($0) } ?? .null,
                        "milliseconds": step.milliseconds.json, "attentionRows": .integer(step.attentionRows),
                        "bytes": step.bytes.json, "ratio": ratio(step).map { .number($0) } ?? .null,
                    ]
                }),
            "growth": growth.map { growth in
                [
                    "from": .integer(growth.from), "to": .integer(growth.to),
                    "millisecondsPer1000Positions": growth.milliseconds.json,
                    "ratio": growthRatio.map { .number($0) } ?? .null,
                ]
            } ?? .null,
            "prefill": prefill.map { prefill in
                [
                    "positions": .integer(prefill.length), "milliseconds": prefill.milliseconds.json,
                    "positionsPerSecond": .number(prefill.positionsPerSecond),
                    "inputs": .array(prefill.inputs.map(Self.json)),
                ]
            } ?? .null,
            "notes": .strings(notes),
        ]
    }

    private func sizes(_ symbols: [Int]) -> JSONValue {
        .object(zip(plan.program.symbols, symbols).map { .init(key: $0.name, value: .integer($1)) })
    }

    private static func json(_ input: BenchPlan.Input) -> JSONValue {
        [
            "name": .string(input.name), "shape": .array(input.shape.map { .integer($0) }),
            "elements": .string(input.source.rawValue),
        ]
    }

    private var memoryJSON: JSONValue {
        func json(_ bytes: Int?) -> JSONValue { bytes.map { .integer($0) } ?? .null }
        return [
            "weights": .integer(weightBytes), "states": .integer(stateBytes),
            "residentAfterLoad": json(afterLoad.residentBytes), "resident": json(afterSteps.residentBytes),
            "anonymous": json(afterSteps.anonymousBytes), "peak": json(afterSteps.peakBytes),
            "peakWithPrefill": json(prefill == nil ? nil : atTheEnd.peakBytes),
        ]
    }

    // MARK: Text

    var text: String {
        var lines = head.lines(indent: "")
        lines.append("")
        lines += figures.lines(indent: "")
        lines.append("")
        lines += stepTable.lines(indent: "")
        let rest = lastFigures
        if !rest.isEmpty { lines += [""] + rest.lines(indent: "") }
        if !notes.isEmpty { lines += [""] + notes.map(Diagnostic.printable) }
        return lines.joined(separator: "\n") + "\n"
    }

    private var head: TextTable {
        var table = TextTable()
        table.add("bundle", file)
        let sizes = plan.program.text(of: plan.symbols, varying: plan.function.symbolIndices)
        table.add("function", plan.function.name + (sizes.isEmpty ? "" : ", \(sizes)"))
        table.add(
            "machine",
            [ProcessFigures.processorName ?? "unnamed processor", InstructionSet.inUse, counted(threadCount, "thread")]
                .joined(separator: ", "))
        for (index, input) in ((try? plan.inputs(plan.symbols)) ?? []).enumerated() {
            table.add(index == 0 ? "inputs" : "", "\(input.name) \(input.shape): \(input.source.text)")
        }
        if let contexts = plan.contexts {
            table.add(
                "states",
                "\(contexts.axes.keys.sorted().joined(separator: ", ")): \(counted(plan.filledRows, "row")) of "
                    + "\(contexts.capacity) filled with seeded values, not computed")
        }
        table.add(
            "measured",
            "\(counted(repetitions, "repetition")) in turns after \(warmUp) of warm-up; median (least to most)")
        return table
    }

    private var figures: TextTable {
        func text(_ bytes: Int?) -> String { bytes.map(byteText) ?? "unknown" }
        var table = TextTable()
        table.add("load", "\(load.text(digits: 2)) ms")
        table.add("memory", "resident \(text(afterSteps.residentBytes)), peak \(text(afterSteps.peakBytes))")
        table.add(
            "",
            "weights \(byteText(weightBytes)), states \(byteText(stateBytes)), anonymous "
                + text(afterSteps.anonymousBytes))
        if let bandwidth {
            table.add("bandwidth", "four streams \(bandwidth.fourStreams.scaled(1e-9).text(digits: 2)) GB/s")
            table.add("", "one stream \(bandwidth.oneStream.scaled(1e-9).text(digits: 2)) GB/s")
        }
        return table
    }

    private var stepTable: TextTable {
        let hasContexts = plan.contexts != nil
        var table = TextTable(rightAligned: [0, 1, 2, 3, 4, 5])
        let context = hasContexts ? ["context"] : []
        table.add(context + ["ms per step", "least", "most", "bytes per step", "of the bandwidth"])
        for step in steps {
            let spread = step.milliseconds
            table.add(
                (step.context.map { ["\($0)"] } ?? [])
                    + [spread.median, spread.minimum, spread.maximum].map { decimalText($0, digits: 3) }
                    + [byteText(step.bytes.total), ratio(step).map { "\(decimalText($0, digits: 2)) x" } ?? "-"])
        }
        return table
    }

    private var lastFigures: TextTable {
        var table = TextTable()
        if let growth {
            table.add(
                "growth",
                "\(decimalText(growth.milliseconds.median, digits: 3)) ms per 1,000 positions, from context "
                    + "\(growth.from) to \(growth.to)"
                    + (growthRatio.map { ", \(decimalText($0, digits: 2)) x of the bandwidth" } ?? ""))
            table.add(
                "",
                "quartiles of paired differences \(decimalText(growth.milliseconds.quartiles.lower, digits: 3)) to "
                    + decimalText(growth.milliseconds.quartiles.upper, digits: 3))
        }
        if let prefill {
            table.add(
                "prefill",
                "\(prefill.length) positions in \(prefill.milliseconds.text(digits: 1)) ms, "
                    + "\(decimalText(prefill.positionsPerSecond, digits: 0)) per second")
            if let peak = atTheEnd.peakBytes { table.add("", "peak memory with it \(byteText(peak))") }
        }
        return table
    }
}

extension BenchPlan.InputSource {
    /// For people.
    var text: String {
        switch self {
        case .context: "the context"
        case .recording: "as recorded"
        case .zeros: "zeros"
        case .trues: "true"
        case .seeded: "seeded values"
        }
    }
}

extension Spread {
    func scaled(_ factor: Double) -> Spread { Spread(of: [minimum, median, maximum].map { $0 * factor })! }
}
