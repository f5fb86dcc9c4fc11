import Statepack

/// Runs one step: a function with inputs, and with the states that it finds in `states` and leaves there.
package typealias StepRunner = (
    _ function: InferenceFunction, _ inputs: [String: NDArray], _ states: inout [String: NDArray]
) throws -> [String: NDArray]

/// Runs a function once on this thread with the states it declares, taken from and put back into
/// `states`, which may hold those of other functions too.
///
/// Each array is moved out for the call, so that the run finds it uniquely held and copies nothing.
func runFunction(
    _ function: InferenceFunction, inputs: [String: NDArray], states: inout [String: NDArray]
) throws -> (arrays: [String: NDArray], statistics: InferenceFunction.RunStatistics) {
    var own: [String: NDArray] = [:]
    for name in function.descriptor.stateNames { own[name] = states.removeValue(forKey: name) }
    defer {
        for (name, array) in own { states[name] = array }
    }
    var views = InferenceFunction.MutableViews()
    views.insert(contentsOf: &own)
    var outputs = try function.runSynchronously(inputs: inputs, states: views)
    let statistics = outputs.statistics
    var arrays: [String: NDArray] = [:]
    for name in function.descriptor.outputNames { arrays[name] = outputs.remove(name)?.ndArray }
    return (arrays, statistics)
}
