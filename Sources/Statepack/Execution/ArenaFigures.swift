import StatepackBundle

/// What runs of a planned program need besides their arguments, without its weights.
///
/// The figures are those of the runtime itself: each comes from a function prepared for its sizes as a run would be.
package struct ArenaFigures: Sendable {
    private let model: ModelProgram
    private let functions: [FunctionProgram]

    /// Throws what opening a bundle with this program throws.
    package init(of bundle: BundleProgram, sources: [String] = [], threadCount: Int? = nil) throws {
        var options = SpecializationOptions.default
        options.threadCount = threadCount
        let length = bundle.tensors.map { $0.offset + $0.length }.max() ?? 0
        // NOTE: nobody reads these bytes. Preparing a function computes addresses in them and compares those.
        let weights = UnsafeRawBufferPointer(
            start: UnsafeRawPointer(bitPattern: FileLayout.weightsAlignment), count: length)
        let model = ModelProgram(bundle: bundle, weights: weights, owner: nil, sources: sources, options: options)
        self.model = model
        functions = try bundle.functions.map { try FunctionProgram($0, of: model) }
    }

    package var threadCount: Int { model.pool.threadCount }

    /// Bytes of intermediate values and scratch memory of one run. One value per symbol of the program.
    ///
    /// Costs what the first run of these sizes costs before its first instruction.
    package func byteCount(ofFunction index: Int, symbols: [Int]) throws -> Int {
        try functions[index].specialization(for: symbols).arenaByteCount
    }
}
