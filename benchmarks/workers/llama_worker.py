"""llama.cpp through llama-cpp-python's bindings of its C interface: one context per sequence, float32 cache."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import sys
from typing import Any

import llama_cpp
import numpy
from protocol import serve

FLOAT32 = 0  # GGML_TYPE_F32
WARNING = 3  # GGML_LOG_LEVEL_WARN


@llama_cpp.llama_log_callback
def log(level: int, text: bytes, _: Any) -> None:
    """Warnings and errors only; kept at module level, for C holds no reference to it."""
    if level >= WARNING:
        print(text.decode(errors="replace"), end="", file=sys.stderr)


class Llama:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sequences: dict[str, list[Any]] = {}
        llama_cpp.llama_log_set(log, None)
        llama_cpp.llama_backend_init()

    def load(self) -> dict[str, str]:
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(self.options.model.encode(), parameters)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not open {self.options.model}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        description = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.model, description, len(description))
        return {
            "version": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}",
            "weights": description.value.decode(),
            "cache": "float32",
            "flash attention": self.options.flash,
            "processor": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def new_context(self) -> Any:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = self.options.capacity
        parameters.n_batch = self.options.capacity
        parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = self.options.threads
        parameters.type_k = parameters.type_v = FLOAT32
        parameters.flash_attn_type = 1 if self.options.flash == "on" else 0
        context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not context:
            raise RuntimeError("llama.cpp makes no context")
        return context

    def run(self, context: Any, tokens: list[int]) -> int:
        """The batch asks for the last row's logits alone."""
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        status = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        return int(numpy.ctypeslib.as_array(logits, shape=(self.vocabulary,)).argmax())

    def fill(self, sequence: str, tokens: list[int], block: int) -> int:
        context = self.sequences[sequence][0] if sequence in self.sequences else self.new_context()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        token = 0
        for start in range(0, len(tokens), block):
            token = self.run(context, tokens[start : start + block])
        self.sequences[sequence] = [context, token]
        return token

    def step(self, sequence: str) -> int:
        state = self.sequences[sequence]
        state[1] = self.run(state[0], [state[1]])
        return state[1]

    def prepare_prefill(self) -> None:
        if not hasattr(self, "empty"):
            self.empty = self.new_context()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.empty), True)

    def prefill(self, tokens: list[int]) -> int:
        return self.run(self.empty, tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--capacity", type=int, required=True)
    parser.add_argument("--flash", choices=["on", "off"], required=True)
    serve(Llama(parser.parse_args()))
