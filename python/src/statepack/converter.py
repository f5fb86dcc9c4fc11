"""ExportedProgram to exported.pb, with the call shapes of Core AI's converter."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from . import __version__, writing
from . import _codes as codes
from . import program_pb2 as pb
from .context import Context
from .context_checks import CheckedContext, check_context
from .decomposition import get_decomp_table
from .diagnostics import Diagnostic, ExportError
from .graph import GraphWriter
from .modules import (
    EagerModule,
    attribute_of,
    owner_of,
    shared_groups,
    shared_storage_diagnostic,
    version_of,
)
from .precision import bits_equal, written_by
from .recording import STEPS, Replayer, StepRun, serialise, step_candidates
from .replay import solve_symbols
from .scalar_types import DTYPES, NUMBERS, describe
from .signature import (
    Signature,
    StateEntry,
    at,
    check_arguments,
    check_name,
    find_lost_assignments,
    read_signature,
    tensor_of,
)
from .sizes import describe as describe_size
from .sizes import evaluate
from .sources import source_of
from .state_table import state_table
from .tables import SourceTable, SymbolTable, TensorTable, element_bytes

#: Arguments of one step: forward()'s positional arguments, or a mapping from input name to tensor.
StepInputs = Sequence[Any] | Mapping[str, torch.Tensor]

FORMAT_MAJOR, FORMAT_MINOR = 1, 0


@dataclass
class _Entry:
    """One function before the program is put together."""

    name: str
    exported: ExportedProgram
    signature: Signature
    #: State source name -> value before anything ran.
    initial: dict[str, torch.Tensor]
    #: Flat example arguments in call order.
    examples: list[Any] | None
    eager: nn.Module
    recording_inputs: Sequence[StepInputs] | None
    context: CheckedContext | None


class TorchConverter:
    """Collects exported programs that become the functions of one `exported.pb`.

        program = TorchConverter().add_exported_program(exported, state_names=["keyCache"]).to_program()
        program.save("exported.pb")

    Programs added to one converter share states and weights: states by name, weights by content.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add_exported_program(
        self,
        exported: ExportedProgram,
        input_names: Sequence[str] | None = None,
        state_names: Sequence[str] | Mapping[str, str] | None = None,
        output_names: Sequence[str] | None = None,
        entrypoint_name: str = "main",
        *,
        recording_inputs: Sequence[StepInputs] | None = None,
        initial_state: str = "untouched",
        module: nn.Module | None = None,
        context: Context | None = None,
    ) -> TorchConverter:
        """Adds one function and returns the converter.

        `state_names`: one name per state, mutated buffers in registration order and then mutated inputs, or a
        mapping from qualified buffer name to name. The default name is the qualified buffer name.
        `recording_inputs`: arguments of the steps that are replayed and recorded, three at least; by default
        they are made from the example arguments.
        `initial_state="current"` accepts states that were written before they were exported.
        `module`: the module itself, to be replayed instead of `exported.module()`. Only then can a mutation
        that the export lost without a trace be found.
        `context`: which input carries positions, and which axes of the states they index.

        Throws `ExportError` with every finding about this function. Nothing is run here.
        """
        where = f"function `{entrypoint_name}`"
        check_arguments(where, input_names, state_names, output_names, recording_inputs, initial_state)
        problem = check_name("function", entrypoint_name, where)
        if problem is None and any(entry.name == entrypoint_name for entry in self._entries):
            problem = Diagnostic(
                codes.DUPLICATE_NAME,
                f"function name `{entrypoint_name}` is given twice",
                where,
                expected="a different entrypoint_name for each exported program",
                found=", ".join([*(entry.name for entry in self._entries), entrypoint_name]),
            )
        if problem is not None:
            raise ExportError(problem)

        examples = None
        if exported.example_inputs is not None:
            examples = [
                leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
                for leaf in pytree.tree_leaves(exported.example_inputs)
            ]
        decomposed = _decompose(exported, where, module)
        lost = find_lost_assignments(decomposed, entrypoint_name, replayed=module is not None)
        if lost:
            raise ExportError(lost)
        signature = read_signature(
            decomposed,
            function=entrypoint_name,
            input_names=input_names,
            state_names=state_names,
            output_names=output_names,
        )
        checked = None if context is None else check_context(context, decomposed, signature, where)
        if checked is not None and checked.findings:
            raise ExportError(checked.findings)
        _check_sharing(decomposed, signature, where, module)
        initial = _initial_values(decomposed, signature, examples, where, initial_state)
        self._entries.append(
            _Entry(
                entrypoint_name,
                decomposed,
                signature,
                initial,
                examples,
                module if module is not None else _detached_module(exported),
                recording_inputs,
                checked,
            )
        )
        return self

    def to_program(self) -> ExportedModel:
        """Puts the functions together, replays each beside eager PyTorch, and returns what can be saved.

        Costs at least three eager calls of each function, and as many again of the program in float32 and in
        float64. Throws `ExportError`; nothing has been written then.
        """
        if not self._entries:
            raise ExportError(
                Diagnostic(
                    codes.NAME_COUNT_MISMATCH,
                    "no exported program was added",
                    expected="add_exported_program(...) at least once",
                )
            )
        return _Assembly(self._entries).run()


