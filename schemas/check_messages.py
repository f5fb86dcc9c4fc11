#!/usr/bin/env python3
"""Every message of a diagnostic stands, as exact text, in a test.

    schemas/check_messages.py          exits 1 and names each message that no test quotes in full
    schemas/check_messages.py --list   prints every message as a template, with the test text that covers it

A message is what the sources give for the parameter `message` or `reason` of a function, or as the message of a
`Diagnostic`; what is interpolated stands for any text. A text is a string in a test, or a line of a text file that
tests compare. A text covers a message when it is the whole message, and, where it begins `error[E0604]: `, has its
code. Each row of errors.json has an example, and the example has to be one of those texts too.
"""

import argparse
import ast
import json
import pathlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Stands for an interpolation, in messages and in texts.
HOLE = "\0"
# Parameters that carry the text of a finding.
PARAMETERS = {"message", "reason"}
# The renderer's own tests construct the diagnostics that they print: they prove nothing about messages.
RENDERER_TESTS = {"Tests/DiagnosticsTests/RendererTests.swift", "Tests/DiagnosticsTests/CodeTableTests.swift"}
# How a finding begins; `statepack diff` says the class of a difference instead.
SEVERITIES = ("error", "warning", "note", "breaking", "compatible", "numeric")


@dataclass
class Token:
    kind: str  # word, string, punctuation
    text: str
    line: int
    inner: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Message:
    template: str
    code: str | None
    place: str


# Swift


def tokens(source: str) -> list[Token]:
    """Words, strings and punctuation of Swift source; an interpolation is a HOLE whose source is kept in `inner`."""
    result: list[Token] = []
    position, line = 0, 1
    while position < len(source):
        character = source[position]
        if source.startswith("//", position):
            end = source.find("\n", position)
            position = len(source) if end < 0 else end
        elif source.startswith("/*", position):
            end = source.index("*/", position) + 2
            line += source.count("\n", position, end)
            position = end
        elif character == "\n":
            line += 1
            position += 1
        elif character.isspace():
            position += 1
        elif match := re.compile(r'#*"').match(source, position):
            token, position = string(source, position, match.group(), line)
            line += token.text.count("\n") if token.kind == "multiline" else 0
            line += 2 if token.kind == "multiline" else 0
            result.append(Token("string", token.text, token.line, token.inner))
        elif match := re.compile(r"[A-Za-z_][A-Za-z0-9_]*").match(source, position):
            result.append(Token("word", match.group(), line))
            position = match.end()
        else:
            result.append(Token("punctuation", character, line))
            position += 1
    return result


def string(source: str, position: int, opening: str, line: int) -> tuple[Token, int]:
    hashes = "#" * (len(opening) - 1)
    multiline = source.startswith(hashes + '"""', position)
    quote = '"""' if multiline else '"'
    position += len(hashes) + len(quote)
    escape, closing = "\\" + hashes, quote + hashes
    text: list[str] = []
    inner: list[str] = []
    while not source.startswith(closing, position):
        if source.startswith(escape + "(", position):
            start = position + len(escape) + 1
            position = interpolation_end(source, start)
            inner.append(source[start : position - 1])
            text.append(HOLE)
        elif source.startswith(escape, position):
            position += len(escape)
            letter = source[position]
            if letter == "u":
                end = source.index("}", position)
                text.append(chr(int(source[position + 2 : end], 16)))
                position = end + 1
            elif letter == "\n":
                # A line break that the source only has: the next line's indentation goes below.
                text.append("\1\n")
                position += 1
            else:
                text.append({"n": "\2", "t": "\t", "r": "\r", "0": "\3"}.get(letter, letter))
                position += 1
        else:
            text.append(source[position])
            position += 1
    content = "".join(text)
    if multiline:
        lines = content.split("\n")[1:]
        indent = len(lines[-1])
        content = "\n".join(each[indent:] for each in lines[:-1]).replace("\1\n", "")
    content = content.replace("\2", "\n").replace("\3", "\\u{0}")
    return Token("multiline" if multiline else "single", content, line, inner), position + len(closing)


def interpolation_end(source: str, position: int) -> int:
    depth = 1
    while depth:
        match = re.compile(r'#*"').match(source, position)
        if match:
            _, position = string(source, position, match.group(), 0)
            continue
        depth += {"(": 1, ")": -1}.get(source[position], 0)
        position += 1
    return position


