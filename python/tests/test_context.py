"""A declared context is written as declared when the graph bears it out, and refused with the reason when not."""

from __future__ import annotations

import hashlib
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import statepack
from conftest import refusal
from statepack.program_pb2 import ExportedFile
from statepack.tables import element_bytes

LAYERS, HEADS, CAPACITY, WIDTH, QUERY = 2, 3, 8, 4, 5
STACKED = (LAYERS, HEADS, CAPACITY, WIDTH)
POSITIONS = torch.arange(QUERY)


class Cache(nn.Module):
    """A stacked cache [layer, head, position, width] that one function writes; rows are [head, query, width]."""

    def __init__(self, write, shape=STACKED):
        super().__init__()
        self.register_buffer("cache", torch.zeros(shape))
        self.write = write

    def forward(self, rows, positions):
        self.write(self.cache, rows, positions)
        return self.cache.sum()


def rows():
    return torch.arange(1.0, HEADS * QUERY * WIDTH + 1).reshape(HEADS, QUERY, WIDTH)


def exported(write, axis=2, shape=STACKED, args=None, **options):
    module = Cache(write, shape)
    context = statepack.Context("positions", axes={"cache": axis})
    args = args or (rows(), POSITIONS)
    return statepack.export(module, args, recording_inputs=[args] * 3, context=context, **options)


def declared(model, function=0):
    """Positions and axes of a function's context, by name."""
    program = model.program
    context = program.functions[function].context
    inputs = program.functions[function].inputs
    return inputs[context.positions].name, {program.states[a.state].name: a.axis for a in context.axes}


def refused(act) -> str:
    """The text of the only finding, without its code."""
    (diagnostic,) = refusal(act)
    assert diagnostic.code == "E0028"
    return str(diagnostic).removeprefix("error[E0028]: ")


def text(block: str) -> str:
    return textwrap.dedent(block).strip("\n")


def by_assignment(cache, rows, positions):
    cache[0, :, positions] = rows


def every_layer(cache, rows, positions):
    for layer in range(LAYERS):
        cache[layer, :, positions] = rows


def all_layers_at_once(cache, rows, positions):
    cache[:, :, positions] = rows


def by_index_copy(cache, rows, positions):
    cache[1].index_copy_(1, positions, rows)


def by_scatter(cache, rows, positions):
    cache[0].scatter_(1, positions[None, :, None].expand(HEADS, -1, WIDTH), rows)


def by_scatter_of_a_negative_axis(cache, rows, positions):
    cache.scatter_(-2, positions[:, None].expand(LAYERS, HEADS, -1, WIDTH), rows.expand(LAYERS, -1, -1, -1))


def by_index_add(cache, rows, positions):
    cache[0, 0].index_add_(0, positions, rows[0])


def by_index_fill(cache, rows, positions):
    cache[0, 0].index_fill_(0, positions, 2.0)


def one_token(cache, rows, positions):
    cache[0, :, positions[:1]] = rows[:, :1]


def a_head_and_its_positions(cache, rows, positions):
    cache[0, torch.tensor([1]), positions] = rows[0]


def transposed(cache, rows, positions):
    cache.transpose(1, 2)[0, positions] = rows.transpose(0, 1)


def through_a_flat_view(cache, rows, positions):
    cache.view(LAYERS * HEADS, CAPACITY, WIDTH)[:HEADS, positions] = rows


def through_a_flat_view_of_the_axis(cache, rows, positions):
    flat = cache.view(LAYERS * HEADS * CAPACITY, WIDTH)
    flat[positions + CAPACITY] = rows[0]


def head_after_head(cache, rows, positions):
    for head in range(HEADS):
        cache[0, head][positions] = rows[head]


def with_a_squeezed_axis(cache, rows, positions):
    cache[0:1].squeeze(0).unsqueeze(0)[:, :, positions] = rows


def a_ring(cache, rows, positions):
    wrapped = torch.where(positions >= CAPACITY, positions - CAPACITY, positions)
    cache[0, :, wrapped] = rows


def one_hot(positions):
    return (torch.arange(CAPACITY)[:, None] == positions[None]).float()


def by_blending(cache, rows, positions):
    hot = one_hot(positions)
    cache.copy_(cache * (1 - hot.sum(1))[:, None] + hot @ rows)


