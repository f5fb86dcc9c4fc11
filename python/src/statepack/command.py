"""The command `statepack` of an installed package: runs the binary that came with it.

Imports neither torch nor anything else that is slow: a hook pays for Python's start and no more.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

from . import _codes as codes
from .diagnostics import Diagnostic

BINARY = pathlib.Path(__file__).with_name("bin") / "statepack"
MODEL_FILE = re.compile(r"\.(contract\.json|pb|statepack)$")


def main() -> int:
    """Becomes the binary, with the same arguments; returns an exit code only where that is not possible."""
    return become("statepack", *sys.argv[1:])


def contract_hook() -> int:
    """`statepack contract` for pre-commit, which names the files that a commit changes but none that it deletes.

    Whoever is left beside a deleted file is checked as well, or a contract could be deleted unnoticed.
    """
    arguments = sys.argv[1:]
    folders = {
        os.path.dirname(name)
        for name in _git("diff", "--cached", "--name-only", "--no-renames", "-z", "--diff-filter=D")
        if MODEL_FILE.search(name)
    }
    if folders:
        tracked = [name for name in _git("ls-files", "-z") if MODEL_FILE.search(name)]
        arguments += [name for name in tracked if os.path.dirname(name) in folders and name not in arguments]
    if all(argument.startswith("-") for argument in arguments):
        return 0
    return become("statepack", "contract", *arguments)


def _git(*arguments: str) -> list[str]:
    """What git lists, none where this is no repository."""
    run = subprocess.run(["git", *arguments], capture_output=True, check=False)
    return [os.fsdecode(name) for name in run.stdout.split(b"\0") if name]


def become(*arguments: str) -> int:
    try:
        os.execv(BINARY, arguments)
    except FileNotFoundError:
        found = "this installation has none"
    except OSError as error:
        found = f"{BINARY}: {error.strerror}"
    diagnostic = Diagnostic(
        codes.TOOLS_NOT_INSTALLED,
        "the command `statepack` has no program to run",
        expected="the binary that `make wheel` packs",
        found=found,
        hint="install this machine's wheel; from a clone, install where Swift is, without STATEPACK_WITHOUT_TOOLS",
    )
    print(diagnostic, file=sys.stderr)
    return codes.EXIT_CODES[codes.TOOLS_NOT_INSTALLED]
