"""Which axes of a state the axes of a value in the graph are, through views and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from .decomposition import operator_name

#: Give their operand, element for element and in its shape.
_SAME = frozenset(
    {
        "aten.alias.default",
        "aten.clone.default",
        "aten.contiguous.default",
        "aten.detach.default",
        "aten.lift_fresh_copy.default",
    }
)
_RESHAPES = frozenset(
    {"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints"}
)


@dataclass(frozen=True)
class StateView:
    """A value that holds elements of a state."""

    #: For each axis of the value the axes of the state that it runs over; none for one of length 1 that was added.
    axes: tuple[frozenset[int], ...]
    #: Axes of the state of which only places fixed at export are left.
    fixed: frozenset[int] = frozenset()
    #: The views on the way from the state, so that two views of the same elements are known to be that.
    path: tuple[Any, ...] = ()
    #: What a reshape was made of, and its shape: reshaping back gives it again.
    origin: tuple[StateView, tuple[str, ...]] | None = None

    def indices_of(self, axis: int) -> list[int]:
        """The value's axes that run over this axis of the state."""
        return [index for index, axes in enumerate(self.axes) if axis in axes]


def whole_state(rank: int) -> StateView:
    return StateView(tuple(frozenset({axis}) for axis in range(rank)))


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """A call's arguments by name, defaults included."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    schema = node.target._schema
    given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    given.update(zip((argument.name for argument in schema.arguments), node.args, strict=False))
    return given | node.kwargs


def view_of(node: torch.fx.Node, source: StateView) -> StateView | None:
    """What a view operator makes of its operand `self`; nothing when the operator is another one."""
    name = operator_name(node.target)
    given = arguments_of(node)
    value, operand = node.meta["val"], given["self"].meta["val"]
    if name in _SAME:
        return source
    if name in _RESHAPES:
        return _reshaped(source, _texts(operand.shape), _texts(value.shape))
    if name == "aten.permute.default":
        dims = [dim % operand.dim() for dim in given["dims"]]
    elif name == "aten.transpose.int":
        dims = list(range(operand.dim()))
        first, second = given["dim0"] % max(len(dims), 1), given["dim1"] % max(len(dims), 1)
        dims[first], dims[second] = dims[second], dims[first]
    elif name == "aten.t.default":
        dims = list(reversed(range(operand.dim())))
    else:
        return _resized(name, given, source, operand, value)
    return StateView(tuple(source.axes[dim] for dim in dims), source.fixed, (*source.path, ("permute", tuple(dims))))


def _resized(
    name: str, given: dict[str, Any], source: StateView, operand: torch.Tensor, value: torch.Tensor
) -> StateView | None:
    axes = list(source.axes)
    if name == "aten.unsqueeze.default":
        dim = given["dim"] % value.dim()
        axes.insert(dim, frozenset())
        return StateView(tuple(axes), source.fixed, (*source.path, ("unsqueeze", dim)))
    if name in ("aten.squeeze.dim", "aten.squeeze.dims"):
        dims = given["dim"] if isinstance(given["dim"], list | tuple) else [given["dim"]]
        gone = {dim % operand.dim() for dim in dims} if operand.dim() else set()
        gone = {dim for dim in gone if str(operand.shape[dim]) == "1"}
        axes = [own for dim, own in enumerate(axes) if dim not in gone]
        return StateView(tuple(axes), source.fixed, (*source.path, ("squeeze", tuple(sorted(gone)))))
    if name == "aten.expand.default":
        return aligned(source, value.dim())
    if name in ("aten.select.int", "aten.slice.Tensor"):
        return part_of(given, source, operand)
    return None


def aligned(source: StateView, rank: int) -> StateView:
    """The view broadcast to more axes."""
    return replace(source, axes=(*[frozenset[int]()] * (rank - len(source.axes)), *source.axes))


def part_of(given: dict[str, Any], source: StateView, operand: torch.Tensor) -> StateView:
    """The part of `source` that select, slice, select_scatter or slice_scatter names."""
    dim = cast(int, given["dim"]) % operand.dim()
    size = operand.shape[dim]
    if "index" in given:
        index = _place(given["index"], size)
        return StateView(
            (*source.axes[:dim], *source.axes[dim + 1 :]),
            source.fixed | source.axes[dim],
            (*source.path, ("select", dim, index)),
        )
    start, end = _place(given["start"], size) or "0", _place(given["end"], size)
    step = str(given["step"])
    if start == "0" and step == "1" and end in (None, str(size)):
        return source
    return StateView(source.axes, source.fixed | source.axes[dim], (*source.path, ("slice", dim, start, end, step)))


def _place(index: Any, size: Any) -> str | None:
    """An index as text; a fixed one counted from the start and cut at the size."""
    if isinstance(index, torch.fx.Node):
        index = index.meta["val"]
    if isinstance(index, int) and isinstance(size, int):
        index = min(index if index >= 0 else max(index + size, 0), size)
    elif isinstance(index, int) and index >= 2**62:
        # torch's word for "to the end".
        return str(size)
    return None if index is None else str(index)


def _texts(shape: Sequence[Any]) -> tuple[str, ...]:
    # Compared as text: comparing SymInts would add guards.
    return tuple(str(size) for size in shape)


def _reshaped(source: StateView, before: tuple[str, ...], after: tuple[str, ...]) -> StateView:
    if before == after:
        return source
    if source.origin is not None and source.origin[1] == after:
        return source.origin[0]
    axes: list[frozenset[int]] = []
    for taken, made in _groups(before, after):
        merged = frozenset().union(*(source.axes[axis] for axis in taken))
        axes += [merged] * made
    return StateView(tuple(axes), source.fixed, (*source.path, ("view", after)), (source, before))


def _groups(before: tuple[str, ...], after: tuple[str, ...]) -> list[tuple[range, int]]:
    """Axes of the operand, and how many axes of the result they become; in order."""
    groups: list[tuple[range, int]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        if i < len(before) and j < len(after) and before[i] == after[j]:
            groups.append((range(i, i + 1), 1))
            i, j = i + 1, j + 1
        elif j < len(after) and after[j] == "1":
            groups.append((range(i, i), 1))
            j += 1
        elif i < len(before) and before[i] == "1":
            groups.append((range(i, i + 1), 0))
            i += 1
        else:
            first_i, first_j = i, j
            i, j = _end_of_group(before, after, i, j)
            groups.append((range(first_i, i), j - first_j))
    return groups


def _end_of_group(before: tuple[str, ...], after: tuple[str, ...], i: int, j: int) -> tuple[int, int]:
    """Where the products of the sizes are equal again; the end of both when a size is symbolic."""
    left = right = 1
    first = True
    while first or left != right:
        first = False
        if left <= right and i < len(before) and before[i].isdigit():
            left *= int(before[i])
            i += 1
        elif j < len(after) and after[j].isdigit() and left > right:
            right *= int(after[j])
            j += 1
        else:
            return len(before), len(after)
    return i, j
