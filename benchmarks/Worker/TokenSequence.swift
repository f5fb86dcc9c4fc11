import Statepack

/// One sequence: its states, how many positions they hold, and the token that comes next.
///
/// Inputs and outputs of a step are made once and lent to each run: the form that allocates nothing.
struct TokenSequence {
    private let function: InferenceFunction
    private let outputName: String
    private var states: [String: NDArray]
    private var position = 0
    private(set) var lastToken = 0
    private var single: Arguments

    init(_ function: InferenceFunction) throws {
        self.function = function
        guard let outputName = function.descriptor.outputNames.first else {
            throw WorkerError("function \(function.descriptor.name) has no output")
        }
        self.outputName = outputName
        states = try function.initialStates()
        single = try Arguments(function.descriptor, outputName, length: 1)
    }

    /// Bytes of all states of one sequence.
    var stateByteCount: Int {
        function.descriptor.stateNames.reduce(0) { sum, name in
            guard case .ndArray(let descriptor) = function.descriptor.stateDescriptor(of: name),
                !descriptor.hasDynamicShape
            else { return sum }
            return sum + descriptor.minimumByteCount
        }
    }

    /// Begins at the first position again. Attention reads no row that was not written since, and rows need no clearing.
    mutating func restart() {
        position = 0
    }

    /// Feeds tokens in one run.
    mutating func advance(_ tokens: [Int]) throws {
        if tokens.count == 1 {
            lastToken = tokens[0]
            return try step()
        }
        var arguments = try Arguments(function.descriptor, outputName, length: tokens.count)
        arguments.set(tokens, at: position)
        try arguments.run(function, &states)
        position += tokens.count
        lastToken = arguments.mostLikelyToken()
    }

    /// Feeds the token that came last.
    mutating func step() throws {
        single.set(lastToken, at: position)
        try single.run(function, &states)
        position += 1
        lastToken = single.mostLikelyToken()
    }
}

/// The input and output arrays of runs of one length.
///
/// One input carries tokens, or features made from the token, so that a model without tokens can be timed too. The
/// other, if there is one, is the input that the model's context names as its positions.
struct Arguments {
    private let length: Int
    private let outputName: String
    private var output: NDArray
    private let valuesName: String
    private var values: NDArray
    private let positionsName: String?
    private var positions: NDArray

    init(_ descriptor: InferenceFunctionDescriptor, _ outputName: String, length: Int) throws {
        self.length = length
        self.outputName = outputName
        output = Self.array(descriptor.outputDescriptor(of: outputName)!, length)
        guard output.scalarType == .float32, let count = output.shape.last, count > 0 else {
            throw WorkerError("output \(outputName) is \(output), not float32 scores")
        }

        let positionsName = descriptor.contextRules?.positionsInputName
        self.positionsName = positionsName
        positions = NDArray(shape: [0], scalarType: .int64)
        if let positionsName { positions = Self.array(descriptor.inputDescriptor(of: positionsName)!, length) }
        let others = descriptor.inputNames.filter { $0 != positionsName }
        guard others.count == 1, positions.scalarType == .int64 else {
            throw WorkerError("the inputs \(descriptor.inputNames) are not tokens or features, and int64 positions")
        }
        valuesName = others[0]
        values = Self.array(descriptor.inputDescriptor(of: valuesName)!, length)
        guard values.scalarType == .int64 || values.scalarType == .float32 else {
            throw WorkerError("input \(valuesName) is \(values), not int64 tokens or float32 features")
        }
    }

    /// Every dynamic axis is as long as the run.
    private static func array(_ descriptor: InferenceValue.Descriptor, _ length: Int) -> NDArray {
        switch descriptor {
        case .ndArray(let descriptor):
            NDArray(descriptor: descriptor.resolvingDynamicDimensions(descriptor.shape.map { $0 < 0 ? length : $0 }))
        }
    }

    /// Sets what is fed, the first token at `position`.
    mutating func set(_ tokens: [Int], at position: Int) {
        precondition(tokens.count == length, "\(tokens.count) tokens in arrays for \(length)")
        let width = max(1, values.shape.reduce(1, *) / length)
        if values.scalarType == .int64 {
            Self.fill(&values) { Int64(tokens[$0 / width]) }
        } else {
            Self.fill(&values) { Self.feature(tokens[$0 / width], $0 % width) }
        }
        Self.fill(&positions) { Int64(position + $0) }
    }

    /// The same for arrays of length one, without an array of tokens.
    mutating func set(_ token: Int, at position: Int) {
        if values.scalarType == .int64 {
            Self.fill(&values) { _ in Int64(token) }
        } else {
            Self.fill(&values) { Self.feature(token, $0) }
        }
        Self.fill(&positions) { _ in Int64(position) }
    }

    private static func fill<Element: BitwiseCopyable>(_ array: inout NDArray, with value: (Int) -> Element) {
        let view = array.mutableView(as: Element.self)
        guard var elements = view.contiguousElements else { preconditionFailure("a new array is contiguous") }
        for index in elements.indices { elements[index] = value(index) }
    }

    /// Between -1 and 1, the same in every run.
    private static func feature(_ token: Int, _ index: Int) -> Float {
        let mixed = UInt32(truncatingIfNeeded: token &* 31 &+ index) &* 2_654_435_761
        return Float(mixed >> 8) / Float(1 << 23) - 1
    }

    mutating func run(_ function: InferenceFunction, _ states: inout [String: NDArray]) throws {
        // Views of local arrays: those of a property would escape its scope.
        let (values, positions) = (self.values, self.positions)
        var inputs = InferenceFunction.Inputs()
        inputs.insert(values, for: valuesName)
        if let positionsName { inputs.insert(positions, for: positionsName) }
        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(contentsOf: &states)
        var outputViews = InferenceFunction.MutableViews()
        outputViews.insert(&output, for: outputName)
        _ = try function.runSynchronously(inputs: inputs, states: stateViews, outputViews: outputViews)
    }

    /// The index of the highest score in the last row.
    func mostLikelyToken() -> Int {
        let output = self.output
        let view = output.view(as: Float.self)
        guard let scores = view.contiguousElements, let count = output.shape.last else { return 0 }
        let row = scores.count - count
        var best = row
        for index in row..<scores.count where scores[index] > scores[best] { best = index }
        return best - row
    }
}
