import StatepackTool

@main
struct StatepackCommand {
    static func main() async { await Tool.main("statepack") }
}
