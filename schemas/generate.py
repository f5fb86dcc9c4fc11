#!/usr/bin/env python3
"""Generates the committed sources that follow from the files in this folder.

    schemas/generate.py            writes them
    schemas/generate.py --check    exits 1 and names each file that differs from what would be written

Each module in generators/ has one function, outputs(root), that returns {path relative to root: text or bytes}.
"""

import argparse
import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATORS = [
    "errors",
    "format_dump",
    "kernel_signatures",
    "kernels",
    "operators",
    "program_schema",
    "python_operators",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check = parser.parse_args().check
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    stale = []
    for name in GENERATORS:
        for path, content in sorted(importlib.import_module(f"generators.{name}").outputs(ROOT).items()):
            data = content.encode() if isinstance(content, str) else content
            target = ROOT / path
            if target.exists() and target.read_bytes() == data:
                continue
            stale.append(path)
            if not check:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
    for path in stale:
        print(f"{'stale' if check else 'wrote'}: {path}")
    if check and stale:
        print("run schemas/generate.py and commit the result", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
