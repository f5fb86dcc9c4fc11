"""Times `convert` beside copying the same weights: reading and writing the file in blocks of 1 MiB, and fsync.

    python benchmarks/convert.py build/llama/exported.pb [--repetitions 3] [--json]

Both take turns, and find the input in memory (`--cache warm`) or on the disk alone (`--cache cold`). convert runs under
a limit for its private memory; how much of it was in use at once is measured. Needs as much space on the disk again as
the weights take, and removes what it wrote.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

BLOCK = 1 << 20
#: The bound of private memory that the project keeps to, whatever the weights weigh.
MEMORY_LIMIT = 1 << 30
CONVERT = pathlib.Path(__file__).parent.parent / ".build/release/convert"


def copied(source: pathlib.Path, target: pathlib.Path) -> float:
    """Seconds to copy the file and to have it on the disk."""
    start = time.monotonic()
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while block := reader.read(BLOCK):
            writer.write(block)
        os.fsync(writer.fileno())
    seconds = time.monotonic() - start
    target.unlink()
    return seconds


@dataclasses.dataclass
class Conversion:
    seconds: float
    #: Most bytes of memory that belonged to no file, as seen every few milliseconds. None off Linux.
    anonymous: int | None
    length: int


def anonymous_bytes(process: int) -> int | None:
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


def with_little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))


def converted(program: pathlib.Path, target: pathlib.Path, convert: pathlib.Path) -> Conversion:
    start = time.monotonic()
    process = subprocess.Popen(
        [convert, program, "-o", target],
        stdout=subprocess.DEVNULL,
        preexec_fn=with_little_memory,
    )
    peak: int | None = None
    while process.poll() is None:
        if (now := anonymous_bytes(process.pid)) is not None:
            peak = max(peak or 0, now)
        time.sleep(0.005)
    seconds = time.monotonic() - start
    if process.returncode != 0:
        raise SystemExit(f"convert ended with {process.returncode}")
    length = target.stat().st_size
    target.unlink()
    return Conversion(seconds, peak, length)


def prepare(files: list[pathlib.Path], cache: str) -> None:
    """Brings the files into memory, or out of it. Nothing is left to write to the disk."""
    os.sync()
    for path in files:
        with path.open("rb", buffering=0) as file:
            if cache == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(BLOCK):
                    pass


def measure(program: pathlib.Path, repetitions: int, cache: str, convert: pathlib.Path) -> dict[str, object]:
    weights = program.with_suffix(".safetensors")
    copies: list[float] = []
    conversions: list[Conversion] = []
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        for _ in range(repetitions):
            prepare([weights, program], cache)
            copies.append(copied(weights, pathlib.Path(folder, "copy")))
            prepare([weights, program], cache)
            conversions.append(converted(program, pathlib.Path(folder, "model.statepack"), convert))
    copy = statistics.median(copies)
    conversion = statistics.median(one.seconds for one in conversions)
    return {
        "weightsBytes": weights.stat().st_size,
        "bundleBytes": conversions[0].length,
        "cache": cache,
        "repetitions": repetitions,
        "copySeconds": copies,
        "convertSeconds": [one.seconds for one in conversions],
        "ratio": conversion / copy,
        "anonymousBytes": max((one.anonymous for one in conversions if one.anonymous is not None), default=None),
        "anonymousLimit": MEMORY_LIMIT,
    }


def text(report: dict[str, object]) -> str:
    copies, conversions = report["copySeconds"], report["convertSeconds"]
    assert isinstance(copies, list)
    assert isinstance(conversions, list)
    anonymous = report["anonymousBytes"]
    lines = [
        f"weights    {report['weightsBytes']} bytes, {report['cache']} cache, medians of {report['repetitions']}",
        f"copy       {statistics.median(copies):.2f} s ({min(copies):.2f} to {max(copies):.2f})",
        f"convert    {statistics.median(conversions):.2f} s ({min(conversions):.2f} to {max(conversions):.2f})",
        f"ratio      {report['ratio']:.2f}",
    ]
    if isinstance(anonymous, int):
        lines.append(f"anonymous  {anonymous / 2**20:.0f} MiB at most")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="an exported.pb with its weights beside it")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cache", choices=["warm", "cold"], default="warm")
    parser.add_argument("--convert", type=pathlib.Path, default=CONVERT, help="the program to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = measure(options.program, options.repetitions, options.cache, options.convert)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else text(report) + "\n")


if __name__ == "__main__":
    main()
