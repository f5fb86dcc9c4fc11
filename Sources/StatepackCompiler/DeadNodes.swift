internal import StatepackIR

extension Function {
    /// Drops nodes whose results nothing needs: no output, no state, no write.
    ///
    /// A node that could have failed goes, too, as it does in torch.export.
    mutating func removeDeadNodes() {
        var needed = Set(outputs.map(\.value) + states.map(\.after))
        var kept: [Node] = []
        for node in nodes.reversed() where node.isInPlace || node.results.contains(where: needed.contains) {
            needed.formUnion(node.operands)
            kept.append(node)
        }
        nodes = kept.reversed()
    }
}
