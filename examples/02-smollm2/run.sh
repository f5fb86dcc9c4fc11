#!/bin/sh
# Exports, converts, validates and runs a chat model; prints its answer and a latency table.
#
#     examples/02-smollm2/run.sh [--short] [--export]
#
# --short generates 16 tokens instead of 96. The export is kept in build/example-02 and made anew with --export.
# Needs the virtual environment of `make setup` (PYTHON names another one).
# STATEPACK_BIN names a folder with built commands.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root"
python=${PYTHON:-.venv/bin/python}
out=build/example-02
tokens=96
export=no
mkdir -p "$out"

for argument in "$@"; do
    case "$argument" in
    --short) tokens=16 ;;
    --export) export=yes ;;
    *)
        echo "usage: $0 [--short] [--export]" >&2
        exit 2
        ;;
    esac
done

if [ -z "${STATEPACK_BIN:-}" ]; then
    for product in convert validate statepack Example02SmolLM2; do
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

if [ "$export" = yes ] || [ ! -f "$out/exported.pb" ]; then
    echo "\$ python examples/02-smollm2/export.py -o $out/exported.pb"
    PYTHONPATH=python/src "$python" examples/02-smollm2/export.py -o "$out/exported.pb"
fi
run convert "$out/exported.pb" --state-names keyCache,valueCache --require-in-place -o "$out/model.statepack"
run statepack inspect "$out/model.statepack" --sessions 8
run validate "$out/model.statepack"

question="What is the capital of France, and what is it known for?"
echo
echo "prompt: $question"
printf '{"prompt": "%s"}\n' "$question" | "$python" examples/02-smollm2/tokens.py encode > "$out/prompt.json"
run Example02SmolLM2 "$out/model.statepack" --prompt-tokens "$out/prompt.json" --max-tokens "$tokens" \
    --output-tokens "$out/answer.json" --threads 2 --timings
echo
"$python" examples/02-smollm2/tokens.py decode < "$out/answer.json" |
    "$python" -c 'import json, sys; print("answer:", json.load(sys.stdin)["text"])'
