"""`check` proves that a kernel stays inside its operands: whatever a file says, a bad call is refused with a reason."""

import ctypes
from typing import Any

import numpy as np
import pytest

import kernel_library as library

F, L, B = np.float32, np.int64, np.bool_


def z(*shape: int, kind: Any = F) -> library.Array:
    return np.zeros(shape, kind)


def changed(array: library.Array, **fields: Any) -> library.Tensor:
    """A tensor of `array` with other fields: what only a hostile file says."""
    made = library.tensor(array)
    for name, value in fields.items():
        if name in ("shape", "strides"):
            for axis, one in enumerate(value):
                getattr(made, name)[axis] = one
        else:
            setattr(made, name, value)
    return made


PANEL = changed(z(32, 8), layout=1)

# kernel, operands, results, ints, floats, a part of the reason
BAD: list[tuple[str, list[Any], list[Any], list[int], list[float], str]] = [
    ("add", [z(3)], [z(3)], [], [], "number of operands"),
    ("add", [z(3), z(3), z(3)], [z(3)], [], [], "number of operands"),
    ("add", [z(3), None], [z(3)], [], [], "absent"),
    ("add", [z(3), z(3)], [], [], [], "number of results"),
    ("add", [z(3), z(3)], [None], [], [], "absent"),
    ("add", [z(3), z(3)], [z(3)], [1], [], "integers"),
    ("add", [z(3), z(3)], [z(3)], [], [1.0], "floats"),
    ("add", [z(3), z(3, kind=L)], [z(3)], [], [], "different scalar types"),
    ("add", [z(3), z(3)], [z(3, kind=L)], [], [], "result has the wrong scalar type"),
    ("add", [z(3, kind=B), z(3, kind=B)], [z(3, kind=B)], [], [], "does not take"),
    ("add", [z(4), z(3)], [z(4)], [], [], "broadcast"),
    ("add", [z(3, 3), z(3)], [z(3)], [], [], "broadcast"),
    ("add", [z(3), z(3)], [changed(z(3), strides=[0])], [], [], "repeats"),
    ("add", [z(3), z(3)], [changed(z(3, 3), strides=[1, 1])], [], [], "repeats"),
    ("add", [z(3), z(3)], [changed(z(3, 3), strides=[-(2**63), 1])], [], [], "repeats"),
    ("add", [changed(z(3), rank=9), z(3)], [z(3)], [], [], "eight axes"),
    ("add", [changed(z(3), rank=-1), z(3)], [z(3)], [], [], "eight axes"),
    ("add", [changed(z(3), shape=[-1]), z(3)], [z(3)], [], [], "negative length"),
    ("add", [changed(z(3), shape=[2**62]), z(3)], [z(3)], [], [], "too many elements"),
    ("add", [changed(z(3, 3), shape=[2**40, 2**40]), z(3)], [z(3)], [], [], "too many elements"),
    ("add", [changed(z(3, 3, 3), shape=[0, 2**40, 2**40]), z(3)], [z(3)], [], [], "too many elements"),
    ("add", [changed(z(3), scalar_type=10), z(3)], [z(3)], [], [], "scalar type"),
    ("add", [changed(z(3), scalar_type=999), z(3)], [z(3)], [], [], "scalar type"),
    ("add", [changed(z(3), layout=7), z(3)], [z(3)], [], [], "layout"),
    ("add", [PANEL, z(32, 8)], [z(32, 8)], [], [], "layout"),
    ("add", [changed(z(3), data=None), z(3)], [z(3)], [], [], "no storage"),
    ("linear", [z(2, 8), PANEL, None], [changed(z(2, 32), layout=1)], [], [], "layout"),
    ("linear", [z(2, 8), changed(z(32), layout=1), None], [z(2, 32)], [], [], "matrix"),
    ("linear", [z(2, 8), changed(z(32, 8, kind=L), layout=1), None], [z(2, 32)], [], [], "matrix"),
    ("linear", [z(2, 9), z(32, 8), None], [z(2, 32)], [], [], "inner axes"),
    ("linear", [z(2, 8), z(32, 8), None], [z(2, 31)], [], [], "wrong shape"),
    ("linear", [z(2, 8), z(32, 8), None], [z(3, 32)], [], [], "wrong shape"),
    ("linear", [z(2, 8), z(32, 8), z(31)], [z(2, 32)], [], [], "bias"),
    ("linear", [z(2, 8), z(32, 8), z(32, kind=L)], [z(2, 32)], [], [], "bias"),
    ("linear", [z(2, 8), z(32, 8), z(1, 32)], [z(2, 32)], [], [], "bias"),
    ("linear", [np.zeros((), F), z(32, 8), None], [np.zeros((), F)], [], [], "ranks"),
    ("linear", [z(2, 8), z(2, 32, 8), None], [z(2, 32)], [], [], "matrix"),
    ("linear", [z(2, 8), z(32, 8, kind=L), None], [z(2, 32)], [], [], "float32"),
    ("eq", [z(3), z(3)], [z(3)], [], [], "wrong scalar type"),
    ("where", [z(3), z(3), z(3)], [z(3)], [], [], "does not take|bool"),
    ("where", [z(3, kind=B), z(3), z(3, kind=L)], [z(3)], [], [], "different scalar types"),
    ("where", [z(2, kind=B), z(3), z(3)], [z(3)], [], [], "broadcast"),
    ("copy", [z(4)], [z(3)], [], [], "broadcast"),
    ("write", [z(3)], [z(3)], [2], [], "write_back"),
    ("write", [z(4)], [z(3)], [0], [], "broadcast"),
    ("fill", [z(1)], [z(3)], [], [], "0-dimensional"),
    ("fill", [np.zeros((), L)], [z(3)], [], [], "different scalar types"),
    ("arange", [np.zeros((), F), np.zeros((), F)], [z(3, 1)], [], [], "1-dimensional"),
    ("arange", [np.zeros((), F), z(1)], [z(3)], [], [], "0-dimensional"),
    ("arange", [np.zeros((), F), np.zeros((), L)], [z(3)], [], [], "different scalar types"),
    ("sum", [z(3, 4)], [z(3)], [4, 0], [], "axes_mask"),
    ("sum", [z(3, 4)], [z(3)], [-1, 0], [], "axes_mask"),
    ("sum", [z(3, 4)], [z(3)], [1, 0], [], "wrong shape"),
    ("sum", [z(3, 4)], [z(3)], [2, 1], [], "wrong shape"),
    ("sum", [z(3, 4)], [z(3)], [2, 2], [], "keep"),
    ("sum", [z(3, 4)], [z(3, kind=L)], [2, 0], [], "different scalar types"),
    ("sum", [z(3, 4)], [np.zeros((), F)], [2, 0], [], "wrong shape"),
    ("amax", [z(3, 0)], [z(3)], [2, 0], [], "empty"),
    ("amin", [z(0, 3)], [z(3)], [1, 0], [], "empty"),
    ("any", [z(3)], [np.zeros((), B)], [1, 0], [], "does not take"),
    ("argmax", [z(3, 4)], [z(3, kind=L)], [2, 0], [], "axis"),
    ("argmax", [z(3, 4)], [z(3, kind=L)], [-1, 0], [], "axis"),
    ("argmax", [z(3, 4)], [z(3)], [1, 0], [], "int64"),
    ("argmax", [z(3, 0)], [z(3, kind=L)], [1, 0], [], "empty"),
    ("argmax", [z(3, 4)], [z(4, kind=L)], [1, 0], [], "wrong shape"),
    ("argmax", [z(3, 4)], [z(3, kind=L)], [1, 3], [], "keep"),
    ("cumsum", [z(3, 4)], [z(3, 4)], [2], [], "axis"),
    ("cumsum", [z(3, 4)], [z(4, 3)], [0], [], "wrong shape"),
    ("cumsum", [z(3, 4)], [z(3, 4, kind=L)], [0], [], "different scalar types"),
    ("softmax", [z(3, 4)], [z(3, 4)], [-1], [], "axis"),
    ("softmax", [np.zeros((), F)], [np.zeros((), F)], [1], [], "axis"),
    ("softmax", [z(3)], [z(3, kind=L)], [0], [], "float32"),
    ("softmax", [z(3)], [z(1, 3)], [0], [], "wrong shape"),
    ("layer_norm", [z(3, 4), None, None], [z(3, 4)], [0], [1e-5], "axes"),
    ("layer_norm", [z(3, 4), None, None], [z(3, 4)], [3], [1e-5], "axes"),
    ("layer_norm", [z(3, 4), z(3), None], [z(3, 4)], [1], [1e-5], "normalised shape"),
    ("layer_norm", [z(3, 4), None, z(3, 4)], [z(3, 4)], [1], [1e-5], "normalised shape"),
    ("layer_norm", [z(3, 4), z(4, kind=L), None], [z(3, 4)], [1], [1e-5], "float32"),
    ("rms_norm", [z(3, 4), z(1)], [z(3, 4)], [1], [1e-5], "normalised shape"),
    ("rms_norm", [z(3, 4), None], [z(4, 3)], [1], [1e-5], "type or shape"),
    ("matmul", [z(2, 3), z(4, 5)], [z(2, 5)], [], [], "inner axes"),
    ("matmul", [z(2, 3), z(3, 5)], [z(2, 4)], [], [], "wrong shape"),
    ("matmul", [z(1, 2, 3), z(2, 3, 5)], [z(2, 2, 5)], [], [], "leading axes"),
    ("matmul", [z(3), z(3, 5)], [z(5)], [], [], "rank"),
    ("matmul", [z(2, 3), z(3, 5, kind=L)], [z(2, 5)], [], [], "float32"),
    ("embedding", [z(4, 3), z(2)], [z(2, 3)], [], [], "int64"),
    ("embedding", [z(4, 3), z(2, kind=L)], [z(2, 4)], [], [], "wrong shape"),
    ("embedding", [z(4), z(2, kind=L)], [z(2, 4)], [], [], "matrix"),
    ("embedding", [z(4, 3), z(2, kind=L)], [z(2, 3, kind=L)], [], [], "float32"),
    ("index", [z(4, 3)], [z(4, 3)], [], [], "number of operands"),
    ("index", [z(4, 3), z(2)], [z(2, 3)], [], [], "int64"),
    ("index", [z(4, 3), z(2, kind=L), z(3, kind=L)], [z(2)], [], [], "broadcast together"),
    ("index", [z(4), z(2, kind=L), z(2, kind=L)], [z(2)], [], [], "more indices than axes"),
    ("index", [z(4, 3), z(2, kind=L)], [z(2, 4)], [], [], "wrong shape"),
    ("index", [z(1, 1, 1, 1, 1), z(1, 1, 1, 1, 1, kind=L)], [z(1)], [], [], "eight axes"),
    ("index", [z(4, 3), None], [z(2, 3)], [], [], "absent"),
    ("index_select", [z(4, 3), z(2, kind=L)], [z(2, 3)], [2], [], "axis"),
    ("index_select", [z(4, 3), z(2, kind=L)], [z(4, 3)], [0], [], "wrong shape"),
    ("index_select", [z(4, 3), z(2, 1, kind=L)], [z(2, 3)], [0], [], "1-dimensional"),
    ("index_select", [np.zeros((), F), z(1, kind=L)], [np.zeros((), F)], [0], [], "axis"),
    ("gather", [z(4, 3), z(2, 4, kind=L)], [z(2, 4)], [0], [], "longer than the operand"),
    ("gather", [z(4, 3), z(2, kind=L)], [z(2)], [0], [], "ranks"),
    ("gather", [z(4, 3), z(2, 3, kind=L)], [z(2, 2)], [0], [], "wrong shape"),
    ("gather", [z(4, 3), z(2, 3)], [z(2, 3)], [0], [], "int64"),
    ("gather", [z(4, 3), z(2, 3, kind=L)], [z(2, 3)], [-1], [], "axis"),
    ("index_copy", [z(4, 3), z(2, kind=L), z(2, 3)], [z(4, 3)], [5], [], "axis"),
    ("index_copy", [z(4, 3), z(2, kind=L), z(3, 3)], [z(4, 3)], [0], [], "source"),
    ("index_copy", [z(4, 3), z(2, kind=L), z(2, 3, kind=L)], [z(4, 3)], [0], [], "different scalar types"),
    ("index_copy", [z(4, 3), z(2), z(2, 3)], [z(4, 3)], [0], [], "int64"),
    ("index_copy", [z(4, 3), z(1, 2, kind=L), z(2, 3)], [z(4, 3)], [0], [], "more than one axis"),
    ("index_copy", [z(4, 3), z(2, kind=L), z(2, 3)], [z(5, 3)], [0], [], "wrong shape"),
    ("rotary", [z(3, 4), z(4), z(4)], [z(4, 3)], [], [], "type or shape"),
    ("rotary", [z(3, 4), z(6), z(6)], [z(3, 4)], [], [], "last axis"),
    ("rotary", [z(3, 4), z(3), z(3)], [z(3, 4)], [], [], "last axis"),
    ("rotary", [z(3, 4), z(4), z(2)], [z(3, 4)], [], [], "length"),
    ("rotary", [z(3, 4), z(3, 4), z(2, 4)], [z(3, 4)], [], [], "broadcast"),
    ("rotary", [z(3, 4), z(1, 3, 4), z(4)], [z(3, 4)], [], [], "broadcast"),
    ("rotary", [z(3, 4), z(4, kind=L), z(4)], [z(3, 4)], [], [], "float32"),
    ("rotary", [np.zeros((), F), z(0), z(0)], [np.zeros((), F)], [], [], "no axes"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(2, 2), z(2), z(2)], [z(4, 2)], [1], [], "in front of the last"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(2, 2), z(2), z(2)], [z(4, 2)], [-1], [], "in front of the last"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(3, 2), z(2), z(2)], [z(4, 2)], [0], [], "source"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(2, 2, 1), z(2), z(2)], [z(4, 2)], [0], [], "source"),
    ("rotary_index_copy", [z(4, 2), z(2), z(2, 2), z(2), z(2)], [z(4, 2)], [0], [], "int64"),
    ("rotary_index_copy", [z(4, 2), z(1, 2, kind=L), z(2, 2), z(2), z(2)], [z(4, 2)], [0], [], "more than one axis"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(2, 2), z(2), z(2)], [z(5, 2)], [0], [], "type or shape"),
    ("rotary_index_copy", [z(4, 2), z(2, kind=L), z(2, 2), z(3, 2), z(2)], [z(4, 2)], [0], [], "broadcast"),
    ("linear_parts", [z(2, 3)], [z(2, 4)], [0], [], "number of operands"),
    ("linear_parts", [z(2, 3), z(4, 3)], [z(2, 4)], [2], [], "neither 0 nor 1"),
    ("linear_parts", [z(2, 3), z(4, 3), z(5, 3), z(4)], [z(2, 9)], [1], [], "differ in number"),
    ("linear_parts", [z(2, 3), z(4, 3), z(5, 3), z(4), z(4)], [z(2, 9)], [1], [], "bias"),
    ("linear_parts", [z(2, 3), z(4, 3), z(5, 2)], [z(2, 9)], [0], [], "inner axes"),
    ("linear_parts", [z(2, 3), z(4, 3), z(5, 3)], [z(2, 8)], [0], [], "wrong shape"),
    ("linear_parts", [z(2, 3), z(4, 3), z(5)], [z(2, 9)], [0], [], "matrix"),
    ("linear_parts", [z(2, 3), z(4, 3), None], [z(2, 9)], [0], [], "absent"),
    ("linear_parts", [z(2, 3), z(4, 3, kind=L)], [z(2, 4)], [0], [], "float32"),
    ("linear_parts", [z(2, 3), *[z(1, 3)] * 17], [z(2, 17)], [0], [], "more than 16"),
    ("linear_parts", [np.zeros((), F), z(1, 1)], [np.zeros((), F)], [0], [], "no axes"),
    ("linear_gated", [z(2, 3), z(4, 3), z(4, 3), None, None], [z(2, 4)], [5], [], "activation"),
    ("linear_gated", [z(2, 3), z(4, 3), z(5, 3), None, None], [z(2, 4)], [0], [], "different shapes"),
    ("linear_gated", [z(2, 3), z(4, 3), z(4, 3), None, z(3)], [z(2, 4)], [0], [], "bias"),
    ("linear_gated", [z(2, 3), z(4, 3), z(4, 3), None, None], [z(3, 4)], [0], [], "wrong shape"),
    ("linear_add", [z(2, 3), z(4, 3), z(4), None], [z(2, 4)], [], [], "residual"),
    ("linear_add", [z(2, 3), z(4, 3), z(2, 4, kind=L), None], [z(2, 4)], [], [], "residual"),
    ("linear_add", [z(2, 3), z(4, 2), z(2, 4), None], [z(2, 4)], [], [], "inner axes"),
    ("index_put", [z(4, 3), z(2, 3)], [z(4, 3)], [0], [], "number of operands"),
    ("index_put", [z(4, 3), z(2, 4), z(2, kind=L)], [z(4, 3)], [0], [], "broadcast"),
    ("index_put", [z(4, 3), z(2, 3), z(2, kind=L)], [z(4, 3)], [2], [], "accumulate"),
    ("index_put", [z(4, 3), z(2, 3, kind=L), z(2, kind=L)], [z(4, 3)], [0], [], "different scalar types"),
    ("index_put", [z(4, 3), z(2, 3), z(2, kind=L)], [z(3, 3)], [0], [], "wrong shape"),
    ("scatter", [z(4, 3), z(2, 3, kind=L), z(1, 3)], [z(4, 3)], [0], [], "longer than source"),
    ("scatter", [z(4, 3), z(2, 4, kind=L), z(2, 4)], [z(4, 3)], [0], [], "longer than the operand"),
    ("scatter", [z(4, 3), z(2, 3, kind=L), z(6)], [z(4, 3)], [0], [], "ranks"),
    ("scatter", [z(4, 3), z(2, 3, kind=L), z(2, 3)], [z(4, 2)], [0], [], "wrong shape"),
    ("cat", [z(2, 3), z(2, 4)], [z(4, 3)], [0], [], "another axis"),
    ("cat", [z(2, 3), z(3, 3)], [z(4, 3)], [0], [], "longer"),
    ("cat", [z(2, 3)], [z(4, 3)], [0], [], "shorter"),
    ("cat", [z(2, 3), z(2)], [z(4, 3)], [0], [], "ranks"),
    ("cat", [z(2, 3), z(2, 3, kind=L)], [z(4, 3)], [0], [], "different scalar types"),
    ("cat", [z(2, 3), z(2, 3)], [z(4, 3)], [2], [], "axis"),
    ("cat", [], [z(4, 3)], [0], [], "number of operands"),
    ("relu", [z(3, kind=B)], [z(3, kind=B)], [], [], "does not take"),
]
Q, K = z(1, 4, 2, 8), z(1, 2, 5, 8)
SDPA: list[tuple[list[Any], list[Any], list[int], str]] = [
    ([Q, K, K, None], [Q], [2, 2], "causal"),
    ([Q, K, K, None], [Q], [0, 0], "groups"),
    ([Q, K, K, None], [Q], [0, 3], "groups"),
    ([Q, K, K, None], [Q], [0, -2], "groups"),
    ([Q, K, K, None], [Q], [0, 4], "heads"),
    ([Q, z(2, 2, 5, 8), K, None], [Q], [0, 2], "batch"),
    ([Q, K, z(1, 1, 5, 8), None], [Q], [0, 2], "heads"),
    ([Q, K, z(1, 2, 6, 8), None], [Q], [0, 2], "lengths"),
    ([Q, z(1, 2, 5, 7), K, None], [Q], [0, 2], "widths"),
    ([Q, K, z(1, 2, 5, 9), None], [Q], [0, 2], "wrong shape"),
    ([Q, K, K, z(2, 6, kind=B)], [Q], [0, 2], "broadcast"),
    ([Q, K, K, z(1, 1, 1, 2, 5, kind=B)], [Q], [0, 2], "broadcast"),
    ([Q, K, K, z(2, 5, kind=L)], [Q], [0, 2], "mask"),
    ([z(4, 2, 8), K, K, None], [Q], [0, 2], "four axes"),
    ([Q, z(1, 2, 5, 8, kind=L), K, None], [Q], [0, 2], "float32"),
    (
        [
            changed(Q, shape=[1, 2, 2**30, 0]),
            changed(K, shape=[1, 2, 2**30, 0]),
            changed(K, shape=[1, 2, 2**30, 0]),
            None,
        ],
        [changed(Q, shape=[1, 2, 2**30, 0])],
        [0, 1],
        "pairs",
    ),
]
SDPA.append(
    # A mask of a megabyte would otherwise ask for 2^63 bytes of scratch.
    (
        [
            changed(Q, shape=[1, 1, 2**20, 1], strides=[0, 0, 0, 0]),
            changed(K, shape=[1, 1, 2**31 - 1, 1], strides=[0, 0, 0, 0]),
            changed(K, shape=[1, 1, 2**31 - 1, 1], strides=[0, 0, 0, 0]),
            changed(z(2, 5, kind=B), shape=[2**20, 1], strides=[1, 0]),
        ],
        [changed(Q, shape=[1, 1, 2**20, 1], strides=[0, 0, 1, 1])],
        [0, 1],
        "pairs",
    )
)
BAD += [("sdpa", operands, results, ints, [0.1], reason) for operands, results, ints, reason in SDPA]