class ExportedModel:
    """A checked program with its recording, ready to be saved."""

    def __init__(self, program: pb.Program, recording: pb.Recording, tensors: list[torch.Tensor]) -> None:
        self._program = program
        self._recording = recording
        self._tensors = tensors

    @property
    def program(self) -> pb.Program:
        """The program as program.proto has it; tensors' data is filled in by `save`."""
        return self._program

    @property
    def recording(self) -> pb.Recording:
        return self._recording

    def __repr__(self) -> str:
        functions = []
        for function in self._program.functions:
            inputs, outputs = (", ".join(named.name for named in side) for side in (function.inputs, function.outputs))
            states = ", ".join(self._program.states[use.state].name for use in function.states)
            functions.append(f"{function.name}({inputs}{'; states ' if states else ''}{states}) -> {outputs or None}")
        return f"<ExportedModel {', '.join(functions)}>"

    def state_table(self) -> str:
        """Name, buffer, type, size, initial value and update of every state, in the words of convert and inspect."""
        return state_table(self._program)

    def save(self, path: str | os.PathLike[str], *, quiet: bool = False) -> list[str]:
        """Writes the file, with its weights beside it when they exceed 1 MiB, and prints the state table.

        Both files are complete before either takes its name; on `ExportError` an old file stays. Returns the
        paths written.
        """
        written = writing.write(path, self._program, self._recording, self._tensors)
        if not quiet:
            print(self.state_table())
            for file in written:
                print(f"wrote {os.fspath(file)} ({os.path.getsize(file)} bytes)")
        return written


def _decompose(exported: ExportedProgram, where: str, module: nn.Module | None) -> ExportedProgram:
    constants = _written_constants(exported)
    if constants:
        raise ExportError(
            [_constant_diagnostic(exported, module, target, where, source) for target, source in constants]
        )
    try:
        with quiet_torch():
            return exported.run_decompositions(get_decomp_table())
    except ExportError:
        raise
    except Exception as error:
        groups = shared_groups(_all_tensors(exported, module))
        if groups and isinstance(error, AssertionError):
            raise ExportError([shared_storage_diagnostic(group, where) for group in groups]) from error
        text = str(error)
        match = re.search(r"Constant (\S+) is mutated in the forward", text)
        if match:
            raise ExportError(_constant_diagnostic(exported, module, match.group(1), where, None)) from error
        raise ExportError(torch_failure("torch cannot decompose the exported program", where, error)) from error


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Without the one warning that torch 2.13 gives about its own code: every copied exported program shows it."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning, r"copyreg"
        )
        yield


def torch_failure(message: str, where: str, error: Exception) -> Diagnostic:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Diagnostic(
        codes.TORCH_EXPORT_FAILED,
        message,
        where,
        found="\n".join([f"{type(error).__name__}: {(lines or [''])[0]}", *lines[1:8]]),
    )


def _written_constants(exported: ExportedProgram) -> list[tuple[str, str | None]]:
    """Lifted constants that an in-place operator writes, with the line, on the graph before decomposition."""
    roots = {
        spec.arg.name: str(spec.target)
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.CONSTANT_TENSOR
    }
    aliases: dict[torch.fx.Node, str] = {}
    found: dict[str, str | None] = {}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in roots:
            aliases[node] = roots[node.name]
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
        for argument in schema.arguments:
            operand = given.get(argument.name)
            if argument.alias_info is None or not isinstance(operand, torch.fx.Node) or operand not in aliases:
                continue
            if argument.alias_info.is_write:
                found.setdefault(aliases[operand], source_of(node))
            # An operator that may copy, such as `to`, is taken to be a view only when it keeps the type.
            value, source = node.meta.get("val"), operand.meta.get("val")
            if isinstance(value, torch.Tensor) and isinstance(source, torch.Tensor) and value.dtype == source.dtype:
                aliases[node] = aliases[operand]
    return list(found.items())


