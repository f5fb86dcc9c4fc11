"""The annotated bytes in schemas/README.md, from the golden files of format version 1.0.

The page explains the formats; its dump is made of real files, so that it cannot say what they do not hold.
"""

import pathlib
import re
import struct

GOLDENS = "Tests/Fixtures/format-1.0"
PAGE = "schemas/README.md"

#: How many bytes of a long value are shown.
SHOWN = 8


def _messages(schema: str) -> dict[str, dict[int, tuple[str, str]]]:
    """Message name -> field number -> (type, name), of a .proto file without nested messages of fields."""
    text = re.sub(r"//.*", "", schema)
    found: dict[str, dict[int, tuple[str, str]]] = {}
    for name, body in re.findall(r"message (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text):
        found[name] = {
            int(number): (kind, field)
            for kind, field, number in re.findall(r"(?:repeated )?(\w+) (\w+) = (\d+);", body)
            if kind != "reserved"
        }
    return found


class Dump:
    def __init__(self, data: bytes, messages: dict[str, dict[int, tuple[str, str]]]) -> None:
        self.data = data
        self.messages = messages
        self.lines: list[str] = []

    def row(self, start: int, end: int, text: str, depth: int = 0) -> None:
        shown = self.data[start : min(end, start + SHOWN)].hex(" ").upper() + (" …" if end - start > SHOWN else "")
        self.lines.append(f"{start:6}  {shown:<26}  {'  ' * depth}{text}")

    def number(self, start: int, size: int, text: str) -> int:
        value = int.from_bytes(self.data[start : start + size], "little")
        self.row(start, start + size, text.format(value))
        return value

    def _varint(self, position: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.data[position]
            value |= (byte & 127) << shift
            position, shift = position + 1, shift + 7
            if byte < 128:
                return value, position

    def message(self, name: str, start: int, end: int, depth: int = 0, stop_after: int | None = None) -> None:
        """Each field of the message; `stop_after` ends behind the first field of that number."""
        position = start
        while position < end:
            at = position
            tag, position = self._varint(position)
            kind, field = self.messages[name][tag >> 3]
            if tag & 7 == 2:
                length, position = self._varint(position)
                content, position = position, position + length
                if kind in self.messages:
                    self.row(at, content, f"{field}: {kind}, {length} bytes", depth)
                    self.message(kind, content, position, depth + 1)
                else:
                    self.row(at, position, f"{field} = {self._value(kind, content, position)}", depth)
            elif tag & 7 == 0:
                value, position = self._varint(position)
                self.row(at, position, f"{field} = {value}", depth)
            else:
                size = 8 if tag & 7 == 1 else 4
                position += size
                value = struct.unpack("<d" if size == 8 else "<f", self.data[position - size : position])[0]
                self.row(at, position, f"{field} = {value}", depth)
            if tag >> 3 == stop_after:
                return

    def _value(self, kind: str, start: int, end: int) -> str:
        if kind == "string":
            return '"' + self.data[start:end].decode() + '"'
        if kind == "bytes":
            return f"{end - start} bytes"
        if kind == "double":
            return str(list(struct.unpack(f"<{(end - start) // 8}d", self.data[start:end])))
        values, position = [], start
        while position < end:
            value, position = self._varint(position)
            values.append((value >> 1) ^ -(value & 1) if kind.startswith("sint") else value)
        return str(values)


def _bundle(data: bytes, schema: str) -> list[str]:
    dump = Dump(data, _messages(schema))
    dump.row(0, 8, "magic")
    dump.number(8, 4, "major version {}")
    dump.number(12, 4, "minor version {}")
    dump.number(16, 8, "file length {}")
    count = dump.number(24, 4, "{} sections")
    dump.row(28, 32, "CRC-32C of header and table")
    names = {1: "program", 2: "weights", 3: "recording", 4: "source map"}
    end = 32 + 64 * count
    for row in range(count):
        base = 32 + 64 * row
        kind = int.from_bytes(data[base : base + 4], "little")
        dump.number(base, 4, "kind {}: " + names[kind])
        dump.number(base + 4, 4, "flags {}")
        offset = dump.number(base + 8, 8, "starts at {}")
        length = dump.number(base + 16, 8, "{} bytes")
        dump.row(base + 24, base + 28, "CRC-32C of its bytes")
        dump.row(base + 28, base + 32, "reserved")
        dump.row(base + 32, base + 64, "SHA-256 of its bytes")
    for row in range(count):
        base = 32 + 64 * row
        kind, _, offset, length = struct.unpack("<IIQQ", data[base : base + 24])
        if offset > end:
            dump.row(end, offset, f"{offset - end} zeros")
        end = offset + length
        if kind == 1:
            dump.message("BundleProgram", offset, end)
        elif kind == 4:
            dump.message("SourceMap", offset, end)
        else:
            dump.row(offset, end, f"{names[kind]}, {length} bytes")
    return dump.lines


def _exported(data: bytes, schema: str) -> list[str]:
    dump = Dump(data, _messages(schema))
    dump.row(0, 1, "tag: field 1, eight bytes")
    dump.number(1, 8, "body_length {}")
    dump.row(9, 10, "tag: field 2, eight bytes")
    dump.row(10, 18, "body_digest")
    _, content = dump._varint(18 + 1)
    length, _ = dump._varint(18 + 1)
    dump.row(18, content, f"program: Program, {length} bytes")
    dump.message("Program", content, content + length, 1)
    if content + length < len(data):
        at = content + length
        length, content = dump._varint(at + 1)
        dump.row(at, content, f"recording: Recording, {length} bytes")
    return dump.lines


def outputs(root: pathlib.Path) -> dict[str, str]:
    page = (root / PAGE).read_text()
    goldens = root / GOLDENS
    for name, lines in [
        (
            "sum.exported.pb",
            _exported((goldens / "sum.exported.pb").read_bytes(), (root / "schemas/program.proto").read_text()),
        ),
        (
            "sum.statepack",
            _bundle((goldens / "sum.statepack").read_bytes(), (root / "schemas/bundle.proto").read_text()),
        ),
    ]:
        begin, end = f"<!-- dump of {name} -->", f"<!-- end of {name} -->"
        head, rest = page.split(begin)
        _, tail = rest.split(end)
        # Indented, so that no line of the dump can end a code fence.
        block = "\n".join(("    " + line).rstrip() for line in lines)
        page = f"{head}{begin}\n\n{block}\n\n{end}{tail}"
    return {PAGE: page}
