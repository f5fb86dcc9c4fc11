"""The texts of refusals, compared character for character with files that people read.

`texts/TEST_FILE.txt` has a heading `== TEST` for each refusal and its text below. STATEPACK_UPDATE_TEXTS=1 writes
what the tests produce; the difference is then read before it is committed. schemas/check_messages.py looks for every
message and for the examples of errors.json in these files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "texts"
# Some refusals quote torch, whose words change from release to release: requirements-test.txt pins this one.
TORCH = "2.13."

_counts: dict[str, int] = {}
_last_test = ""


def check(text: str) -> None:
    """Fails when `text` is not the one on file for the running test (its first refusal, its second, ...)."""
    global _last_test
    node, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    if node != _last_test:
        _counts.clear()
        _last_test = node
    file, _, name = node.partition("::")
    _counts[node] = _counts.get(node, 0) + 1
    if _counts[node] > 1:
        name += f" #{_counts[node]}"
    _compare(Path(file).stem, name, normal(text))


def normal(text: str) -> str:
    """Without what differs from run to run: folders, and the lines of test files, which move when they are edited."""
    text = re.sub(r"(?<=\W)/[^\s:`']*/(?=[^\s/:`']+)", "FOLDER/", text)
    return re.sub(r"\b(test_\w+|stateful_modules|conftest)\.py:\d+", "model.py:12", text)


def _compare(file: str, name: str, text: str) -> None:
    path = FOLDER / f"{file}.txt"
    sections = _read(path)
    if os.environ.get("STATEPACK_UPDATE_TEXTS") and sections.get(name) != text:
        sections[name] = text
        body = "\n".join(f"== {key}\n{sections[key]}\n" for key in sorted(sections))
        FOLDER.mkdir(exist_ok=True)
        path.write_text(body, encoding="utf-8")
    elif torch.__version__.startswith(TORCH):
        assert name in sections, f"{path.name} has no text `{name}`: run pytest with STATEPACK_UPDATE_TEXTS=1"
        assert text == sections[name]


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    sections = {}
    for section in ("\n\n" + path.read_text(encoding="utf-8")).split("\n\n== ")[1:]:
        name, _, text = section.partition("\n")
        sections[name] = text.rstrip("\n")
    return sections