def _constant_diagnostic(
    exported: ExportedProgram, module: nn.Module | None, target: str, where: str, source: str | None
) -> Diagnostic:
    name = target
    constant = exported.constants.get(target)
    if module is not None and isinstance(constant, torch.Tensor):
        name = attribute_of(module, constant) or target
    own_name = re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_") or "cache"
    return Diagnostic(
        codes.MUTATED_CONSTANT,
        f"`{name}` is written by forward(), but it is not a registered buffer",
        at(where, source),
        expected="a registered buffer or an argument of forward()",
        found="a tensor attribute that torch.export lifted as a constant" + (f" `{target}`" if target != name else ""),
        hint=f"register it: self.register_buffer({own_name!r}, tensor, persistent=False)",
    )


def _all_tensors(exported: ExportedProgram, module: nn.Module | None) -> dict[str, torch.Tensor]:
    """Every registered tensor and example argument by the name people know it under."""
    tensors: dict[str, torch.Tensor] = dict(exported.state_dict)
    for target, value in exported.constants.items():
        if isinstance(value, torch.Tensor):
            tensors.setdefault(target, value)
    if module is not None:
        tensors |= dict(module.named_parameters(remove_duplicate=False))
        tensors |= dict(module.named_buffers(remove_duplicate=False))
    if exported.example_inputs is not None:
        names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
        for name, leaf in zip(names, pytree.tree_leaves(exported.example_inputs), strict=False):
            if isinstance(leaf, torch.Tensor):
                tensors.setdefault(name, leaf)
    return tensors


def _check_sharing(exported: ExportedProgram, signature: Signature, where: str, module: nn.Module | None) -> None:
    written = {state.source_name for state in signature.states}
    groups = [group for group in shared_groups(_all_tensors(exported, module)) if written & set(group)]
    if groups:
        raise ExportError([shared_storage_diagnostic(group, where) for group in groups])


def _initial_values(
    decomposed: ExportedProgram,
    signature: Signature,
    examples: list[Any] | None,
    where: str,
    initial_state: str,
) -> dict[str, torch.Tensor]:
    """Clones of the states as they are, refused where they are known to have been written."""
    findings = []
    values: dict[str, torch.Tensor] = {}
    call_names = [name for _, name in signature.call_order]
    for state in signature.states:
        if state.is_input:
            if examples is None:
                findings.append(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"state `{state.name}` has no initial value: the exported program has no example_inputs",
                        where,
                        hint="export again in this process, or make the input a registered buffer",
                    )
                )
                continue
            values[state.source_name] = examples[call_names.index(state.name)]
            continue
        tensor = tensor_of(decomposed, state.source_name)
        values[state.source_name] = tensor.detach().clone()
        # Tracing runs on fake tensors, so whatever was counted here was no part of the export: the module
        # ran, `exported.module()` ran, or something else wrote. Only the author knows whether that was meant.
        # All zeros are what a cache starts as, however they came there: load_state_dict writes them, too.
        writes = version_of(tensor)
        if initial_state != "current" and writes and torch.count_nonzero(tensor):
            findings.append(
                dirty_state(state.source_name, where, f"{writes} in-place writes since the tensor was created")
            )
    if findings:
        raise ExportError(findings)
    return values


def dirty_state(buffer: str, where: str, found: str) -> Diagnostic:
    return Diagnostic(
        codes.DIRTY_INITIAL_STATE,
        f"state `{buffer}` was written before it was exported, so its initial value may not be the intended one",
        where,
        expected="a buffer as it was registered, which nothing has run on",
        found=found,
        hint='export a fresh module, or pass initial_state="current" to keep the present values on purpose',
    )


def _detached_module(exported: ExportedProgram) -> nn.Module:
    """`exported.module()` whose buffers are copies, so that running it leaves the program's own alone."""
    with quiet_torch():
        module = exported.module(check_guards=False)
    for name, buffer in list(module.named_buffers(remove_duplicate=False)):
        owner, own_name = owner_of(module, name)
        owner._buffers[own_name] = buffer.detach().clone()
    return module


