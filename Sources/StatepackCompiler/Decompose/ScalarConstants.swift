internal import StatepackBundle
internal import StatepackDiagnostics
internal import StatepackIR

/// The 0-dimensional inline constants of a program, one for each scalar type and value.
struct ScalarConstants {
    private(set) var tensors: [Program.StoredTensor]
    private var known: [[UInt8]: Int] = [:]
    private var names: Set<String>

    init(_ tensors: [Program.StoredTensor]) {
        self.tensors = tensors
        names = Set(tensors.map(\.name))
    }

    /// Index of a tensor with that value, converted as torch converts a Python number.
    mutating func index(of scalar: ScalarArgument, as type: ScalarType) throws(RuleFailure) -> Int {
        let (bytes, text) = try Self.encode(scalar, as: type)
        let key = [UInt8(type.rawValue)] + bytes
        if let index = known[key] { return index }
        var name = "\(type) \(text)"
        while names.contains(name) { name += "'" }
        names.insert(name)
        known[key] = tensors.count
        tensors.append(.init(name: name, scalarType: type, shape: [], data: .inline(bytes)))
        return tensors.count - 1
    }

    private static func encode(_ scalar: ScalarArgument, as type: ScalarType) throws(RuleFailure) -> ([UInt8], String) {
        func bytes(_ value: some FixedWidthInteger) -> [UInt8] { withUnsafeBytes(of: value.littleEndian) { Array($0) } }
        func refuse(_ found: String) -> RuleFailure {
            RuleFailure(.unsupportedArgument, "a number does not fit \(type)", expected: type.name, found: found)
        }
        let number: Double
        var integer: Int?
        switch scalar {
        case .flag(let flag): (number, integer) = (flag ? 1 : 0, flag ? 1 : 0)
        case .number(let value): number = value
        case .integer(let size):
            guard let constant = size.constant else { throw refuse("a symbolic size") }
            (number, integer) = (Double(constant), constant)
        }
        switch type {
        case .float32: return (bytes(Float(number).bitPattern), "\(Float(number))")
        case .bool: return ([number == 0 ? 0 : 1], number == 0 ? "false" : "true")
        case .int32, .int64:
            if integer == nil {
                // Towards zero, as the conversion of a tensor does.
                guard let truncated = Int(exactly: number.rounded(.towardZero)) else { throw refuse("\(number)") }
                integer = truncated
            }
            if type == .int64 { return (bytes(Int64(integer!)), "\(integer!)") }
            guard let small = Int32(exactly: integer!) else { throw refuse("\(integer!)") }
            return (bytes(small), "\(small)")
        default:
            throw RuleFailure(
                .unsupportedScalarType, "no kernel computes with \(type)", expected: "float32, int32, int64, bool",
                found: type.name)
        }
    }
}
