"""Every refusal names the tensor, says what was expected and found, and has a code of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import exact_texts
import statepack
from conftest import Runner, refusal, refused_export
from stateful_modules import AddInPlace, Reassignment, WithBuffers
from statepack import _codes as codes

X = torch.arange(4.0)


def strictly(module, args, **options):
    with torch.no_grad():
        return torch.export.export(module, args, strict=True, **options)


def loosely(module, args, **options):
    with torch.no_grad():
        return torch.export.export(module, args, strict=False, **options)


class PlainAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.zeros(4)

    def forward(self, x):
        self.cache.add_(x)
        return self.cache * 2


class ReassignedPlainAttribute(PlainAttribute):
    def forward(self, x):
        self.cache = self.cache + x
        return self.cache * 2


class CacheObject:
    """As some Hugging Face caches are: not a module, tensors in a list."""

    def __init__(self) -> None:
        self.layers = [torch.zeros(4), torch.zeros(4)]


class CacheInObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.past = CacheObject()

    def forward(self, x):
        self.past.layers[1].add_(x)
        return self.past.layers[1] * 2


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        (PlainAttribute, "cache"),
        (ReassignedPlainAttribute, "cache"),
        (CacheInObject, "past.layers[1]"),
    ],
    ids=["attribute", "reassigned attribute", "list in an object"],
)
def test_a_cache_that_is_not_a_buffer_is_refused_by_its_name(module, attribute):
    found = refused_export(module(), (X,))
    assert found.code == codes.MUTATED_CONSTANT
    assert f"`{attribute}`" in found.message
    assert "register_buffer" in found.hint
    assert "test_refusals.py" in found.location


@pytest.mark.parametrize("module", [PlainAttribute, ReassignedPlainAttribute, CacheInObject])
def test_a_cache_that_is_not_a_buffer_is_refused_in_an_exported_program(module):
    exported = loosely(module(), (X,))
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert found.code == codes.MUTATED_CONSTANT


class MutatedParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        self.weight.add_(x)
        return self.weight * 2


def test_a_mutated_parameter_is_refused():
    found = refused_export(MutatedParameter(), (X,))
    assert found.code == codes.MUTATED_PARAMETER
    assert "`weight`" in found.message
    assert "register_buffer('weight'" in found.hint


class TwoBuffers(nn.Module):
    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("first_cache", a)
        self.register_buffer("second_cache", b)

    def forward(self, x):
        self.first_cache.add_(x)
        return self.second_cache.sum() + x


class SharedSubmodule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = AddInPlace(total=torch.zeros(4))
        self.two = self.one

    def forward(self, x):
        return self.one(x) + self.two(x)


def _same() -> nn.Module:
    base = torch.zeros(4)
    return TwoBuffers(base, base)


def _base_and_view() -> nn.Module:
    base = torch.zeros(8)
    return TwoBuffers(base[2:6], base)


SHARED = {
    "one storage": (_same, "first_cache", "second_cache"),
    "base and view": (_base_and_view, "first_cache", "second_cache"),
    "shared submodule": (SharedSubmodule, "one.total", "two.total"),
}


@pytest.mark.parametrize("strict", [False, True], ids=["statepack.export", "strict exported program"])
@pytest.mark.parametrize(("make", "first", "second"), SHARED.values(), ids=SHARED.keys())
def test_written_buffers_that_share_storage_are_refused_with_both_names(make, first, second, strict):
    if strict:
        exported = strictly(make(), (X,))
        (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    else:
        found = refused_export(make(), (X,))
    assert found.code == codes.SHARED_STORAGE
    assert first in found.message
    assert second in found.message
    assert "share" in found.message


def test_one_tensor_passed_as_two_arguments_is_refused_when_it_is_written():
    class Both(nn.Module):
        def forward(self, x, cache):
            cache.add_(x)
            return cache * 2

    found = refused_export(Both(), (X, X))
    assert found.code == codes.SHARED_STORAGE
    assert "`x` and `cache`" in found.message


def test_disjoint_views_of_one_base_are_accepted():
    base = torch.arange(8.0)
    model = statepack.export(TwoBuffers(base[:4], base[4:]), (X,))
    assert [state.name for state in model.program.states] == ["first_cache"]


@pytest.mark.parametrize(
    "make",
    [lambda: Reassignment(total=torch.ones(4)), lambda: nn.Sequential(Reassignment(total=torch.ones(4)))],
    ids=["root", "nested"],
)
def test_an_assignment_that_strict_mode_lost_is_refused(make):
    exported = strictly(make(), (X,))
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert found.code == codes.MUTATION_LOST
    assert "total`" in found.message
    assert "self.total = self.total * 0.5 + x" in found.found
    assert "strict=False" in found.hint
    assert "stateful_modules.py" in found.location


class RowsThroughMask(WithBuffers):
    def forward(self, x, mask):
        self.a[mask] = x
        return self.a * 2


def test_a_mask_with_a_row_for_each_selected_element_is_refused():
    mask = torch.tensor([True, False, True, False])
    found = refused_export(RowsThroughMask(a=torch.ones(4)), (torch.ones(2), mask))
    assert found.code == codes.UNSUPPORTED_OPERATOR
    assert found.message == "operator `aten.index_put.default with a mask` is not supported (1 use)"
    assert "test_refusals.py" in found.found


class OverSeveralLines(WithBuffers):
    def forward(self, x):
        # fmt: off
        self.a = (
            self.a
            + x
        )
        # fmt: on
        return self.a * 2


class Pair(WithBuffers):
    def forward(self, x):
        self.a, self.b = self.b + x, self.a * 2
        return self.a * self.b


class ThroughVariables(WithBuffers):
    def forward(self, x):
        a, b = self.a + x, self.b * x
        self.a, self.b = a, b
        return a * 2


class ThroughSetattr(WithBuffers):
    def forward(self, x):
        new = self.a + x
        setattr(self, "a", new)  # noqa: B010
        return new * 2


@pytest.mark.parametrize(
    ("kind", "lost"), [(OverSeveralLines, "a"), (Pair, "ab"), (ThroughVariables, "ab"), (ThroughSetattr, "a")]
)
def test_a_lost_assignment_is_found_however_it_is_spelled(kind, lost):
    exported = strictly(kind(a=torch.ones(4), b=torch.zeros(4)), (X,))
    found = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert [item.code for item in found] == [codes.MUTATION_LOST] * len(lost)
    assert [item.message.split("`")[1] for item in found] == list(lost)


class AssignedElsewhere(WithBuffers):
    """Its assignments do not run, or are of something else than what was computed."""

    def forward(self, x):
        moved = self.a * 1
        if x.shape[0] > 100:
            self.a = moved
        moved = self.b
        self.b.add_(x)
        self.unregistered = moved
        return moved + self.a


def test_an_assignment_that_did_not_run_is_no_lost_mutation():
    exported = strictly(AssignedElsewhere(a=torch.ones(4), b=torch.zeros(4)), (X,))
    program = statepack.TorchConverter().add_exported_program(exported).to_program()
    assert [state.name for state in program.program.states] == ["b"]


class AddsThenAssigns(WithBuffers):
    def forward(self, x):
        self.total += x
        self.total = self.total * 0.5
        return self.total * 2


class AddsThenStores(WithBuffers):
    def forward(self, x):
        halved = self.total * 0.5
        self.total += x
        self.total = halved
        return self.total * 2


class AddsThenCallsAnAssigner(WithBuffers):
    def assign(self):
        self.total = self.total * 0.5

    def forward(self, x):
        self.total += x
        self.assign()
        return self.total * 2


@pytest.mark.parametrize(
    ("kind", "statement", "line"),
    [
        (AddsThenAssigns, "self.total = self.total * 0.5", 3),
        (AddsThenStores, "self.total = halved", 4),
        (AddsThenCallsAnAssigner, "self.total = self.total * 0.5", 2),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["root", "nested"])
def test_an_assignment_that_strict_mode_lost_behind_a_write_is_refused(kind, statement, line, nested):
    module = kind(total=torch.ones(4))
    exported = strictly(nn.Sequential(module) if nested else module, (X,))
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    buffer, owner = ("0.total", "0") if nested else ("total", kind.__name__)
    function = kind.assign if kind is AddsThenCallsAnAssigner else kind.forward
    place = f"test_refusals.py:{function.__code__.co_firstlineno + line - 1}"
    assert str(found) == (
        f"error[E0005]: buffer `{buffer}` is assigned by forward(), but the exported program keeps an earlier value\n"
        f"  --> function `main`, {owner} ({place})\n"
        "  expected: the value of the last assignment in the export's signature\n"
        f"  found:    {statement}\n"
        "  hint:     export with strict=False, or write in place: self.total.copy_(value)"
    )


class AddsTwice(WithBuffers):
    def forward(self, x):
        self.total += x
        self.total += x * 2
        return self.total * 2


class AssignsThenAdds(WithBuffers):
    def forward(self, x):
        self.total = self.total * 0.5
        self.total.add_(x)
        return self.total * 2


class AddsInALoop(WithBuffers):
    def forward(self, x):
        for scale in (1, 2):
            self.total += x * scale
        return self.total * 2


class AssignsWhatIsOverwritten(WithBuffers):
    def forward(self, x):
        self.total = x * 3
        self.total = self.total * 0 + x
        self.total = x + 1
        return self.total * 2


@pytest.mark.parametrize(
    ("kind", "trace"),
    [
        (AddsTwice, strictly),
        (AddsTwice, loosely),
        (AddsInALoop, strictly),
        (AddsInALoop, loosely),
        (AssignsThenAdds, loosely),
        (AddsThenAssigns, loosely),
        (AddsThenStores, loosely),
        (AddsThenCallsAnAssigner, loosely),
        (AssignsWhatIsOverwritten, loosely),
    ],
)
def test_several_writes_that_the_export_keeps_are_accepted(kind, trace):
    exported = trace(kind(total=torch.ones(4)), (X,))
    run = Runner(statepack.TorchConverter().add_exported_program(exported).to_program())
    eager = kind(total=torch.ones(4))
    for _ in range(3):
        with torch.no_grad():
            expected = eager(X)
        assert run(x=X)["output"].tolist() == expected.tolist()
        assert run.states["total"].tolist() == eager.total.tolist()


class AssignsItsCacheFromAnInnerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(4)
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        self.cache = self.inner(self.cache + x)
        return self.cache * 2


def test_a_lost_assignment_is_placed_at_its_owner_and_not_where_its_value_was_made():
    exported = strictly(nn.Sequential(AssignsItsCacheFromAnInnerLayer()), (X,))
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    line = AssignsItsCacheFromAnInnerLayer.forward.__code__.co_firstlineno + 1
    assert found.code == codes.MUTATED_CONSTANT
    assert found.location == f"function `main`, 0 (test_refusals.py:{line})"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"initial_state": "curent"},
            "error[E0029]: initial_state has another value than it can have\n"
            "  --> function `main`\n"
            "  expected: 'untouched' or 'current'\n"
            "  found:    'curent'\n"
            "  hint:     did you mean `current`?",
        ),
        (
            {"initial_state": True},
            "error[E0029]: initial_state has another value than it can have\n"
            "  --> function `main`\n"
            "  expected: 'untouched' or 'current'\n"
            "  found:    True",
        ),
        (
            {"state_names": "ab"},
            "error[E0029]: state_names is no list of names\n"
            "  --> function `main`\n"
            "  expected: a list or tuple of names, or a mapping\n"
            "  found:    'ab'\n"
            "  hint:     state_names=['ab']",
        ),
        (
            {"input_names": {"x": "y"}},
            "error[E0029]: input_names is no list of names\n"
            "  --> function `main`\n"
            "  expected: a list or tuple of names\n"
            "  found:    {'x': 'y'}",
        ),
        (
            {"output_names": 3},
            "error[E0029]: output_names is no list of names\n"
            "  --> function `main`\n"
            "  expected: a list or tuple of names\n"
            "  found:    3",
        ),
        (
            {"recording_inputs": torch.ones(3, 4)},
            "error[E0029]: recording_inputs is no list of steps\n"
            "  --> function `main`\n"
            "  expected: a list or tuple with the arguments of each step\n"
            "  found:    Tensor",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_of_another_type_or_value_is_refused(options, expected):
    module = AddInPlace(total=torch.zeros(4))
    found = refused_export(module, (X,), **options)
    assert str(found) == expected
    converter = statepack.TorchConverter()
    (again,) = refusal(lambda: converter.add_exported_program(loosely(module, (X,)), **options))
    assert again == found


def test_all_arguments_of_another_type_are_reported_at_once():
    found = refusal(
        lambda: statepack.export(AddInPlace(total=torch.zeros(4)), (X,), state_names="a", initial_state="b")
    )
    assert [item.message.split()[0] for item in found] == ["state_names", "initial_state"]


class DoublesInFloat64(WithBuffers):
    def forward(self, x):
        wide = x.double()
        for _ in range(3):
            wide = wide * 2
        self.total.add_(wide.float())
        return self.total + wide.sum()


def test_operators_with_results_of_an_unsupported_type_are_one_finding_with_their_count():
    found = refused_export(DoublesInFloat64(total=torch.zeros(4)), (X,))
    lines = [DoublesInFloat64.forward.__code__.co_firstlineno + offset for offset in (1, 3, 5)]
    places = [f"DoublesInFloat64 (test_refusals.py:{line})" for line in lines]
    assert str(found) == (
        "error[E0014]: 5 operators have results of a type that is not supported\n"
        "  --> function `main`\n"
        "  expected: float32, int32, int64, bool, strided, at most 8 axes\n"
        f"  found:    float64[4] of `aten._to_copy.default`, {places[0]}\n"
        f"            float64[4] of `aten.mul.Tensor`, {places[1]} x3\n"
        f"            float64[] of `aten.sum.dim_IntList`, {places[2]}"
    )


class Warns(WithBuffers):
    def forward(self, x):
        warnings.warn("of the module", FutureWarning, stacklevel=1)
        self.total.add_(x)
        return self.total * 2


def test_an_export_shows_no_warning_of_torchs_own_and_every_other():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FutureWarning)
        statepack.export(AddInPlace(total=torch.zeros(4)), (X,))
        assert [str(item.message) for item in caught if item.category is FutureWarning] == []
        statepack.export(Warns(total=torch.zeros(4)), (X,))
    assert {str(item.message) for item in caught if item.category is FutureWarning} == {"of the module"}


def test_an_assignment_in_a_submodule_that_torch_loses_is_refused_in_an_exported_program():
    exported = loosely(nn.Sequential(Reassignment(total=torch.ones(4))), (X,))
    (found,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert found.code == codes.MUTATION_LOST


class Sneaky(nn.Module):
    """Assigns where no source line says so."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4))

    def forward(self, x):
        setattr(self, "total", self.total + x)  # noqa: B010
        return self.total * 2


