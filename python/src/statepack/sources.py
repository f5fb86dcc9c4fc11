"""Where a node comes from: module path and source line, without anything of this machine."""

from __future__ import annotations

import os
import re

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def source_of(node: torch.fx.Node) -> str | None:
    """`layers.0.attention (model.py:41)`, or nothing when torch recorded neither.

    The line is the innermost one outside torch itself; only the file's own name is kept.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = ""
    if stack:
        path, kind = stack[-1]
        if not path:
            path = (kind if isinstance(kind, str) else kind.__qualname__).rpartition(".")[2]
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if not frame[0].startswith(_TORCH) and "/torch/" not in frame[0]]
    line = ""
    if own or frames:
        file, number = (own or frames)[-1]
        line = f"({file.replace(chr(92), '/').rpartition('/')[2]}:{number})"
    return f"{path} {line}".strip() or None
