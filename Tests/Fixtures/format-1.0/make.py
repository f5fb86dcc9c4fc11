"""Wrote the files of this folder, once: what format version 1.0 looks like on disk.

They are frozen. Nothing writes them again: readers of every later version must read these bytes, and not those
that a later exporter would write. A new minor version gets a folder of its own.

    python Tests/Fixtures/format-1.0/make.py FOLDER
    convert FOLDER/exported.pb -o FOLDER/model.statepack
    convert FOLDER/sum.exported.pb -o FOLDER/sum.statepack
"""

from __future__ import annotations

import pathlib
import sys

import torch

import statepack
from statepack import writing


class Decoder(torch.nn.Module):
    """A cache with a declared context, a state that starts as a tensor, and one that starts as 5."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 20)
        self.out = torch.nn.Linear(20, 4, bias=False)
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.register_buffer("decay", torch.linspace(1.0, 2.0, 4))
        self.register_buffer("count", torch.full((), 5, dtype=torch.int64))

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.out(torch.relu(self.inner(x * self.decay)))
        self.cache[1, position_ids] = hidden
        self.decay.mul_(0.5)
        self.count.add_(x.shape[0])
        return hidden + self.cache[1].sum(0), self.cache[1].transpose(0, 1)


class Sum(torch.nn.Module):
    """As small as a program with a state can be: schemas/README.md shows its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total.clone()


def main(folder: str) -> None:
    statepack.ExportRequest(
        Sum().eval(),
        (torch.ones(2),),
        input_names=["x"],
        state_names=["sum"],
        output_names=["y"],
    ).run().save(pathlib.Path(folder) / "sum.exported.pb")
    # Small weights would go into exported.pb, and the golden has to have a file beside it.
    writing.INLINE_LIMIT = 0
    torch.manual_seed(1)
    query = torch.export.Dim("query", min=1, max=8)
    steps = [(torch.randn(count, 4), torch.arange(start, start + count)) for start, count in [(0, 3), (3, 1), (4, 4)]]
    statepack.ExportRequest(
        Decoder().eval(),
        steps[0],
        dynamic_shapes={"x": {0: query}, "position_ids": {0: query}},
        input_names=["x", "position_ids"],
        state_names={"cache": "keyCache", "decay": "decay", "count": "count"},
        output_names=["y", "rows"],
        context=statepack.Context(positions="position_ids", axes={"keyCache": 1}),
        recording_inputs=steps,
    ).run().save(pathlib.Path(folder) / "exported.pb")


if __name__ == "__main__":
    main(sys.argv[1])