def arguments(stream: list[Token], opening: int) -> tuple[list[list[Token]], int]:
    """The arguments between the parenthesis at `opening` and its partner, and the position after that."""
    result: list[list[Token]] = [[]]
    depth, position = 1, opening + 1
    while depth and position < len(stream):
        token = stream[position]
        if token.kind == "punctuation":
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
            if depth == 0:
                break
            if token.text == "," and depth == 1:
                result.append([])
                position += 1
                continue
        result[-1].append(token)
        position += 1
    return [argument for argument in result if argument], position + 1


def declarations(stream: list[Token]) -> dict[str, set[int]]:
    """Function name -> position of the parameter that carries the text."""
    result: dict[str, set[int]] = {}
    for position, token in enumerate(stream):
        if token.kind != "word" or token.text not in ("func", "init"):
            continue
        name_at = position + 1 if token.text == "func" else position
        opening = name_at + 1
        while opening < len(stream) and stream[opening].text != "(":
            opening += 1
            if opening > name_at + 12:
                break
        if opening >= len(stream) or stream[opening].text != "(":
            continue
        parameters, _ = arguments(stream, opening)
        for index, parameter in enumerate(parameters):
            words = [each.text for each in parameter[:3]]
            before_colon = words[: words.index(":")] if ":" in words else []
            kind = "".join(each.text for each in parameter[len(before_colon) + 1 :][:3])
            if before_colon and before_colon[-1] in PARAMETERS and "String" in kind:
                name = stream[name_at].text if token.text == "func" else enclosing(stream, position)
                result.setdefault(name, set()).add(index)
    return result


def enclosing(stream: list[Token], position: int) -> str:
    """The type that the initializer at `position` belongs to."""
    depth = 0
    for index in range(position, -1, -1):
        token = stream[index]
        if token.text == "}" and token.kind == "punctuation":
            depth += 1
        elif token.text == "{" and token.kind == "punctuation":
            depth -= 1
        elif depth < 0 and token.kind == "word" and token.text in ("struct", "class", "enum", "extension", "actor"):
            names = [stream[index + 1].text]
            following = index + 2
            while stream[following].text == ".":
                names.append(stream[following + 1].text)
                following += 2
            return names[-1]
    return "init"


def strings_of(argument: list[Token]) -> list[Token]:
    """The strings an expression may give: those joined by + are one, those of a condition are several."""
    result: list[Token] = []
    depth, joined = 0, False
    for token in argument:
        if token.kind == "punctuation":
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
            joined = token.text == "+" if depth == 0 else joined
            if token.text == "+" and depth == 0 and not result:
                result.append(Token("string", HOLE, token.line))
        elif token.kind == "string" and depth == 0:
            if joined and result:
                result[-1] = Token("string", result[-1].text + token.text, result[-1].line)
            else:
                result.append(token)
            joined = False
        elif depth == 0 and joined and result:
            result[-1] = Token("string", result[-1].text + HOLE, result[-1].line)
            joined = False
    return result


def swift_messages(folder: pathlib.Path, codes: dict[str, str]) -> tuple[list[Message], list[str]]:
    messages: list[Message] = []
    unseen: list[str] = []
    streams = {
        path: tokens(path.read_text()) for path in sorted(folder.rglob("*.swift")) if ".generated." not in path.name
    }
    declared = {path: declarations(stream) for path, stream in streams.items()}
    functions = {
        path: {stream[index + 1].text for index, token in enumerate(stream) if token.text == "func"}
        for path, stream in streams.items()
    }
    shared: dict[str, set[int]] = {"Diagnostic": {1}}
    for path, each in declared.items():
        for name, positions in each.items():
            if name not in hidden(streams[path]):
                shared.setdefault(name, set()).update(positions)
    for path, stream in streams.items():
        relative = str(path.relative_to(ROOT))
        for position in range(len(stream) - 1):
            token = stream[position]
            if token.kind != "word" or stream[position + 1].text != "(" or stream[position + 1].kind != "punctuation":
                continue
            before = [each.text for each in stream[max(0, position - 2) : position]]
            if before[-1:] == ["func"] or (token.text == "init" and before[-1:] != ["."]):
                continue
            if before == ["console", "."]:
                continue  # prints diagnostics, makes none
            given, _ = arguments(stream, position + 1)
            chosen: list[list[Token]] = []
            labelled = [g for g in given if len(g) > 2 and g[0].text in PARAMETERS and g[1].text == ":"]
            if labelled:
                chosen = [g[2:] for g in labelled]
            else:
                # A function of the same file hides those of that name elsewhere.
                here = token.text in functions[path]
                positions = declared[path].get(token.text, set()) if here else shared.get(token.text, set())
                chosen = [given[index] for index in sorted(positions) if index < len(given)]
            code = next(
                (
                    codes[g[1].text]
                    for g in given[:1]
                    if len(g) == 2 and g[0].text == "." and g[1].kind == "word" and g[1].text in codes
                ),
                None,
            )
            for argument in chosen:
                found = strings_of(argument)
                place = f"{relative}:{argument[0].line}"
                names = [each.text for each in argument if each.kind == "word"]
                if not found and len(names) == 1 and names[0] not in PARAMETERS:
                    found = local(stream, position, names[0])
                if (
                    not found
                    and names
                    and names[0] in functions[path]
                    and [each.text for each in argument[1:2]] == ["("]
                ):
                    found = returned(stream, names[0])
                if not found and not (names and (names[-1] in PARAMETERS or names[0] == "String")):
                    unseen.append(f"{place}: {token.text}({' '.join(each.text for each in argument)})")
                messages += [Message(each.text, code, place) for each in found]
    return messages, unseen


