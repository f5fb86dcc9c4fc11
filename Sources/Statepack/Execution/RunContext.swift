internal import CStatepackKernels

/// What one run needs besides its arguments and its arena. Used by one run at a time.
final class RunContext: @unchecked Sendable {
    let plan: SizePlan
    let tables: CallTables
    /// Nil when no instruction can fail after a state was written.
    let undoLog: OpaquePointer?
    /// Whose sizes the tables have.
    private(set) var specialization: Specialization?
    private var arena: UnsafeMutableRawPointer?

    init(of plan: SizePlan, needsUndoLog: Bool) {
        self.plan = plan
        tables = CallTables(of: plan)
        undoLog = needsUndoLog ? sp_undo_log_create() : nil
    }

    deinit {
        if let undoLog { sp_undo_log_destroy(undoLog) }
    }

    /// Writes the sizes of a choice that was prepared before into the tables. They are proved again: that costs little
    /// more than writing them.
    func use(_ wanted: Specialization) throws(SizeFault) {
        if specialization === wanted { return }
        forgetSpecialization()
        try tables.measure(plan.dynamicValues, wanted.numbers, plan)
        try tables.place(plan.dynamicValues, wanted.numbers, plan)
        tables.setInts(wanted.numbers, plan)
        adopt(wanted)
    }

    /// The tables have the sizes of this choice from now on.
    func adopt(_ specialization: Specialization) { self.specialization = specialization }

    func forgetSpecialization() {
        specialization = nil
        arena = nil
    }

    /// Points all intermediate values, and the kernels' scratch memory, into an arena.
    func use(arena base: UnsafeMutableRawPointer, of specialization: Specialization) {
        if arena == base { return }
        let arenaOffsets = specialization.arenaOffsets
        let offsets = arenaOffsets.span
        for patch in plan.arena {
            tables.tensors[patch.tensor].data = base + offsets[patch.slot] + tables.byteOffsets[patch.tensor]
        }
        let scratch = base + specialization.valueByteCount
        for index in 0..<tables.stepCount { tables.steps[index].call.scratch = scratch }
        arena = base
    }

    /// Points the tensors of one kind of argument at the arguments.
    func point(_ patches: [SizePlan.Patch], at base: (Int) -> UnsafeMutableRawPointer) {
        for patch in patches {
            tables.tensors[patch.tensor].data = base(patch.slot) + tables.byteOffsets[patch.tensor]
        }
    }
}
