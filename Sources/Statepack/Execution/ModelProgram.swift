internal import CStatepackKernels
import StatepackBundle

/// What the functions of one open bundle share: the program, the weights and the thread pool.
final class ModelProgram: Sendable {
    let bundle: BundleProgram
    /// The weights section. Valid while `owner` lives.
    nonisolated(unsafe) let weights: UnsafeRawBufferPointer
    private let owner: (any Sendable)?
    /// Where an instruction came from: module path and source line of the author's code.
    let sources: [String]
    let pool: ThreadPool
    let arenas = ArenaPool()

    init(
        bundle: BundleProgram, weights: UnsafeRawBufferPointer, owner: (any Sendable)?,
        sources: [String], options: SpecializationOptions
    ) {
        self.bundle = bundle
        self.weights = weights
        self.owner = owner
        self.sources = sources
        pool = ThreadPool.shared(threadCount: options.threadCount)
    }

    func descriptor(of function: BundleProgram.Function) -> InferenceFunctionDescriptor {
        func described(_ type: StatepackBundle.ScalarType, _ shape: [SizeExpression]) -> NDArrayDescriptor {
            NDArrayDescriptor(scalarType: NDArray.ScalarType(type), shape: shape.map { $0.constant ?? -1 })
        }
        func named(_ values: [BundleProgram.NamedValue]) -> [(name: String, descriptor: NDArrayDescriptor)] {
            values.map { ($0.name, described(function.values[$0.value].scalarType, function.values[$0.value].shape)) }
        }
        return InferenceFunctionDescriptor(
            name: function.name, inputs: named(function.inputs),
            states: function.states.map {
                let state = bundle.states[$0.state]
                return (state.name, described(state.scalarType, state.shape))
            },
            outputs: named(function.outputs), contextRules: function.context.map { contextRules($0, of: function) })
    }

    private func contextRules(
        _ rules: ContextRules, of function: BundleProgram.Function
    ) -> InferenceFunctionDescriptor.ContextRules {
        var axes: [String: Int] = [:]
        var capacities: [String: Int] = [:]
        for axis in rules.axes {
            let state = bundle.states[axis.state]
            axes[state.name] = axis.axis
            if let capacity = state.shape[axis.axis].constant { capacities[state.name] = capacity }
        }
        return .init(
            positionsInputName: function.inputs[rules.positions].name, axes: axes, capacities: capacities)
    }
}
