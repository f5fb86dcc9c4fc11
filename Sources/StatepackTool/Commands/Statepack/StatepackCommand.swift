import StatepackTool

@main
struct StatepackCommand {
    static func main() { Tool.main("statepack") }
}
