internal import CProtobufC
@preconcurrency internal import CStatepackSchema
package import StatepackBundle
package import StatepackDiagnostics

/// An eager PyTorch run that was stored at export: the messages of program.proto as Swift values.
///
/// The same bytes lie in exported.pb and in a bundle's recording section.
package struct Recording: Hashable, Sendable {
    package struct Tensor: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        /// Row-major little-endian elements.
        package var bytes: [UInt8]
    }

    package struct Output: Hashable, Sendable {
        package var name: String
        package var scalarType: ScalarType
        package var shape: [Int]
        /// Flat row-major indices of the elements in `values`; nil when they are all there.
        package var indices: [Int]?
        package var values: [UInt8]
        /// |found - expected| <= absolute + relative * |expected|.
        package var absolute: Double
        package var relative: Double
    }

    package struct State: Hashable, Sendable {
        package var name: String
        /// Elements that changed, in flat row-major order; sorted, without overlap.
        package var runs: [Range<Int>]
        /// The elements of the runs one after another.
        package var values: [UInt8]
        package var absolute: Double
        package var relative: Double
        /// Elements outside the runs must keep their bits.
        package var untouchedExact: Bool
        /// Elements inside the runs must be bit-exact, too.
        package var movesData: Bool
        /// The runs are a sample of what was written: nothing is known of other elements.
        package var isSampled: Bool
    }

    package struct Step: Hashable, Sendable {
        package var function: String
        package var inputs: [Tensor]
        package var outputs: [Output]
        package var states: [State]
    }

    /// Steps from the initial values of the states on.
    package struct Replay: Hashable, Sendable {
        package var steps: [Step]
    }

    package var replays: [Replay]

    package init(replays: [Replay]) { self.replays = replays }

    /// Reads and checks the message `Recording`. Whether it fits a program's functions is the caller's to
    /// check. Throws `malformedRecording`, `malformedProgram` or `programLimitExceeded`, the last
    /// also when the unpacked message takes more bytes than `memory`.
    ///
    /// - Parameter skippingUnknownFields: For a file of a newer minor version.
    package init(
        serialized bytes: UnsafeRawBufferPointer, path: String = "recording", skippingUnknownFields: Bool = false,
        memory: Int? = nil
    ) throws(DiagnosticList) {
        var prototype = Statepack__Program__V1__Recording()
        statepack__program__v1__recording__init(&prototype)
        self = try withUnpacked(
            bytes, path: path, skippingUnknownFields: skippingUnknownFields, memory: memory ?? unpackedMemory,
            descriptor: prototype.base.descriptor, as: Statepack__Program__V1__Recording.self
        ) { message throws(DiagnosticList) in
            var conversion = RecordingConversion(path: path)
            let recording = conversion.convert(message.pointee)
            if !conversion.findings.isEmpty { throw DiagnosticList(conversion.findings) }
            return recording
        }
    }
}

extension Recording {
    /// A recording's bytes without what a newer minor version added, so that a bundle of this version may hold them.
    static func knownFields(of bytes: UnsafeRawBufferPointer) throws(WireScan.Failure) -> [UInt8] {
        var prototype = Statepack__Program__V1__Recording()
        statepack__program__v1__recording__init(&prototype)
        return try WireScan.knownFields(of: bytes, 0..<bytes.count, as: prototype.base.descriptor)
    }
}

private struct RecordingConversion {
    let path: String
    private(set) var findings: [Diagnostic] = []

    init(path: String) { self.path = path }

    private mutating func report(
        _ message: String, at location: String, expected: String? = nil, found: String? = nil
    ) {
        guard findings.count < 100 else { return }
        findings.append(
            Diagnostic(
                .malformedRecording, message, at: "\(path), recording, \(location)", expected: expected, found: found))
    }

    private func list<T>(_ count: Int, _ base: UnsafeMutablePointer<T>?) -> UnsafeBufferPointer<T> {
        UnsafeBufferPointer(start: base, count: base == nil ? 0 : count)
    }

    private func text(_ pointer: UnsafeMutablePointer<CChar>?) -> String { pointer.map { String(cString: $0) } ?? "" }

    private func bytes(_ data: ProtobufCBinaryData) -> [UInt8] {
        Array(UnsafeBufferPointer(start: data.data, count: data.data == nil ? 0 : data.len))
    }

    mutating func convert(_ message: Statepack__Program__V1__Recording) -> Recording {
        var replays: [Recording.Replay] = []
        for pointer in list(message.n_replays, message.replays) {
            let replay = pointer!.pointee
            var steps: [Recording.Step] = []
            for pointer in list(replay.n_steps, replay.steps) {
                steps.append(step(pointer!.pointee, "replay \(replays.count), step \(steps.count)"))
            }
            replays.append(.init(steps: steps))
        }
        return Recording(replays: replays)
    }

