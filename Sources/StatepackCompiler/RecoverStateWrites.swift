internal import StatepackBundle
internal import StatepackDiagnostics
package import StatepackIR

/// Turns functional buffer updates back into writes into the state itself.
///
/// `torch.export` rewrites `cache[0, pos] = k` as pure copies plus an extra graph result, so an untouched
/// program copies the whole stacked cache for each write of each step. This pass follows each state from the
/// value it has at the end back to the value it had at the start; where that is a chain of partial updates,
/// each becomes a write in place:
///
///     before   %2 = view.select(a=%cache, dim=0, index=0)
///              %3 = index_copy(a=%2, index=%pos, source=%k, axis=0)             // copies the layer
///              %4 = scatter.select(a=%cache, source=%3, dim=0, index=0)         // copies the cache
///              state %cache after %4
///     after    %2 = view.select(a=%cache, dim=0, index=0)
///              %3 = inPlace index_copy(a=%2, index=%pos, source=%k, axis=0)     // writes one row
///              state %cache after %cache
///
/// What makes that correct: a value that is an old version of the state must not be read after a write has
/// changed the bytes it sees. Where such a read exists, it moves before the write if what it needs is there
/// by then; otherwise the part it reads is copied before the write, and the report says so. A state whose
/// value is computed as a whole gets it by a `write` once nothing reads the old one, right behind the
/// instruction that computes it when that instruction can produce it in place (`PlanMemory` makes it do so),
/// else at the end, after every right-hand side has been computed.
///
/// Runs on the functional form, after `FuseOps`: fusion moves reads, and is free to where nothing is written.
package struct RecoverStateWrites: Pass {
    package static let name = "RecoverStateWrites"

    package init() {}

    package func run(on program: inout Program, report: inout CompilationReport) throws {
        for index in program.functions.indices {
            var recovery = try Recovery(program.functions[index], of: program)
            program.functions[index] = try recovery.run()
            for (counter, amount) in recovery.counters { report.count(Self.name, counter, by: amount) }
        }
    }
}

extension Node {
    /// True when the kernel may put its result straight into a state, given how each operand lies to it.
    ///
    /// A point-wise kernel reads an element before it writes the same one, so an operand may be the very view
    /// that is written. A kernel that can fail is refused: a state must not be half written by then.
    func canProduce(
        intoPlaceOf isSame: (ValueID) throws -> Bool, overlapping overlaps: (ValueID) throws -> Bool
    ) rethrows -> Bool {
        guard let signature, !signature.isFallible, !isInPlace, results.count == 1 else { return false }
        for operand in operands where try overlaps(operand) {
            guard signature.isPointwise, try isSame(operand) else { return false }
        }
        return true
    }
}

/// The work on one function.
private struct Recovery {
    /// One value that a state has had: the one before it with `destination` overwritten.
    struct Version {
        /// Index into `function.states`.
        var use: Int
        /// Nil for the value at the start.
        var parent: Int?
        /// Writes since the start.
        var depth: Int
        /// The node that writes; nil for the value at the start.
        var writer: Int?
        var destination: Placement
    }

    /// A value that is a view of a version of a state.
    struct Alias {
        var version: Int
        var placement: Placement
    }

    let function: Function
    let program: Program
    let whole: [Placement]
    let stateOf: [ValueID: Int]
    /// Function nodes first; copies and whole-value writes are appended.
    var nodes: [Node]
    /// Indices into `nodes` in execution order.
    var order: [Int]
    var types: [ValueType]
    var outputs: [ValueID]
    /// Node that defines a value.
    var producer: [ValueID: Int] = [:]

    var versions: [Version] = []
    var aliases: [ValueID: Alias] = [:]
    /// Nodes that compute the whole value of a state and may do so in place: node → state use.
    var promoted: [Int: Int] = [:]
    /// Whole-value writes appended at the end: node → state use.
    var finalWrites: [Int: Int] = [:]
    var isOnChain: [Bool] = []

    var copiedBytes: [SizeExpression]
    var reasons: [[String]]
    var counters: [String: Int] = [:]

