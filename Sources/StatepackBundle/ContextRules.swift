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

extension ContextRules {
    /// What the rules speak of: the function's inputs, and its states in its order.
    package struct Scope {
        package var inputs: [ScalarType]
        /// Index into the program's states, name and number of axes of each state that the function uses.
        package var states: [(index: Int, name: String, rank: Int)]

        package init(inputs: [ScalarType], states: [(index: Int, name: String, rank: Int)]) {
            self.inputs = inputs
            self.states = states
        }
    }

    /// One thing that the rules say and the function does not bear out.
    package struct Fault: Hashable, Sendable {
        package var message: String
        package var expected: String
        package var found: String
    }

    /// Everything that is wrong with the rules. Whoever reads a program asks this, in any of its forms.
    package func faults(in scope: Scope) -> [Fault] {
        var faults: [Fault] = []
        if !scope.inputs.indices.contains(positions) {
            faults.append(
                Fault(
                    message: "the positions of the context are no input of the function",
                    expected: scope.inputs.isEmpty ? "an input" : "0 to \(scope.inputs.count - 1)",
                    found: "\(positions)"))
        } else if ![.int32, .int64].contains(scope.inputs[positions]) {
            faults.append(
                Fault(
                    message: "the positions of the context have the wrong scalar type", expected: "int32 or int64",
                    found: "\(scope.inputs[positions])"))
        }
        if axes.isEmpty {
            faults.append(
                Fault(
                    message: "the context names no state", expected: "one state or more",
                    found: "none"))
        }
        var lastSlot = -1
        for axis in axes {
            guard let slot = scope.states.firstIndex(where: { $0.index == axis.state }) else {
                faults.append(
                    Fault(
                        message: "the context names a state that the function does not use",
                        expected: scope.states.isEmpty
                            ? "no state" : scope.states.map { "\($0.index)" }.joined(separator: ", "),
                        found: "\(axis.state)"))
                continue
            }
            let state = scope.states[slot]
            if slot <= lastSlot {
                faults.append(
                    Fault(
                        message: "the context does not name each state once, in the order of the function",
                        expected: "state \(scope.states.map(\.name).joined(separator: ", "))",
                        found: "`\(state.name)` after `\(scope.states[lastSlot].name)`"))
            }
            lastSlot = max(lastSlot, slot)
            if axis.axis < 0 || axis.axis >= state.rank {
                faults.append(
                    Fault(
                        message: "the context names an axis that state `\(state.name)` does not have",
                        expected: state.rank == 0 ? "an axis" : "0 to \(state.rank - 1)", found: "\(axis.axis)"))
            }
        }
        return faults
    }
}
