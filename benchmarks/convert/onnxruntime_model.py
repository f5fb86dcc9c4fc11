"""Builds the float32 model for ONNX Runtime GenAI's CPU provider from a Hugging Face folder.

python onnxruntime_model.py HUGGINGFACE_FOLDER FOLDER THREADS
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile

source, target, threads = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
with tempfile.TemporaryDirectory() as cache:
    # prune_lm_head: logits of the last row only, as every system here is asked for.
    command = ["-m", "onnxruntime_genai.models.builder", "-i", source, "-o", str(target), "-p", "fp32", "-e", "cpu"]
    subprocess.run([sys.executable, *command, "-c", cache, "--extra_options", "prune_lm_head=true"], check=True)

path = target / "genai_config.json"
config = json.loads(path.read_text())
config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
# Generation would end behind the end of a message; steps are to be timed whatever was found. Nothing makes the
# last entry of the vocabulary likely.
config["model"]["eos_token_id"] = config["model"]["vocab_size"] - 1
# One buffer of the capacity for each cache instead of two that grow: 0.7 of the processor time at a context of 1,900.
config["search"]["past_present_share_buffer"] = True
path.write_text(json.dumps(config, indent=2) + "\n")
