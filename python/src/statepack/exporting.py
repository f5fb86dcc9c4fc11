"""From a module to a checked program in one call."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from . import _codes as codes
from .context import Context
from .converter import ExportedModel, StepInputs, TorchConverter, dirty_state, quiet_torch, torch_failure
from .diagnostics import Diagnostic, ExportError
from .modules import preserved_buffers
from .precision import bits_equal
from .signature import check_arguments, state_type_changed


@dataclass
class ExportRequest:
    """What `python -m statepack export module.py:build` wants back from `build()`: the arguments of `export`."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    input_names: Sequence[str] | None = None
    state_names: Sequence[str] | Mapping[str, str] | None = None
    output_names: Sequence[str] | None = None
    entrypoint_name: str = "main"
    recording_inputs: Sequence[StepInputs] | None = None
    initial_state: str = "untouched"
    context: Context | None = None

    def run(self) -> ExportedModel:
        return export(**vars(self))


# What a module's buffers held when it was first exported: a later export of the same object has to agree.
_first_exports: weakref.WeakKeyDictionary[nn.Module, dict[str, torch.Tensor]] = weakref.WeakKeyDictionary()


def export(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    state_names: Sequence[str] | Mapping[str, str] | None = None,
    output_names: Sequence[str] | None = None,
    entrypoint_name: str = "main",
    *,
    recording_inputs: Sequence[StepInputs] | None = None,
    initial_state: str = "untouched",
    context: Context | None = None,
) -> ExportedModel:
    """Exports a module, checks the result against the module itself and returns what can be saved.

        statepack.export(model, (features, positions), dynamic_shapes={...}, state_names=[...]).save("exported.pb")

    Arguments are those of `torch.export.export` (non-strict) and `TorchConverter.add_exported_program`. The
    module is left as it was. Throws `ExportError`; nothing has been written then.
    """
    where = f"function `{entrypoint_name}`"
    check_arguments(where, input_names, state_names, output_names, recording_inputs, initial_state)
    kwargs = dict(kwargs or {})
    _check_example_sizes(module, args, kwargs, dynamic_shapes, where)
    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers(remove_duplicate=False)}
    mistyped: list[Diagnostic] = []
    with preserved_buffers(module), assignments_as_writes(module, where, mistyped), torch.no_grad(), quiet_torch():
        try:
            exported = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
        except Exception as error:
            raise ExportError(mistyped or _explain(module, where, error)) from error
        changed = [
            name
            for name, buffer in module.named_buffers(remove_duplicate=False)
            if name in before
            and (buffer.shape != before[name].shape or not bool(bits_equal(buffer, before[name]).all()))
        ]
    if changed:
        raise ExportError([dirty_state(name, where, "written while torch.export traced it") for name in changed])
    converter = TorchConverter().add_exported_program(
        exported,
        input_names,
        state_names,
        output_names,
        entrypoint_name,
        recording_inputs=recording_inputs,
        initial_state=initial_state,
        module=module,
        context=context,
    )
    if initial_state != "current":
        _check_first_export(module, converter, before, where)
    result = converter.to_program()
    _first_exports.setdefault(module, before)
    return result


