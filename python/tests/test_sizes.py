"""Sizes mean the same in sympy, in postfix and when they are evaluated."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Mod, PowByNatural

import statepack
from conftest import refusal
from statepack import _codes as codes
from statepack import sizes
from statepack.sizes import UnsupportedSize, describe, evaluate, postfix

S, T = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("s1", integer=True, positive=True)
INDICES = {"s0": 0, "s1": 1}

EXPRESSIONS = {
    "constant": (sympy.Integer(7), "7"),
    "symbol": (S, "query"),
    "sum": (S + T + 3, "((query + rows) + 3)"),
    "difference": (S - 1, "query - 1"),
    "negative symbol": (5 - S, "5 - query"),
    "only negative": (-S - 2, "((0 - query) - 2)"),
    "product": (3 * S * T, "((query * rows) * 3)"),
    "floor division": (FloorDiv(S + 1, 2), "((query + 1) // 2)"),
    "modulo": (Mod(S, 3), "query % 3"),
    "maximum": (sympy.Max(S, 4), "max(query, 4)"),
    "minimum": (sympy.Min(S, T), "min(query, rows)"),
    "square": (PowByNatural(S, sympy.Integer(2)), "query * query"),
    "mixed": (2 * S - FloorDiv(T, 3) + 1, "(((query * 2) + 1) - (rows // 3))"),
}


def tokens(expression: sympy.Expr) -> list[int]:
    return [part for token in sizes._tokens(expression, INDICES) for part in token]


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS.values(), ids=EXPRESSIONS.keys())
def test_an_expression_has_one_form_that_evaluates_to_the_same(expression, text):
    found = tokens(expression)
    assert describe(found, ["query", "rows"]) == text
    for s in (1, 2, 5, 64):
        for t in (1, 3, 17):
            assert evaluate(found, [s, t]) == int(expression.subs({S: s, T: t}))


def test_the_order_of_terms_does_not_matter():
    assert tokens(sympy.Add(T, S, 3, evaluate=False)) == tokens(sympy.Add(3, S, T, evaluate=False))
    assert tokens(sympy.Mul(T, 2, S, evaluate=False)) == tokens(sympy.Mul(S, T, 2, evaluate=False))


@pytest.mark.parametrize("expression", [S / 2, sympy.sqrt(S), sympy.Symbol("u0"), sympy.Integer(2**63)], ids=str)
def test_what_postfix_cannot_say_is_refused(expression):
    with pytest.raises(UnsupportedSize):
        tokens(expression)


def test_an_expression_of_more_than_64_tokens_is_refused():
    long = sympy.Add(*(FloorDiv(S, divisor) for divisor in range(2, 30)))
    environment = ShapeEnv()
    size = environment.create_unbacked_symint()
    size.node._expr = long
    with pytest.raises(UnsupportedSize, match="more than 64"):
        postfix(size, INDICES)


class Halves(torch.nn.Module):
    def forward(self, x, y):
        rows = y.shape[0]
        return x.reshape(rows, 2, 4).sum(1) + y, torch.full((3 * rows + 1,), 2.0)


def test_symbols_have_the_name_and_the_range_of_their_dim():
    pairs = torch.export.Dim("pairs", min=1, max=32)
    model = statepack.export(
        Halves(), (torch.zeros(6, 4), torch.ones(3, 4)), dynamic_shapes=({0: 2 * pairs}, {0: pairs})
    )
    (symbol,) = model.program.symbols
    assert (symbol.name, symbol.min, symbol.max) == ("pairs", 1, 32)
    function = model.program.functions[0]
    shapes = [
        [describe(size.postfix, ["pairs"]) for size in function.values[named.value].shape]
        for named in [*function.inputs, *function.outputs]
    ]
    assert shapes == [["pairs * 2", "4"], ["pairs", "4"], ["pairs", "4"], ["((pairs * 3) + 1)"]]
    assert [step.inputs[0].shape[0] for step in model.recording.replays[0].steps] == [6, 2, 2]


def test_a_symbol_that_no_axis_gives_is_refused():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    pairs = torch.export.Dim("pairs", min=1, max=32)
    (found,) = refusal(lambda: statepack.export(Twice(), (torch.zeros(6),), dynamic_shapes=({0: 2 * pairs},)))
    assert found.code == codes.UNSUPPORTED_SIZE
    assert found.message.endswith("is the length of no axis by itself")
    assert "axis of exactly this size" in found.expected


def test_an_unbounded_symbol_ends_at_the_largest_32_bit_size():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    shapes = {"x": {0: torch.export.Dim("rows"), 1: torch.export.Dim.DYNAMIC}}
    model = statepack.export(Twice(), (torch.zeros(3, 4),), dynamic_shapes=shapes)
    first, second = model.program.symbols
    assert (first.name, first.max) == ("rows", 2**31 - 1)
    assert second.name == "size1"
    assert second.max == 2**31 - 1


def test_equal_dims_are_one_symbol():
    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    rows = torch.export.Dim("rows", max=9)
    model = statepack.export(Sum(), (torch.zeros(3), torch.zeros(3)), dynamic_shapes=({0: rows}, {0: rows}))
    assert [symbol.name for symbol in model.program.symbols] == ["rows"]


def test_functions_with_different_ranges_of_one_dim_keep_both():
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    converter = statepack.TorchConverter()
    for name, largest in (("prefill", 64), ("decode", 8), ("again", 64)):
        dim = torch.export.Dim("rows", min=1, max=largest)
        exported = torch.export.export(Twice(), (torch.zeros(3),), dynamic_shapes=({0: dim},))
        converter.add_exported_program(exported, entrypoint_name=name)
    symbols = converter.to_program().program.symbols
    assert [(symbol.name, symbol.max) for symbol in symbols] == [("rows", 64), ("rows@decode", 8)]
