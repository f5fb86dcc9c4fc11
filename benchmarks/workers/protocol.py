"""How a worker answers the controller: one line of JSON for one line of JSON, as benchmarks/README.md lists them."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol


class System(Protocol):
    """What a peer has to be able to do."""

    def load(self) -> dict[str, str]:
        """Opens the model and returns facts about it: versions, settings, number types."""

    def fill(self, sequence: str, tokens: list[int], block: int) -> int:
        """Starts a sequence anew with these tokens, `block` at a time, and returns the most likely next token."""

    def step(self, sequence: str) -> int:
        """Feeds the token that came last and returns the next one."""

    def prepare_prefill(self) -> None:
        """Makes an empty sequence, outside of what is timed."""

    def prefill(self, tokens: list[int]) -> int:
        """Feeds all tokens to that sequence in one call and returns the most likely next token."""


def answer(system: System, request: dict[str, Any]) -> dict[str, Any]:
    command = request["command"]
    begin = time.perf_counter()
    if command == "load":
        facts = system.load()
        return {"facts": facts, "milliseconds": [1000 * (time.perf_counter() - begin)]}
    if command == "fill":
        return {"tokens": [system.fill(request["sequence"], request["tokens"], request["block"])]}
    if command == "step":
        times, tokens = [], []
        for _ in range(request["count"]):
            begin = time.perf_counter()
            tokens.append(system.step(request["sequence"]))
            times.append(1000 * (time.perf_counter() - begin))
        return {"milliseconds": times, "tokens": tokens}
    if command == "prefill":
        system.prepare_prefill()
        begin = time.perf_counter()
        token = system.prefill(request["tokens"])
        return {"milliseconds": [1000 * (time.perf_counter() - begin)], "tokens": [token]}
    raise ValueError(f"unknown command {command}")


def serve(system: System) -> None:
    """Answers until standard input ends. What libraries print goes to standard error, never among the answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = answer(system, json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)
