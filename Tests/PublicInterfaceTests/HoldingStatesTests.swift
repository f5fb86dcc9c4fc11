import Statepack

// Nothing here runs a model: that these functions compile, with Statepack as the only import and without a
// compiler flag, is the claim. Each holds states in another place and calls the function as the README does.

func statesAsLocals(_ function: InferenceFunction, _ nextFeatures: NDArray) async throws -> NDArray? {
    var keyCache = try function.initialValue(ofState: "keyCache")
    var valueCache = try function.initialValue(ofState: "valueCache")
    for _ in 0..<2 {
        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(&keyCache, for: "keyCache")
        stateViews.insert(&valueCache, for: "valueCache")
        var outputs = try await function.run(
            inputs: ["features": nextFeatures],
            states: stateViews
        )
        if let logits = outputs.remove("logits")?.ndArray { return logits }
    }
    return nil
}

func statesAsInoutParameters(
    _ function: InferenceFunction, _ keyCache: inout NDArray, _ valueCache: inout NDArray, _ nextFeatures: NDArray
) async throws -> Float? {
    var stateViews = InferenceFunction.MutableViews()
    stateViews.insert(&keyCache, for: "keyCache")
    stateViews.insert(&valueCache, for: "valueCache")
    var outputs = try await function.run(
        inputs: ["features": nextFeatures],
        states: stateViews
    )
    guard let logits = outputs.remove("logits")?.ndArray else { return nil }
    let view = logits.view(as: Float.self)
    guard let elements = view.contiguousElements else { return nil }
    return elements[0] + view[scalarAt: [0, 0]]
}

struct StructureHoldingStates {
    var keyCache: NDArray
    var valueCache: NDArray
    let function: InferenceFunction

    mutating func step(_ nextFeatures: NDArray) async throws {
        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(&keyCache, for: "keyCache")
        stateViews.insert(&valueCache, for: "valueCache")
        var outputs = try await function.run(
            inputs: ["features": nextFeatures],
            states: stateViews
        )
        _ = outputs.remove("logits")
    }
}

actor ActorHoldingStates {
    var keyCache: NDArray
    var valueCache: NDArray
    let function: InferenceFunction

    init(function: InferenceFunction) throws {
        self.function = function
        keyCache = try function.initialValue(ofState: "keyCache")
        valueCache = try function.initialValue(ofState: "valueCache")
    }

    func step(_ nextFeatures: NDArray) async throws {
        var stateViews = InferenceFunction.MutableViews()
        stateViews.insert(&keyCache, for: "keyCache")
        stateViews.insert(&valueCache, for: "valueCache")
        var outputs = try await function.run(
            inputs: ["features": nextFeatures],
            states: stateViews
        )
        _ = outputs.remove("logits")
    }
}

func statesAsDictionary(_ function: InferenceFunction, _ states: inout [String: NDArray]) async throws {
    var views = InferenceFunction.MutableViews()
    views.insert(contentsOf: &states)
    _ = try await function.run(inputs: [:], states: views)
}

func statesInClass(_ holder: ClassHoldingStates) async throws {
    // The documented idiom: move the array out for the step, so that it stays the only reference.
    var cache = NDArray(shape: [0], scalarType: .float32)
    swap(&cache, &holder.cache)
    defer { swap(&cache, &holder.cache) }
    var views = InferenceFunction.MutableViews()
    views.insert(&cache, for: "cache")
    _ = try await holder.function.run(inputs: [:], states: views)
}

final class ClassHoldingStates {
    var cache: NDArray
    let function: InferenceFunction

    init(cache: NDArray, function: InferenceFunction) {
        self.cache = cache
        self.function = function
    }
}

func outputViewsAndConsume(_ function: InferenceFunction, _ state: inout NDArray, _ logits: inout NDArray) async throws
{
    var states = InferenceFunction.MutableViews()
    states.insert(&state, for: "s")
    var outputViews = InferenceFunction.MutableViews()
    outputViews.insert(&logits, for: "logits")
    _ = try await function.run(inputs: [:], states: consume states, outputViews: consume outputViews)
}

func borrowedInputs(_ function: InferenceFunction, _ features: NDArray, _ state: inout NDArray) async throws {
    var inputs = InferenceFunction.Inputs()
    inputs.insert(features, for: "features")
    inputs.insert(features.view(as: Float.self).slice(at: [0, .all]), for: "first")
    var states = InferenceFunction.MutableViews()
    states.insert(state.mutableRawView().slice(at: [0..<1, 0..<4]), for: "s")
    let outputs = try await function.run(inputs: inputs, states: states)
    _ = outputs.statistics.attentionRows
}

func synchronousRun(_ function: InferenceFunction, _ states: inout [String: NDArray]) throws -> Int {
    var views = InferenceFunction.MutableViews()
    views.insert(contentsOf: &states)
    let outputs = try function.runSynchronously(inputs: ["x": NDArray(scalars: [Int32(1)], shape: [1])], states: views)
    return outputs.count
}

func descriptors(_ model: AIModel) throws -> [NDArray] {
    var arrays: [NDArray] = []
    for name in model.functionNames {
        guard let descriptor = model.functionDescriptor(for: name) else { continue }
        for state in descriptor.stateNames {
            guard case .ndArray(let array) = descriptor.stateDescriptor(of: state) else { continue }
            let resolved =
                array.hasDynamicShape ? array.resolvingDynamicDimensions(array.shape.map { $0 < 0 ? 256 : $0 }) : array
            arrays.append(NDArray(descriptor: resolved))
        }
    }
    return arrays
}

func elementAccess(_ array: inout NDArray) {
    var view = array.mutableView(as: Float.self)
    view.copyElements(fromContentsOf: [1, 2])
    view[scalarAt: [0]] = 3
    let other = array.mutableView(as: Float.self)
    other.withUnsafeMutablePointer { pointer, shape, strides in pointer[0] = Float(shape[0] + strides[0]) }
    var third = array.mutableView(as: Float.self)
    let part = third.mutatingSlice(at: [0, 1..<2, .all])
    guard var elements = part.contiguousElements else { return }
    elements[0] = 1
}

func errors(_ function: InferenceFunction) async {
    do {
        _ = try await function.run(inputs: [:])
    } catch let error as StatepackError {
        _ = (error.code == .missingArgument, error.message, error.description, error.localizedDescription)
        _ = error.diagnostics.map { ($0.location, $0.expected, $0.found, $0.hint) }
        switch error.contextViolation?.kind {
        case .contextFull: _ = (error.contextViolation?.state, error.contextViolation?.capacity)
        case .positionOutOfRange: _ = error.contextViolation?.position
        case nil: break
        }
    } catch {}
}
