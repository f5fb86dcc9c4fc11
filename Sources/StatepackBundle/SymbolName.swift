extension BundleProgram {
    /// Whether sizes can be written with this name: an identifier, as every name of a `torch.export.Dim` is.
    ///
    /// Sizes are shown to people, and compared in contracts, as text: a symbol called `a + 1` would read like
    /// another size.
    package static func isSymbolName(_ name: String) -> Bool {
        guard let first = name.unicodeScalars.first, first == "_" || first.properties.isXIDStart else { return false }
        return name.unicodeScalars.allSatisfy(\.properties.isXIDContinue)
    }
}
