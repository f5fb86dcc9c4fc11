"""A commit that breaks the agreement between Python and Swift is refused: by pre-commit, by a plain hook, by CI's job.

The real pre-commit runs on a scratch repository, once with this repository as the hooks' source, which it clones and
builds with Swift (about a minute and a half on two idle cores), and once with the wheel that `make wheel` makes.
"""

from __future__ import annotations

import os
import pathlib
import re
import resource
import shutil
import sys

import pytest
import yaml

import packaged
from packaged import ROOT, clean_environment, run

EXAMPLE = ROOT / "examples/01-stateful-transformer"
# Where the weights of a small bundle start (schemas/README.md).
WEIGHTS = 1 << 16
IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


class Scratch:
    """A repository with the example's Python, its exported program, bundle and contract."""

    def __init__(self, folder: pathlib.Path, commands: pathlib.Path, **environment: str) -> None:
        self.folder = folder
        self.commands = commands
        self.environment = clean_environment(**IDENTITY, **environment)
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        for name in ("model.py", "export.py", "exported.pb", "exported.contract.json"):
            (folder / "model").mkdir(exist_ok=True)
            shutil.copy(EXAMPLE / name, folder / "model" / name)
        self.convert()
        self.git("add", ".")
        self.git("commit", "--quiet", "--no-verify", "-m", "Add the model")

    def run(self, *command: object, expect: int | None = 0) -> str:
        return run(*command, cwd=self.folder, environment=self.environment, expect=expect).stdout

    def git(self, *arguments: object, expect: int | None = 0) -> str:
        return self.run("git", *arguments, expect=expect)

    def statepack(self, *arguments: object) -> str:
        return self.run(self.commands / "statepack", *arguments)

    def convert(self) -> None:
        self.statepack("convert", "model/exported.pb", "--state-names", "keyCache,valueCache")

    def shorten_the_states(self) -> None:
        """What somebody does in Python: half the context, then export and convert as always."""
        script = self.folder / "model/export.py"
        script.write_text(script.read_text().replace("max_context: int = 256", "max_context: int = 128"))
        script.write_text(script.read_text().replace("default=256", "default=128"))
        self.export()
        self.convert()

    def export(self) -> None:
        run(
            sys.executable,
            "model/export.py",
            cwd=self.folder,
            environment={**self.environment, "PYTHONPATH": str(ROOT / "python/src")},
        )

    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def refused(self) -> str:
        """What a commit of everything says that is refused; nothing was committed."""
        before = self.head()
        self.git("add", ".")
        output = self.git("commit", "-m", "Change the model", expect=1)
        assert self.head() == before
        return output

    def committed(self) -> str:
        before = self.head()
        self.git("add", ".")
        output = self.git("commit", "-m", "Change the model")
        assert self.head() != before
        return output


