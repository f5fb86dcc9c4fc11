import StatepackTool

@main
struct ConvertCommand {
    static func main() async { await Tool.main("convert") }
}