    init(_ original: Function, of program: Program) throws {
        var function = original
        function.removeDeadNodes()
        self.function = function
        self.program = program
        nodes = function.nodes
        order = Array(function.nodes.indices)
        types = function.values
        outputs = function.outputs.map(\.value)
        whole = try function.states.map { try Placement(whole: function[$0.before].shape) }
        stateOf = Dictionary(
            function.states.enumerated().map { ($1.before, $0) }, uniquingKeysWith: { first, _ in first })
        copiedBytes = function.states.map { _ in .zero }
        reasons = function.states.map { _ in [] }
        for (index, node) in nodes.enumerated() {
            for result in node.results { producer[result] = index }
        }
    }

    mutating func run() throws -> Function {
        try checkTypes()
        try findVersions()
        try promoteWholeValues()
        try appendFinalWrites()
        try hoistFallibleNodes()
        try separateStaleReads(mayDelayWrites: true)
        // A delayed write may have come to lie before a read that was settled already.
        try separateStaleReads(mayDelayWrites: false)
        return try rebuild()
    }

    private func checkTypes() throws {
        var findings: [Diagnostic] = []
        for use in function.states where function[use.before] != function[use.after] {
            let state = program.states[use.state]
            findings.append(
                Diagnostic(
                    .stateUpdateChangesType, "the update of state `\(state.name)` changes its type or shape",
                    at: "function `\(function.name)`",
                    expected: function[use.before].description(symbolNames: program.symbolNames),
                    found: function[use.after].description(symbolNames: program.symbolNames),
                    hint: "convert the new value to the buffer's type and shape before assigning it"))
        }
        if !findings.isEmpty { throw DiagnosticList(findings) }
    }

    // MARK: Versions

    /// Finds for every value whether it is a view of a version of a state, and which writes make versions.
    private mutating func findVersions() throws {
        versions = whole.enumerated().map { use, placement in
            Version(use: use, parent: nil, depth: 0, writer: nil, destination: placement)
        }
        aliases = [:]
        for (use, state) in function.states.enumerated() {
            aliases[state.before] = Alias(version: use, placement: whole[use])
        }
        for index in function.nodes.indices { try findVersion(of: index) }
    }

    private mutating func findVersion(of index: Int) throws {
        let node = nodes[index]
        guard let result = node.results.first else { return }
        if let use = promoted[index] {
            let read = node.operands.compactMap { aliases[$0] }.filter { versions[$0.version].use == use }
            let parent = read.map(\.version).max { versions[$0].depth < versions[$1].depth } ?? use
            addVersion(of: result, after: parent, writer: index, whole[use], seenAs: whole[use])
        } else if node.isView {
            guard let alias = aliases[try node.tensor("a")] else { return }
            if let placement = try alias.placement.applying(node, shape: types[result.index].shape) {
                aliases[result] = Alias(version: alias.version, placement: placement)
            }
        } else if node.isScatterOfView {
            guard let base = aliases[try node.tensor("a")],
                let region = try base.placement.applying(node, shape: [])
            else { return }
            let source = try node.tensor("source")
            if let update = aliases[source], update.placement.view == region.view,
                try isUpdate(source, withinItsOwnViewSince: base.version)
            {
                // The view was updated in place, and with it the whole.
                aliases[result] = Alias(version: update.version, placement: base.placement)
            } else if region.view.isInjective {
                addVersion(of: result, after: base.version, writer: index, region, seenAs: base.placement)
            }
        } else if node.signature?.isWriting == true {
            guard let base = aliases[try node.tensor("a")], base.placement.view.isInjective else { return }
            addVersion(
                of: result, after: base.version, writer: index, base.placement, seenAs: base.placement)
        }
    }

    private mutating func addVersion(
        of result: ValueID, after parent: Int, writer: Int, _ destination: Placement, seenAs placement: Placement
    ) {
        let depth = versions[parent].depth + 1
        versions.append(
            Version(
                use: versions[parent].use, parent: parent, depth: depth, writer: writer, destination: destination))
        aliases[result] = Alias(version: versions.count - 1, placement: placement)
    }

