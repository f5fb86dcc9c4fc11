"""program.proto -> the Python module and the protobuf-c code that read and write exported.pb.

The Python code must come from protoc 3.21 (Debian 12's): what it generates runs on protobuf 4 to 7,
what newer compilers generate asks for a runtime of their own age.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile

PROTOC_VERSION = "3.21."
PROTOC_C_VERSION = "1.4."


def _tool(name: str, pattern: str, wanted: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"generate.py: `{name}` is not installed; apt-get install {package}")
    text = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(pattern, text)
    if match is None or not match.group(1).startswith(wanted):
        raise SystemExit(f"generate.py: `{name}` {wanted}x is needed (Debian 12's {package}), found: {text.strip()}")
    return path


def _clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _require_acyclic(text: str) -> None:
    """No message contains its own kind: readers descend as the schema does and would else need a limit of depth."""
    bodies = dict(re.findall(r"^message (\w+) \{\n(.*?)^\}", re.sub(r"//.*", "", text), re.DOTALL | re.MULTILINE))
    parts = {name: set(re.findall(r"\w+", body)) & set(bodies) for name, body in bodies.items()}

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise SystemExit(f"program.proto: messages contain each other: {' > '.join((*above, name))}")
        for part in sorted(parts[name]):
            visit(part, (*above, name))

    for name in parts:
        visit(name, ())


def outputs(root: pathlib.Path) -> dict[str, str]:
    protoc = _tool("protoc", r"libprotoc (\S+)", PROTOC_VERSION, "protobuf-compiler")
    protoc_c = _tool("protoc-c", r"protobuf-c (\S+)", PROTOC_C_VERSION, "protobuf-c-compiler")
    _require_acyclic((root / "schemas/program.proto").read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder)
        where = [f"--proto_path={root / 'schemas'}", "program.proto"]
        subprocess.run([protoc, f"--python_out={out}", f"--pyi_out={out}", *where], check=True)
        subprocess.run([protoc_c, f"--c_out={out}", *where], check=True)
        return {
            "python/src/statepack/program_pb2.py": _clean((out / "program_pb2.py").read_text()),
            "python/src/statepack/program_pb2.pyi": _clean((out / "program_pb2.pyi").read_text()),
            "Sources/CStatepackSchema/program.pb-c.c": _clean((out / "program.pb-c.c").read_text()),
            "Sources/CStatepackSchema/include/program.pb-c.h": _clean((out / "program.pb-c.h").read_text()),
        }
