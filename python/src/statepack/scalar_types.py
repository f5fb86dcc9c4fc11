"""torch dtypes and the scalar types of program.proto."""

from __future__ import annotations

import torch

from . import program_pb2 as pb

NUMBERS: dict[torch.dtype, pb.ScalarType] = {
    torch.bool: pb.BOOL,
    torch.int8: pb.INT8,
    torch.int16: pb.INT16,
    torch.int32: pb.INT32,
    torch.int64: pb.INT64,
    torch.uint8: pb.UINT8,
    torch.uint16: pb.UINT16,
    torch.uint32: pb.UINT32,
    torch.uint64: pb.UINT64,
    torch.float16: pb.FLOAT16,
    torch.float32: pb.FLOAT32,
    torch.float64: pb.FLOAT64,
    torch.bfloat16: pb.BFLOAT16,
}
DTYPES: dict[int, torch.dtype] = {number: dtype for dtype, number in NUMBERS.items()}

#: What has kernels today.
SUPPORTED = (torch.float32, torch.int32, torch.int64, torch.bool)
MAXIMUM_RANK = 8


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(dtype: torch.dtype, shape: object) -> str:
    """`float32[1, query, 64]`"""
    return f"{type_name(dtype)}[{', '.join(str(size) for size in shape)}]"  # type: ignore[attr-defined]
