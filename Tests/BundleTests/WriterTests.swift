import ExactTexts
import StatepackBundle
import StatepackDiagnostics
import Synchronization
import Testing

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

@Suite struct WriterTests {
    let folder = TemporaryFolder()

    struct Fault: CustomTestStringConvertible {
        var testDescription: String
        var code: Diagnostic.Code
        var act: String
        var change: @Sendable (inout FileActions) -> Void
    }

    static let faults: [Fault] = [
        .init(testDescription: "create", code: .bundleWriteFailed, act: "create") {
            $0.createUnnamed = { _ in fail(EOPNOTSUPP) }
            $0.create = { _ in fail(EACCES) }
        },
        .init(testDescription: "create, disk full", code: .bundleDiskFull, act: "create") {
            $0.createUnnamed = { _ in fail(EOPNOTSUPP) }
            $0.create = { _ in fail(ENOSPC) }
        },
        .init(testDescription: "reserve, disk full", code: .bundleDiskFull, act: "write") {
            $0.reserve = { _, _ in fail(ENOSPC) }
        },
        .init(testDescription: "reserve, over quota", code: .bundleDiskFull, act: "write") {
            $0.reserve = { _, _ in fail(EDQUOT) }
        },
        .init(testDescription: "write", code: .bundleWriteFailed, act: "write") {
            $0.write = { _, _, _ in Int(fail(EIO)) }
        },
        .init(testDescription: "write of nothing", code: .bundleWriteFailed, act: "write") {
            $0.write = { _, _, _ in 0 }
        },
        .init(testDescription: "write, disk full", code: .bundleDiskFull, act: "write") {
            $0.write = { _, _, _ in Int(fail(ENOSPC)) }
        },
        .init(testDescription: "write, disk full after 66,000 bytes", code: .bundleDiskFull, act: "write") {
            let write = $0.write
            $0.write = { $2 > 66_000 ? Int(fail(ENOSPC)) : write($0, $1, $2) }
        },
        .init(testDescription: "write of the header", code: .bundleWriteFailed, act: "write") {
            let write = $0.write
            $0.write = { $2 == 0 ? Int(fail(EIO)) : write($0, $1, $2) }
        },
        .init(testDescription: "truncate", code: .bundleWriteFailed, act: "write") {
            $0.truncate = { _, _ in fail(EIO) }
        },
        .init(testDescription: "sync", code: .bundleWriteFailed, act: "write") { $0.sync = { _ in fail(EIO) } },
        .init(testDescription: "sync, disk full", code: .bundleDiskFull, act: "write") {
            $0.sync = { _ in fail(ENOSPC) }
        },
        .init(testDescription: "rename", code: .bundleWriteFailed, act: "name") {
            $0.replace = { _, _ in fail(EXDEV) }
        },
    ]

    private static func fail(_ code: Int32) -> Int32 {
        errno = code
        return -1
    }

    private func write(to path: String, _ actions: FileActions) throws {
        let program = try Fixture.program()
        let weights = Fixture.weights(of: program)
        var writer = try BundleWriter(
            path: path, sections: [.program, .weights, .sourceMap], reserving: 100_000, actions: actions, digest: sha256
        )
        try writer.begin(.program)
        try writer.append(program.encoded())
        try writer.begin(.weights)
        try writer.append(weights)
        try writer.begin(.sourceMap)
        // Longer than the writer's buffer, so that it is written before the end.
        try writer.append(SourceMap.encode(Array(repeating: String(repeating: "x", count: 1000), count: 400)))
        try writer.finish()
    }

