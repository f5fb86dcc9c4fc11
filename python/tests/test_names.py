"""States, inputs and outputs have the names people gave them, or refuse them side by side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import statepack
from conftest import Runner, refusal, refused_export, state_names
from stateful_modules import AddInPlace, MutatedInputAndBuffer, OneValueIntoTwoBuffersAndOutput
from statepack import _codes as codes

X = torch.arange(4.0)


class Layers(nn.Module):
    """Layer i writes the constant i into its own two caches."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(index): Caches(index) for index in order})

    def forward(self, x):
        for layer in self.layers.values():
            layer.write()
        return x * 2


class Caches(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.register_buffer("key", torch.zeros(2))
        self.register_buffer("value", torch.zeros(2))

    def write(self) -> None:
        self.key.fill_(self.index)
        self.value.fill_(-self.index)


@pytest.mark.parametrize(
    "order", [list(range(12)), [3, 10, 0, 11, 2, 1, 9, 8, 4, 7, 6, 5]], ids=["in order", "shuffled"]
)
def test_default_names_are_qualified_buffer_names_in_registration_order(order):
    model = statepack.export(Layers(order), (X,))
    assert state_names(model) == [f"layers.{index}.{part}" for index in order for part in ("key", "value")]
    run = Runner(model)
    run(x=X)
    for index in order:
        assert run.states[f"layers.{index}.key"].tolist() == [index] * 2
        assert run.states[f"layers.{index}.value"].tolist() == [-index] * 2
    assert not any(state.named_by_author for state in model.program.states)


def two_states(**options):
    module = OneValueIntoTwoBuffersAndOutput(a=torch.zeros(4), b=torch.zeros(4))
    return statepack.export(module, (X,), **options)


def test_a_list_names_states_in_order():
    model = two_states(state_names=["first", "second"], input_names=["features"], output_names=["logits"])
    assert [(state.name, state.source_name) for state in model.program.states] == [("first", "a"), ("second", "b")]
    assert all(state.named_by_author for state in model.program.states)
    function = model.program.functions[0]
    assert [named.name for named in function.inputs] == ["features"]
    assert [named.name for named in function.outputs] == ["logits"]


def test_a_mapping_names_states_by_buffer_and_leaves_the_others():
    model = two_states(state_names={"b": "second"})
    assert [(state.name, state.named_by_author) for state in model.program.states] == [("a", False), ("second", True)]


def test_mutated_inputs_come_after_mutated_buffers():
    module = MutatedInputAndBuffer(total=torch.zeros(4))
    model = statepack.export(module, (X, torch.zeros(4)), state_names=["sum", "window"], input_names=["features"])
    assert [(state.name, state.source_name) for state in model.program.states] == [
        ("sum", "total"),
        ("window", "cache"),
    ]


@pytest.mark.parametrize("names", [["one"], ["one", "two", "three"], []])
def test_a_wrong_number_of_state_names_is_refused_with_both_lists(names):
    (found,) = refusal(lambda: two_states(state_names=names))
    assert found.code == codes.NAME_COUNT_MISMATCH
    assert found.expected == "2: a, b"
    assert found.found.startswith(f"{len(names)}: ")


@pytest.mark.parametrize(("option", "names"), [("input_names", ["a", "b"]), ("output_names", [])])
def test_a_wrong_number_of_input_or_output_names_is_refused(option, names):
    (found,) = refusal(lambda: two_states(**{option: names}))
    assert found.code == codes.NAME_COUNT_MISMATCH
    assert option in found.message


def test_a_duplicate_name_is_refused():
    (found,) = refusal(lambda: two_states(state_names=["cache", "cache"]))
    assert found.code == codes.DUPLICATE_NAME
    assert "`cache`" in found.message


def test_an_unknown_buffer_is_refused_with_the_known_ones():
    (found,) = refusal(lambda: two_states(state_names={"a": "one", "model.b": "two"}))
    assert found.code == codes.UNKNOWN_BUFFER
    assert (found.expected, found.found) == ("a, b", "model.b")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"state_names": ["x", "other"]}, "input"),
        ({"state_names": ["y", "other"], "output_names": ["y"]}, "output"),
    ],
    ids=["input", "output"],
)
def test_a_state_named_like_an_input_or_output_is_refused(options, what):
    (found,) = refusal(lambda: two_states(**options))
    assert found.code == codes.STATE_NAME_TAKEN
    assert found.message.endswith(f"has the name of an {what}")
    assert "buffer a" in found.found


@pytest.mark.parametrize("name", ["", "a\0b", "line\nbreak", "é" * 513, "\ud800", 7], ids=repr)
def test_a_name_that_cannot_be_used_is_refused(name):
    found = refused_export(AddInPlace(total=torch.zeros(4)), (X,), state_names=[name])
    assert found.code == codes.INVALID_NAME
    assert "visible characters" in found.expected


@pytest.mark.parametrize("name", ["キャッシュ", "cache ü", "x" * 1024, "a.b_c"])
def test_unusual_names_are_kept(name):
    model = statepack.export(AddInPlace(total=torch.zeros(4)), (X,), state_names=[name])
    assert state_names(model) == [name]


