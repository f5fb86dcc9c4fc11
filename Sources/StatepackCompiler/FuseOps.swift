internal import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// Replaces patterns of operators by one operator that does the same with less memory traffic.
///
/// - `identities`: copies, reshapes, expansions, slices and permutations that change nothing, and the
///   multiplication of floats by 1.0, give way to their operand. A copy means nothing before anything is
///   written; `RecoverStateWrites` and `PlanMemory` put back those that are needed.
/// - `common-subexpressions`: a node with the operator and arguments of an earlier one gives way to it.
/// - `grouped-query`: keys and values that are repeated for each group of query heads are not:
///
///       before   %5: float32[1, 3, 1, 2048, 64] = view.reshape(a=%4, shape={1, 3, 1, 2048, 64})
///                %6: float32[1, 3, 3, 2048, 64] = view.expand(a=%5, shape={1, 3, 3, 2048, 64})
///                %7: float32[1, 9, 2048, 64] = view.reshape(a=%6, shape={1, 9, 2048, 64})   // copies the cache
///                ...
///                sdpa(query=%3, key=%7, value=%10, mask=%2, causal=0, groups=1, scale=0.125)
///       after    sdpa(query=%3, key=%4, value=%8, mask=%2, causal=0, groups=3, scale=0.125)
///
/// - `rms-norm`: `x * rsqrt(mean(x * x) + epsilon) * weight` over the last axis becomes `rms_norm`, unless
///   something else uses a value in between.
/// - `rotary`: a rotary position embedding over the last axis, or over its first elements, becomes one
///   operator, unless something else uses a value in between; the bits stay the same:
///
///       before   %4: float32[1, 9, query, 64] = mul(a=%1, b=%2)
///                %5: float32[1, 9, query, 32] = view.slice(a=%1, dim=3, start=32, end=64, step=1)
///                %6: float32[1, 9, query, 32] = neg(a=%5)
///                %7: float32[1, 9, query, 32] = view.slice(a=%1, dim=3, start=0, end=32, step=1)
///                %8: float32[1, 9, query, 64] = cat(parts=[%6, %7], axis=3)
///                %9: float32[1, 9, query, 64] = mul(a=%8, b=%3)
///                %10: float32[1, 9, query, 64] = add(a=%4, b=%9)
///       after    %4: float32[1, 9, query, 64] = rotary(a=%1, cos=%2, sin=%3)
///
/// - `rotary-write`: an `index_copy` of such an embedding, which nothing else uses, turns the rows where it
///   writes them:
///
///       before   %6: float32[1, 3, query, 64] = rotary(a=%1, cos=%2, sin=%3)
///                %7: float32[1, 3, 2048, 64] = index_copy(a=%4, index=%5, source=%6, axis=2)
///       after    %6: float32[1, 3, 2048, 64] = rotary_index_copy(a=%4, index=%5, source=%1, cos=%2, sin=%3, axis=2)
///
/// - `gated`: `activation(linear(x, gate)) * linear(x, up)` becomes one pass over both weights, unless something
///   else uses a value in between:
///
///       before   %4: float32[1, query, 1536] = linear(a=%1, weight=%2, bias=none)
///                %5: float32[1, query, 1536] = silu(a=%4)
///                %6: float32[1, query, 1536] = linear(a=%1, weight=%3, bias=none)
///                %7: float32[1, query, 1536] = mul(a=%5, b=%6)
///       after    %4: float32[1, query, 1536] = linear_gated(a=%1, gate=%2, up=%3, …, activation=0)
///
/// - `shared-input`: layers with stored weights over the same value become one pass that puts their results side
///   by side, unless a result is an output or its slice would have to be copied:
///
///       before   %5: float32[1, query, 576] = linear(a=%1, weight=%2, bias=none)
///                %6: float32[1, query, 192] = linear(a=%1, weight=%3, bias=none)
///       after    %5: float32[1, query, 768] = linear_parts(a=%1, weights=[%2, %3], biases=0)
///                %6: float32[1, query, 576] = view.slice(a=%5, dim=2, start=0, end=576, step=1)
///                %7: float32[1, query, 192] = view.slice(a=%5, dim=2, start=576, end=768, step=1)
///
///   The weights stay the tensors they are: one that is used elsewhere too is stored once.
/// - `residual`: `linear(x, weight) + residual` becomes `linear_add`, unless something else uses the product.
/// - `output-layout` is `PlanMemory`'s: what is permuted and then reshaped is computed in the order of the reshape.
///
/// Runs on the functional form, before `RecoverStateWrites`: a read may move past a write there, because the
/// value it reads is still a value. What a write in place then disturbs is for that pass to see.
package struct FuseOps: Pass {
    package static let name = "FuseOps"

    package static let fusions = [
        "identities", "common-subexpressions", "grouped-query", "rms-norm", "rotary", "rotary-write", "gated",
        "shared-input", "residual", "output-layout",
    ]

    private let disabled: Set<String>

    /// - Parameter disabled: Names of `fusions` to leave out.
    package init(disabled: Set<String> = []) { self.disabled = disabled }

    package func run(on program: inout Program, report: inout CompilationReport) throws {
        for index in program.functions.indices {
            var fusion = Fusion(program.functions[index], of: program)
            if isEnabled("identities") { try fusion.forwardIdentities() }
            if isEnabled("common-subexpressions") { fusion.mergeCommonSubexpressions() }
            if isEnabled("grouped-query") { try fusion.fuseGroupedQuery() }
            if isEnabled("rms-norm") { try fusion.fuseRMSNorm() }
            if isEnabled("rotary") { try fusion.fuseRotary() }
            if isEnabled("rotary-write") { try fusion.fuseRotaryWrite() }
            // NOTE: gates come before shared inputs, which would take their two layers for one.
            if isEnabled("gated") { try fusion.fuseGated() }
            if isEnabled("shared-input") { try fusion.fuseSharedInputs() }
            if isEnabled("residual") { try fusion.fuseResiduals() }
            fusion.function.removeDeadNodes()
            program.functions[index] = fusion.function
            for (counter, amount) in fusion.counters { report.count(Self.name, counter, by: amount) }
        }
    }

    private func isEnabled(_ fusion: String) -> Bool { !disabled.contains(fusion) }
}
