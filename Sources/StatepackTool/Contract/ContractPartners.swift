import StatepackDiagnostics

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
        var listings: [String: FolderListing] = [:]
        for file in files {
            let folder = OutputFile.folder(of: file)
            let listing = listings[folder] ?? FolderListing(folder)
            listings[folder] = listing
            let group = ContractPartners(of: file, in: listing)
            if !groups.contains(group) { groups.append(group) }
        }
        return groups
    }

    private init(of file: String, in listing: FolderListing) {
        let slash = file.lastIndex(of: "/")
        let prefix = slash.map { String(file[...$0]) } ?? ""
        let name = slash.map { String(file[file.index(after: $0)...]) } ?? file
        let isContract = name.hasSuffix(Self.contractSuffix) || name.hasSuffix(".json")
        var listing = listing
        let isInFolder = listing.contracts.contains(name) || !name.hasSuffix(Self.contractSuffix)
        // Models find a contract that was deleted, as they found it before.
        if !isInFolder { listing.contracts.append(name) }
        let contractName = isContract ? name : listing.contract(of: name)
        if let contractName {
            contract = prefix + contractName
            let models = listing.programs + listing.bundles
            let partners = models.filter { listing.contract(of: $0) == contractName || $0 == name }
            programs = partners.filter { $0.hasSuffix(".pb") }.map { prefix + $0 }
            bundles = partners.filter { !$0.hasSuffix(".pb") }.map { prefix + $0 }
            // A contract that is not there, and that no model misses, is for its reader to report.
            hasContract = isInFolder || partners.isEmpty
            // One that was named but is not in the folder, or is no model by its first bytes.
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
}

private struct FolderListing {
    var contracts: [String]
    var programs: [String]
    var bundles: [String]

    init(_ folder: String) {
        let names = (try? FolderNames.sorted(in: folder)) ?? []
        let contracts = names.filter { $0.hasSuffix(ContractPartners.contractSuffix) }
        self.contracts = contracts
        // A protobuf of another tool is none, but for one that has a contract: that one is damaged.
        programs = names.filter {
            $0.hasSuffix(".pb")
                && (contracts.contains(Self.stem($0) + ContractPartners.contractSuffix)
                    || ModelFileKind.startsAsModel("\(folder)/\($0)"))
        }
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
