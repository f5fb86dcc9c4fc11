"""Every kernel against torch, in every memory layout, on one thread and on several."""

import ctypes
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernel_library as library
from ops import Array, Case, cases

ROWS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((library.ROOT / "schemas/ops.json").read_text())["kernels"]
}
CASES = list(cases())


def assert_close(got: Array, case: Case, label: str) -> None:
    """Equal bit by bit but for NaN payloads, or within the kernel's tolerance in ops.json."""
    expected = case.expected
    assert got.shape == expected.shape, label
    assert got.dtype == expected.dtype, label
    tolerance = ROWS[case.kernel].get("tolerance")
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected, err_msg=label)
        return
    if tolerance is None:
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        np.testing.assert_array_equal(same, True, err_msg=f"{label}: {got} {expected}")
        return
    np.testing.assert_allclose(
        got.astype(np.float64),
        expected.astype(np.float64),
        rtol=tolerance.get("relative", 0),
        atol=tolerance.get("absolute", 0) + tolerance.get("per_term", 0) * case.terms,
        err_msg=label,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_matches_torch_in_every_layout(case: Case) -> None:
    variants = [dict(library.layouts(one)) if one is not None else {} for one in case.operands]
    for label, out in library.layouts(np.zeros_like(case.expected)):
        operands = [
            None if one is None else variant.get(label, variant["offset"])
            for one, variant in zip(case.operands, variants, strict=True)
        ]
        state = library.run(library.build(case.kernel, operands, [out], case.ints, case.floats))
        assert state.failure.kind == 0
        assert_close(out, case, f"{case.id} {label}")


def test_every_kernel_has_cases() -> None:
    assert {case.kernel for case in CASES} == set(ROWS)


@pytest.fixture
def own_products() -> Iterator[None]:
    """oneDNN sums in an order of its own; test_onednn.py is about it."""
    before = library.LIBRARY.sp_matmul_in_use()
    library.LIBRARY.sp_matmul_choose(0)
    yield
    library.LIBRARY.sp_matmul_choose(before)


@pytest.mark.usefixtures("own_products")
def test_linear_reads_packed_and_row_major_weights_to_the_same_bits() -> None:
    for case in CASES:
        if case.kernel != "linear" or case.operands[1].shape[0] == 0:  # type: ignore[union-attr]
            continue
        a, weight, bias = case.operands
        assert weight is not None
        plain, packed = np.empty_like(case.expected), np.empty_like(case.expected)
        library.run(library.build("linear", [a, weight, bias], [plain]))
        library.run(library.build("linear", [a, library.pack(weight), bias], [packed]))
        assert plain.tobytes() == packed.tobytes(), case.id
        assert_close(packed, case, case.id)


@pytest.mark.usefixtures("own_products")
def test_linear_gives_one_row_the_same_bits_whatever_stands_beside_it() -> None:
    generator = np.random.default_rng(1)
    a = generator.standard_normal((100, 130)).astype(np.float32)
    weight = library.pack(generator.standard_normal((200, 130)).astype(np.float32))
    whole = np.empty((100, 200), np.float32)
    library.run(library.build("linear", [a, weight, None], [whole]))
    for rows in (1, 2, 3, 5, 8, 9, 12, 13, 25):
        part = np.empty((rows, 200), np.float32)
        library.run(library.build("linear", [a[:rows], weight, None], [part]))
        assert part.tobytes() == whole[:rows].tobytes(), rows


def test_embedding_reads_packed_weights() -> None:
    generator = np.random.default_rng(2)
    table = generator.standard_normal((33, 20)).astype(np.float32)
    index = generator.integers(0, 33, (3, 4))
    out = np.empty((3, 4, 20), np.float32)
    library.run(library.build("embedding", [library.pack(table), index], [out]))
    np.testing.assert_array_equal(out, table[index])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    big = [case for case in CASES if case.expected.size > 2000 or case.kernel == "sdpa"]
    assert {"linear", "sdpa", "add", "sum", "silu"} <= {case.kernel for case in big}
    results = []
    for threads in (1, 2, 4):
        with library.Pool(threads) as pool:
            out = []
            for case in big:
                got = np.zeros_like(case.expected)
                state = library.run(library.build(case.kernel, case.operands, [got], case.ints, case.floats), pool)
                out.append((case.id, got.tobytes(), state.statistics.attention_rows))
            results.append(out)
    assert results[0] == results[1] == results[2]


def test_panels_are_padded_with_zeros_and_packed_in_parts_alike() -> None:
    generator = np.random.default_rng(3)
    matrix = generator.standard_normal((40, 100)).astype(np.float32)
    whole = library.pack(matrix).data
    expected = np.zeros((3, 100, 16), np.float32)
    for row in range(40):
        expected[row // 16, :, row % 16] = matrix[row]
    np.testing.assert_array_equal(whole, expected.reshape(-1))
    parts = library.aligned(whole.size)
    for first, rows in ((0, 16), (16, 24)):
        at = parts[first * 100 :]
        library.LIBRARY.sp_panel_pack(matrix[first:].ctypes.data, 40, 100, first, rows, at.ctypes.data)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(("n", "k"), [(2**62, 4), (2**40, 2**40), (-1, 4), (4, -1), (2**63 - 1, 1)])
def test_panel_bytes_of_what_does_not_fit_are_the_largest_size(n: int, k: int) -> None:
    assert library.LIBRARY.sp_panel_bytes(n, k) == 2**64 - 1


def test_panel_bytes_round_rows_up_to_sixteen() -> None:
    assert [library.LIBRARY.sp_panel_bytes(n, 3) for n in (0, 1, 16, 17)] == [0, 192, 192, 384]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("streams", "block"), [(1, 2**18), (4, 2**20)])
def test_the_bandwidth_meter_reads_every_whole_block(streams: int, block: int, threads: int) -> None:
    words = np.random.default_rng(5).integers(0, 2**64, 5 * 2**17 + 999, dtype=np.uint64)
    pool = library.LIBRARY.sp_pool_create(threads)
    total = ctypes.c_uint64()
    count = library.LIBRARY.sp_read_streams(pool, words.ctypes.data, words.nbytes, streams, ctypes.byref(total))
    library.LIBRARY.sp_pool_destroy(pool)
    assert count == words.nbytes // block * block
    stripe = count // streams
    assert stripe * streams == count
    assert total.value == int(words[: count // 8].sum(dtype=np.uint64))


def test_crc32c_matches_known_sums_and_continues() -> None:
    crc = library.LIBRARY.sp_crc32c
    assert crc(0, b"123456789", 9) == 0xE3069283
    assert crc(0, bytes(32), 32) == 0x8A9136AA
    data = np.random.default_rng(4).integers(0, 256, 50000, dtype=np.uint8).tobytes()
    table = [0] * 256
    for value in range(256):
        entry = value
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table[value] = entry
    plain = 0xFFFFFFFF
    for byte in data:
        plain = plain >> 8 ^ table[(plain ^ byte) & 255]
    assert crc(0, data, len(data)) == plain ^ 0xFFFFFFFF
    for cut in (0, 1, 7, 8, 12287, 12288, 12289, 49999):
        assert crc(crc(0, data[:cut], cut), data[cut:], len(data) - cut) == plain ^ 0xFFFFFFFF
