"""Eager PyTorch with a static cache (of the capacity) or a dynamic one."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers
from protocol import serve
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache


class PyTorch:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sequences: dict[str, list[Any]] = {}
        torch.set_num_threads(options.threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def load(self) -> dict[str, str]:
        self.model = AutoModelForCausalLM.from_pretrained(
            self.options.model, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        types = {str(parameter.dtype) for parameter in self.model.parameters()}
        if self.options.compile:
            self.forward = torch.compile(self.model, mode="max-autotune-no-cudagraphs", dynamic=False)
        else:
            self.forward = self.model
        return {
            "version": f"torch {torch.__version__}, transformers {transformers.__version__}",
            "weights": ", ".join(sorted(types)),
            "cache": self.options.cache,
        }

    def new_cache(self) -> Any:
        if self.options.cache == "static":
            return StaticCache(config=self.model.config, max_cache_len=self.options.capacity)
        return DynamicCache(config=self.model.config)

    @torch.inference_mode()
    def run(self, cache: Any, tokens: list[int], position: int, *, single: bool = False) -> int:
        # Prefill is not compiled: each length would be compiled anew.
        forward = self.forward if single else self.model
        logits = forward(
            torch.tensor([tokens]),
            position_ids=torch.arange(position, position + len(tokens))[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return int(logits[0, -1].argmax())

    def fill(self, sequence: str, tokens: list[int], block: int) -> int:
        self.sequences.pop(sequence, None)
        cache, token = self.new_cache(), 0
        for start in range(0, len(tokens), block):
            token = self.run(cache, tokens[start : start + block], start)
        self.sequences[sequence] = [cache, len(tokens), token]
        return token

    def step(self, sequence: str) -> int:
        state = self.sequences[sequence]
        state[2] = self.run(state[0], [state[2]], state[1], single=True)
        state[1] += 1
        return state[2]

    @torch.inference_mode()
    def prepare_prefill(self) -> None:
        # A static cache is emptied, so that its memory is not allocated in what is timed.
        if self.options.cache == "static" and hasattr(self, "empty"):
            self.empty.reset()
        else:
            self.empty = self.new_cache()

    def prefill(self, tokens: list[int]) -> int:
        return self.run(self.empty, tokens, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--cache", choices=["static", "dynamic"], required=True)
    parser.add_argument("--compile", action="store_true")
    serve(PyTorch(parser.parse_args()))
