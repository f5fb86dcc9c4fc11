"""Text to token ids and back, as JSON, for programs that run the exported model without Python.

    echo '{"prompt": "What is the capital of France?"}' | python tokens.py encode
    echo '{"tokens": [504, 3575]}' | python tokens.py decode

`encode` puts the prompt into the model's chat template unless the request has "raw": true. It answers with
"tokens" and with "end_tokens", at which generation stops. Several requests, one a line, get one answer a line.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from model import model_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase


def load_tokenizer() -> PreTrainedTokenizerBase:
    file = model_file()
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def encode(tokenizer: PreTrainedTokenizerBase, request: dict[str, Any]) -> dict[str, Any]:
    text = request["prompt"]
    if not request.get("raw", False):
        messages = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"tokens": tokens, "end_tokens": [tokenizer.eos_token_id]}


def decode(tokenizer: PreTrainedTokenizerBase, request: dict[str, Any]) -> dict[str, Any]:
    return {"text": tokenizer.decode(request["tokens"], skip_special_tokens=request.get("skip_special", True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["encode", "decode"])
    action = {"encode": encode, "decode": decode}[parser.parse_args().action]
    tokenizer = load_tokenizer()
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(action(tokenizer, json.loads(line)), ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