def one_layer_by_blending(cache, rows, positions):
    hot = one_hot(positions)
    cache[1] = cache[1] * (1 - hot.sum(1))[:, None] + hot @ rows


def by_where(cache, rows, positions):
    hot = one_hot(positions)
    cache[0] = torch.where(hot.sum(1).bool()[:, None], hot @ rows, cache[0])


def by_a_mask(cache, rows, positions):
    mask = one_hot(positions).sum(1).bool()
    cache[0][:, mask] = rows[0, 0]


def gated(cache, rows, positions):
    written = cache.index_copy(2, positions, rows.expand(LAYERS, -1, -1, -1))
    cache.copy_(torch.where(rows.sum() > 0, written, cache))


def after_a_decay(cache, rows, positions):
    cache.mul_(0.5)
    cache[0, :, positions] = rows


def after_a_reset(cache, rows, positions):
    cache.copy_(torch.where(rows.sum() < 0, torch.zeros(()), cache))
    cache[0, :, positions] = rows


def a_sliced_head(cache, rows, positions):
    cache[0, :1, positions, :2] = rows[:1, :, :2]


ACCEPTED = [
    by_assignment,
    every_layer,
    all_layers_at_once,
    by_index_copy,
    by_scatter,
    by_scatter_of_a_negative_axis,
    by_index_add,
    by_index_fill,
    one_token,
    a_head_and_its_positions,
    transposed,
    through_a_flat_view,
    through_a_flat_view_of_the_axis,
    head_after_head,
    with_a_squeezed_axis,
    a_ring,
    by_blending,
    one_layer_by_blending,
    by_where,
    by_a_mask,
    gated,
    after_a_decay,
    after_a_reset,
    a_sliced_head,
]


@pytest.mark.parametrize("write", ACCEPTED, ids=lambda write: write.__name__)
def test_a_write_whose_index_derives_from_positions_is_accepted(write):
    assert declared(exported(write)) == ("positions", {"cache": 2})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_are_accepted_in_both_integer_types(dtype):
    def write(cache, rows, positions):
        cache[0, :, positions.long()] = rows

    assert declared(exported(write, args=(rows(), POSITIONS.to(dtype)))) == ("positions", {"cache": 2})


#: Lines of expected/found/hint depend on the write alone.
REFUSED = {}


def refuses(found: str, hint: str | None = None):
    """Registers a write that does not bear out axis 2, with what is found and what is hinted."""

    def register(write):
        hinted = hint or "index axis 2 with `positions`, or leave `cache` out of the context"
        REFUSED[write.__name__] = (write, found, hinted)
        return write

    return register


ANOTHER = "declare the axis that they index: axes={'cache': 1}"


@refuses("index_copy at axis 1, which `positions` indexes", ANOTHER)
def another_axis(cache, rows, positions):
    cache.index_copy_(1, positions, torch.zeros(LAYERS, QUERY, CAPACITY, WIDTH) + rows.sum())


@refuses("index_put at axis 1, which `positions` indexes x2", ANOTHER)
def another_axis_in_every_layer(cache, rows, positions):
    for layer in range(LAYERS):
        cache[layer, positions] = rows[0, :, :, None].transpose(1, 2).expand(-1, CAPACITY, -1)


@refuses("index_put at axis 1, which `positions` indexes", ANOTHER)
def another_axis_beside_a_fixed_row(cache, rows, positions):
    cache[0, positions, torch.tensor([3])] = rows[0]


@refuses("index_put at axis 3, which `positions` indexes", "declare the axis that they index: axes={'cache': 3}")
def another_axis_through_a_transposed_view(cache, rows, positions):
    cache.transpose(2, 3)[:, :, positions] = rows.sum()


@refuses("copy at fixed places of axis 2")
def the_first_rows(cache, rows, positions):
    cache[0, :, :QUERY] = rows + positions[:, None]


@refuses("copy at fixed places of axis 2")
def a_fixed_row(cache, rows, positions):
    cache[:, :, 3] = rows[:, 0] * positions[0]


@refuses("index_put at axis 2, whose index does not derive from `positions`")
def a_constant_index(cache, rows, positions):
    cache[0, :, torch.arange(QUERY)] = rows


@refuses("index_put at axis 2, whose index does not derive from `positions`")
def an_index_with_the_length_of_positions(cache, rows, positions):
    cache[0, :, torch.arange(positions.shape[0])] = rows * positions[:, None]


