"""What the functions of one program share: symbols, stored tensors and source lines, each once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from . import program_pb2 as pb
from .scalar_types import NUMBERS

#: What an unbounded dynamic size is cut to.
LARGEST_SIZE = 2**31 - 1


def element_bytes(tensor: torch.Tensor) -> bytes:
    """Row-major little-endian elements, whatever strides, offset or storage the tensor has."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_from_bytes(data: bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if not data:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(tuple(shape))


class TensorTable:
    """Stored tensors, deduplicated by type, shape and content: tied weights are stored once."""

    def __init__(self, program: pb.Program) -> None:
        self._program = program
        self._indices: dict[tuple[int, tuple[int, ...], bytes], int] = {}
        self._by_identity: dict[tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype], int] = {}
        #: The tensors themselves, parallel to `program.tensors`.
        self.values: list[torch.Tensor] = []

    def index_of(self, name: str, tensor: torch.Tensor) -> int:
        """The tensor's place, added when it is new. Another name for the same content becomes an alias."""
        identity = _identity(tensor)
        index = self._by_identity.get(identity)
        if index is None:
            data = element_bytes(tensor)
            key = (NUMBERS[tensor.dtype], tuple(tensor.shape), hashlib.sha256(data).digest())
            index = self._indices.setdefault(key, len(self.values))
            self._by_identity[identity] = index
            if index == len(self.values):
                # A copy, where the caller could write to it later, would cost the model twice over:
                # what is kept is the tensor, and states were cloned before.
                self.values.append(tensor.detach())
                stored = self._program.tensors.add(name=self._free_name(name), scalar_type=key[0])
                stored.shape.extend(tensor.shape)
                return index
        self._add_alias(index, name)
        return index

    def note_alias(self, name: str, tensor: torch.Tensor) -> None:
        """Records the name when the tensor is one that is stored already, as for an unused tied weight."""
        index = self._by_identity.get(_identity(tensor))
        if index is not None:
            self._add_alias(index, name)

    def _free_name(self, name: str) -> str:
        taken = {stored.name for stored in self._program.tensors}
        candidate, number = name, 2
        while candidate in taken:
            candidate, number = f"{name}#{number}", number + 1
        return candidate

    def _add_alias(self, index: int, name: str) -> None:
        stored = self._program.tensors[index]
        if name != stored.name and name not in stored.aliases:
            stored.aliases.append(name)


def _identity(
    tensor: torch.Tensor,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    return (
        tensor.untyped_storage().data_ptr() or id(tensor),
        int(tensor.storage_offset()),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
    )


class SymbolTable:
    """torch's symbols of one function -> the program's, which are named after their Dim."""

    def __init__(self, program: pb.Program, exported: ExportedProgram, function: str) -> None:
        #: torch's name of a symbol -> its place in the program, and its name there.
        self.indices: dict[str, int] = {}
        self.names: dict[str, str] = {}
        names = _dim_names(exported)
        for symbol in _symbols_in_order(exported):
            limits = exported.range_constraints.get(symbol)
            low = 0 if limits is None else max(0, _bounded(limits.lower, 0))
            high = LARGEST_SIZE if limits is None else min(LARGEST_SIZE, _bounded(limits.upper, LARGEST_SIZE))
            name = names.get(symbol.name, f"size{len(program.symbols)}")
            index = _symbol_index(program, name, low, high, function, self.indices)
            self.indices[symbol.name], self.names[symbol.name] = index, program.symbols[index].name


def _symbol_index(program: pb.Program, name: str, low: int, high: int, function: str, taken: Mapping[str, int]) -> int:
    for candidate in (name, f"{name}@{function}", *(f"{name}@{function}#{number}" for number in range(2, 1000))):
        for index, symbol in enumerate(program.symbols):
            if symbol.name == candidate:
                if (symbol.min, symbol.max) == (low, high) and index not in taken.values():
                    return index
                break
        else:
            program.symbols.add(name=candidate, min=low, max=high)
            return len(program.symbols) - 1
    raise AssertionError("a thousand symbols of one name")


def _bounded(value: object, default: int) -> int:
    try:
        return int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError, AttributeError):
        return default


def _symbols_in_order(exported: ExportedProgram) -> list:
    """Free symbols of the placeholders' shapes, in order of appearance."""
    found: list = []
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            break
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        for size in value.shape:
            if isinstance(size, torch.SymInt):
                for symbol in sorted(size.node.expr.free_symbols, key=lambda symbol: symbol.name):
                    if symbol not in found:
                        found.append(symbol)
    return found


def _dim_names(exported: ExportedProgram) -> dict[str, str]:
    """Symbol name -> name of its torch.export.Dim, as far as torch remembers."""
    names: dict[str, str] = {}
    for node in exported.graph.nodes:
        if node.op != "placeholder":
            break
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if not isinstance(size, torch.SymInt):
                continue
            shape_env = size.node.shape_env
            debug_names = getattr(shape_env, "source_name_to_debug_name", {})
            for source, symbol in getattr(shape_env, "source_to_var", {}).items():
                expression = shape_env.replace(symbol)
                name = debug_names.get(source)
                # Dim.DYNAMIC and Dim.AUTO have no name of their own: torch gives them the source's.
                if name and name.isidentifier() and not name.startswith("_") and expression.is_Symbol:
                    names.setdefault(expression.name, name)
            return names
    return names


class SourceTable:
    """Source lines, each once."""

    def __init__(self, program: pb.Program) -> None:
        self._program = program
        self._indices: dict[str, int] = {}

    def index_of(self, source: str | None) -> int:
        """Place plus one; 0 when unknown, as `Node.source` wants it."""
        if source is None:
            return 0
        if source not in self._indices:
            self._indices[source] = len(self._indices)
            self._program.sources.append(source)
        return self._indices[source] + 1
