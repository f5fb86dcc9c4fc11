"""python -m statepack export module.py:build -o exported.pb, python -m statepack explain E0002"""

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
from .nearest import nearest_name

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
    explain = commands.add_parser("explain", help="print cause, example and remedy of a diagnostic")
    explain.add_argument("code", metavar="CODE", help="a code such as E0002, or a name such as mutatedConstant")
    options = parser.parse_args(arguments)
    try:
        if options.command == "explain":
            print(_explanation(options.code), end="")
            return 0
        _build(options.build).save(options.output, quiet=options.quiet)
    except ExportError as error:
        print(error, file=sys.stderr)
        return max((codes.EXIT_CODES.get(item.code, 1) for item in error.diagnostics), default=1)
    return 0


def _explanation(word: str) -> str:
    """The text of `statepack --explain`."""
    for code, (name, cause, example, remedy) in codes.EXPLANATIONS.items():
        if word.upper() == code or word == name:
            shown = "\n".join(f"    {line}" for line in example.split("\n"))
            return (
                f"{code} {name}\n  cause:     {cause}\n  example:\n{shown}\n  remedy:    {remedy}\n"
                f"  exit code: {codes.EXIT_CODES[code]}\n"
            )
    near = nearest_name(word, [name for name, *_ in codes.EXPLANATIONS.values()] + list(codes.EXPLANATIONS))
    raise ExportError(
        Diagnostic(
            codes.INVALID_OPTION_VALUE,
            f"there is no diagnostic `{word}`",
            "python -m statepack explain",
            "a code such as E0002, or a name such as mutatedConstant",
            word,
            f"did you mean `{near}`?" if near else None,
        )
    )


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
