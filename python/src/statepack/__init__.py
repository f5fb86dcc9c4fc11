"""Exports PyTorch models that keep state between calls, with their states named, for Swift.

    program = statepack.TorchConverter().add_exported_program(
        exported, input_names=["features", "position_ids"],
        state_names=["keyCache", "valueCache"], output_names=["logits"],
    ).to_program()
    program.save("exported.pb")

or, from the module itself and therefore checked against it:

    statepack.export(module, args, dynamic_shapes=..., state_names=[...]).save("exported.pb")

torch, protobuf and safetensors are the extra `statepack[export]`; importing this package alone needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .context import Context
from .diagnostics import Diagnostic, ExportError

if TYPE_CHECKING:
    from .converter import ExportedModel, TorchConverter
    from .decomposition import get_decomp_table
    from .exporting import ExportRequest, export

__version__ = "0.1.0"

__all__ = [
    "Context",
    "Diagnostic",
    "ExportError",
    "ExportRequest",
    "ExportedModel",
    "TorchConverter",
    "export",
    "get_decomp_table",
]

_HOMES = {
    "ExportedModel": "converter",
    "TorchConverter": "converter",
    "get_decomp_table": "decomposition",
    "ExportRequest": "exporting",
    "export": "exporting",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `import statepack` works where torch is not installed.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
