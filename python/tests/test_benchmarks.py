"""The harness of `make bench`, without other systems and without a word about how long anything takes.

Needs the release binaries (`swift build -c release`); STATEPACK_BIN names their folder.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

from test_end_to_end import BIN, ROOT, command

BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import environments  # noqa: E402
import figures  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402
import systems  # noqa: E402
import worker_process  # noqa: E402

#: A worker that computes nothing: its next token is the one before plus a number that its argument names.
FAKE_WORKER = """
import json, sys
mode, last = sys.argv[1], {}
increment = 2 if mode == "other" else 1
for line in sys.stdin:
    request = json.loads(line)
    name, answer = request.get("sequence"), {}
    if request["command"] == "load":
        answer = {"milliseconds": [1.5], "facts": {"weights": "float32"}, "cacheBytesPerPosition": 64}
    if request["command"] in ("fill", "prefill"):
        if mode == "fails late" and request["command"] == "prefill":
            raise SystemExit("error: no memory for so many tokens")
        last[name] = request["tokens"][-1] + increment
        answer = {"milliseconds": [8.0], "tokens": [last[name]]}
    if request["command"] == "step":
        if mode == "dies":
            print("error: no such instruction", file=sys.stderr)
            sys.exit(7)
        if mode == "refuses":
            answer = {"error": "the cache is full"}
        else:
            tokens = [last[name] + increment * (count + 1) for count in range(request["count"])]
            last[name] = tokens[-1]
            answer = {"milliseconds": [4.0 if mode == "slow" else 2.0] * len(tokens), "tokens": tokens}
    if request["command"] == "bandwidth":
        answer = {"bytesPerSecond": 1e9 * request["streams"]}
    print(json.dumps(answer), flush=True)
