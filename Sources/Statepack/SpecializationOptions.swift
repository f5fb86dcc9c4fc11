/// How a model is prepared for this machine.
public struct SpecializationOptions: Hashable, Sendable {
    public static let `default` = SpecializationOptions()
    /// The same as `default`: there is no other unit.
    public static let cpuOnly = SpecializationOptions()

    /// Threads that one run may use, the thread it runs on included. Nil: what affinity mask and control group allow.
    public var threadCount: Int?

    /// Verifies the checksum of every section when the file is opened: one pass over all of it.
    public var verifyChecksums = false

    /// Reads the file into memory instead of mapping it: for files that may change while the model is open.
    public var copyWeights = false

    /// Brings all weights into memory when the file is opened, so that the first run does not wait for them.
    ///
    /// Costs a pass over their pages where the file is in memory already, and reading it from the disk otherwise;
    /// without it opening reads a few pages, and the first run that needs a weight pays for it. The
    /// weights stay pages of the file, which all processes that open it share. Nothing with `copyWeights`, which reads
    /// them anyway.
    public var prefaultsWeights = false

    /// Accepted for source compatibility. Every new shape costs little here and is remembered.
    public var expectFrequentReshapes = false

    public private(set) var preferredComputeUnitKind: ComputeUnitKind?

    public var allowedComputeUnitKinds: Set<ComputeUnitKind> { [.cpu] }

    public init(threadCount: Int? = nil, verifyChecksums: Bool = false, prefaultsWeights: Bool = false) {
        self.threadCount = threadCount
        self.verifyChecksums = verifyChecksums
        self.prefaultsWeights = prefaultsWeights
    }

    public init(preferredComputeUnitKind: ComputeUnitKind) {
        self.preferredComputeUnitKind = preferredComputeUnitKind
    }
}

/// What computes. On the platforms of this library that is the processor.
public enum ComputeUnitKind: Hashable, Sendable {
    case cpu

    public static var availableKinds: Set<ComputeUnitKind> { [.cpu] }
}
