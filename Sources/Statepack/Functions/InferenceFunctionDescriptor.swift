/// Names, types and shapes of a function's inputs, states and outputs, in the order of its definition.
public struct InferenceFunctionDescriptor: Sendable, Equatable {
    public let name: String
    public let inputNames: [String]
    public let stateNames: [String]
    public let outputNames: [String]
    private let inputs: [NDArrayDescriptor]
    private let states: [NDArrayDescriptor]
    private let outputs: [NDArrayDescriptor]

    package init(
        name: String, inputs: [(name: String, descriptor: NDArrayDescriptor)],
        states: [(name: String, descriptor: NDArrayDescriptor)],
        outputs: [(name: String, descriptor: NDArrayDescriptor)]
    ) {
        self.name = name
        inputNames = inputs.map(\.name)
        stateNames = states.map(\.name)
        outputNames = outputs.map(\.name)
        self.inputs = inputs.map(\.descriptor)
        self.states = states.map(\.descriptor)
        self.outputs = outputs.map(\.descriptor)
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
