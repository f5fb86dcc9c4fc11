/// One entry point of a model, ready to run. Cheap to copy; copies share what was prepared.
///
///     var states = InferenceFunction.MutableViews()
///     states.insert(&keyCache, for: "keyCache")
///     var outputs = try await function.run(inputs: ["features": features], states: states)
///     let logits = outputs.remove("logits")?.ndArray
///
/// Runs of one function may overlap, each with states of its own.
public struct InferenceFunction: Sendable {
    let program: FunctionProgram

    public var descriptor: InferenceFunctionDescriptor { program.descriptor }

    /// Runs the function once.
    ///
    /// Every state needs a view and is updated in place. Outputs with a view are written there; the others are
    /// returned as new row-major arrays. Everything is checked before the first write, and a call that throws leaves
    /// every state as it was. Inputs that are not row-major are copied.
    ///
    /// The work happens on a thread of the library, not on Swift's cooperative pool. A task that is cancelled before
    /// the work begins throws `CancellationError`; once begun, a run goes to its end.
    ///
    /// A call costs a microsecond or two beside its instructions, some tens of nanoseconds of it for each argument, and
    /// handing the work to a thread and back, which is the system's time for two thread switches; see
    /// ``runSynchronously(inputs:states:outputViews:)`` for a step that keeps its thread. The first run of
    /// sizes that were not used lately prepares them, well under a hundredth of a step of a real model.
    ///
    /// Throws a ``StatepackError`` with everything it found. A function whose author declared its context refuses
    /// positions that its states have no row for: ``StatepackError/contextViolation`` says which.
    public nonisolated(nonsending) func run(
        inputs: [String: NDArray], states: consuming MutableViews = MutableViews(),
        outputViews: consuming MutableViews = MutableViews()
    ) async throws -> Outputs {
        let list = ArgumentList(inputs)
        let call = program.takeCall()
        defer {
            program.giveBack(call)
            extendLifetime(list)
            extendLifetime(inputs)
            extendLifetime(states)
            extendLifetime(outputViews)
        }
        try call.bind(list, states: states.arguments, outputViews: outputViews.arguments)
        try Task.checkCancellation()
        await RunnerThreads.shared.perform(call)
        return try call.finish()
    }

    /// Runs the function once with borrowed inputs; see ``run(inputs:states:outputViews:)``.
    ///
    /// With a view for every output, a step of sizes that were used before allocates no memory.
    public nonisolated(nonsending) func run(
        inputs: borrowing Inputs, states: consuming MutableViews = MutableViews(),
        outputViews: consuming MutableViews = MutableViews()
    ) async throws -> Outputs {
        let call = program.takeCall()
        defer {
            program.giveBack(call)
            extendLifetime(states)
            extendLifetime(outputViews)
        }
        try call.bind(inputs.arguments, states: states.arguments, outputViews: outputViews.arguments)
        try Task.checkCancellation()
        await RunnerThreads.shared.perform(call)
        return try call.finish()
    }

    /// Runs the function once on the calling thread and returns when it is done.
    ///
    /// For programs without tasks: benchmarks, command lines, other languages. In a task it would block a thread of
    /// the cooperative pool; use ``run(inputs:states:outputViews:)`` there.
    public func runSynchronously(
        inputs: [String: NDArray], states: consuming MutableViews = MutableViews(),
        outputViews: consuming MutableViews = MutableViews()
    ) throws -> Outputs {
        let list = ArgumentList(inputs)
        let call = program.takeCall()
        defer {
            program.giveBack(call)
            extendLifetime(list)
            extendLifetime(inputs)
            extendLifetime(states)
            extendLifetime(outputViews)
        }
        try call.bind(list, states: states.arguments, outputViews: outputViews.arguments)
        call.execute()
        return try call.finish()
    }

    /// Runs the function once on the calling thread with borrowed inputs.
    ///
    /// The cheapest form: with a view for every output, a step of sizes that were used before allocates no memory, and
    /// switches no thread but for those that the kernels use.
    public func runSynchronously(
        inputs: borrowing Inputs, states: consuming MutableViews = MutableViews(),
        outputViews: consuming MutableViews = MutableViews()
    ) throws -> Outputs {
        let call = program.takeCall()
        defer {
            program.giveBack(call)
            extendLifetime(states)
            extendLifetime(outputViews)
        }
        try call.bind(inputs.arguments, states: states.arguments, outputViews: outputViews.arguments)
        call.execute()
        return try call.finish()
    }

    /// A new array that holds the state's value before the first run, as the exported module had it.
    ///
    /// Throws `E0601` for an unknown name, `E0616` when the state has a dynamic size, and `E0613` when there is not
    /// enough memory.
    public func initialValue(ofState stateName: String) throws -> NDArray {
        try StatepackError.wrapping { try program.initialValue(ofState: stateName, shape: nil) }
    }

    /// The initial value of a state whose dynamic sizes are those of `shape`.
    ///
    /// Throws `E0601` for an unknown name, `E0604` when the shape does not fit the state's descriptor, and `E0613` when
    /// there is not enough memory.
    public func initialValue(ofState stateName: String, shape: [Int]) throws -> NDArray {
        try StatepackError.wrapping { try program.initialValue(ofState: stateName, shape: shape) }
    }

    /// The initial values of all states, by name: what one new sequence starts with.
    ///
    /// Throws `E0616` when a state has a dynamic size.
    public func initialStates() throws -> [String: NDArray] {
        var states: [String: NDArray] = [:]
        for name in descriptor.stateNames { states[name] = try initialValue(ofState: name) }
        return states
    }
}

extension ArgumentList {
    /// Inputs of a dictionary, which the caller keeps alive.
    init(_ arrays: [String: NDArray]) {
        self.init()
        for (name, array) in arrays {
            var argument = Argument(reading: array)
            argument.name = name
            append(argument)
        }
    }
}
