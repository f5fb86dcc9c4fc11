"""How far a correct implementation may differ from the recorded values, and where it may not at all.

The tolerance of a float32 tensor is

    relative = EPSILON * sqrt(reduction length)
    absolute = relative * largest finite magnitude in the tensor + MEASURED * measured error

The reduction length counts the additions on the costliest path from the inputs to the tensor (K for a
linear layer, the axis length for a softmax or a mean, head size plus keys for attention), added up through
the layers and, for states, through the steps: rounding errors of independent sums grow with the square root
of their number. The measured error is the largest difference between the float32 run and the same
program computed in float64; it covers cancellation, which the formula does not see. A different summation
order has errors of the same size as the measured one; MEASURED leaves a factor of eight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from . import program_pb2 as pb
from .replay import argument_values, call, last_uses, operands
from .sizes import evaluate

EPSILON = 2.0**-23
MEASURED = 8.0

# Only move or select elements.
_VIEWS = frozenset(
    {
        "aten.view.default",
        "aten.reshape.default",
        "aten._unsafe_view.default",
        "aten.permute.default",
        "aten.transpose.int",
        "aten.t.default",
        "aten.unsqueeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.select.int",
        "aten.slice.Tensor",
        "aten.expand.default",
        "aten.alias.default",
        "aten.detach.default",
        "aten.flatten.using_ints",
        "aten.clone.default",
        "aten.contiguous.default",
        "aten.lift_fresh_copy.default",
    }
)
_MOVES = _VIEWS | {
    "aten.split_with_sizes.default",
    "aten.copy.default",
    "aten.where.self",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    "aten.full.default",
    "aten.full_like.default",
    "aten.zeros.default",
    "aten.ones.default",
    "aten.zeros_like.default",
    "aten.ones_like.default",
    "aten.scalar_tensor.default",
    "aten.embedding.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.gather.default",
    "aten.index_copy.default",
    "aten.slice_scatter.default",
    "aten.select_scatter.default",
    "aten.scatter.src",
    "aten.cat.default",
}
# Replace some elements of `self` and keep the others' bits: operator -> the argument that holds the new ones.
_WRITES = {
    "aten.index_put.default": "values",
    "aten.index_copy.default": "source",
    "aten.slice_scatter.default": "src",
    "aten.select_scatter.default": "src",
    "aten.scatter.src": "src",
}
_INTEGERS = frozenset({pb.BOOL, pb.INT8, pb.INT16, pb.INT32, pb.INT64, pb.UINT8, pb.UINT16, pb.UINT32, pb.UINT64})


def reduction_lengths(
    program: pb.Program, function: pb.Function, symbols: Sequence[int], states: Mapping[str, float]
) -> dict[int, float]:
    """Additions behind each value, given those behind the states when the call starts."""
    lengths: dict[int, float] = {
        state.before: states.get(program.states[state.state].name, 0.0) for state in function.states
    }

    def shape(value: int) -> list[int]:
        return [evaluate(size.postfix, symbols) for size in function.values[value].shape]

    for node in function.nodes:
        length = max((lengths.get(value, 0.0) for value in operands(node)), default=0.0)
        length += _own_length(node, shape, symbols)
        for value in node.results:
            lengths[value] = length
    return lengths


def _own_length(node: pb.Node, shape, symbols: Sequence[int]) -> float:  # type: ignore[no-untyped-def]
    if node.op in _MOVES:
        return 0
    arguments = argument_values(node, symbols, lambda value: shape(value))
    name = node.op.split(".")[1]
    if name in ("linear", "mm", "bmm", "matmul"):
        first = arguments["input"] if name == "linear" else arguments["self"]
        return first[-1]
    if name == "addmm":
        return arguments["mat1"][-1]
    if name == "scaled_dot_product_attention":
        return arguments["query"][-1] + arguments["key"][-2]
    if name in ("layer_norm", "rms_norm"):
        return 2 * math.prod(arguments["normalized_shape"])
    if name in ("softmax", "_softmax", "cumsum"):
        sizes = arguments["self"]
        return sizes[arguments["dim"]] if sizes else 1
    if name in ("sum", "mean"):
        sizes = arguments["self"]
        axes = arguments.get("dim") or range(len(sizes))
        return math.prod(sizes[axis] for axis in axes)
    return 1


def tolerance(expected: torch.Tensor, length: float, measured: float) -> tuple[float, float]:
    """Absolute and relative tolerance; zero for integers and booleans, which must be equal."""
    if not expected.dtype.is_floating_point:
        return 0.0, 0.0
    relative = EPSILON * math.sqrt(length + 16)
    finite = expected[torch.isfinite(expected)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return relative * largest + MEASURED * measured, relative


def difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """|found - expected| in float64; 0 where both are NaN or the same infinity, infinite where one is."""
    a, b = found.double(), expected.double()
    gap = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(same, torch.zeros_like(gap), gap)
    return torch.where(gap.isnan(), torch.full_like(gap, math.inf), gap)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Element by element; NaN equals the same NaN, zero is not minus zero."""
    views = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    view = views[a.element_size()]
    return a.contiguous().view(view) == b.contiguous().view(view)


