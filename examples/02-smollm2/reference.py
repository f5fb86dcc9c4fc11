"""What eager PyTorch generates with this model, and how long a step takes it: the measure for the Swift side.

    python reference.py teacher -o build/smollm2/teacher.safetensors
    python reference.py time --context 128 --threads 2

`teacher` writes, for each of two prompts, `prompt0.input_ids` [n], the greedily chosen `prompt0.tokens` [64] and
`prompt0.logits` [64, vocabulary]: row k is what tokens[k] was chosen from. `time` prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time

import torch
from model import load_model
from safetensors.torch import save_file
from tokens import encode, load_tokenizer
from transformers import PreTrainedModel, StaticCache

PROMPTS = ["What is the capital of France?", "Explain in two sentences why the sky is blue."]


@torch.no_grad()
def teacher(model: PreTrainedModel, input_ids: list[int], steps: int) -> dict[str, torch.Tensor]:
    """Greedy tokens and the logits they were chosen from, with the model's own growing cache."""
    tokens: list[int] = []
    logits = []
    given = torch.tensor([input_ids])
    cache = None
    for _ in range(steps):
        result = model(given, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = result.past_key_values
        logits.append(result.logits[0, -1].clone())
        tokens.append(int(logits[-1].argmax()))
        given = torch.tensor([[tokens[-1]]])
    return {"input_ids": torch.tensor(input_ids), "tokens": torch.tensor(tokens), "logits": torch.stack(logits)}


@torch.no_grad()
def step_milliseconds(model: PreTrainedModel, context: int, capacity: int, steps: int) -> list[float]:
    """Wall time of single-token steps that begin at `context`, with a static cache, argmax included."""
    generator = torch.Generator().manual_seed(7)
    prompt = torch.randint(0, model.config.vocab_size, (1, context - 3), generator=generator)
    cache = StaticCache(config=model.config, max_cache_len=capacity)
    positions = torch.arange(context - 3)
    logits = model(prompt, position_ids=positions[None], past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    times = []
    for step in range(3 + steps):
        begin = time.perf_counter()
        token = logits[:, -1].argmax(-1, keepdim=True)
        logits = model(
            token,
            position_ids=torch.tensor([[context - 3 + step]]),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        times.append(1000 * (time.perf_counter() - begin))
    return times[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    teach = commands.add_parser("teacher")
    teach.add_argument("-o", "--output", required=True)
    teach.add_argument("--steps", type=int, default=64)
    timing = commands.add_parser("time")
    timing.add_argument("--context", type=int, default=128)
    timing.add_argument("--capacity", type=int, default=2048)
    timing.add_argument("--threads", type=int, default=2)
    timing.add_argument("--steps", type=int, default=32)
    options = parser.parse_args()
    if options.command == "time":
        torch.set_num_threads(options.threads)
        times = step_milliseconds(load_model(), options.context, options.capacity, options.steps)
        print(
            json.dumps(
                {
                    "system": f"PyTorch {torch.__version__.split('+')[0]} eager, StaticCache",
                    "threads": options.threads,
                    "context": options.context,
                    "median_ms": round(statistics.median(times), 3),
                    "minimum_ms": round(min(times), 3),
                }
            )
        )
        return
    model, tokenizer = load_model(), load_tokenizer()
    contents = {}
    for index, prompt in enumerate(PROMPTS):
        input_ids = encode(tokenizer, {"prompt": prompt})["tokens"]
        found = teacher(model, input_ids, options.steps)
        print(json.dumps({"prompt": prompt, "text": tokenizer.decode(found["tokens"])}, ensure_ascii=False))
        contents |= {f"prompt{index}.{name}": tensor for name, tensor in found.items()}
    path = pathlib.Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(contents, str(path))


if __name__ == "__main__":
    main()
