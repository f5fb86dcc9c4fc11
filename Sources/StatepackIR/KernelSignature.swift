/// What a kernel is called with: a row of "kernels" in `schemas/ops.json`.
///
/// From DecomposeOps on, a node that is neither a view, a scatter nor a `write` is named after one, and its
/// arguments are the row's operands, ints and floats by name.
package struct KernelSignature: Hashable, Sendable {
    package enum Operand: Hashable, Sendable {
        case required(String)
        /// `.none` when absent.
        case optional(String)
        /// A tensor list; its elements are operands one after another.
        case list(String)

        package var name: String {
            switch self {
            case .required(let name), .optional(let name), .list(let name): name
            }
        }
    }

    /// Kernels whose C source is generated from an expression of one element each.
    package enum Family: Hashable, Sendable {
        case unary
        case binary
        case comparison
    }

    package let name: String
    package let operands: [Operand]
    package let ints: [String]
    package let floats: [String]
    /// Operands that may be in `PANEL_16`.
    package let panels: [String]
    package let family: Family?
    /// May fail on the values it reads.
    package let isFallible: Bool
    /// The first result may be the same view as the first operand: then only the named elements are touched.
    package let isWriting: Bool

    init(
        _ name: String, operands: [Operand], ints: [String] = [], floats: [String] = [], panels: [String] = [],
        family: Family? = nil, isFallible: Bool = false, isWriting: Bool = false
    ) {
        self.name = name
        self.operands = operands
        self.ints = ints
        self.floats = floats
        self.panels = panels
        self.family = family
        self.isFallible = isFallible
        self.isWriting = isWriting
    }

    /// True when each element of the result depends on the same element of every operand alone (after
    /// broadcasting), so that the result may take the place of an operand.
    package var isPointwise: Bool { family != nil || ["where", "copy", "fill"].contains(name) }

    package static let byName: [String: KernelSignature] = Dictionary(
        uniqueKeysWithValues: all.map { ($0.name, $0) })
}
