#!/usr/bin/env python3
"""Measures Statepack beside other systems on the same work in one run, and writes what it found as JSON.

    python3 benchmarks/run.py --model build/bench/model.statepack --worker .build/release/BenchmarkWorker

`make bench` builds both and calls this. Needs no package; benchmarks/README.md says what each figure means.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import machine
from environments import Unavailable, Workshop
from systems import OURS, ROOT, SYSTEMS, System
from worker_process import WorkerFailed, WorkerProcess

#: The beginning of a sentence, in SmolLM2's tokens: all systems have to continue it in the same way.
PROMPT = [504, 3575, 282, 4649, 314]
VOCABULARY = 49152
#: Tokens per call while a context is filled in, so that no system needs memory for two thousand rows at once.
FILL_BLOCK = 512
WARM_UP = 3


class Runner:
    """The systems that take part, and everything that is found out about them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workshop = Workshop(options.folder, threads=options.threads, may_install=not options.no_install)
        self.commands: dict[str, list[str]] = {}
        self.workers: dict[str, WorkerProcess] = {}
        self.reader: WorkerProcess | None = None
        self.cache_bytes_per_position = 0
        self.loads: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        for name in options.systems:
            self.results[name] = {"label": SYSTEMS[name].label, "status": "measured"}

    # Which systems take part

    @property
    def active(self) -> list[str]:
        """In the order of the table, without those that failed."""
        return [name for name, result in self.results.items() if result["status"] == "measured"]

    def fail(self, name: str, status: str, reason: str) -> None:
        reason = reason.replace(str(ROOT), ".").replace(str(pathlib.Path.home()), "~")
        self.results[name].update(status=status, reason=reason)
        worker = self.workers.pop(name, None)
        if worker:
            worker.close()
        self.say(f"{SYSTEMS[name].label}: {status}: {reason}")

    @staticmethod
    def say(text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)

    def prepare(self) -> None:
        for name in self.active:
            if self.options.only_prepare and name == OURS:
                continue
            try:
                self.commands[name] = self.command(SYSTEMS[name])
            except Unavailable as error:
                self.fail(name, "not installed", str(error))

    def command(self, system: System) -> list[str]:
        threads = ["--threads", str(self.options.threads)]
        if system.name == OURS:
            for path in (self.options.worker, self.options.model):
                if not path.exists():
                    raise Unavailable(f"there is no {path.name}; `make bench` makes it")
            return [str(self.options.worker), str(self.options.model), *threads]
        python, model = self.workshop.prepare(system)
        worker = pathlib.Path(__file__).parent / "workers" / system.worker
        return [
            str(python), str(worker), "--model", str(model), *threads,
            "--capacity", str(self.options.capacity), *system.arguments,
        ]  # fmt: skip

    # Talking to workers

    def start(self, name: str) -> WorkerProcess:
        variables = {
            "OMP_NUM_THREADS": str(self.options.threads),
            "MKL_NUM_THREADS": str(self.options.threads),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        return WorkerProcess(self.commands[name], self.workshop.log(f"worker-{name}"), variables)

    def ask(self, name: str, command: str, **fields: Any) -> dict[str, Any] | None:
        """The system's answer; none when it fails, which takes it out of this run."""
        try:
            return self.workers[name].ask(command, timeout=self.options.timeout, **fields)
        except WorkerFailed as error:
            self.fail(name, "failed", f"{command}: {error}")
            return None

    def random_tokens(self, count: int) -> list[int]:
        generator = random.Random(count)
        return [generator.randrange(VOCABULARY) for _ in range(count)]

    # The phases of a run, in order

    def load_and_memory(self) -> None:
        """In processes of their own: loading several times, then what a long context needs at most."""
        for name in self.active:
            times = []
            try:
                for attempt in range(self.options.load_runs):
                    worker = self.start(name)
                    try:
                        answer = worker.ask("load", timeout=self.options.timeout)
                        times.append(answer["milliseconds"][0])
                        if attempt == 0:
                            self.results[name]["loaded_peak_bytes"] = worker.peak_bytes()
                            tokens = self.random_tokens(max(self.options.contexts))
                            worker.ask(
                                "fill", timeout=self.options.timeout, sequence="memory", tokens=tokens, block=FILL_BLOCK
                            )
                            worker.ask("step", timeout=self.options.timeout, sequence="memory", count=4)
                            self.results[name]["peak_bytes"] = worker.peak_bytes()
                    finally:
                        worker.close()
            except (WorkerFailed, OSError) as error:
                self.fail(name, "failed", f"load and memory: {error}")
                continue
            # The first run may have read files from the disk.
            warm = times[1:] or times
            self.results[name]["load_ms"] = [rounded(value) for value in warm]
            self.say(f"{SYSTEMS[name].label}: loads in {min(warm):.0f} ms")

    def start_all(self) -> None:
        for name in self.active:
            try:
                self.workers[name] = self.start(name)
            except OSError as error:
                self.fail(name, "failed", f"does not start: {error}")
                continue
            answer = self.ask(name, "load")
            if answer:
                self.results[name]["facts"] = answer.get("facts", {})
                if name == OURS:
                    self.cache_bytes_per_position = answer.get("cacheBytesPerPosition", 0)
        if self.options.worker.exists():
            command = [str(self.options.worker), "--threads", str(self.options.threads)]
            self.reader = WorkerProcess(command, self.workshop.log("worker-bandwidth"))

    def continue_prompt(self) -> None:
        """The same greedy tokens from every system are the sign that all compute the same model."""
        for name in self.active:
            answer = self.ask(name, "fill", sequence="prompt", tokens=PROMPT, block=FILL_BLOCK)
            if answer:
                first = answer["tokens"]
                answer = self.ask(name, "step", sequence="prompt", count=self.options.prompt_steps - 1)
                if answer:
                    self.results[name]["prompt_tokens"] = first + answer["tokens"]

    def decode(self, names: list[str], contexts: list[int], passes: int, phase: str) -> dict[str, Any]:
        """Rounds in which every system makes a few steps at every context, by turns with reading memory."""
        times: dict[str, dict[str, list[Any]]] = {name: {str(context): [] for context in contexts} for name in names}
        reads: dict[str, list[Any]] = {str(context): [] for context in contexts}
        for number in range(passes):
            for context in contexts:
                tokens = self.random_tokens(context - WARM_UP)
                for name in [name for name in names if name in self.active]:
                    key = str(context)
                    if not self.ask(name, "fill", sequence=key, tokens=tokens, block=FILL_BLOCK):
                        continue
                    answer = self.ask(name, "step", sequence=key, count=WARM_UP)
                    if answer and phase == "decode" and number == 0:
                        self.results[name].setdefault("context_tokens", {})[key] = answer["tokens"]
            for turn in range(self.options.rounds):
                index = number * self.options.rounds + turn
                self.gate(f"{phase} {index + 1}")
                # Every system goes first at some time, and contexts go up and down.
                order = contexts if index % 2 == 0 else contexts[::-1]
                for context in order:
                    turns = [name for name in names if name in self.active]
                    shift = index % max(1, len(turns))
                    reads[str(context)].append(self.read_memory(self.model_bytes + self.cache_bytes(context), 4))
                    for name in turns[shift:] + turns[:shift]:
                        # One more step than counts: the first one finds its data gone from every cache.
                        answer = self.ask(name, "step", sequence=str(context), count=1 + self.options.steps)
                        if answer:
                            found = [rounded(value) for value in answer["milliseconds"][1:]]
                            times[name][str(context)].append([index, found])
                            if phase == "decode" and number == 0:
                                self.results[name]["context_tokens"][str(context)] += answer["tokens"]
            self.say(f"{phase}: {number + 1} of {passes} passes")
        return {"times": times, "bytes_per_second": reads}

    def prefill(self) -> dict[str, list[Any]]:
        tokens = self.random_tokens(self.options.prefill)
        times: dict[str, list[Any]] = {name: [] for name in self.active}
        # The first round warms up and does not count.
        for index in range(-1, self.options.prefill_rounds):
            self.gate(f"prefill {index + 1}")
            turns = self.active
            shift = index % max(1, len(turns))
            for name in turns[shift:] + turns[:shift]:
                answer = self.ask(name, "prefill", tokens=tokens)
                if answer and index >= 0:
                    times[name].append([index, rounded(answer["milliseconds"][0])])
        self.say(f"prefill: {self.options.prefill_rounds} rounds")
        return times

    def bandwidth(self) -> dict[str, list[float | None]]:
        """One and four streams, by turns, over as many bytes as the weights have."""
        rates: dict[str, list[float | None]] = {"1": [], "4": []}
        for _ in range(self.options.rounds * self.options.passes):
            for streams in rates:
                rates[streams].append(self.read_memory(self.model_bytes, int(streams)))
        return rates

    # Parts of phases

    def gate(self, what: str) -> None:
        """Waits for an idle machine, not for ever, and keeps a record of how busy it was."""
        found = machine.wait_until_idle(self.options.idle_load, self.options.patience)
        self.loads.append({"before": what, "load": round(found, 3)})

    def read_memory(self, count: int, streams: int) -> float | None:
        """Bytes per second, the median of three; none where nothing can read."""
        if self.reader is None:
            return None
        try:
            found = [
                self.reader.ask("bandwidth", bytes=max(count, 1 << 20), streams=streams)["bytesPerSecond"]
                for _ in range(3)
            ]
        except WorkerFailed as error:
            self.say(f"read bandwidth: {error}")
            self.reader = None
            return None
        return round(statistics.median(found))

    @property
    def model_bytes(self) -> int:
        """Bytes of the parameters, each counted once."""
        weights = self.options.weights
        if weights and weights.exists():
            return safetensors_byte_count(weights)
        return self.options.model.stat().st_size if self.options.model.exists() else 1 << 20

    def cache_bytes(self, context: int) -> int:
        return self.cache_bytes_per_position * context

    def best_peers(self, decode: dict[str, Any], contexts: list[int]) -> list[str]:
        """The fastest other system at each of the contexts."""
        best = []
        for context in contexts:
            medians = {
                name: statistics.median([value for _, found in rounds[str(context)] for value in found])
                for name, rounds in decode["times"].items()
                if name != OURS and name in self.active and rounds[str(context)]
            }
            if medians:
                best.append(min(medians, key=lambda name: medians[name]))
        return list(dict.fromkeys(best))

    def run(self) -> dict[str, Any]:
        options = self.options
        begin = time.monotonic()
        self.prepare()
        try:
            self.load_and_memory()
            self.start_all()
            self.continue_prompt()
            decode = self.decode(self.active, options.contexts, options.passes, "decode")
            ends = [min(options.contexts), max(options.contexts)]
            paired = [name for name in [OURS, *self.best_peers(decode, ends)] if name in self.active]
            pairs = self.decode(paired, ends, options.passes, "pairs")
            prefill = self.prefill()
            bandwidth = self.bandwidth()
        finally:
            for worker in [*self.workers.values(), *([self.reader] if self.reader else [])]:
                worker.close()
        return {
            "format": "statepack-benchmark-1",
            "date": datetime.date.today().isoformat(),
            "seconds": round(time.monotonic() - begin),
            "revision": revision(),
            "python": platform.python_version(),
            "machine": machine.description(),
            "settings": {
                "threads": options.threads,
                "capacity": options.capacity,
                "contexts": options.contexts,
                "passes": options.passes,
                "rounds": options.rounds,
                "steps": options.steps,
                "prefill": options.prefill,
                "prefill_rounds": options.prefill_rounds,
                "warm_up": WARM_UP,
                "fill_block": FILL_BLOCK,
            },
            "model": {"weight_bytes": self.model_bytes, "cache_bytes_per_position": self.cache_bytes_per_position},
            "systems": self.results,
            "decode": decode,
            "pairs": pairs,
            "prefill": prefill,
            "bandwidth": bandwidth,
            "loads": self.loads,
        }


def rounded(milliseconds: float) -> float:
    return round(milliseconds, 4)


def safetensors_byte_count(path: pathlib.Path) -> int:
    """Bytes of all tensors, from the file's header."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    offsets = [tensor["data_offsets"] for name, tensor in header.items() if name != "__metadata__"]
    return sum(end - begin for begin, end in offsets)


def revision() -> str:
    """The commit that was measured; "unknown" outside of a clone."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text: str) -> list[int]:
        return sorted({int(word) for word in text.split(",")})

    def names(text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        unknown = [name for name in found if name not in SYSTEMS]
        if unknown:
            raise argparse.ArgumentTypeError(f"no system {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
        return found

    usual = [name for name, system in SYSTEMS.items() if not system.optional]
    parser.add_argument("--systems", type=names, default=usual, help="which, in the order of the table: a,b,c")
    parser.add_argument("--with", type=names, default=[], dest="also", help="optional systems: a,b")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/bench", help="environments, models, logs")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/bench/model.statepack")
    parser.add_argument("--weights", type=pathlib.Path, help="safetensors to count the parameters' bytes in")
    parser.add_argument("--worker", type=pathlib.Path, default=ROOT / ".build/release/BenchmarkWorker")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/results.json")
    parser.add_argument("--no-install", action="store_true", help="report what is missing, make nothing")
    parser.add_argument("--only-prepare", action="store_true", help="make environments and models, measure nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--contexts", type=numbers, default=[128, 512, 1024, 2000])
    parser.add_argument("--passes", type=int, default=3, help="how often contexts are filled in anew")
    parser.add_argument("--rounds", type=int, default=5, help="turns of all systems in a pass")
    parser.add_argument("--steps", type=int, default=8, help="steps of a system in a turn")
    parser.add_argument("--prefill", type=int, default=512, help="tokens")
    parser.add_argument("--prefill-rounds", type=int, default=9)
    parser.add_argument("--prompt-steps", type=int, default=32, help="greedy tokens that have to agree")
    parser.add_argument("--load-runs", type=int, default=4, help="the first of them only warms the page cache")
    parser.add_argument("--idle-load", type=float, default=0.05, help="share of the cores that counts as idle")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for that")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one answer may take")
    options = parser.parse_args(arguments)
    options.systems = list(dict.fromkeys([*options.systems, *options.also]))
    longest = max(options.contexts) + options.rounds * (1 + options.steps)
    if longest > options.capacity:
        parser.error(f"{longest} positions do not fit into a capacity of {options.capacity}")
    if min(options.contexts) <= WARM_UP:
        parser.error(f"a context has more than {WARM_UP} positions")
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    # So that workers are closed, as they are on an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runner = Runner(options)
    if options.only_prepare:
        runner.prepare()
        try:
            runner.workshop.python("plot")
        except Unavailable as error:
            runner.say(f"no plot: {error}")
        return 0
    results = runner.run()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    runner.say(f"wrote {options.output}")
    return 0 if runner.active else 1


if __name__ == "__main__":
    sys.exit(main())
