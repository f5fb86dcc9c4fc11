"""The built commands against an unkind system: paths that are no files, permissions, full disks, kill -9, huge files.

Needs the release binaries, as test_end_to_end.py does. Every text that a refusal prints is compared whole.
"""

from __future__ import annotations

import ctypes
import filecmp
import hashlib
import mmap
import os
import pathlib
import random
import resource
import shutil
import signal
import stat
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import statepack
from statepack import program_pb2
from test_end_to_end import BIN, ROOT, command

EXAMPLE = ROOT / "examples/01-stateful-transformer/exported.pb"


class Kept:
    """What lies in a folder, to be compared later: names, kinds, modes and contents."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.before = self.look()

    def look(self) -> dict[str, tuple[int, bytes | str]]:
        found: dict[str, tuple[int, bytes | str]] = {}
        for path in sorted(self.folder.rglob("*")):
            mode = path.lstat().st_mode
            content: bytes | str = ""
            if stat.S_ISREG(mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(mode):
                content = os.readlink(path)
            found[str(path.relative_to(self.folder))] = (mode, content)
        return found

    def check(self) -> None:
        assert self.look() == self.before


def run(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    program, *arguments = map(str, words)
    options.setdefault("timeout", 60)
    return subprocess.run(
        [*options.pop("through", ()), BIN / program, *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the example, its bundle, its contract and inputs for one step."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copy(EXAMPLE, folder / "exported.pb")
    command("convert", folder / "exported.pb", "-o", folder / "model.statepack")
    contract = command("statepack", "describe", folder / "model.statepack").stdout
    (folder / "model.contract.json").write_text(contract)
    save_file({"features": torch.zeros(1, 1, 64), "position_ids": torch.tensor([0])}, folder / "in.safetensors")
    return folder


@pytest.fixture
def folder(example: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the example's folder that a test may spoil."""
    copy = tmp_path / "work"
    shutil.copytree(example, copy)
    return copy


def commands(model: pathlib.Path) -> list[list[object]]:
    """Every command that reads a model, told to read this one."""
    return [
        ["convert", model, "-o", model.parent / "made.statepack"],
        ["validate", model],
        ["validate", model, "--no-replay"],
        ["validate", model, "--descriptors", model.parent / "model.contract.json"],
        ["validate", model, "--checksums"],
        ["statepack", "inspect", model],
        ["statepack", "describe", model, "-o", model.parent / "made.contract.json"],
        ["statepack", "diff", model.parent / "model.contract.json", model],
        ["statepack", "diff", model, model.parent / "model.statepack"],
        ["statepack", "run", model, "--outputs", model.parent / "made.safetensors"],
    ]


# Inputs that are no readable files.


def spoil_nothing(path: pathlib.Path) -> None:
    """There is nothing at the path."""


def spoil_folder(path: pathlib.Path) -> None:
    path.mkdir()


def spoil_empty(path: pathlib.Path) -> None:
    path.touch()


def spoil_pipe(path: pathlib.Path) -> None:
    os.mkfifo(path)


def spoil_link(path: pathlib.Path) -> None:
    path.symlink_to("nowhere")


def spoil_loop(path: pathlib.Path) -> None:
    path.symlink_to(path.name)


def spoil_device(path: pathlib.Path) -> None:
    path.symlink_to("/dev/zero")


def spoil_mode(path: pathlib.Path) -> None:
    path.write_bytes(b"secret")
    path.chmod(0)


# Root ignores mode bits, unless it gives up the two capabilities that let it.
_CAPABILITIES = "-dac_override,-dac_read_search"
AS_ANYBODY = ["setpriv", "--bounding-set", _CAPABILITIES, "--inh-caps", _CAPABILITIES, "--"] if os.getuid() == 0 else []