@pytest.mark.parametrize("row", BAD, ids=[f"{number}-{row[0]}" for number, row in enumerate(BAD)])
def test_refuses(row: tuple[str, list[Any], list[Any], list[int], list[float], str]) -> None:
    name, operands, results, ints, floats, reason = row
    found = library.build(name, operands, results, ints, floats).check()
    assert found is not None
    assert any(part in found for part in reason.split("|")), found


def test_table_covers_every_kernel_with_rules_of_its_own() -> None:
    pointwise = {"add", "eq", "relu"}
    own = {path.stem for path in (library.ROOT / "Sources/CStatepackKernels/ref").glob("*.c")}
    own -= {"reduce", "norm", "tile", "linear_many", "linear_fused"}
    assert own | pointwise <= {row[0] for row in BAD}


def test_strides_of_axes_of_length_one_and_of_empty_tensors_do_not_matter() -> None:
    wild = changed(z(1, 3), strides=[2**62, 1])
    out = changed(z(1, 3), strides=[-(2**63), 1])
    built = library.build("add", [wild, z(3)], [out])
    assert built.check() is None
    assert library.run(built).failure.kind == 0
    empty = changed(z(0, 3), strides=[2**62, 2**62], data=None)
    built = library.build("add", [empty, empty], [empty])
    assert library.run(built).failure.kind == 0


