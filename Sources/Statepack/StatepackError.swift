#if canImport(FoundationEssentials)
    public import FoundationEssentials
#else
    public import Foundation
#endif

/// What every throwing call of this library throws, but for `CancellationError`: everything that one call found.
///
///     do {
///         outputs = try await function.run(inputs: inputs, states: states)
///     } catch let error as StatepackError where error.contextViolation?.kind == .contextFull {
///         // Start over, or drop the oldest rows.
///     } catch {
///         print(error)  // each finding with place, expected, found and hint
///     }
///
/// One type for one finding and for several, so that a `catch` cannot miss one of them.
public struct StatepackError: Error, Hashable, Sendable {
    /// The findings in the order they were made; at least one.
    public let diagnostics: [Diagnostic]

    /// The position that a run was refused for; nil for every other reason.
    public let contextViolation: ContextViolation?

    /// - Parameter diagnostics: One or more.
    package init(_ diagnostics: [Diagnostic], contextViolation: ContextViolation? = nil) {
        precondition(!diagnostics.isEmpty, "an error without a finding")
        self.diagnostics = diagnostics
        self.contextViolation = contextViolation
    }

    /// Of the first finding: `E0604`.
    public var code: Diagnostic.Code { diagnostics[0].code }

    /// Of the first finding: one lowercase clause without a full stop.
    public var message: String { diagnostics[0].message }
}

extension StatepackError: CustomStringConvertible, LocalizedError {
    /// Every finding in its text form.
    public var description: String { diagnostics.map(\.description).joined(separator: "\n") }

    /// The same text: what `localizedDescription` shows.
    public var errorDescription: String? { description }
}

extension StatepackError {
    /// Calls `body`, and throws what it throws as this type.
    static func wrapping<R>(_ body: () throws -> R) throws -> R {
        do { return try body() } catch let error as Diagnostic { throw StatepackError([error]) } catch let error
            as DiagnosticList
        { throw StatepackError(error.diagnostics) }
    }
}

/// A position that a state has no row for, given to a run in the input that the model's author declared to carry
/// positions. The run was refused before its first write.
public struct ContextViolation: Hashable, Sendable {
    public enum Kind: Hashable, Sendable {
        /// The position is the next one after the last row: all rows are taken. `E0617`.
        case contextFull
        /// The position is negative, or leaves out rows beyond the last. `E0618`.
        case positionOutOfRange
    }

    public let kind: Kind
    public let function: String
    /// The input that carries the positions.
    public let input: String
    /// The first state with the smallest capacity among those that the positions index.
    public let state: String
    /// The axis of the state that the positions index.
    public let axis: Int
    /// The lowest negative position, else the lowest of those that are too large.
    public let position: Int
    /// The length of the axis. Positions are less than it.
    public let capacity: Int

    package init(
        kind: Kind, function: String, input: String, state: String, axis: Int, position: Int, capacity: Int
    ) {
        self.kind = kind
        self.function = function
        self.input = input
        self.state = state
        self.axis = axis
        self.position = position
        self.capacity = capacity
    }
}
