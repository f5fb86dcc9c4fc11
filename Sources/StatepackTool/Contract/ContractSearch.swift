import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Contracts and models in a folder and below it.
///
/// Symbolic links are not followed, and folders that tools own are left out: those whose name starts with a dot, and
/// `node_modules`.
package enum ContractSearch {
    package static let folderLimit = 100_000

    /// In order of their paths. Throws `E0786` when not every folder could be searched: what is missing there would
    /// pass as agreed. Cost: reads each folder once, and ten bytes of each `*.pb`.
    package static func files(in root: String, folderLimit: Int = folderLimit) throws(Diagnostic) -> [String] {
        var files: [String] = []
        var folders = [root]
        var count = 0
        while let folder = folders.popLast() {
            count += 1
            if count > folderLimit {
                throw Diagnostic(
                    .contractSearchIncomplete, "there are too many folders to search for contracts", at: root,
                    expected: "at most \(folderLimit) folders", hint: "name the files: statepack contract FILE...")
            }
            for name in try FolderNames.sorted(in: folder) {
                let path = folder == "." ? name : "\(folder)/\(name)"
                var status = stat()
                guard lstat(path, &status) == 0 else { continue }
                switch status.st_mode & S_IFMT {
                case S_IFDIR where !name.hasPrefix(".") && name != "node_modules": folders.append(path)
                case S_IFREG where isOurs(path): files.append(path)
                default: break
                }
            }
        }
        return files.sorted()
    }

    private static func isOurs(_ path: String) -> Bool {
        path.hasSuffix(ContractPartners.contractSuffix) || path.hasSuffix(".statepack")
            || path.hasSuffix(".pb") && ModelFileKind.startsAsModel(path)
    }
}

/// What is in a folder.
enum FolderNames {
    static func sorted(in path: String) throws(Diagnostic) -> [String] {
        guard let folder = opendir(path) else {
            throw Diagnostic(
                .contractSearchIncomplete, "the folder cannot be searched for contracts", at: path,
                found: String(cString: strerror(errno)), hint: "name the files: statepack contract FILE...")
        }
        defer { closedir(folder) }
        var names: [String] = []
        while let entry = readdir(folder) {
            names.append(
                withUnsafePointer(to: &entry.pointee.d_name) { pointer in
                    pointer.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
                })
        }
        return names.sorted()
    }
}
