"""Contracts of what PyTorch exports, and what the built command says changed between two exports.

Needs the release binaries (`swift build -c release`); STATEPACK_BIN names their folder.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import statepack

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("STATEPACK_BIN", ROOT / ".build" / "release"))
SCHEMA = json.loads((ROOT / "schemas/contract.schema.json").read_text())
CONTRACTS = [
    ROOT / "Tests/ToolTests/Goldens/two-functions.contract.json",
    ROOT / "examples/01-stateful-transformer/exported.contract.json",
]


def run(name: str, *arguments: object, expect: int = 0) -> str:
    result = subprocess.run([BIN / name, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == expect, f"{name} {arguments}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


class Counter(nn.Module):
    """A sum that starts from a tensor. Weights of some 40,000 rows are in a file of their own."""

    def __init__(self, weight: float = 1.0, start: float = 0.5, width: int = 8, operator: str = "add") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width, 8), weight))
        self.register_buffer("total", torch.arange(8, dtype=torch.float32) + start)
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.weight.T).sum(-1, keepdim=True)
        self.total.add_(y.squeeze() if self.operator == "add" else y.squeeze().relu())
        return self.total * 1


def export(folder: pathlib.Path, name: str, **options: Any) -> pathlib.Path:
    path = folder / f"{name}.pb"
    statepack.export(
        Counter(**options), (torch.ones(1, 8),), input_names=["x"], state_names=["total"], output_names=["sum"]
    ).save(str(path))
    return path


@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.name)
def test_a_committed_contract_is_a_document_of_the_schema(path: pathlib.Path):
    jsonschema.validate(json.loads(path.read_text()), SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["functions", 0, "states", 0, "initialValue"], {"fill": "zero"}),
        (["functions", 0, "states", 0, "initialValue"], {"fill": 0, "sha256": "0" * 64}),
        (["functions", 0, "states", 0, "writtenBy"], ""),
        (["functions", 0, "context", "axes"], {}),
        (["functions", 0, "context", "axes", "keyCache"], -1),
        (["functions", 0, "inputs", 0, "initialValue"], {"fill": 0}),
        (["contract"], 2),
    ],
    ids=["fill", "both", "writtenBy", "axes", "axis", "input", "version"],
)
def test_the_schema_refuses_what_the_reader_refuses(path: list[Any], value: Any, tmp_path: pathlib.Path):
    document = json.loads(CONTRACTS[0].read_text())
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)
    edited = tmp_path / "edited.contract.json"
    edited.write_text(json.dumps(document))
    run("statepack", "diff", edited, CONTRACTS[0], expect=3)


def test_a_process_writes_the_same_contract_from_the_export_and_from_its_bundle(tmp_path: pathlib.Path):
    exported = export(tmp_path, "exported")
    run("convert", exported)
    run("statepack", "describe", exported, "-o", tmp_path / "exported.contract.json")
    contract = (tmp_path / "exported.contract.json").read_text()
    assert run("statepack", "describe", tmp_path / "exported.statepack") == contract
    jsonschema.validate(json.loads(contract), SCHEMA)
    (state,) = json.loads(contract)["functions"][0]["states"]
    assert set(state["initialValue"]) == {"sha256"}
    assert run("statepack", "contract", exported) == (
        f"{tmp_path}/exported.contract.json: holds for exported.pb, exported.statepack\n"
    )


@pytest.mark.parametrize(
    ("options", "weights", "graph", "changes"),
    [
        ({}, "the same", "the same", []),
        ({"weight": 2.0}, "changed", "the same", [("numeric", "weights")]),
        ({"operator": "relu"}, "the same", "changed", [("numeric", "graph")]),
        ({"start": 1.5}, "changed", "the same", [("numeric", "initialValue"), ("numeric", "weights")]),
        ({"width": 16}, "changed", "changed", [("numeric", "weights"), ("numeric", "graph")]),
    ],
    ids=["nothing", "weights", "operators", "initial value", "both"],
)
@pytest.mark.parametrize("kind", ["exported program", "bundle"])
def test_diff_tells_weights_from_operators(
    options: dict[str, Any], weights: str, graph: str, changes: list[tuple[str, str]], kind: str, tmp_path: pathlib.Path
):
    files = [export(tmp_path, "old"), export(tmp_path, "new", **options)]
    if kind == "bundle":
        for file in files:
            run("convert", file)
        files = [file.with_suffix(".statepack") for file in files]
    report = json.loads(run("statepack", "diff", *files, "--format", "json"))
    found = [(row["class"], row["change"]) for row in report["differences"]]
    assert found == changes
    assert (report["weights"], report["graph"]) == (weights, graph)
    run("statepack", "diff", *files, "--fail-on", "any", expect=1 if found else 0)


def test_weights_in_their_own_file_are_compared_without_it(tmp_path: pathlib.Path):
    files = [export(tmp_path, name, width=40_000, weight=weight) for name, weight in [("old", 1.0), ("new", 2.0)]]
    for file in files:
        (weights,) = tmp_path.glob(f"{file.stem}*.safetensors")
        weights.unlink()
    run("statepack", "describe", files[0], "-o", tmp_path / "old.contract.json")
    run("statepack", "contract", files[0])
    report = json.loads(run("statepack", "diff", *files, "--format", "json"))
    assert [(row["class"], row["change"]) for row in report["differences"]] == [("numeric", "weights")]
    assert report["graph"] == "the same"
