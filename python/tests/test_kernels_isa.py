"""The same calls on every instruction set that this processor has, each in a process of its own."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

KERNELS = (
    "linear",
    "linear_parts",
    "linear_gated",
    "linear_add",
    "sdpa",
    "exp",
    "silu",
    "sigmoid",
    "matmul",
    "softmax",
)
WORK = """
import sys
import numpy as np
import kernel_library as library
from ops import cases
assert library.isa() == sys.argv[1], library.isa()
results = {}
for case in cases():
    if case.kernel not in sys.argv[3:]:
        continue
    for threads in (1, 2):
        out = np.zeros_like(case.expected)
        operands = list(case.operands)
        if case.kernel == "linear" and operands[1].size:
            operands[1] = library.pack(operands[1])
        with library.Pool(threads) as pool:
            run = library.run(library.build(case.kernel, operands, [out], case.ints, case.floats), pool)
        if threads == 1:
            results[case.id] = out
            results[case.id + "#rows"] = np.array(run.statistics.attention_rows)
        else:
            assert results[case.id].tobytes() == out.tobytes(), case.id
np.savez(sys.argv[2], **results)
"""


def available() -> list[str]:
    flags = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").exists() else ""
    names = ["generic"]
    if " avx2 " in flags and " fma " in flags:
        names.append("avx2")
        if all(f" {flag} " in flags for flag in ("avx512f", "avx512bw", "avx512dq", "avx512vl")):
            names.append("avx512")
    return names


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("isa")
    found = {}
    tests = pathlib.Path(__file__).parent
    for name in available():
        path = folder / f"{name}.npz"
        # oneDNN sums in an order of its own; test_onednn.py is about it.
        environment = dict(
            os.environ,
            STATEPACK_ISA=name,
            STATEPACK_MATMUL="own",
            PYTHONPATH=f"{tests}:{tests.parent / 'fixtures'}",
        )
        subprocess.run([sys.executable, "-c", WORK, name, str(path), *KERNELS], check=True, env=environment)
        with np.load(path) as stored:
            found[name] = {key: stored[key] for key in stored.files}
    return found


def test_fast_kernels_agree_with_plain_c(results: dict[str, dict[str, np.ndarray]]) -> None:
    plain = results["generic"]
    for name, fast in results.items():
        assert fast.keys() == plain.keys()
        for key, value in fast.items():
            terms = int(key.split("-")[1].split("x")[2]) if key.startswith("linear-") and "x" in key else 8
            np.testing.assert_allclose(
                value, plain[key], rtol=1e-6, atol=5e-6 + 2.4e-7 * terms, err_msg=f"{name} {key}"
            )


def test_every_instruction_set_reads_the_same_rows(results: dict[str, dict[str, np.ndarray]]) -> None:
    rows = {
        name: {key: int(value) for key, value in found.items() if key.endswith("#rows")}
        for name, found in results.items()
    }
    assert all(found == rows["generic"] for found in rows.values())


def test_avx2_and_avx512_products_have_the_same_bits(results: dict[str, dict[str, np.ndarray]]) -> None:
    if "avx512" not in results:
        assert "avx512" not in available()
        return
    for key, value in results["avx512"].items():
        if key.startswith("linear-"):
            assert value.tobytes() == results["avx2"][key].tobytes(), key
