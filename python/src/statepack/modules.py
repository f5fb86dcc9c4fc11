"""Looking at, and after, a live module: which of its tensors share storage, and what it is before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from . import _codes as codes
from .diagnostics import Diagnostic, ExportError
from .precision import bits_equal


def shared_groups(tensors: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names of tensors whose bytes overlap, in groups."""
    spans: list[tuple[int, int, int, str]] = []
    for name, tensor in tensors.items():
        if tensor.numel() == 0 or tensor.layout != torch.strided or tensor.device.type == "meta":
            continue
        reach = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        storage = tensor.untyped_storage().data_ptr()
        begin = storage + int(tensor.storage_offset()) * tensor.element_size()
        spans.append((storage, begin, begin + int(reach + 1) * tensor.element_size(), name))
    order = {name: index for index, name in enumerate(tensors)}
    groups: list[list[str]] = []
    last: tuple[int, int] | None = None
    for storage, begin, end, name in sorted(spans):
        if last is not None and last[0] == storage and begin < last[1]:
            groups[-1].append(name)
            last = (storage, max(end, last[1]))
        else:
            groups.append([name])
            last = (storage, end)
    return [sorted(group, key=order.__getitem__) for group in groups if len(group) > 1]


def shared_storage_diagnostic(group: Sequence[str], where: str) -> Diagnostic:
    names = " and ".join(f"`{name}`" for name in group)
    return Diagnostic(
        codes.SHARED_STORAGE,
        f"{names} share storage, and the module writes it",
        where,
        expected="one tensor for each buffer and input",
        found=f"one storage behind {', '.join(group)}",
        hint="give each its own tensor (clone()), or register one and index it",
    )


def plain_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors held by attributes that are not registered, also inside lists, dictionaries and plain objects."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def visit(path: str, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            found.setdefault(path, value)
            return
        if depth == 0 or isinstance(value, str | bytes | int | float | nn.Module | type) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit(f"{path}[{key!r}]", item, depth - 1)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(f"{path}[{index}]", item, depth - 1)
        elif is_dataclass(value):
            for field in fields(value):
                visit(f"{path}.{field.name}", getattr(value, field.name, None), depth - 1)
        elif hasattr(value, "__dict__") and not callable(value):
            for key, item in vars(value).items():
                visit(f"{path}.{key}", item, depth - 1)

    for prefix, owner in module.named_modules():
        for key, value in vars(owner).items():
            if key not in ("_parameters", "_buffers", "_modules"):
                visit(f"{prefix}.{key}".removeprefix("."), value, 4)
    return found


def attribute_of(module: nn.Module, tensor: torch.Tensor) -> str | None:
    """The unregistered attribute that holds this tensor."""
    for path, candidate in plain_tensors(module).items():
        if candidate is tensor:
            return path
        if (
            candidate.layout == torch.strided
            and tensor.layout == torch.strided
            and candidate.numel()
            and candidate.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() != 0
        ):
            return path
    return None


def version_of(tensor: torch.Tensor) -> int | None:
    """How often the tensor was written in place; nothing for inference tensors, which do not count."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def owner_of(module: nn.Module, qualified: str) -> tuple[nn.Module, str]:
    path, _, name = qualified.rpartition(".")
    return (module.get_submodule(path) if path else module), name


class EagerModule:
    """A module whose states are set, run and read, and that is afterwards as it was before."""

    def __init__(
        self,
        module: nn.Module,
        in_spec: pytree.TreeSpec,
        buffers: Mapping[str, str],
        call_order: Sequence[tuple[str, str]],
        return_order: Sequence[str | None],
    ) -> None:
        self._module = module
        self._in_spec = in_spec
        #: State name -> qualified buffer name.
        self._buffers = dict(buffers)
        self._call_order = call_order
        self._return_order = return_order

    def run(
        self, inputs: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """One call on copies of the states: outputs and states by name."""
        given = {name: value.clone() for name, value in states.items()}
        flat: list[Any] = []
        for kind, name in self._call_order:
            flat.append(inputs[name].clone() if kind == "input" else given[name] if kind == "state" else None)
        args, kwargs = pytree.tree_unflatten(flat, self._in_spec)
        with torch.no_grad(), preserved_buffers(self._module) as held:
            for state, qualified in self._buffers.items():
                # Into the tensor that is there: the module may hold it elsewhere, too.
                self._module.get_buffer(qualified).copy_(states[state])
            returned = self._module(*args, **kwargs)
            after = {
                state: self._module.get_buffer(qualified).detach().clone() for state, qualified in self._buffers.items()
            }
            self._check_others(held)
            leaves = pytree.tree_leaves(returned)
            outputs = {
                name: leaf.detach().clone()
                for name, leaf in zip(self._return_order, leaves, strict=True)
                if name is not None
            }
        for kind, name in self._call_order:
            if kind == "state":
                after[name] = given[name].detach()
        return outputs, {name: after.get(name, states[name]) for name in states}

    def _check_others(self, held: Sequence[HeldBuffer]) -> None:
        """A buffer that changed and is no state is a mutation that the export lost."""
        states = set(self._buffers.values())
        findings = []
        for buffer in held:
            value = buffer.owner._buffers.get(buffer.name)
            if buffer.qualified in states or value is None:
                continue
            if value.shape != buffer.elements.shape or not bool(bits_equal(value, buffer.elements).all()):
                findings.append(
                    Diagnostic(
                        codes.MUTATION_LOST,
                        f"buffer `{buffer.qualified}` is changed by forward(), but not by the exported program",
                        type(buffer.owner).__name__,
                        expected="a buffer mutation in the export's signature",
                        found="another value after one call of the module",
                        hint=f"export with strict=False, or write in place: self.{buffer.name}.copy_(value)",
                    )
                )
        if findings:
            raise ExportError(findings)


@dataclass
class HeldBuffer:
    """A buffer as it was."""

    qualified: str
    owner: nn.Module
    name: str
    tensor: torch.Tensor
    version: int | None
    elements: torch.Tensor


@contextmanager
def preserved_buffers(module: nn.Module) -> Iterator[list[HeldBuffer]]:
    """Puts every buffer back, the tensor object, its elements and its count of writes."""
    held = []
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                qualified = f"{path}.{name}".removeprefix(".")
                held.append(HeldBuffer(qualified, owner, name, buffer, version_of(buffer), buffer.detach().clone()))
    try:
        yield held
    finally:
        with torch.no_grad():
            for entry in held:
                buffer, version, elements = entry.tensor, entry.version, entry.elements
                entry.owner._buffers[entry.name] = buffer
                if not bool(bits_equal(buffer.detach(), elements).all()):
                    buffer.copy_(elements)
                if version is not None and version_of(buffer) != version:
                    torch._C._autograd._unsafe_set_version_counter((buffer,), (version,))