    /// True when the value comes from `ancestor` by writes that touch nothing outside the view it is.
    private func isUpdate(_ value: ValueID, withinItsOwnViewSince ancestor: Int) throws -> Bool {
        var value = value
        while let alias = aliases[value] {
            if alias.version == ancestor { return true }
            guard let index = producer[value], promoted[index] == nil else { return false }
            let node = nodes[index]
            let keepsElements = ["view.permute", "view.reshape"].contains(node.op)
            guard keepsElements || node.isScatterOfView || node.signature?.isWriting == true else { return false }
            value = try node.tensor("a")
        }
        return false
    }

    /// The version that the state ends with, when the writes that lead to it are all of its updates.
    private func finalVersion(of use: Int) -> Int? {
        guard let alias = aliases[function.states[use].after], versions[alias.version].use == use,
            alias.placement.view == whole[use].view
        else { return nil }
        return alias.version
    }

    /// Lets a node that computes the whole value of a state count as a write where its kernel allows that.
    private mutating func promoteWholeValues() throws {
        for use in function.states.indices where finalVersion(of: use) == nil {
            guard let index = try wholeValueProducer(of: use), promoted[index] == nil else { continue }
            let isAllowed = nodes[index].canProduce(
                intoPlaceOf: { aliases[$0]?.placement.view == whole[use].view },
                overlapping: { aliases[$0].map { versions[$0.version].use == use } ?? false })
            guard isAllowed else { continue }
            promoted[index] = use
            try findVersions()
            if finalVersion(of: use) == nil {
                promoted[index] = nil
                try findVersions()
            }
        }
        isOnChain = versions.map { _ in false }
        for use in function.states.indices {
            isOnChain[use] = true
            var version = finalVersion(of: use)
            while let current = version {
                isOnChain[current] = true
                version = versions[current].parent
            }
        }
    }

    /// The node behind the state's last value once partial updates of that value are taken off.
    private func wholeValueProducer(of use: Int) throws -> Int? {
        var value = function.states[use].after
        while let index = producer[value], aliases[value].map({ isStateAtStart($0) }) != true {
            let node = nodes[index]
            if node.isScatterOfView || node.signature?.isWriting == true {
                value = try node.tensor("a")
            } else {
                let isWhole = types[value.index] == types[function.states[use].before.index]
                return isWhole && !node.isView ? index : nil
            }
        }
        return nil
    }

    private func isStateAtStart(_ alias: Alias) -> Bool { versions[alias.version].writer == nil }

    /// The version of a state whose bytes the value still is, once the writes are in place.
    private func stateAlias(of value: ValueID) -> Alias? {
        guard let alias = aliases[value], isOnChain[alias.version] else { return nil }
        return alias
    }

    // MARK: Whole values

    private mutating func appendFinalWrites() throws {
        var pending = function.states.indices.filter { finalVersion(of: $0) == nil }
        while !pending.isEmpty {
            // A state that no other right-hand side reads goes first; in a cycle somebody has to.
            let next =
                pending.firstIndex { use in
                    !pending.contains { other in
                        other != use
                            && stateAlias(of: function.states[other].after).map { versions[$0.version].use } == use
                    }
                } ?? 0
            try appendFinalWrite(of: pending.remove(at: next))
        }
        for (index, use) in promoted.sorted(by: { $0.key < $1.key }) where nodes[index].op == "copy" {
            if let source = stateAlias(of: try nodes[index].tensor("a")) {
                try charge(use, bytesOf: types[nodes[index].results[0].index], takeover(of: source, by: use))
            }
        }
    }

