"""Kernels that FuseOps makes have the bits of the kernels they stand for."""

import numpy as np
import pytest

import kernel_library as library
from ops import Array, Case, cases

ACTIVATIONS = ["silu", "gelu", "gelu_tanh", "sigmoid", "relu"]
CASES = [case for case in cases() if case.kernel in ("linear_parts", "linear_gated", "linear_add", "rotary")]


def packed(weight: Array) -> library.Operand:
    return library.pack(weight) if weight.size else weight


def linear(a: Array, weight: Array, bias: Array | None, pool: library.Pool) -> Array:
    out = np.empty((*a.shape[:-1], weight.shape[0]), np.float32)
    library.run(library.build("linear", [a, packed(weight), bias], [out]), pool)
    return out


def one_by_one(case: Case, pool: library.Pool) -> Array:
    """The same with the kernels that every program had before."""
    operands = case.operands

    def point_wise(name: str, *arrays: Array) -> Array:
        out = np.empty(np.broadcast_shapes(*(one.shape for one in arrays)), np.float32)
        library.run(library.build(name, list(arrays), [out]), pool)
        return out

    a = operands[0]
    assert a is not None
    if case.kernel == "rotary":
        cos, sin = operands[1:]
        assert cos is not None
        assert sin is not None
        turned = cos.shape[-1]
        head = a[..., :turned]
        halves = np.concatenate([point_wise("neg", head[..., turned // 2 :]), head[..., : turned // 2]], -1)
        whole = point_wise("add", point_wise("mul", head, cos), point_wise("mul", halves, sin))
        return np.concatenate([whole, a[..., turned:]], -1)
    if case.kernel == "linear_parts":
        count = (len(operands) - 1) // (1 + case.ints[0])
        given = operands[1 + count :] if case.ints[0] else [None] * count
        parts = [linear(a, w, b, pool) for w, b in zip(operands[1 : 1 + count], given, strict=True) if w is not None]
        return np.concatenate(parts, -1)
    first, second = operands[1], operands[2]
    assert first is not None
    assert second is not None
    if case.kernel == "linear_add":
        return point_wise("add", second, linear(a, first, operands[3], pool))
    gate = point_wise(ACTIVATIONS[case.ints[0]], linear(a, first, operands[3], pool))
    return point_wise("mul", gate, linear(a, second, operands[4], pool))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_fused_kernels_have_the_bits_of_what_they_stand_for(case: Case, threads: int) -> None:
    weights = {"linear_parts": range(1, len(case.operands)), "linear_gated": (1, 2), "linear_add": (1,)}
    operands: list[library.Operand] = list(case.operands)
    for position in weights.get(case.kernel, ()):
        weight = case.operands[position]
        if weight is not None and weight.ndim == 2:
            operands[position] = packed(weight)
    with library.Pool(threads) as pool:
        out = np.empty_like(case.expected)
        library.run(library.build(case.kernel, operands, [out], case.ints), pool)
        expected = one_by_one(case, pool)
    np.testing.assert_array_equal(out.view(np.int32), expected.view(np.int32))


def test_fused_layers_write_between_the_rows_of_others() -> None:
    generator = np.random.default_rng(5)
    a, weight = (generator.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (20, 8)))
    for rows in (1, 3):
        buffer = np.full((rows, 64), 77, np.float32)
        view = buffer[:, 10:50]
        library.run(library.build("linear_parts", [a[:rows], library.pack(weight), library.pack(weight)], [view], [0]))
        expected = np.empty((rows, 20), np.float32)
        library.run(library.build("linear", [a[:rows], library.pack(weight), None], [expected]))
        np.testing.assert_array_equal(view, np.concatenate([expected, expected], -1))
        assert (buffer[:, :10] == 77).all()
        assert (buffer[:, 50:] == 77).all()
