"""exported.pb on disk: framed, deterministic, free of this machine, and whole or absent."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import statepack
from conftest import refusal
from stateful_modules import CASES, AddInPlace
from statepack import _codes as codes
from statepack import program_pb2 as pb
from statepack import writing

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/01-stateful-transformer"


class Large(nn.Module):
    """More than a mebibyte of weights, two of them tied, and a state that starts as a tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(1000, 300)
        self.head = nn.Linear(300, 1000, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("start", torch.arange(300.0))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.start
        self.start.mul_(0.5)
        return self.head(x)


def export_large() -> statepack.ExportedModel:
    return statepack.export(Large(), (torch.tensor([1, 2, 3]),))


def export_small() -> statepack.ExportedModel:
    return statepack.export(AddInPlace(total=torch.zeros(4)), (torch.ones(4),))


def test_the_two_fixed_fields_say_length_and_digest(tmp_path):
    export_small().save(tmp_path / "exported.pb", quiet=True)
    data = (tmp_path / "exported.pb").read_bytes()
    body = data[writing.HEADER_LENGTH :]
    assert data[0] == 0x09
    assert struct.unpack_from("<Q", data, 1)[0] == len(body)
    assert data[9] == 0x11
    assert data[10:18] == hashlib.sha256(body).digest()[:8]
    parsed = pb.ExportedFile.FromString(data)
    assert parsed.body_length == len(body)
    assert [field.name for field, _ in parsed.ListFields()] == ["body_length", "body_digest", "program", "recording"]


def test_a_small_programs_tensors_are_inline(tmp_path):
    model = statepack.export(nn.Linear(3, 2), (torch.ones(3),))
    assert model.save(tmp_path / "exported.pb", quiet=True) == [str(tmp_path / "exported.pb")]
    program = pb.ExportedFile.FromString((tmp_path / "exported.pb").read_bytes()).program
    assert [(t.name, t.inline, len(t.data)) for t in program.tensors] == [("weight", True, 24), ("bias", True, 8)]
    assert program.weights_file == ""
    assert [file.name for file in tmp_path.iterdir()] == ["exported.pb"]


def test_large_weights_are_beside_it_once_each_with_their_digest(tmp_path):
    from safetensors.torch import load_file

    model = export_large()
    written = model.save(tmp_path / "model.pb", quiet=True)
    assert written == [str(tmp_path / "model.pb"), str(tmp_path / "model.safetensors")]
    program = pb.ExportedFile.FromString((tmp_path / "model.pb").read_bytes()).program
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert program.weights_file == "model.safetensors"
    assert program.weights_length == len(weights)
    assert program.weights_digest == hashlib.sha256(weights).digest()
    assert {t.name: list(t.aliases) for t in program.tensors} == {"head.weight": ["embedding.weight"], "start": []}
    assert not any(t.inline or t.data for t in program.tensors)
    contents = load_file(tmp_path / "model.safetensors")
    assert sorted(contents) == ["head.weight", "start"]
    assert torch.equal(contents["start"], torch.arange(300.0))
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o777 == (tmp_path / "model.pb").stat().st_mode & 0o777


SCRIPT = """
import sys, torch
sys.path[:0] = [sys.argv[1]]
torch.set_num_threads(1)
import test_file
test_file.export_large().save(sys.argv[2], quiet=True)
"""


def test_two_processes_write_the_same_bytes_without_a_path_of_this_machine(tmp_path):
    folders = []
    for seed in ("1", "4711"):
        folder = tmp_path / f"run{seed}"
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "python/src")}
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(Path(__file__).parent), str(folder / "exported.pb")],
            check=True,
            env=environment,
            cwd=folder,
        )
        folders.append(folder)
    for name in ("exported.pb", "exported.safetensors"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
        for path in (str(tmp_path), str(ROOT), str(Path.home()), sys.prefix, "/usr/", "/tmp/"):
            assert path.encode() not in first


def test_the_committed_example_is_what_its_script_writes(tmp_path):
    sys.path.insert(0, str(EXAMPLE))
    try:
        import export
    finally:
        sys.path.remove(str(EXAMPLE))
    export.request().run().save(tmp_path / "exported.pb", quiet=True)
    found, committed = (
        pb.ExportedFile.FromString((folder / "exported.pb").read_bytes()) for folder in (tmp_path, EXAMPLE)
    )
    # The recording's bits are the processor's own; the program's are not. Regenerate with export.py.
    found.program.producer = committed.program.producer
    assert found.program == committed.program
    assert committed.ByteSize() < 1_000_000
    assert [(state.name, state.source_name) for state in committed.program.states] == [
        ("keyCache", "key_cache"),
        ("valueCache", "value_cache"),
    ]
    steps = committed.recording.replays[0].steps
    assert [step.inputs[0].shape[1] for step in steps] == [5, 1, 1, 1, 1, 256]


def test_saving_prints_the_state_table(tmp_path, capsys):
    export_small().save(tmp_path / "exported.pb")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "total  total   [4] float32  16 bytes  0.0        written by copy"
    assert lines[2].startswith("wrote ")


@pytest.mark.parametrize("target", ["missing/exported.pb", "folder"])
def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "keep").write_text("old")
    (found,) = refusal(lambda: export_large().save(tmp_path / target, quiet=True))
    assert found.code == codes.OUTPUT_NOT_WRITTEN
    assert found.found
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".safetensors")] == ["folder"]
    assert (tmp_path / "folder" / "keep").read_text() == "old"
    assert not list(tmp_path.glob("**/*.tmp"))


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    model = export_small()
    model.save(tmp_path / "exported.pb", quiet=True)
    before = (tmp_path / "exported.pb").read_bytes()

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "_sync", full)
    (found,) = refusal(lambda: model.save(tmp_path / "exported.pb", quiet=True))
    assert found.found == "No space left on device"
    assert (tmp_path / "exported.pb").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["exported.pb"]