"""

TINY = [
    *("--contexts", "8,16", "--rounds", "2", "--steps", "2", "--passes", "2", "--capacity", "256"),
    *("--prefill", "8", "--prefill-rounds", "2", "--prompt-steps", "4", "--load-runs", "2"),
    *("--idle-load", "1", "--patience", "0"),
]


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "worker.py"
    path.write_text(FAKE_WORKER)
    return path


class FakeRunner(run.Runner):
    """Its systems are fake workers, each in a mode of its own."""

    modes: dict[str, str]
    worker: pathlib.Path

    def command(self, system: systems.System) -> list[str]:
        return [sys.executable, str(self.worker), self.modes[system.name]]


def measured(fake: pathlib.Path, **modes: str) -> dict[str, Any]:
    modes = {name.replace("_", "-"): mode for name, mode in modes.items()}
    options = run.parse([*TINY, "--systems", ",".join(modes), "--folder", str(fake.parent / "bench")])
    options.worker = options.model = fake.parent / "absent"
    runner = FakeRunner(options)
    runner.modes, runner.worker = modes, fake
    results: dict[str, Any] = json.loads(json.dumps(runner.run()))
    return results


def test_every_round_has_the_samples_of_every_system(fake):
    results = measured(fake, statepack="good", llama_flash="slow", pytorch_dynamic="good")
    assert results["format"] == "statepack-benchmark-1"
    for phase, contexts in [("decode", ["8", "16"]), ("pairs", ["8", "16"])]:
        samples = results[phase]["times"]["statepack"]
        assert list(samples) == contexts
        assert [index for index, _ in samples["8"]] == [0, 1, 2, 3]
        assert all(times == [2.0, 2.0] for _, times in samples["8"])
    assert results["prefill"]["llama-flash"] == [[0, 8.0], [1, 8.0]]
    assert set(results["machine"]) >= {"processor", "cores", "memory_bytes"}
    # Before each round of decode, pairs and prefill, the round that warms up included.
    assert len(results["loads"]) == 4 + 4 + 3
    for system in results["systems"].values():
        assert system["status"] == "measured"
        assert system["load_ms"] == [1.5]
        assert system["peak_bytes"] > 1 << 20
        assert len(system["prompt_tokens"]) == 4


def test_the_pairs_are_with_the_best_peers_alone(fake):
    results = measured(fake, statepack="good", llama_flash="slow", pytorch_dynamic="good")
    assert list(results["pairs"]["times"]) == ["statepack", "pytorch-dynamic"]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("dies", "load and memory: ended with exit code 7: error: no such instruction"),
        ("refuses", "load and memory: the cache is full"),
    ],
)
def test_a_system_that_fails_is_reported_with_its_reason_and_the_others_are_measured(fake, mode, reason):
    results = measured(fake, statepack="good", openvino=mode)
    assert results["systems"]["openvino"] == {
        **results["systems"]["openvino"],
        "status": "failed",
        "reason": reason,
    }
    assert results["systems"]["statepack"]["status"] == "measured"
    assert len(results["decode"]["times"]["statepack"]["16"]) == 4
    text = report.text(figures.Figures(results))
    assert f"OpenVINO: failed: {reason}" in text
    assert f"Not in the table: OpenVINO: failed: {reason}." in report.markdown(figures.Figures(results), None)


def test_a_system_that_fails_late_keeps_what_was_measured_before(fake):
    found = figures.Figures(measured(fake, statepack="good", openvino="fails late"))
    row = next(row for row in report.table(found) if row[0] == "OpenVINO")
    assert row[1:3] == ["2.0 (1.00)", "2.0 (1.00)"]
    assert row[4] == "-"
    assert row[-1] == "failed"
    assert "prefill: ended with exit code 1: error: no memory for so many tokens" in report.text(found)


def test_tokens_that_differ_from_pytorchs_are_said(fake):
    results = measured(fake, statepack="good", llama_flash="other", pytorch_dynamic="good")
    found = figures.Figures(results)
    assert found.reference == "pytorch-dynamic"
    assert found.agreement("statepack") == (4, 4)
    assert found.agreement("llama-flash") == (0, 4)
    assert "token 1 differs from PyTorch eager, dynamic cache" in report.text(found)
    assert set(found.random_agreement("llama-flash").values()) == {(0, 3 + 2 * 3)}


def test_ratios_are_those_of_rounds(fake):
    found = figures.Figures(measured(fake, statepack="good", llama_flash="slow"))
    assert found.step_ratio("llama-flash", 8) == 2
    assert found.growth("llama-flash") == 0
    targets = {target.claim: target for target in found.targets()}
    decode = targets["step at 8, of that of llama.cpp, flash attention"]
    assert (decode.found, decode.verdict) == (0.5, "met")
    # Nothing read memory, as there was no worker of Statepack's.
    limit = targets["step at 8, of reading its weights and cache with four streams"]
    assert (limit.found, limit.verdict) == (None, "not measured")
    prefill = targets["rate of prefilling 8, of that of llama.cpp, flash attention"]
    assert (prefill.found, prefill.verdict) == (1, "met")


@pytest.mark.parametrize(
    ("found", "bound", "at_most", "verdict"),
    [
        (0.9, 0.9, True, "met"),
        (0.99, 0.9, True, "missed by 10 %"),
        (0.9001, 0.9, True, "missed by less than 1 %"),
        (1.1, 1.0, False, "met"),
        (0.8, 1.0, False, "missed by 20 %"),
        (None, 1.0, False, "not measured"),
    ],
)
def test_a_target_says_by_how_much_it_is_missed(found, bound, at_most, verdict):
    assert figures.Target("claim", found, bound, at_most).verdict == verdict


def test_a_worker_that_is_not_asked_is_stopped(fake, tmp_path):
    worker = worker_process.WorkerProcess([sys.executable, str(fake), "good"], tmp_path / "log")
    try:
        worker.ask("load")
        deadline = time.monotonic() + 10
        while "stopped" not in worker.status_field("State") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "stopped" in worker.status_field("State")
        assert worker.ask("load")["milliseconds"] == [1.5]
    finally:
        worker.close()
    assert worker.process.returncode == 0


def test_a_stopped_worker_ends_with_a_controller_that_is_killed(fake, tmp_path):
    script = f"""
