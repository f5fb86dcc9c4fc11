import Statepack

/// The shortest step there is: for a model whose only input is `features`, such as one that counts its positions
/// in a state of its own. The transformer of this example takes `position_ids` as well; `Sequence` shows that.
func shortestStep(
    _ function: InferenceFunction, _ nextFeatures: NDArray, _ keyCache: inout NDArray, _ valueCache: inout NDArray
) async throws -> NDArray? {
    var stateViews = InferenceFunction.MutableViews()
    stateViews.insert(&keyCache, for: "keyCache")
    stateViews.insert(&valueCache, for: "valueCache")
    var outputs = try await function.run(
        inputs: ["features": nextFeatures],
        states: stateViews
    )
    return outputs.remove("logits")?.ndArray
}