    private mutating func appendFinalWrite(of use: Int) throws {
        let state = function.states[use]
        let result = addValue(types[state.before.index])
        let index = append(
            Node(
                "write", [.init("destination", .tensor(state.before)), .init("source", .tensor(state.after))],
                results: [result], source: producer[state.after].flatMap { nodes[$0].source }, isInPlace: true))
        order.append(index)
        finalWrites[index] = use
        versions.append(
            Version(use: use, parent: use, depth: 1, writer: index, destination: whole[use]))
        isOnChain.append(true)
        aliases[result] = Alias(version: versions.count - 1, placement: whole[use])
        let type = types[state.after.index]
        if let source = stateAlias(of: state.after) {
            try charge(use, bytesOf: type, takeover(of: source, by: use))
        } else if let computed = try computingNode(behind: state.after) {
            try charge(
                use, bytesOf: type, "the whole value is computed anew by `\(nodes[computed].op)`\(place(computed))")
        }
    }

    private func takeover(of source: Alias, by use: Int) -> String {
        let other = versions[source.version].use
        return other == use
            ? "its new value is its former one, rearranged" : "it takes over the value of state `\(name(other))`"
    }

    /// The node that computes a value, seen through views; nil for an input or a constant.
    private func computingNode(behind value: ValueID) throws -> Int? {
        var value = value
        while let index = producer[value] {
            guard nodes[index].isView else { return index }
            value = try nodes[index].tensor("a")
        }
        return nil
    }

    // MARK: Order

    /// Moves nodes that may fail before the first write where their operands allow: a call that fails
    /// there has changed nothing.
    private mutating func hoistFallibleNodes() throws {
        guard let first = order.first(where: { isWriter($0) }) else { return }
        for index in order where nodes[index].signature?.isFallible == true && !isWriter(index) {
            if hoist(index, before: first) { count("hoisted-fallible") }
        }
    }

    private func isWriter(_ index: Int) -> Bool { writtenVersion(by: index) != nil }

    /// The version on its state's chain that the node writes.
    private func writtenVersion(by index: Int) -> Int? {
        guard let result = nodes[index].results.first, let alias = stateAlias(of: result),
            versions[alias.version].writer == index
        else { return nil }
        return alias.version
    }

    /// Values whose bytes the node reads when it runs.
    private func reads(of index: Int) throws -> [ValueID] {
        let node = nodes[index]
        let isAlias = node.results.first.map { stateAlias(of: $0) != nil } ?? false
        if finalWrites[index] != nil { return [try node.tensor("source")] }
        guard isAlias, promoted[index] == nil else { return node.operands }
        if node.isView { return [] }
        if node.isScatterOfView { return isWriter(index) ? [try node.tensor("source")] : [] }
        var others = node
        others.arguments.removeAll { $0.name == "a" }
        return others.operands
    }

    /// Moves a node and what it needs before another one. False, and nothing moved, when it needs that
    /// one or a later write.
    private mutating func hoist(_ index: Int, before anchor: Int) -> Bool {
        var position: [Int: Int] = [:]
        for (place, item) in order.enumerated() { position[item] = place }
        guard let limit = position[anchor], let own = position[index], own > limit else { return true }
        var needed: Set<Int> = []
        var pending = [index]
        while let item = pending.popLast() {
            guard let place = position[item], place >= limit, !needed.contains(item) else { continue }
            if item == anchor || isWriter(item) { return false }
            needed.insert(item)
            pending += nodes[item].operands.compactMap { producer[$0] }
        }
        let moved = order.filter { needed.contains($0) }
        order.removeAll { needed.contains($0) }
        order.insert(contentsOf: moved, at: order.firstIndex(of: anchor)!)
        return true
    }

    /// Moves a write and what depends on it behind another node. False, and nothing moved, when that one
    /// depends on it.
    private mutating func delay(_ writer: Int, past reader: Int) -> Bool {
        guard finalWrites[writer] == nil else { return false }
        let span = order[order.firstIndex(of: writer)!...order.firstIndex(of: reader)!]
        var dependent = Set(nodes[writer].results)
        var moved = [writer]
        for index in span.dropFirst() where nodes[index].operands.contains(where: dependent.contains) {
            if index == reader { return false }
            dependent.formUnion(nodes[index].results)
            moved.append(index)
        }
        let kept = span.filter { !moved.contains($0) }
        order.replaceSubrange(span.startIndex..<span.endIndex, with: kept + moved)
        return true
    }

