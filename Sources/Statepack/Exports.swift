// A client imports Statepack alone and still sees what its errors consist of.
@_exported import StatepackDiagnostics