def test_a_lost_mutation_without_a_trace_is_found_by_replaying_the_module():
    module = Sneaky()
    exported = strictly(module, (X,))
    converter = statepack.TorchConverter().add_exported_program(exported, module=module)
    (found,) = refusal(converter.to_program)
    assert found.code == codes.MUTATION_LOST
    assert "`total`" in found.message
    assert "another value" in found.found


class PythonCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_python_state_is_found_by_the_replay():
    found = refusal(lambda: statepack.export(PythonCounter(), (X,)))
    assert found[0].code == codes.EXPORT_MISMATCH
    assert "within" in found[0].expected
    assert "elements differ" in found[0].found


class Grows(WithBuffers):
    def forward(self, x):
        self.rows = torch.cat([self.rows, x[None]])
        return self.rows.sum(0)


class ChangesType(WithBuffers):
    def forward(self, x):
        self.rows = self.rows.to(torch.int32) + 1
        return x


@pytest.mark.parametrize(
    ("module", "expected", "found"),
    [
        (lambda: Grows(rows=torch.zeros(0, 4)), "float32[0, 4]", "float32[1, 4]"),
        (lambda: ChangesType(rows=torch.zeros(4)), "float32[4]", "int32[4]"),
    ],
    ids=["shape", "scalar type"],
)
@pytest.mark.parametrize("way", ["export", "converter"])
def test_an_update_that_changes_the_states_type_is_refused_with_both(module, expected, found, way):
    if way == "export":
        diagnostic = refused_export(module(), (X,))
    else:
        exported = loosely(module(), (X,))
        (diagnostic,) = refusal(lambda: statepack.TorchConverter().add_exported_program(exported))
    assert diagnostic.code == codes.STATE_TYPE_CHANGED
    assert "`rows`" in diagnostic.message
    assert (diagnostic.expected, diagnostic.found) == (expected, found)


class WithBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x)


def test_training_mode_that_creates_states_is_refused():
    found = refused_export(WithBatchNorm().train(), (torch.randn(3, 4),))
    assert found.code == codes.TRAINING_MODE
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert f"`{name}`" in found.message
    assert found.expected == "module.eval()"


def test_dropout_in_training_mode_is_refused_with_what_to_do():
    found = refused_export(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), (X,))
    assert found.code == codes.UNSUPPORTED_OPERATOR
    assert found.hint == "call module.eval() before exporting"


def test_training_mode_of_an_authors_own_state_is_accepted():
    model = statepack.export(AddInPlace(total=torch.zeros(4)).train(), (X,))
    assert [state.name for state in model.program.states] == ["total"]


class Unsupported(nn.Module):
    def forward(self, x):
        y = torch.special.erfinv(x) + torch.special.erfinv(x * 2)
        return torch.linalg.inv(y[:4].reshape(2, 2)) + torch.atan2(y[0], y[1])


def test_unsupported_operators_are_reported_all_at_once_with_their_lines():
    found = refusal(lambda: statepack.export(Unsupported(), (X / 8,)))
    assert {item.code for item in found} == {codes.UNSUPPORTED_OPERATOR}
    text = {item.message.split("`")[1]: item for item in found}
    assert len(text) == 4
    assert "(2 uses)" in text["aten.erfinv.default"].message
    assert "Unsupported (test_refusals.py:" in text["aten.erfinv.default"].found
    assert "(1 use)" in text["aten.atan2.default"].message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16])
