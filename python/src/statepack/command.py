"""The command `statepack` of an installed package: runs the binary that came with it.

Imports neither torch nor anything else that is slow: a hook pays for Python's start and no more.
"""

from __future__ import annotations

import os
import pathlib
import sys

from . import _codes as codes
from .diagnostics import Diagnostic

BINARY = pathlib.Path(__file__).with_name("bin") / "statepack"


def main() -> int:
    """Becomes the binary, with the same arguments; returns an exit code only where that is not possible."""
    try:
        os.execv(BINARY, ["statepack", *sys.argv[1:]])
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
