"""From PyTorch to the built commands and back: what Swift computes is what eager PyTorch computes.

Needs the release binaries (`swift build -c release`); STATEPACK_BIN names their folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import statepack
from statepack import program_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("STATEPACK_BIN", ROOT / ".build" / "release"))


def command(name: str, *arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a built command and checks its exit code."""
    result = subprocess.run([BIN / name, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == expect, f"{name} {arguments}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result


def agree(found: torch.Tensor, expected: torch.Tensor, absolute: float = 1e-5, relative: float = 1e-5) -> None:
    """|found - expected| <= absolute + relative * |expected|; other than floats must be equal."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected)
        return
    torch.testing.assert_close(found, expected, atol=absolute, rtol=relative, equal_nan=True)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


class Runner:
    """A converted module beside the module itself: both are run on the same inputs."""

    def __init__(self, folder: pathlib.Path, request: statepack.ExportRequest, **named: Any) -> None:
        self.folder = folder
        self.module = request.module
        exported = request.run()
        exported.save(str(folder / "exported.pb"))
        command("convert", folder / "exported.pb", "-o", folder / "model.statepack", *named.get("convert", ()))
        contract = json.loads(command("statepack", "inspect", "--json", folder / "model.statepack").stdout)
        self.function = contract["functions"][0]
        details = json.loads(command("statepack", "inspect", "--json", "--details", folder / "model.statepack").stdout)[
            "details"
        ]
        self.buffers = {state["name"]: state["source"] for state in details["states"]}

    def check(self, calls: Sequence[Sequence[torch.Tensor]], absolute: float = 1e-5) -> None:
        """Every output of every call, and every state after every call, as eager PyTorch has them."""
        names = [entry["name"] for entry in self.function["inputs"]]
        outputs = [entry["name"] for entry in self.function["outputs"]]
        states: pathlib.Path | None = None
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        for number, call in enumerate(calls):
            inputs, results = self.folder / f"in{number}.safetensors", self.folder / f"out{number}.safetensors"
            arguments: list[object] = ["--outputs", results]
            if names:
                save_file({name: value.contiguous() for name, value in zip(names, call, strict=True)}, inputs)
                arguments += ["--inputs", inputs]
            if states:
                arguments += ["--states-in", states]
            states = self.folder / f"states{number}.safetensors"
            command("statepack", "run", self.folder / "model.statepack", *arguments, "--states-out", states)
            with torch.no_grad():
                expected = self.module(*(value.clone() for value in call))
            found = load_file(results)
            values = list(expected) if isinstance(expected, tuple | list) else [] if expected is None else [expected]
            assert len(values) == len(outputs)
            for name, value in zip(outputs, values, strict=True):
                agree(found[f"{name}.0"], value, absolute)
            kept = load_file(states)
            buffers = dict(self.module.named_buffers())
            for name, value in kept.items():
                buffer = buffers[self.buffers[name]]
                agree(value, buffer, absolute)
                # What the module left alone, Swift left alone: the same bits.
                if buffer.dim() > 0:
                    untouched = buffer == before[self.buffers[name]]
                    assert torch.equal(value[untouched], buffer[untouched])
            before = {name: buffer.clone() for name, buffer in self.module.named_buffers()}


def example_module(name: str, file: str) -> Any:
    """A module of examples/, imported by path."""
    import importlib.util

    folder = ROOT / "examples" / name
    sys.path.insert(0, str(folder))
    try:
        sys.modules.pop("model", None)
        spec = importlib.util.spec_from_file_location(f"example_{name[:2]}_{file}", folder / f"{file}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("model", None)


# examples/01


def test_sixty_four_steps_of_the_example_are_those_of_eager_pytorch(tmp_path: pathlib.Path) -> None:
    request = example_module("01-stateful-transformer", "export").request()
    module = request.module
    bundle = tmp_path / "model.statepack"
    exported = ROOT / "examples" / "01-stateful-transformer" / "exported.pb"
    command("convert", exported, "--require-in-place", "-o", bundle)
    command("validate", bundle)
    torch.manual_seed(1)
    steps = 64
    features = torch.randn(steps, 1, 1, 64)
    inputs = {f"features.{step}": features[step] for step in range(steps)}
    inputs |= {f"position_ids.{step}": torch.tensor([step]) for step in range(steps)}
    save_file(inputs, tmp_path / "in.safetensors")
    # All steps in one process, then one process per eighth step for the states on the way.
    command(
        "statepack", "run", bundle, "--inputs", tmp_path / "in.safetensors", "--outputs", tmp_path / "out.safetensors"
    )
    found = load_file(tmp_path / "out.safetensors")
    for step in range(steps):
        with torch.no_grad():
            expected = module(features[step], torch.tensor([step]))
        agree(found[f"logits.{step}"], expected)
        states_file = tmp_path / "states.safetensors"
        command(
            "statepack",
            "run",
            bundle,
            "--inputs",
            tmp_path / "in.safetensors",
            "--steps",
            step + 1,
            "--states-out",
            states_file,
            "--outputs",
            tmp_path / "again.safetensors",
        )
        states = load_file(states_file)
        for name, buffer in (("keyCache", module.key_cache), ("valueCache", module.value_cache)):
            agree(states[name], buffer)
            assert bits(states[name][:, step + 1 :]) == bits(buffer[:, step + 1 :])


def test_exporting_and_converting_twice_in_two_processes_gives_equal_bytes(tmp_path: pathlib.Path) -> None:
    script = ROOT / "examples" / "01-stateful-transformer" / "export.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python" / "src")}
    for name in ("a", "b"):
        subprocess.run(
            [sys.executable, script, "-o", tmp_path / f"{name}.pb"], check=True, env=environment, capture_output=True
        )
        command("convert", tmp_path / f"{name}.pb", "-o", tmp_path / f"{name}.statepack")
    for suffix in ("pb", "statepack"):
        content = (tmp_path / f"a.{suffix}").read_bytes()
        assert content == (tmp_path / f"b.{suffix}").read_bytes()
        for path in (str(tmp_path), str(ROOT), str(pathlib.Path.home()), "/tmp/"):
            assert path.encode() not in content


# Small modules, one kind of state update each.


class Counter(nn.Module):
    """Starts at five and shows its value before it adds one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor([5.0]))

    def forward(self, step: torch.Tensor) -> torch.Tensor:
        shown = self.count.clone()
        self.count.add_(step)
        return shown


def test_a_state_that_starts_at_five_shows_five(tmp_path: pathlib.Path) -> None:
    runner = Runner(tmp_path, statepack.ExportRequest(Counter(), (torch.tensor([1.0]),), output_names=["shown"]))
    save_file({runner.function["inputs"][0]["name"]: torch.tensor([1.0])}, tmp_path / "in.safetensors")
    run = command(
        "statepack", "run", tmp_path / "model.statepack", "--inputs", tmp_path / "in.safetensors", "--steps", 3
    )
    assert [line.split()[-1] for line in run.stdout.splitlines()] == ["5.00", "6.00", "7.00"]


@pytest.mark.parametrize("names", ["old,new", "left=old,right=new", "right=new,left=old"])
def test_default_state_names_can_be_replaced_by_convert(tmp_path: pathlib.Path, names: str) -> None:
    statepack.ExportRequest(Swap(), (torch.ones(2, 3),)).run().save(str(tmp_path / "exported.pb"))
    command("convert", tmp_path / "exported.pb", "--state-names", names)
    command("validate", tmp_path / "exported.statepack")
    contract = json.loads(command("statepack", "inspect", "--json", tmp_path / "exported.statepack").stdout)
    assert [state["name"] for state in contract["functions"][0]["states"]] == ["old", "new"]


class Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("left", torch.arange(6.0).reshape(2, 3))
        self.register_buffer("right", -torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left.clone()
        self.left.copy_(self.right + x)
        self.right.copy_(left)
        return left + self.right


class Shift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window.copy_(torch.cat([self.window[1:], x[None]]))
        return self.window.sum(0)


class ReturnOld(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.last.clone()
        self.last.copy_(x)
        return old


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.copy_(torch.where(x > 0, x, self.memory))
        return self.memory * 2


class SliceWrite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table[1:3, :] = x
        return self.table @ torch.ones(3)


class Stacked(nn.Module):
    """Each of four layers writes its row of one stacked state and reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stack", torch.zeros(4, 5, 3))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        for layer in range(4):
            self.stack[layer].index_copy_(0, position, x * (layer + 1))
            x = x + self.stack[layer].sum(0, keepdim=True)
        return x


class Integers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([2**40], dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum())
        self.seen.copy_(self.seen | (x > 1))
        return self.total + self.seen.sum()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.input, self.hidden = nn.Linear(3, 8), nn.Linear(8, 8)
        self.register_buffer("state", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = torch.tanh(self.input(x[None]) + self.hidden(self.state))
        return self.state.clone()


def positions(index: int) -> torch.Tensor:
    return torch.tensor([index])


ROWS: list[tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, ...]]]] = [
    (Swap, lambda i: (torch.full((2, 3), float(i)),)),
    (Shift, lambda i: (torch.arange(3.0) + i,)),
    (ReturnOld, lambda i: (torch.arange(3.0) * (i + 1),)),
    (Gated, lambda i: (torch.tensor([1.0, -1.0, 0.5]) * (-1) ** i,)),
    (SliceWrite, lambda i: (torch.arange(6.0).reshape(2, 3) - i,)),
    (Stacked, lambda i: (torch.arange(3.0)[None] + i, positions(i))),
    (Integers, lambda i: (torch.tensor([i, i + 1, 2]),)),
    (Recurrent, lambda i: (torch.tensor([0.5, -0.25, 1.0]) * (i + 1),)),
]


@pytest.mark.parametrize(("build", "arguments"), ROWS, ids=[row[0].__name__ for row in ROWS])
def test_four_calls_agree_with_eager_pytorch_outputs_and_states(
    tmp_path: pathlib.Path, build: Callable[[], nn.Module], arguments: Callable[[int], tuple[torch.Tensor, ...]]
) -> None:
    runner = Runner(tmp_path, statepack.ExportRequest(build(), arguments(0)))
    command("validate", tmp_path / "model.statepack")
    runner.check([arguments(index) for index in range(4)])


# Positions: what eager PyTorch accepts, and nothing else.


class WriteBehind(nn.Module):
    """Writes along the second axis, as a cache of [head, position, channel] does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.arange(30.0).reshape(2, 5, 3))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache[:, position] = x
        return self.cache.sum(0)


class WriteFront(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.arange(30.0).reshape(5, 2, 3))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.cache[position] = x.transpose(0, 1)
        return self.cache.sum(0)


@pytest.mark.parametrize("build", [WriteBehind, WriteFront])
def test_positions_are_accepted_and_refused_as_eager_pytorch_does(
    tmp_path: pathlib.Path, build: Callable[[], nn.Module]
) -> None:
    x = torch.arange(12.0).reshape(2, 2, 3)
    request = statepack.ExportRequest(build(), (x, torch.tensor([1, 3])))
    runner = Runner(tmp_path, request, convert=["--require-in-place"])
    command("validate", tmp_path / "model.statepack")
    runner.check([(x + p, torch.tensor([2, p])) for p in (0, 4, -1, -5)])
    for position in (5, -6, 2**31, 2**40):
        with pytest.raises(IndexError):
            build()(x, torch.tensor([2, position]))
        save_file({"x": x, "position": torch.tensor([2, position])}, tmp_path / "far.safetensors")
        arguments = ["--inputs", tmp_path / "far.safetensors", "--states-out", tmp_path / "no.safetensors"]
        result = command("statepack", "run", tmp_path / "model.statepack", *arguments, expect=1)
        assert result.stderr.startswith(f"error[E0611]: index {position} is out of range for axis ")
        assert not (tmp_path / "no.safetensors").exists()


@pytest.mark.parametrize(("build", "axis"), [(WriteBehind, 1), (WriteFront, 0)])
def test_declared_positions_are_refused_before_anything_is_written(
    tmp_path: pathlib.Path, build: Callable[[], nn.Module], axis: int
) -> None:
    x = torch.arange(12.0).reshape(2, 2, 3)
    request = statepack.ExportRequest(
        build(), (x, torch.tensor([1, 3])), context=statepack.Context("position", axes={"cache": axis})
    )
    runner = Runner(tmp_path, request, convert=["--require-in-place"])
    command("validate", tmp_path / "model.statepack")
    described = [
        command("statepack", "describe", tmp_path / file).stdout for file in ("exported.pb", "model.statepack")
    ]
    assert described[0] == described[1]
    context = json.loads(described[0])["functions"][0]["context"]
    assert context["positions"] == "position"
    runner.check([(x + 1, torch.tensor([0, 1])), (x + 2, torch.tensor([4, 2]))])
    full = "the context is full: state `cache` has 5 rows and position 5 is the next one"
    refused = {
        5: ("E0617", full, "start from fresh states, drop old rows, or export with a larger capacity"),
        7: (
            "E0618",
            "position 7 is outside the 5 rows of state `cache`",
            "positions count from 0 and follow each other",
        ),
        -1: (
            "E0618",
            "position -1 is outside the 5 rows of state `cache`",
            "positions count from 0 and follow each other",
        ),
    }
    for position, (code, message, hint) in refused.items():
        save_file({"x": x, "position": torch.tensor([2, position])}, tmp_path / "far.safetensors")
        arguments = ["--inputs", tmp_path / "far.safetensors", "--states-out", tmp_path / "no.safetensors"]
        result = command("statepack", "run", tmp_path / "model.statepack", *arguments, expect=1)
        assert result.stderr == (
            f"error[{code}]: {message}\n"
            "  --> function `main`, input `position`, step 0\n"
            f"  expected: positions in 0..<5, the length of axis {axis} of state `cache`\n"
            f"  found:    {position}\n"
            f"  hint:     {hint}; no state was changed\n"
        )
        assert not (tmp_path / "no.safetensors").exists()


class WriteThroughMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.ones(2, 4, 3))
        self.register_buffer("flags", torch.zeros(4))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.rows[:, mask] = x
        self.flags[mask] = 2.0
        self.counts.index_put_((mask,), torch.tensor(2), accumulate=True)
        return self.rows.sum(1)


def test_a_mask_writes_what_eager_pytorch_writes(tmp_path: pathlib.Path) -> None:
    masks = torch.tensor([[True, False, True, False], [False] * 4, [True] * 4])
    request = statepack.ExportRequest(WriteThroughMask(), (torch.ones(2, 1, 3), masks[0]))
    runner = Runner(tmp_path, request, convert=["--require-in-place"])
    runner.check([(torch.randn(2, 1, 3), mask) for mask in masks])


class DynamicCache(nn.Module):
    """Its state is an argument twice as long as the input."""

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        cache[n:] = cache[:n].clone() + x
        cache[:n] = x
        return cache.sum(0)


def test_a_state_of_a_dynamic_size_takes_it_from_the_first_steps_inputs(tmp_path: pathlib.Path) -> None:
    n = torch.export.Dim("n", min=1, max=9)
    example = (torch.ones(4, 3), torch.full((8, 3), 5.0))
    sizes = {"x": {0: n}, "cache": {0: 2 * n}}
    exported = statepack.export(DynamicCache(), example, dynamic_shapes=sizes)
    exported.save(str(tmp_path / "exported.pb"))
    command("convert", tmp_path / "exported.pb")
    report = json.loads(command("validate", tmp_path / "exported.statepack", "--json").stdout)
    assert report["replay"]["steps"] >= 3
    steps = 3
    x = torch.randn(steps, 2, 3)
    save_file({f"x.{step}": x[step] for step in range(steps)}, tmp_path / "in.safetensors")
    files = ["--outputs", tmp_path / "out.safetensors", "--states-out", tmp_path / "states.safetensors"]
    command("statepack", "run", tmp_path / "exported.statepack", "--inputs", tmp_path / "in.safetensors", *files)
    cache = torch.full((4, 3), 5.0)
    for step in range(steps):
        agree(load_file(tmp_path / "out.safetensors")[f"output.{step}"], DynamicCache()(x[step], cache))
    agree(load_file(tmp_path / "states.safetensors")["cache"], cache)
    shorter = [(torch.ones(count, 3), example[1]) for count in (4, 1, 4)]
    with pytest.raises(statepack.ExportError) as refused:
        statepack.export(DynamicCache(), example, dynamic_shapes=sizes, recording_inputs=shorter)
    (finding,) = refused.value.diagnostics
    assert finding.code == "E0020"
    assert finding.message == "the inputs do not fit the size of state `cache`"
    assert (finding.expected, finding.found) == ("float32[2, 3] from [n * 2, 3]", "float32[8, 3]")


# Fusions: each can be left out, and then the bits are the same wherever the documentation says so.

EXACT = (
    "identities", "common-subexpressions", "rotary", "rotary-write", "gated", "shared-input", "residual",
    "output-layout",
)  # fmt: skip
OTHERS = ("grouped-query", "rms-norm", "all")


class Decoder(nn.Module):
    """One layer as large language models have it: norms, rotary embedding, grouped heads, caches, a gated layer."""

    def __init__(self, heads: int = 4, groups: int = 2, width: int = 8) -> None:
        super().__init__()
        size, self.heads, self.groups, self.width = heads * width, heads, groups, width
        self.query, self.output = nn.Linear(size, size, bias=False), nn.Linear(size, size, bias=False)
        self.key, self.value = (nn.Linear(size, size // groups, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(size, 48), nn.Linear(size, 48)
        self.down = nn.Linear(48, size)
        self.norms = nn.ParameterList([nn.Parameter(torch.rand(size) + 0.5) for _ in range(2)])
        self.register_buffer("key_cache", torch.zeros(1, heads // groups, 16, width))
        self.register_buffer("value_cache", torch.zeros(1, heads // groups, 16, width))

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, None] * 0.5 ** torch.arange(self.width // 2)
        cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
        half = self.width // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def normed(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return self.norms[number] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1]
        y = self.normed(x, 0)
        query, key, value = (
            layer(y).view(1, rows, -1, self.width).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        self.key_cache.index_copy_(2, positions, self.turned(key, positions))
        self.value_cache.index_copy_(2, positions, value)
        mask = torch.arange(16)[None] <= positions[:, None]
        keys, values = (
            cache[:, :, None].expand(-1, -1, self.groups, -1, -1).reshape(1, self.heads, 16, self.width)
            for cache in (self.key_cache, self.value_cache)
        )
        query = self.turned(query, positions)
        y = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        x = x + self.output(y.transpose(1, 2).reshape(1, rows, -1))
        y = self.normed(x, 1)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def test_every_fusion_can_be_left_out_and_changes_no_bits_that_it_keeps(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(11)
    module = Decoder().eval()
    rows = torch.export.Dim("rows", min=1, max=16)
    request = statepack.ExportRequest(
        module,
        (torch.randn(1, 5, 32), torch.arange(5)),
        dynamic_shapes=({1: rows}, {0: rows}),
        input_names=["x", "positions"],
        output_names=["y"],
    )
    request.run().save(str(tmp_path / "exported.pb"))
    accepted = command("convert", tmp_path / "exported.pb", "--no-fuse", "nothing", expect=2).stderr
    names = re.search(r"expected: (.*)", accepted)
    assert names
    assert set(names[1].split(", ")) == {*EXACT, *OTHERS}

    steps = [(torch.randn(1, 5, 32), torch.arange(5))]
    steps += [(torch.randn(1, 1, 32), torch.tensor([index])) for index in (5, 6)]
    inputs = {
        f"{name}.{index}": value
        for index, step in enumerate(steps)
        for name, value in zip(("x", "positions"), step, strict=True)
    }
    save_file(inputs, tmp_path / "in.safetensors")

    def results(name: str, *arguments: str) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        bundle, report = tmp_path / f"{name}.statepack", tmp_path / f"{name}.json"
        command("convert", tmp_path / "exported.pb", "--require-in-place", *arguments, "-o", bundle, "--report", report)
        files = [tmp_path / f"{name}.{kind}.safetensors" for kind in ("out", "states")]
        command(
            "statepack", "run", bundle, "--inputs", tmp_path / "in.safetensors", "--outputs", files[0],
            "--states-out", files[1],
        )  # fmt: skip
        counters = json.loads(report.read_text())["counters"]
        fused = {
            **counters.get("FuseOps", {}),
            "output-layout": counters.get("PlanMemory", {}).get("chosen-layouts", 0),
        }
        return load_file(files[0]) | load_file(files[1]), {key: value for key, value in fused.items() if value}

    fused, counts = results("fused")
    with torch.no_grad():
        for index, step in enumerate(steps):
            agree(fused[f"y.{index}"], module(*step))
    assert {*EXACT, *OTHERS} - {"all", "common-subexpressions", "identities"} <= set(counts)
    for name in EXACT + OTHERS:
        plain, left = results(name, "--no-fuse", name)
        assert name == "all" or name not in left
        assert name != "all" or not left
        for key, value in fused.items():
            if name in EXACT:
                assert bits(plain[key]) == bits(value), f"{name} {key}"
            else:
                agree(plain[key], value)


# Files that another exporter might write: the example's, changed and signed again.


def changed_example(path: pathlib.Path, change: Callable[[Any], None]) -> pathlib.Path:
    file = program_pb2.ExportedFile()
    file.ParseFromString((ROOT / "examples" / "01-stateful-transformer" / "exported.pb").read_bytes())
    change(file)
    file.ClearField("body_length")
    file.ClearField("body_digest")
    body = file.SerializeToString(deterministic=True)
    digest = hashlib.sha256(body).digest()[:8]
    path.write_bytes(b"\x09" + len(body).to_bytes(8, "little") + b"\x11" + digest + body)
    return path


class SharedCache(nn.Module):
    """What the two functions of the test below have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(16, 8))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))


class SharedPrefill(SharedCache):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, positions, self.linear(x))
        self.count.add_(x.shape[0])
        return self.cache.sum(0)


class SharedDecode(SharedCache):
    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.cache[positions] = self.linear(x)
        self.count.add_(1)
        return self.cache.mean(0) + self.count


def test_two_functions_run_on_one_set_of_states(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(7)
    prefill, decode = SharedPrefill().eval(), SharedDecode().eval()
    decode.linear = prefill.linear
    rows = torch.export.Dim("rows", min=2, max=16)
    converter = statepack.TorchConverter()
    for name, module, count, shapes in [
        ("prefill", prefill, 4, ({0: rows}, {0: rows})),
        ("decode", decode, 1, None),
    ]:
        exported = torch.export.export(
            module, (torch.randn(count, 8), torch.arange(count)), dynamic_shapes=shapes, strict=False
        )
        converter.add_exported_program(
            exported, input_names=["x", "positions"], output_names=["y"], entrypoint_name=name, module=module
        )
    converter.to_program().save(str(tmp_path / "two.pb"), quiet=True)
    command("convert", tmp_path / "two.pb", "--state-names", "cache=rows,count=steps", "--require-in-place")
    command("validate", tmp_path / "two.statepack")

    # In eager PyTorch the two modules hand their buffers over; here the same two arrays serve both functions.
    states: list[object] = []
    steps = [
        ("prefill", prefill, range(5)),
        ("decode", decode, [5]),
        ("decode", decode, [6]),
        ("prefill", prefill, [1, 7]),
    ]
    former: SharedCache = prefill
    for number, (name, module, places) in enumerate(steps):
        module.cache, module.count = former.cache, former.count
        former = module
        positions = torch.tensor(list(places))
        x = torch.randn(len(positions), 8)
        save_file({"x": x, "positions": positions}, tmp_path / "in.safetensors")
        files = [tmp_path / f"out{number}.safetensors", tmp_path / f"states{number}.safetensors"]
        command(
            "statepack", "run", tmp_path / "two.statepack", "--function", name, "--inputs", tmp_path / "in.safetensors",
            "--outputs", files[0], "--states-out", files[1], *states,
        )  # fmt: skip
        states = ["--states-in", files[1]]
        with torch.no_grad():
            agree(load_file(files[0])["y.0"], module(x, positions))
        kept = load_file(files[1])
        agree(kept["rows"], module.cache)
        assert torch.equal(kept["steps"], module.count)


def test_what_may_not_be_read_or_written_is_named(tmp_path: pathlib.Path) -> None:
    example = (ROOT / "examples/01-stateful-transformer/exported.pb").read_bytes()
    (tmp_path / "exported.pb").write_bytes(example)
    command("convert", tmp_path / "exported.pb")
    (tmp_path / "closed.pb").write_bytes(example)
    (tmp_path / "closed.pb").chmod(0)
    (tmp_path / "closed.statepack").write_bytes((tmp_path / "exported.statepack").read_bytes())
    (tmp_path / "closed.statepack").chmod(0)
    (tmp_path / "folder").mkdir(mode=0o500)
    # Root ignores mode bits, unless it gives up the two capabilities that let it.
    capabilities = "-dac_override,-dac_read_search"
    as_anybody = ["setpriv", "--bounding-set", capabilities, "--inh-caps", capabilities] if os.getuid() == 0 else []
    before = sorted(tmp_path.rglob("*"))
    for words, exit_code, code in [
        (["convert", tmp_path / "closed.pb"], 3, "E0104"),
        (["validate", tmp_path / "closed.pb"], 3, "E0104"),
        (["validate", tmp_path / "closed.statepack"], 3, "E0504"),
        (["convert", tmp_path / "exported.pb", "-o", tmp_path / "folder" / "m.statepack"], 5, "E0550"),
        (["convert", tmp_path / "exported.pb", "--report", tmp_path / "folder" / "r.json"], 5, "E0731"),
    ]:
        run = subprocess.run(
            [*as_anybody, BIN / str(words[0]), *map(str, words[1:])], capture_output=True, text=True, check=False
        )
        assert run.returncode == exit_code, run.stderr
        assert run.stderr.startswith(f"error[{code}]: "), run.stderr
        assert str(tmp_path) in run.stderr
        assert sorted(tmp_path.rglob("*")) == before


def test_the_helper_itself_changes_nothing(tmp_path: pathlib.Path) -> None:
    original = (ROOT / "examples" / "01-stateful-transformer" / "exported.pb").read_bytes()
    assert changed_example(tmp_path / "same.pb", lambda file: None).read_bytes() == original


def test_unsupported_operators_are_named_all_at_once_and_exit_with_four(tmp_path: pathlib.Path) -> None:
    def change(file: Any) -> None:
        nodes = file.program.functions[0].nodes
        for node in nodes:
            if node.op == "aten.gelu.default":
                node.op = "aten.erfinv.default"
            if node.op == "aten.le.Tensor":
                node.op = "aten.bucketize.Tensor"

    path = changed_example(tmp_path / "exported.pb", change)
    result = command("convert", path, expect=4)
    assert result.stdout == ""
    assert result.stderr.count("error[E0120]") == 2
    for text in ("aten.erfinv.default", "aten.bucketize.Tensor", "model.py:"):
        assert text in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["exported.pb"]
    report = json.loads(command("validate", path, "--json", expect=4).stdout)
    assert report["exitCode"] == 4
    assert {finding["code"] for finding in report["findings"]} == {"E0120"}


def test_a_file_without_a_recording_holds_and_says_that_nothing_was_replayed(tmp_path: pathlib.Path) -> None:
    path = changed_example(tmp_path / "exported.pb", lambda file: file.ClearField("recording"))
    command("convert", path)
    for model in (path, tmp_path / "exported.statepack"):
        result = command("validate", model, "--json")
        report = json.loads(result.stdout)
        text = command("validate", model)
        assert text.stderr.startswith("warning[E0726]: the file carries no recording: nothing was replayed\n")
        assert report["replay"] == {"status": "noRecording"}
        (finding,) = report["findings"]
        assert (finding["code"], finding["severity"]) == ("E0726", "warning")
        assert finding["message"] == "the file carries no recording: nothing was replayed"


def test_a_recording_that_differs_is_a_finding_that_names_step_and_element(tmp_path: pathlib.Path) -> None:
    def change(file: Any) -> None:
        output = file.recording.replays[0].steps[2].outputs[0]
        output.values = output.values[:4] + struct.pack("<f", 1e3) + output.values[8:]

    path = changed_example(tmp_path / "exported.pb", change)
    command("convert", path)
    for model in (path, tmp_path / "exported.statepack"):
        result = command("validate", model, "--json", expect=1)
        report = json.loads(result.stdout)
        assert report["holds"] is False
        logits = next(tensor for tensor in report["replay"]["tensors"] if tensor["name"] == "logits")
        assert logits["firstFailingStep"] == {"replay": 0, "step": 2}
        assert report["findings"][0]["code"] == "E0721"
        assert "1000.0 at element 1," in report["findings"][0]["expected"]


def test_a_newer_format_is_refused(tmp_path: pathlib.Path) -> None:
    def change(file: Any) -> None:
        file.program.format_major += 1

    result = command("convert", changed_example(tmp_path / "exported.pb", change), expect=4)
    assert result.stderr.startswith("error[E0109]")


class CopiedState(nn.Module):
    """Reads the old value after the new one is known: no order of the two makes it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.ones(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.memory.clone()
        self.memory.copy_(self.memory * 2 + self.memory.sum(0) + x)
        return old - self.memory


def test_a_state_that_is_copied_is_an_error_when_in_place_is_required(tmp_path: pathlib.Path) -> None:
    statepack.ExportRequest(CopiedState(), (torch.ones(3),)).run().save(str(tmp_path / "exported.pb"))
    result = command(
        "convert", tmp_path / "exported.pb", "--require-in-place", "-o", tmp_path / "m.statepack", expect=1
    )
    assert result.stdout == ""
    assert "`memory`" in result.stderr
    assert "bytes per step because " in result.stderr
    assert not (tmp_path / "m.statepack").exists()
    accepted = command("convert", tmp_path / "exported.pb", "-o", tmp_path / "m.statepack")
    assert "copies 48 bytes per step because " in accepted.stdout
    command("validate", tmp_path / "m.statepack")


# Files cut short, at the built commands.


def test_weights_file_cut_anywhere_is_malformed_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(600, 600)
            self.register_buffer("last", torch.zeros(600))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last.copy_(x)
            return self.linear(x)

    folder = tmp_path / "whole"
    folder.mkdir()
    statepack.ExportRequest(Wide(), (torch.ones(600),)).run().save(str(folder / "exported.pb"))
    weights = (folder / "exported.safetensors").read_bytes()
    assert len(weights) > 1 << 20
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "exported.pb").write_bytes((folder / "exported.pb").read_bytes())
    for index in range(256):
        (cut / "exported.safetensors").write_bytes(weights[: len(weights) * index // 256])
        result = command("convert", cut / "exported.pb", expect=3)
        assert result.stdout == ""
        assert re.match(r"error\[E01\d\d\]: .+\n", result.stderr)
        assert sorted(path.name for path in cut.iterdir()) == ["exported.pb", "exported.safetensors"]
    (cut / "exported.safetensors").unlink()
    assert "exported.safetensors" in command("convert", cut / "exported.pb", expect=3).stderr


def test_a_reader_that_went_away_does_not_change_the_verdict(tmp_path: pathlib.Path) -> None:
    exported = ROOT / "examples" / "01-stateful-transformer" / "exported.pb"
    for arguments in (["statepack", "inspect", exported], ["validate", exported]):
        read, write = os.pipe()
        os.close(read)
        process = subprocess.run(
            [BIN / arguments[0], *arguments[1:]], stdout=write, stderr=subprocess.PIPE, check=False
        )
        os.close(write)
        assert process.returncode == 0
        assert process.stderr == b""


def test_results_that_cannot_be_written_exit_with_five() -> None:
    exported = ROOT / "examples" / "01-stateful-transformer" / "exported.pb"
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [BIN / "statepack", "inspect", exported], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert process.returncode == 5
    assert process.stderr.startswith("error[E0731]: the results could not be written\n")


def test_contract_document_fits_its_schema() -> None:
    schema = json.loads((ROOT / "schemas" / "contract.schema.json").read_text())
    exported = ROOT / "examples" / "01-stateful-transformer" / "exported.pb"
    for arguments in (["--json"], ["--json", "--details", "--sessions", "3"]):
        jsonschema.validate(json.loads(command("statepack", "inspect", exported, *arguments).stdout), schema)


def test_validate_report_fits_its_schema(tmp_path: pathlib.Path) -> None:
    schema = json.loads((ROOT / "schemas" / "validate-report.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    folder = ROOT / "examples" / "01-stateful-transformer"
    other = tmp_path / "other.contract.json"
    other.write_text((folder / "exported.contract.json").read_text().replace('"max": 256', '"max": 512'))
    cases: list[tuple[list[object], int]] = [
        ([], 0),
        (["--strict", "--sessions", "3", "--memory-budget", "1GiB", "--max-step-copies", "0"], 0),
        (["--descriptors", folder / "exported.contract.json"], 0),
        (["--descriptors", other, "--memory-budget", "1KB"], 1),
        (["--descriptors", tmp_path / "missing.json"], 3),
        (["--no-such-option"], 2),
    ]
    for arguments, exit_code in cases:
        run = command("validate", folder / "exported.pb", "--format", "json", *arguments, expect=exit_code)
        document = json.loads(run.stdout)
        jsonschema.validate(document, schema)
        assert document["exitCode"] == exit_code
        assert run.stderr == ""


def test_no_output_of_convert_may_be_the_weights_that_it_reads(tmp_path: pathlib.Path) -> None:
    request = statepack.ExportRequest(nn.Linear(600, 600).eval(), (torch.ones(600),))
    request.run().save(str(tmp_path / "exported.pb"))
    weights = tmp_path / "exported.safetensors"
    before = weights.read_bytes()
    for option in ("--output", "--report"):
        other = ["--output", tmp_path / "m.statepack"] if option == "--report" else []
        run = command("convert", tmp_path / "exported.pb", option, weights, *other, expect=2)
        assert run.stderr == (
            f"error[E0732]: {option} would overwrite a file that the command reads\n"
            f"  --> {weights}\n"
            f"  expected: a path other than {weights}\n"
            f"  found:    {weights}\n"
        )
        assert weights.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported.pb", "exported.safetensors"]
