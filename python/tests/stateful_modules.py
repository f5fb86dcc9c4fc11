"""Modules that change their state in every way that people write, one idea each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn


class WithBuffers(nn.Module):
    """Registers the given tensors as buffers; names that start with an underscore are not persistent."""

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=not name.startswith("_"))


class AddInPlace(WithBuffers):
    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


class AugmentedAssignment(WithBuffers):
    def forward(self, x):
        self.total += x
        return self.total - x


class Reassignment(WithBuffers):
    def forward(self, x):
        self.total = self.total * 0.5 + x
        return self.total


class FullCopy(WithBuffers):
    def forward(self, x):
        old = self.last.clone()
        self.last.copy_(x)
        return x - old


class OneValueIntoTwoBuffersAndOutput(WithBuffers):
    def forward(self, x):
        y = x + self.a
        self.a.copy_(y)
        self.b.copy_(y)
        return y


class SliceViewWrite(WithBuffers):
    def forward(self, x):
        self.rows[1:3] = x
        return self.rows.sum(0)


class PerLayerWrites(WithBuffers):
    def forward(self, x, position):
        for layer in range(self.cache.shape[0]):
            x = x + self.cache[layer].sum(0)
            self.cache[layer, position] = x[None] * (layer + 1)
        return x


class ShiftRegister(WithBuffers):
    def forward(self, x):
        self.window = torch.cat([self.window[1:], x[None]])
        return self.window.mean(0)


class OverlappingShift(WithBuffers):
    def forward(self, x):
        self.window[:-1] = self.window[1:].clone()
        self.window[-1] = x
        return self.window.sum(0)


class WriteOnly(WithBuffers):
    def forward(self, x, position):
        self.log.index_copy_(0, position, x)
        return x * 2


class ReadThenWriteFlag(WithBuffers):
    def forward(self, x):
        first = torch.logical_not(self.started)
        self.started.fill_(True)
        return torch.where(first, x, -x)


class WhereGated(WithBuffers):
    def forward(self, x, gate):
        self.value.copy_(torch.where(gate, x, self.value))
        return self.value + 1


class NonPersistent(WithBuffers):
    def forward(self, x):
        self._count += 1
        return x + self._count


class MutatedInput(nn.Module):
    def forward(self, x, cache):
        cache.add_(x)
        return cache * 2


class MutatedInputAndBuffer(WithBuffers):
    def forward(self, x, cache):
        cache.copy_(cache * 0.5 + x)
        self.total.add_(cache)
        return self.total


class NoInputs(WithBuffers):
    def forward(self):
        self.count += 1
        return self.count.clone()


class NoOutputs(WithBuffers):
    def forward(self, x):
        self.total += x


class Swap(WithBuffers):
    def forward(self, x):
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        return self.a + x


class Rotation(WithBuffers):
    def forward(self, x):
        self.a, self.b, self.c = self.b.clone(), self.c.clone(), self.a.clone()
        return self.a - self.b + x


class ReturnOldThenOverwrite(WithBuffers):
    def forward(self, x):
        old = self.value.clone()
        self.value.copy_(x)
        return old


class OutputIsTheWrittenValue(WithBuffers):
    def forward(self, x):
        self.value.mul_(0.5).add_(x)
        return self.value


class IntegerCounter(WithBuffers):
    def forward(self, x):
        self.steps += x.sum()
        return self.steps * 2


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = AddInPlace(total=torch.ones(4))
        self.outer = Reassignment(total=torch.zeros(4))

    def forward(self, x):
        return self.inner(x) + self.outer(x)


class Stateless(nn.Module):
    def forward(self, x):
        return x * 2


@dataclass
class Case:
    make: Callable[[], nn.Module]
    #: Arguments of call k. Mutated inputs come last and are the same tensor from call to call.
    arguments: Callable[[int], tuple[torch.Tensor, ...]]
    states: list[str] = field(default_factory=list)
    #: Assignments in submodules, which torch.export itself does not list as mutations.
    unlisted: int = 0


def floats(step: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + step))


def _vector(step: int) -> tuple[torch.Tensor, ...]:
    return (floats(step, 4),)


CASES = {
    "add_": Case(lambda: AddInPlace(total=torch.zeros(4)), _vector, ["total"]),
    "+=": Case(lambda: AugmentedAssignment(total=torch.zeros(4)), _vector, ["total"]),
    "reassignment": Case(lambda: Reassignment(total=torch.ones(4)), _vector, ["total"]),
    "full copy from an input": Case(lambda: FullCopy(last=torch.zeros(4)), _vector, ["last"]),
    "one value into two buffers and an output": Case(
        lambda: OneValueIntoTwoBuffersAndOutput(a=torch.zeros(4), b=torch.ones(4)), _vector, ["a", "b"]
    ),
    "slice view write": Case(lambda: SliceViewWrite(rows=torch.zeros(4, 3)), lambda k: (floats(k, 2, 3),), ["rows"]),
    "per-layer writes into a stacked state": Case(
        lambda: PerLayerWrites(cache=torch.zeros(3, 8, 4)), lambda k: (floats(k, 4), torch.tensor([k])), ["cache"]
    ),
    "shift register": Case(lambda: ShiftRegister(window=torch.zeros(3, 4)), _vector, ["window"]),
    "overlapping shift": Case(lambda: OverlappingShift(window=torch.zeros(3, 4)), _vector, ["window"]),
    "write-only": Case(
        lambda: WriteOnly(log=torch.zeros(8, 4)), lambda k: (floats(k, 1, 4), torch.tensor([k])), ["log"]
    ),
    "read-then-write flag": Case(lambda: ReadThenWriteFlag(started=torch.tensor(False)), _vector, ["started"]),
    "where-gated": Case(
        lambda: WhereGated(value=torch.zeros(4)), lambda k: (floats(k, 4), torch.tensor(k % 2 == 0)), ["value"]
    ),
    "non-persistent": Case(lambda: NonPersistent(_count=torch.zeros(1)), _vector, ["_count"]),
    "mutated input": Case(MutatedInput, lambda k: (floats(k, 4), torch.zeros(4)), ["cache"]),
    "mutated input and buffer": Case(
        lambda: MutatedInputAndBuffer(total=torch.zeros(4)),
        lambda k: (floats(k, 4), torch.zeros(4)),
        ["total", "cache"],
    ),
    "no inputs": Case(lambda: NoInputs(count=torch.zeros(1)), lambda k: (), ["count"]),
    "no outputs": Case(lambda: NoOutputs(total=torch.zeros(4)), _vector, ["total"]),
    "swap": Case(lambda: Swap(a=torch.zeros(4), b=torch.ones(4)), _vector, ["a", "b"]),
    "rotation": Case(
        lambda: Rotation(a=torch.zeros(4), b=torch.ones(4), c=torch.full((4,), 2.0)), _vector, ["a", "b", "c"]
    ),
    "return the old value, then overwrite": Case(
        lambda: ReturnOldThenOverwrite(value=torch.full((4,), 5.0)), _vector, ["value"]
    ),
    "the output is the written value": Case(lambda: OutputIsTheWrittenValue(value=torch.zeros(4)), _vector, ["value"]),
    "integer counter": Case(
        lambda: IntegerCounter(steps=torch.zeros(1, dtype=torch.int64)), lambda k: (torch.arange(3) + k,), ["steps"]
    ),
    "nested modules": Case(Nested, _vector, ["inner.total", "outer.total"], unlisted=1),
    "no state at all": Case(Stateless, _vector, []),
}
