/// Names, types and shapes of a function's inputs, states and outputs, in the order of its definition.
public struct InferenceFunctionDescriptor: Sendable, Equatable {
    public let name: String
    public let inputNames: [String]
    public let stateNames: [String]
    public let outputNames: [String]
    /// Which input carries positions and what they index. Nil when the model's author declared no context.
    public let contextRules: ContextRules?
    private let inputs: [NDArrayDescriptor]
    private let states: [NDArrayDescriptor]
    private let outputs: [NDArrayDescriptor]

    package init(
        name: String, inputs: [(name: String, descriptor: NDArrayDescriptor)],
        states: [(name: String, descriptor: NDArrayDescriptor)],
        outputs: [(name: String, descriptor: NDArrayDescriptor)], contextRules: ContextRules? = nil
    ) {
        self.name = name
        inputNames = inputs.map(\.name)
        stateNames = states.map(\.name)
        outputNames = outputs.map(\.name)
        self.inputs = inputs.map(\.descriptor)
        self.states = states.map(\.descriptor)
        self.outputs = outputs.map(\.descriptor)
        self.contextRules = contextRules
    }

    public var inputCount: Int { inputNames.count }

    public var outputCount: Int { outputNames.count }

    /// Nil when the function has no input of that name.
    public func inputDescriptor(of inputName: String) -> InferenceValue.Descriptor? {
        inputNames.firstIndex(of: inputName).map { .ndArray(inputs[$0]) }
    }

    /// Nil when the function has no state of that name.
    public func stateDescriptor(of stateName: String) -> InferenceValue.Descriptor? {
        stateNames.firstIndex(of: stateName).map { .ndArray(states[$0]) }
    }

    /// Nil when the function has no output of that name.
    public func outputDescriptor(of outputName: String) -> InferenceValue.Descriptor? {
        outputNames.firstIndex(of: outputName).map { .ndArray(outputs[$0]) }
    }
}

extension InferenceFunctionDescriptor {
    /// Positions that index the rows of states: the model's author declared them, and every run keeps to them.
    ///
    ///     if let rules = function.descriptor.contextRules, let capacity = rules.capacity(ofState: "keyCache") {
    ///         if position >= capacity { … }  // the next run would throw `contextFull`
    ///     }
    public struct ContextRules: Sendable, Equatable {
        /// The input whose elements must be at least 0 and less than every capacity.
        public let positionsInputName: String
        /// By state: the axis that the positions index.
        public let axes: [String: Int]
        private let capacities: [String: Int]

        package init(positionsInputName: String, axes: [String: Int], capacities: [String: Int]) {
            self.positionsInputName = positionsInputName
            self.axes = axes
            self.capacities = capacities
        }

        /// How many rows the state has. Nil when the positions do not index it, and when the axis has a dynamic size:
        /// then it is the length of that axis in the array that a run is given.
        public func capacity(ofState stateName: String) -> Int? { capacities[stateName] }
    }
}
