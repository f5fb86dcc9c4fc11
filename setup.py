"""Builds the package with the command `statepack` in it: one binary that needs nothing but libc, libm and libstdc++.

`pip install .` runs this, and so does pre-commit. It calls `swift build`; three variables change that:

    STATEPACK_BINARY=PATH        take this binary instead of building one
    STATEPACK_WITHOUT_TOOLS=1    install the exporter alone
    STATEPACK_SCRATCH_PATH=PATH  where Swift's build tree goes (default: .build/wheel)

`make wheel` packs the same for machines that have no Swift.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = pathlib.Path(__file__).resolve().parent
SWIFT = os.environ.get("SWIFT", "swift")
GIVEN_BINARY = os.environ.get("STATEPACK_BINARY")
WITHOUT_TOOLS = os.environ.get("STATEPACK_WITHOUT_TOOLS", "") not in ("", "0")
# What a wheel may not ask of the machine it is installed on.
STATIC_LIBRARIES = {"libprotobuf-c": "libprotobuf-c-dev", "libcrypto": "libssl-dev"}


def stop(reason: str) -> SystemExit:
    """One line: pip prints it below a screen of its own."""
    return SystemExit(f"statepack: {reason}")


class BuildTools(Command):
    """Puts the binary beside the package's modules, as setuptools does with an extension module."""

    description = "build the command statepack with Swift"
    user_options: ClassVar[list[tuple[str, str, str]]] = []
    # Set by `pip install -e`: the binary then goes to the source folder.
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str = None  # type: ignore[assignment] # what set_undefined_options takes for undefined

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        binary = pathlib.Path(GIVEN_BINARY) if GIVEN_BINARY else built_binary()
        if not os.access(binary, os.X_OK) or not binary.is_file():
            raise stop(f"{binary} is no program (STATEPACK_BINARY names a built `statepack`)")
        destination = pathlib.Path(self.source if self.editable_mode else self.target)
        destination.parent.mkdir(parents=True, exist_ok=True)
        # Beside it first: the old binary may be running.
        fresh = destination.with_name("statepack.new")
        shutil.copyfile(binary, fresh)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(destination)
        print(f"statepack: {binary}, {destination.stat().st_size / 1e6:.1f} MB", flush=True)

    @property
    def source(self) -> str:
        return str(pathlib.Path("python", "src", "statepack", "bin", "statepack"))

    @property
    def target(self) -> str:
        return str(pathlib.Path(self.build_lib, "statepack", "bin", "statepack"))

    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return [self.target]

    def get_output_mapping(self) -> dict[str, str]:
        return {self.target: self.source} if self.editable_mode else {}


class Build(build):
    # Last: build_py makes the package's folder anew.
    sub_commands: ClassVar = [*build.sub_commands, *([] if WITHOUT_TOOLS else [("build_tools", None)])]

    def run(self) -> None:
        if not WITHOUT_TOOLS and not GIVEN_BINARY:
            # Before anything is copied, so that the line is not buried.
            require_swift()
        # An earlier build may have left modules here that are gone by now.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        # Any Python 3 runs it; the platform is the binary's.
        return ("py3", "none", super().get_tag()[2])


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        # A binary belongs into platlib, and its wheel is for one platform.
        return not WITHOUT_TOOLS


def require_swift() -> None:
    if shutil.which(SWIFT) is None:
        raise stop(
            "there is no Swift here to build the command with: install the wheel that `make wheel` makes where there "
            "is one (pip install statepack-*.whl), or the exporter alone with STATEPACK_WITHOUT_TOOLS=1"
        )


def built_binary() -> pathlib.Path:
    """Calls `swift build`; a second call is incremental. Cost: minutes, and some 80 MB, the first time."""
    require_swift()
    scratch = pathlib.Path(os.environ.get("STATEPACK_SCRATCH_PATH") or ROOT / ".build" / "wheel").resolve()
    command = [SWIFT, "build", "-c", "release", "--product", "statepack", "--scratch-path", str(scratch)]
    if sys.platform != "darwin":
        # On Apple's systems the Swift runtime is part of the system.
        command += ["--static-swift-stdlib", "-Xlinker", "-s"]
    folders = [str(static_libraries(scratch)), os.environ.get("PKG_CONFIG_PATH", "")]
    environment = {**os.environ, "PKG_CONFIG_PATH": ":".join(filter(None, folders))}
    print("statepack: " + " ".join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
        raise stop("swift build failed; its messages are above")
    folder = subprocess.check_output([*command, "--show-bin-path"], cwd=ROOT, env=environment, text=True)
    return pathlib.Path(folder.strip(), "statepack")


def static_libraries(scratch: pathlib.Path) -> pathlib.Path:
    """Makes a folder of .pc files that find the static libraries and nothing else.

    A linker that sees libcrypto.so beside libcrypto.a takes the former, hence a folder that holds the .a alone.
    """
    folder = scratch / "static-libraries"
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for name, package in STATIC_LIBRARIES.items():
        archive = static_library(name)
        if archive is None:
            missing.append(f"{name}.a (Debian: {package})")
            continue
        link = folder / archive.name
        link.unlink(missing_ok=True)
        link.symlink_to(archive)
        headers = pkg_config("--cflags", name)
        description = f"Name: {name}\nDescription: the static library\nVersion: 0\n"
        description += f"Cflags: {headers}\nLibs: -L{folder} -l{name.removeprefix('lib')}\n"
        file = folder / f"{name}.pc"
        # Written again, it would make SwiftPM plan again.
        if not file.exists() or file.read_text() != description:
            file.write_text(description)
    if missing:
        raise stop(
            f"not found: {', '.join(missing)}; install them, or name a binary built otherwise in STATEPACK_BINARY"
        )
    return folder


def static_library(name: str) -> pathlib.Path | None:
    folders = [pkg_config("--variable=libdir", name), "/usr/lib", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    candidates = [pathlib.Path(folder, f"{name}.a") for folder in folders if folder]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def pkg_config(*arguments: str) -> str:
    try:
        found = subprocess.run(["pkg-config", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


setup(
    distclass=Package,
    cmdclass={"build": Build, "build_tools": BuildTools, "bdist_wheel": Wheel},
    # build/ holds what make and the tests make.
    options={"build": {"build_base": "build/python"}},
)
