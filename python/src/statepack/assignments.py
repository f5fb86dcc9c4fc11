"""Which attributes the source code behind a node assigns: what is left of a mutation that the export dropped."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass

_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Assignment:
    """One attribute of `self` that one statement assigns."""

    attribute: str
    #: The statement as text, and its line.
    statement: str
    file: str
    line: int
    #: First and last line of the function that it is in.
    function: tuple[int, int]

    @property
    def place(self) -> str:
        """`model.py:41`"""
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"

    def lines_of(self, stack_trace: str) -> list[int]:
        """Lines of a trace that are in the same function."""
        first, last = self.function
        lines = [int(frame["line"]) for frame in _FRAME.finditer(stack_trace) if frame["file"] == self.file]
        return [line for line in lines if first <= line <= last]


def assigned_attributes(stack_trace: str) -> Iterator[Assignment]:
    """Attributes of `self`, by whatever name, that get the value which these lines compute.

    Found are `self.c = ...`, `self.c += ...` and `self.a, self.b = ...` on one line or several, and what first goes
    to a variable: `h = f(self.h, x)` with `self.h = h` behind it. A conditional assignment counts only when it
    computes the value itself: it may not have run.
    """
    for frame in _FRAME.finditer(stack_trace):
        yield from _assignments_at(frame["file"], int(frame["line"]))


@functools.lru_cache(maxsize=4096)
def _assignments_at(file: str, line: int) -> tuple[Assignment, ...]:
    for function in _functions(file):
        if not function.lineno <= line <= (function.end_lineno or 0):
            continue
        found: list[Assignment] = []
        borders = (function.lineno, function.end_lineno or function.lineno)
        variables: set[str] = set()
        for statement in ast.walk(function):
            if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign) and (
                statement.lineno <= line <= (statement.end_lineno or 0)
            ):
                for target in _targets(statement):
                    if attribute := _attribute(target):
                        found.append(Assignment(attribute, _text(statement), file, statement.lineno, borders))
                    elif isinstance(target, ast.Name):
                        variables.add(target.id)
        for statement in function.body:
            if statement.lineno <= line:
                continue
            if any(isinstance(part, ast.Return) for part in ast.walk(statement)):
                break
            found += [
                Assignment(attribute, _text(statement), file, statement.lineno, borders)
                for attribute in _stored(statement, variables)
            ]
            if isinstance(statement, ast.Assign):
                # The name stands for something else from here on.
                variables -= {target.id for target in _targets(statement) if isinstance(target, ast.Name)}
        if found:
            return tuple(found)
    return ()


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> tuple[ast.FunctionDef, ...]:
    """The functions of a file, inner ones first."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return tuple(sorted(found, key=lambda node: (node.end_lineno or 0) - node.lineno))


def _targets(statement: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Iterator[ast.expr]:
    pending: list[ast.expr] = list(statement.targets) if isinstance(statement, ast.Assign) else [statement.target]
    while pending:
        target = pending.pop(0)
        if isinstance(target, ast.Tuple | ast.List):
            pending[:0] = target.elts
        else:
            yield target


def _attribute(target: ast.expr) -> str | None:
    """`a.b` of `self.a.b`."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return ".".join(names) if names and isinstance(target, ast.Name) else None


def _stored(statement: ast.stmt, variables: set[str]) -> Iterator[str]:
    """Attributes that the statement sets to one of the variables."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            pairs = [(target, statement.value)]
            if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
                pairs = list(zip(target.elts, statement.value.elts, strict=False))
            for one, value in pairs:
                attribute = _attribute(one)
                if attribute and isinstance(value, ast.Name) and value.id in variables:
                    yield attribute
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        match statement.value:
            case ast.Call(func=ast.Name("setattr"), args=[ast.Name(), ast.Constant(str(name)), ast.Name(variable)]):
                if variable in variables:
                    yield name


def _text(statement: ast.stmt) -> str:
    return ast.unparse(statement)
