#!/bin/sh
# Converts, validates, inspects and runs the small transformer.
#
#     examples/01-stateful-transformer/run.sh [--export]
#
# --export writes exported.pb anew with PyTorch (python -m pip install '.[export]'); without it the committed
# file is used, and nothing but Swift is needed. STATEPACK_BIN names a folder with built commands.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root"
out=build/example-01
exported=examples/01-stateful-transformer/exported.pb
mkdir -p "$out"

for argument in "$@"; do
    case "$argument" in
    --export)
        python=${PYTHON:-.venv/bin/python}
        exported=$out/exported.pb
        echo "\$ python examples/01-stateful-transformer/export.py -o $exported"
        PYTHONPATH=python/src "$python" examples/01-stateful-transformer/export.py -o "$exported"
        ;;
    *)
        echo "usage: $0 [--export]" >&2
        exit 2
        ;;
    esac
done

if [ -z "${STATEPACK_BIN:-}" ]; then
    for product in convert validate statepack Example01StatefulTransformer; do
        swift build -c release --product "$product" >&2
    done
    STATEPACK_BIN=$(swift build -c release --show-bin-path)
fi

# Prints a command as a user would type it, then runs it.
run() {
    echo
    echo "\$ $*"
    command=$1
    shift
    "$STATEPACK_BIN/$command" "$@"
}

run convert "$exported" --state-names keyCache,valueCache --require-in-place -o "$out/model.statepack"
run statepack inspect "$out/model.statepack" --sessions 8
run validate "$out/model.statepack" --descriptors examples/01-stateful-transformer/exported.contract.json
run Example01StatefulTransformer "$out/model.statepack"
