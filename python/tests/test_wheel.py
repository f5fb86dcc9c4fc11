"""The wheel runs where there is neither Swift nor a compiler nor torch; building it elsewhere says what is missing.

Needs the wheel that `make wheel` makes.
"""

from __future__ import annotations

import email
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
import tomllib

import packaged
import statepack
from packaged import ROOT, run
from statepack import command


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The bin folder of an environment with the wheel alone."""
    return packaged.environment_with(packaged.wheel(), tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return packaged.copy_of_project(tmp_path_factory.mktemp("project") / "statepack")


def pip_wheel(project: pathlib.Path, folder: pathlib.Path, environment: dict[str, str], expect: int = 0) -> str:
    # The hooks' tests build in isolation, as a user does; here setuptools is the one that is installed.
    arguments = ["wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, project]
    return run(sys.executable, "-m", "pip", *arguments, cwd=folder, environment=environment, expect=expect).stdout


def metadata(wheel: pathlib.Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(f"statepack-{statepack.__version__}.dist-info/{name}"))


def test_the_wheel_is_for_any_python_3_on_one_platform() -> None:
    wheel = packaged.wheel()
    assert re.fullmatch(rf"statepack-{statepack.__version__}-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    described = metadata(wheel, "WHEEL")
    assert described["Root-Is-Purelib"] == "false"
    assert described.get_all("Tag") == [wheel.name.removeprefix(f"statepack-{statepack.__version__}-")[:-4]]
    assert wheel.stat().st_size < 16_000_000


def test_auditwheel_derives_the_tag_that_the_name_has() -> None:
    wheel = packaged.wheel()
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=ROOT).stdout
    platform = wheel.name.rsplit("-", 1)[1].removesuffix(".whl")
    assert f'This constrains the platform tag to "{platform}"' in " ".join(shown.split())


def test_the_wheel_asks_for_no_package() -> None:
    required = metadata(packaged.wheel(), "METADATA").get_all("Requires-Dist") or []
    assert [entry for entry in required if "extra ==" not in entry] == []
    assert any(entry.startswith("torch") and 'extra == "export"' in entry for entry in required)


def test_the_wheel_has_the_exporter_and_the_binary_and_nothing_else() -> None:
    with zipfile.ZipFile(packaged.wheel()) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        binary = archive.getinfo("statepack/bin/statepack")
    sources = {f"statepack/{path.name}" for path in (ROOT / "python/src/statepack").iterdir() if path.is_file()}
    assert {name for name in names if name.startswith("statepack/")} == sources | {"statepack/bin/statepack"}
    assert all(name.startswith((f"statepack-{statepack.__version__}.dist-info/", "statepack/")) for name in names)
    assert binary.external_attr >> 16 & 0o111 == 0o111


def test_the_binary_needs_only_libraries_that_every_machine_has(installed: pathlib.Path) -> None:
    (binary,) = installed.parent.glob("lib/python*/site-packages/statepack/bin/statepack")
    needed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    libraries = {re.sub(r"\.so.*", "", pathlib.Path(line.split()[0]).name) for line in needed.splitlines()}
    assert libraries - {"linux-vdso", "libgcc_s"} <= {"libc", "libm", "libstdc++"} | {
        name for name in libraries if name.startswith("ld-linux")
    }
    # No table of symbols for a debugger: it would double the size.
    assert b".symtab" not in binary.read_bytes()


def test_the_installed_command_converts_and_validates_without_swift_and_torch(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    environment = {"PATH": str(installed)}
    exported = ROOT / "examples/01-stateful-transformer/exported.pb"
    assert run(installed / "statepack", "--version", cwd=tmp_path, environment=environment).stdout.startswith(
        f"statepack {statepack.__version__} (bundle format 1."
    )
    run(installed / "statepack", "convert", exported, "-o", "m.statepack", cwd=tmp_path, environment=environment)
    report = run(installed / "statepack", "validate", "m.statepack", cwd=tmp_path, environment=environment).stdout
    assert re.search(r"^verdict +holds$", report, re.MULTILINE)
    # The exit code is the binary's own.
    run(installed / "statepack", "validate", "absent", cwd=tmp_path, environment=environment, expect=3)


def test_the_installed_package_is_importable_and_its_exporter_names_the_extra(
    installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert run(installed / "python", "-c", "import statepack; print(statepack.__version__)", cwd=tmp_path).stdout == (
        f"{statepack.__version__}\n"
    )
    refused = run(installed / "python", "-m", "statepack", "export", "a.py:build", cwd=tmp_path, expect=2).stdout
    assert "error[E0027]: exporting needs the package `torch`" in refused


def test_without_swift_the_build_stops_with_one_line_that_names_the_wheel(
    project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    output = pip_wheel(project, tmp_path, packaged.without_swift(), expect=1)
    assert (
        "statepack: there is no Swift here to build the command with: install the wheel that `make wheel` makes where "
        "there is one (pip install statepack-*.whl), or the exporter alone with STATEPACK_WITHOUT_TOOLS=1\n"
    ) in output
    assert "Traceback" not in output
    assert list(tmp_path.glob("*.whl")) == []


def test_a_binary_that_is_none_is_refused(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    environment = packaged.without_swift(STATEPACK_BINARY="/nowhere/statepack")
    output = pip_wheel(project, tmp_path, environment, expect=1)
    assert "statepack: /nowhere/statepack is no program (STATEPACK_BINARY names a built `statepack`)\n" in output


def test_the_exporter_alone_is_one_wheel_for_every_platform_and_its_command_says_what_is_missing(
    project: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pip_wheel(project, tmp_path, packaged.without_swift(STATEPACK_WITHOUT_TOOLS="1"))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"statepack-{statepack.__version__}-py3-none-any.whl"
    installed = packaged.environment_with(wheel, tmp_path / "venv")
    refused = run(installed / "statepack", "validate", "m.statepack", cwd=tmp_path, expect=2)
    assert refused.stdout == (
        "error[E0770]: the command `statepack` has no program to run\n"
        "  expected: the binary that `make wheel` packs\n"
        "  found:    this installation has none\n"
        "  hint:     install this machine's wheel; from a clone, install where Swift is, without "
        "STATEPACK_WITHOUT_TOOLS\n"
    )


def test_a_binary_for_another_machine_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "statepack"
    binary.write_bytes(b"\x7fELF of another machine")
    binary.chmod(0o755)
    monkeypatch.setattr(command, "BINARY", binary)
    assert command.main() == 2
    assert capsys.readouterr().err == (
        "error[E0770]: the command `statepack` has no program to run\n"
        "  expected: the binary that `make wheel` packs\n"
        f"  found:    {binary}: Exec format error\n"
        "  hint:     install this machine's wheel; from a clone, install where Swift is, without "
        "STATEPACK_WITHOUT_TOOLS\n"
    )


def test_an_editable_installation_has_the_command(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    binary = shutil.copy(_binary(tmp_path), tmp_path / "prebuilt")
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "-e", project,
        cwd=tmp_path, environment=packaged.without_swift(STATEPACK_BINARY=str(binary)),
    )  # fmt: skip
    home = run(python, "-c", "import statepack; print(statepack.__file__)", cwd=tmp_path).stdout.strip()
    assert pathlib.Path(home) == project / "python/src/statepack/__init__.py"
    assert "statepack" in run(tmp_path / "venv/bin/statepack", "--version", cwd=tmp_path).stdout


def _binary(folder: pathlib.Path) -> pathlib.Path:
    """The binary out of the wheel."""
    with zipfile.ZipFile(packaged.wheel()) as archive:
        path = pathlib.Path(archive.extract("statepack/bin/statepack", folder / "unpacked"))
    path.chmod(0o755)
    return path


def test_the_source_distribution_has_what_swift_builds_from(project: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, project, cwd=tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        prefix = f"statepack-{statepack.__version__}/"
        names = {name.removeprefix(prefix) for name in packed.getnames()}
    committed = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    kinds = ("Package.swift", "Sources/", "Tests/", "examples/", "schemas/", "setup.py", "pyproject.toml", "python/")
    # SwiftPM refuses a package one of whose targets has no folder.
    kinds += tuple(re.findall(r'path: "([^"]+)"', (project / "Package.swift").read_text()))
    wanted = {name for name in committed if name.startswith(kinds) and ".egg-info" not in name and "/bin/" not in name}
    assert wanted - names == set()
    assert not [name for name in names if name.startswith((".build", "build/")) or name.endswith(".pyc")]


def test_every_place_that_states_the_version_agrees() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert statepack.__version__ == version
    assert f'package static let version = "{version}"' in (ROOT / "Sources/StatepackTool/Tool.swift").read_text()
