"""SymInts to the postfix size expressions of program.proto, and their evaluation.

Terms of commutative operators are ordered by their own postfix form, so that the same expression gives
the same bytes whatever order sympy keeps it in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as torch_functions

PUSH, SYMBOL, ADD, SUBTRACT, MULTIPLY, FLOOR_DIVIDE, MODULO, MAXIMUM, MINIMUM = range(9)
MAXIMUM_TOKENS = 64

_FLOOR_DIVISIONS = (torch_functions.FloorDiv, torch_functions.CleanDiv)
_MODULOS = (torch_functions.Mod, torch_functions.PythonMod, sympy.Mod)
_MAXIMA = (sympy.Max, torch_functions.Max)
_MINIMA = (sympy.Min, torch_functions.Min)


class UnsupportedSize(Exception):
    """A size that the postfix form cannot express; the text is the expression."""


def postfix(size: int | torch.SymInt, symbols: Mapping[str, int]) -> list[int]:
    """The size as (opcode, operand) pairs, flattened. `symbols` maps torch's symbol names to indices."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
    elif isinstance(size, int):
        expression = sympy.Integer(size)
    else:
        raise UnsupportedSize(str(size))
    tokens = _tokens(expression, symbols)
    if len(tokens) > MAXIMUM_TOKENS:
        raise UnsupportedSize(f"{expression} (more than {MAXIMUM_TOKENS} terms)")
    return [part for token in tokens for part in token]


def _tokens(expression: Any, symbols: Mapping[str, int]) -> list[tuple[int, int]]:
    if expression.is_Integer:
        value = int(expression)
        if not -(2**63) <= value < 2**63:
            raise UnsupportedSize(str(expression))
        return [(PUSH, value)]
    if isinstance(expression, sympy.Symbol):
        if expression.name not in symbols:
            raise UnsupportedSize(str(expression))
        return [(SYMBOL, symbols[expression.name])]
    if isinstance(expression, sympy.Add):
        return _sum(expression, symbols)
    if isinstance(expression, sympy.Mul):
        return _fold([_tokens(factor, symbols) for factor in expression.args], MULTIPLY)
    if isinstance(expression, sympy.Pow | torch_functions.PowByNatural):
        base, exponent = expression.args
        if exponent.is_Integer and 0 < int(exponent) <= 8:
            return _fold([_tokens(base, symbols)] * int(exponent), MULTIPLY)
    if isinstance(expression, _FLOOR_DIVISIONS):
        return _binary(expression, FLOOR_DIVIDE, symbols)
    if isinstance(expression, _MODULOS):
        return _binary(expression, MODULO, symbols)
    if isinstance(expression, _MAXIMA):
        return _fold([_tokens(part, symbols) for part in expression.args], MAXIMUM)
    if isinstance(expression, _MINIMA):
        return _fold([_tokens(part, symbols) for part in expression.args], MINIMUM)
    raise UnsupportedSize(str(expression))


def _sum(expression: Any, symbols: Mapping[str, int]) -> list[tuple[int, int]]:
    """`a + b - c`: a term with a negative coefficient is subtracted, so `s - 1` reads as people write it."""
    added, taken = [], []
    for term in expression.args:
        coefficient = term.as_coeff_Mul()[0]
        if coefficient.is_Integer and coefficient < 0:
            taken.append(_tokens(-term, symbols))
        else:
            added.append(_tokens(term, symbols))
    if not added:
        added.append([(PUSH, 0)])
    # Symbols before constants: a key that puts PUSH last.
    tokens = _fold(added, ADD)
    for term in sorted(taken, key=_order):
        tokens += [*term, (SUBTRACT, 0)]
    return tokens


def _order(tokens: list[tuple[int, int]]) -> tuple[bool, list[tuple[int, int]]]:
    return (tokens[0][0] == PUSH, tokens)


def _fold(parts: list[list[tuple[int, int]]], opcode: int) -> list[tuple[int, int]]:
    first, *rest = sorted(parts, key=_order)
    tokens = list(first)
    for part in rest:
        tokens += [*part, (opcode, 0)]
    return tokens


def _binary(expression: Any, opcode: int, symbols: Mapping[str, int]) -> list[tuple[int, int]]:
    left, right = expression.args
    return [*_tokens(left, symbols), *_tokens(right, symbols), (opcode, 0)]


def evaluate(tokens: Sequence[int], values: Sequence[int]) -> int:
    """The size for one choice of symbol values."""
    stack: list[int] = []
    for opcode, operand in zip(tokens[::2], tokens[1::2], strict=True):
        if opcode == PUSH:
            stack.append(operand)
            continue
        if opcode == SYMBOL:
            stack.append(values[operand])
            continue
        right, left = stack.pop(), stack.pop()
        if opcode == ADD:
            stack.append(left + right)
        elif opcode == SUBTRACT:
            stack.append(left - right)
        elif opcode == MULTIPLY:
            stack.append(left * right)
        elif opcode == FLOOR_DIVIDE:
            stack.append(left // right)
        elif opcode == MODULO:
            stack.append(left % right)
        elif opcode == MAXIMUM:
            stack.append(max(left, right))
        elif opcode == MINIMUM:
            stack.append(min(left, right))
        else:
            raise ValueError(f"size opcode {opcode}")
    (result,) = stack
    return result


def describe(tokens: Sequence[int], names: Sequence[str]) -> str:
    """The size as people write it, for messages and the state table."""
    stack: list[str] = []
    for opcode, operand in zip(tokens[::2], tokens[1::2], strict=True):
        if opcode == PUSH:
            stack.append(str(operand))
        elif opcode == SYMBOL:
            stack.append(names[operand])
        else:
            right, left = stack.pop(), stack.pop()
            if opcode in (MAXIMUM, MINIMUM):
                stack.append(f"{'max' if opcode == MAXIMUM else 'min'}({left}, {right})")
            else:
                sign = {ADD: "+", SUBTRACT: "-", MULTIPLY: "*", FLOOR_DIVIDE: "//", MODULO: "%"}[opcode]
                stack.append(f"({left} {sign} {right})")
    text = stack[-1]
    return text[1:-1] if text.startswith("(") and text.endswith(")") and len(tokens) == 6 else text