def hidden(stream: list[Token]) -> set[str]:
    """Functions that other files cannot call."""
    result = set()
    for position, token in enumerate(stream):
        if token.text == "func" and {"private", "fileprivate"} & {
            each.text for each in stream[max(0, position - 3) : position]
        }:
            result.add(stream[position + 1].text)
    return result


def returned(stream: list[Token], name: str) -> list[Token]:
    """The strings in the body of the function `name`."""
    for position, token in enumerate(stream):
        if token.text == "func" and stream[position + 1].text == name:
            _, position = arguments(stream, position + 2)
            while stream[position].text != "{":
                position += 1
            body, _ = arguments(stream, position)
            return [each for argument in body for each in argument if each.kind == "string"]
    return []


def local(stream: list[Token], before: int, name: str) -> list[Token]:
    """The strings given to the nearest `let name =` before a position."""
    for position in range(before, 0, -1):
        if stream[position].text == name and stream[position - 1].text in ("let", "var"):
            end = position + 1
            line = stream[position].line
            result = []
            while (
                end < before
                and (stream[end].line <= line + 12)
                and stream[end].text not in ("let", "var", "return", "throw")
            ):
                result.append(stream[end])
                end += 1
            return [each for each in result if each.kind == "string"]
    return []


# Python


def python_text(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else HOLE
                for part in node.values
            )
        ]
    if isinstance(node, ast.IfExp):
        return python_text(node.body) + python_text(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [
            left + right for left in python_text(node.left) or [HOLE] for right in python_text(node.right) or [HOLE]
        ]
    return []


def python_messages(folder: pathlib.Path, codes: dict[str, str]) -> tuple[list[Message], list[str]]:
    messages: list[Message] = []
    unseen: list[str] = []
    trees = {
        path: ast.parse(path.read_text()) for path in sorted(folder.glob("*.py")) if not path.name.endswith("_pb2.py")
    }
    declared: dict[str, int] = {"Diagnostic": 1}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
                for name in PARAMETERS & set(names):
                    declared[node.name] = names.index(name)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            chosen = [keyword.value for keyword in node.keywords if keyword.arg in PARAMETERS]
            if not chosen and name in declared and declared[name] < len(node.args):
                chosen = [node.args[declared[name]]]
            code = None
            for argument in node.args[:1] + [keyword.value for keyword in node.keywords if keyword.arg == "code"]:
                if isinstance(argument, ast.Attribute) and argument.attr in codes:
                    code = codes[argument.attr]
            for argument in chosen:
                found = python_text(argument)
                place = f"{path.relative_to(ROOT)}:{argument.lineno}"
                if not found and isinstance(argument, ast.Name) and argument.id not in PARAMETERS:
                    for assign in ast.walk(tree):
                        if isinstance(assign, ast.Assign) and any(
                            isinstance(target, ast.Name) and target.id == argument.id for target in assign.targets
                        ):
                            found += python_text(assign.value)
                if not found and not (
                    isinstance(argument, ast.Name | ast.Attribute)
                    and ast.unparse(argument).split(".")[-1] in PARAMETERS
                ):
                    unseen.append(f"{place}: {name}({ast.unparse(argument)})")
                messages += [Message(each, code, place) for each in found]
    return messages, unseen


# Texts of tests


def test_strings() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "Tests").rglob("*")):
        relative = str(path.relative_to(ROOT))
        if path.suffix == ".swift" and relative not in RENDERER_TESTS:
            stream = tokens(path.read_text())
            for index, token in enumerate(stream):
                if token.kind != "string":
                    continue
                text, following = token.text, index + 1
                while (
                    following + 1 < len(stream)
                    and stream[following].text == "+"
                    and stream[following + 1].kind == "string"
                ):
                    text += stream[following + 1].text
                    following += 2
                yield text, f"{relative}:{token.line}"
        elif path.suffix == ".txt":
            yield path.read_text(), relative
    for path in sorted((ROOT / "python/tests/texts").glob("*.txt")):
        yield path.read_text(), str(path.relative_to(ROOT))
    for path in sorted((ROOT / "python/tests").glob("test_*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.expr):
                for text in python_text(node):
                    yield text, f"{path.relative_to(ROOT)}:{node.lineno}"


def pattern(template: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in template.split(HOLE)), re.DOTALL)


def quoted(example: str, texts: list[str]) -> bool:
    """Whether a test has the example with interpolations in it, as where a path differs from run to run."""
    head = example[: example.index("]: ") + 3]
    for text in texts:
        if HOLE in text and head in text:
            block = text[text.index(head) :].rstrip("\n")
            if pattern(block).fullmatch(example):
                return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every message")
    options = parser.parse_args()
    rows = json.loads((ROOT / "schemas/errors.json").read_text())["errors"]
    swift_codes = {row["name"]: row["code"] for row in rows}
    python_codes = {"".join(f"_{c}" if c.isupper() else c.upper() for c in row["name"]): row["code"] for row in rows}
    messages, unseen = swift_messages(ROOT / "Sources", swift_codes)
    more, more_unseen = python_messages(ROOT / "python/src/statepack", python_codes)
    messages, unseen = messages + more, unseen + more_unseen

    head = re.compile(rf"(?:{'|'.join(SEVERITIES)})\[(E[0-9]{{4}}|{HOLE})\]: (.*)")
    whole: dict[str, str] = {}
    with_code: list[tuple[str, str, str]] = []
    everything: list[str] = []
    for text, place in test_strings():
        everything.append(text)
        if place.endswith(".txt") or head.search(text):
            for line in text.split("\n"):
                if match := head.fullmatch(line.strip()):
                    with_code.append((match.group(1), match.group(2), place))
                else:
                    line = re.sub("^(expected:|found:|hint:|-->)", "", line.strip()).strip()
                    whole.setdefault(line, place)
        else:
            whole.setdefault(text, place)
    # What a message quotes of another, as in "line 2, column 1: the string does not end".
    for text, place in list(whole.items()) + [(text, place) for _, text, place in with_code]:
        if "\n" not in text:
            whole.setdefault(re.sub(r" at byte [0-9]+$", "", text), place)
            for match in re.finditer(": ", text):
                whole.setdefault(text[match.end() :], place)

    missing: list[tuple[str, str]] = []  # what it is, where it is
    for template, code in sorted({(each.template, each.code) for each in messages}, key=str):
        places = [each.place for each in messages if (each.template, each.code) == (template, code)]
        letters = re.sub(r"[^a-z]", "", template)
        if len(letters) < 4:
            continue  # it only wraps another message, which is looked for where it is made
        wanted = pattern(template)
        found = next((place for text, place in whole.items() if text.strip(HOLE) and wanted.fullmatch(text)), None)
        if found is None:
            found = next(
                (
                    place
                    for its, text, place in with_code
                    if (code is None or its in (code, HOLE)) and wanted.fullmatch(text)
                ),
                None,
            )
        shown = template.replace(HOLE, "\\(…)")
        if options.list:
            print(f"{code or '     '}  {shown}\n         {', '.join(places)}\n         {found or 'NO TEST'}")
        if found is None:
            missing.append((f"{code or 'message'}: {shown}", places[0]))

    joined = "\n\0\n".join(everything)
    for row in rows:
        example = row.get("example")
        if not example:
            missing.append((f"{row['code']} {row['name']} has no example", "schemas/errors.json"))
        elif f"[{row['code']}]" not in example or not (example in joined or quoted(example, everything)):
            missing.append((f"{row['code']} {row['name']} has an example that no test has", "schemas/errors.json"))
    for line in unseen:
        place, _, call = line.partition(": ")
        missing.append((f"{call}: the message is not a string here; name its parameter `message`", place))

    for what, place in missing:
        print(f"{place}: no test has the exact text: {what}")
    print(f"{len(messages)} messages, {len(rows)} codes; {len(missing)} without a test", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
