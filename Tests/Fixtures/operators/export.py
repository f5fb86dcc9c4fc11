"""Writes exported.pb beside this file: one module that uses every operator of schemas/ops.json.

    python Tests/Fixtures/operators/export.py

Outputs cover promotion, negative and open indices, absent and several axes, symbolic sizes as numbers;
states cover every way to write one. torch 2.13.0 made the committed file and its recording.
"""

import pathlib
import warnings

import torch
from torch import nn
from torch.nn import functional

import statepack


class EveryOperator(nn.Module):
    """`x` is float32 [query, 4], `p` holds the int64 positions [query]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stacked", torch.zeros(2, 8, 4))
        self.register_buffer("rows", torch.zeros(8, 4))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("heads", torch.zeros(2, 3, 8, 4))
        self.register_buffer("doubled", torch.ones(2, 4))
        self.weight = nn.Parameter(torch.randn(6, 4))
        self.embedding = nn.Embedding(10, 4)
        self.layer_norm = nn.LayerNorm(4)
        self.rms_norm = nn.RMSNorm(4)

    def forward(self, x: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = [*self.pointwise(x, p), *self.views(x, p), *self.made(x, p), *self.folded(x, p)]
        outputs += [*self.products(x, p), *self.indexed(x, p)]
        self.write(x, p)
        return tuple(outputs)

    def pointwise(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        positive, magnitude, query = x > 0, x.abs(), x.shape[0]
        arithmetic = [x + x, x + 2, x + 1.5, torch.add(x, x, alpha=2), x - 1, 3 - x, torch.sub(x, x, alpha=0.5)]
        arithmetic += [x * p[:, None], x / 3, p / 2, p + 1.5, p * 2, torch.maximum(x, x.neg()), torch.minimum(p, p + 1)]
        arithmetic += [x * query, x + query, p - query, torch.zeros(()) + x]
        powers = [
            x**2,
            magnitude**0.5,
            x**3,
            magnitude**-0.5,
            (x + 9) ** -1,
            x**1,
            p**2,
            magnitude**x,
            2.0**x,
            x.square(),
        ]
        bits = [
            positive & (x < 1),
            positive | (x < -1),
            positive ^ (p[:, None] > 1),
            p & 3,
            p | 4,
            p ^ p,
            ~positive,
            ~p,
        ]
        logic = [torch.logical_and(p, x[:, 0]), torch.logical_or(positive, positive), torch.logical_not(p)]
        comparisons = [x == 0, p == 1, p != p, p < 1.5, x <= p[:, None], x >= 0.5, positive == True, p >= p]  # noqa: E712
        bools = [positive + 1, positive * x, positive.float() * 2, x.isnan(), (x / 0).isinf()]
        unary = [x.neg(), x.abs(), x.exp(), (magnitude + 1).log(), magnitude.sqrt(), (magnitude + 1).rsqrt()]
        unary += [(x + 9).reciprocal(), x.sin(), x.cos(), p.cos(), x.tanh(), x.erf(), x.sigmoid(), x.floor(), x.ceil()]
        unary += [functional.silu(x), functional.relu(x), functional.gelu(x), functional.gelu(x, approximate="tanh")]
        unary += [p.abs(), functional.relu(p), p.floor()]
        choices = [torch.where(positive, x, 0.0), torch.where(positive, x, p[:, None]), torch.where(positive, 1, 0)]
        choices += [x.masked_fill(positive, float("-inf")), x.masked_fill(positive, x[0, 0])]
        choices += [x.clamp(-1, 1), x.clamp(min=0.5), p.clamp(max=3), p.clamp(0.5, 2)]
        return [*arithmetic, *powers, *bits, *logic, *comparisons, *bools, *unary, *choices]

    def views(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        query = x.shape[0]
        shapes = [x.view(-1), x.reshape(query * 2, 2), x.permute(1, 0), x.transpose(0, 1), x.t(), x.unsqueeze(-1)]
        shapes += [
            x[:, :1].squeeze(1),
            x[None].squeeze(),
            x[None, :, None].squeeze((0, 2)),
            x.flatten(),
            x.flatten(0, 1),
        ]
        parts = [
            x[-1],
            x[:, -1],
            x[1:],
            x[:-1],
            x[::2],
            x[:, 1:3],
            x[..., -2:],
            *x.split([1, 3], dim=-1),
            *x.chunk(2, -1),
        ]
        repeated = [x[:, None].expand(-1, 3, -1), x.repeat(2, 1), x.repeat(2, 1, 3)]
        copies = [x.clone(), x.to(torch.int64), p.to(torch.float32), p.to(torch.int32), x.contiguous()]
        copies += [x.transpose(0, 1).contiguous(), p.bool()]
        joined = [torch.cat([x, x]), torch.cat([x, p[:, None]], -1), torch.cat([x, torch.zeros(0), x], 1)]
        joined += [torch.stack([x, x], 1), torch.cat([self.rows, x])]
        return [*shapes, *parts, *repeated, *copies, *joined]

    def made(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        query = x.shape[0]
        filled = [torch.full((query, 2), 3.5), torch.full_like(x, 2), torch.zeros(query), torch.zeros_like(p)]
        filled += [torch.ones(query, dtype=torch.int64), torch.ones_like(x), torch.full((2,), 7), torch.tensor(2.5)]
        filled += [torch.zeros(3, dtype=torch.bool), torch.full((2,), query), x.new_zeros(query, 1)]
        counted = [torch.arange(query), torch.arange(1, query + 1), torch.arange(0, 8, 2), torch.arange(5.0)]
        counted += [torch.arange(0, 1, 0.25), torch.arange(3, dtype=torch.float32), torch.arange(query, query + 3)]
        counted += [torch.arange(10, 0, -3), torch.tril(torch.ones(4, 4, dtype=torch.bool))]
        return [*filled, *counted]

    def folded(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        positive = x > 0
        sums = [x.sum(), x.sum(0), x.sum(-1, keepdim=True), p.sum(), positive.sum(), positive.sum(0)]
        sums += [x.cumsum(0), p.cumsum(-1), positive.cumsum(0)]
        means = [x.mean(), x.mean((0, 1)), x.mean(-1), x.var(-1), x.var(0), x.var(), x.std(-1)]
        extremes = [x.amax(0), x.amin(-1, True), p.amax(0), x.max(), x.min(), p.max(), x.argmax(-1), x.argmax()]
        extremes += [x.argmax(0, keepdim=True), positive.any(1), positive.all(-1), positive.any(), positive.all()]
        norms = [self.layer_norm(x), self.rms_norm(x), functional.rms_norm(x, (4,), self.weight[0], 1e-6)]
        norms += [functional.layer_norm(x, (4,)), x.softmax(-1), functional.softmax(x, 0)]
        return [*sums, *means, *extremes, *norms]

    def products(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        weight, attend = self.weight, functional.scaled_dot_product_attention
        query = x.shape[0]
        matrices = [functional.linear(x, weight), functional.linear(x, weight, weight[:, 0]), x @ weight.t()]
        matrices += [x @ weight[0], weight[0] @ x.t(), weight[0] @ weight[1], x[None] @ weight.t()]
        matrices += [torch.bmm(x[None], weight.t()[None]), torch.addmm(weight[:, 0], x, weight.t())]
        matrices += [
            torch.addmm(weight[:, 0], x, weight.t(), alpha=0.5, beta=2.0),
            x.view(query, 2, 2) @ weight[:2, :2],
        ]
        matrices += [torch.outer(x[0], x[0]), torch.einsum("qd,nd->qn", x, weight)]
        keys = self.rows[None, None]
        heads = keys.view(1, 8, 2, 2).transpose(1, 2)
        grouped = x.view(1, query, 2, 2).transpose(1, 2).repeat(1, 2, 1, 1)
        visible = torch.arange(8)[None] <= p[:, None]
        attention = [attend(x[None, None], keys, keys), attend(x, x, x, is_causal=True)]
        attention += [attend(x[None], self.rows[None], self.rows[None], attn_mask=visible)]
        attention += [attend(grouped, heads, heads, enable_gqa=True, scale=0.3, attn_mask=torch.zeros(query, 8))]
        return [*matrices, *attention]

    def indexed(self, x: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        first = torch.zeros_like(p)
        reads = [self.embedding(p), x[first], self.stacked[:, p], self.stacked[0, p], self.stacked[first, p]]
        reads += [self.heads[:, :, p], self.heads[first, :, p], self.heads[:, first, p], self.rows[p - 1]]
        reads += [
            self.rows.index_select(0, p),
            self.rows.gather(0, p[:, None].expand(-1, 4)),
            x.gather(1, p[:, None] * 0),
        ]
        return reads

    def write(self, x: torch.Tensor, p: torch.Tensor) -> None:
        first = torch.zeros_like(p)
        self.stacked[0, p] = x
        self.stacked[:, p] = x
        self.stacked[1].index_copy_(0, p, x)
        self.stacked[:, 2:4] = 1.0
        self.stacked[1, 3] = x[0]
        self.rows.scatter_(0, p[:, None].expand(-1, 4), x)
        self.rows.copy_(self.rows + 1)
        self.rows[p, 0] = 5.0
        self.rows[:, 1] = self.rows[:, 2]
        self.rows[1:] = self.rows[:-1].clone()
        self.counts += 1
        self.counts[0] = 7
        self.counts.index_put_((first,), p, accumulate=True)
        self.heads[:, first, p] = x
        self.heads[first, :, p] = x[:, None]
        self.heads[:, :, p] = x
        self.heads[..., -1:, :] = 0
        self.doubled = self.doubled * 2


def build() -> statepack.ExportRequest:
    torch.manual_seed(20)
    query = torch.export.Dim("query", min=4, max=8)
    return statepack.ExportRequest(
        EveryOperator().eval(),
        (torch.randn(5, 4), torch.arange(5)),
        dynamic_shapes={"x": {0: query}, "p": {0: query}},
        recording_inputs=[
            (torch.randn(5, 4), torch.arange(5)),
            (torch.randn(4, 4), torch.arange(4, 8)),
            (torch.randn(8, 4), torch.arange(8)),
        ],
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    build().run().save(str(pathlib.Path(__file__).with_name("exported.pb")))
