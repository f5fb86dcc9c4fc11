"""A declared context against the graph: nothing is guessed, and nothing that is provably wrong is believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from . import _codes as codes
from . import program_pb2 as pb
from .context import Context
from .decomposition import operator_name
from .diagnostics import Diagnostic
from .nearest import nearest_name
from .scalar_types import describe
from .signature import Signature, StateEntry, at
from .sources import source_of
from .state_views import StateView, aligned, arguments_of, part_of, view_of, whole_state

#: Write where an index tensor says, along one axis.
_INDEXED_ALONG_DIM = frozenset(
    {
        "index_add",
        "index_copy",
        "index_fill",
        "index_reduce",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    }
)
_PART_WRITES = frozenset({"aten.select_scatter.default", "aten.slice_scatter.default"})
_MASKED = frozenset({"aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.masked_scatter.default"})


@dataclass
class CheckedContext:
    """A context in terms of the signature, or what is wrong with it."""

    positions: str = ""
    #: Name of a state -> axis, not negative.
    axes: dict[str, int] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)

    def write(self, function: pb.Function, program: pb.Program) -> None:
        names = [named.name for named in function.inputs]
        function.context.positions = names.index(self.positions)
        for use in function.states:
            axis = self.axes.get(program.states[use.state].name)
            if axis is not None:
                function.context.axes.add(state=use.state, axis=axis)


def check_context(context: Any, exported: ExportedProgram, signature: Signature, where: str) -> CheckedContext:
    """Every finding about one function's context. `exported` is decomposed."""
    checked = CheckedContext()
    found = checked.findings
    if not isinstance(context, Context):
        found.append(_mismatch("context is no statepack.Context", where, found=type(context).__name__))
        return checked
    positions = _positions(context.positions, signature, where, found)
    if not isinstance(context.axes, Mapping) or not context.axes:
        found.append(
            _mismatch(
                "context names no state",
                where,
                "a mapping from state name to axis",
                repr(context.axes),
                "leave context out when no input carries positions",
            )
        )
        return checked
    keys: dict[str, str] = {}
    for key, axis in context.axes.items():
        state = _state(key, signature, where, found)
        if state is None:
            continue
        if state.name in keys:
            found.append(
                _mismatch(
                    f"context names state `{state.name}` twice",
                    where,
                    "one axis for each state",
                    f"{keys[state.name]} and {key}",
                )
            )
            continue
        keys[state.name] = key
        value = state.before.meta["val"]
        if isinstance(axis, bool) or not isinstance(axis, int) or not -value.dim() <= axis < value.dim():
            found.append(
                _mismatch(
                    f"axis {axis!r} of the context is no axis of state `{state.name}`",
                    where,
                    f"0 to {value.dim() - 1} of {describe(value.dtype, value.shape)}"
                    if value.dim()
                    else f"a state with an axis, not {describe(value.dtype, value.shape)}",
                    repr(axis),
                )
            )
            continue
        checked.axes[state.name] = axis % value.dim()
        if positions is not None:
            finding = _GraphCheck(exported, context.positions, positions, state, axis % value.dim()).finding(where)
            found += [finding] if finding else []
    checked.positions = context.positions
    return checked


def _mismatch(
    message: str, where: str, expected: str | None = None, found: str | None = None, hint: str | None = None
) -> Diagnostic:
    return Diagnostic(codes.CONTEXT_MISMATCH, message, where, expected, found, hint)


def _positions(name: object, signature: Signature, where: str, findings: list[Diagnostic]) -> torch.fx.Node | None:
    nodes = dict(signature.inputs)
    usable = [key for key, node in nodes.items() if node.meta["val"].dtype in (torch.int32, torch.int64)]
    expected = "an int32 or int64 input: " + (", ".join(usable) or "the function has none")
    if not isinstance(name, str) or name not in nodes:
        near = nearest_name(str(name), usable)
        is_state = any(state.name == name for state in signature.states)
        findings.append(
            _mismatch(
                f"positions of the context: `{name}` is {'a state' if is_state else 'no input'}",
                where,
                expected,
                str(name),
                f"did you mean `{near}`?" if near else None,
            )
        )
        return None
    value = nodes[name].meta["val"]
    if name not in usable:
        findings.append(
            _mismatch(
                f"positions of the context: input `{name}` has another scalar type",
                where,
                expected,
                describe(value.dtype, value.shape),
            )
        )
        return None
    return nodes[name]