class _Assembly:
    """Builds one program from its functions."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries
        self._program = pb.Program(
            format_major=FORMAT_MAJOR,
            format_minor=FORMAT_MINOR,
            producer=f"statepack {__version__}, torch {torch.__version__.split('+')[0]}",
        )
        self._tensors = TensorTable(self._program)
        self._sources = SourceTable(self._program)
        self._initial: dict[str, torch.Tensor] = {}
        self._declared_by: dict[str, str] = {}
        self._state_indices: dict[str, int] = {}

    def run(self) -> ExportedModel:
        self._adopt_read_states()
        findings: list[Diagnostic] = []
        for entry in self._entries:
            try:
                self._add_function(entry)
            except ExportError as error:
                findings += error.diagnostics
        if findings:
            raise ExportError(findings)
        self._program_functions = {function.name: function for function in self._program.functions}
        recording = self._replay()
        return ExportedModel(self._program, recording, self._tensors.values)

    def _adopt_read_states(self) -> None:
        """A buffer that another function writes is a state of the functions that only read it, too."""
        names: dict[str, StateEntry] = {}
        for entry in self._entries:
            for state in entry.signature.states:
                if not state.is_input:
                    names.setdefault(state.source_name, state)
        for entry in self._entries:
            kept = []
            for target, node in entry.signature.constants:
                writer = names.get(target)
                if writer is None:
                    kept.append((target, node))
                    continue
                entry.signature.states.append(
                    StateEntry(writer.name, target, False, writer.named_by_author, node, node)
                )
                entry.initial[target] = tensor_of(entry.exported, target).detach().clone()
            entry.signature.constants = kept

    def _add_function(self, entry: _Entry) -> None:
        function = self._program.functions.add(name=entry.name)
        symbols = SymbolTable(self._program, entry.exported, entry.name)
        graph = GraphWriter(function, entry.exported, entry.signature, symbols, self._sources)
        used = [(target, node) for target, node in entry.signature.constants if node.users]
        values = graph.write(used)
        for target, node in used:
            tensor = tensor_of(entry.exported, target)
            function.constants.add(value=values[node], tensor=self._tensors.index_of(target, tensor))
        for target, node in entry.signature.constants:
            if not node.users:
                self._tensors.note_alias(target, tensor_of(entry.exported, target))
        for state in entry.signature.states:
            index = self._state_index(entry, state, function.values[values[state.before]])
            use = function.states.add(state=index, before=values[state.before], after=values[state.after])
            use.written_by = written_by(function, use)
        if entry.context is not None:
            entry.context.write(function, self._program)

    def _state_index(self, entry: _Entry, state: StateEntry, value: pb.Value) -> int:
        initial = entry.initial[state.source_name]
        known = self._state_indices.get(state.name)
        if known is not None:
            self._check_agreement(entry, state, value, initial, self._program.states[known])
            return known
        added = self._program.states.add(
            name=state.name,
            source=pb.State.INPUT if state.is_input else pb.State.BUFFER,
            source_name=state.source_name,
            scalar_type=value.scalar_type,
            shape=value.shape,
            named_by_author=state.named_by_author,
        )
        data = element_bytes(initial)
        width = initial.element_size()
        if not data:
            added.initial_splat = bytes(width)
        elif data == data[:width] * (len(data) // width):
            added.initial_splat = data[:width]
        elif any(len(size.postfix) != 2 or size.postfix[0] != 0 for size in value.shape):
            raise ExportError(
                Diagnostic(
                    codes.STATE_CONFLICT,
                    f"state `{state.name}` has a dynamic size and an initial value of a fixed one",
                    f"function `{entry.name}`",
                    expected="one repeated element, for instance torch.zeros",
                    found=f"different elements in the example argument {describe(initial.dtype, initial.shape)}",
                    hint="pass torch.zeros as the example",
                )
            )
        else:
            added.initial_tensor = self._tensors.index_of(state.source_name, initial) + 1
            added.initial_digest = hashlib.sha256(data).digest()
        index = len(self._program.states) - 1
        self._state_indices[state.name] = index
        self._initial[state.name] = initial
        self._declared_by[state.name] = entry.name
        return index

    def _check_agreement(
        self, entry: _Entry, state: StateEntry, value: pb.Value, initial: torch.Tensor, first: pb.State
    ) -> None:
        names = [symbol.name for symbol in self._program.symbols]

        def text(scalar_type: int, shape: Any) -> str:
            return describe(DTYPES[scalar_type], [describe_size(size.postfix, names) for size in shape])

        expected, found = text(first.scalar_type, first.shape), text(value.scalar_type, value.shape)
        if expected == found:
            other = self._initial[state.name]
            if other.shape == initial.shape and bool(bits_equal(other, initial).all()):
                return
            expected, found = f"initial value of function `{self._declared_by[state.name]}`", "another one"
        raise ExportError(
            Diagnostic(
                codes.STATE_CONFLICT,
                f"functions `{self._declared_by[state.name]}` and `{entry.name}` disagree about state `{state.name}`",
                f"function `{entry.name}`",
                expected=expected,
                found=found,
                hint="export both from one module, or give the states different names",
            )
        )

    def _replay(self) -> pb.Recording:
        constants = dict(enumerate(self._tensors.values))
        replayer = Replayer(self._program, constants, self._initial)
        recording = pb.Recording()
        runs: list[StepRun] = []
        for entry in self._entries:
            replayer.restart()
            runs = self._replay_function(entry, replayer)
            recording.replays.extend(serialise(runs, share=len(self._entries)).replays)
        return recording

    def _replay_function(self, entry: _Entry, replayer: Replayer) -> list[StepRun]:
        function = self._program_functions[entry.name]
        eager = EagerModule(
            entry.eager,
            entry.exported.module_call_graph[0].signature.in_spec,
            {state.name: state.source_name for state in entry.signature.states if not state.is_input},
            entry.signature.call_order,
            entry.signature.return_order,
        )
        if entry.recording_inputs is not None:
            steps = [
                self._given_inputs(entry, function, given, number)
                for number, given in enumerate(entry.recording_inputs, 1)
            ]
            if len(steps) < STEPS:
                raise ExportError(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"recording_inputs has {len(steps)} steps",
                        f"function `{entry.name}`",
                        expected=f"at least {STEPS} steps",
                        found=str(len(steps)),
                    )
                )
            return [replayer.step(function, eager, step, number) for number, step in enumerate(steps, 1)]
        if entry.examples is None:
            raise ExportError(
                Diagnostic(
                    codes.REPLAY_FAILED,
                    "the exported program has no example_inputs to replay",
                    f"function `{entry.name}`",
                    hint=f"pass recording_inputs with at least {STEPS} tuples of arguments",
                )
            )
        example = {
            name: leaf
            for (kind, name), leaf in zip(entry.signature.call_order, entry.examples, strict=True)
            if kind == "input"
        }
        runs = [replayer.step(function, eager, example, 1)]
        previous = example
        for number in range(2, STEPS + 1):
            candidates = step_candidates(self._program, function, example, previous, number)
            chosen = candidates[-1]
            for candidate in candidates:
                try:
                    replayer.eager_step(function, eager, candidate)
                except Exception:  # Whatever eager PyTorch throws, these inputs are not the ones.
                    continue
                chosen = candidate
                break
            runs.append(replayer.step(function, eager, chosen, number))
            previous = chosen
        return runs

    def _given_inputs(
        self, entry: _Entry, function: pb.Function, given: StepInputs, number: int
    ) -> dict[str, torch.Tensor]:
        where = f"function `{entry.name}`, recording_inputs step {number}"
        order = entry.signature.call_order
        if isinstance(given, Mapping):
            found = dict(given)
        else:
            leaves = pytree.tree_leaves(tuple(given))
            if len(leaves) != len(order):
                raise ExportError(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"{len(leaves)} arguments for {len(order)}",
                        where,
                        expected=", ".join(name or "None" for _, name in order),
                        found=str(len(leaves)),
                    )
                )
            found = {name: leaf for (kind, name), leaf in zip(order, leaves, strict=True) if kind == "input"}
        findings = []
        wanted = {named.name: named.value for named in function.inputs}
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            if name not in wanted or not isinstance(found.get(name), torch.Tensor):
                findings.append(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"input `{name}` is " + ("missing" if name in wanted else "unknown"),
                        where,
                        expected=", ".join(wanted),
                        found=", ".join(found),
                    )
                )
        if findings:
            raise ExportError(findings)
        shapes = {value: found[name].shape for name, value in wanted.items()}
        for name, value in wanted.items():
            declared = function.values[value]
            tensor = found[name]
            if tensor.dim() == len(declared.shape):
                symbols = solve_symbols(
                    self._program,
                    function,
                    {v: s for v, s in shapes.items() if len(s) == len(function.values[v].shape)},
                )
                shape = [evaluate(size.postfix, symbols) for size in declared.shape]
            else:
                shape = []
            if NUMBERS[tensor.dtype] != declared.scalar_type or list(tensor.shape) != shape:
                names = [symbol.name for symbol in self._program.symbols]
                findings.append(
                    Diagnostic(
                        codes.REPLAY_FAILED,
                        f"input `{name}` has another type",
                        where,
                        expected=describe(
                            DTYPES[declared.scalar_type],
                            [describe_size(size.postfix, names) for size in declared.shape],
                        ),
                        found=describe(tensor.dtype, tensor.shape),
                    )
                )
        if findings:
            raise ExportError(findings)
        return {name: found[name].detach().clone() for name in wanted}
