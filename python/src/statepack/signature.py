"""What torch.export says a program's inputs, outputs and states are, and every reason to refuse it.

The signature is always read from `output_specs` in order: the convenience dictionaries are keyed by the
producing node, so they lose a state when one value is stored into two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from . import _codes as codes
from .assignments import Assignment, assigned_attributes
from .diagnostics import Diagnostic, ExportError
from .nearest import nearest_name
from .scalar_types import describe
from .sources import source_of

#: Of UTF-8, as schemas/README.md says.
MAXIMUM_NAME_BYTES = 1024


@dataclass
class StateEntry:
    """One mutated buffer or input of one function."""

    name: str
    #: Qualified buffer name, or the name of the mutated input.
    source_name: str
    is_input: bool
    named_by_author: bool
    #: Placeholder node that holds the value when the function starts.
    before: torch.fx.Node
    #: Node that holds it when the function ends; `before` when the function only reads it.
    after: torch.fx.Node


@dataclass
class Signature:
    """The names that a function shows, each with its node."""

    inputs: list[tuple[str, torch.fx.Node]] = field(default_factory=list)
    outputs: list[tuple[str, torch.fx.Node]] = field(default_factory=list)
    states: list[StateEntry] = field(default_factory=list)
    #: Parameters, constants and buffers that nothing writes: qualified name -> placeholder.
    constants: list[tuple[str, torch.fx.Node]] = field(default_factory=list)
    #: For each flat user input in call order: ("input" or "state", name), or ("none", "") for an absent one.
    call_order: list[tuple[str, str]] = field(default_factory=list)
    #: For each flat user output in call order: its name, or None for a returned None.
    return_order: list[str | None] = field(default_factory=list)


def tensor_of(exported: ExportedProgram, target: str) -> torch.Tensor:
    """The parameter, buffer or constant of that qualified name."""
    if target in exported.state_dict:
        return exported.state_dict[target]
    value = exported.constants[target]
    if not isinstance(value, torch.Tensor):
        raise TypeError(target)
    return value


def read_signature(
    exported: ExportedProgram,
    *,
    function: str,
    input_names: Sequence[str] | None,
    state_names: Sequence[str] | Mapping[str, str] | None,
    output_names: Sequence[str] | None,
) -> Signature:
    """Reads a decomposed program's signature and gives everything its name.

    Throws `ExportError` with all findings about the signature at once.
    """
    where = f"function `{function}`"
    findings: list[Diagnostic] = []
    nodes = {node.name: node for node in exported.graph.nodes}
    placeholders: dict[str, torch.fx.Node] = {}
    inputs: list[torch.fx.Node | None] = []
    result = Signature()

    written: dict[tuple[bool, str], torch.fx.Node] = {}
    outputs: list[torch.fx.Node | None] = []
    for output in exported.graph_signature.output_specs:
        if output.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            written[(output.kind is OutputKind.USER_INPUT_MUTATION, str(output.target))] = nodes[output.arg.name]
        elif output.kind is OutputKind.PARAMETER_MUTATION:
            findings.append(
                Diagnostic(
                    codes.MUTATED_PARAMETER,
                    f"parameter `{output.target}` is written by forward()",
                    at(where, source_of(nodes[output.arg.name])),
                    hint=f"make it a buffer: self.register_buffer({str(output.target).rpartition('.')[2]!r}, tensor)",
                )
            )
        elif output.kind is OutputKind.USER_OUTPUT:
            if isinstance(output.arg, TensorArgument):
                outputs.append(nodes[output.arg.name])
            elif isinstance(output.arg, ConstantArgument) and output.arg.value is None:
                outputs.append(None)
            else:
                value = getattr(output.arg, "value", None)
                findings.append(
                    Diagnostic(
                        codes.OUTPUT_NOT_TENSOR,
                        f"output {len(outputs)} of forward() is not a tensor",
                        where,
                        expected="a tensor, or None for no output",
                        found=repr(value) if value is not None else type(output.arg).__name__,
                    )
                )
                outputs.append(None)
        elif output.kind is not OutputKind.TOKEN:
            findings.append(
                Diagnostic(
                    codes.UNSUPPORTED_OPERATOR,
                    f"outputs of kind {output.kind.name} are not supported",
                    where,
                    hint="export for inference: no loss",
                )
            )

    buffers: list[tuple[str, torch.fx.Node]] = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, TensorArgument):
                node = nodes[spec.arg.name]
                placeholders[spec.arg.name] = node
                inputs.append(node)
            elif isinstance(spec.arg, ConstantArgument) and spec.arg.value is None:
                inputs.append(None)
            else:
                value = getattr(spec.arg, "value", None)
                findings.append(
                    Diagnostic(
                        codes.FROZEN_INPUT,
                        f"argument `{spec.arg.name}` of forward() is not a tensor, so its value would be frozen",
                        where,
                        expected="a tensor",
                        found=f"{value!r}" if value is not None else type(spec.arg).__name__,
                        hint="fix the value in a wrapper module, or pass a tensor",
                    )
                )
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            node = nodes[spec.arg.name]
            target = str(spec.target)
            if spec.kind is InputKind.BUFFER and (False, target) in written:
                buffers.append((target, node))
            else:
                result.constants.append((target, node))
        elif spec.kind is not InputKind.TOKEN:
            # A token belongs to an operator with side effects, which is refused with its line.
            findings.append(
                Diagnostic(
                    codes.UNSUPPORTED_OPERATOR,
                    f"inputs of kind {spec.kind.name} are not supported",
                    where,
                    hint="pass tensors only",
                )
            )

    # Registration order, whatever order the mutations are listed in.
    found = [(False, target, node) for target, node in buffers]
    found += [(True, node.name, node) for node in inputs if node is not None and (True, node.name) in written]
    state_names_by_source = _state_names(found, state_names, where, findings)
    for is_input, source_name, node in found:
        name, named = state_names_by_source.get(source_name, (source_name, False))
        result.states.append(StateEntry(name, source_name, is_input, named, node, written[(is_input, source_name)]))

    plain = [node for node in inputs if node is not None and (True, node.name) not in written]
    shown = _names("input", [node.name for node in plain], input_names, where, findings)
    result.inputs = list(zip(shown, plain, strict=True))
    returned = [node for node in outputs if node is not None]
    defaults = ["output"] if len(returned) == 1 else [f"output_{index}" for index in range(len(returned))]
    shown = _names("output", defaults, output_names, where, findings)
    result.outputs = list(zip(shown, returned, strict=True))

    by_node = {node: name for name, node in result.inputs}
    states_by_node = {state.before: state.name for state in result.states}
    for entry in inputs:
        if entry is None:
            result.call_order.append(("none", ""))
        elif entry in by_node:
            result.call_order.append(("input", by_node[entry]))
        else:
            result.call_order.append(("state", states_by_node[entry]))
    names = iter(name for name, _ in result.outputs)
    result.return_order = [None if node is None else next(names) for node in outputs]

    _check_names(result, where, findings)
    _check_state_types(result, where, findings)
    _check_training(exported, result, where, findings)
    if findings:
        raise ExportError(findings)
    return result


def at(where: str, source: str | None) -> str:
    return f"{where}, {source}" if source else where


def _names(
    what: str, defaults: list[str], given: Sequence[str] | None, where: str, findings: list[Diagnostic]
) -> list[str]:
    if given is None:
        return defaults
    if len(given) != len(defaults):
        findings.append(
            Diagnostic(
                codes.NAME_COUNT_MISMATCH,
                f"{len(given)} {what}_names for {len(defaults)} {what}s",
                where,
                expected=f"{len(defaults)}: {', '.join(defaults) or 'none'}",
                found=f"{len(given)}: {', '.join(map(str, given)) or 'none'}",
                hint=f"give one name for each {what}, in this order",
            )
        )
        return defaults
    return list(given)


def _state_names(
    found: list[tuple[bool, str, torch.fx.Node]],
    given: Sequence[str] | Mapping[str, str] | None,
    where: str,
    findings: list[Diagnostic],
) -> dict[str, tuple[str, bool]]:
    sources = [source for _, source, _ in found]
    if given is None:
        return {}
    if isinstance(given, Mapping):
        for key in given:
            if key not in sources:
                findings.append(
                    Diagnostic(
                        codes.UNKNOWN_BUFFER,
                        f"state_names has a key `{key}` that is no state of the module",
                        where,
                        expected=", ".join(sources) or "no states: the module writes no buffer and no input",
                        found=str(key),
                        hint="use the qualified buffer name, as in module.named_buffers()",
                    )
                )
        return {source: (given[source], True) for source in sources if source in given}
    if len(given) != len(sources):
        findings.append(
            Diagnostic(
                codes.NAME_COUNT_MISMATCH,
                f"{len(given)} state_names for {len(sources)} states",
                where,
                expected=f"{len(sources)}: {', '.join(sources) or 'none'}",
                found=f"{len(given)}: {', '.join(map(str, given)) or 'none'}",
                hint="give one name for each state, in this order, or a mapping from buffer to name",
            )
        )
        return {}
    return {source: (name, True) for source, name in zip(sources, given, strict=True)}


def check_arguments(
    where: str,
    input_names: object,
    state_names: object,
    output_names: object,
    recording_inputs: object,
    initial: object,
) -> None:
    """Refuses what is not of the types that the exporter takes, before anything is traced."""
    findings = []
    for what, given in (("input", input_names), ("state", state_names), ("output", output_names)):
        if given is None or isinstance(given, list | tuple) or (what == "state" and isinstance(given, Mapping)):
            continue
        findings.append(
            Diagnostic(
                codes.INVALID_EXPORT_ARGUMENT,
                f"{what}_names is no list of names",
                where,
                expected="a list or tuple of names" + (", or a mapping" if what == "state" else ""),
                found=f"{given!r:.80}",
                hint=f"{what}_names=[{given!r:.80}]" if isinstance(given, str) else None,
            )
        )
    if recording_inputs is not None and not isinstance(recording_inputs, list | tuple):
        findings.append(
            Diagnostic(
                codes.INVALID_EXPORT_ARGUMENT,
                "recording_inputs is no list of steps",
                where,
                expected="a list or tuple with the arguments of each step",
                found=type(recording_inputs).__name__,
            )
        )
    choices = ("untouched", "current")
    if initial not in choices:
        near = nearest_name(str(initial), choices)
        findings.append(
            Diagnostic(
                codes.INVALID_EXPORT_ARGUMENT,
                "initial_state has another value than it can have",
                where,
                expected=" or ".join(repr(choice) for choice in choices),
                found=f"{initial!r:.80}",
                hint=f"did you mean `{near}`?" if near else None,
            )
        )
    if findings:
        raise ExportError(findings)


def invalid_name_reason(name: object) -> str | None:
    """Why a name cannot be used, or nothing."""
    if not isinstance(name, str):
        return f"{type(name).__name__} instead of str"
    if not name:
        return "empty"
    count = len(name.encode(errors="surrogatepass"))
    if count > MAXIMUM_NAME_BYTES:
        return f"{count} bytes"
    if any(ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F or 0xD800 <= ord(c) <= 0xDFFF for c in name):
        return "has a control character or half a surrogate pair"
    return None


def check_name(what: str, name: object, where: str) -> Diagnostic | None:
    reason = invalid_name_reason(name)
    if reason is None:
        return None
    return Diagnostic(
        codes.INVALID_NAME,
        f"{what} name {name!r:.80} cannot be used",
        where,
        expected=f"1 to {MAXIMUM_NAME_BYTES} bytes of visible characters",
        found=reason,
    )


def _check_names(signature: Signature, where: str, findings: list[Diagnostic]) -> None:
    groups = {
        "input": [name for name, _ in signature.inputs],
        "output": [name for name, _ in signature.outputs],
        "state": [state.name for state in signature.states],
    }
    for what, names in groups.items():
        for index, name in enumerate(names):
            problem = check_name(what, name, where)
            if problem:
                findings.append(problem)
            elif name in names[:index]:
                findings.append(
                    Diagnostic(
                        codes.DUPLICATE_NAME,
                        f"{what} name `{name}` is given twice",
                        where,
                        expected=f"{len(names)} different names",
                        found=", ".join(map(str, names)),
                    )
                )
    for what in ("input", "output"):
        for state in signature.states:
            if state.name in groups[what]:
                findings.append(
                    Diagnostic(
                        codes.STATE_NAME_TAKEN,
                        f"state `{state.name}` has the name of an {what}",
                        where,
                        expected=f"a name other than the {what}s' {', '.join(groups[what])}",
                        found=f"{state.name}, for buffer {state.source_name}",
                        hint=f"name it: state_names={{{state.source_name!r}: {state.name + 'State'!r}}}",
                    )
                )


def _check_state_types(signature: Signature, where: str, findings: list[Diagnostic]) -> None:
    for state in signature.states:
        before, after = state.before.meta["val"], state.after.meta["val"]
        if before.dtype != after.dtype or not _same_shape(before.shape, after.shape):
            findings.append(state_type_changed(state.source_name, at(where, source_of(state.after)), before, after))


def state_type_changed(source_name: str, where: str, before: torch.Tensor, after: torch.Tensor) -> Diagnostic:
    another_type = before.dtype != after.dtype
    return Diagnostic(
        codes.STATE_TYPE_CHANGED,
        f"the update of state `{source_name}` changes its " + ("scalar type" if another_type else "shape"),
        where,
        expected=describe(before.dtype, before.shape),
        found=describe(after.dtype, after.shape),
        hint=f"convert the new value: value.to({before.dtype})"
        if another_type
        else "keep one capacity and write rows into it",
    )


def _same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    # Compared as text: comparing SymInts would add guards.
    return [str(size) for size in a] == [str(size) for size in b]


def _check_training(exported: ExportedProgram, signature: Signature, where: str, findings: list[Diagnostic]) -> None:
    """torch's own layers write buffers in training mode only; an author's layers do so on purpose."""
    owners: dict[str, str] = {}
    for node in exported.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            owners[path] = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    trained = [
        (state.source_name, owners[state.source_name.rpartition(".")[0]])
        for state in signature.states
        if owners.get(state.source_name.rpartition(".")[0], "").startswith("torch.nn.")
    ]
    if trained:
        findings.append(
            Diagnostic(
                codes.TRAINING_MODE,
                f"training mode makes {len(trained)} buffers of torch's own layers states: "
                + ", ".join(f"`{name}`" for name, _ in trained),
                where,
                expected="module.eval()",
                found=", ".join(sorted({kind.rpartition(".")[2] for _, kind in trained})) + " in training mode",
                hint="call module.eval() before exporting",
            )
        )


def find_lost_assignments(exported: ExportedProgram, function: str, replayed: bool) -> list[Diagnostic]:
    """Assignments to a buffer or tensor attribute that the program does not carry.

    A strict export drops `self.c = self.c + x` without a word, and both kinds drop it when `c` is a plain
    attribute. What is left is the source of the nodes that computed the value. `replayed` says that the module
    itself will be compared with, which finds what comes after another write without a look at lines.
    """
    kinds = {
        str(spec.target): spec.kind
        for spec in exported.graph_signature.input_specs
        if spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    }
    nodes = {node.name: node for node in exported.graph.nodes}
    written = {
        str(spec.target): nodes[spec.arg.name]
        for spec in exported.graph_signature.output_specs
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
    }
    found: dict[str, dict[Assignment, list[torch.fx.Node]]] = {}
    root = ""
    for node in exported.graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        for path, kind in stack:
            if not path:
                root = (kind if isinstance(kind, str) else kind.__qualname__).rpartition(".")[2]
        for assignment in assigned_attributes(node.meta.get("stack_trace") or ""):
            # Of modules within each other the inner one is meant, if it has a tensor of that name.
            targets = [f"{path}.{assignment.attribute}".removeprefix(".") for path, _ in reversed(stack)]
            target = next((target for target in targets if target in kinds), None)
            if target is not None:
                found.setdefault(target, {}).setdefault(assignment, []).append(node)
    findings = []
    for target, assignments in found.items():
        lost: Assignment | None = next(iter(assignments))
        if target in written:
            lost = None if replayed else _overwritten(exported, written[target], assignments)
        if lost is None:
            continue
        is_buffer = kinds[target] is InputKind.BUFFER
        owner, _, name = target.rpartition(".")
        findings.append(
            Diagnostic(
                codes.MUTATION_LOST if is_buffer else codes.MUTATED_CONSTANT,
                f"buffer `{target}` is assigned by forward(), but the exported program does not write it"
                if is_buffer and target not in written
                else f"buffer `{target}` is assigned by forward(), but the exported program keeps an earlier value"
                if is_buffer
                else f"`{target}` is assigned by forward(), but it is not a registered buffer",
                at(f"function `{function}`", f"{owner or root} ({lost.place})".strip()),
                expected="a buffer mutation in the export's signature"
                if target not in written
                else "the value of the last assignment in the export's signature",
                found=lost.statement,
                hint=f"export with strict=False, or write in place: self.{name}.copy_(value)"
                if is_buffer
                else f"register it: self.register_buffer({name!r}, tensor, persistent=False)",
            )
        )
    return findings


def _overwritten(
    exported: ExportedProgram, after: torch.fx.Node, assignments: Mapping[Assignment, Sequence[torch.fx.Node]]
) -> Assignment | None:
    """The assignment that comes after the write which the program keeps, and whose value went nowhere.

    In one function the lines decide, otherwise the order of the nodes.
    """
    trace = after.meta.get("stack_trace") or ""
    if not trace:
        return None
    order = {node: index for index, node in enumerate(exported.graph.nodes)}
    made_of: set[torch.fx.Node] = set()
    stack = [after]
    while stack:
        node = stack.pop()
        if node not in made_of:
            made_of.add(node)
            stack += node.all_input_nodes
    kept = [assignment for assignment, nodes in assignments.items() if made_of.intersection(nodes)]

    def follows(later: Assignment, earlier: Assignment) -> bool:
        if (later.file, later.function) == (earlier.file, earlier.function):
            return later.line > earlier.line
        return order[assignments[later][-1]] > order[assignments[earlier][-1]]

    for assignment, nodes in assignments.items():
        if assignment in kept or any(follows(other, assignment) for other in kept):
            continue
        lines = assignment.lines_of(trace)
        if assignment.line > max(lines) if lines else order[nodes[-1]] > order[after]:
            return assignment
    return None
