import CStatepackKernels
import Statepack
import StatepackBundle
import StatepackDiagnostics

/// The program section by itself. It is the check that everything behind it relies on: what passes is run, and any
/// access out of bounds is the check's fault.
enum ProgramTarget {
    static func run(_ bytes: UnsafeRawBufferPointer) {
        guard let program = attempt({ try ProgramSection.program(bytes) }) else { return }
        var length = 0
        if let last = program.tensors.last {
            guard last.offset <= 1 << 20, last.length <= 1 << 20 else { return }
            length = last.offset + last.length
        }
        let weights = UnsafeMutableRawBufferPointer.allocate(
            byteCount: max(length, 1), alignment: FileLayout.tensorAlignment)
        defer { weights.deallocate() }
        for index in weights.indices { weights[index] = UInt8(truncatingIfNeeded: index % 5) }
        let sources = (0..<64).map { "source \($0)" }
        let section = UnsafeRawBufferPointer(rebasing: weights[..<length])
        guard
            attempt({ try program.check(weightsLength: section.count, sourceCount: sources.count) }) != nil
        else { return }
        ModelRun.run(program, weights: section, sources: sources)
    }

    static func checksum(_ bytes: [UInt8]) -> UInt32 {
        bytes.withUnsafeBytes { sp_crc32c(0, $0.baseAddress, $0.count) }
    }
}

/// Two steps of each function that is small enough, from its initial states.
enum ModelRun {
    static let maximumInstructions = 256
    static let maximumElements = 1 << 16
    static let maximumBytes = 32 << 20

    static func run(_ bundle: MappedBundle) {
        run(bundle.program, weights: bundle.weights, sources: bundle.sources)
    }

    static func run(_ bundle: BundleProgram, weights: UnsafeRawBufferPointer, sources: [String]) {
        let model = AIModel(
            bundle, weights: weights, owner: nil, sources: sources, options: SpecializationOptions(threadCount: 1))
        for description in bundle.functions.prefix(4) {
            guard let loaded = attempt({ try model.loadFunction(named: description.name) }), let function = loaded
            else { continue }
            for symbols in choices(bundle) { run(function, description, bundle, symbols) }
        }
    }

    /// Symbol values: the smallest, and a little more.
    private static func choices(_ bundle: BundleProgram) -> [[Int]] {
        let smallest = bundle.symbols.map(\.min)
        let larger = bundle.symbols.map { $0.max - $0.min > 2 ? $0.min + 2 : $0.max }
        return smallest == larger ? [smallest] : [smallest, larger]
    }

    private static func run(
        _ function: InferenceFunction, _ description: BundleProgram.Function, _ bundle: BundleProgram, _ symbols: [Int]
    ) {
        guard description.instructions.count <= maximumInstructions else { return }
        var shapes: [[Int]] = []
        for value in description.values {
            guard let shape = try? value.shape.map({ try $0.evaluate(symbols) }) else {
                // The runtime must refuse these sizes with a diagnostic.
                _ = attempt { try function.arenaByteCount(symbols: names(bundle, symbols)) }
                return
            }
            shapes.append(shape)
        }
        guard let arena = attempt({ try function.arenaByteCount(symbols: names(bundle, symbols)) }),
            arena <= maximumBytes, shapes.allSatisfy({ elements($0) <= maximumElements })
        else { return }
        var inputShapes: [String: [Int]] = [:]
        for input in description.inputs { inputShapes[input.name] = shapes[input.value] }
        var states: [String: NDArray] = [:]
        for name in function.descriptor.stateNames {
            guard let state = attempt({ try function.initialValue(ofState: name, inputShapes: inputShapes) }) else {
                return
            }
            states[name] = state
        }
        for step in 0..<2 {
            var inputs: [String: NDArray] = [:]
            for input in description.inputs {
                inputs[input.name] = array(description.values[input.value].scalarType, shapes[input.value], step)
            }
            let finished: Void? = attempt {
                var views = InferenceFunction.MutableViews()
                views.insert(contentsOf: &states)
                _ = try function.runSynchronously(inputs: inputs, states: views)
            }
            if finished == nil { return }
        }
    }

    private static func names(_ bundle: BundleProgram, _ symbols: [Int]) -> [String: Int] {
        Dictionary(zip(bundle.symbols.map(\.name), symbols), uniquingKeysWith: { a, _ in a })
    }

    private static func elements(_ shape: [Int]) -> Int {
        shape.reduce(1) { product, length in
            let (value, overflow) = product.multipliedReportingOverflow(by: length)
            return overflow || value < 0 ? .max : value
        }
    }

    /// Zeros for the first step, then small numbers, some of them negative.
    private static func array(_ type: StatepackBundle.ScalarType, _ shape: [Int], _ step: Int) -> NDArray {
        let scalarType = NDArray.ScalarType.allCases.first { "\($0)" == type.name }!
        var array = NDArray(shape: shape, scalarType: scalarType)
        if step == 0 { return array }
        let count = elements(shape)
        array.mutableRawView().withUnsafeMutableBytes { base, _, _ in
            for index in 0..<count {
                let place = base + index * type.byteCount
                switch type {
                case .bool: place.storeBytes(of: UInt8(index % 2), as: UInt8.self)
                case .float32: place.storeBytes(of: Float(index % 7) - 2, as: Float.self)
                case .float64: place.storeBytes(of: Double(index % 7) - 2, as: Double.self)
                case .int64: place.storeBytes(of: Int64(index % 7) - 1, as: Int64.self)
                case .int32: place.storeBytes(of: Int32(index % 7) - 1, as: Int32.self)
                default: place.storeBytes(of: UInt8(index % 64), as: UInt8.self)
                }
            }
        }
        return array
    }
}