import os, pathlib, signal, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from worker_process import WorkerProcess
worker = WorkerProcess([sys.executable, {str(fake)!r}, "good"], pathlib.Path({str(tmp_path / "log")!r}))
worker.ask("load")
print(worker.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout
    status = pathlib.Path(f"/proc/{int(shown)}/stat")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        # Gone, or a zombie that nobody has asked about yet.
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail(f"the worker still runs: {status.read_text()}")


def test_a_worker_that_does_not_answer_is_ended(fake, tmp_path):
    silent = [sys.executable, "-c", "import time; time.sleep(600)"]
    worker = worker_process.WorkerProcess(silent, tmp_path / "log")
    with pytest.raises(worker_process.WorkerFailed, match="did not answer in time"):
        worker.ask("load", timeout=0.2)
    assert worker.process.returncode is not None


def test_an_installation_that_fails_has_the_reason_from_its_log(tmp_path):
    workshop = environments.Workshop(tmp_path, threads=2, may_install=True)
    with pytest.raises(environments.Unavailable, match="install-x ended with 3: error: no matching distribution"):
        workshop.run([sys.executable, "-c", "print('error: no matching distribution'); exit(3)"], "install-x")


def test_what_is_missing_is_reported_where_nothing_may_be_installed(tmp_path):
    workshop = environments.Workshop(tmp_path, threads=2, may_install=False)
    with pytest.raises(environments.Unavailable, match="environment llama is not installed"):
        workshop.prepare(systems.SYSTEMS["llama-flash"])


def test_every_system_has_its_parts():
    for system in systems.SYSTEMS.values():
        if system.name == systems.OURS:
            continue
        assert (BENCHMARKS / "workers" / system.worker).is_file()
        assert (BENCHMARKS / f"requirements-{system.environment}.txt").is_file()
        assert (BENCHMARKS / "convert" / systems.MODELS[system.model].script).is_file()


def test_contexts_that_do_not_fit_are_refused():
    with pytest.raises(SystemExit):
        run.parse(["--contexts", "128,2040"])


def test_only_what_stands_between_the_markers_is_replaced():
    document = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    once = report.replace_between_markers(document, "new")
    assert once == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    assert report.replace_between_markers(once, "new") == once
    with pytest.raises(SystemExit, match="has no lines"):
        report.replace_between_markers("nothing", "new")


def test_the_readme_has_the_markers():
    report.replace_between_markers((ROOT / "README.md").read_text(), "new")


def test_statepack_is_measured_and_a_missing_peer_is_reported(tmp_path):
    """The whole command with the first example's model, as `make bench` runs it with SmolLM2."""
    model, output = tmp_path / "model.statepack", tmp_path / "results.json"
    command("convert", ROOT / "examples" / "01-stateful-transformer" / "exported.pb", "-o", model)
    arguments = [
        *(sys.executable, BENCHMARKS / "run.py", "--systems", "statepack,llama-flash", "--no-install"),
        *("--folder", tmp_path / "bench", "--model", model, "--worker", BIN / "BenchmarkWorker", "--output", output),
        *TINY,
    ]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text())
    assert results["systems"]["statepack"]["status"] == "measured", done.stdout
    assert results["systems"]["llama-flash"]["status"] == "not installed"
    assert results["systems"]["llama-flash"]["reason"] == "environment llama is not installed"
    # Two layers, keys and values, 64 float32 of each.
    assert results["model"]["cache_bytes_per_position"] == 2 * 2 * 64 * 4
    assert results["model"]["weight_bytes"] == model.stat().st_size
    for context in ("8", "16"):
        rounds = results["decode"]["times"]["statepack"][context]
        assert [len(times) for _, times in rounds] == [2, 2, 2, 2]
        assert all(milliseconds > 0 for _, times in rounds for milliseconds in times)
        assert all(rate > 0 for rate in results["decode"]["bytes_per_second"][context])
    assert all(rate > 0 for streams in ("1", "4") for rate in results["bandwidth"][streams])

    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    shown = subprocess.run(
        [sys.executable, str(BENCHMARKS / "report.py"), str(output), "--readme", str(readme)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "not installed: environment llama is not installed" in shown
    assert "growth from 8 to 16" in shown
    assert readme.read_text().count("| Statepack |") == 1
    assert "| llama.cpp, flash attention | - |" in readme.read_text()


def test_an_unknown_system_is_refused():
    with pytest.raises((SystemExit, argparse.ArgumentTypeError)):
        run.parse(["--systems", "statepack,absent"])
