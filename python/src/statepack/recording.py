"""The recording: what eager PyTorch did in a few steps, and the proof that the program does the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from . import _codes as codes
from . import program_pb2 as pb
from .diagnostics import Diagnostic, ExportError
from .modules import EagerModule
from .precision import (
    bits_equal,
    difference,
    exact_states,
    keeps_untouched,
    mask_operands,
    reduction_lengths,
    tolerance,
    written_elements,
)
from .replay import run_function, solve_symbols
from .scalar_types import NUMBERS, describe
from .sizes import SYMBOL, evaluate
from .sizes import describe as describe_size
from .tables import element_bytes

#: Bytes of the serialised recording, at most.
LIMIT = 4 << 20
#: Elements kept of one output or state at first; halved until the recording fits.
_SAMPLE = 1 << 17
_LARGEST = 64
STEPS = 3


@dataclass
class StateUpdate:
    after: torch.Tensor
    written: torch.Tensor
    absolute: float
    relative: float
    untouched_exact: bool
    moves_data: bool


@dataclass
class StepRun:
    """One step as it was run: eager values, with their tolerances."""

    function: str
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, tuple[torch.Tensor, float, float]]
    states: dict[str, StateUpdate]


class Replayer:
    """Runs a program's functions beside eager PyTorch, both from the initial values on."""

    def __init__(
        self, program: pb.Program, constants: Mapping[int, torch.Tensor], initial: Mapping[str, torch.Tensor]
    ) -> None:
        self._program = program
        self._constants = constants
        self._initial = initial
        self._exact = exact_states(program)
        self.restart()

    def restart(self) -> None:
        self._eager = {name: value.clone() for name, value in self._initial.items()}
        self._found = {name: value.clone() for name, value in self._initial.items()}
        self._wide = {
            name: value.double() if value.dtype == torch.float32 else value.clone()
            for name, value in self._initial.items()
        }
        self._lengths: dict[str, float] = {}

    def eager_step(
        self, function: pb.Function, eager: EagerModule, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Eager PyTorch alone, from the present states on, which stay as they are. For trying inputs out."""
        return eager.run(inputs, {name: self._eager[name] for name in self._state_names(function)})

    def step(
        self, function: pb.Function, eager: EagerModule, inputs: Mapping[str, torch.Tensor], number: int
    ) -> StepRun:
        """One step of all three: eager, the program, and the program in float64.

        Throws `ExportError` with a diagnostic for every output and state that differs.
        """
        where = f"function `{function.name}`, step {number}"
        names = self._state_names(function)
        before = {name: self._eager[name] for name in names}
        self._check_state_sizes(function, inputs, before, where)
        try:
            outputs, after = eager.run(inputs, before)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(_failed("the module", where, error)) from error
        try:
            found, found_states, kept, symbols = run_function(
                self._program,
                function,
                self._constants,
                inputs,
                {name: self._found[name] for name in names},
                keep=mask_operands(function),
            )
            wide, wide_states, _, _ = run_function(
                self._program,
                function,
                self._constants,
                inputs,
                {name: self._wide[name] for name in names},
                widen=True,
            )
        except Exception as error:
            raise ExportError(_failed("the exported program", where, error)) from error

        lengths = reduction_lengths(self._program, function, symbols, self._lengths)
        findings: list[Diagnostic] = []
        result = StepRun(function.name, dict(inputs), {}, {})
        for output in function.outputs:
            expected = outputs[output.name]
            measured = _measured(found[output.name], wide[output.name])
            absolute, relative = tolerance(expected, lengths.get(output.value, 0.0), measured)
            findings += _compare(f"output `{output.name}`", where, found[output.name], expected, absolute, relative)
            result.outputs[output.name] = (expected, absolute, relative)
        for state in function.states:
            name = self._program.states[state.state].name
            if state.after == state.before:
                continue
            expected = after[name]
            measured = _measured(found_states[name], wide_states[name])
            absolute, relative = tolerance(expected, lengths.get(state.after, 0.0), measured)
            problems = _compare(f"state `{name}`", where, found_states[name], expected, absolute, relative)
            findings += problems
            if problems:
                continue
            changed = ~bits_equal(before[name], expected)
            written = written_elements(function, state, symbols, kept, expected.shape)
            result.states[name] = StateUpdate(
                expected,
                written | changed,
                absolute,
                relative,
                untouched_exact=keeps_untouched(function, state) and not bool((changed & ~written).any()),
                moves_data=name in self._exact and bool(bits_equal(found_states[name], expected).all()),
            )
        if findings:
            raise ExportError(findings)
        for state in function.states:
            name = self._program.states[state.state].name
            self._lengths[name] = lengths.get(state.after, 0.0)
        self._eager.update(after)
        self._found.update({name: value.clone() for name, value in found_states.items()})
        self._wide.update({name: value.clone() for name, value in wide_states.items()})
        return result

    def _check_state_sizes(
        self, function: pb.Function, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor], where: str
    ) -> None:
        """Refuses inputs that go with another size of a state: eager PyTorch may broadcast where the program cannot."""
        # Inputs last: they say what a size is, and a state only where no input has it.
        shapes = {use.before: states[self._program.states[use.state].name].shape for use in function.states}
        shapes |= {named.value: inputs[named.name].shape for named in function.inputs}
        symbols = solve_symbols(self._program, function, shapes)
        names = [symbol.name for symbol in self._program.symbols]
        findings = []
        for state in function.states:
            name = self._program.states[state.state].name
            sizes = function.values[state.before].shape
            found, expected = list(states[name].shape), [evaluate(size.postfix, symbols) for size in sizes]
            if found != expected:
                findings.append(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"the inputs do not fit the size of state `{name}`",
                        where,
                        expected=describe(states[name].dtype, expected)
                        + f" from [{', '.join(describe_size(size.postfix, names) for size in sizes)}]",
                        found=describe(states[name].dtype, found),
                        hint="a state keeps its shape: pass inputs of the example's size in every step",
                    )
                )
        if findings:
            raise ExportError(findings)

    def _state_names(self, function: pb.Function) -> list[str]:
        return [self._program.states[state.state].name for state in function.states]


def _measured(narrow: torch.Tensor, wide: torch.Tensor) -> float:
    if not narrow.dtype.is_floating_point:
        return 0.0
    gap = difference(narrow, wide)
    gap = gap[torch.isfinite(gap)]
    return float(gap.max()) if gap.numel() else 0.0


def _failed(who: str, where: str, error: Exception) -> Diagnostic:
    return Diagnostic(
        codes.REPLAY_FAILED,
        f"{who} fails on the recording's inputs",
        where,
        expected="values",
        found=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        hint="pass recording_inputs with one tuple of arguments per step",
    )


def _compare(
    what: str, where: str, found: torch.Tensor, expected: torch.Tensor, absolute: float, relative: float
) -> list[Diagnostic]:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        wanted, got = f"{expected.dtype} {list(expected.shape)}", f"{found.dtype} {list(found.shape)}"
    else:
        gap = difference(found, expected)
        allowed = absolute + relative * expected.double().abs()
        wrong = gap > torch.where(allowed.isfinite(), allowed, torch.zeros_like(allowed))
        if not bool(wrong.any()):
            return []
        worst = int(torch.where(wrong, gap, torch.zeros_like(gap)).argmax())
        wanted = f"{expected.flatten()[worst].item()!r} within {float(allowed.flatten()[worst]):.3g} in eager PyTorch"
        got = (
            f"{found.flatten()[worst].item()!r} at element {worst}; "
            f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        )
    return [
        Diagnostic(
            codes.EXPORT_MISMATCH,
            f"{what} of the exported program differs from eager PyTorch",
            where,
            expected=wanted,
            found=got,
            hint="look for Python state in the module: counters, flags or tensors that forward() sets on self",
        )
    ]


# Inputs of the steps that the author did not give.


def step_candidates(
    program: pb.Program,
    function: pb.Function,
    example: Mapping[str, torch.Tensor],
    previous: Mapping[str, torch.Tensor],
    number: int,
) -> list[dict[str, torch.Tensor]]:
    """Inputs for a step, best first; the caller takes the first that eager PyTorch accepts.

    Floats are varied, integers that look like positions go on where the last step stopped, other integers
    are rotated, dynamic sizes shrink to the smallest allowed. What a state's size depends on stays: a state keeps its
    shape from step to step.
    """
    shapes = {named.value: example[named.name].shape for named in function.inputs}
    largest = solve_symbols(program, function, shapes)
    kept = {
        symbol
        for state in function.states
        for size in function.values[state.before].shape
        for opcode, symbol in zip(size.postfix[::2], size.postfix[1::2], strict=True)
        if opcode == SYMBOL
    }
    sizes = [
        most if index in kept else min(max(1, symbol.min), most)
        for index, (symbol, most) in enumerate(zip(program.symbols, largest, strict=True))
    ]
    candidates = []
    for shrink in (True, False):
        for advance in (True, False):
            inputs = {}
            for named in function.inputs:
                tensor = _vary(named.name, example[named.name], previous[named.name], number, advance)
                if shrink:
                    for axis, size in enumerate(function.values[named.value].shape):
                        tensor = tensor.narrow(axis, 0, min(evaluate(size.postfix, sizes), tensor.shape[axis]))
                inputs[named.name] = tensor.contiguous().clone()
            candidates.append(inputs)
    return candidates


def _vary(name: str, example: torch.Tensor, previous: torch.Tensor, number: int, advance: bool) -> torch.Tensor:
    if example.numel() == 0 or example.dtype == torch.bool:
        return example
    if example.dtype.is_floating_point:
        seed = int.from_bytes(hashlib.sha256(f"{name} {number}".encode()).digest()[:6], "little")
        generator = torch.Generator().manual_seed(seed)
        scale = float(example.std()) if example.numel() > 1 else 1.0
        return example + 0.25 * (scale or 1.0) * torch.randn(example.shape, generator=generator, dtype=example.dtype)
    if looks_like_positions(example):
        return previous.max() + 1 + (example - example.min()) if advance else example
    return example.flatten().roll(number).reshape(example.shape) if advance else example


def looks_like_positions(tensor: torch.Tensor) -> bool:
    """Not negative, and counting up by one along the last axis in every row."""
    if tensor.dtype not in (torch.int32, torch.int64) or tensor.numel() == 0 or bool((tensor < 0).any()):
        return False
    return tensor.dim() == 0 or bool((tensor.diff(dim=-1) == 1).all())


# Serialised form.


def serialise(runs: Sequence[StepRun], share: int = 1) -> pb.Recording:
    """The recording of one replay out of `share`, cut to fit into its part of `LIMIT` bytes."""
    limit = LIMIT // share
    inputs = sum(tensor.numel() * tensor.element_size() for run in runs for tensor in run.inputs.values())
    if inputs > limit * 3 // 4:
        raise ExportError(
            Diagnostic(
                codes.RECORDING_TOO_LARGE,
                "the inputs of the recording are too large",
                "recording",
                expected=f"at most {limit * 3 // 4} bytes in all steps",
                found=f"{inputs} bytes in {len(runs)} steps",
                hint="pass smaller recording_inputs, at least three tuples of arguments",
            )
        )
    sample = _SAMPLE
    while True:
        recording = pb.Recording()
        replay = recording.replays.add()
        for run in runs:
            _serialise_step(replay.steps.add(function=run.function), run, sample)
        if recording.ByteSize() <= limit or sample <= 2 * _LARGEST:
            return recording
        sample //= 2


def _serialise_step(step: pb.Step, run: StepRun, sample: int) -> None:
    for name, tensor in run.inputs.items():
        step.inputs.add(name=name, scalar_type=NUMBERS[tensor.dtype], shape=tensor.shape, data=element_bytes(tensor))
    for name, (tensor, absolute, relative) in run.outputs.items():
        output = step.outputs.add(
            name=name,
            scalar_type=NUMBERS[tensor.dtype],
            shape=tensor.shape,
            absolute=absolute,
            relative=relative,
        )
        flat = tensor.flatten()
        if flat.numel() > sample:
            indices = _sample_of(torch.arange(flat.numel()), flat, sample)
            output.indices.extend(indices.tolist())
            flat = flat[indices]
        output.values = element_bytes(flat)
    for name, update in run.states.items():
        state = step.states.add(
            name=name, absolute=update.absolute, relative=update.relative, moves_data=update.moves_data
        )
        flat = update.after.flatten()
        indices = update.written.flatten().nonzero().flatten()
        if indices.numel() > sample:
            indices = _sample_of(indices, flat[indices], sample)
            state.sampled = True
        state.untouched_exact = update.untouched_exact and not state.sampled
        state.runs.extend(_runs(indices))
        state.values = element_bytes(flat[indices])


def _sample_of(indices: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """A fixed pseudo-random choice plus the largest magnitudes, ascending."""
    generator = torch.Generator().manual_seed(indices.numel())
    magnitudes = values.double().abs()
    largest = torch.where(magnitudes.isnan(), torch.zeros_like(magnitudes), magnitudes).topk(
        min(_LARGEST, indices.numel())
    )
    # In runs of 16, so that the list of places stays short beside the values.
    starts = torch.randperm(indices.numel() // 16, generator=generator)[: max(1, (count - _LARGEST) // 16)]
    chosen = (starts[:, None] * 16 + torch.arange(16)[None, :]).flatten()
    return indices[torch.cat([chosen, largest.indices])].unique(sorted=True)


def _runs(indices: torch.Tensor) -> list[int]:
    if indices.numel() == 0:
        return []
    breaks = (indices.diff() != 1).nonzero().flatten() + 1
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), breaks])
    ends = torch.cat([breaks, torch.tensor([indices.numel()])])
    return torch.stack([indices[starts], ends - starts], dim=1).flatten().tolist()