def exact_states(program: pb.Program) -> set[str]:
    """States whose every update only moves data, so that no implementation may round.

    A state may be fed from another, and from itself: begin with all and remove until nothing changes.
    """
    exact = {state.name for state in program.states}
    while True:
        remaining = set(exact)
        for function in program.functions:
            values = _exact_values(program, function, exact)
            for state in function.states:
                if state.after not in values:
                    remaining.discard(program.states[state.state].name)
        if remaining == exact:
            return exact
        exact = remaining


def _exact_values(program: pb.Program, function: pb.Function, exact: set[str]) -> set[int]:
    values = {named.value for named in function.inputs} | {constant.value for constant in function.constants}
    values |= {state.before for state in function.states if program.states[state.state].name in exact}
    for node in function.nodes:
        integers = all(function.values[value].scalar_type in _INTEGERS for value in [*operands(node), *node.results])
        # Comparisons of exact operands are exact, whatever the operands' type.
        comparison = node.op.split(".")[1] in ("eq", "ne", "lt", "le", "gt", "ge")
        accumulates = any(argument.name == "accumulate" and argument.flag for argument in node.arguments)
        moves = (node.op in _MOVES or node.op == "aten.index_put.default") and not accumulates
        converts = node.op == "aten._to_copy.default"
        if (moves or converts or integers or comparison) and all(value in values for value in operands(node)):
            values.update(node.results)
    return values


def keeps_untouched(function: pb.Function, state: pb.FunctionState) -> bool:
    """True when the update is a chain of writes into the old value, so that all else keeps its bits."""
    return state.after in _lineage(function, state)


def written_by(function: pb.Function, state: pb.FunctionState) -> str:
    """The operators that the author's writes became, for people; "copy" for a value computed as a whole."""
    if state.after == state.before:
        return "none"
    lineage = _lineage(function, state)
    if state.after not in lineage:
        return "copy"
    found = set()
    for node in function.nodes:
        if lineage.issuperset(node.results) and (node.op in _WRITES or node.op == "aten.where.self"):
            source = _data_operands(node).get(_WRITES.get(node.op, ""))
            # A scatter of a part that was itself written is how the part goes back.
            if source not in lineage:
                found.add(node.op.split(".")[1])
    return ", ".join(sorted(found)) or "copy"


def _lineage(function: pb.Function, state: pb.FunctionState) -> set[int]:
    """Values that are the state, or a view of it, on the way from its old value to its new one."""
    forward = {state.before}
    for node in function.nodes:
        if _continues_lineage(node, forward):
            forward.update(node.results)
    # Views that only feed the computation, such as a layer's keys, are not on the way.
    wanted = {state.after}
    for node in reversed(function.nodes):
        if wanted.intersection(node.results) and _continues_lineage(node, forward):
            wanted.update(value for value in _data_operands(node).values() if value in forward)
    return forward & wanted | {state.before}


def _continues_lineage(node: pb.Node, lineage: set[int]) -> bool:
    tensors = {argument.name: argument.tensor for argument in node.arguments if argument.HasField("tensor")}
    if node.op in _VIEWS or node.op in _WRITES:
        return tensors.get("self") in lineage
    if node.op == "aten.where.self":
        return tensors.get("self") in lineage or tensors.get("other") in lineage
    return False


def written_elements(
    function: pb.Function,
    state: pb.FunctionState,
    symbols: Sequence[int],
    values: Mapping[int, torch.Tensor],
    shape: Sequence[int],
) -> torch.Tensor:
    """Which elements of the state the step wrote, whether or not their bits changed.

    The writes are carried out once more on a boolean tensor of the state's shape. `values` has what the
    indices and masks of the writes need.
    """
    if state.after == state.before:
        return torch.zeros(tuple(shape), dtype=torch.bool)
    lineage = _lineage(function, state)
    if state.after not in lineage:
        return torch.ones(tuple(shape), dtype=torch.bool)
    masks: dict[int, torch.Tensor] = {state.before: torch.zeros(tuple(shape), dtype=torch.bool)}
    for node, released in zip(function.nodes, last_uses(function), strict=True):
        if lineage.issuperset(node.results) and _continues_lineage(node, lineage):
            arguments = argument_values(node, symbols, values.get)
            for name, value in _data_operands(node).items():
                mask = masks.get(value)
                arguments[name] = torch.ones_like(values[value], dtype=torch.bool) if mask is None else mask
            if "accumulate" in arguments:
                arguments["accumulate"] = False
            masks[node.results[0]] = call(node, arguments)[0]
        for value in released:
            masks.pop(value, None)
    return masks[state.after]


def _data_operands(node: pb.Node) -> dict[str, int]:
    """Operands that hold elements of the result, by argument name; the others say where and whether."""
    names = {"self"} if node.op != "aten.where.self" else {"self", "other"}
    names.add(_WRITES.get(node.op, "self"))
    return {a.name: a.tensor for a in node.arguments if a.HasField("tensor") and a.name in names}


def mask_operands(function: pb.Function) -> set[int]:
    """Values that `written_elements` reads: what stands beside the state in its chain of writes."""
    wanted: set[int] = set()
    for state in function.states:
        lineage = _lineage(function, state)
        for node in function.nodes:
            if lineage.issuperset(node.results) and _continues_lineage(node, lineage):
                data = set(_data_operands(node).values()) & lineage
                wanted.update(value for value in operands(node) if value not in data)
    return wanted