def test_a_state_of_an_unsupported_type_is_refused_with_the_supported_ones(dtype):
    found = refusal(
        lambda: statepack.export(AddInPlace(total=torch.zeros(4, dtype=dtype)), (torch.ones(4, dtype=dtype),))
    )
    assert {item.code for item in found} == {codes.UNSUPPORTED_TENSOR_TYPE}
    state = next(item for item in found if "state `total`" in item.message)
    assert state.expected.startswith("float32, int32, int64, bool")
    assert state.found == f"{str(dtype).removeprefix('torch.')}[4]"


def test_a_rank_above_eight_is_refused():
    found = refusal(lambda: statepack.export(AddInPlace(total=torch.zeros([1] * 9)), (torch.ones(1),)))
    assert {item.code for item in found} == {codes.UNSUPPORTED_TENSOR_TYPE}
    assert "at most 8 axes" in found[0].expected


class TakesFlag(WithBuffers):
    def forward(self, x, write: bool = True, scale: float = 2.0):
        if write:
            self.total.add_(x)
        return self.total * scale


def test_arguments_that_are_not_tensors_are_refused_by_name():
    found = refusal(lambda: statepack.export(TakesFlag(total=torch.zeros(4)), (X, False, 0.5)))
    assert [item.code for item in found] == [codes.FROZEN_INPUT] * 2
    assert "`write`" in found[0].message
    assert [item.found for item in found] == ["False", "0.5"]


