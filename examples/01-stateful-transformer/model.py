"""A small transformer that keeps the keys and values of earlier positions in two buffers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class StatefulTransformer(nn.Module):
    """Reads `features` [1, query, hidden] at `position_ids` [query] and every earlier position.

    The two buffers hold one row per layer and position. They are written in the two usual ways, by index
    assignment and by `index_copy_`; torch.export makes both states of the exported function.
    """

    def __init__(self, layers: int, max_context: int, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(hidden_size) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.head = nn.Linear(hidden_size, hidden_size, bias=False)
        self.register_buffer("key_cache", torch.zeros(layers, max_context, hidden_size))
        self.register_buffer("value_cache", torch.zeros(layers, max_context, hidden_size))

    def forward(self, features: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        # Row i may look at every position up to its own: the prefix that is written, and nothing behind it.
        visible = torch.arange(self.key_cache.shape[1])[None, :] <= position_ids[:, None]
        for index, layer in enumerate(self.layers):
            normed = layer.attention_norm(features)
            self.key_cache[index, position_ids] = layer.key(normed[0])
            self.value_cache[index].index_copy_(0, position_ids, layer.value(normed[0]))
            features = features + layer.attend(normed, self.key_cache[index], self.value_cache[index], visible)
            features = features + layer.transform(layer.transform_norm(features))
        return self.head(self.norm(features))


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, one head."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.transform_norm = nn.LayerNorm(hidden_size)
        self.transform = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size), nn.GELU(), nn.Linear(2 * hidden_size, hidden_size)
        )

    def attend(
        self, normed: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        query = self.query(normed)[:, None]
        found = functional.scaled_dot_product_attention(
            query, keys[None, None], values[None, None], attn_mask=visible[None, None]
        )
        return self.out(found[:, 0])
