"""README's shell and Python blocks, run as they stand. (Its Swift blocks: Tests/PublicInterfaceTests.)"""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess

import pytest
import torch

from test_end_to_end import BIN, ROOT, command, example_module


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_quick_start_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (quick_start,) = blocks("sh")
    lines = quick_start.splitlines()
    assert lines[0] == "swift build -c release"
    for line in lines[1:]:
        words = shlex.split(line)
        assert words[:4] == ["swift", "run", "-c", "release"], line
        subprocess.run([BIN / words[4], *words[5:]], cwd=tmp_path, check=True, capture_output=True)


def test_the_python_block_exports_what_convert_takes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks("python")
    model = example_module("01-stateful-transformer", "model")
    names = {
        "module": model.StatefulTransformer(layers=1, max_context=256, hidden_size=16).eval(),
        "features": torch.randn(1, 5, 16),
        "position_ids": torch.arange(5),
    }
    exec(compile(snippet, "README.md", "exec"), names)
    converted = command("convert", "exported.pb", "--state-names", "keyCache,valueCache", "--require-in-place")
    assert "in place (index_put)" in converted.stdout
    assert (tmp_path / "exported.statepack").exists()