    // MARK: Stale reads

    /// Sees to it that no write changes bytes that something still reads in an older version.
    private mutating func separateStaleReads(mayDelayWrites: Bool) throws {
        for writer in order.filter({ isWriter($0) }) {
            let version = versions[writtenVersion(by: writer)!]
            var copies: [ValueID: ValueID] = [:]
            for reader in order[order.firstIndex(of: writer)!...] {
                let stale = Set(try reads(of: reader).filter { isStale($0, for: version, reader: reader) })
                if stale.isEmpty { continue }
                if reader != writer {
                    if order.firstIndex(of: reader)! < order.firstIndex(of: writer)! { continue }
                    if !isWriter(reader), hoist(reader, before: writer) {
                        count("moved-reads")
                        continue
                    }
                    if mayDelayWrites, copies.isEmpty, delay(writer, past: reader) {
                        count("delayed-writes")
                        continue
                    }
                }
                for value in stale.sorted() {
                    if copies[value] == nil {
                        copies[value] = try copy(value, before: writer)
                        try charge(
                            version.use, bytesOf: types[value.index],
                            staleRead(by: reader, of: version.use, after: writer))
                    }
                    replaceReads(of: value, by: copies[value]!, in: reader)
                }
            }
            for output in outputs.indices where isStale(outputs[output], for: version, reader: nil) {
                // An output has a place of its own in any case: this copy is how it gets there.
                let value = outputs[output]
                if copies[value] == nil { copies[value] = try copy(value, before: writer) }
                outputs[output] = copies[value]!
            }
        }
    }

    private func staleRead(by reader: Int, of use: Int, after writer: Int) -> String {
        let isReplaced = finalWrites[writer] != nil
        if reader == writer {
            return isReplaced
                ? "its former value is read while the new one is written"
                : "`\(operatorName(writer))`\(place(writer)) reads what it overwrites"
        }
        let time = isReplaced ? "after the new one is written" : "after `\(operatorName(writer))` writes"
        if let other = finalWrites[reader] { return "its former value goes to state `\(name(other))` \(time)" }
        return "its former value is read by `\(operatorName(reader))`\(place(reader)) \(time)"
    }

    /// As the author's framework calls it.
    private func operatorName(_ index: Int) -> String {
        switch nodes[index].op {
        case "scatter.slice": "slice_scatter"
        case "scatter.select": "select_scatter"
        case let op: op
        }
    }

    private func isStale(_ value: ValueID, for written: Version, reader: Int?) -> Bool {
        guard let alias = stateAlias(of: value), versions[alias.version].use == written.use,
            versions[alias.version].depth < written.depth, !alias.placement.isDisjoint(from: written.destination)
        else { return false }
        // A point-wise kernel reads each element before it writes it.
        if let reader, reader == written.writer, promoted[reader] != nil {
            return alias.placement.view != written.destination.view
        }
        return true
    }

    private mutating func copy(_ value: ValueID, before writer: Int) throws -> ValueID {
        if let index = producer[value], !hoist(index, before: writer) {
            throw Diagnostic.internalFault(
                "a former value of state `\(name(versions[writtenVersion(by: writer)!].use))` is lost",
                at: "function `\(function.name)`, `\(nodes[writer].op)`\(place(writer))")
        }
        let result = addValue(types[value.index])
        let index = append(
            Node("copy", [.init("a", .tensor(value))], results: [result], source: nodes[writer].source))
        order.insert(index, at: order.firstIndex(of: writer)!)
        count("copies")
        return result
    }

    private mutating func replaceReads(of value: ValueID, by replacement: ValueID, in reader: Int) {
        // The base of a write in place is not a read, and stays.
        let keepsBase = promoted[reader] == nil && finalWrites[reader] == nil && isWriter(reader)
        let base = keepsBase ? nodes[reader]["a"] : nodes[reader]["destination"]
        let name = keepsBase ? "a" : "destination"
        nodes[reader].mapOperands { $0 == value ? replacement : $0 }
        if let base { nodes[reader] = nodes[reader].replacing(name, by: base) }
    }