    @Test("A failing system call keeps the old file and leaves no other", arguments: faults, [true, false])
    func keepsTheOldFile(_ fault: Fault, hasUnnamedFiles: Bool) throws {
        let path = folder.file("model.statepack")
        writeBytes([1, 2, 3], to: path)
        var actions = FileActions()
        if !hasUnnamedFiles { actions.createUnnamed = { _ in Self.fail(EOPNOTSUPP) } }
        fault.change(&actions)
        do {
            try write(to: path, actions)
            Issue.record("the write succeeded")
        } catch let diagnostic as Diagnostic {
            #expect(diagnostic.code == fault.code)
            #expect(diagnostic.code.exitCode == 5)
            #expect(diagnostic.location == path)
            #expect(diagnostic.message.hasPrefix("cannot \(fault.act) the bundle: "))
            let text = ExactTexts.text([diagnostic], in: folder.path)
            #expect(text == ExactTexts.expected("BundleWriter", fault.testDescription, actual: text))
        }
        let isKept = readBytes(path) == [1, 2, 3]
        #expect(isKept)
        #expect(folder.names == ["model.statepack"])
    }

    @Test func interruptedAndShortWritesAreContinued() throws {
        let path = folder.file("model.statepack")
        try write(to: path, FileActions())
        let expected = readBytes(path)
        let interrupted = Counter()
        var actions = FileActions()
        let write = actions.write
        actions.write = { descriptor, bytes, offset in
            if interrupted.next() % 3 == 0 { return Int(Self.fail(EINTR)) }
            return write(descriptor, UnsafeRawBufferPointer(rebasing: bytes.prefix(1 + bytes.count / 2)), offset)
        }
        try self.write(to: path, actions)
        let isEqual = readBytes(path) == expected
        #expect(isEqual)
    }

    @Test func fullBlocksGoToTheDiskWhileTheRestIsMade() throws {
        let folder = TemporaryFolder()
        let flushed = Mutex<[[Int]]>([])
        var actions = FileActions()
        actions.startFlushing = { _, offset, count in flushed.withLock { $0.append([offset, count]) } }
        var writer = try BundleWriter(
            path: folder.file("model.statepack"), sections: [.weights], actions: actions, digest: sha256)
        try writer.begin(.weights)
        try writer.append([UInt8](repeating: 1, count: 1 << 20))
        try writer.append([UInt8](repeating: 2, count: 3))
        try writer.append([UInt8](repeating: 3, count: 2 << 20))
        try writer.finish()
        // Behind the three bytes, which are too few to be worth it.
        #expect(flushed.withLock { $0 } == [[65536, 1 << 20], [65536 + (1 << 20) + 3, 2 << 20]])
    }

    @Test func digestThatLagsBehindIsWaitedForBeforeItsBytesChange() throws {
        final class Lagging: Sendable {
            let pending = Mutex<Bool>(false)
        }
        let lagging = Lagging()
        let folder = TemporaryFolder()
        var actions = FileActions()
        actions.write = { descriptor, bytes, offset in
            // The header is no part of any section.
            if offset > 0 { #expect(lagging.pending.withLock { $0 }) }
            return FileActions().write(descriptor, bytes, offset)
        }
        var writer = try BundleWriter(
            path: folder.file("model.statepack"), sections: [.program], actions: actions,
            digest: {
                IncrementalDigest(
                    update: { _ in
                        lagging.pending.withLock {
                            #expect(!$0); $0 = true
                        }
                    },
                    wait: { lagging.pending.withLock { $0 = false } },
                    finish: {
                        #expect(!lagging.pending.withLock { $0 })
                        return [UInt8](repeating: 0, count: 32)
                    })
            })
        try writer.begin(.program)
        for length in [5, 300 << 10, 7] { try writer.append([UInt8](repeating: 1, count: length)) }
        try writer.finish()
    }

    @Test func abandonedWriterRemovesItsFile() throws {
        var actions = FileActions()
        actions.createUnnamed = { _ in Self.fail(EOPNOTSUPP) }
        do {
            var writer = try BundleWriter(
                path: folder.file("a"), sections: [.program], actions: actions, digest: sha256)
            try writer.begin(.program)
            try writer.append([1])
            #expect(folder.names.count == 1)
        }
        #expect(folder.names.isEmpty)
    }

    #if os(Linux)
        @Test func writerThatIsKilledLeavesNothing() throws {
            var writer = try BundleWriter(path: folder.file("a"), sections: [.program], digest: sha256)
            try writer.begin(.program)
            try writer.append([1])
            // Without a name there is nothing to remove.
            #expect(folder.names.isEmpty)
            try writer.finish()
            #expect(folder.names == ["a"])
        }

        @Test func fileThatCannotBeNamedKeepsTheOldOne() throws {
            let path = folder.file("model.statepack")
            writeBytes([1, 2, 3], to: path)
            var actions = FileActions()
            actions.link = { _, _ in Self.fail(EPERM) }
            #expect {
                try write(to: path, actions)
            } throws: {
                ($0 as? Diagnostic)?.code == .bundleWriteFailed
                    && ($0 as? Diagnostic)?.message.hasPrefix("cannot name the bundle: ") == true
            }
            let isKept = readBytes(path) == [1, 2, 3]
            #expect(isKept)
            #expect(folder.names == ["model.statepack"])
        }
    #endif