def test_random_bytes_in_a_call_are_refused_or_run_safely() -> None:
    """Fields of valid calls replaced at random: what passes the check and stays in its storage must run."""
    generator = np.random.default_rng(1)
    backing = np.zeros(1 << 16, F)
    middle = backing[1 << 15 :].ctypes.data
    names = [
        ("add", 2, 0, 0),
        ("sum", 1, 2, 0),
        ("linear", 3, 0, 0),
        ("matmul", 2, 0, 0),
        ("sdpa", 4, 2, 1),
        ("cat", 2, 1, 0),
        ("softmax", 1, 1, 0),
        ("layer_norm", 3, 1, 1),
        ("copy", 1, 0, 0),
        ("where", 3, 0, 0),
        ("cumsum", 1, 1, 0),
    ]
    ran = 0
    for _ in range(6000):
        name, operands, ints, floats = names[generator.integers(len(names))]

        def tensor(kind: int) -> library.Tensor:
            rank = int(generator.integers(0, 5))
            sizes = generator.integers(0, 4, rank)
            made = changed(z(1), rank=rank, data=middle, scalar_type=kind, shape=sizes, strides=[0] * 8)
            step = 1
            for axis in reversed(range(rank)):
                made.strides[axis] = int(step * generator.choice([1, 1, 1, -1, 0]))
                step *= int(max(1, sizes[axis]))
            return made

        kind = int(generator.choice([1, 4, 5, 11, 11, 11]))
        given = [tensor(kind) if generator.random() < 0.9 else None for _ in range(operands)]
        built = library.build(
            name, given, [tensor(kind)], [int(x) for x in generator.integers(-1, 4, ints)], [0.5] * floats
        )
        if built.check() is None:
            library.run(built)
            ran += 1
    assert ran > 100


def test_unknown_kernel_is_null() -> None:
    assert not library.LIBRARY.sp_kernel_find(b"no such kernel")
    assert not library.LIBRARY.sp_kernel_find(b"")
    assert ctypes.sizeof(library.Tensor) == 8 + 16 * 8 + 8
