"""Refusals that no other test brings about, and what `explain` prints. Their text is in texts/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

import exact_texts
import statepack
from conftest import refusal, refused_export
from stateful_modules import AddInPlace
from statepack import __main__ as command
from statepack import _codes as codes

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("STATEPACK_BIN", ROOT / ".build" / "release"))
ROWS = json.loads((ROOT / "schemas/errors.json").read_text())["errors"]
X = torch.arange(4.0)


def exported() -> ExportedProgram:
    with torch.no_grad():
        return torch.export.export(AddInPlace(total=torch.zeros(4)), (X,))


def converted(program: ExportedProgram) -> statepack.Diagnostic:
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(program))
    return found


def undecomposed(program: ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> ExportedProgram:
    """The decomposed signature is made anew from the graph; what it cannot say is kept by not decomposing."""
    monkeypatch.setattr(ExportedProgram, "run_decompositions", lambda self, *_, **__: self)
    return program


def test_an_output_for_training_is_refused(monkeypatch):
    program = undecomposed(exported(), monkeypatch)
    program.graph_signature.output_specs[-1].kind = OutputKind.LOSS_OUTPUT
    assert converted(program).code == codes.UNSUPPORTED_OPERATOR


def test_an_input_that_is_an_object_is_refused(monkeypatch):
    program = undecomposed(exported(), monkeypatch)
    program.graph_signature.input_specs[-1].kind = InputKind.CUSTOM_OBJ
    assert converted(program).code == codes.UNSUPPORTED_OPERATOR


def test_a_program_that_torch_cannot_decompose_is_refused_with_torchs_reason(monkeypatch):
    def fails(self, *_, **__):
        raise RuntimeError("no decomposition\nfor this")

    monkeypatch.setattr(ExportedProgram, "run_decompositions", fails)
    assert converted(exported()).code == codes.TORCH_EXPORT_FAILED


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("this model only runs on Sundays")


def test_a_module_that_torch_cannot_trace_is_refused_with_its_reason():
    assert refused_export(Fails(), (X,)).code == codes.TORCH_EXPORT_FAILED


def test_a_temporary_folder_that_cannot_be_made_is_named():
    model = ROOT / "examples/01-stateful-transformer/exported.pb"
    result = subprocess.run(
        [BIN / "validate", model], capture_output=True, text=True, env=os.environ | {"TMPDIR": "/nowhere"}
    )
    assert result.returncode == codes.EXIT_CODES[codes.UNWRITABLE_OUTPUT]
    exact_texts.check(result.stderr.rstrip("\n"))


def test_a_function_that_builds_no_export_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "seven.py").write_text("def build():\n    return 7\n")
    monkeypatch.chdir(tmp_path)
    assert command.main(["export", "seven.py:build"]) == codes.EXIT_CODES[codes.UNUSABLE_BUILD]
    exact_texts.check(capsys.readouterr().err.rstrip("\n"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["code"])
def test_every_code_is_explained_by_code_and_by_name(row, capsys):
    assert command.main(["explain", row["code"].lower()]) == 0
    text = capsys.readouterr().out
    assert command.main(["explain", row["name"]]) == 0
    assert capsys.readouterr().out == text
    assert text.splitlines()[0] == f"{row['code']} {row['name']}"
    assert row["cause"] in text
    assert row["remedy"] in text
    # The example is what the tool prints, indented.
    assert "\n".join("    " + line for line in row["example"].split("\n")) in text


def test_an_unknown_code_is_refused_with_the_nearest(capsys):
    assert command.main(["explain", "wrongShap"]) == 2
    exact_texts.check(capsys.readouterr().err.rstrip("\n"))


def test_explaining_needs_no_torch(tmp_path):
    script = (
        "import sys; sys.modules['torch'] = None; import statepack.__main__ as command;"
        "sys.exit(command.main(['explain', 'E0604']))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python/src")}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("E0604 wrongShape\n")


class WritesItsInput(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


def without_examples(module: nn.Module) -> ExportedProgram:
    with torch.no_grad():
        program = torch.export.export(module, (X.clone(),))
    program._example_inputs = None
    return program


def test_an_exported_program_without_examples_cannot_be_replayed():
    converter = statepack.TorchConverter().add_exported_program(without_examples(AddInPlace(total=torch.zeros(4))))
    (found,) = refusal(converter.to_program)
    assert found.code == codes.REPLAY_FAILED


def test_an_input_that_is_written_needs_an_example():
    assert converted(without_examples(WritesItsInput())).code == codes.REPLAY_FAILED


class HalfOnTheWay(nn.Module):
    def forward(self, x):
        return x.to(torch.float16).to(torch.float32)


def test_one_operator_with_an_unsupported_result_is_refused():
    assert refused_export(HalfOnTheWay(), (X,)).code == codes.UNSUPPORTED_TENSOR_TYPE