@refuses("index_copy at axis 2, whose index does not derive from `positions`")
def an_index_in_the_shape_of_positions(cache, rows, positions):
    cache[0].index_copy_(1, torch.zeros_like(positions)[:1], rows[:, :1])


@refuses("index_put at fixed places of axis 2")
def a_head_of_the_first_rows(cache, rows, positions):
    cache[0, :, :2][torch.tensor([0])] = rows[:1, :2]


@refuses("mul of the whole axis, which does not depend on `positions`")
def a_decay(cache, rows, positions):
    cache.mul_(0.5)


@refuses("where with a mask, which does not depend on `positions`")
def a_fixed_mask(cache, rows, positions):
    cache.copy_(torch.where(torch.arange(CAPACITY)[:, None] < 3, rows.sum() * positions.sum(), cache))


@refuses("index_put of the whole axis, which does not depend on `positions`")
def a_whole_head(cache, rows, positions):
    cache[0, torch.tensor([1])] = rows.sum()


@refuses("cat of the whole axis, which does not depend on `positions`")
def a_shift(cache, rows, positions):
    cache.copy_(torch.cat([cache[:, :, QUERY:], rows.expand(LAYERS, -1, -1, -1)], 2))


@refuses("index_put at axis 2, whose index does not derive from `positions`")
def one_write_of_two(cache, rows, positions):
    cache[0, :, positions] = rows
    cache[1, :, torch.tensor([0])] = rows[:, :1]


@pytest.mark.parametrize(("write", "found", "hint"), REFUSED.values(), ids=REFUSED)
def test_a_write_that_positions_do_not_place_is_refused(write, found, hint):
    message = refused(lambda: exported(write))
    place = message.splitlines()[1].removeprefix("  --> ")
    assert place.startswith("function `main`, Cache (test_context.py:")
    assert message == text(f"""
        axis 2 of state `cache` is not indexed by `positions`
          --> {place}
          expected: writes whose index at axis 2 derives from `positions`
          found:    {found}
          hint:     {hint}
        """)


def test_the_declared_axis_is_the_one_that_the_hint_names():
    assert declared(exported(another_axis, axis=1, args=(rows(), POSITIONS % HEADS))) == ("positions", {"cache": 1})


def test_negative_axes_count_from_the_end():
    assert declared(exported(by_assignment, axis=-2)) == ("positions", {"cache": 2})


