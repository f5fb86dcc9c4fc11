"""What the samples of a run say: medians, spreads, ratios of pairs, and the targets. Needs no package."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

from systems import OURS

#: A sample is [round, value]; values of a round were measured within seconds of each other.
Rounds = list[list[Any]]


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median, and the values that a quarter of the samples lie below and above."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Iterable[float]) -> Spread | None:
        found = sorted(values)
        if not found:
            return None
        if len(found) == 1:
            return Spread(found[0], found[0], found[0])
        low, median, high = statistics.quantiles(found, n=4, method="inclusive")
        return Spread(median, low, high)


@dataclasses.dataclass(frozen=True)
class Target:
    """A claim, what was found, and the bound."""

    claim: str
    found: float | None
    bound: float
    #: The bound is the most or the least that holds.
    at_most: bool = True

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        if (self.found <= self.bound) if self.at_most else (self.found >= self.bound):
            return "met"
        missing = self.found / self.bound - 1 if self.at_most else 1 - self.found / self.bound
        return f"missed by {100 * missing:.0f} %" if missing >= 0.005 else "missed by less than 1 %"


class Figures:
    def __init__(self, results: dict[str, Any]) -> None:
        self.results = results
        self.contexts: list[int] = results["settings"]["contexts"]
        self.names = [name for name, system in results["systems"].items() if system["status"] == "measured"]

    # Steps

    def rounds(self, name: str, context: int, phase: str = "decode") -> dict[int, float]:
        """The median step of each round."""
        samples: Rounds = self.results[phase]["times"].get(name, {}).get(str(context), [])
        return {index: statistics.median(values) for index, values in samples if values}

    def step(self, name: str, context: int) -> Spread | None:
        samples: Rounds = self.results["decode"]["times"].get(name, {}).get(str(context), [])
        return Spread.of(value for _, values in samples for value in values)

    def step_ratio(self, name: str, context: int, phase: str = "decode") -> float | None:
        """How many times as long as Statepack's a step takes: the median over the rounds."""
        return median_ratio(self.rounds(name, context, phase), self.rounds(OURS, context, phase))

    def growth(self, name: str) -> float | None:
        """Milliseconds for 1,000 further positions, from the shortest to the longest context."""
        first, last = self.contexts[0], self.contexts[-1]
        found = paired(self.rounds(name, last), self.rounds(name, first), lambda long, short: long - short)
        return None if first == last or not found else 1000 * statistics.median(found) / (last - first)

    # Prefill, load, memory

    def prefill_rounds(self, name: str) -> dict[int, float]:
        return dict(self.results["prefill"].get(name, []))

    def prefill(self, name: str) -> Spread | None:
        return Spread.of(self.prefill_rounds(name).values())

    def prefill_ratio(self, name: str) -> float | None:
        return median_ratio(self.prefill_rounds(name), self.prefill_rounds(OURS))

    def load(self, name: str) -> Spread | None:
        return Spread.of(self.results["systems"][name].get("load_ms", []))

    # Tokens

    def agreement(self, name: str) -> tuple[int, int] | None:
        """How many of the first greedy tokens behind the prompt are the reference's, and how many there are."""
        expected = self.reference_tokens("prompt_tokens")
        found = self.results["systems"][name].get("prompt_tokens")
        if not expected or not found:
            return None
        return common_prefix(expected, found), len(expected)

    @property
    def reference(self) -> str | None:
        """The system whose tokens the others have to give: PyTorch where it takes part."""
        order = ["pytorch-dynamic", "pytorch-static", *self.names]
        return next((name for name in order if name in self.names), None)

    def reference_tokens(self, kind: str) -> list[int]:
        return self.results["systems"][self.reference].get(kind, []) if self.reference else []

    def random_agreement(self, name: str) -> dict[int, tuple[int, int]]:
        """The same behind each of the random contexts. Near ties may part the systems there for good."""
        if not self.reference:
            return {}
        expected = self.results["systems"][self.reference].get("context_tokens", {})
        found = self.results["systems"][name].get("context_tokens", {})
        return {
            context: (common_prefix(expected[str(context)], found[str(context)]), len(expected[str(context)]))
            for context in self.contexts
            if str(context) in expected and str(context) in found
        }

    # The machine

    def bandwidth(self, streams: int) -> Spread | None:
        """Bytes per second over a buffer of the size of the weights."""
        return Spread.of(rate for rate in self.results["bandwidth"][str(streams)] if rate)

    def read_rates(self, context: int, phase: str) -> dict[int, float]:
        rates = self.results[phase]["bytes_per_second"].get(str(context), [])
        return {index: rate for index, rate in enumerate(rates) if rate}

    def step_bytes(self, context: int) -> int:
        """What a step has to read: every weight, and every valid row of the caches."""
        model = self.results["model"]
        return int(model["weight_bytes"] + model["cache_bytes_per_position"] * context)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.names if name != OURS]

    def best_peer(self, context: int) -> str | None:
        found = {name: spread.median for name in self.peers if (spread := self.step(name, context))}
        return min(found, key=lambda name: found[name]) if found else None

    def best_prefill_peer(self) -> str | None:
        found = {name: spread.median for name in self.peers if (spread := self.prefill(name))}
        return min(found, key=lambda name: found[name]) if found else None

    # Targets

    def targets(self) -> list[Target]:
        """The float32 targets, each from values that alternated: those of the phase `pairs`."""
        first, last = self.contexts[0], self.contexts[-1]
        return [
            self.decode_target(first, 0.90),
            self.decode_target(last, 0.75),
            self.bandwidth_target(first),
            self.bandwidth_target(last),
            self.growth_target(first, last),
            self.prefill_target(),
        ]

    def label(self, name: str | None) -> str:
        return self.results["systems"][name]["label"] if name else "a peer"

    def decode_target(self, context: int, bound: float) -> Target:
        peer = self.best_peer(context)
        found = median_ratio(self.rounds(OURS, context, "pairs"), self.rounds(peer, context, "pairs")) if peer else None
        return Target(f"step at {context}, of that of {self.label(peer)}", found, bound)

    def bandwidth_target(self, context: int) -> Target:
        rates = self.read_rates(context, "pairs")
        limits = {index: 1000 * self.step_bytes(context) / rate for index, rate in rates.items()}
        found = median_ratio(self.rounds(OURS, context, "pairs"), limits)
        return Target(f"step at {context}, of reading its weights and cache with four streams", found, 1.12)

    def growth_target(self, first: int, last: int) -> Target:
        grown = self.step_bytes(last) - self.step_bytes(first)
        rates = self.read_rates(last, "pairs")
        steps = paired(
            self.rounds(OURS, last, "pairs"), self.rounds(OURS, first, "pairs"), lambda long, short: long - short
        )
        limit = 1000 * grown / statistics.median(rates.values()) if rates and grown else None
        found = statistics.median(steps) / limit if steps and limit else None
        return Target(f"growth from {first} to {last}, of reading the cache rows in between", found, 1.5)

    def prefill_target(self) -> Target:
        peer = self.best_prefill_peer()
        found = median_ratio(self.prefill_rounds(peer), self.prefill_rounds(OURS)) if peer else None
        count = self.results["settings"]["prefill"]
        return Target(f"rate of prefilling {count}, of that of {self.label(peer)}", found, 1.0, at_most=False)


def paired(first: dict[int, float], second: dict[int, float], combine: Any) -> list[float]:
    """Combines the values of the rounds that both have."""
    return [combine(first[index], second[index]) for index in sorted(first.keys() & second.keys())]


def median_ratio(first: dict[int, float], second: dict[int, float]) -> float | None:
    found = paired(first, second, lambda one, other: one / other)
    return statistics.median(found) if found else None


def common_prefix(first: list[int], second: list[int]) -> int:
    """How many tokens are the same before the first that differs."""
    shorter = min(len(first), len(second))
    return next((index for index in range(shorter) if first[index] != second[index]), shorter)
