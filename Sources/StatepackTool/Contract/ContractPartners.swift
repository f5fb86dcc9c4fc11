import StatepackDiagnostics

#if canImport(Glibc)
    import Glibc
#elseif canImport(Darwin)
    import Darwin
#endif

/// Files that must agree: a contract and the models beside it.
///
/// `exported.pb`, `exported.statepack` and `exported.contract.json` belong together. A model without a contract of
/// its own name belongs to the folder's contract when there is just one: a bundle always, an exported program
/// when none has the contract's name.
struct ContractPartners: Hashable {
    /// Where the contract is, or where it belongs.
    var contract: String
    var hasContract: Bool
    /// Exported programs, sorted.
    var programs: [String]
    /// Sorted.
    var bundles: [String]

    static let contractSuffix = ".contract.json"

    /// The groups of these files, each once, in the order of the files.
    static func groups(of files: [String]) -> [ContractPartners] {
        var groups: [ContractPartners] = []
        for file in files {
            let group = ContractPartners(of: file)
            if !groups.contains(group) { groups.append(group) }
        }
        return groups
    }

    private init(of file: String) {
        let slash = file.lastIndex(of: "/")
        let prefix = slash.map { String(file[...$0]) } ?? ""
        let name = slash.map { String(file[file.index(after: $0)...]) } ?? file
        let listing = FolderListing(Self.names(in: OutputFile.folder(of: file)))
        let isContract = name.hasSuffix(Self.contractSuffix) || name.hasSuffix(".json")
        let contractName = isContract ? name : listing.contract(of: name)
        if let contractName {
            contract = prefix + contractName
            // A contract that was named but is not there is for its reader to report.
            hasContract = isContract || listing.contracts.contains(contractName)
            let models = listing.programs + listing.bundles
            let partners = models.filter { listing.contract(of: $0) == contractName || $0 == name }
            programs = partners.filter { $0.hasSuffix(".pb") }.map { prefix + $0 }
            bundles = partners.filter { !$0.hasSuffix(".pb") }.map { prefix + $0 }
            // One that was named but is not in the folder.
            if !isContract, !models.contains(name) {
                if name.hasSuffix(".pb") { programs.append(file) } else { bundles.append(file) }
            }
        } else {
            let stem = FolderListing.stem(name)
            contract = prefix + stem + Self.contractSuffix
            hasContract = false
            programs = listing.programs.filter { FolderListing.stem($0) == stem }.map { prefix + $0 }
            bundles = listing.bundles.filter { FolderListing.stem($0) == stem }.map { prefix + $0 }
            if name.hasSuffix(".pb") {
                if !programs.contains(file) { programs.append(file) }
            } else if !bundles.contains(file) {
                bundles.append(file)
            }
        }
    }

    private static func names(in path: String) -> [String] {
        guard let folder = opendir(path) else { return [] }
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

private struct FolderListing {
    var contracts: [String]
    var programs: [String]
    var bundles: [String]

    init(_ names: [String]) {
        contracts = names.filter { $0.hasSuffix(ContractPartners.contractSuffix) }
        programs = names.filter { $0.hasSuffix(".pb") }
        bundles = names.filter { $0.hasSuffix(".statepack") }
    }

    /// The name without what says its kind.
    static func stem(_ name: String) -> String {
        for suffix in [ContractPartners.contractSuffix, ".pb", ".statepack"] where name.hasSuffix(suffix) {
            return String(name.dropLast(suffix.count))
        }
        return name
    }

    /// The contract that a model belongs to.
    func contract(of model: String) -> String? {
        let own = Self.stem(model) + ContractPartners.contractSuffix
        if contracts.contains(own) { return own }
        guard contracts.count == 1 else { return nil }
        if model.hasSuffix(".pb"), programs.contains(Self.stem(contracts[0]) + ".pb") { return nil }
        return contracts[0]
    }
}
