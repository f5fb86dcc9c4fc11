"""What most tests need: an export in memory, and a run of the program that would be written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import statepack
from statepack.converter import ExportedModel
from statepack.replay import run_function
from statepack.scalar_types import DTYPES
from statepack.sizes import evaluate
from statepack.tables import tensor_from_bytes

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

import exact_texts  # noqa: E402, beside this file


class Runner:
    """Runs a program's function call after call, from the initial values in the file on."""

    def __init__(self, model: ExportedModel, function: str = "main") -> None:
        self.program = model.program
        self.function = next(f for f in self.program.functions if f.name == function)
        self.constants = dict(enumerate(model._tensors))
        self.states = initial_states(model)

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs, self.states, _, _ = run_function(self.program, self.function, self.constants, inputs, {**self.states})
        return outputs


def initial_states(model: ExportedModel) -> dict[str, torch.Tensor]:
    """State name -> its initial value, as a reader of the file makes it."""
    states = {}
    for state in model.program.states:
        shape = [evaluate(size.postfix, []) for size in state.shape]
        if state.initial_tensor:
            states[state.name] = model._tensors[state.initial_tensor - 1].clone()
        else:
            splat = tensor_from_bytes(state.initial_splat, DTYPES[state.scalar_type], [])
            states[state.name] = splat.expand(shape).clone()
    return states


def refusal(act: Callable[[], object]) -> list[statepack.Diagnostic]:
    """The diagnostics with which the act is refused. Their text is the one in texts/, character for character."""
    with pytest.raises(statepack.ExportError) as caught:
        act()
    assert caught.value.diagnostics
    exact_texts.check(str(caught.value))
    return caught.value.diagnostics


def refused_export(module: nn.Module, args: tuple[Any, ...], **options: Any) -> statepack.Diagnostic:
    """The only diagnostic with which statepack.export refuses."""
    (diagnostic,) = refusal(lambda: statepack.export(module, args, **options))
    return diagnostic


def state_names(model: ExportedModel) -> list[str]:
    return [state.name for state in model.program.states]
