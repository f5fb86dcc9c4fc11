"""What the machine is, and whether it does anything else."""

from __future__ import annotations

import os
import pathlib
import platform
import time
from typing import Any


def description() -> dict[str, Any]:
    """Without anything that tells one machine of a kind from another."""
    processor = platform.processor() or platform.machine()
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    flags = next((line for line in read("/proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    extensions = ["avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile"]
    memory = next((line.split()[1] for line in read("/proc/meminfo").splitlines() if line.startswith("MemTotal")), "0")
    return {
        "processor": processor,
        "extensions": [name for name in extensions if f" {name}" in flags],
        "cores": os.cpu_count(),
        "memory_bytes": 1024 * int(memory),
        "system": f"{platform.system()} {platform.machine()}",
    }


def read(path: str) -> str:
    file = pathlib.Path(path)
    return file.read_text() if file.exists() else ""


def ticks() -> tuple[int, int]:
    """Busy time, which includes time that the host gave to others, and all time, of all cores."""
    fields = [int(value) for value in (read("/proc/stat").splitlines() or ["cpu 0 0 0 0 0 0 0 0"])[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def load(seconds: float) -> float:
    """The share of all cores that is busy during that time."""
    begin = ticks()
    time.sleep(seconds)
    end = ticks()
    return (end[0] - begin[0]) / max(1, end[1] - begin[1])


def wait_until_idle(limit: float, patience: float) -> float:
    """Waits until the load is below the limit, but not for ever; returns the load that was seen last."""
    end = time.monotonic() + patience
    while True:
        found = load(0.25)
        if found <= limit or time.monotonic() >= end:
            return found