# What stands there, and what the readers of exported programs, contracts and tensors, and that of bundles, say.
SPOILED: list[tuple[Callable[[pathlib.Path], None], str, str]] = [
    (
        spoil_nothing,
        "error[E0102]: there is no such file\n  --> {}\n",
        "error[E0502]: there is no such bundle\n  --> {}\n  hint:     check the path\n",
    ),
    (
        spoil_link,
        "error[E0102]: there is no such file\n  --> {}\n",
        "error[E0502]: there is no such bundle\n  --> {}\n  hint:     check the path\n",
    ),
    (
        spoil_folder,
        "error[E0103]: the path is a directory\n  --> {}\n  found:    a directory\n",
        "error[E0503]: the bundle is a directory\n  --> {}\n  expected: a *.statepack file\n  found:    a directory\n",
    ),
    (
        spoil_pipe,
        "error[E0103]: the path is not a regular file\n  --> {}\n  found:    a device, pipe or socket\n",
        "error[E0503]: the bundle is no regular file\n  --> {}\n"
        "  expected: a *.statepack file\n  found:    no regular file\n",
    ),
    (
        spoil_device,
        "error[E0103]: the path is not a regular file\n  --> {}\n  found:    a device, pipe or socket\n",
        "error[E0503]: the bundle is no regular file\n  --> {}\n"
        "  expected: a *.statepack file\n  found:    no regular file\n",
    ),
    (
        spoil_empty,
        "error[E0105]: the file is empty\n  --> {}\n  found:    0 bytes\n",
        "error[E0506]: the bundle is empty\n  --> {}\n  expected: 32 bytes or more\n  found:    0 bytes\n"
        "  hint:     convert again: a finished convert never leaves an empty file\n",
    ),
    (
        spoil_mode,
        "error[E0104]: the file may not be read\n  --> {}\n",
        "error[E0504]: the bundle may not be read by this user\n  --> {}\n"
        "  hint:     change the permissions of the file or of the folders above it\n",
    ),
    (
        spoil_loop,
        "error[E0101]: the file cannot be opened\n  --> {}\n  found:    Too many levels of symbolic links\n",
        "error[E0505]: the bundle cannot be read: Too many levels of symbolic links\n  --> {}\n",
    ),
]


@pytest.mark.parametrize("name", ["spoiled.pb", "spoiled.statepack"])
@pytest.mark.parametrize(("spoil", "as_file", "as_bundle"), SPOILED, ids=[row[0].__name__ for row in SPOILED])
def test_a_model_that_is_no_readable_file_is_refused_by_every_command(
    spoil: Callable[[pathlib.Path], None], as_file: str, as_bundle: str, name: str, folder: pathlib.Path
) -> None:
    model = folder / name
    spoil(model)
    kept = Kept(folder) if spoil is not spoil_mode else None
    for words in commands(model):
        result = run(*words, through=AS_ANYBODY)
        is_bundle = words[1] == "run" or (words[0] != "convert" and name.endswith(".statepack"))
        assert result.stderr == (as_bundle if is_bundle else as_file).format(model), words
        assert result.returncode == 3, words
        # validate reports that it does not hold; the others have no results.
        assert "verdict" in result.stdout if words[0] == "validate" else result.stdout == "", words
    if kept:
        kept.check()
    assert not list(folder.glob("made*"))


@pytest.mark.parametrize(("spoil", "as_file", "as_bundle"), SPOILED, ids=[row[0].__name__ for row in SPOILED])
def test_a_companion_that_is_no_readable_file_is_refused(
    spoil: Callable[[pathlib.Path], None], as_file: str, as_bundle: str, folder: pathlib.Path
) -> None:
    """The contract, and the tensors that `run` reads."""
    spoil(folder / "spoiled")
    outputs = ["--outputs", folder / "made"]
    for words in (
        ["convert", folder / "exported.pb", "-o", folder / "made", "--descriptors", folder / "spoiled"],
        ["validate", folder / "model.statepack", "--descriptors", folder / "spoiled"],
        ["statepack", "run", folder / "model.statepack", "--inputs", folder / "spoiled", *outputs],
        [
            "statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors",
            "--states-in", folder / "spoiled", *outputs,
        ],
    ):  # fmt: skip
        result = run(*words, through=AS_ANYBODY)
        assert result.stderr == as_file.format(folder / "spoiled"), words
        assert result.returncode == 3, words
    assert not (folder / "made").exists()


@pytest.fixture(scope="module")
def with_weights(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An exported program of two megabytes, its weights in a file of their own."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(3)

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(720, 720)
            self.register_buffer("last", torch.zeros(720))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x)
            return self.linear(x)

    statepack.ExportRequest(Wide(), (torch.ones(720),)).run().save(str(folder / "exported.pb"), quiet=True)
    assert (folder / "exported.safetensors").stat().st_size > 2_000_000
    return folder


