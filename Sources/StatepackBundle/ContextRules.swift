/// Which input of a function carries positions, and which axes of its states they index.
///
/// Declared by the author, never guessed. Every element of the input must be at least 0 and less than the
/// length of each axis (the capacity); a run checks that before its first write.
package struct ContextRules: Hashable, Sendable {
    package struct Axis: Hashable, Sendable {
        /// Index into the program's states.
        package var state: Int
        package var axis: Int

        package init(state: Int, axis: Int) {
            self.state = state
            self.axis = axis
        }
    }

    /// Index into the function's inputs.
    package var positions: Int
    /// One or more, each state once, in the order of the function's states.
    package var axes: [Axis]

    package init(positions: Int, axes: [Axis]) {
        self.positions = positions
        self.axes = axes
    }
}