def _state(key: object, signature: Signature, where: str, findings: list[Diagnostic]) -> StateEntry | None:
    by_name = {state.name: state for state in signature.states}
    by_source = {state.source_name: state for state in signature.states}
    if isinstance(key, str) and (key in by_name or key in by_source):
        return by_name[key] if key in by_name else by_source[key]
    expected = ", ".join(by_name) or "no state: the function writes no buffer and no input"
    if any(target == key for target, _ in signature.constants):
        findings.append(
            _mismatch(
                f"context names `{key}`, which the function does not write",
                where,
                expected,
                str(key),
                "declare the context of the function that writes it",
            )
        )
        return None
    near = nearest_name(str(key), [*by_name, *by_source])
    findings.append(
        _mismatch(
            f"context names `{key}`, which is no state of the function",
            where,
            expected,
            str(key),
            f"did you mean `{near}`?" if near else None,
        )
    )
    return None


@dataclass
class _Write:
    """One write into a state, and what it says about the declared axis."""

    node: torch.fx.Node
    #: "wrong": some place of the axis is written that no position names. "whole": all of them, or none, so that
    #: the write says nothing about positions.
    kind: Literal["positional", "wrong", "whole"]
    text: str
    #: Axes of the state that positions index instead.
    instead: frozenset[int] = frozenset()


