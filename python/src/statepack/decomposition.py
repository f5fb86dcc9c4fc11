"""Which operators torch.export's graphs are taken apart into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# The default decomposition of these turns one written row into a rewrite of everything around it, or one
# fast kernel into twenty slow ones. Operators that may return a view of their argument cannot be kept.
_KEPT_WHOLE = frozenset(
    {
        "embedding",
        "gelu",
        "index_copy",
        "layer_norm",
        "linear",
        "rms_norm",
        "scaled_dot_product_attention",
        "select_scatter",
        "silu",
        "slice_scatter",
        "softmax",
    }
)


def get_decomp_table() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`.

    torch's own, without the operators that Statepack runs whole (linear, attention, norms, activations,
    softmax, embedding) and without the scatters that state writes are made of: their decomposition is a
    `where` over the whole state, 47 MB a layer on a chat model.
    """
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    for operator in list(table):
        if getattr(operator, "namespace", None) != "aten":
            continue
        if operator._schema.name.split("::")[1] in _KEPT_WHOLE:
            del table[operator]
    table[torch.ops.aten.index_put.default] = _masked_write
    return table


def _masked_write(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    """`state[mask] = value` as a `where`, if the elements behind the mask need not be counted for that."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return NotImplemented
    axis, mask = given[0]
    behind = self.dim() - axis - mask.dim()
    counted = values.dim() - behind - 1
    if counted >= 0:
        # The axis that runs over what the mask selects.
        if values.shape[counted] != 1:
            return NotImplemented
        values = values.reshape([*values.shape[:counted], *[1] * mask.dim(), *values.shape[counted + 1 :]])
    mask = mask.reshape([*mask.shape, *[1] * behind])
    return torch.where(mask, self + values if accumulate else values, self)


def operator_name(operator: Any) -> str:
    """`aten.index_copy.default` for an overload; the target's own text for anything else."""
    if isinstance(operator, torch._ops.OpOverload):
        namespace, name = operator._schema.name.split("::")
        return f"{namespace}.{name}.{operator._schema.overload_name or 'default'}"
    return str(getattr(operator, "__name__", operator))
