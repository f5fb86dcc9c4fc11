"""Products of many rows through oneDNN and through the own kernel, each in a process of its own.

`make setup` installs libdnnl2 on Debian. Where the library or AVX-512 is missing, the tests see the own kernel at work.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import kernel_library as library

WORK = """
import ctypes
import sys
import threading
import numpy as np
import kernel_library as library

LIBRARY = library.LIBRARY
LIBRARY.sp_onednn_find.argtypes = [ctypes.c_int64] * 3
LIBRARY.sp_onednn_find.restype = ctypes.c_void_p
gomp = None
if sys.argv[2] == "counts":
    gomp = ctypes.CDLL("libgomp.so.1")
    gomp.omp_set_num_threads(3)
generator = np.random.default_rng(4)
results = {}


def values(*shape):
    return generator.standard_normal(shape).astype(np.float32)


def spread(array):
    room = np.full((array.shape[0], array.shape[1] + 3), np.nan, np.float32)[:, : array.shape[1]]
    room[...] = array
    return room


for n, k in ((32, 48), (208, 320), (96, 2048), (33, 48), (32, 50)):
    matrix, bias = values(n, k), values(n)
    weight = library.pack(matrix)
    weight.data.flags.writeable = False
    for rows in (15, 16, 17, 48, 63, 64, 65, 130):
        a = values(rows, k)
        calls = {
            "plain": ([a, weight, None], (rows, n)),
            "bias": ([a, weight, bias], (rows, n)),
            "spread": ([spread(a), weight, bias], (rows, n)),
            "deep": ([a.reshape(1, rows, k), weight, None], (1, rows, n)),
        }
        for name, (operands, shape) in calls.items():
            found = []
            for threads in (1, 3):
                out = np.full(shape, np.nan, np.float32)
                with library.Pool(threads) as pool:
                    library.run(library.build("linear", operands, [out]), pool)
                found.append(out)
            assert found[0].tobytes() == found[1].tobytes(), (n, k, rows, name)
            key = f"{rows}-{n}-{k}-{name}"
            results[key] = found[0].reshape(rows, n)
            results["expected-" + key] = a.astype(np.float64) @ matrix.astype(np.float64).T + (
                bias if operands[2] is not None else 0
            )
    results[f"prepared-{n}-{k}"] = np.array([bool(LIBRARY.sp_onednn_find(rows, n, k)) for rows in (16, 32, 64)])

# Several runs at once, each with a pool of its own.
a, weight = values(300, 320), library.pack(values(208, 320))
together = [np.full((300, 208), np.nan, np.float32) for _ in range(4)]


def work(out):
    with library.Pool(3) as pool:
        for _ in range(5):
            library.run(library.build("linear", [a, weight, None], [out]), pool)


threads = [threading.Thread(target=work, args=(out,)) for out in together]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(out.tobytes() == together[0].tobytes() for out in together)
results["in-use"] = np.array(LIBRARY.sp_matmul_in_use())
if gomp is not None:
    results["omp-threads"] = np.array(gomp.omp_get_max_threads())
np.savez(sys.argv[1], **results)
"""


def usable() -> bool:
    try:
        ctypes.CDLL("libdnnl.so.2")
    except OSError:
        return False
    flags = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    return all(f" {flag} " in flags for flag in ("avx512f", "avx512bw", "avx512dq", "avx512vl"))


Results = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    folder = tmp_path_factory.mktemp("onednn")
    tests = pathlib.Path(__file__).parent
    found = {}
    for name, variables in {
        "own": {"STATEPACK_MATMUL": "own"},
        "onednn": {"STATEPACK_MATMUL": "onednn"},
        "absent": {"STATEPACK_MATMUL": "onednn", "STATEPACK_ONEDNN": "/nonexistent/libdnnl.so.2"},
        "another library": {"STATEPACK_MATMUL": "onednn", "STATEPACK_ONEDNN": "libm.so.6"},
    }.items():
        path = folder / f"{name}.npz"
        environment = dict(os.environ, PYTHONPATH=f"{tests}:{tests.parent / 'fixtures'}", **variables)
        counts = "counts" if name == "onednn" and usable() else ""
        subprocess.run([sys.executable, "-c", WORK, str(path), counts], check=True, env=environment)
        with np.load(path) as stored:
            found[name] = {key: stored[key] for key in stored.files}
    return found


def products(found: Results) -> dict[str, np.ndarray]:
    return {key: value for key, value in found.items() if f"expected-{key}" in found}


def test_products_are_right_with_oneDNN_and_without(results: dict[str, Results]) -> None:
    rows = json.loads((library.ROOT / "schemas/ops.json").read_text())["kernels"]
    per_term = next(row["tolerance"]["per_term"] for row in rows if row["name"] == "linear")
    for name, found in results.items():
        assert len(products(found)) == 5 * 8 * 4
        for key, value in products(found).items():
            expected, k = found[f"expected-{key}"], int(key.split("-")[2])
            # The bound of ops.json is for sums as large as sqrt(k); a larger one rounds in larger steps.
            bound = per_term * np.sqrt(k) * np.maximum(np.sqrt(k), np.abs(expected))
            assert (np.abs(value - expected) <= bound).all(), f"{name} {key}"


def test_oneDNN_takes_the_shapes_that_it_can_read_in_place(results: dict[str, Results]) -> None:
    assert bool(results["onednn"]["in-use"]) == usable()
    for n, k in ((32, 48), (208, 320), (96, 2048)):
        assert results["onednn"][f"prepared-{n}-{k}"].all() == usable()
    for n, k in ((33, 48), (32, 50)):
        assert not results["onednn"][f"prepared-{n}-{k}"].any()


def test_own_kernel_computes_where_oneDNN_is_not_wanted_or_absent(results: dict[str, Results]) -> None:
    for name in ("own", "absent", "another library"):
        assert not results[name]["in-use"], name
        for key, value in results[name].items():
            if key.startswith("prepared-"):
                assert not value.any(), (name, key)
            else:
                assert value.tobytes() == results["own"][key].tobytes(), (name, key)


def test_oneDNN_leaves_the_callers_number_of_OpenMP_threads(results: dict[str, Results]) -> None:
    assert ("omp-threads" in results["onednn"]) == usable()
    if usable():
        assert int(results["onednn"]["omp-threads"]) == 3
