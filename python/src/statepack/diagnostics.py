"""One finding as a value, rendered exactly as the Swift tools render theirs."""

from __future__ import annotations

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
    """Names come from models; a terminal must not obey what they contain."""
    return "".join(
        f"\\u{{{ord(c):X}}}" if ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F or 0xD800 <= ord(c) <= 0xDFFF else c
        for c in text
    )


class ExportError(Exception):
    """An export was refused. `diagnostics` holds every finding, in the order found; nothing was written."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        self.diagnostics = [diagnostics] if isinstance(diagnostics, Diagnostic) else list(diagnostics)
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))
