import StatepackTool

@main
struct ValidateCommand {
    static func main() async { await Tool.main("validate") }
}