class OptionalArgument(nn.Module):
    def forward(self, x, bias=None):
        return x * 2 if bias is None else x + bias


def test_an_absent_argument_is_accepted():
    model = statepack.export(OptionalArgument(), (X, None))
    assert [named.name for named in model.program.functions[0].inputs] == ["x"]


class DataDependent(nn.Module):
    def forward(self, x):
        return x[x > 1].sum() + x.nonzero().sum()


class ScalarIndex(WithBuffers):
    def forward(self, x, position):
        self.rows[position] = x
        return self.rows.sum(0)


@pytest.mark.parametrize(
    ("module", "args"),
    [
        (DataDependent, (X,)),
        (lambda: ScalarIndex(rows=torch.zeros(8, 4)), (X, torch.tensor(2))),
    ],
    ids=["boolean index", "scalar index"],
)
def test_a_size_that_depends_on_data_is_refused(module, args):
    found = refusal(lambda: statepack.export(module(), args))
    assert codes.DATA_DEPENDENT_SIZE in {item.code for item in found}
    finding = next(item for item in found if item.code == codes.DATA_DEPENDENT_SIZE)
    assert "one-dimensional" in finding.hint


class Dynamic(nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("form", ["by name", "by position"])
def test_an_example_of_length_one_for_a_dynamic_size_is_refused_with_the_reason(length, form):
    dim = torch.export.Dim("query", min=1, max=16)
    shapes = {"x": {0: dim}} if form == "by name" else ({0: dim},)
    found = refused_export(Dynamic(), (torch.zeros(length, 4),), dynamic_shapes=shapes)
    assert found.code == codes.EXAMPLE_SIZE_TOO_SMALL
    assert "`query`" in found.message
    assert "at least 2" in found.expected


class Narrow(nn.Module):
    def forward(self, x):
        return x + torch.zeros(4)


def test_what_torch_refuses_is_refused_with_torchs_reason():
    dim = torch.export.Dim("query", min=2, max=16)
    found = refused_export(Narrow(), (torch.zeros(4),), dynamic_shapes={"x": {0: dim}})
    assert found.code == codes.TORCH_EXPORT_FAILED
    assert "query" in found.message + found.found


class ReturnsNumber(nn.Module):
    def forward(self, x):
        return x * 2, 7


def test_an_output_that_is_not_a_tensor_is_refused():
    found = refused_export(ReturnsNumber(), (X,))
    assert found.code == codes.OUTPUT_NOT_TENSOR
    assert (found.message, found.found) == ("output 1 of forward() is not a tensor", "7")


class Exponential(nn.Module):
    def forward(self, x):
        return torch.full((2 ** x.shape[0],), 2.0)


def test_a_size_that_cannot_be_expressed_is_refused_with_the_expression():
    dim = torch.export.Dim("query", min=4, max=16)
    (found,) = refusal(lambda: statepack.export(Exponential(), (torch.zeros(9),), dynamic_shapes={"x": {0: dim}}))
    assert found.code == codes.UNSUPPORTED_SIZE
    assert "Pow" in found.found
    assert "Exponential (test_refusals.py:" in found.location


def test_too_few_recording_steps_are_refused():
    found = refused_export(AddInPlace(total=torch.zeros(4)), (X,), recording_inputs=[(X,), (X,)])
    assert found.code == codes.REPLAY_FAILED
    assert (found.expected, found.found) == ("at least 3 steps", "2")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ((), "0 arguments for 1"),
        ({"y": X}, "input `x` is missing"),
        ((torch.zeros(5),), "input `x` has another type"),
        ((torch.zeros(4, dtype=torch.int64),), "input `x` has another type"),
    ],
    ids=["count", "name", "shape", "scalar type"],
)
def test_recording_inputs_that_do_not_fit_are_refused(step, message):
    found = refusal(
        lambda: statepack.export(AddInPlace(total=torch.zeros(4)), (X,), recording_inputs=[(X,), (X,), step])
    )
    assert found[0].code == codes.REPLAY_FAILED
    assert found[0].message == message
    assert "step 3" in found[0].location


class Gathers(WithBuffers):
    def forward(self, position):
        return self.rows.index_select(0, position)


def test_inputs_that_eager_pytorch_rejects_are_refused():
    found = refused_export(
        Gathers(rows=torch.zeros(4, 2)),
        (torch.tensor([1, 2]),),
        recording_inputs=[(torch.tensor([1, 9]),)] * 3,
    )
    assert found.code == codes.REPLAY_FAILED
    assert "the module fails" in found.message


def test_inputs_too_large_to_record_are_refused():
    class Halves(nn.Module):
        def forward(self, x):
            return x.sum()

    found = refused_export(Halves(), (torch.zeros(1 << 19),))
    assert found.code == codes.RECORDING_TOO_LARGE
    assert f"{3 * (4 << 19)} bytes" in found.found


def test_the_command_names_the_extra_when_torch_is_missing(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "without_torch.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(pathlib.Path(statepack.__file__).parent.parent)!r})\n"
        "sys.modules['torch'] = None\n"
        "from statepack.__main__ import main\n"
        "sys.exit(main(['export', 'module.py:build']))\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert run.returncode == 2
    exact_texts.check(run.stderr.rstrip("\n"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["without_torch.py"]
