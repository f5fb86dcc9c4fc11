"""The printed table of states, in the words of `convert` and `inspect` (Sources/StatepackTool/ModelSummary.swift)."""

from __future__ import annotations

import math

from . import program_pb2 as pb
from .scalar_types import DTYPES, type_name
from .sizes import describe, evaluate
from .tables import tensor_from_bytes


def state_table(program: pb.Program) -> str:
    """A line for each state, or that there is none."""
    rows = [("state", "buffer", "type", "size", "starts as", "update")]
    names = [symbol.name for symbol in program.symbols]
    largest = [symbol.max for symbol in program.symbols]
    for index, state in enumerate(program.states):
        dtype = DTYPES[state.scalar_type]
        shape = ", ".join(describe(size.postfix, names) for size in state.shape)
        count = math.prod(evaluate(size.postfix, largest) for size in state.shape)
        # Once for each function that writes it, in their order.
        writers = {
            use.written_by: None
            for function in program.functions
            for use in function.states
            if use.state == index and use.before != use.after
        }
        rows.append(
            (
                state.name,
                state.source_name,
                f"[{shape}] {type_name(dtype)}",
                byte_text(count * dtype.itemsize),
                _initial_text(state),
                f"written by {', '.join(writers)}" if writers else "only read",
            )
        )
    if len(rows) == 1:
        return "no states"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _initial_text(state: pb.State) -> str:
    if state.initial_tensor:
        return "a stored tensor"
    value = tensor_from_bytes(state.initial_splat, DTYPES[state.scalar_type], []).item()
    return str(value).lower() if isinstance(value, bool) else str(value)


def byte_text(count: int) -> str:
    """`512 bytes`, `1.50 KiB`, `94.4 MiB`: three digits and no more."""
    if count < 1024:
        return "1 byte" if count == 1 else f"{count} bytes"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    digits = 2 if value < 10 else 1 if value < 100 else 0
    # Halves go up, as in Swift.
    scaled = math.floor(value * 10**digits + 0.5)
    return f"{scaled / 10**digits:.{digits}f} {unit}"