    private mutating func step(_ message: Statepack__Program__V1__Step, _ place: String) -> Recording.Step {
        var step = Recording.Step(function: text(message.function), inputs: [], outputs: [], states: [])
        for pointer in list(message.n_inputs, message.inputs) {
            let input = pointer!.pointee
            let name = text(input.name)
            let location = "\(place), input `\(name)`"
            let (type, shape, count) = type(input.scalar_type, input.n_shape, input.shape, location)
            let content = bytes(input.data)
            requireLength(content, count, type, location)
            step.inputs.append(.init(name: name, scalarType: type, shape: shape, bytes: content))
        }
        for pointer in list(message.n_outputs, message.outputs) {
            step.outputs.append(output(pointer!.pointee, place))
        }
        for pointer in list(message.n_states, message.states) {
            step.states.append(state(pointer!.pointee, place))
        }
        for (names, what) in [
            (step.inputs.map(\.name), "inputs"), (step.outputs.map(\.name), "outputs"),
            (step.states.map(\.name), "states"),
        ] where Set(names).count != names.count {
            report("two \(what) have one name", at: place, found: "\(names)")
        }
        return step
    }

    private mutating func type(
        _ scalarType: Statepack__Program__V1__ScalarType, _ rank: Int, _ sizes: UnsafeMutablePointer<UInt64>?,
        _ location: String
    ) -> (ScalarType, [Int], Int?) {
        let type = ScalarType(rawValue: UInt32(truncatingIfNeeded: scalarType.rawValue))
        if type == nil { report("an unknown scalar type", at: location, found: "\(scalarType.rawValue)") }
        if rank > ProgramConversion.maximumRank {
            report("the shape is too large", at: location, expected: "at most 8 axes", found: "\(rank) axes")
            return (type ?? .bool, [], nil)
        }
        let shape = list(rank, sizes).map { Int(clamping: $0) }
        guard let bytes = (type ?? .bool).byteCount(ofShape: shape), !shape.contains(.max) else {
            report("the shape is too large", at: location, found: "\(Array(list(rank, sizes)))")
            return (type ?? .bool, [], nil)
        }
        return (type ?? .bool, shape, bytes / (type ?? .bool).byteCount)
    }

    /// Without a number of elements the shape has been reported already.
    private mutating func requireLength(_ content: [UInt8], _ count: Int?, _ type: ScalarType, _ location: String) {
        guard let count else { return }
        let (length, overflow) = count.multipliedReportingOverflow(by: type.byteCount)
        if overflow || content.count != length {
            report(
                "the bytes do not fit scalar type and number of elements", at: location,
                expected: "\(count) elements of \(type)", found: "\(content.count) bytes")
        }
    }

    private mutating func requireTolerance(_ absolute: Double, _ relative: Double, _ location: String) {
        if !(absolute >= 0 && relative >= 0 && absolute.isFinite && relative.isFinite) {
            report("the tolerance is negative or not finite", at: location, found: "\(absolute), \(relative)")
        }
    }

    private mutating func output(_ message: Statepack__Program__V1__RecordedOutput, _ place: String) -> Recording.Output
    {
        let name = text(message.name)
        let location = "\(place), output `\(name)`"
        let (type, shape, count) = type(message.scalar_type, message.n_shape, message.shape, location)
        let values = bytes(message.values)
        var indices: [Int]?
        if message.n_indices > 0 {
            var sample: [Int] = []
            for index in list(message.n_indices, message.indices) {
                if let count, index >= UInt64(count) {
                    report("an index is out of range", at: location, expected: "0..<\(count)", found: "\(index)")
                    break
                }
                sample.append(Int(clamping: index))
            }
            requireLength(values, message.n_indices, type, location)
            indices = sample
        } else {
            requireLength(values, count, type, location)
        }
        requireTolerance(message.absolute, message.relative, location)
        return .init(
            name: name, scalarType: type, shape: shape, indices: indices, values: values, absolute: message.absolute,
            relative: message.relative)
    }

    private mutating func state(_ message: Statepack__Program__V1__RecordedState, _ place: String) -> Recording.State {
        let name = text(message.name)
        let location = "\(place), state `\(name)`"
        var runs: [Range<Int>] = []
        let pairs = list(message.n_runs, message.runs)
        if pairs.count % 2 != 0 { report("a run has no length", at: location, found: "\(pairs.count) numbers") }
        var end = 0
        var total = 0
        for index in stride(from: 0, to: pairs.count - pairs.count % 2, by: 2) {
            let (first, count) = (pairs[index], pairs[index + 1])
            let (last, overflow) = first.addingReportingOverflow(count)
            guard !overflow, last <= UInt64(Int.max), first >= UInt64(end), count > 0 else {
                report(
                    "the runs are not sorted, or overlap, or are empty", at: location, expected: "start \(end) or more",
                    found: "\(first), \(count)")
                break
            }
            runs.append(Int(first)..<Int(last))
            end = Int(last)
            total += Int(count)
        }
        let values = bytes(message.values)
        // The scalar type is the state's, which the program knows; that the bytes divide evenly can be seen here.
        if total == 0 ? !values.isEmpty : values.count % total != 0 || ![1, 2, 4, 8].contains(values.count / total) {
            report(
                "the bytes do not fit the runs", at: location, expected: "whole elements, \(total) of them",
                found: "\(values.count) bytes")
        }
        requireTolerance(message.absolute, message.relative, location)
        return .init(
            name: name, runs: runs, values: values, absolute: message.absolute, relative: message.relative,
            untouchedExact: message.untouched_exact != 0, movesData: message.moves_data != 0,
            isSampled: message.sampled != 0)
    }
}
