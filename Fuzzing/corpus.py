"""Writes the seed corpus under Fuzzing/Corpus from the committed fixtures: `python3 Fuzzing/corpus.py [STATEPACK]`.

With the path of the command `statepack`, bundles are made anew too.

A fuzzer gets further from small inputs, so each seed holds one function of a fixture, or none of its bulk.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python" / "src"))

from statepack import program_pb2  # noqa: E402

CORPUS = ROOT / "Fuzzing" / "Corpus"


def signed(file: program_pb2.ExportedFile) -> bytes:
    """The file with the length and the digest of what follows its first two fields."""
    body = file.SerializeToString(deterministic=True)
    assert (body[0], body[9]) == (0x09, 0x11), "the frame's fields come first"
    rest = body[18:]
    return b"\x09" + struct.pack("<Q", len(rest)) + b"\x11" + hashlib.sha256(rest).digest()[:8] + rest


def read(path: str) -> program_pb2.ExportedFile:
    file = program_pb2.ExportedFile()
    file.ParseFromString((ROOT / path).read_bytes())
    return file


def write(target: str, name: str, content: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def single_nodes() -> dict[str, program_pb2.ExportedFile]:
    """A program for each operator of the fixture: one node, its operands inputs and its results outputs."""
    operators = read("Tests/Fixtures/operators/exported.pb")
    function = operators.program.functions[0]
    seeds: dict[str, program_pb2.ExportedFile] = {}
    for node in function.nodes:
        name = node.op.removeprefix("aten.").replace(".", "-")
        if name in seeds:
            continue
        seed = program_pb2.ExportedFile(body_length=1, body_digest=1)
        seed.program.format_major = operators.program.format_major
        seed.program.producer = "corpus"
        seed.program.symbols.extend(operators.program.symbols)
        reduced = seed.program.functions.add(name="main")
        numbers: dict[int, int] = {}

        def number(value: int, reduced: program_pb2.Function = reduced, numbers: dict[int, int] = numbers) -> int:
            if value not in numbers:
                numbers[value] = len(numbers)
                reduced.values.add().CopyFrom(function.values[value])
            return numbers[value]

        copy = reduced.nodes.add()
        copy.CopyFrom(node)
        copy.source = 0
        for argument in copy.arguments:
            if argument.WhichOneof("value") == "tensor":
                argument.tensor = number(argument.tensor)
            elif argument.WhichOneof("value") == "tensors":
                renumbered = [value if value < 0 else number(value) for value in argument.tensors.tensors]
                argument.tensors.tensors[:] = renumbered
        for value in numbers.values():
            reduced.inputs.add(name=f"input_{value}", value=value)
        for index, value in enumerate(copy.results):
            copy.results[index] = number(value)
            reduced.outputs.add(name=f"output_{index}", value=copy.results[index])
        seeds[name] = seed
    return seeds


def example() -> program_pb2.ExportedFile:
    """The first example with its weights as inputs, and one step of its recording."""
    file = read("examples/01-stateful-transformer/exported.pb")
    for function in file.program.functions:
        for index, constant in enumerate(function.constants):
            function.inputs.add(name=f"constant_{index}", value=constant.value)
        del function.constants[:]
    del file.program.tensors[:]
    del file.recording.replays[1:]
    del file.recording.replays[0].steps[1:]
    return file


def exported() -> None:
    for index, (name, seed) in enumerate(sorted(single_nodes().items())):
        if index % 2 == 0:
            write("exported", name, signed(seed))
    write("exported", "example", signed(example()))


def bundles(statepack: str) -> None:
    """What convert makes of some seeds, and the program sections in them."""
    chosen = sorted((CORPUS / "exported").iterdir())
    with tempfile.TemporaryDirectory() as folder:
        for index, path in enumerate(chosen):
            output = pathlib.Path(folder) / "model.statepack"
            output.unlink(missing_ok=True)
            if subprocess.run([statepack, "convert", path, "-o", output], capture_output=True, check=False).returncode:
                continue
            content = output.read_bytes()
            offset, length = struct.unpack_from("<QQ", content, 32 + 8)
            write("program", path.name, content[offset : offset + length])
            if (len(content) < 4096 and index % 8 == 0) or path.name == "example":
                write("bundle", path.name, content)


def safetensors_file(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def safetensors() -> None:
    write("safetensors", "empty", safetensors_file({}))
    two = {"a": ("F32", [2, 3], bytes(24)), "b.é": ("I64", [], bytes(8)), "none": ("U8", [0, 4], b"")}
    write("safetensors", "three", safetensors_file(two, {"format": "pt"}))
    kinds = {"BOOL": 1, "I8": 1, "I16": 2, "U16": 2, "U32": 4, "U64": 8, "F16": 2, "BF16": 2, "F64": 8}
    every = {kind.lower(): (kind, [1], bytes(size)) for kind, size in kinds.items()}
    write("safetensors", "every-type", safetensors_file(every))
    write("safetensors", "escapes", safetensors_file({'\\"\u00e9\n\U0001f600': ("U8", [2, 1, 2], bytes(4))}))


def inputs() -> None:
    """What `statepack run` takes for the first example."""
    rows = {"features": ("F32", [1, 2, 64], bytes(512)), "position_ids": ("I64", [2], struct.pack("<QQ", 0, 1))}
    write("inputs", "one-step", safetensors_file(rows))
    steps = {f"{name}.{step}": row for step in range(2) for name, row in rows.items()}
    write("inputs", "two-steps", safetensors_file(steps))


def contracts() -> None:
    for index, path in enumerate(sorted(ROOT.glob("examples/*/*.contract.json"))):
        write("contract", f"example-{index + 1}", path.read_bytes())
    sizes = ["2*query + 1", "floordiv(s + 7, 8)", "max(min(s, query), mod(query, 3))*4 - s*s", "(s + 1)*(query - 2)"]
    for index, text in enumerate(sizes):
        write("contract", f"size-{index}", text.encode())
    write("contract", "values", b'[null, true, -1.5e3, "a\\u00e9\\ud83d\\ude00", {"b": [0, {}]}, 9223372036854775807]')


if __name__ == "__main__":
    exported()
    safetensors()
    contracts()
    inputs()
    if len(sys.argv) > 1:
        bundles(sys.argv[1])
