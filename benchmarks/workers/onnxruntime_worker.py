"""ONNX Runtime GenAI: one generator per sequence."""

from __future__ import annotations

import argparse
from typing import Any

import numpy
import onnxruntime
import onnxruntime_genai as genai
from protocol import serve


class OnnxRuntime:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sequences: dict[str, Any] = {}

    def load(self) -> dict[str, str]:
        # The folder's genai_config.json has the number of threads and whether past and present share a buffer:
        # convert/onnxruntime_model.py wrote them.
        self.model = genai.Model(self.options.model)
        return {
            "version": f"onnxruntime-genai {genai.__version__}, onnxruntime {onnxruntime.__version__}",
            "weights": "float32",
            "cache": "float32",
        }

    def new_generator(self) -> Any:
        parameters = genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=self.options.capacity, do_sample=False)
        return genai.Generator(self.model, parameters)

    @staticmethod
    def next_token(generator: Any) -> int:
        """Computes logits unless appending tokens just did, and takes the most likely token."""
        generator.generate_next_token()
        return int(generator.get_next_tokens()[0])

    def fill(self, sequence: str, tokens: list[int], block: int) -> int:
        self.sequences.pop(sequence, None)
        generator = self.new_generator()
        for start in range(0, len(tokens), block):
            generator.append_tokens(numpy.array([tokens[start : start + block]], numpy.int32))
        self.sequences[sequence] = generator
        return self.next_token(generator)

    def step(self, sequence: str) -> int:
        return self.next_token(self.sequences[sequence])

    def prepare_prefill(self) -> None:
        self.empty = self.new_generator()

    def prefill(self, tokens: list[int]) -> int:
        self.empty.append_tokens(numpy.array([tokens], numpy.int32))
        return self.next_token(self.empty)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    serve(OnnxRuntime(parser.parse_args()))