def names_every_shape(output: str) -> None:
    """What changed, where, and what to do: for both states, once."""
    for state in ("keyCache", "valueCache"):
        finding = next(part for part in output.split("error[")[1:] if f"state `{state}`" in part)
        assert finding.startswith("E0718]: ")
        assert "model/exported.pb, function `main`" in finding
        assert re.search(r"^  expected: .*2, 256, 64", finding, re.MULTILINE)
        assert re.search(r"^  found: .*2, 128, 64", finding, re.MULTILINE)
        assert "statepack contract --update " in finding
        assert "model/exported.contract.json, and change the Swift callers" in finding


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the command, from the wheel."""
    return packaged.environment_with(packaged.wheel(), tmp_path_factory.mktemp("commands") / "venv")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """This project as it stands, as a repository that pre-commit can clone."""
    project = packaged.copy_of_project(tmp_path_factory.mktemp("source") / "statepack")
    environment = clean_environment(**IDENTITY)
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "As it stands"]):
        run("git", *arguments, cwd=project, environment=environment)
    return project


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """PRE_COMMIT_HOME: each of the two ways is installed once."""
    return tmp_path_factory.mktemp("pre-commit")


@pytest.fixture(params=["clone", "wheel"])
def hooked(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    commands: pathlib.Path,
    cache: pathlib.Path,
) -> Scratch:
    """A scratch repository with both hooks of pre-commit."""
    scratch = Scratch(tmp_path / "scratch", commands, PRE_COMMIT_HOME=str(cache))
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    if request.param == "clone":
        project = request.getfixturevalue("source")
        revision = run("git", "rev-parse", "HEAD", cwd=project, environment=clean_environment()).stdout.strip()
        entry = {"repo": str(project), "rev": revision, "hooks": [{"id": hook["id"]} for hook in hooks]}
    else:
        dependencies = {"additional_dependencies": [str(packaged.wheel())]}
        entry = {"repo": "local", "hooks": [{**hook, **dependencies} for hook in hooks]}
        # Neither Swift nor a compiler.
        scratch.environment["PATH"] = f"{commands}:/usr/bin:/bin"
    (scratch.folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [entry]}, sort_keys=False))
    scratch.run(sys.executable, "-m", "pre_commit", "install", "--install-hooks")
    return scratch


def test_pre_commit_lets_a_good_change_pass(hooked: Scratch) -> None:
    # Other weights: values change, the agreement does not.
    script = hooked.folder / "model/export.py"
    script.write_text(script.read_text().replace("manual_seed(20)", "manual_seed(21)"))
    hooked.export()
    hooked.convert()
    output = hooked.committed()
    assert re.search(r"^statepack validate\.+Passed$", output, re.MULTILINE)
    assert re.search(r"^statepack contract\.+Passed$", output, re.MULTILINE)


def test_pre_commit_refuses_a_state_of_another_shape_until_it_is_accepted(hooked: Scratch) -> None:
    hooked.shorten_the_states()
    output = hooked.refused()
    names_every_shape(output)
    assert re.search(r"^statepack contract\.+Failed$", output, re.MULTILINE)
    hooked.statepack("contract", "--update", "model/exported.contract.json")
    hooked.committed()


def test_pre_commit_refuses_a_bundle_that_was_not_converted_again(hooked: Scratch) -> None:
    script = hooked.folder / "model/export.py"
    script.write_text(script.read_text().replace("manual_seed(20)", "manual_seed(21)"))
    hooked.export()
    output = hooked.refused()
    assert "error[E0729]: the bundle was made from another exported program\n" in output
    assert "hint:     convert again: statepack convert model/exported.pb -o model/exported.statepack\n" in output


def test_pre_commit_refuses_a_damaged_bundle(hooked: Scratch) -> None:
    bundle = hooked.folder / "model/exported.statepack"
    content = bytearray(bundle.read_bytes())
    content[WEIGHTS + 4321] ^= 1
    bundle.write_bytes(content)
    output = hooked.refused()
    assert re.search(r"^statepack validate\.+Failed$", output, re.MULTILINE)
    assert "error[E0514]: section weights does not have the checksum in the table\n" in output


def test_pre_commit_leaves_a_commit_without_models_alone(hooked: Scratch) -> None:
    (hooked.folder / "notes.txt").write_text("nothing of a model\n")
    output = hooked.committed()
    assert re.search(r"^statepack validate\.+\(no files to check\)Skipped$", output, re.MULTILINE)
    assert re.search(r"^statepack contract\.+Passed$", output, re.MULTILINE)


def test_pre_commit_refuses_a_deleted_contract(hooked: Scratch) -> None:
    (hooked.folder / "model/exported.contract.json").unlink()
    output = hooked.refused()
    assert re.search(r"^statepack contract\.+Failed$", output, re.MULTILINE)
    assert "error[E0728]: " in output
    assert "model/exported.pb" in output


def test_the_hooks_take_less_than_two_seconds(hooked: Scratch) -> None:
    # Four models, and the whole of pre-commit. In processor time, which is what the hooks take on a machine that does
    # nothing else: they hardly wait for a disk, and other processes of this machine are not theirs.
    for number in range(3):
        shutil.copytree(hooked.folder / "model", hooked.folder / f"model{number}")
    hooked.git("add", ".")
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        hooked.run(sys.executable, "-m", "pre_commit", "run", "--all-files")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 2.0, times


def test_args_of_the_user_replace_no_replay(
    tmp_path: pathlib.Path, commands: pathlib.Path, cache: pathlib.Path
) -> None:
    scratch = Scratch(tmp_path / "scratch", commands, PRE_COMMIT_HOME=str(cache))
    hook = next(
        hook
        for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
        if hook["id"] == "statepack-validate"
    )
    assert hook["args"] == ["--no-replay"]
    hook |= {"additional_dependencies": [str(packaged.wheel())], "args": [], "verbose": True}
    (scratch.folder / ".pre-commit-config.yaml").write_text(
        yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]})
    )
    scratch.git("add", ".")
    output = scratch.run(sys.executable, "-m", "pre_commit", "run", "--all-files")
    assert "output logits: within tolerance" in output


@pytest.fixture
def plain(tmp_path: pathlib.Path, commands: pathlib.Path) -> Scratch:
    """A scratch repository with the shell script as its hook."""
    scratch = Scratch(tmp_path / "scratch", commands, PATH=f"{commands}:/usr/bin:/bin")
    shutil.copy(ROOT / "examples/hooks/pre-commit", scratch.folder / ".git/hooks/pre-commit")
    return scratch


def test_the_plain_hook_refuses_a_state_of_another_shape_until_it_is_accepted(plain: Scratch) -> None:
    plain.shorten_the_states()
    output = plain.refused()
    names_every_shape(output)
    assert output.endswith("statepack: the commit is refused (git commit --no-verify skips this check)\n")
    plain.statepack("contract", "--update", "model/exported.contract.json")
    plain.committed()


def test_the_plain_hook_checks_what_is_staged(plain: Scratch) -> None:
    bundle = plain.folder / "model/exported.statepack"
    whole = bundle.read_bytes()
    bundle.write_bytes(whole[:-1])
    plain.git("add", ".")
    bundle.write_bytes(whole)
    before = plain.head()
    assert "error[E0507]" in plain.git("commit", "-m", "Change the model", expect=1)
    assert plain.head() == before
    # The other way round: what is broken is not part of the commit.
    plain.git("add", ".")
    bundle.write_bytes(whole[:-1])
    (plain.folder / "notes.txt").write_text("nothing of a model\n")
    plain.git("add", "notes.txt")
    plain.git("commit", "-m", "Add notes")


def test_the_workflow_marks_and_comments_what_a_pull_request_changes(
    tmp_path: pathlib.Path, commands: pathlib.Path
) -> None:
    workflow = yaml.safe_load((ROOT / "examples/ci/statepack.yml").read_text())
    # YAML 1.1 reads the key `on` as true.
    assert workflow[True]["pull_request"]["paths"] == ["**.statepack", "**.pb", "**.contract.json"]
    job = workflow["jobs"]["models"]
    steps = {step["name"]: step for step in job["steps"] if "run" in step}
    assert list(steps) == ["install", "bundles", "contracts", "changes for callers", "comment"]

    # The base branch, a branch with the change, and what a runner sets. `gh` writes down how it was called.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$*" > "$RUNNER_TEMP/gh.txt"\n')
    (tools / "gh").chmod(0o755)
    python = tools / "python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "$@" --dry-run --no-deps --quiet --no-index --target "$RUNNER_TEMP/t"\n'
    )
    python.chmod(0o755)
    runner = tmp_path / "runner"
    runner.mkdir()
    scratch = Scratch(
        tmp_path / "scratch",
        commands,
        **{name: str(value) for name, value in job["env"].items()},
        PATH=f"{tools}:{commands}:/usr/bin:/bin",
        RUNNER_TEMP=str(runner),
        GITHUB_STEP_SUMMARY=str(runner / "summary.md"),
        GITHUB_BASE_REF="main",
        GITHUB_WORKSPACE=str(tmp_path / "scratch"),
        PULL_REQUEST="7",
    )
    scratch.environment["STATEPACK_WHEEL"] = str(packaged.wheel())
    scratch.git("update-ref", "refs/remotes/origin/main", "HEAD")

    def step(name: str, expect: int = 0) -> str:
        return scratch.run("bash", "-e", "-o", "pipefail", "-c", steps[name]["run"], expect=expect)

    # Nothing changed: everything holds, and there is no comment.
    for name in steps:
        step(name)
    assert not (runner / "gh.txt").exists()

    scratch.shorten_the_states()
    scratch.git("commit", "-a", "-m", "Shorten the states")
    step("bundles")
    marks = step("contracts", expect=123)
    mark = r"^::error file=model/exported\.pb,title=E0718 contractShape::the state `\w+Cache` has another shape"
    assert len(re.findall(mark, marks, re.MULTILINE)) == 2

    scratch.statepack("contract", "--update", "model/exported.contract.json")
    scratch.git("commit", "-a", "-m", "Accept the shape")
    step("contracts")
    step("changes for callers")
    step("comment")
    assert (runner / "gh.txt").read_text() == (
        f"pr comment 7 --edit-last --create-if-none --body-file {runner}/changes.md\n"
    )
    comment = (runner / "changes.md").read_text()
    assert comment.startswith("### model/exported.contract.json\n")
    assert "keyCache" in comment
    assert "breaking" in comment
    assert (runner / "summary.md").read_text() == comment


def test_a_new_user_follows_the_readme(
    source: pathlib.Path, tmp_path: pathlib.Path, commands: pathlib.Path, cache: pathlib.Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    section = readme.split("## Check before every commit\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    clone = tmp_path / "statepack"
    clone.symlink_to(source)
    # The binary of the wheel saves a second and a third build; all else is as it stands in the README.
    (binary,) = commands.parent.glob("lib/python*/site-packages/statepack/bin/statepack")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    scratch = Scratch(
        tmp_path / "model",
        commands,
        PRE_COMMIT_HOME=str(cache),
        STATEPACK_BINARY=str(binary),
        PATH=f"{tmp_path}/venv/bin:{os.environ['PATH']}",
    )
    for path in (scratch.folder / "model").iterdir():
        path.rename(scratch.folder / path.name)
    (scratch.folder / "exported.contract.json").unlink()
    scratch.git("add", ".")
    scratch.run("bash", "-e", "-c", block)
    assert scratch.git("log", "-1", "--format=%s") == "Add the model and its contract\n"

    script = scratch.folder / "export.py"
    script.write_text(script.read_text().replace("default=256", "default=128"))
    run(
        sys.executable,
        "export.py",
        cwd=scratch.folder,
        environment={**scratch.environment, "PYTHONPATH": str(ROOT / "python/src")},
    )
    output = scratch.refused()
    # What the README shows of the refusal is what is printed.
    (shown,) = re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert shown in output
