"""Kernels that write into a state: in place, all or nothing, undone when a later instruction fails."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import kernel_library as library
from ops import Array, Case, cases

WRITES = [case for case in cases() if case.kernel in ("index_copy", "index_put", "scatter", "rotary_index_copy")]


def state_of(case: Case) -> tuple[Array, Array]:
    """The first operand as a view inside a larger buffer, and that buffer."""
    a = case.operands[0]
    assert a is not None
    buffer = np.full((*a.shape[:-1], a.shape[-1] + 3), True if a.dtype == bool else 77, a.dtype)
    view = buffer[..., 1 : 1 + a.shape[-1]]
    view[...] = a
    return view, buffer


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.id)
def test_in_place_write_touches_nothing_else(case: Case) -> None:
    view, buffer = state_of(case)
    library.run(library.build(case.kernel, [view, *case.operands[1:]], [view], case.ints))
    np.testing.assert_array_equal(view, case.expected)
    outside = np.delete(buffer, np.s_[1 : 1 + view.shape[-1]], axis=-1)
    np.testing.assert_array_equal(outside, np.full_like(outside, True if outside.dtype == bool else 77))


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.id)
def test_write_into_another_tensor_leaves_the_operand(case: Case) -> None:
    view, buffer = state_of(case)
    before = buffer.copy()
    out = np.zeros_like(case.expected)
    library.run(library.build(case.kernel, [view, *case.operands[1:]], [out], case.ints))
    np.testing.assert_array_equal(out, case.expected)
    np.testing.assert_array_equal(buffer, before)


F = np.float32
ROWS = 4


def row_index(name: str, index: Sequence[int], kind: str, state: Array) -> library.Built:
    """A call of `name` that writes rows `index` of a [4, 3] state in place."""
    source = np.full((len(index), 3), 5, F)
    i = np.array(index, kind)
    if name == "rotary_index_copy":
        return library.build(name, [state, i, source, np.ones(2, F), np.zeros(2, F)], [state], [0])
    if name == "index_copy":
        return library.build(name, [state, i, source], [state], [0])
    if name == "index_put":
        return library.build(name, [state, source, i], [state], [0])
    return library.build(name, [state, np.repeat(i[:, None], 3, 1), source], [state], [0])


# As measured with eager torch 2.13: index_put wraps negatives once, the others refuse them.
REFUSED = {
    "index_put": (-5, 4, 5, 2**31 - 1, -(2**31)),
    "index_copy": (-1, -4, -5, 4, 5, 2**31 - 1, -(2**31)),
    "rotary_index_copy": (-1, -4, -5, 4, 5, 2**31 - 1, -(2**31)),
    "scatter": (-1, -4, -5, 4, 5, 2**31 - 1, -(2**31)),
}


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in REFUSED.items() for bad in values])
def test_refused_index_leaves_everything_unchanged(name: str, bad: int, kind: str) -> None:
    state = np.arange(12, dtype=F).reshape(4, 3)
    before = state.copy()
    run = library.run(row_index(name, [0, 3, bad], kind, state))
    assert (run.failure.kind, run.failure.value, run.failure.limit, run.failure.axis) == (1, bad, ROWS, 0)
    np.testing.assert_array_equal(state, before)


@pytest.mark.parametrize("name", list(REFUSED))
def test_64_bit_index_beyond_32_bits_is_refused(name: str) -> None:
    state = np.zeros((4, 3), F)
    run = library.run(row_index(name, [2**40], "int64", state))
    assert (run.failure.kind, run.failure.value) == (1, 2**40)


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_index_leaves_a_separate_result_unchanged(name: str) -> None:
    state, out = np.zeros((4, 3), F), np.full((4, 3), 9, F)
    built = row_index(name, [1, 4], "int64", state)
    other = library.tensor(out)
    built.call.results[0] = ctypes.pointer(other)
    run = library.run(built)
    assert run.failure.kind == 1
    np.testing.assert_array_equal(out, np.full((4, 3), 9, F))


READS: list[tuple[str, Callable[[Array, Array], library.Built], bool]] = [
    ("index_select", lambda i, out: library.build("index_select", [np.zeros((4, 3), F), i], [out], [0]), False),
    ("index", lambda i, out: library.build("index", [np.zeros((4, 3), F), i], [out]), True),
    ("embedding", lambda i, out: library.build("embedding", [np.zeros((4, 3), F), i], [out]), False),
    (
        "gather",
        lambda i, out: library.build("gather", [np.zeros((4, 3), F), np.repeat(i[:, None], 3, 1)], [out], [0]),
        False,
    ),
]


@pytest.mark.parametrize(("name", "build", "wraps"), READS, ids=[row[0] for row in READS])
def test_reads_refuse_what_torch_refuses(
    name: str, build: Callable[[Array, Array], library.Built], wraps: bool
) -> None:
    for bad in (-5, -4, -1, 4, 5):
        out = np.full((2, 3), 9, F)
        run = library.run(build(np.array([0, bad]), out))
        if wraps and -4 <= bad < 0:
            assert run.failure.kind == 0
        else:
            assert (run.failure.kind, run.failure.value, run.failure.limit) == (1, bad, ROWS), name
            np.testing.assert_array_equal(out, np.full((2, 3), 9, F))


def failing() -> library.Built:
    return library.build("index", [np.zeros((2, 2), F), np.array([7])], [np.zeros((1, 2), F)])


def undone(calls: Sequence[library.Built], states: Sequence[Array], threads: int = 2) -> None:
    before = [state.tobytes() for state in states]
    log = library.LIBRARY.sp_undo_log_create()
    with library.Pool(threads) as pool:
        ok, run = library.execute([*calls, failing()], pool, log)
    library.LIBRARY.sp_undo_log_destroy(log)
    assert not ok
    assert run.failure.instruction == len(calls)
    assert run.failure.value == 7
    assert [state.tobytes() for state in states] == before


@pytest.mark.parametrize("case", WRITES, ids=lambda case: case.id)
def test_undo_log_restores_what_a_write_replaced(case: Case) -> None:
    view, buffer = state_of(case)
    undone([library.build(case.kernel, [view, *case.operands[1:]], [view], case.ints)], [buffer])


def test_undo_log_restores_many_overlapping_writes_backwards() -> None:
    state = np.arange(12, dtype=F).reshape(4, 3)
    calls = [row_index(name, rows, "int64", state) for rows in ([0, 0], [1, 0]) for name in REFUSED]
    calls.append(library.build("write", [np.full((3,), 8, F)], [state], [0]))
    calls.append(library.build("write", [np.array(2, np.int32)], [state[1:3, ::2]], [1]))
    undone(calls, [state])


def test_undo_log_is_empty_after_a_run_that_succeeds() -> None:
    state = np.zeros((4, 3), F)
    log = library.LIBRARY.sp_undo_log_create()
    ok, _ = library.execute([row_index("index_copy", [1], "int64", state)], None, log)
    assert ok
    ok, _ = library.execute([failing()], None, log)
    library.LIBRARY.sp_undo_log_destroy(log)
    assert not ok
    assert state[1].tolist() == [5, 5, 5]


def test_write_counts_bytes_of_write_backs_only() -> None:
    state = np.zeros((4, 3), F)
    for write_back, expected in ((0, 0), (1, 48)):
        run = library.run(library.build("write", [np.full((4, 3), write_back + 1, F)], [state], [write_back]))
        assert run.statistics.state_bytes_copied == expected
        assert state.tolist() == [[write_back + 1] * 3] * 4


def test_write_onto_itself_does_nothing() -> None:
    state = np.arange(12, dtype=F).reshape(4, 3)
    run = library.run(library.build("write", [state], [state], [1]))
    assert run.statistics.state_bytes_copied == 0
    assert state.tolist() == np.arange(12).reshape(4, 3).tolist()


# --- Attention over a state ------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 2, 9, 40])
@pytest.mark.parametrize("poison", [np.nan, 1e4, np.inf], ids=str)
@pytest.mark.parametrize("kind", ["prefix", "scattered", "added", "per head"])
def test_excluded_keys_are_never_read(kind: str, poison: float, queries: int) -> None:
    generator = np.random.default_rng(1)
    heads, groups, keys, width = 6, 3, 150, 64
    q = generator.standard_normal((1, heads, queries, width)).astype(F)
    k = generator.standard_normal((1, heads // groups, keys, width)).astype(F)
    v = generator.standard_normal((1, heads // groups, keys, width)).astype(F)
    used = np.arange(keys) < 70 if kind == "prefix" else generator.random(keys) < 0.4
    mask: Array = used[None, :]
    if kind == "added":
        mask = np.where(mask, 0.5, -np.inf).astype(F)
    if kind == "per head":
        mask = np.broadcast_to(mask, (1, heads, queries, keys)).copy()
    clean, dirty = np.empty_like(q), np.empty_like(q)
    library.run(library.build("sdpa", [q, k, v, mask], [clean], [0, groups], [0.125]))
    k[:, :, ~used], v[:, :, ~used] = poison, poison
    run = library.run(library.build("sdpa", [q, k, v, mask], [dirty], [0, groups], [0.125]))
    assert np.isfinite(clean).all()
    assert clean.tobytes() == dirty.tobytes()
    if queries == 1:
        assert run.statistics.attention_rows == used.sum() * (heads if kind == "per head" else heads // groups)


@pytest.mark.parametrize("queries", [3, 40])
def test_value_that_one_query_reads_does_not_reach_another(queries: int) -> None:
    generator = np.random.default_rng(2)
    q = generator.standard_normal((1, 2, queries, 16)).astype(F)
    k, v = (generator.standard_normal((1, 2, queries, 16)).astype(F) for _ in range(2))
    v[:, :, -1], k[:, :, -1] = np.nan, np.nan
    out = np.empty_like(q)
    library.run(library.build("sdpa", [q, k, v, None], [out], [1, 1], [0.25]))
    assert np.isfinite(out[:, :, :-1]).all()
    assert np.isnan(out[:, :, -1]).all()


def test_rows_read_do_not_depend_on_the_capacity() -> None:
    generator = np.random.default_rng(3)
    q = generator.standard_normal((1, 9, 1, 64)).astype(F)
    keys = generator.standard_normal((1, 3, 2048, 64)).astype(F)
    results = []
    for capacity in (256, 2048):
        k = np.full((1, 3, capacity, 64), np.nan, F)
        k[:, :, :101] = keys[:, :, :101]
        out = np.empty_like(q)
        mask = (np.arange(capacity) <= 100)[None, None, None]
        run = library.run(library.build("sdpa", [q, k, k, mask], [out], [0, 3], [0.125]))
        results.append((out.tobytes(), run.statistics.attention_rows))
    assert results[0] == results[1]
    assert results[0][1] == 3 * 101


FORMS = ("compare", "causal", "added", "window", "added window", "holes", "strided", "per head")


def mask_of(form: str, queries: int, keys: int, heads: int) -> Array:
    """Which keys each query of each head reads, [heads, queries, keys]."""
    positions, key = np.arange(queries)[:, None] + 500, np.arange(keys)[None, :]
    generator = np.random.default_rng(5)
    match form:
        case "causal":
            reads = key <= positions - 500
        case "window" | "added window":
            reads = (key <= positions) & (key > positions - 37)
        case "holes" | "strided":
            reads = generator.random((queries, keys)) < 0.4
        case "per head":
            return generator.random((heads, queries, keys)) < 0.3
        case _:
            reads = key <= positions
    return np.broadcast_to(reads, (heads, queries, keys))


def rows_of(reads: Array, groups: int) -> int:
    """attention_rows as statepack_kernels.h defines it."""
    queries = reads.shape[1]
    alike = bool((reads == reads[0]).all())
    together = groups if alike else 1
    block = 1 if queries < 8 else max(8, 96 // together)
    units = reads[::together]
    return sum(int(units[:, first : first + block].any(1).sum()) for first in range(0, queries, block))


def attention(q: Array, k: Array, v: Array, reads: Array, scale: float) -> Array:
    heads = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), heads, 1) for x in (k, v))
    scores = np.where(reads, q.astype(np.float64) @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: Array = weights / weights.sum(-1, keepdims=True) @ np.where(reads.any((0, 1))[:, None], v, 0)
    return out


@pytest.mark.parametrize("queries", [1, 2, 7, 8, 9, 70])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_mask_skips_what_it_excludes(form: str, queries: int) -> None:
    generator = np.random.default_rng(4)
    heads, groups, keys, width = 6, 3, 700, 64
    q = generator.standard_normal((1, heads, queries, width)).astype(F)
    k, v = (generator.standard_normal((1, heads // groups, keys, width)).astype(F) for _ in range(2))
    reads = mask_of(form, queries, keys, heads)
    mask: Array | None = reads[None] if form == "per head" else reads[0]
    if form == "causal":
        mask = None
    elif form == "strided":
        mask = np.asfortranarray(reads[0])
    elif form.startswith("added"):
        mask = np.where(reads[0], 0.25, -np.inf).astype(F)
    clean, dirty = np.empty_like(q), np.empty_like(q)
    ints = [int(form == "causal"), groups]
    library.run(library.build("sdpa", [q, k, v, mask], [clean], ints, [0.125]))
    np.testing.assert_allclose(clean, attention(q, k, v, reads, 0.125), rtol=1e-5, atol=2e-6)
    unread = ~reads.any((0, 1))
    assert unread.any() or form in ("holes", "strided", "per head")
    k[:, :, unread], v[:, :, unread] = np.nan, np.nan
    for threads in (1, 2, 3):
        with library.Pool(threads) as pool:
            run = library.run(library.build("sdpa", [q, k, v, mask], [dirty], ints, [0.125]), pool)
        assert clean.tobytes() == dirty.tobytes()
        assert run.statistics.attention_rows == rows_of(reads, groups)


@pytest.mark.parametrize("queries", [1, 3, 12])
@pytest.mark.parametrize(("batch", "heads", "groups", "width"), [(1, 20, 20, 64), (3, 4, 2, 48), (2, 5, 1, 19)])
def test_long_contexts_of_few_heads_do_not_depend_on_threads(
    batch: int, heads: int, groups: int, width: int, queries: int
) -> None:
    generator = np.random.default_rng(6)
    q = generator.standard_normal((batch, heads, queries, width)).astype(F)
    k, v = (generator.standard_normal((batch, heads // groups, 1100, width)).astype(F) for _ in range(2))
    reads = np.arange(1100)[None, None, :] < 1030 - np.arange(queries)[None, :, None]
    results = []
    for threads in (1, 2, 5):
        out = np.empty_like(q)
        with library.Pool(threads) as pool:
            library.run(library.build("sdpa", [q, k, v, reads], [out], [0, groups], [0.2]), pool)
        results.append(out.tobytes())
    assert len(set(results)) == 1
    np.testing.assert_allclose(out, attention(q, k, v, reads, 0.2), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("queries", [1, 4, 30])
@pytest.mark.parametrize("width", [64, 20])
def test_attention_writes_into_a_result_with_heads_beside_each_other(width: int, queries: int) -> None:
    generator = np.random.default_rng(7)
    q = generator.standard_normal((2, 6, queries, 64)).astype(F)
    k = generator.standard_normal((2, 2, 90, 64)).astype(F)
    v = generator.standard_normal((2, 2, 90, width)).astype(F)
    dense = np.empty((2, 6, queries, width), F)
    buffer = np.full((2, queries, 6, width + 1), 7, F)
    library.run(library.build("sdpa", [q, k, v, None], [dense], [0, 3], [0.125]))
    library.run(library.build("sdpa", [q, k, v, None], [buffer[..., :width].swapaxes(1, 2)], [0, 3], [0.125]))
    assert np.array_equal(buffer[..., :width].swapaxes(1, 2), dense)
    assert (buffer[..., width] == 7).all()