@contextmanager
def assignments_as_writes(module: nn.Module, where: str, findings: list[Diagnostic]) -> Iterator[None]:
    """Makes `self.c = value` a write into buffer `c` for the time of a trace.

    torch.export (2.13, non-strict) keeps such an assignment in the root module and loses it in every other.
    Written is at the end of forward(), when every new value has been computed: what was read before the
    assignment keeps its old value. An assignment of another type or shape goes to `findings`.
    """
    held: list[tuple[str, nn.Module, str, torch.Tensor]] = []

    def remember(root: nn.Module, *_: Any) -> None:
        held.clear()
        for path, owner in root.named_modules():
            held.extend(
                (f"{path}.{name}".removeprefix("."), owner, name, buffer)
                for name, buffer in owner._buffers.items()
                if buffer is not None
            )

    def write(*_: Any) -> None:
        assigned = []
        for qualified, owner, name, buffer in held:
            value = owner._buffers.get(name)
            if value is buffer or value is None:
                continue
            owner._buffers[name] = buffer
            if value.dtype != buffer.dtype or [*map(str, value.shape)] != [*map(str, buffer.shape)]:
                findings.append(state_type_changed(qualified, where, buffer, value))
            else:
                assigned.append((buffer, value))
        if findings:
            raise ExportError(findings)
        # Two buffers may have been swapped: copies of all values first.
        for buffer, value in [(buffer, value.clone()) for buffer, value in assigned]:
            buffer.copy_(value)

    hooks = [module.register_forward_pre_hook(remember), module.register_forward_hook(write)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_first_export(
    module: nn.Module, converter: TorchConverter, before: Mapping[str, torch.Tensor], where: str
) -> None:
    first = _first_exports.get(module)
    if first is None:
        return
    findings = []
    for entry in converter._entries:
        for state in entry.signature.states:
            known, now = first.get(state.source_name), before.get(state.source_name)
            if known is None or now is None:
                continue
            if known.shape != now.shape or known.dtype != now.dtype or not bool(bits_equal(known, now).all()):
                findings.append(dirty_state(state.source_name, where, "other values than when it was first exported"))
    if findings:
        raise ExportError(findings)


def _check_example_sizes(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any, where: str
) -> None:
    """torch.export turns a dynamic size with an example of 0 or 1 into a fixed one, with a long message."""
    if not dynamic_shapes:
        return
    findings = []

    def visit(path: str, value: Any, spec: Any) -> None:
        if spec is None:
            return
        if isinstance(value, torch.Tensor):
            axes = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if _is_list(spec) else []
            for axis, dim in axes:
                if dim is None or isinstance(dim, int) or dim is torch.export.Dim.STATIC:
                    continue
                if axis < value.dim() and value.shape[axis] < 2:
                    name = getattr(dim, "__name__", str(dim))
                    findings.append(
                        Diagnostic(
                            codes.EXAMPLE_SIZE_TOO_SMALL,
                            f"dynamic size `{name}` (axis {axis} of `{path}`) has an example of {value.shape[axis]}",
                            where,
                            expected="an example of at least 2",
                            found=str(list(value.shape)),
                            hint="trace with a longer example; the exported program accepts 1 as well when min=1",
                        )
                    )
        elif isinstance(value, Mapping) and isinstance(spec, Mapping):
            for key, item in value.items():
                visit(f"{path}[{key!r}]", item, spec.get(key))
        elif isinstance(value, list | tuple) and _is_list(spec):
            for index, (item, part) in enumerate(zip(value, spec, strict=False)):
                visit(f"{path}[{index}]", item, part)

    try:
        combined: Mapping[str, Any] = torch.export.dynamic_shapes._combine_args(module, args, dict(kwargs))
    except Exception:  # The call does not fit forward(); torch.export says so better.
        return
    if isinstance(dynamic_shapes, Mapping):
        for name, value in combined.items():
            visit(name, value, dynamic_shapes.get(name))
    elif _is_list(dynamic_shapes):
        for (name, value), spec in zip(combined.items(), dynamic_shapes, strict=False):
            visit(name, value, spec)
    if findings:
        raise ExportError(findings)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


_LOST_ATTRIBUTE = re.compile(r"attributes? self\.(?P<name>[\w.]+)[\w., ]*? (?:was|were) assigned during export")
_CONSTRAINTS = re.compile(r"[Cc]onstraints violated \((?P<name>[^)]*)\)")
_DATA_DEPENDENT = re.compile(r"[Dd]ata-dependent|Could not guard on|Could not extract specialized integer")


def _explain(module: nn.Module, where: str, error: Exception) -> Diagnostic:
    failure = torch_failure(f"torch.export cannot trace {type(module).__name__}", where, error)
    text = str(error)
    if match := _LOST_ATTRIBUTE.search(text):
        name = match["name"]
        return replace(
            failure,
            code=codes.MUTATED_CONSTANT,
            message=f"`{name}` is assigned by forward(), but it is not a registered buffer",
            hint=f"register it: self.register_buffer({name.rpartition('.')[2]!r}, tensor, persistent=False)",
        )
    if match := _CONSTRAINTS.search(text):
        return replace(
            failure,
            message=f"the module does not accept every value of dynamic size `{match['name']}`",
            hint="narrow the Dim's min and max to what the module accepts",
        )
    if _DATA_DEPENDENT.search(text):
        return replace(
            failure,
            code=codes.DATA_DEPENDENT_SIZE,
            message="a size or a branch depends on the values of a tensor",
            hint="index with a one-dimensional tensor (position[None]), or use a fixed size and torch.where",
        )
    return failure