    @Test func missingFolderIsNamed() throws {
        #expect {
            _ = try BundleWriter(path: folder.file("none/model.statepack"), sections: [.program], digest: sha256)
        } throws: {
            $0 as? Diagnostic
                == Diagnostic(
                    .bundleWriteFailed, "cannot create the bundle: No such file or directory",
                    at: folder.file("none/model.statepack"), hint: "create the folder first")
        }
    }

    @Test func folderInTheWayIsKept() throws {
        mkdir(folder.file("model.statepack"), 0o777)
        #expect {
            try write(to: folder.file("model.statepack"), FileActions())
        } throws: {
            ($0 as? Diagnostic)?.code == .bundleWriteFailed
        }
        #expect(folder.names == ["model.statepack"])
    }

    #if os(Linux)
        @Test func diskThatIsTooFullIsNoticedBeforeTheFirstByte() throws {
            // A file system in memory knows its size at once and takes nothing from others.
            var status = statvfs()
            try #require(statvfs("/dev/shm", &status) == 0)
            let total = Int(status.f_blocks) * Int(status.f_frsize)
            #expect {
                _ = try BundleWriter(
                    path: "/dev/shm/statepack-full", sections: [.program], reserving: total + 1 << 30, digest: sha256)
            } throws: {
                ($0 as? Diagnostic)?.code == .bundleDiskFull
            }
        }
    #endif

    @Test func replacedFileKeepsServingItsReaders() throws {
        let path = folder.file("model.statepack")
        try Fixture.write(try Fixture.program(), to: path)
        let bundle = try MappedBundle(path: path)
        let before = Array(bundle.weights)
        var other = try Fixture.program()
        other.producer = "another"
        try Fixture.write(other, to: path, weights: before.map { ~$0 })
        #expect(Array(bundle.weights) == before)
        #expect(try MappedBundle(path: path).program.producer == "another")
    }

    @Test func sizeOfTooManyStepsIsRefused() throws {
        var program = try Fixture.program()
        var size = SizeExpression.zero
        for index in 0..<40 {
            size = try size.plus(SizeExpression.symbol(0).plus(index).floorDivided(by: SizeExpression(3)))
        }
        program.functions[0].instructions[0].ints = [size]
        do {
            _ = try program.encoded()
            Issue.record("the program was encoded")
        } catch let diagnostic as Diagnostic {
            #expect(diagnostic.code == .bundleNotEncodable)
            #expect(diagnostic.expected == "at most 64 steps")
            #expect(
                diagnostic.description
                    == ExactTexts.expected("BundleWriter", "size of too many steps", actual: [diagnostic]))
        }
    }

    @Test func negativeIndexIsRefused() throws {
        var program = try Fixture.program()
        program.functions[0].inputs[0].value = -1
        #expect {
            try program.encoded()
        } throws: {
            ($0 as? Diagnostic)
                == Diagnostic(
                    .bundleNotEncodable, "an index or size is negative", expected: "0 or more", found: "-1")
        }
    }
}

/// Counts calls of a closure that has to be `Sendable`; used from one thread.
private final class Counter: @unchecked Sendable {
    private var count = 0

    func next() -> Int {
        count += 1
        return count
    }
}
