"""The name that somebody probably meant. The rule is that of the Swift tools (NearestName.swift)."""

from __future__ import annotations

from collections.abc import Iterable


def nearest_name(word: str, candidates: Iterable[str]) -> str | None:
    """The closest candidate at an edit distance of at most a third of the longer name."""
    best: tuple[int, str] | None = None
    for candidate in candidates:
        limit = max(1, max(len(word), len(candidate)) // 3)
        folded = edit_distance(word.lower(), candidate.lower())
        if candidate == word or folded > limit:
            continue
        distance = edit_distance(word, candidate) + folded
        if best is None or distance < best[0]:
            best = (distance, candidate)
    return best[1] if best else None


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours; names are cut at 128 characters."""
    a, b = a[:128], b[:128]
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        current = [i]
        for j, right in enumerate(b, 1):
            distance = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                distance = min(distance, before[j - 2] + 1)
            current.append(distance)
        before, previous = previous, current
    return previous[-1]