    // MARK: Result

    private mutating func rebuild() throws -> Function {
        var result: [Node] = []
        // Values that are other values now.
        var replacement: [ValueID: ValueID] = [:]
        for index in order {
            var node = nodes[index]
            node.mapOperands { replacement[$0] ?? $0 }
            let value = node.results.first
            if let use = promoted[index], isWriter(index), let value {
                result.append(node)
                let destination = function.states[use].before
                replacement[value] = appendWrite(to: destination, of: value, source: node.source, &result)
                count("in-place")
            } else if node.isScatterOfView, let value {
                let base = try node.tensor("a")
                let source = try node.tensor("source")
                if stateAlias(of: value) == nil {
                    let whole = addValue(types[value.index])
                    result.append(Node("copy", [.init("a", .tensor(base))], results: [whole], source: node.source))
                    try appendRegionWrite(node, of: source, into: whole, &result)
                    replacement[value] = whole
                } else {
                    if isWriter(index) {
                        try appendRegionWrite(node, of: source, into: base, &result)
                        count("in-place")
                    }
                    replacement[value] = base
                }
            } else {
                if isWriter(index), finalWrites[index] == nil {
                    node.isInPlace = true
                    count("in-place")
                }
                result.append(node)
            }
        }
        var rebuilt = function
        rebuilt.nodes = result
        rebuilt.values = types
        for (index, value) in outputs.enumerated() { rebuilt.outputs[index].value = replacement[value] ?? value }
        for use in rebuilt.states.indices {
            rebuilt.states[use].after = rebuilt.states[use].before
            rebuilt.states[use].copiedBytes = copiedBytes[use]
            rebuilt.states[use].copyReason = reasons[use].joined(separator: "; ")
        }
        rebuilt.removeDeadNodes()
        return rebuilt
    }

    private mutating func appendWrite(
        to destination: ValueID, of source: ValueID, source line: Int?, _ result: inout [Node]
    ) -> ValueID {
        let written = addValue(types[destination.index])
        result.append(
            Node(
                "write", [.init("destination", .tensor(destination)), .init("source", .tensor(source))],
                results: [written], source: line, isInPlace: true))
        return written
    }

    /// Writes `source` into the part of `base` that the scatter names.
    private mutating func appendRegionWrite(
        _ scatter: Node, of source: ValueID, into base: ValueID, _ result: inout [Node]
    ) throws {
        let part = addValue(types[try nodes[producer[scatter.results[0]]!].tensor("source").index])
        let view = Node(
            scatter.op == "scatter.select" ? "view.select" : "view.slice",
            [.init("a", .tensor(base))] + scatter.arguments.filter { !["a", "source"].contains($0.name) },
            results: [part], source: scatter.source)
        result.append(view)
        _ = appendWrite(to: part, of: source, source: scatter.source, &result)
    }

    private mutating func addValue(_ type: ValueType) -> ValueID {
        types.append(type)
        return ValueID(types.count - 1)
    }

    private mutating func append(_ node: Node) -> Int {
        nodes.append(node)
        for result in node.results { producer[result] = nodes.count - 1 }
        return nodes.count - 1
    }

    private mutating func charge(_ use: Int, bytesOf type: ValueType, _ cause: String) throws {
        let bytes = try StridedView.elementCount(type.shape).times(type.scalarType.byteCount)
        copiedBytes[use] = try copiedBytes[use].plus(bytes)
        if bytes != .zero, !reasons[use].contains(cause) { reasons[use].append(cause) }
    }

    private mutating func count(_ counter: String) { counters[counter, default: 0] += 1 }

    private func name(_ use: Int) -> String { program.states[function.states[use].state].name }

    private func place(_ index: Int) -> String {
        guard let source = nodes[index].source, program.sources.indices.contains(source) else { return "" }
        return " at \(program.sources[source])"
    }
}
