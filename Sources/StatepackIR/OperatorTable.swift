package import StatepackBundle

/// Derives the result types of a node from its arguments.
package typealias OperatorRule = @Sendable (RuleInput) throws(RuleFailure) -> [ValueType]

/// One ATen operator that Statepack imports: a row of `operators` in schemas/ops.json.
package struct OperatorRow: Sendable {
    /// With overload: `aten.add.Tensor`.
    package let name: String
    /// Schema order.
    package let arguments: [String]
    package let writes: Bool
    package let rule: OperatorRule
}

/// One kernel as the compiler types it: a row of `kernels` in schemas/ops.json. Its name is also that of the
/// core operator; its operands and attributes are in `KernelSignature`.
package struct KernelRow: Sendable {
    package let name: String
    /// What its elements may be.
    package let scalarTypes: [ScalarType]
    package let rule: OperatorRule

    package var signature: KernelSignature { KernelSignature.byName[name]! }

    /// Every argument of the core operator, in order.
    package var arguments: [String] { signature.operands.map(\.name) + signature.ints + signature.floats }
}

/// A core operator that is no kernel: a view, or the dual of one.
package struct ViewRow: Sendable {
    package let name: String
    package let arguments: [String]
    package let rule: OperatorRule
}

/// The generated tables, by name.
package enum OperatorTable {
    package static let operators: [String: OperatorRow] = byName(operatorRows, \.name)
    package static let kernels: [String: KernelRow] = byName(kernelRows, \.name)

    package static let views: [String: ViewRow] = byName(
        [
            ViewRow(name: "view.reshape", arguments: ["a", "shape"], rule: CoreRules.reshape),
            ViewRow(name: "view.permute", arguments: ["a", "dims"], rule: CoreRules.permute),
            ViewRow(name: "view.expand", arguments: ["a", "shape"], rule: CoreRules.expand),
            ViewRow(name: "view.slice", arguments: ["a", "dim", "start", "end", "step"], rule: CoreRules.slice),
            ViewRow(name: "view.select", arguments: ["a", "dim", "index"], rule: CoreRules.select),
        ], \.name)

    package static let scatters: [String: ViewRow] = byName(
        [
            ViewRow(
                name: "scatter.slice", arguments: ["a", "source", "dim", "start", "end", "step"],
                rule: CoreRules.scatterSlice),
            ViewRow(
                name: "scatter.select", arguments: ["a", "source", "dim", "index"], rule: CoreRules.scatterSelect),
        ], \.name)

    /// `write{destination, source}`: the bytes of `destination`, a state or a view of one, become those of
    /// `source`; the result is the destination after it. Lowers to the kernel `copy`.
    package static let write = ViewRow(name: "write", arguments: ["destination", "source"], rule: CoreRules.write)

    private static func byName<Row>(_ rows: [Row], _ name: (Row) -> String) -> [String: Row] {
        Dictionary(uniqueKeysWithValues: rows.map { (name($0), $0) })
    }
}
