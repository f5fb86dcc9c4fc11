"""The initial value is the state as it was registered, element by element, before anything ran."""

from __future__ import annotations

import pytest
import torch

import statepack
from conftest import initial_states, refusal
from stateful_modules import AddInPlace, MutatedInput, Reassignment
from statepack import _codes as codes
from statepack import writing

X = torch.ones(4)

VALUES = {
    "zeros": lambda: torch.zeros(4),
    "five": lambda: torch.full((4,), 5.0),
    "a range": lambda: torch.arange(4.0),
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "a view with an offset": lambda: torch.arange(20.0)[7:11],
    "a strided view": lambda: torch.arange(20.0)[1::5],
    "expanded": lambda: torch.full((1, 4), 2.0).expand(3, 4).clone(),
    "NaN": lambda: torch.full((4,), float("nan")),
    "minus zero and zero": lambda: torch.tensor([0.0, -0.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES.keys())
def test_the_initial_value_is_stored_by_logical_elements(make):
    model = statepack.export(AddInPlace(total=make()), (X,))
    stored = initial_states(model)["total"]
    assert stored.numpy().tobytes() == make().contiguous().numpy().tobytes()


def test_one_repeated_element_is_a_splat_and_anything_else_a_tensor():
    splat, tensor = (
        statepack.export(AddInPlace(total=VALUES[name]()), (X,)).program.states[0] for name in ("five", "a range")
    )
    assert splat.initial_splat == torch.tensor(5.0).numpy().tobytes()
    assert splat.initial_tensor == 0
    assert tensor.initial_splat == b""
    assert tensor.initial_tensor == 1


def test_minus_zero_is_not_a_splat_of_zero():
    assert statepack.export(AddInPlace(total=VALUES["minus zero and zero"]()), (X,)).program.states[0].initial_tensor


def test_a_mutated_input_starts_as_its_example():
    model = statepack.export(MutatedInput(), (X, torch.full((4,), 3.0)))
    assert initial_states(model)["cache"].tolist() == [3, 3, 3, 3]


def data(model: statepack.ExportedModel) -> bytes:
    return writing.file_bytes(model.program, model.recording)


@pytest.mark.parametrize("kind", [AddInPlace, Reassignment])
def test_a_module_that_ran_between_two_exports_is_refused(kind):
    module = kind(total=torch.zeros(4))
    first = statepack.export(module, (X,))
    assert data(statepack.export(module, (X,))) == data(first)
    module(X)
    module(X)
    found = refusal(lambda: statepack.export(module, (X,)))
    assert {item.code for item in found} == {codes.DIRTY_INITIAL_STATE}
    assert "`total`" in found[0].message
    assert 'initial_state="current"' in found[0].hint


def test_a_module_that_ran_before_its_first_export_is_refused():
    module = AddInPlace(total=torch.zeros(4))
    module(X)
    module(X)
    (found,) = refusal(lambda: statepack.export(module, (X,)))
    assert found.code == codes.DIRTY_INITIAL_STATE
    assert found.found.startswith("2 in-place writes")


@pytest.mark.parametrize("culprit", ["the module", "exported.module()"])
def test_an_exported_program_whose_state_was_written_since_is_refused(culprit):
    module = AddInPlace(total=torch.zeros(4))
    with torch.no_grad():
        exported = torch.export.export(module, (X,))
        (module if culprit == "the module" else exported.module())(X)
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert found.code == codes.DIRTY_INITIAL_STATE


def test_present_values_are_kept_on_request():
    module = AddInPlace(total=torch.zeros(4))
    module(X)
    model = statepack.export(module, (X,), initial_state="current")
    assert initial_states(model)["total"].tolist() == [1, 1, 1, 1]


def test_an_unknown_choice_of_initial_state_is_refused():
    (found,) = refusal(lambda: statepack.export(AddInPlace(total=torch.zeros(4)), (X,), initial_state="fresh"))
    assert found.code == codes.INVALID_EXPORT_ARGUMENT
    assert (found.expected, found.found) == ("'untouched' or 'current'", "'fresh'")


def test_both_ways_of_exporting_write_the_same_program():
    module = AddInPlace(total=torch.arange(4.0))
    with torch.no_grad():
        exported = torch.export.export(module, (X,))
    converted = statepack.TorchConverter().add_exported_program(exported).to_program()
    assert data(converted) == data(statepack.export(module, (X,)))
    assert module.total.tolist() == [0, 1, 2, 3]


def test_a_dynamic_state_with_different_elements_is_refused():
    dim = torch.export.Dim("capacity", min=2, max=64)
    arguments = (torch.ones(4), torch.arange(4.0))
    shapes = {"x": {0: dim}, "cache": {0: dim}}
    (found,) = refusal(lambda: statepack.export(MutatedInput(), arguments, dynamic_shapes=shapes))
    assert found.code == codes.STATE_CONFLICT
    assert "repeated element" in found.expected
    model = statepack.export(MutatedInput(), (torch.ones(4), torch.zeros(4)), dynamic_shapes=shapes)
    assert model.program.states[0].shape[0].postfix == [1, 0]


def test_zeros_that_a_checkpoint_wrote_are_an_initial_value():
    module = AddInPlace(total=torch.zeros(4))
    module.load_state_dict(AddInPlace(total=torch.zeros(4)).state_dict())
    assert initial_states(statepack.export(module, (X,)))["total"].tolist() == [0, 0, 0, 0]


def test_other_values_that_a_checkpoint_wrote_are_the_authors_to_confirm():
    module = AddInPlace(total=torch.zeros(4))
    module.load_state_dict(AddInPlace(total=torch.full((4,), 2.0)).state_dict())
    (found,) = refusal(lambda: statepack.export(module, (X,)))
    assert found.code == codes.DIRTY_INITIAL_STATE
    assert 'initial_state="current"' in found.hint
    confirmed = statepack.export(module, (X,), initial_state="current")
    assert initial_states(confirmed)["total"].tolist() == [2, 2, 2, 2]
