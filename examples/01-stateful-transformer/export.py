"""Writes exported.pb for the small transformer of model.py.

    python examples/01-stateful-transformer/export.py [-o exported.pb] [--max-context 256]

The committed exported.pb is what this writes with its defaults.
"""

from __future__ import annotations

import argparse
import pathlib

import torch
from model import StatefulTransformer

import statepack


def request(layers: int = 2, max_context: int = 256, hidden_size: int = 64) -> statepack.ExportRequest:
    """The module with seeded weights, and how it is exported."""
    torch.manual_seed(20)
    module = StatefulTransformer(layers, max_context, hidden_size).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                # As training would leave them: all ones and zeros would hide a norm that ignores its weights.
                parameter.add_(0.1 * torch.randn_like(parameter))
    query = torch.export.Dim("query", min=1, max=max_context)
    prompt, step = torch.randn(1, 5, hidden_size), torch.randn(4, 1, 1, hidden_size)
    # As long as the context lets a prompt be, within what a recording may keep.
    longest = min(max_context, 256)
    return statepack.ExportRequest(
        module,
        (prompt, torch.arange(5)),
        dynamic_shapes={"features": {1: query}, "position_ids": {0: query}},
        input_names=["features", "position_ids"],
        state_names=["keyCache", "valueCache"],
        output_names=["logits"],
        # [layers, position, hidden]
        context=statepack.Context(positions="position_ids", axes={"keyCache": 1, "valueCache": 1}),
        # A prompt, then one position after the other, as a decoder is used; at last a prompt that fills the context,
        # so that every bound was tried (`validate --strict` asks for that).
        recording_inputs=[
            (prompt, torch.arange(5)),
            *((step[index], torch.tensor([5 + index])) for index in range(4)),
            (torch.randn(1, longest, hidden_size), torch.arange(longest)),
        ],
    )


def build() -> statepack.ExportRequest:
    """For `python -m statepack export examples/01-stateful-transformer/export.py:build`."""
    return request()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default=str(pathlib.Path(__file__).with_name("exported.pb")))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--max-context", type=int, default=256)
    parser.add_argument("--hidden-size", type=int, default=64)
    options = parser.parse_args()
    request(options.layers, options.max_context, options.hidden_size).run().save(options.output)


if __name__ == "__main__":
    main()
