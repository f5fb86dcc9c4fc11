internal import CStatepackKernels
package import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// Decides in which layout each stored tensor goes into the bundle, once for each layout that is used.
///
///     before   tensor "lm_head.weight" row-major; linear(%x, %w), embedding(%w, %ids)
///     after    tensor "lm_head.weight" panel16, 64-byte aligned
///
/// A float32 matrix that only kernels read which take panels (`linear` and its kin, `embedding`) becomes panels;
/// where something else reads it as well it is also kept row-major. Initial values of states stay row-major.
/// What no function uses is left out.
package struct PackWeights: Sendable {
    package static let name = "PackWeights"

    /// Where the bytes of a tensor of the bundle come from.
    package struct Recipe: Hashable, Sendable {
        /// Index into `Program.tensors`.
        package var source: Int
        package var layout: BundleProgram.Layout
    }

    package init() {}

    /// The plan with tensors laid out, and for each of them its recipe.
    package func pack(
        _ plan: BundleProgram, report: inout CompilationReport
    ) throws -> (program: BundleProgram, recipes: [Recipe]) {
        var uses: Set<Use> = []
        for function in plan.functions { Self.forEachUse(in: function, plan) { uses.insert($2) } }
        for state in plan.states {
            if case .tensor(let tensor) = state.initialValue { uses.insert(Use(tensor: tensor, layout: .rowMajor)) }
        }
        let ordered = uses.sorted { ($0.tensor, $0.layout.rawValue) < ($1.tensor, $1.layout.rawValue) }
        let slots = Dictionary(uniqueKeysWithValues: ordered.enumerated().map { ($1, $0) })

        var packed = plan
        packed.tensors = ordered.map { use in
            var tensor = plan.tensors[use.tensor]
            tensor.layout = use.layout
            // Names are unique in a bundle, and the panels are what most tensors are.
            if use.layout == .rowMajor, slots[Use(tensor: use.tensor, layout: .panel16)] != nil {
                tensor.name += " (row-major)"
            }
            return tensor
        }
        for index in packed.states.indices {
            if case .tensor(let tensor) = packed.states[index].initialValue {
                packed.states[index].initialValue = .tensor(slots[Use(tensor: tensor, layout: .rowMajor)]!)
            }
        }
        for index in packed.functions.indices { Self.assign(slots, in: &packed.functions[index], plan) }
        guard packed.layOutTensors() != nil else {
            throw Diagnostic(.unsupportedPlan, "the weights are larger than a file can be")
        }
        report.count(Self.name, "panel16", by: ordered.count { $0.layout == .panel16 })
        report.count(Self.name, "row-major", by: ordered.count { $0.layout == .rowMajor })
        report.count(Self.name, "unused", by: plan.tensors.count - Set(ordered.map(\.tensor)).count)
        return (packed, ordered.map { Recipe(source: $0.tensor, layout: $0.layout) })
    }

    private struct Use: Hashable {
        var tensor: Int
        var layout: BundleProgram.Layout
    }

    /// Calls `body` with instruction (nil for the base of a view), operand and use for every read of a tensor.
    private static func forEachUse(
        in function: BundleProgram.Function, _ plan: BundleProgram, _ body: (Int, Int, Use) -> Void
    ) {
        func tensor(_ value: Int) -> Int? {
            if case .tensor(let tensor) = function.values[value].storage { return tensor }
            return nil
        }
        for (index, instruction) in function.instructions.enumerated() {
            let kernel = plan.kernels[instruction.kernel]
            let signature = KernelSignature.byName[kernel]
            for (position, operand) in instruction.operands.enumerated() {
                guard let operand else { continue }
                if case .view(let base, _, _) = function.values[operand].storage, let tensor = tensor(base) {
                    body(index, position, Use(tensor: tensor, layout: .rowMajor))
                }
                guard let tensor = tensor(operand) else { continue }
                // The last operand stands for all entries of a list.
                let takesPanels =
                    signature.map { $0.panels.contains($0.operands[min(position, $0.operands.count - 1)].name) }
                    ?? false
                let isMatrix =
                    plan.tensors[tensor].scalarType == .float32 && plan.tensors[tensor].shape.count == 2
                    && !plan.tensors[tensor].shape.contains(0)
                body(index, position, Use(tensor: tensor, layout: takesPanels && isMatrix ? .panel16 : .rowMajor))
            }
        }
    }

    /// Points every value at the tensor in the layout that its readers take.
    private static func assign(_ slots: [Use: Int], in function: inout BundleProgram.Function, _ plan: BundleProgram) {
        let original = function
        // The value that stands for a use; the first one keeps the place of the original.
        var valueOf: [Use: Int] = [:]
        func value(for use: Use, replacing old: Int) -> Int {
            if let known = valueOf[use] { return known }
            let isFirst = !valueOf.keys.contains { $0.tensor == use.tensor }
            var value = original.values[old]
            value.storage = .tensor(slots[use]!)
            if isFirst {
                function.values[old] = value
                valueOf[use] = old
            } else {
                function.values.append(value)
                valueOf[use] = function.values.count - 1
            }
            return valueOf[use]!
        }
        forEachUse(in: original, plan) { instruction, position, use in
            let operand = original.instructions[instruction].operands[position]!
            if case .view(let base, let strides, let offset) = original.values[operand].storage {
                let rowMajor = value(for: use, replacing: base)
                function.values[operand].storage = .view(base: rowMajor, strides: strides, offset: offset)
            } else {
                function.instructions[instruction].operands[position] = value(for: use, replacing: operand)
            }
        }
    }
}

