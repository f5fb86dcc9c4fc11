"""The kernels as a shared library, called through ctypes with numpy arrays as operands.

STATEPACK_KERNELS names the library; without it `make kernels` brings build/kernels/libstatepack_kernels.so up to date.
"""

import ctypes
import os
import pathlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_RANK = 8
SCALAR_TYPES = {"bool": 1, "int32": 4, "int64": 5, "float32": 11}
PANEL_16 = 1
FAILURES = {0: "none", 1: "index out of range", 2: "division by zero", 3: "out of memory"}

Array = np.ndarray[Any, Any]


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
        ("rank", ctypes.c_int32),
        ("scalar_type", ctypes.c_uint16),
        ("layout", ctypes.c_uint16),
    )


class Call(ctypes.Structure):
    _fields_ = (
        ("operands", ctypes.POINTER(ctypes.POINTER(Tensor))),
        ("results", ctypes.POINTER(ctypes.POINTER(Tensor))),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("floats", ctypes.POINTER(ctypes.c_double)),
        ("scratch", ctypes.c_void_p),
        ("operand_count", ctypes.c_uint32),
        ("result_count", ctypes.c_uint32),
        ("int_count", ctypes.c_uint32),
        ("float_count", ctypes.c_uint32),
    )


class Failure(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int),
        ("value", ctypes.c_int64),
        ("limit", ctypes.c_int64),
        ("axis", ctypes.c_int32),
        ("instruction", ctypes.c_uint32),
    )


class Statistics(ctypes.Structure):
    _fields_ = (("attention_rows", ctypes.c_uint64), ("state_bytes_copied", ctypes.c_uint64))


class Run(ctypes.Structure):
    _fields_ = (
        ("pool", ctypes.c_void_p),
        ("undo", ctypes.c_void_p),
        ("statistics", Statistics),
        ("failure", Failure),
    )


class Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("check", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(Call))),
        ("scratch", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(Call), ctypes.c_uint)),
        ("run", ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(Call), ctypes.POINTER(Run))),
        ("fallible", ctypes.c_bool),
        ("writes", ctypes.c_bool),
    )


class Instruction(ctypes.Structure):
    _fields_ = (("kernel", ctypes.POINTER(Kernel)), ("call", Call))


def _load() -> ctypes.CDLL:
    path = os.environ.get("STATEPACK_KERNELS")
    if path is None:
        subprocess.run(["make", "--silent", "--no-print-directory", "kernels"], cwd=ROOT, check=True)
        path = str(ROOT / "build/kernels/libstatepack_kernels.so")
    library = ctypes.CDLL(path)
    library.sp_kernel_find.restype = ctypes.POINTER(Kernel)
    library.sp_pool_create.restype = ctypes.c_void_p
    library.sp_pool_destroy.argtypes = [ctypes.c_void_p]
    library.sp_undo_log_create.restype = ctypes.c_void_p
    library.sp_undo_log_destroy.argtypes = [ctypes.c_void_p]
    library.sp_run_save.argtypes = [ctypes.POINTER(Run), ctypes.c_void_p, ctypes.c_size_t]
    library.sp_run_save.restype = ctypes.c_bool
    library.sp_execute.argtypes = [ctypes.POINTER(Instruction), ctypes.c_size_t, ctypes.POINTER(Run)]
    library.sp_execute.restype = ctypes.c_bool
    library.sp_isa_name.restype = ctypes.c_char_p
    library.sp_crc32c.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    library.sp_crc32c.restype = ctypes.c_uint32
    library.sp_panel_bytes.argtypes = [ctypes.c_int64, ctypes.c_int64]
    library.sp_panel_bytes.restype = ctypes.c_size_t
    library.sp_panel_pack.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 4, ctypes.c_void_p]
    library.sp_panel_pack.restype = None
    library.sp_read_streams.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.POINTER(ctypes.c_uint64),
    ]
    library.sp_read_streams.restype = ctypes.c_size_t
    return library


LIBRARY = _load()


def isa() -> str:
    return str(LIBRARY.sp_isa_name(LIBRARY.sp_isa_in_use()).decode())


@dataclass
class Panels:
    """An [n, k] matrix in layout PANEL_16."""

    data: Array
    n: int
    k: int


