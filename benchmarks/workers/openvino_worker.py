"""OpenVINO with a stateful model: one infer request per sequence, float32 arithmetic and cache."""

from __future__ import annotations

import argparse
from typing import Any

import numpy
import openvino
from protocol import serve


class OpenVino:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sequences: dict[str, list[Any]] = {}

    def load(self) -> dict[str, str]:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": str(self.options.threads),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
        }
        self.compiled = openvino.Core().compile_model(f"{self.options.model}/model.xml", "CPU", settings)
        return {
            "version": f"openvino {openvino.__version__}",
            "weights": "float32",
            "cache": str(self.compiled.get_property("KV_CACHE_PRECISION")),
            "precision": str(self.compiled.get_property("INFERENCE_PRECISION_HINT")),
            "threads": str(self.compiled.get_property("INFERENCE_NUM_THREADS")),
        }

    def run(self, request: Any, tokens: list[int], position: int) -> int:
        count = len(tokens)
        values = {
            "input_ids": numpy.array([tokens], numpy.int64),
            "attention_mask": numpy.ones((1, position + count), numpy.int64),
            "position_ids": numpy.arange(position, position + count, dtype=numpy.int64)[None],
            "beam_idx": numpy.zeros(1, numpy.int32),
        }
        for name, value in values.items():
            request.set_tensor(name, openvino.Tensor(value))
        request.infer()
        return int(request.get_tensor("logits").data[0, -1].argmax())

    def fill(self, sequence: str, tokens: list[int], block: int) -> int:
        self.sequences.pop(sequence, None)
        request, token = self.compiled.create_infer_request(), 0
        for start in range(0, len(tokens), block):
            token = self.run(request, tokens[start : start + block], start)
        self.sequences[sequence] = [request, len(tokens), token]
        return token

    def step(self, sequence: str) -> int:
        state = self.sequences[sequence]
        state[2] = self.run(state[0], [state[2]], state[1])
        state[1] += 1
        return state[2]

    def prepare_prefill(self) -> None:
        if not hasattr(self, "empty"):
            self.empty = self.compiled.create_infer_request()
        self.empty.reset_state()

    def prefill(self, tokens: list[int]) -> int:
        return self.run(self.empty, tokens, 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    serve(OpenVino(parser.parse_args()))