def test_an_invalid_or_repeated_function_name_is_refused():
    exported = torch.export.export(AddInPlace(total=torch.zeros(4)), (X,))
    converter = statepack.TorchConverter().add_exported_program(exported, entrypoint_name="step")
    (found,) = refusal(lambda: converter.add_exported_program(exported, entrypoint_name="step"))
    assert (found.code, found.found) == (codes.DUPLICATE_NAME, "step, step")
    (found,) = refusal(lambda: converter.add_exported_program(exported, entrypoint_name=""))
    assert found.code == codes.INVALID_NAME


def test_a_converter_without_programs_is_refused():
    (found,) = refusal(statepack.TorchConverter().to_program)
    assert found.code == codes.NAME_COUNT_MISMATCH


class Colliding(nn.Module):
    """Names that torch's placeholders cannot tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Module()
        self.a.register_buffer("b_c", torch.zeros(4))
        self.a_b = nn.Module()
        self.a_b.register_buffer("c", torch.zeros(4))

    def forward(self, b_a_b_c):
        self.a.b_c.add_(b_a_b_c)
        self.a_b.c.sub_(b_a_b_c)
        return self.a.b_c * 2


def test_names_that_collide_in_torchs_graph_stay_apart():
    model = statepack.export(Colliding(), (X,))
    assert state_names(model) == ["a.b_c", "a_b.c"]
    run = Runner(model)
    run(b_a_b_c=X)
    assert run.states["a_b.c"].tolist() == [0, -1, -2, -3]


@pytest.mark.parametrize("count", [0, 1, 2, 33, 200])
def test_any_number_of_states_is_exported(count):
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for index in range(count):
                self.register_buffer(f"state{index}", torch.zeros(1))

        def forward(self, x):
            for index in range(count):
                getattr(self, f"state{index}").add_(index)
            return x + 1

    model = statepack.export(Many(), (X,))
    assert state_names(model) == [f"state{index}" for index in range(count)]


# Functions that share states.


class Prefill(AddInPlace):
    def forward(self, rows):
        self.total.copy_(rows.sum(0))
        return self.total * 1


class Decode(AddInPlace):
    def forward(self, x):
        self.total.add_(x)
        return self.total * 1


class Read(AddInPlace):
    def forward(self, scale):
        return self.total * scale


def exported(kind, total, argument, **options):
    return torch.export.export(kind(total=total), (argument,), **options)


def three_functions():
    total = torch.zeros(4)
    dim = torch.export.Dim("rows", min=1, max=8)
    return (
        statepack.TorchConverter()
        .add_exported_program(
            exported(Prefill, total, torch.ones(3, 4), dynamic_shapes={"rows": {0: dim}}),
            state_names=["sum"],
            entrypoint_name="prefill",
        )
        .add_exported_program(exported(Decode, total, X), state_names={"total": "sum"}, entrypoint_name="decode")
        .add_exported_program(exported(Read, total, X), entrypoint_name="read")
    )


def test_functions_share_a_state_by_name_and_one_may_only_read_it():
    model = three_functions().to_program()
    assert state_names(model) == ["sum"]
    uses = {function.name: function.states[0] for function in model.program.functions}
    assert [use.state for use in uses.values()] == [0, 0, 0]
    assert uses["read"].after == uses["read"].before
    assert [use.written_by for use in uses.values()] == ["copy", "copy", "none"]
    assert len(model.recording.replays) == 3

    states = None
    results = []
    for name, inputs in (("prefill", {"rows": torch.ones(2, 4)}), ("decode", {"x": X}), ("read", {"scale": X})):
        run = Runner(model, name)
        run.states = states or run.states
        results.append(run(**inputs)["output"])
        states = run.states
    assert results[2].tolist() == [0, 3, 8, 15]


def test_functions_that_disagree_about_a_state_are_refused_with_both_names():
    converter = statepack.TorchConverter()
    converter.add_exported_program(exported(Decode, torch.zeros(4), X), entrypoint_name="small")
    converter.add_exported_program(exported(Decode, torch.zeros(1, 4), X), entrypoint_name="large")
    (found,) = refusal(converter.to_program)
    assert found.code == codes.STATE_CONFLICT
    assert "`small` and `large`" in found.message
    assert (found.expected, found.found) == ("float32[4]", "float32[1, 4]")


def test_functions_with_different_initial_values_of_a_state_are_refused():
    converter = statepack.TorchConverter()
    converter.add_exported_program(exported(Decode, torch.zeros(4), X), entrypoint_name="one")
    converter.add_exported_program(exported(Decode, torch.ones(4), X), entrypoint_name="two")
    (found,) = refusal(converter.to_program)
    assert found.code == codes.STATE_CONFLICT
    assert "initial value" in found.expected


def test_weights_of_several_functions_are_stored_once():
    weight = nn.Linear(4, 4)

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = weight

        def forward(self, x):
            return self.layer(x)

    converter = statepack.TorchConverter()
    for name in ("one", "two", "three"):
        converter.add_exported_program(torch.export.export(Uses(), (X,)), entrypoint_name=name)
    program = converter.to_program().program
    assert [tensor.name for tensor in program.tensors] == ["layer.weight", "layer.bias"]
    assert [function.constants[0].tensor for function in program.functions] == [0, 0, 0]