# The command.


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python/src")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "statepack", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
    )


BUILD = """
import torch, statepack
from torch import nn

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.full((2,), 5.0))
    def forward(self, x):
        self.count += x
        return self.count * 1

def build():
    return statepack.ExportRequest(Counter(), (torch.ones(2),), state_names=["count"])

def finished():
    return build().run()

def refused():
    return statepack.ExportRequest(Counter(), (torch.ones(2),), state_names=["x"])

def nothing():
    return 7
"""


@pytest.fixture
def build_folder(tmp_path):
    (tmp_path / "counter.py").write_text(BUILD)
    return tmp_path


@pytest.mark.parametrize("function", ["build", "finished"])
def test_the_command_writes_what_build_returns(build_folder, function):
    result = command("export", f"counter.py:{function}", "-o", "out.pb", cwd=build_folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert "count  count   [2] float32  8 bytes  5.0" in result.stdout
    assert pb.ExportedFile.FromString((build_folder / "out.pb").read_bytes()).program.states[0].name == "count"


def test_the_command_prints_a_refusal_and_writes_nothing(build_folder):
    result = command("export", "counter.py:refused", cwd=build_folder)
    assert result.returncode == codes.EXIT_CODES[codes.STATE_NAME_TAKEN]
    assert result.stderr.startswith("error[E0007]: state `x` has the name of an input\n  --> function `main`\n")
    assert not (build_folder / "exported.pb").exists()


@pytest.mark.parametrize(
    "target",
    ["counter.py", "missing.py:build", "no_module_of_this_name:build", "counter.py:absent", "counter.py:nothing"],
)
def test_the_command_explains_a_build_that_it_cannot_use(build_folder, target):
    result = command("export", target, cwd=build_folder)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error[E0026]: `{target}` does not build an export")
    assert "statepack.ExportRequest" in result.stderr


def test_importing_the_package_needs_no_torch(tmp_path):
    script = "import sys; sys.modules['torch'] = None; import statepack; print(statepack.ExportError.__name__)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python/src")}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.stdout == "ExportError\n"


# Diagnostics and the operator list.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x7fb", "a\\u{7F}b"),
        ("naïve 🙂 漢", "naïve 🙂 漢"),
        ("\u202eabc", "\\u{202E}abc"),
        ("a\u2028b", "a\\u{2028}b"),
        ("a\u200bb", "a\\u{200B}b"),
        ("a\u00a0b", "a\\u{A0}b"),
        ("a\u3164b", "a\\u{3164}b"),
        ("a\ufe0fb", "a\\u{FE0F}b"),
        ("a\U000e0041b", "a\\u{E0041}b"),
        ("\ud800", "\\u{D800}"),
    ],
)
def test_a_character_that_is_obeyed_or_not_seen_is_spelled_out(text, shown):
    assert str(statepack.Diagnostic("E0604", text)) == f"error[E0604]: {shown}"


def test_a_diagnostic_reads_like_the_swift_tools():
    diagnostic = statepack.Diagnostic(
        "E0604", "view for `a\x1b[2J` has the wrong shape", "function `f`", "[1]\n[2]", "[3]", "look"
    )
    assert str(diagnostic) == "\n".join(
        [
            "error[E0604]: view for `a\\u{1B}[2J` has the wrong shape",
            "  --> function `f`",
            "  expected: [1]",
            "            [2]",
            "  found:    [3]",
            "  hint:     look",
        ]
    )
    assert str(statepack.ExportError([diagnostic, diagnostic])) == f"{diagnostic}\n{diagnostic}"


def test_every_operator_has_the_arguments_of_torchs_schema():
    from statepack._operators import OPERATORS
    from statepack.graph import _DROPPED_ARGUMENTS
    from statepack.replay import operator_of

    for name, arguments in OPERATORS.items():
        schema = operator_of(name)._schema
        kept = tuple(argument.name for argument in schema.arguments if argument.name not in _DROPPED_ARGUMENTS)
        assert kept == arguments, name


@pytest.mark.parametrize("name", ["per-layer writes into a stacked state", "where-gated", "integer counter"])
def test_every_node_carries_every_argument_of_its_row_in_order(name):
    from statepack._operators import OPERATORS

    case = CASES[name]
    program = statepack.export(case.make(), case.arguments(0)).program
    for node in program.functions[0].nodes:
        assert tuple(argument.name for argument in node.arguments) == OPERATORS[node.op]
        assert all(argument.WhichOneof("value") for argument in node.arguments)
        assert program.sources[node.source - 1].endswith(")")


def test_every_export_code_is_explained_in_the_table():
    rows = json.loads((ROOT / "schemas/errors.json").read_text())["errors"]
    table = {row["code"]: row["name"] for row in rows if row["code"].startswith("E00")}
    for code in table:
        assert code in codes.EXPLANATIONS
