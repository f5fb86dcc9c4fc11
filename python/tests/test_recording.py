"""The recording holds what eager PyTorch did, says how exact it is, and fits into 4 MB."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import statepack
from stateful_modules import CASES, WithBuffers, WriteOnly
from statepack import program_pb2 as pb
from statepack import recording
from statepack.precision import EPSILON, bits_equal, difference
from statepack.tables import tensor_from_bytes


def steps(model: statepack.ExportedModel) -> list[pb.Step]:
    return list(model.recording.replays[0].steps)


def test_a_recording_has_three_steps_at_least():
    case = CASES["add_"]
    assert len(steps(statepack.export(case.make(), case.arguments(0)))) == 3
    given = [(torch.full((4,), float(k)),) for k in range(5)]
    model = statepack.export(case.make(), case.arguments(0), recording_inputs=given)
    assert [step.inputs[0].data for step in steps(model)] == [value.numpy().tobytes() for (value,) in given]


class Cache(WithBuffers):
    def forward(self, x, position):
        self.rows[position] = x
        return self.rows.sum(0)


def cache_export(**options) -> statepack.ExportedModel:
    dim = torch.export.Dim("query", min=1, max=8)
    return statepack.export(
        Cache(rows=torch.zeros(8, 2)),
        (torch.randn(4, 2, generator=torch.Generator().manual_seed(3)), torch.arange(4)),
        dynamic_shapes={"x": {0: dim}, "position": {0: dim}},
        **options,
    )


def test_positions_go_on_and_dynamic_sizes_shrink():
    positions = [tensor_from_bytes(s.inputs[1].data, torch.int64, s.inputs[1].shape) for s in steps(cache_export())]
    assert [p.tolist() for p in positions] == [[0, 1, 2, 3], [4], [5]]


def test_positions_that_would_overrun_are_kept():
    model = statepack.export(Cache(rows=torch.zeros(4, 2)), (torch.ones(4, 2), torch.arange(4)))
    positions = [tensor_from_bytes(s.inputs[1].data, torch.int64, [4]).tolist() for s in steps(model)]
    assert positions == [[0, 1, 2, 3]] * 3


def test_the_runs_are_the_rows_that_were_written():
    runs = [list(step.states[0].runs) for step in steps(cache_export())]
    # Rows of two elements: (first element, count).
    assert runs == [[0, 4 * 2], [4 * 2, 2], [5 * 2, 2]]


def test_a_written_element_whose_bits_stay_is_in_the_runs():
    zeros = [(torch.zeros(1, 4), torch.tensor([k])) for k in range(3)]
    model = statepack.export(WriteOnly(log=torch.zeros(8, 4)), zeros[0], recording_inputs=zeros)
    assert [list(step.states[0].runs) for step in steps(model)] == [[0, 4], [4, 4], [8, 4]]


@pytest.mark.parametrize(
    ("name", "untouched", "moves"),
    [
        ("write-only", True, True),
        ("slice view write", True, True),
        ("per-layer writes into a stacked state", True, False),
        ("where-gated", True, True),
        ("shift register", False, True),
        ("reassignment", False, False),
    ],
)
def test_the_flags_follow_from_how_the_state_is_written(name, untouched, moves):
    case = CASES[name]
    state = steps(statepack.export(case.make(), case.arguments(0)))[0].states[0]
    assert (state.untouched_exact, state.moves_data) == (untouched, moves)


def test_a_state_fed_from_a_computed_one_is_not_bit_exact():
    class Chain(WithBuffers):
        def forward(self, x):
            self.second.copy_(self.first)
            self.first.copy_(x * 0.3)
            return x

    model = statepack.export(Chain(first=torch.zeros(4), second=torch.zeros(4)), (torch.ones(4),))
    assert [state.moves_data for state in steps(model)[0].states] == [False, False]


def test_applying_the_runs_reproduces_the_states_of_eager():
    model = cache_export()
    state = torch.zeros(16)
    module = Cache(rows=torch.zeros(8, 2))
    for step in steps(model):
        x, position = (
            tensor_from_bytes(i.data, torch.float32 if i.name == "x" else torch.int64, i.shape) for i in step.inputs
        )
        module(x, position)
        values = tensor_from_bytes(step.states[0].values, torch.float32, [len(step.states[0].values) // 4])
        runs = step.states[0].runs
        for begin, count in zip(runs[::2], runs[1::2], strict=True):
            state[begin : begin + count], values = values[:count], values[count:]
        assert torch.equal(state, module.rows.flatten())


def test_tolerances_follow_the_formula():
    torch.manual_seed(5)
    model = statepack.export(nn.Linear(100, 3), (torch.randn(2, 100),))
    output = steps(model)[0].outputs[0]
    assert output.relative == pytest.approx(EPSILON * math.sqrt(100 + 16))
    largest = tensor_from_bytes(output.values, torch.float32, [6]).abs().max().item()
    assert output.relative * largest <= output.absolute < 1e-4


def test_integers_and_booleans_must_be_equal():
    model = statepack.export(CASES["integer counter"].make(), CASES["integer counter"].arguments(0))
    step = steps(model)[0]
    assert (step.outputs[0].absolute, step.outputs[0].relative) == (0, 0)
    assert (step.states[0].absolute, step.states[0].relative) == (0, 0)


def test_a_large_output_keeps_a_fixed_sample_and_its_largest_elements():
    class Large(nn.Module):
        def forward(self, x):
            return x[:, None] * torch.arange(300000.0)[None, :]

    first, second = (statepack.export(Large(), (torch.arange(1.0, 5.0),)) for _ in range(2))
    assert first.recording == second.recording
    assert first.recording.ByteSize() <= recording.LIMIT
    output = steps(first)[0].outputs[0]
    indices = list(output.indices)
    assert indices == sorted(set(indices))
    assert len(output.values) == 4 * len(indices)
    expected = (torch.arange(1.0, 5.0)[:, None] * torch.arange(300000.0)[None, :]).flatten()
    assert torch.equal(tensor_from_bytes(output.values, torch.float32, [len(indices)]), expected[indices])
    assert set(range(4 * 300000 - 60, 4 * 300000)) <= set(indices)


def test_a_state_too_large_to_record_whole_is_sampled_and_says_so():
    class Decay(WithBuffers):
        def forward(self, x):
            self.field.mul_(0.5).add_(x)
            return x

    model = statepack.export(Decay(field=torch.zeros(400_000)), (torch.ones(1),))
    assert model.recording.ByteSize() <= recording.LIMIT
    state = steps(model)[0].states[0]
    assert state.sampled
    assert not state.untouched_exact
    counts = list(state.runs)[1::2]
    assert len(state.values) == 4 * sum(counts) > 0


def test_differences_treat_nan_and_infinity_as_values():
    nan, inf = math.nan, math.inf
    found = difference(torch.tensor([nan, inf, inf, 1.0, nan]), torch.tensor([nan, inf, -inf, 1.5, 0.0]))
    assert found.tolist() == [0, 0, inf, 0.5, inf]
    assert bits_equal(torch.tensor([0.0, nan]), torch.tensor([-0.0, nan])).tolist() == [False, True]


def test_the_module_is_not_changed_by_recording():
    case = CASES["per-layer writes into a stacked state"]
    module = case.make()
    statepack.export(module, case.arguments(0))
    assert not module.cache.any()
