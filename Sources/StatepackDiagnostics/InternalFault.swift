extension Diagnostic {
    /// What no input may bring about: the tool contradicts itself. `detail` is for those who mend it.
    package static func internalFault(_ detail: String, at location: String? = nil) -> Diagnostic {
        Diagnostic(
            .internalError, "this tool contradicts itself", at: location, found: detail,
            hint: "report it with the command line and the file")
    }
}
