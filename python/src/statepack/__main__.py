"""python -m statepack export module.py:build -o exported.pb"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pathlib
import sys
from typing import Any

from . import __version__
from . import _codes as codes
from .diagnostics import Diagnostic, ExportError

_BUILD_HELP = """`build` is called without arguments and returns a statepack.ExportRequest (the arguments of
statepack.export), or what statepack.export or TorchConverter.to_program returned."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code (schemas/README.md)."""
    parser = argparse.ArgumentParser(prog="python -m statepack", description=__doc__)
    parser.add_argument("--version", action="version", version=f"statepack {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser("export", help="write exported.pb", epilog=_BUILD_HELP)
    export.add_argument("build", metavar="MODULE:FUNCTION", help="a Python file or module, and a function in it")
    export.add_argument("-o", "--output", default="exported.pb", metavar="FILE", help="default: exported.pb")
    export.add_argument("-q", "--quiet", action="store_true", help="do not print the state table")
    options = parser.parse_args(arguments)
    try:
        _build(options.build).save(options.output, quiet=options.quiet)
    except ExportError as error:
        print(error, file=sys.stderr)
        return max((codes.EXIT_CODES.get(item.code, 1) for item in error.diagnostics), default=1)
    return 0


def _build(target: str) -> Any:
    try:
        from .converter import ExportedModel
        from .exporting import ExportRequest
    except ModuleNotFoundError as error:
        raise ExportError(
            Diagnostic(
                codes.MISSING_PACKAGE,
                f"exporting needs the package `{error.name}`",
                None,
                "torch, protobuf, safetensors and numpy",
                f"no {error.name} in this environment",
                "install this package with its extra: pip install '.[export]'",
            )
        ) from error

    place, _, name = target.rpartition(":")
    if not place or not name:
        raise _unusable(target, "no colon", "module.py:build")
    try:
        if place.endswith(".py"):
            path = pathlib.Path(place)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise _unusable(target, f"no file {place}", "a Python file")
            module = importlib.util.module_from_spec(spec)
            # Its neighbours are importable, as when the file is run.
            sys.path.insert(0, str(path.parent.resolve()))
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except ImportError as error:
        raise _unusable(target, str(error), "an importable module") from error
    build = getattr(module, name, None)
    if not callable(build):
        raise _unusable(target, f"no function {name} in {place}", "a function without arguments")
    result = build()
    if isinstance(result, ExportRequest):
        result = result.run()
    if not isinstance(result, ExportedModel):
        raise _unusable(target, type(result).__name__, "a statepack.ExportRequest")
    return result


def _unusable(target: str, found: str, expected: str) -> ExportError:
    return ExportError(
        Diagnostic(codes.UNUSABLE_BUILD, f"`{target}` does not build an export", None, expected, found, _BUILD_HELP)
    )


if __name__ == "__main__":
    sys.exit(main())
