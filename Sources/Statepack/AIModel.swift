import StatepackBundle

#if canImport(FoundationEssentials)
    public import FoundationEssentials
#else
    public import Foundation
#endif

/// A bundle that is open: functions by name, and the weights they share.
///
///     let model = try await AIModel(contentsOf: URL(filePath: "model.statepack"))
///     guard let function = try model.loadFunction(named: "main") else { … }
///
/// The file is mapped, not read; weights are used where they lie. Do not change it while a model is open: replace
/// it by renaming another file over it, as `convert` does. A mapped file that is truncated underneath stops the
/// process with SIGBUS; `SpecializationOptions.copyWeights` reads the file once instead.
public struct AIModel: Sendable {
    let program: ModelProgram

    /// Opens a bundle.
    ///
    /// Reads the header and the program, a few milliseconds; weights are mapped and read when a run needs them.
    /// `options.verifyChecksums` reads the whole file once, and `options.prefaultsWeights` all weights.
    ///
    /// Throws a ``StatepackError`` with everything that is wrong with the file, `E05…`.
    public init(contentsOf modelURL: URL, options: SpecializationOptions = .default) async throws {
        try self.init(path: modelURL.path, options: options)
    }

    /// Opens a bundle on the calling thread.
    package init(path: String, options: SpecializationOptions = .default) throws {
        let bundle: MappedBundle
        do { bundle = try MappedBundle(path: path, access: options.copyWeights ? .copied : .mapped) } catch {
            throw StatepackError(error.diagnostics)
        }
        try self.init(bundle, options: options)
    }

    /// Uses a bundle that is open already.
    package init(_ bundle: MappedBundle, options: SpecializationOptions = .default) throws {
        if options.verifyChecksums {
            let findings = bundle.checksumFindings()
            if !findings.isEmpty { throw StatepackError(findings) }
        }
        if options.prefaultsWeights && !options.copyWeights { MappedPages.prefault(bundle.weights) }
        self.init(
            bundle.program, weights: bundle.weights, owner: bundle, sources: bundle.sources, options: options)
    }

    /// Uses a program that was made in memory. `weights` must stay valid as long as `owner` lives.
    package init(
        _ bundle: BundleProgram, weights: UnsafeRawBufferPointer, owner: (any Sendable)?, sources: [String] = [],
        options: SpecializationOptions = .default
    ) {
        program = ModelProgram(bundle: bundle, weights: weights, owner: owner, sources: sources, options: options)
    }

    /// The names of the functions in the order of the bundle.
    public var functionNames: [String] { program.bundle.functions.map(\.name) }

    /// Names, types and shapes of a function without preparing it. Nil when there is no such function.
    public func functionDescriptor(for functionName: String) -> InferenceFunctionDescriptor? {
        program.bundle.functions.first { $0.name == functionName }.map { program.descriptor(of: $0) }
    }

    /// Prepares a function. Nil when there is no such function.
    ///
    /// Throws `E0615` when the bundle needs a kernel that this version does not have, and `E0614` when the
    /// function is malformed. Costs well under a millisecond; the first run of each choice of sizes costs more.
    public func loadFunction(named functionName: String) throws -> InferenceFunction? {
        guard let function = program.bundle.functions.first(where: { $0.name == functionName }) else { return nil }
        return InferenceFunction(
            program: try StatepackError.wrapping { try FunctionProgram(function, of: program) })
    }
}
