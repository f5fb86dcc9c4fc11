"""A decomposed FX graph to the nodes of program.proto."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.export import ExportedProgram

from . import _codes as codes
from . import program_pb2 as pb
from ._operators import OPERATORS
from .decomposition import operator_name
from .diagnostics import Diagnostic, ExportError
from .scalar_types import MAXIMUM_RANK, NUMBERS, SUPPORTED, describe, type_name
from .signature import Signature, at
from .sizes import SYMBOL, UnsupportedSize, postfix
from .sources import source_of
from .tables import SourceTable, SymbolTable

# Arguments that say how torch stores or schedules, not what is computed.
_DROPPED_ARGUMENTS = frozenset({"layout", "device", "pin_memory", "memory_format", "generator"})

# What a checked program cannot violate: types are in the graph, ranges are the symbols' own.
_DROPPED_OPERATORS = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)

# An argument that repeats the result's shape; -1 and symbols in it are replaced by what torch derived.
_SHAPE_ARGUMENTS = {
    "aten.view.default": "size",
    "aten.reshape.default": "shape",
    "aten._unsafe_view.default": "size",
    "aten.expand.default": "size",
}

_SUPPORTED_TYPES = ", ".join(type_name(dtype) for dtype in SUPPORTED) + f", strided, at most {MAXIMUM_RANK} axes"


class GraphWriter:
    """Writes one function's nodes. `write` throws `ExportError` with every finding of the function."""

    def __init__(
        self,
        function: pb.Function,
        exported: ExportedProgram,
        signature: Signature,
        symbols: SymbolTable,
        sources: SourceTable,
    ) -> None:
        self._function = function
        self._exported = exported
        self._signature = signature
        self._symbols = symbols
        self._sources = sources
        self._values: dict[torch.fx.Node, int] = {}
        self._parts: dict[torch.fx.Node, list[int]] = {}
        self._where = f"function `{function.name}`"
        self._findings: list[Diagnostic] = []
        self._unsupported: dict[str, list[str]] = {}
        #: Results of operators that have a type which is not supported: what each is, and where.
        self._mistyped: list[str] = []

    def write(self, used_constants: list[tuple[str, torch.fx.Node]]) -> dict[torch.fx.Node, int]:
        """Adds values and nodes; inputs first, then states, constants and results. Returns each node's value."""
        for name, node in self._signature.inputs:
            self._function.inputs.add(name=name, value=self._add_value(node, node.meta["val"], f"input `{name}`"))
        for state in self._signature.states:
            self._add_value(state.before, state.before.meta["val"], f"state `{state.source_name}`")
        for target, node in used_constants:
            self._add_value(node, node.meta["val"], f"`{target}`")

        self._check_symbols_are_given()
        live = self._live_nodes()
        for node in self._exported.graph.nodes:
            if node.op == "call_function":
                self._check_effects(node)
                if node in live and operator_name(node.target) != "with_effects":
                    self._write_node(node)
            elif node.op == "get_attr" and node in live:
                self._unsupported.setdefault(f"get_attr {node.target}", []).append(source_of(node) or "unknown line")
        self._report_unsupported()
        if self._mistyped:
            count = len(self._mistyped)
            self._findings.append(
                Diagnostic(
                    codes.UNSUPPORTED_TENSOR_TYPE,
                    f"{count} operator has a result of a type that is not supported"
                    if count == 1
                    else f"{count} operators have results of a type that is not supported",
                    self._where,
                    expected=_SUPPORTED_TYPES,
                    found=_counted(self._mistyped),
                )
            )
        if self._findings:
            raise ExportError(self._findings)
        for name, node in self._signature.outputs:
            self._function.outputs.add(name=name, value=self._values[node])
        return self._values

    def _check_symbols_are_given(self) -> None:
        """A caller says what a symbol is by the length of an axis, so one axis has to be the symbol itself."""
        callers = [named.value for named in self._function.inputs]
        callers += [self._values[state.before] for state in self._signature.states]
        shapes = [size.postfix for value in callers for size in self._function.values[value].shape]
        given = {size[1] for size in shapes if len(size) == 2 and size[0] == SYMBOL}
        used = {
            operand for size in shapes for code, operand in zip(size[::2], size[1::2], strict=True) if code == SYMBOL
        }
        for name, index in self._symbols.indices.items():
            if index in used - given:
                self._findings.append(
                    Diagnostic(
                        codes.UNSUPPORTED_SIZE,
                        f"dynamic size `{self._symbols.names[name]}` is the length of no axis by itself",
                        self._where,
                        expected="an input with an axis of exactly this size",
                        found="expressions of it only, such as 2 * size",
                        hint="give the axis a Dim of its own, or pass another input that has this size",
                    )
                )

    def _live_nodes(self) -> set[torch.fx.Node]:
        stack = [node for _, node in self._signature.outputs] + [state.after for state in self._signature.states]
        live: set[torch.fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in live:
                continue
            live.add(node)
            # Sizes reach a node as expressions, so what computes them is not needed.
            stack += [operand for operand in node.all_input_nodes if not _is_size(operand)]
        return live

    def _check_effects(self, node: torch.fx.Node) -> None:
        """Assertions: gone when the ranges imply them, unsupported when they look at values."""
        name = operator_name(node.target)
        if name == "with_effects":
            effect = next((operator_name(a) for a in node.args if isinstance(a, torch._ops.OpOverload)), name)
            self._unsupported.setdefault(effect, []).append(source_of(node) or "unknown line")
            return
        if name in _DROPPED_OPERATORS or node.users or name in OPERATORS:
            return
        if name == "aten._assert_scalar.default" and _is_always_true(node.args[0]):
            return
        if "assert" in name:
            self._unsupported.setdefault(name, []).append(source_of(node) or "unknown line")

    def _write_node(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(index, int)
            if source in self._parts:
                self._values[node] = self._parts[source][index]
            return
        name = operator_name(node.target)
        if name not in OPERATORS or _has_mask_index(node):
            what = name if name not in OPERATORS else f"{name} with a mask"
            self._unsupported.setdefault(what, []).append(source_of(node) or "unknown line")
            return
        written = pb.Node(op=name, source=self._sources.index_of(source_of(node)))
        schema = cast(torch._ops.OpOverload, node.target)._schema
        given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
        try:
            for argument in schema.arguments:
                if argument.name in _DROPPED_ARGUMENTS:
                    continue
                value = given.get(argument.name, argument.default_value)
                self._write_argument(written.arguments.add(name=argument.name), argument, value, node, name)
        except UnsupportedSize as error:
            self._refuse_size(node, str(error))
            return
        except KeyError:
            # An operand is of an operator that was refused already.
            return
        value = node.meta["val"]
        if isinstance(value, list | tuple):
            self._parts[node] = [self._add_value(None, part, f"`{name}`", node) for part in value]
            written.results.extend(self._parts[node])
        else:
            written.results.append(self._add_value(node, value, f"`{name}`", node))
        self._function.nodes.append(written)

    def _write_argument(
        self, target: pb.Argument, argument: torch.Argument, value: Any, node: torch.fx.Node, name: str
    ) -> None:
        declared = str(argument.type)
        if argument.name == _SHAPE_ARGUMENTS.get(name):
            self._set_sizes(target, node.meta["val"].shape)
        elif argument.name == "dtype":
            # None means "as derived": written out, so that a reader needs no promotion rule here.
            target.scalar_type = NUMBERS[value if isinstance(value, torch.dtype) else node.meta["val"].dtype]
        elif value is None:
            target.none = True
        elif isinstance(value, torch.fx.Node) and not _is_size(value):
            target.tensor = self._values[value]
        elif isinstance(value, bool):
            target.flag = value
        elif isinstance(value, list | tuple):
            self._write_list(target, declared, value)
        elif isinstance(value, str):
            target.text = value
        elif isinstance(value, float) or (isinstance(value, int) and "float" in declared):
            target.number = float(value)
        else:
            target.size.CopyFrom(self._size(value))

    def _write_list(self, target: pb.Argument, declared: str, value: Any) -> None:
        if "Tensor" in declared:
            target.tensors.tensors.extend(-1 if item is None else self._values[item] for item in value)
            target.tensors.SetInParent()
        elif "float" in declared:
            target.numbers.numbers.extend(float(item) for item in value)
            target.numbers.SetInParent()
        else:
            self._set_sizes(target, value)

    def _set_sizes(self, target: pb.Argument, sizes: Any) -> None:
        target.sizes.SetInParent()
        target.sizes.sizes.extend(self._size(size) for size in sizes)

    def _size(self, size: Any) -> pb.Size:
        if isinstance(size, torch.fx.Node):
            size = size.meta["val"]
        if isinstance(size, torch.dtype | torch.SymFloat | complex):
            raise UnsupportedSize(str(size))
        return pb.Size(postfix=postfix(size, self._symbols.indices))

    def _add_value(
        self, node: torch.fx.Node | None, value: torch.Tensor, what: str, source: torch.fx.Node | None = None
    ) -> int:
        index = len(self._function.values)
        added = self._function.values.add()
        if node is not None:
            self._values[node] = index
        line = source_of(source) if source is not None else None
        if value.dtype not in SUPPORTED or value.dim() > MAXIMUM_RANK or value.layout != torch.strided:
            found = describe(value.dtype, value.shape)
            found += "" if value.layout == torch.strided else f", {value.layout}"
            if source is not None:
                self._mistyped.append(f"{found} of {what}, {line or 'unknown line'}")
                return index
            self._findings.append(
                Diagnostic(
                    codes.UNSUPPORTED_TENSOR_TYPE,
                    f"{what} has a type that is not supported",
                    self._where,
                    expected=_SUPPORTED_TYPES,
                    found=found,
                )
            )
            return index
        added.scalar_type = NUMBERS[value.dtype]
        try:
            added.shape.extend(self._size(size) for size in value.shape)
        except UnsupportedSize as error:
            self._refuse_size(source if source is not None else node, str(error))
        return index

    def _refuse_size(self, node: torch.fx.Node | None, expression: str) -> None:
        line = source_of(node) if node is not None else None
        # torch names a size that comes out of a tensor's values u0, u1 and so on.
        depends_on_data = any(part.startswith("u") and part[1:].isdigit() for part in _words(expression))
        finding = Diagnostic(
            codes.DATA_DEPENDENT_SIZE if depends_on_data else codes.UNSUPPORTED_SIZE,
            "a size depends on the values of a tensor" if depends_on_data else "a size cannot be expressed",
            at(self._where, line),
            expected="sizes known from the inputs' shapes"
            if depends_on_data
            else "+, -, *, //, %, max and min of sizes",
            found=expression,
            hint="index with a one-dimensional tensor (position[None]), or use a fixed size and torch.where"
            if depends_on_data
            else None,
        )
        if finding not in self._findings:
            self._findings.append(finding)

    def _report_unsupported(self) -> None:
        for name, places in sorted(self._unsupported.items()):
            self._findings.append(
                Diagnostic(
                    codes.UNSUPPORTED_OPERATOR,
                    f"operator `{name}` is not supported ({len(places)} " + ("use)" if len(places) == 1 else "uses)"),
                    self._where,
                    expected="an operator of schemas/ops.json",
                    found=_counted(places),
                    hint="call module.eval() before exporting"
                    if "dropout" in name
                    else "rewrite these lines with supported operators",
                )
            )


def _counted(places: Sequence[str]) -> str:
    """Each place once, on a line of its own, with how often it was found; the first ten."""
    counted = Counter(places)
    lines = [f"{place} x{count}" if count > 1 else place for place, count in list(counted.items())[:10]]
    if len(counted) > 10:
        lines.append(f"and {len(counted) - 10} more lines")
    return "\n".join(lines)


def _has_mask_index(node: torch.fx.Node) -> bool:
    """Whether a write is indexed with a tensor of bool, which only `decomposition` could have made a `where` of."""
    if operator_name(node.target) != "aten.index_put.default":
        return False
    indices = cast(Sequence[torch.fx.Node | None], node.args[1])
    return any(index is not None and index.meta["val"].dtype == torch.bool for index in indices)


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def _is_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _is_always_true(condition: Any) -> bool:
    value = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else condition
    if isinstance(value, torch.SymBool):
        known = value.node.shape_env._maybe_evaluate_static(value.node.expr)
        return known is not None and bool(known)
    return bool(value)
