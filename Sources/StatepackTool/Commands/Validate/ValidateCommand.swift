import StatepackTool

@main
struct ValidateCommand {
    static func main() { Tool.main("validate") }
}
