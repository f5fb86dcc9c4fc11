"""What an author declares about positions: which input carries them, and which axes of the states they index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Context:
    """Which input carries positions, and which axis of each state they index.

        statepack.export(..., context=statepack.Context("position_ids", axes={"keyCache": 1, "valueCache": 1}))

    The length of that axis is the state's capacity. Whoever runs the function refuses a negative position, and
    one at or past the capacity, before any state is written. Nothing is guessed: without a context an index
    means what it means in eager PyTorch. `export` checks the declaration against the graph.
    """

    #: Name of an int32 or int64 input of any shape; each of its elements is a position.
    positions: str
    #: State name -> axis, negative ones counted from the end. A qualified buffer name stands for its state.
    axes: Mapping[str, int] = field(default_factory=dict)
