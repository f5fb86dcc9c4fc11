"""benchmarks/convert.py on a model of 60 MB, and what convert says while it works. Needs the release binaries."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
from typing import Any

import pytest

from test_end_to_end import BIN, ROOT, command


def measuring() -> Any:
    spec = importlib.util.spec_from_file_location("measure_convert", ROOT / "benchmarks/convert.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The benchmark's language model with fewer, narrower layers."""
    program = tmp_path_factory.mktemp("llama") / "exported.pb"
    sizes = {
        "hidden": 512, "intermediate": 1408, "layers": 4, "heads": 8, "key-value-heads": 2, "vocabulary": 4000,
        "capacity": 64,
    }  # fmt: skip
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python/src")}
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/llama.py"), "-o", str(program), *words], check=True, env=environment
    )
    return program


def test_convert_is_measured_beside_a_copy_and_keeps_little_memory(model: pathlib.Path) -> None:
    report = measuring().measure(model, 1, "warm", BIN / "convert")
    assert report["weightsBytes"] > 60_000_000
    # The weights are what a bundle weighs; panels of whole sixteens add nothing here.
    assert abs(report["bundleBytes"] - report["weightsBytes"]) < 1 << 20
    assert report["ratio"] == report["convertSeconds"][0] / report["copySeconds"][0]
    # Blocks of 4 MiB, whatever the weights weigh; the rest is the program.
    assert report["anonymousBytes"] < 40 << 20
    assert sorted(path.name for path in model.parent.iterdir()) == ["exported.pb", "exported.safetensors"]
    text = measuring().text(report)
    assert re.search(r"^ratio +\d+\.\d\d$", text, re.MULTILINE)
    assert json.loads(json.dumps(report)) == report


def test_the_benchmark_model_is_converted_in_place_and_replays(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bundle = tmp_path / "model.statepack"
    command("convert", model, "-o", bundle, "--require-in-place")
    assert "verdict" in command("validate", bundle).stdout


def test_a_terminal_sees_one_line_that_is_gone_at_the_end(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [BIN / "convert", model, "-o", tmp_path / "model.statepack"], stdout=subprocess.DEVNULL, stderr=slave
    )
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 60)[0]:
        try:
            piece = os.read(master, 4096)
        except OSError:
            # What a terminal says when nobody has the other side open any more.
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait(timeout=60) == 0
    lines = shown.decode().split("\r")
    assert lines[0] == ""
    # Each text is followed by what erases the rest of a longer one.
    measure = r"converting: [\d.]+ (bytes|[KM]iB) of [\d.]+ MiB, (\d+) %, [\d.]+ (bytes|[KMG]iB) per second\x1b\[K"
    percents = [int(found[2]) for line in lines[1:-2] if (found := re.fullmatch(measure, line))]
    assert len(percents) == len(lines) - 3
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert lines[-2:] == ["converting: flushing to the disk\x1b[K", "\x1b[K"]


def test_nothing_is_said_where_nobody_watches(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    words = [str(BIN / "convert"), str(model), "-o", str(tmp_path / "model.statepack")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == ""
    told = subprocess.run([*words, "--progress"], capture_output=True, text=True, check=True).stderr.splitlines()
    assert re.fullmatch(r"converting: (.*) of \1, 100 %, .* per second", told[-2])
    assert told[-1] == "converting: flushing to the disk"
