package import StatepackDiagnostics

extension BundleProgram {
    /// The program section's bytes. Deterministic.
    ///
    /// Throws when a size needs more than 64 pairs or an index does not fit the format. It does not
    /// check the program; `check(weightsLength:sourceCount:)` does.
    package func encoded() throws(Diagnostic) -> [UInt8] {
        var writer = WireWriter()
        writer.field(1, UInt64(Self.formatMajor))
        writer.field(2, UInt64(Self.formatMinor))
        writer.field(3, producer.utf8)
        writer.field(4, programDigest)
        for symbol in symbols {
            writer.message(5) { message in
                message.field(1, symbol.name.utf8)
                message.field(2, UInt64(bitPattern: Int64(symbol.min)))
                message.field(3, UInt64(bitPattern: Int64(symbol.max)))
            }
        }
        for tensor in tensors {
            try writer.message(6) { (message) throws(Diagnostic) in
                message.field(1, tensor.name.utf8)
                message.field(2, UInt64(tensor.scalarType.rawValue))
                message.packed(3, unsigned: try tensor.shape.map { (size) throws(Diagnostic) in try unsigned(size) })
                message.field(4, UInt64(tensor.layout.rawValue))
                message.field(5, try unsigned(tensor.offset))
                message.field(6, try unsigned(tensor.length))
            }
        }
        for state in states {
            try writer.message(7) { (message) throws(Diagnostic) in
                message.field(1, state.name.utf8)
                message.field(2, state.sourceName.utf8)
                message.field(3, UInt64(state.scalarType.rawValue))
                try encode(state.shape, 4, &message)
                switch state.initialValue {
                case .splat(let element): message.field(5, element)
                case .tensor(let index): message.field(6, try unsigned(index) + 1)
                }
                message.field(7, state.initialDigest)
            }
        }
        for function in functions {
            try writer.message(8) { (message) throws(Diagnostic) in try encode(function, &message) }
        }
        for kernel in kernels { writer.element(9, kernel.utf8) }
        return writer.bytes
    }

    private func unsigned(_ value: Int) throws(Diagnostic) -> UInt64 {
        guard value >= 0 else {
            throw Diagnostic(
                .bundleNotEncodable, "an index or size is negative", expected: "0 or more", found: "\(value)")
        }
        return UInt64(value)
    }

    private func encode(_ size: SizeExpression, _ field: Int, _ writer: inout WireWriter) throws(Diagnostic) {
        let postfix = size.postfix
        guard postfix.count <= SizeExpression.maximumPostfixCount else {
            throw Diagnostic(
                .bundleNotEncodable, "a size is too complicated: \(size.description(symbolNames: symbols.map(\.name)))",
                expected: "at most \(SizeExpression.maximumPostfixCount / 2) steps", found: "\(postfix.count / 2)")
        }
        writer.message(field) { $0.packed(1, signed: postfix) }
    }

    private func encode(_ sizes: [SizeExpression], _ field: Int, _ writer: inout WireWriter) throws(Diagnostic) {
        for size in sizes { try encode(size, field, &writer) }
    }

    private func encode(_ function: Function, _ writer: inout WireWriter) throws(Diagnostic) {
        writer.field(1, function.name.utf8)
        for (field, list) in [(2, function.inputs), (3, function.outputs)] {
            for named in list {
                try writer.message(field) { (message) throws(Diagnostic) in
                    message.field(1, named.name.utf8)
                    message.field(2, try unsigned(named.value))
                }
            }
        }
        for state in function.states {
            try writer.message(4) { (message) throws(Diagnostic) in
                message.field(1, try unsigned(state.state))
                message.field(2, try unsigned(state.value))
                message.field(3, state.writtenBy.utf8)
                try encode(state.copiedBytes, 4, &message)
                message.field(5, state.copyReason.utf8)
            }
        }
        for source in function.symbolSources {
            try writer.message(5) { (message) throws(Diagnostic) in
                message.field(1, try unsigned(source.symbol))
                message.field(2, try unsigned(source.input))
                message.field(3, try unsigned(source.axis))
            }
        }
        for value in function.values {
            try writer.message(6) { (message) throws(Diagnostic) in try encode(value, &message) }
        }
        for instruction in function.instructions {
            try writer.message(7) { (message) throws(Diagnostic) in
                message.field(1, try unsigned(instruction.kernel))
                message.packed(2, signed: instruction.operands.map { Int64($0 ?? -1) })
                message.packed(
                    3, unsigned: try instruction.results.map { (result) throws(Diagnostic) in try unsigned(result) })
                try encode(instruction.ints, 4, &message)
                message.packed(5, doubles: instruction.floats)
                if let source = instruction.source { message.field(6, try unsigned(source) + 1) }
            }
        }
        if let context = function.context {
            try writer.message(8) { (message) throws(Diagnostic) in
                message.field(1, try unsigned(context.positions))
                for axis in context.axes {
                    try message.message(2) { (message) throws(Diagnostic) in
                        message.field(1, try unsigned(axis.state))
                        message.field(2, try unsigned(axis.axis))
                    }
                }
            }
        }
    }

    private func encode(_ value: Value, _ message: inout WireWriter) throws(Diagnostic) {
        message.field(1, UInt64(value.scalarType.rawValue))
        try encode(value.shape, 2, &message)
        switch value.storage {
        case .input(let slot):
            message.field(3, 1)
            message.field(4, try unsigned(slot))
        case .output(let slot):
            message.field(3, 2)
            message.field(4, try unsigned(slot))
        case .state(let slot):
            message.field(3, 3)
            message.field(4, try unsigned(slot))
        case .tensor(let slot):
            message.field(3, 4)
            message.field(4, try unsigned(slot))
        case .arena(let first, let last):
            message.field(3, 5)
            message.field(7, try unsigned(first))
            message.field(8, try unsigned(last))
        case .view(let base, let strides, let offset):
            message.field(3, 6)
            message.field(4, try unsigned(base))
            try encode(strides, 5, &message)
            try encode(offset, 6, &message)
        }
    }
}