class TwoCaches(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("key_cache", torch.zeros(LAYERS, CAPACITY, WIDTH))
        self.register_buffer("value_cache", torch.zeros(LAYERS, CAPACITY, WIDTH))
        self.register_buffer("table", torch.ones(CAPACITY, WIDTH))

    def forward(self, features, position_ids):
        self.key_cache[0, position_ids] = features * self.table[position_ids]
        self.value_cache[1].index_copy_(0, position_ids, features)
        return self.key_cache.sum() + self.value_cache.sum()


def two_caches(positions="position_ids", axes=None, context=None, **options):
    return statepack.export(
        TwoCaches(),
        (torch.ones(QUERY, WIDTH), POSITIONS),
        state_names=["keyCache", "valueCache"],
        context=context or statepack.Context(positions, axes),
        **options,
    )


def test_the_context_is_written_in_the_order_of_the_states():
    model = two_caches(axes={"valueCache": 1, "keyCache": -2})
    context = model.program.functions[0].context
    assert model.program.functions[0].HasField("context")
    assert context.positions == 1
    assert [(axis.state, axis.axis) for axis in context.axes] == [(0, 1), (1, 1)]


def test_a_qualified_buffer_name_stands_for_its_state():
    assert declared(two_caches(axes={"key_cache": 1})) == ("position_ids", {"keyCache": 1})


def test_without_a_context_none_is_written():
    model = statepack.export(TwoCaches(), (torch.ones(QUERY, WIDTH), POSITIONS))
    assert not model.program.functions[0].HasField("context")


STATES = "expected: keyCache, valueCache"


@pytest.mark.parametrize(
    ("positions", "axes", "expected"),
    [
        pytest.param(
            "position_id",
            {"keyCache": 1},
            """
            positions of the context: `position_id` is no input
              --> function `main`
              expected: an int32 or int64 input: position_ids
              found:    position_id
              hint:     did you mean `position_ids`?
            """,
            id="positions-unknown",
        ),
        pytest.param(
            "keyCache",
            {"keyCache": 1},
            """
            positions of the context: `keyCache` is a state
              --> function `main`
              expected: an int32 or int64 input: position_ids
              found:    keyCache
            """,
            id="positions-state",
        ),
        pytest.param(
            "features",
            {"keyCache": 1},
            """
            positions of the context: input `features` has another scalar type
              --> function `main`
              expected: an int32 or int64 input: position_ids
              found:    float32[5, 4]
            """,
            id="positions-float",
        ),
        pytest.param(
            1,
            {"keyCache": 1},
            """
            positions of the context: `1` is no input
              --> function `main`
              expected: an int32 or int64 input: position_ids
              found:    1
            """,
            id="positions-index",
        ),
        pytest.param(
            "position_ids",
            {"keyCahe": 1},
            """
            context names `keyCahe`, which is no state of the function
              --> function `main`
              expected: keyCache, valueCache
              found:    keyCahe
              hint:     did you mean `keyCache`?
            """,
            id="state-unknown",
        ),
        pytest.param(
            "position_ids",
            {"table": 0},
            """
            context names `table`, which the function does not write
              --> function `main`
              expected: keyCache, valueCache
              found:    table
              hint:     declare the context of the function that writes it
            """,
            id="state-unwritten",
        ),
        pytest.param(
            "position_ids",
            {"keyCache": 1, "key_cache": 1},
            """
            context names state `keyCache` twice
              --> function `main`
              expected: one axis for each state
              found:    keyCache and key_cache
            """,
            id="state-twice",
        ),
        pytest.param(
            "position_ids",
            {"keyCache": 3},
            """
            axis 3 of the context is no axis of state `keyCache`
              --> function `main`
              expected: 0 to 2 of float32[2, 8, 4]
              found:    3
            """,
            id="axis-out-of-range",
        ),
        pytest.param(
            "position_ids",
            {"keyCache": -4},
            """
            axis -4 of the context is no axis of state `keyCache`
              --> function `main`
              expected: 0 to 2 of float32[2, 8, 4]
              found:    -4
            """,
            id="axis-out-of-range-from-the-end",
        ),
        pytest.param(
            "position_ids",
            {"keyCache": "1"},
            """
            axis '1' of the context is no axis of state `keyCache`
              --> function `main`
              expected: 0 to 2 of float32[2, 8, 4]
              found:    '1'
            """,
            id="axis-text",
        ),
        pytest.param(
            "position_ids",
            {"keyCache": True},
            """
            axis True of the context is no axis of state `keyCache`
              --> function `main`
              expected: 0 to 2 of float32[2, 8, 4]
              found:    True
            """,
            id="axis-flag",
        ),
        pytest.param(
            "position_ids",
            {},
            """
            context names no state
              --> function `main`
              expected: a mapping from state name to axis
              found:    {}
              hint:     leave context out when no input carries positions
            """,
            id="no-state",
        ),
        pytest.param(
            "position_ids",
            ["keyCache"],
            """
            context names no state
              --> function `main`
              expected: a mapping from state name to axis
              found:    ['keyCache']
              hint:     leave context out when no input carries positions
            """,
            id="a-list",
        ),
    ],
)
def test_a_context_that_does_not_fit_the_signature_is_refused(positions, axes, expected):
    assert refused(lambda: two_caches(positions, axes)) == text(expected)


def test_something_else_than_a_context_is_refused():
    assert refused(lambda: two_caches(context={"positions": "position_ids"})) == text("""
        context is no statepack.Context
          --> function `main`
          found:    dict
        """)


def test_a_function_without_integer_inputs_has_no_positions():
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.total += x.sum()
            return self.total * 2

    def act(axes):
        context = statepack.Context("x", axes)
        return refusal(lambda: statepack.export(Total(), (torch.ones(3),), context=context))

    first, second = act({"total": 0})
    assert first.expected == "an int32 or int64 input: the function has none"
    assert str(second) == text("""
        error[E0028]: axis 0 of the context is no axis of state `total`
          --> function `main`
          expected: a state with an axis, not float32[]
          found:    0
        """)


def test_every_finding_is_reported_at_once():
    found = refusal(lambda: two_caches("positions", {"keyCache": 7, "other": 0, "valueCache": 2}))
    assert [diagnostic.message for diagnostic in found] == [
        "positions of the context: `positions` is no input",
        "axis 7 of the context is no axis of state `keyCache`",
        "context names `other`, which is no state of the function",
    ]
    found = refusal(lambda: two_caches("position_ids", {"keyCache": 2, "valueCache": 0}))
    assert [diagnostic.message for diagnostic in found] == [
        "axis 2 of state `keyCache` is not indexed by `position_ids`",
        "axis 0 of state `valueCache` is not indexed by `position_ids`",
    ]
    assert [diagnostic.hint for diagnostic in found] == [
        "declare the axis that they index: axes={'keyCache': 1}",
        "declare the axis that they index: axes={'valueCache': 1}",
    ]


def test_a_mutated_input_of_symbolic_length_has_a_context():
    class Step(nn.Module):
        def forward(self, cache, rows, positions):
            cache.index_copy_(0, positions, rows)
            return cache.sum(1)

    capacity = torch.export.Dim("capacity", min=2, max=64)
    args = (torch.zeros(CAPACITY, WIDTH), torch.ones(QUERY, WIDTH), POSITIONS)
    model = statepack.export(
        Step(),
        args,
        dynamic_shapes={"cache": {0: capacity}, "rows": None, "positions": None},
        context=statepack.Context("positions", {"cache": 0}),
        recording_inputs=[args] * 3,
    )
    assert declared(model) == ("positions", {"cache": 0})


def test_each_function_carries_its_own_context():
    class Writer(nn.Module):
        def __init__(self, buffer, axis):
            super().__init__()
            self.register_buffer("cache", buffer)
            self.axis = axis

        def forward(self, value, at):
            self.cache.index_copy_(self.axis, at, value)
            return self.cache.sum()

    class Reader(nn.Module):
        def __init__(self, buffer):
            super().__init__()
            self.register_buffer("cache", buffer)

        def forward(self, at):
            return self.cache[at].sum()

    cache = torch.zeros(4, 4)
    converter = statepack.TorchConverter()
    at = torch.tensor([0, 1])
    for name, axis, context in [
        ("rows", 0, statepack.Context("at", {"cache": 0})),
        ("columns", 1, statepack.Context("at", {"cache": 1})),
        ("free", 0, None),
    ]:
        value = torch.ones(2, 4) if axis == 0 else torch.ones(4, 2)
        program = torch.export.export(Writer(cache, axis), (value, at), strict=False)
        converter.add_exported_program(program, entrypoint_name=name, context=context)
    converter.add_exported_program(torch.export.export(Reader(cache), (at,), strict=False), entrypoint_name="read")
    model = converter.to_program()
    assert declared(model, 0) == ("at", {"cache": 0})
    assert declared(model, 1) == ("at", {"cache": 1})
    assert [function.HasField("context") for function in model.program.functions] == [True, True, False, False]


def test_the_context_and_the_digest_of_an_initial_tensor_are_in_the_file(tmp_path: pathlib.Path):
    module = TwoCaches()
    module.key_cache = torch.arange(module.key_cache.numel()).reshape(module.key_cache.shape).float()
    model = statepack.export(
        module, (torch.ones(QUERY, WIDTH), POSITIONS), context=statepack.Context("position_ids", {"key_cache": 1})
    )
    model.save(tmp_path / "exported.pb", quiet=True)
    program = ExportedFile.FromString((tmp_path / "exported.pb").read_bytes()).program
    assert program.functions[0].context == model.program.functions[0].context
    keys, values = program.states
    assert keys.initial_digest == hashlib.sha256(element_bytes(module.key_cache)).digest()
    assert values.initial_splat == bytes(4)
    assert values.initial_digest == b""


def test_importing_the_package_imports_nothing_that_exporting_needs():
    script = (
        "import sys, statepack\n"
        "statepack.Context('positions', {'cache': 0}), statepack.ExportError, statepack.Diagnostic\n"
        "assert {'export', 'Context', 'TorchConverter'} <= set(dir(statepack)) | set(statepack.__all__)\n"
        "print(sorted({'torch', 'numpy', 'google.protobuf', 'safetensors', 'sympy'} & set(sys.modules)))\n"
    )
    source = pathlib.Path(statepack.__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=source)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize("name", ["Context", "ExportRequest", "ExportedModel", "TorchConverter", "export"])
def test_every_public_name_is_there_and_listed(name):
    assert name in statepack.__all__
    assert getattr(statepack, name).__name__ == name
