internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// Checks a plan without knowing how it was made.
///
/// `BundleProgram.check` proves that indices, storage and lifetimes hold together. This adds what only
/// matters to who made the plan: an instruction that writes where it also reads does so in the one way that
/// its kernel allows.
enum PlanVerifier {
    /// Throws a `DiagnosticList` with every finding.
    static func verify(_ program: BundleProgram) throws(DiagnosticList) {
        var findings: [Diagnostic] = []
        for function in program.functions {
            for (index, instruction) in function.instructions.enumerated() {
                let kernel = program.kernels[instruction.kernel]
                for result in instruction.results {
                    for (position, operand) in instruction.operands.enumerated() {
                        guard let operand, overlap(operand, result, in: function, program) else { continue }
                        switch Aliasing(kernel) {
                        case .anyOperand where operand == result: continue
                        case .firstOperand where operand == result && position == 0: continue
                        default:
                            findings.append(
                                .internalFault(
                                    "an instruction overwrites what it reads: value \(operand) and result \(result)",
                                    at: "function `\(function.name)`, instruction \(index) (\(kernel))"))
                        }
                    }
                }
            }
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    /// Which operands may be the result's very view.
    private enum Aliasing {
        case none
        case firstOperand
        case anyOperand

        init(_ kernel: String) {
            guard let signature = KernelSignature.byName[kernel] else {
                self = .none
                return
            }
            self = signature.isPointwise ? .anyOperand : signature.isWriting ? .firstOperand : .none
        }
    }

    /// True when two values provably share an element for the smallest or for a larger choice of sizes. Views
    /// of more than 65536 elements are not listed, and then only equal values count.
    private static func overlap(
        _ a: Int, _ b: Int, in function: BundleProgram.Function, _ program: BundleProgram
    ) -> Bool {
        func base(_ index: Int) -> Int {
            if case .view(let base, _, _) = function.values[index].storage { return base }
            return index
        }
        guard base(a) == base(b) else { return false }
        let choices = [program.symbols.map(\.min), program.symbols.map { min($0.max, $0.min + 7) }]
        return choices.contains { symbols in
            guard let first = elements(of: function.values[a], symbols),
                let second = elements(of: function.values[b], symbols)
            else { return a == b }
            return !first.isDisjoint(with: second)
        }
    }

    /// Offsets of the elements in the base; nil when there are too many to list.
    private static func elements(of value: BundleProgram.Value, _ symbols: [Int]) -> Set<Int>? {
        guard let shape = try? value.shape.map({ try $0.evaluate(symbols) }) else { return nil }
        var strides: [Int] = []
        var offset = 0
        if case .view(_, let viewStrides, let viewOffset) = value.storage {
            guard let evaluated = try? viewStrides.map({ try $0.evaluate(symbols) }),
                let start = try? viewOffset.evaluate(symbols)
            else { return nil }
            (strides, offset) = (evaluated, start)
        } else {
            var running = 1
            for length in shape.reversed() {
                strides.insert(running, at: 0)
                running *= length
            }
        }
        guard shape.reduce(1, *) <= 65536 else { return nil }
        var offsets: [Int] = [offset]
        for (length, stride) in zip(shape, strides) {
            offsets = offsets.flatMap { start in (0..<max(0, length)).map { start + $0 * stride } }
        }
        return Set(offsets)
    }
}
