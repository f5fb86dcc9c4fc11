import StatepackTool

@main
struct ConvertCommand {
    static func main() { Tool.main("convert") }
}
