"""What the tests of the wheel and of the hooks share: a copy of the project, the wheel, environments without torch."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What a checkout never has, where git is not there to say so.
_MADE = (
    ".build",
    ".git",
    ".venv",
    "build",
    "__pycache__",
    ".hypothesis",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
)


def run(
    *command: object, cwd: pathlib.Path, environment: Mapping[str, str] | None = None, expect: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Runs a command with both streams in `stdout`, in the order written, and checks its exit code."""
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=dict(environment) if environment is not None else clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if expect is not None:
        assert result.returncode == expect, f"{command}: {result.returncode}\n{result.stdout}"
    return result


def clean_environment(**changes: str) -> dict[str, str]:
    """This process's environment without what points to this checkout or to a repository around the test."""
    names = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in names and not name.startswith(("GIT_", "STATEPACK_", "PRE_COMMIT"))
    }
    return {**kept, **changes}


def wheel() -> pathlib.Path:
    """The wheel that `make wheel` made."""
    found = sorted((ROOT / "build" / "wheel").glob("statepack-*.whl"))
    assert len(found) == 1, f"run `make wheel` first; in build/wheel: {found}"
    return found[0]


def environment_with(package: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A virtual environment with this wheel and nothing else, from no index; returns its bin folder."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", package, cwd=folder.parent)
    return folder / "bin"


def without_swift(**changes: str) -> dict[str, str]:
    """An environment whose PATH has what Debian brings, and no Swift."""
    return clean_environment(PATH="/usr/bin:/bin", SWIFT="swift", **changes)


def copy_of_project(folder: pathlib.Path) -> pathlib.Path:
    """What a clone would have: committed files and new ones, as they are now."""
    folder.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    else:
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
        names = [
            str(path) for path in found if not any(part in _MADE or part.startswith(".venv") for part in path.parts)
        ]
    for name in names:
        source, target = ROOT / name, folder / name
        if source.is_file() and not source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return folder
