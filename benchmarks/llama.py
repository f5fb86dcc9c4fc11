"""Writes a seeded language model of Llama's shape as exported.pb and exported.safetensors (4.4 GB of weights).

    python benchmarks/llama.py -o build/llama/exported.pb [--layers 22 --hidden 2048 …]

For measuring what size does to convert and load: the weights are random, so what the model says means nothing. They
exist once in memory, and the exporter's replay reads them a few times: the default takes some minutes and 10 GB.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import statepack

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples" / "02-smollm2"))
from model import StatefulCausalLM


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="exported.pb")
    parser.add_argument("--hidden", type=int, default=2048, help="width of a token")
    parser.add_argument("--intermediate", type=int, default=5632, help="width inside a layer")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-value-heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--capacity", type=int, default=2048, help="positions that the states hold")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def seeded(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """The model with random weights, none of which was there twice."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    # The frequencies are no parameter, so that nothing below fills them.
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.uniform_(-0.03, 0.03, generator=generator)
    return model.eval()


def main() -> None:
    options = arguments()
    config = LlamaConfig(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.key_value_heads,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.capacity,
        tie_word_embeddings=False,
    )
    config._attn_implementation = "sdpa"
    warnings.filterwarnings("ignore", category=FutureWarning)
    module = StatefulCausalLM(seeded(config, options.seed), options.capacity).eval()
    query = torch.export.Dim("query", min=1, max=options.capacity)
    prompt = (torch.tensor([[3, 1, 4]]), torch.arange(3)[None])
    request = statepack.ExportRequest(
        module,
        prompt,
        dynamic_shapes={"input_ids": {1: query}, "position_ids": {1: query}},
        input_names=["input_ids", "position_ids"],
        state_names={"key_cache": "keyCache", "value_cache": "valueCache"},
        output_names=["logits"],
        context=statepack.Context(positions="position_ids", axes={"keyCache": 3, "valueCache": 3}),
        recording_inputs=[prompt, *((torch.tensor([[token]]), torch.tensor([[at]])) for at, token in ((3, 1), (4, 5)))],
    )
    pathlib.Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    request.run().save(options.output)


if __name__ == "__main__":
    main()