@pytest.mark.parametrize(("spoil", "as_file", "as_bundle"), SPOILED, ids=[row[0].__name__ for row in SPOILED])
def test_weights_that_are_no_readable_file_are_refused(
    spoil: Callable[[pathlib.Path], None],
    as_file: str,
    as_bundle: str,
    with_weights: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    shutil.copy(with_weights / "exported.pb", tmp_path / "exported.pb")
    spoil(tmp_path / "exported.safetensors")
    names = sorted(path.name for path in tmp_path.iterdir())
    for words in (["convert", tmp_path / "exported.pb"], ["validate", tmp_path / "exported.pb"]):
        result = run(*words, through=AS_ANYBODY)
        assert result.stderr == as_file.format(tmp_path / "exported.safetensors") + (
            "  hint:     the program's weights are in this file: keep both in one folder, or export again\n"
        )
        assert result.returncode == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_model_in_a_folder_that_may_not_be_entered_is_refused(folder: pathlib.Path) -> None:
    closed = folder / "closed"
    closed.mkdir()
    shutil.copy(folder / "exported.pb", closed / "a.pb")
    shutil.copy(folder / "model.statepack", closed / "a.statepack")
    closed.chmod(0)
    try:
        for words, text in [
            (["convert", closed / "a.pb", "-o", folder / "made"], "error[E0104]: the file may not be read\n  --> {}\n"),
            (["validate", closed / "a.pb"], "error[E0104]: the file may not be read\n  --> {}\n"),
            (
                ["validate", closed / "a.statepack"],
                "error[E0504]: the bundle may not be read by this user\n  --> {}\n"
                "  hint:     change the permissions of the file or of the folders above it\n",
            ),
        ]:
            result = run(*words, through=AS_ANYBODY)
            assert result.stderr == text.format(words[1])
            assert result.returncode == 3
    finally:
        closed.chmod(0o700)
    assert not (folder / "made").exists()


# Outputs that cannot be written.


def writers(folder: pathlib.Path, output: object) -> list[tuple[list[object], str, str]]:
    """Every command and option that writes a file, told to write this one; code and first words of what it says."""
    bundle, plain = ("E0550", "cannot create the bundle"), ("E0731", "the output cannot be written")
    inputs = ["--inputs", folder / "in.safetensors"]
    return [
        (["convert", folder / "exported.pb", "-o", output], *bundle),
        (["convert", folder / "exported.pb", "-o", folder / "made", "--report", output], *plain),
        (["statepack", "describe", folder / "model.statepack", "-o", output], *plain),
        (["statepack", "run", folder / "model.statepack", *inputs, "--outputs", output], *plain),
        (["statepack", "run", folder / "model.statepack", *inputs, "--states-out", output], *plain),
    ]


def obstacle_folder(path: pathlib.Path) -> None:
    path.mkdir()


def obstacle_pipe(path: pathlib.Path) -> None:
    os.mkfifo(path)


def obstacle_device(path: pathlib.Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize(
    ("obstacle", "text"),
    [
        (obstacle_folder, "a directory is there"),
        (obstacle_pipe, "a device, pipe or socket is there"),
        (obstacle_device, "a device, pipe or socket is there"),
    ],
    ids=["folder", "pipe", "device"],
)
def test_an_output_never_replaces_what_is_no_file(
    obstacle: Callable[[pathlib.Path], None], text: str, folder: pathlib.Path
) -> None:
    obstacle(folder / "taken")
    kept = Kept(folder)
    for words, code, message in writers(folder, folder / "taken"):
        result = run(*words)
        assert result.stderr == f"error[{code}]: {message}: {text}\n  --> {folder / 'taken'}\n  hint:     name a file\n"
        assert result.returncode == 5
        kept.check()


def test_an_output_may_replace_a_link_but_not_what_it_points_to(folder: pathlib.Path) -> None:
    for target in ("nowhere", "old"):
        (folder / "old").write_text("old")
        for words, _, _ in writers(folder, folder / "link"):
            (folder / "link").unlink(missing_ok=True)
            (folder / "link").symlink_to(target)
            result = run(*words)
            assert (result.returncode, result.stderr) == (0, "")
            assert not (folder / "link").is_symlink()
            assert (folder / "old").read_text() == "old"
            assert not (folder / "nowhere").exists()


def test_a_folder_that_may_not_be_written_is_named_and_keeps_its_file(folder: pathlib.Path) -> None:
    closed = folder / "closed"
    closed.mkdir()
    (closed / "old").write_text("old")
    closed.chmod(0o500)
    kept = Kept(folder)
    for name in ("old", "new"):
        for words, code, message in writers(folder, closed / name):
            result = run(*words, through=AS_ANYBODY)
            assert result.stderr == f"error[{code}]: {message}: Permission denied\n  --> {closed / name}\n"
            assert result.returncode == 5
            kept.check()


def test_an_output_that_is_an_input_is_refused_by_any_name(folder: pathlib.Path) -> None:
    (folder / "soft").symlink_to("exported.pb")
    os.link(folder / "exported.pb", folder / "hard")
    (folder / "bundle").symlink_to("model.statepack")
    os.link(folder / "in.safetensors", folder / "tensors")
    kept = Kept(folder)
    exported, inputs = folder / "exported.pb", ["--inputs", folder / "in.safetensors"]
    contract = folder / "model.contract.json"
    model = folder / "model.statepack"
    for words, option, output, read in [
        (["convert", exported, "-o", folder / "soft"], "output", folder / "soft", exported),
        (["convert", exported, "-o", folder / "hard"], "output", folder / "hard", exported),
        (["convert", exported, "--report", folder / "soft"], "report", folder / "soft", exported),
        (["convert", exported, "--descriptors", contract, "-o", contract], "output", contract, contract),
        (["statepack", "describe", exported, "-o", folder / "soft"], "output", folder / "soft", exported),
        (["statepack", "describe", model, "-o", folder / "bundle"], "output", folder / "bundle", model),
        (["statepack", "run", model, *inputs, "--outputs", folder / "bundle"], "outputs", folder / "bundle", model),
        (
            ["statepack", "run", model, *inputs, "--states-out", folder / "tensors"],
            "states-out", folder / "tensors", folder / "in.safetensors",
        ),
    ]:  # fmt: skip
        result = run(*words)
        assert result.stderr == (
            f"error[E0732]: --{option} would overwrite a file that the command reads\n  --> {output}\n"
            f"  expected: a path other than {read}\n  found:    {output}\n"
        )
        assert result.returncode == 2
        kept.check()


def test_weights_are_an_input_too(with_weights: pathlib.Path) -> None:
    kept = Kept(with_weights)
    weights = with_weights / "exported.safetensors"
    for option in ("output", "report"):
        result = run(
            "convert", with_weights / "exported.pb", f"--{option}", weights,
            *(["-o", with_weights / "made"] if option == "report" else []),
        )  # fmt: skip
        assert result.stderr == (
            f"error[E0732]: --{option} would overwrite a file that the command reads\n  --> {weights}\n"
            f"  expected: a path other than {weights}\n  found:    {weights}\n"
        )
        assert result.returncode == 2
    kept.check()


# Disks that are full, and files that may not grow.


def on_a_small_disk(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a shell script with $1, $2 … in a mount namespace of its own, where $1 is an empty disk of one megabyte."""
    namespace = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    mounted = 'mount -t tmpfs -o size=1m,mode=777 tmpfs "$1" || exit 99\n'
    result = subprocess.run(
        [*namespace, "sh", "-c", mounted + script, "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode != 99, f"a file system in memory cannot be mounted here: {result.stderr}"
    return result


# Keeps the old file and leaves no other: prints the exit code, then the folder.
FULL_DISK = """
disk=$1; old=$2; shift 2
cp "$old" "$disk/old" || exit 98
"$@"
echo "exit $?"
cmp "$old" "$disk/old" || exit 97
ls -A "$disk"
"""


def test_a_full_disk_is_named_and_keeps_the_old_file(
    folder: pathlib.Path, with_weights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    old = tmp_path / "old"
    old.write_bytes(random.Random(1).randbytes(900_000))
    # Two megabytes of weights, or a quarter of a megabyte of states: neither fits beside the old file.
    states = {"keyCache": torch.ones(2, 256, 64), "valueCache": torch.ones(2, 256, 64)}
    save_file(states, folder / "states.safetensors")
    bundle = (
        "error[E0551]: cannot write the bundle: no space is left\n  --> {}\n"
        "  hint:     free space or write elsewhere; a former file is left as it was\n"
    )
    plain = "error[E0731]: the output cannot be written: No space left on device\n  --> {}\n"
    step = ["--inputs", folder / "in.safetensors"]
    for name in ("old", "new"):
        for words, text in [
            (["convert", with_weights / "exported.pb", "-o", disk / name], bundle),
            (["statepack", "run", folder / "model.statepack", *step, "--states-out", disk / name], plain),
        ]:
            result = on_a_small_disk(FULL_DISK, disk, old, BIN / str(words[0]), *words[1:])
            assert result.stderr == text.format(disk / name), words
            # `run` shows the step's outputs before it writes the states.
            assert result.stdout.endswith("exit 5\nold\n"), words


def test_a_full_temporary_folder_is_named_and_left_empty(with_weights: pathlib.Path, tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'TMPDIR=$1 "$2" "$3"; echo "exit $?"; ls -A "$1"'
    result = on_a_small_disk(script, disk, BIN / "validate", with_weights / "exported.pb")
    assert result.stdout.endswith("exit 5\n")
    assert result.stderr.startswith(f"error[E0551]: cannot write the bundle: no space is left\n  --> {disk}/statepack-")
    assert result.stderr.endswith("  hint:     free space or write elsewhere; a former file is left as it was\n")
    assert result.stderr.count("\n") == 3


BUILD = """
import torch, statepack

def build():
    return statepack.ExportRequest(torch.nn.Linear(720, 720), (torch.ones(720),))
"""


def test_an_export_to_a_full_disk_keeps_the_old_file(tmp_path: pathlib.Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    old = tmp_path / "old"
    old.write_bytes(random.Random(1).randbytes(1000))
    (tmp_path / "build.py").write_text(BUILD)
    result = on_a_small_disk(
        f'export PYTHONPATH="{ROOT / "python/src"}"\n' + FULL_DISK, disk, old, sys.executable, "-W", "ignore",
        "-m", "statepack", "export", f"{tmp_path / 'build.py'}:build", "-o", disk / "old",
    )  # fmt: skip
    assert result.stderr == (
        f"error[E0025]: `old` cannot be written\n  --> {disk / 'old'}\n"
        "  found:    Error while serializing: I/O error: No space left on device (os error 28)\n"
        "  hint:     check the folder, its permissions and the space left\n"
    )
    assert result.stdout == "exit 5\nold\n"


def test_a_file_that_may_not_grow_is_an_error_and_no_signal(
    folder: pathlib.Path, with_weights: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    (tmp_path / "old").write_text("old")
    kept = Kept(tmp_path)
    step = ["--inputs", folder / "in.safetensors"]
    for name in ("old", "new"):
        for words, text in [
            (
                ["convert", with_weights / "exported.pb", "-o", tmp_path / name],
                "error[E0550]: cannot write the bundle: File too large\n  --> {}\n",
            ),
            (
                ["statepack", "run", folder / "model.statepack", *step, "--states-out", tmp_path / name],
                "error[E0731]: the output cannot be written: File too large\n  --> {}\n",
            ),
        ]:
            result = run(*words, preexec_fn=limit)
            assert result.stderr == text.format(tmp_path / name)
            assert result.returncode == 5
            kept.check()


# Results that nobody takes.


def printing(folder: pathlib.Path) -> list[list[object]]:
    """Every command that prints results, with an output file where it can write one."""
    return [
        ["convert", folder / "exported.pb", "-o", folder / "made.statepack"],
        ["convert", folder / "exported.pb", "--list-ops"],
        ["validate", folder / "model.statepack"],
        ["statepack", "inspect", folder / "model.statepack"],
        ["statepack", "describe", folder / "model.statepack"],
        ["statepack", "diff", folder / "model.contract.json", folder / "model.statepack"],
        ["statepack", "run", folder / "model.statepack", "--inputs", folder / "in.safetensors"],
        ["statepack", "--help"],
    ]


def test_results_on_a_full_device_exit_with_five(folder: pathlib.Path) -> None:
    for words in printing(folder):
        with open("/dev/full", "w") as full:
            result = subprocess.run(
                [BIN / str(words[0]), *map(str, words[1:])], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert result.stderr == (
            "error[E0731]: the results could not be written\n"
            "  --> standard output\n  found:    No space left on device\n"
        ), words
        assert result.returncode == 5, words
    # What convert could not tell is nevertheless done, and whole.
    command("validate", folder / "made.statepack")


@pytest.mark.parametrize("closed", [[1], [0, 1], [0, 1, 2], [2]], ids=str)
def test_a_closed_stream_never_becomes_a_file_of_ours(closed: list[int], folder: pathlib.Path) -> None:
    whole = (folder / "model.statepack").read_bytes()

    def close() -> None:
        for number in closed:
            os.close(number)

    for words in printing(folder):
        result = subprocess.run(
            [BIN / str(words[0]), *map(str, words[1:])], capture_output=True, text=True, check=False, preexec_fn=close
        )
        assert result.returncode == (5 if 1 in closed else 0), words
        if 1 in closed and 2 not in closed:
            assert result.stderr == (
                "error[E0731]: the results could not be written\n"
                "  --> standard output\n  found:    Bad file descriptor\n"
            )
    assert (folder / "made.statepack").read_bytes() == whole


def test_diagnostics_that_nobody_takes_change_no_exit_code(folder: pathlib.Path) -> None:
    for target in ("/dev/full", "closed pipe"):
        for words, code in [
            (["convert", folder / "missing.pb"], 3),
            (["validate", folder / "exported.pb", "--nonsense"], 2),
            (["convert", folder / "exported.pb", "-o", folder / "none" / "m"], 5),
        ]:
            if target == "/dev/full":
                stream = os.open("/dev/full", os.O_WRONLY)
            else:
                read, stream = os.pipe()
                os.close(read)
            try:
                result = subprocess.run(
                    [BIN / str(words[0]), *map(str, words[1:])], stdout=subprocess.DEVNULL, stderr=stream, check=False
                )
            finally:
                os.close(stream)
            assert result.returncode == code, words


# Processes that are killed.


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """An exported program with 200 MB of weights, which are seeded noise, and the bundle made of it."""
    folder = tmp_path_factory.mktemp("heavy")
    table(folder, rows=50_000, noise=True)
    command("convert", folder / "exported.pb", "-o", folder / "expected.statepack")
    command("validate", folder / "expected.statepack", "--no-replay")
    yield folder
    shutil.rmtree(folder)


class Table(nn.Module):
    """Rows of a table by number, and a state that remembers the last one."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1024, _weight=torch.zeros(rows, 1024))
        self.register_buffer("last", torch.zeros(1024))

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        row = self.table(number)
        self.last.copy_(row.flatten())
        return row + 1


def table(folder: pathlib.Path, rows: int, noise: bool = False) -> dict[int, torch.Tensor]:
    """Writes exported.pb and its weights for a `Table` of so many rows. Returns the rows that are not zero.

    A table of gigabytes is not made in memory: a program with few rows is exported, and table and weights file are
    extended with zeros, which take no space on disk.
    """
    small = 512
    path = folder / "exported.pb"
    torch.manual_seed(7)
    statepack.ExportRequest(Table(small), (torch.tensor([3]),)).run().save(str(path), quiet=True)
    file = program_pb2.ExportedFile.FromString(path.read_bytes())
    program = file.program
    (tensor,) = program.tensors
    assert list(tensor.shape) == [small, 1024]
    tensor.shape[0] = rows
    for function in program.functions:
        for constant in function.constants:
            size = function.values[constant.value].shape[0]
            assert list(size.postfix) == [0, small]
            size.postfix[1] = rows
    header = f'{{"{tensor.name}":{{"dtype":"F32","shape":[{rows},1024],"data_offsets":[0,{rows * 4096}]}}}}'
    header += " " * (-(len(header) + 8) % 8)
    known = {row: torch.randn(1024) for row in (1, rows // 2, rows - 1)}
    weights = folder / "exported.safetensors"
    digest = hashlib.sha256()
    with weights.open("w+b") as out:
        out.write(struct.pack("<Q", len(header)) + header.encode())
        start = out.tell()
        if noise:
            block = random.Random(7).randbytes(4096 * 10)
            for _ in range(0, rows, 10):
                out.write(block)
            # As numbers, noise has NaN and infinity in it; as an embedding it is only moved.
            known = {}
        out.truncate(start + rows * 4096)
        for row, values in known.items():
            out.seek(start + row * 4096)
            out.write(values.numpy().tobytes())
        out.flush()
        out.seek(0)
        while piece := out.read(1 << 22):
            digest.update(piece)
    program.weights_file = weights.name
    program.weights_length = weights.stat().st_size
    program.weights_digest = digest.digest()
    file.ClearField("body_length")
    file.ClearField("body_digest")
    body = file.SerializeToString(deterministic=True)
    path.write_bytes(b"\x09" + struct.pack("<Q", len(body)) + b"\x11" + hashlib.sha256(body).digest()[:8] + body)
    return known


def is_same(first: pathlib.Path, second: pathlib.Path) -> bool:
    return filecmp.cmp(first, second, shallow=False)


@pytest.mark.parametrize("replacing", [False, True], ids=["new", "replacing"])
def test_convert_killed_at_any_moment_leaves_the_old_file_or_the_new_one(
    replacing: bool, heavy: pathlib.Path, example: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    old, expected = example / "model.statepack", heavy / "expected.statepack"
    target = tmp_path / "model.statepack"
    length = expected.stat().st_size
    moments = random.Random(11)
    killed = reading = writing = 0
    for number in range(24):
        target.unlink(missing_ok=True)
        if replacing:
            shutil.copy(old, target)
        # Moments are measured by what the process has done, for its time depends on what else the machine does:
        # while it reads, when it has written a part, and around the end, where it flushes and names the file.
        part = moments.random()
        with subprocess.Popen([BIN / "convert", heavy / "exported.pb", "-o", target], stdout=subprocess.DEVNULL) as run:
            if number < 6:
                sleep_in_processor_time(run, 0.1 * part)
            elif number < 16:
                wait_for_bytes(run, length * part)
            else:
                wait_for_bytes(run, length)
                time.sleep(0.05 * part**2)
            began = holds_a_file_in(run.pid, tmp_path)
            run.kill()
            code = run.wait(60)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
        reading += code != 0 and not began
        writing += code != 0 and began
        if code == 0:
            assert is_same(target, expected)
        elif replacing:
            assert is_same(target, old) or is_same(target, expected)
        elif target.exists():
            assert is_same(target, expected)
        # Between the file's two names, a moment of microseconds that only replacing has, a whole file may be left.
        for path in tmp_path.iterdir():
            if path != target:
                assert replacing
                assert path.name.startswith(".statepack-")
                assert is_same(path, expected)
                path.unlink()
    assert killed >= 12, killed
    assert reading >= 2, (reading, writing)
    assert writing >= 6, (reading, writing)


def wait_for_bytes(process: subprocess.Popen[bytes], count: float) -> None:
    """Until the process has written so many bytes, or has ended."""
    while process.poll() is None:
        fields = pathlib.Path(f"/proc/{process.pid}/io").read_text().split()
        if int(fields[fields.index("wchar:") + 1]) >= count:
            return
        time.sleep(0.0005)


def sleep_in_processor_time(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until the process has computed for so long, or has ended."""
    while process.poll() is None:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        if (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= seconds:
            return
        time.sleep(0.0005)


def holds_a_file_in(process: int, folder: pathlib.Path) -> bool:
    """Whether the process has a file of the folder open; on Linux it has no name there until it is complete."""
    try:
        entries = [os.readlink(entry) for entry in pathlib.Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return False
    return any(entry.startswith(f"{folder}/") for entry in entries)


def heed_signals() -> None:
    # A shell that starts a job in the background has it ignore SIGINT, nohup SIGHUP; everything below would as well.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_validate_leaves_no_temporary_folder(
    number: signal.Signals, heavy: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words = [BIN / "validate", heavy / "exported.pb"]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}, preexec_fn=heed_signals
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()):
            assert process.poll() is None, "validate ended before it could be interrupted"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(number)
        assert process.wait(60) == -number
    assert list(tmp_path.iterdir()) == []


# Files of gigabytes.


def with_little_memory() -> None:
    """Heap, stacks and every other private page that can be written: 256 MiB. Mapped files do not count."""
    resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20))


def test_weights_of_more_than_two_gigabytes_convert_validate_and_run_in_little_memory(tmp_path: pathlib.Path) -> None:
    rows = 550_000
    try:
        known = table(tmp_path, rows)
        weights = tmp_path / "exported.safetensors"
        assert weights.stat().st_size > 2.2e9
        bundle = tmp_path / "exported.statepack"
        result = run("convert", tmp_path / "exported.pb", preexec_fn=with_little_memory, timeout=300)
        assert (result.returncode, result.stderr) == (0, "")
        assert bundle.stat().st_size > 2.2e9
        weights.unlink()
        result = run("validate", bundle, "--no-replay", preexec_fn=with_little_memory, timeout=300)
        assert (result.returncode, result.stderr) == (0, "")
        assert "verdict" in result.stdout
        # The last row lies beyond 2 GiB, where a 32-bit offset would be negative.
        numbers = [*known, 0]
        save_file({f"number.{step}": torch.tensor([row]) for step, row in enumerate(numbers)}, tmp_path / "in")
        result = run(
            "statepack", "run", bundle, "--inputs", tmp_path / "in", "--outputs", tmp_path / "out",
            "--states-out", tmp_path / "states", preexec_fn=with_little_memory,
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (0, "")
        outputs = load_file(tmp_path / "out")
        for step, row in enumerate(numbers):
            (found,) = (values for name, values in outputs.items() if name.endswith(f".{step}"))
            assert torch.equal(found.flatten(), known.get(row, torch.zeros(1024)) + 1), row
        assert torch.equal(load_file(tmp_path / "states")["last"], torch.zeros(1024))
    finally:
        for path in tmp_path.iterdir():
            path.unlink()


# Four gigabytes, of which nothing may be read.

FOUR_GIB_ROWS = 1 << 20


def crc32c(data: bytes, value: int = 0) -> int:
    value ^= 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def bundle_program(data: bytes, folder: pathlib.Path) -> Any:
    """The program section of a bundle, as a message of bundle.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    descriptors = folder / "bundle.descriptors"
    subprocess.run(["protoc", f"-I{ROOT}/schemas", f"--descriptor_set_out={descriptors}", "bundle.proto"], check=True)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        pool.Add(file)
    message = pool.FindMessageTypeByName("statepack.bundle.v1.BundleProgram")
    return message_factory.GetMessageClass(message).FromString(data)


@pytest.fixture(scope="module")
def four_gibibytes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """A bundle with a table of 4 GiB that takes no space on disk, for it is a hole.

    Its weights do not have the digests of the section table: who reads them, notices.
    """
    folder = tmp_path_factory.mktemp("four")
    table(folder, rows=512)
    command("convert", folder / "exported.pb", "-o", folder / "small.statepack")
    data = (folder / "small.statepack").read_bytes()
    count = struct.unpack_from("<I", data, 24)[0]
    entries = [struct.unpack_from("<IIQQII32s", data, 32 + 64 * index) for index in range(count)]
    sections = {entry[0]: data[entry[2] : entry[2] + entry[3]] for entry in entries}
    program = bundle_program(sections[1], folder)
    (number,) = (index for index, tensor in enumerate(program.tensors) if list(tensor.shape) == [512, 1024])
    tensor = program.tensors[number]
    end, growth = tensor.offset + tensor.length, (FOUR_GIB_ROWS - 512) * 4096
    tensor.shape[0], tensor.length = FOUR_GIB_ROWS, FOUR_GIB_ROWS * 4096
    for other in program.tensors:
        if other.offset >= end:
            other.offset += growth
    for function in program.functions:
        for value in function.values:
            if value.storage == 4 and value.slot == number:
                assert list(value.shape[0].postfix) == [0, 512]
                value.shape[0].postfix[1] = FOUR_GIB_ROWS
    sections[1] = program.SerializeToString(deterministic=True)
    offset = 32 + 64 * count
    rows = b""
    places = {}
    for kind, flags, _, length, checksum, _, digest in entries:
        alignment = 64 << 10 if kind == 2 else 64
        offset = -(-offset // alignment) * alignment
        if kind == 1:
            length, checksum = len(sections[1]), crc32c(sections[1])
            digest = hashlib.sha256(sections[1]).digest()
        if kind == 2:
            length += growth
        places[kind] = offset
        rows += struct.pack("<IIQQII32s", kind, flags, offset, length, checksum, 0, digest)
        offset += length
    header = data[:16] + struct.pack("<QI", offset, count)
    header += struct.pack("<I", crc32c(rows, crc32c(header))) + rows
    bundle = folder / "model.statepack"
    with bundle.open("wb") as out:
        out.write(header)
        for kind, place in places.items():
            if kind != 2:
                out.seek(place)
                out.write(sections[kind])
        out.seek(places[2] + end + growth)
        out.write(sections[2][end:])
        out.truncate(offset)
        os.fsync(out.fileno())
    assert bundle.stat().st_size > 4 << 30
    assert bundle.stat().st_blocks * 512 < 4 << 20
    yield folder
    bundle.unlink()


def resident_pages(path: pathlib.Path, margin: int) -> int:
    """How many pages of a file, but for so many bytes at either end, the system holds because somebody read them."""
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    length = path.stat().st_size
    with path.open("rb") as file:
        address = system.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
    assert system.mincore(address, length, pages) == 0
    system.munmap(address, length)
    ends = margin // mmap.PAGESIZE
    return sum(byte & 1 for byte in pages.raw[ends:-ends])


def forget_pages(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize(
    "words",
    [
        ["statepack", "inspect", "MODEL"],
        ["statepack", "inspect", "--json", "MODEL"],
        ["statepack", "describe", "MODEL"],
        ["statepack", "diff", "CONTRACT", "MODEL"],
        ["validate", "MODEL", "--descriptors", "CONTRACT"],
    ],
    ids=" ".join,
)
def test_what_needs_no_weights_reads_none_of_four_gigabytes(words: list[str], four_gibibytes: pathlib.Path) -> None:
    model, contract = four_gibibytes / "model.statepack", four_gibibytes / "model.contract.json"
    contract.write_text(command("statepack", "describe", model).stdout)
    words = [word.replace("MODEL", str(model)).replace("CONTRACT", str(contract)) for word in words]
    elapsed, computed = [], []
    forget_pages(model)
    for _ in range(9):
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        elapsed.append(time.monotonic() - started)
        computed.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (result.returncode, result.stderr) == (0, "")
    # Around what is read at the two ends the system reads ahead, a few MiB.
    assert resident_pages(model, margin=64 << 20) == 0
    # Processor time is the command's own; what else runs on the machine only adds to the time that passes.
    assert statistics.median(computed) < 0.1, computed
    assert min(elapsed) < 0.1, elapsed


def test_weights_that_were_damaged_are_found_when_they_are_read(four_gibibytes: pathlib.Path) -> None:
    """Here, so that what is measured above is known to be a bundle whose weights somebody would notice."""
    small = four_gibibytes / "small.statepack"
    data = bytearray(small.read_bytes())
    data[2 << 20] ^= 1
    small.write_bytes(data)
    result = run("validate", small)
    assert result.returncode == 3
    assert result.stderr.startswith("error[E0514]: section weights does not have the checksum in the table\n")
