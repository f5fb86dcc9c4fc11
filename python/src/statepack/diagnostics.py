"""One finding as a value, rendered exactly as the Swift tools render theirs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """What went wrong, where, what was expected, what was found, what to do."""

    #: A code of schemas/errors.json, such as "E0004"; the constants are in `statepack._codes`.
    code: str
    #: One lowercase clause without a full stop that stands alone.
    message: str
    location: str | None = None
    expected: str | None = None
    found: str | None = None
    hint: str | None = None
    severity: str = "error"

    def __str__(self) -> str:
        lines = [f"{self.severity}[{self.code}]: {_printable(self.message)}"]
        if self.location is not None:
            lines.append(f"  --> {_printable(self.location)}")
        for label, value in (("expected: ", self.expected), ("found:    ", self.found), ("hint:     ", self.hint)):
            if value is None:
                continue
            first, *rest = [_printable(part) for part in value.split("\n")]
            lines.append(f"  {label}{first}")
            lines += [f"            {part}" for part in rest]
        return "\n".join(lines)


def _printable(text: str) -> str:
    """Names come from models; a terminal must not obey what they contain, and nobody can compare what is not seen."""
    return "".join(f"\\u{{{ord(c):X}}}" if c != " " and _is_hidden(c) else c for c in text)


def _is_hidden(c: str) -> bool:
    return unicodedata.category(c) in _HIDDEN or any(low <= ord(c) <= high for low, high in _IGNORABLE)


#: Controls, format marks (direction, zero width), halves of surrogate pairs, separators of lines and of words.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
#: Letters and marks that are drawn as nothing: Default_Ignorable_Code_Point beyond the categories above.
_IGNORABLE = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2065, 0x2065),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0xE0000, 0xE0FFF),
)


class ExportError(Exception):
    """An export was refused. `diagnostics` holds every finding, in the order found; nothing was written."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))