extension PackWeights {
    /// Gives `emit` the bytes of one tensor in its layout, some 4 MiB at once: memory is one block of rows,
    /// whatever the size of the tensor.
    package static func stream(
        _ tensor: BundleProgram.Tensor, from source: UnsafeRawBufferPointer,
        emit: (UnsafeRawBufferPointer) throws -> Void
    ) throws {
        let expected = tensor.shape.reduce(tensor.scalarType.byteCount, *)
        guard source.count == expected else {
            throw Diagnostic.internalFault(
                "stored tensor `\(tensor.name)` has \(source.count) bytes, its shape says \(expected)")
        }
        let blockBytes = 4 << 20
        switch tensor.layout {
        case .rowMajor:
            for start in stride(from: 0, to: source.count, by: blockBytes) {
                try emit(UnsafeRawBufferPointer(rebasing: source[start..<min(start + blockBytes, source.count)]))
            }
        case .panel16:
            let (n, k) = (tensor.shape[0], tensor.shape[1])
            let rowsAtOnce = max(1, blockBytes / (k * 4) / 16) * 16
            // Packed as if the block were a matrix of its own: its panels are those of the whole.
            var panels = [Float](repeating: 0, count: rowsAtOnce * k)
            for first in stride(from: 0, to: n, by: rowsAtOnce) {
                let rows = min(rowsAtOnce, n - first)
                try panels.withUnsafeMutableBufferPointer { buffer in
                    try withAlignedRows(source, first: first * k, count: rows * k) { block in
                        sp_panel_pack(block, Int64(rows), Int64(k), 0, Int64(rows), buffer.baseAddress)
                    }
                    let bytes = (rows + 15) / 16 * 16 * k * 4
                    try emit(UnsafeRawBufferPointer(rebasing: UnsafeRawBufferPointer(buffer)[..<bytes]))
                }
            }
        }
    }

    /// Elements of a float32 tensor at any address: a weights file need not align them.
    private static func withAlignedRows(
        _ source: UnsafeRawBufferPointer, first: Int, count: Int, _ body: (UnsafePointer<Float>) -> Void
    ) throws {
        let bytes = UnsafeRawBufferPointer(rebasing: source[first * 4..<(first + count) * 4])
        if Int(bitPattern: bytes.baseAddress) % MemoryLayout<Float>.alignment == 0 {
            body(bytes.baseAddress!.assumingMemoryBound(to: Float.self))
        } else {
            let aligned = [Float](unsafeUninitializedCapacity: count) { buffer, initialised in
                UnsafeMutableRawBufferPointer(buffer).copyMemory(from: bytes)
                initialised = count
            }
            aligned.withUnsafeBufferPointer { body($0.baseAddress!) }
        }
    }
}
