"""Runs a function of program.proto with torch's own operators.

What is compared with eager PyTorch, and recorded, is thereby the very program that is written, arguments,
defaults, size expressions and all, and not the graph that it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from . import program_pb2 as pb
from .scalar_types import DTYPES
from .sizes import SYMBOL, evaluate

Named = dict[str, torch.Tensor]


def solve_symbols(program: pb.Program, function: pb.Function, shapes: Mapping[int, Sequence[int]]) -> list[int]:
    """Symbol values from the shapes of a function's input and state values."""
    values = [symbol.min for symbol in program.symbols]
    for value, shape in shapes.items():
        for size, found in zip(function.values[value].shape, shape, strict=True):
            if len(size.postfix) == 2 and size.postfix[0] == SYMBOL:
                values[size.postfix[1]] = found
    return values


def operator_of(name: str) -> Any:
    namespace, base, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload)


def argument_values(node: pb.Node, symbols: Sequence[int], lookup: Callable[[int], Any]) -> dict[str, Any]:
    """The node's arguments as torch takes them, by name."""
    result: dict[str, Any] = {}
    for argument in node.arguments:
        kind = argument.WhichOneof("value")
        if kind == "tensor":
            result[argument.name] = lookup(argument.tensor)
        elif kind == "tensors":
            result[argument.name] = [None if index < 0 else lookup(index) for index in argument.tensors.tensors]
        elif kind == "size":
            result[argument.name] = evaluate(argument.size.postfix, symbols)
        elif kind == "sizes":
            result[argument.name] = [evaluate(size.postfix, symbols) for size in argument.sizes.sizes]
        elif kind == "scalar_type":
            result[argument.name] = DTYPES[argument.scalar_type]
        elif kind == "numbers":
            result[argument.name] = list(argument.numbers.numbers)
        elif kind == "none":
            result[argument.name] = None
        else:
            result[argument.name] = getattr(argument, kind)
    return result


def operands(node: pb.Node) -> list[int]:
    """Every value the node reads."""
    result: list[int] = []
    for argument in node.arguments:
        kind = argument.WhichOneof("value")
        if kind == "tensor":
            result.append(argument.tensor)
        elif kind == "tensors":
            result += [index for index in argument.tensors.tensors if index >= 0]
    return result


def last_uses(function: pb.Function) -> list[list[int]]:
    """For each node the values that nothing reads after it."""
    kept = {output.value for output in function.outputs} | {state.after for state in function.states}
    last: dict[int, int] = {}
    for index, node in enumerate(function.nodes):
        for value in [*operands(node), *node.results]:
            last[value] = index
    released: list[list[int]] = [[] for _ in function.nodes]
    for value, index in last.items():
        if value not in kept:
            released[index].append(value)
    return released


def call(node: pb.Node, arguments: dict[str, Any]) -> list[Any]:
    """The node's results."""
    if node.op in ("aten.view.default", "aten._unsafe_view.default"):
        # The memory format of a clone in front of it is not part of the program.
        return [arguments["self"].reshape(arguments["size"])]
    found = operator_of(node.op)(**arguments)
    return list(found) if isinstance(found, list | tuple) else [found]


def run_function(
    program: pb.Program,
    function: pb.Function,
    constants: Mapping[int, torch.Tensor],
    inputs: Mapping[str, torch.Tensor],
    states: Mapping[str, torch.Tensor],
    *,
    widen: bool = False,
    keep: Collection[int] = (),
) -> tuple[Named, Named, dict[int, torch.Tensor], list[int]]:
    """One call: outputs and states by name, the values in `keep`, and the symbol values.

    Nothing that is passed in is written. `widen` computes float32 as float64, which shows how much is rounding.
    """

    def wide(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if widen and tensor.dtype == torch.float32 else tensor

    values: dict[int, Any] = {}
    shapes: dict[int, Sequence[int]] = {}
    for named in function.inputs:
        values[named.value] = wide(inputs[named.name])
        shapes[named.value] = inputs[named.name].shape
    for state in function.states:
        name = program.states[state.state].name
        values[state.before] = wide(states[name])
        shapes[state.before] = states[name].shape
    symbols = solve_symbols(program, function, shapes)
    stored = {constant.value: constant.tensor for constant in function.constants}

    def lookup(value: int) -> Any:
        return values[value] if value in values else wide(constants[stored[value]])

    for node, released in zip(function.nodes, last_uses(function), strict=True):
        arguments = argument_values(node, symbols, lookup)
        if widen and arguments.get("dtype") is torch.float32:
            arguments["dtype"] = torch.float64
        for value, result in zip(node.results, call(node, arguments), strict=True):
            values[value] = result
        for value in released:
            if value not in keep:
                values.pop(value, None)
    outputs = {output.name: lookup(output.value) for output in function.outputs}
    after = {program.states[state.state].name: lookup(state.after) for state in function.states}
    return outputs, after, {value: lookup(value) for value in keep}, symbols
