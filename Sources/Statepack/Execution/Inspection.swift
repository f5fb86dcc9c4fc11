internal import CStatepackKernels
import StatepackBundle

// What tools and tests ask about a prepared function, and no caller of the public interface needs.

extension InferenceFunction {
    /// Bytes of intermediate values and scratch memory that one run needs.
    ///
    /// Symbols that are left out are at their minimum. Prepares the function for these sizes.
    package func arenaByteCount(symbols: [String: Int] = [:]) throws -> Int {
        let values = program.model.bundle.symbols.map { symbols[$0.name] ?? $0.min }
        return try StatepackError.wrapping { try program.specialization(for: values).arenaByteCount }
    }

    /// The initial value of a state for a sequence whose first step has inputs of these shapes.
    package func initialValue(ofState name: String, inputShapes: [String: [Int]]) throws -> NDArray {
        try StatepackError.wrapping { try program.initialValue(ofState: name, inputShapes: inputShapes) }
    }

    /// The kernels that the function uses, each once, in order of name.
    package var kernelNames: [String] {
        Set(program.function.instructions.map { program.model.bundle.kernels[$0.kernel] }).sorted()
    }

    /// True when a run remembers what it overwrites, because something can fail after the first state write.
    package var needsUndoLog: Bool { program.needsUndoLog }

    /// Bytes of arenas that wait for the next run of any function of the model.
    package var idleArenaByteCount: Int { program.model.arenas.idleByteCount }

    /// Tables that wait for the next run of this function.
    package var idleTableCount: Int { program.idleContextCount }

    package var preparedSizeCount: Int { program.specializationCount }

    /// The symbol values that are prepared, the latest used first.
    package var preparedSizes: [[Int]] { program.preparedSizes }
}

package enum FunctionLimits {
    package static let preparedSizes = FunctionProgram.specializationLimit
    package static let idleTables = FunctionProgram.idleContextLimit
}

extension AIModel {
    /// The kernels that the bundle names, in its order.
    package var kernelNames: [String] { program.bundle.kernels }

    package var threadCount: Int { program.pool.threadCount }
}

package enum InstructionSet {
    /// That of the kernels: `avx512`, or what `STATEPACK_ISA` asks for.
    package static var inUse: String { String(cString: sp_isa_name(sp_isa_in_use())) }
}