class _GraphCheck:
    """Follows one state from its new value back to its old one, through every write on the way.

    A write is believed when positions reach its index at the declared axis, or its mask, or, where the form is
    another one, its value. It is refused when the index at that axis is made without positions.
    """

    def __init__(
        self, exported: ExportedProgram, name: str, positions: torch.fx.Node, state: StateEntry, axis: int
    ) -> None:
        self._name, self._state, self._axis = name, state, axis
        self._derived = _reached(exported, positions)
        self._kept = _reached(exported, state.before)
        self._views = self._forward(exported)
        self._writes: list[_Write] = []
        self._order = {node: index for index, node in enumerate(exported.graph.nodes)}
        #: New values of parts of the state that are still to be looked at.
        self._pending: list[tuple[torch.fx.Node, StateView]] = []

    def finding(self, where: str) -> Diagnostic | None:
        self._pending.append((self._state.after, whole_state(self._state.before.meta["val"].dim())))
        seen = {self._state.before}
        while self._pending:
            node, view = self._pending.pop()
            if node not in seen:
                seen.add(node)
                self._visit(node, view)
        self._writes.sort(key=lambda write: self._order[write.node])
        wrong = [write for write in self._writes if write.kind == "wrong"]
        if not wrong:
            if any(write.kind == "positional" for write in self._writes):
                return None
            wrong = self._writes
        axes = {write.instead for write in wrong}
        (instead,) = axes if len(axes) == 1 else (frozenset[int](),)
        state, axis = self._state.name, self._axis
        if len(instead) == 1:
            hint = f"declare the axis that they index: axes={{{state!r}: {next(iter(instead))}}}"
        else:
            hint = f"index axis {axis} with `{self._name}`, or leave `{state}` out of the context"
        counted = Counter(write.text for write in wrong)
        lines = [f"{text} x{count}" if count > 1 else text for text, count in list(counted.items())[:10]]
        lines += [f"and {len(counted) - 10} more"] if len(counted) > 10 else []
        return _mismatch(
            f"axis {axis} of state `{state}` is not indexed by `{self._name}`",
            at(where, next((source_of(write.node) for write in wrong if source_of(write.node)), None)),
            f"writes whose index at axis {axis} derives from `{self._name}`",
            "\n".join(lines) or "no write",
            hint,
        )

    def _forward(self, exported: ExportedProgram) -> dict[torch.fx.Node, StateView]:
        """Every value that holds the state, or a part of it, before, between and after the writes."""
        views = {self._state.before: whole_state(self._state.before.meta["val"].dim())}
        for node in exported.graph.nodes:
            if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
                continue
            name = operator_name(node.target)
            if name == "aten.where.self":
                for branch in node.args[1:]:
                    if branch in views:
                        views[node] = aligned(views[branch], node.meta["val"].dim())
                        break
                continue
            target = arguments_of(node).get("self")
            if not isinstance(target, torch.fx.Node) or target not in views:
                continue
            if _is_write(name):
                views[node] = views[target]
            elif (view := view_of(node, views[target])) is not None:
                views[node] = view
        return views

    def _visit(self, node: torch.fx.Node, view: StateView) -> None:
        """`node` is the new value of the part of the state that `view` is."""
        name = operator_name(node.target) if node.op == "call_function" else ""
        if node not in self._views:
            self._note_value(node, node, view)
            return
        given = arguments_of(node)
        own = self._views[node]
        if name == "aten.where.self":
            self._visit_where(node, own)
        elif name == "aten.copy.default":
            self._visit_value(given["src"], own, node)
        elif name in _PART_WRITES:
            target = given["self"]
            part = part_of(given, self._views[target], target.meta["val"])
            if part is not self._views[target]:
                self._follow(target, self._views[target])
            self._visit_value(given["src"], part, node)
        elif name in _MASKED:
            self._note_mask(node, given["mask"])
            self._follow(given["self"], own)
        elif _is_write(name):
            self._note_index(node, name, given, own)
            self._follow(given["self"], own)
        else:
            self._follow(given["self"], self._views[given["self"]])

    def _follow(self, node: torch.fx.Node, view: StateView) -> None:
        # A list instead of a call: a model has thousands of writes behind each other.
        self._pending.append((node, view))

    def _visit_value(self, value: torch.fx.Node, part: StateView, write: torch.fx.Node) -> None:
        """`value` is stored as a whole in `part`: the part itself after a write of its own, or something else."""
        if value in self._views and self._views[value].path == part.path:
            self._follow(value, part)
        else:
            self._note_value(value, write, part)

    def _visit_where(self, node: torch.fx.Node, view: StateView) -> None:
        condition, *branches = node.args
        self._note_mask(node, condition)
        for branch in branches:
            assert isinstance(branch, torch.fx.Node)
            if branch in self._views and self._views[branch].path == view.path:
                self._follow(branch, view)
            elif branch in self._derived and branch in self._kept:
                self._note_value(branch, node, view)

    def _note_mask(self, node: torch.fx.Node, mask: Any) -> None:
        self._note(node, "positional" if mask in self._derived else "whole", "with a mask")

    def _note_value(self, value: torch.fx.Node, write: torch.fx.Node, part: StateView) -> None:
        """A value whose form says nothing: a blend of old and new when it is made of both."""
        removed = not part.indices_of(self._axis)
        if self._axis in part.fixed and (removed or value not in self._derived or value not in self._kept):
            self._note(write, "wrong", f"at fixed places of axis {self._axis}")
        else:
            self._note(write, "positional" if value in self._derived else "whole", "of the whole axis")

    def _note_index(self, node: torch.fx.Node, name: str, given: dict[str, Any], view: StateView) -> None:
        indices: list[tuple[int, torch.fx.Node]] = []
        if name.startswith("aten.index_put."):
            for dim, index in enumerate(given["indices"]):
                if index is None:
                    continue
                if index.meta["val"].dtype in (torch.bool, torch.uint8):
                    self._note_mask(node, index)
                    return
                indices.append((dim, index))
        else:
            indices.append((given["dim"] % max(len(view.axes), 1), given["index"]))
        by_positions = [dim for dim, index in indices if index in self._derived]
        declared = view.indices_of(self._axis)
        if set(declared) & set(by_positions):
            self._note(node, "positional", "")
            return
        instead = frozenset[int]().union(*(view.axes[dim] for dim in by_positions))
        if instead:
            places = " and ".join(f"axis {axis}" for axis in sorted(instead))
            self._note(node, "wrong", f"at {places}, which `{self._name}` indexes", instead)
        elif set(declared) & {dim for dim, _ in indices}:
            self._note(node, "wrong", f"at axis {self._axis}, whose index does not derive from `{self._name}`")
        elif self._axis in view.fixed:
            self._note(node, "wrong", f"at fixed places of axis {self._axis}")
        else:
            self._note(node, "whole", "of the whole axis")

    def _note(
        self,
        node: torch.fx.Node,
        kind: Literal["positional", "wrong", "whole"],
        how: str,
        instead: frozenset[int] = frozenset(),
    ) -> None:
        name = operator_name(node.target).split(".")[1] if node.op == "call_function" else node.op
        if kind == "whole":
            how += f", which does not depend on `{self._name}`"
        self._writes.append(_Write(node, kind, f"{name} {how}", instead))


def _is_write(name: str) -> bool:
    base = name.split(".")[1] if name.count(".") == 2 else ""
    return base in _INDEXED_ALONG_DIM or base in ("index_put", "copy") or name in _PART_WRITES or name in _MASKED


def _reached(exported: ExportedProgram, root: torch.fx.Node) -> set[torch.fx.Node]:
    """Values that are made of the root's elements. Its sizes are not its elements."""
    reached = {root}
    for node in exported.graph.nodes:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor | list | tuple):
            continue
        base = operator_name(node.target).split(".")[1] if "." in operator_name(node.target) else ""
        if base.endswith("_like") or base.startswith("new_"):
            continue
        if any(operand in reached for operand in node.all_input_nodes):
            reached.add(node)
    return reached