def pack(matrix: Array) -> Panels:
    dense = np.ascontiguousarray(matrix, dtype=np.float32)
    n, k = dense.shape
    data = aligned(LIBRARY.sp_panel_bytes(n, k) // 4)
    LIBRARY.sp_panel_pack(dense.ctypes.data, n, k, 0, n, data.ctypes.data)
    return Panels(data, n, k)


def aligned(count: int) -> Array:
    """`count` float32 zeros that start at a multiple of 64 bytes."""
    raw = np.zeros(count + 16, np.float32)
    shift = (-raw.ctypes.data % 64) // 4
    return raw[shift : shift + count]


Operand = Array | Panels | None


def tensor(value: Array | Panels) -> Tensor:
    if isinstance(value, Panels):
        shape, strides, dtype, layout = (value.n, value.k), (0, 0), "float32", PANEL_16
        address = value.data.ctypes.data
    else:
        shape, dtype, layout = value.shape, str(value.dtype), 0
        strides = tuple(stride // value.itemsize for stride in value.strides)
        address = value.ctypes.data
    filled = (0,) * (MAX_RANK - len(shape))
    return Tensor(
        address,
        (ctypes.c_int64 * MAX_RANK)(*shape, *filled),
        (ctypes.c_int64 * MAX_RANK)(*strides, *filled),
        len(shape),
        SCALAR_TYPES[dtype],
        layout,
    )


@dataclass
class Built:
    """A call and everything that must stay alive beside it."""

    kernel: Any
    call: Call
    keep: list[Any] = field(default_factory=list)

    def check(self) -> str | None:
        reason = self.kernel.contents.check(ctypes.byref(self.call))
        return None if reason is None else str(reason.decode())

    def take_scratch(self, threads: int) -> None:
        size = self.kernel.contents.scratch(ctypes.byref(self.call), threads)
        if size:
            # NaN where a kernel reads scratch before it wrote it.
            scratch = aligned((size + 3) // 4)
            scratch[...] = np.nan
            self.keep.append(scratch)
            self.call.scratch = scratch.ctypes.data


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.POINTER(Tensor) * len(tensors))(
        *[ctypes.pointer(one) if one is not None else ctypes.POINTER(Tensor)() for one in tensors]
    )


def build(
    name: str,
    operands: Sequence[Operand | Tensor],
    results: Sequence[Array | Tensor | None],
    ints: Sequence[int] = (),
    floats: Sequence[float] = (),
) -> Built:
    def made(value: Operand | Tensor) -> Tensor | None:
        return value if value is None or isinstance(value, Tensor) else tensor(value)

    given = [made(one) for one in operands]
    wanted = [made(one) for one in results]
    call = Call(
        _pointers(given),
        _pointers(wanted),
        (ctypes.c_int64 * len(ints))(*ints),
        (ctypes.c_double * len(floats))(*floats),
        None,
        len(given),
        len(wanted),
        len(ints),
        len(floats),
    )
    kernel = LIBRARY.sp_kernel_find(name.encode())
    assert kernel, f"no kernel named {name}"
    return Built(kernel, call, [operands, results, given, wanted])


class Pool:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.handle = LIBRARY.sp_pool_create(threads)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        LIBRARY.sp_pool_destroy(self.handle)


def run(built: Built, pool: Pool | None = None, undo: int | None = None) -> Run:
    """Checks the call, runs it and returns the run; run.failure.kind is 0 when it succeeded."""
    reason = built.check()
    assert reason is None, reason
    built.take_scratch(pool.threads if pool else 1)
    state = Run(pool.handle if pool else None, undo)
    ok = built.kernel.contents.run(ctypes.byref(built.call), ctypes.byref(state))
    assert ok == (state.failure.kind == 0)
    return state


def execute(calls: Sequence[Built], pool: Pool | None = None, undo: int | None = None) -> tuple[bool, Run]:
    for one in calls:
        reason = one.check()
        assert reason is None, reason
        one.take_scratch(pool.threads if pool else 1)
    instructions = (Instruction * len(calls))(*[Instruction(one.kernel, one.call) for one in calls])
    state = Run(pool.handle if pool else None, undo)
    ok = LIBRARY.sp_execute(instructions, len(calls), ctypes.byref(state))
    return bool(ok), state


def layouts(array: Array) -> Iterator[tuple[str, Array]]:
    """The same values in memory of different kinds, every one inside a buffer whose other elements are poison."""
    poison = {"f": np.nan, "i": 77, "b": True}[array.dtype.kind]
    yield "dense", np.array(array, order="C")

    def room(shape: tuple[int, ...]) -> Array:
        return np.full(shape, poison, array.dtype)

    flat = room((array.size + 3,))
    shifted = flat[1 : 1 + array.size].reshape(array.shape)
    shifted[...] = array
    yield "offset", shifted
    if array.ndim == 0:
        return
    spread = room((*array.shape[:-1], 2 * array.shape[-1] + 1))[..., 1::2]
    spread[...] = array
    yield "every second", spread
    backwards = room(array.shape)[..., ::-1]
    backwards[...] = array
    yield "backwards", backwards
    if array.ndim > 1:
        turned = room(array.shape[::-1]).T
        turned[...] = array
        yield "transposed", turned
        padded = room((*array.shape[:-1], array.shape[-1] + 3))[..., : array.shape[-1]]
        padded[...] = array
        yield "padded rows", padded
