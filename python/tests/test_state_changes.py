"""Every way of changing a state is kept, counted and attributed to the right name."""

from __future__ import annotations

import pytest
import torch
from torch.export.graph_signature import OutputKind

import statepack
from conftest import Runner, initial_states, state_names
from stateful_modules import CASES
from statepack.precision import bits_equal
from statepack.state_table import byte_text


def mutations(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> int:
    """How many *_MUTATION entries torch lists, walked as a list after decomposition."""
    with torch.no_grad():
        exported = torch.export.export(module, args, strict=False).run_decompositions(statepack.get_decomp_table())
    return sum(
        spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION)
        for spec in exported.graph_signature.output_specs
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_mutation_is_a_state_and_four_calls_equal_eager(case):
    model = statepack.export(case.make(), case.arguments(0))
    assert state_names(model) == case.states
    assert len(case.states) == mutations(case.make(), case.arguments(0)) + case.unlisted

    eager, run = case.make(), Runner(model)
    given = case.arguments(0)
    names = [named.name for named in run.function.inputs]
    kept = given[len(names) :]
    for step in range(4):
        args = (*case.arguments(step)[: len(names)], *kept)
        with torch.no_grad():
            returned = eager(*args)
        outputs = run(**dict(zip(names, args, strict=False)))
        expected = [] if returned is None else [returned]
        assert len(outputs) == len(expected)
        for found, wanted in zip(outputs.values(), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        for name in case.states:
            wanted = dict(eager.named_buffers()).get(name, kept[0] if kept else None)
            torch.testing.assert_close(run.states[name], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["swap", "rotation", "overlapping shift", "return the old value, then overwrite"])
def test_moves_of_data_are_recorded_as_bit_exact(name):
    case = CASES[name]
    model = statepack.export(case.make(), case.arguments(0))
    updates = [state for step in model.recording.replays[0].steps for state in step.states]
    assert updates
    assert all(state.moves_data for state in updates)


def test_computed_values_are_not_recorded_as_bit_exact():
    case = CASES["reassignment"]
    model = statepack.export(case.make(), case.arguments(0))
    assert not any(state.moves_data for step in model.recording.replays[0].steps for state in step.states)


def test_a_mutated_returned_output_leaves_the_state_alone():
    case = CASES["the output is the written value"]
    run = Runner(statepack.export(case.make(), case.arguments(0)))
    outputs = run(x=torch.ones(4))
    before = run.states["value"].clone()
    outputs["output"].clone().add_(1)
    assert bool(bits_equal(run.states["value"], before).all())


def test_a_module_is_left_as_it_was():
    case = CASES["reassignment"]
    module = case.make()
    before, version = module.total, module.total._version
    statepack.export(module, case.arguments(0))
    assert module.total is before
    assert module.total._version == version
    assert module.total.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "written_by"),
    [
        ("add_", "copy"),
        ("full copy from an input", "copy"),
        ("slice view write", "slice_scatter"),
        ("per-layer writes into a stacked state", "index_put"),
        ("write-only", "index_copy"),
        ("where-gated", "where"),
    ],
)
def test_the_table_says_how_a_state_is_written(name, written_by):
    case = CASES[name]
    model = statepack.export(case.make(), case.arguments(0))
    assert model.program.functions[0].states[0].written_by == written_by
    header, row = model.state_table().splitlines()
    assert header.split("  ")[0] == "state"
    assert row.endswith(f"  written by {written_by}")


def test_the_table_has_the_words_of_convert_and_inspect():
    case = CASES["return the old value, then overwrite"]
    model = statepack.export(case.make(), case.arguments(0), state_names=["previous"])
    assert model.state_table().splitlines() == [
        "state     buffer  type         size      starts as  update",
        "previous  value   [4] float32  16 bytes  5.0        written by copy",
    ]
    assert initial_states(model)["previous"].tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (131072, "128 KiB"),
        (10 * 1024 + 512, "10.5 KiB"),
        (int(94.4 * 2**20), "94.4 MiB"),
        (3 << 30, "3.00 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes_have_three_digits(count, text):
    assert byte_text(count) == text


def test_a_model_says_what_its_functions_take_and_give():
    case = CASES["return the old value, then overwrite"]
    model = statepack.export(case.make(), case.arguments(0), output_names=["old"], state_names=["previous"])
    assert repr(model) == "<ExportedModel main(x; states previous) -> old>"
