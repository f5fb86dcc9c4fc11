"""Exports a Hugging Face folder as a stateful float32 OpenVINO model whose logits are those of the last row.

    python openvino_model.py HUGGINGFACE_FOLDER FOLDER

The export gives logits of every row; OpenVINO's own generation library slices before the last product, as done here.
"""

from __future__ import annotations

import pathlib
import shutil
import sys

import numpy
import openvino
from openvino import opset15 as operators
from optimum.exporters.openvino import main_export

source, target = sys.argv[1], pathlib.Path(sys.argv[2])
exported = target / "exported"
main_export(source, exported, task="text-generation-with-past", stateful=True, ov_config=None)
model = openvino.Core().read_model(exported / "openvino_model.xml")

node = next(result for result in model.get_results() if "logits" in result.input_value(0).get_names())
while node.get_type_name() != "MatMul":
    node = node.input_value(0).get_node()
hidden = node.input_value(0)
last = operators.slice(
    hidden,
    numpy.array([-1], numpy.int64),
    numpy.array([numpy.iinfo(numpy.int64).max], numpy.int64),
    numpy.array([1], numpy.int64),
    numpy.array([1], numpy.int64),
)
node.input(0).replace_source_output(last.output(0))
model.validate_nodes_and_infer_types()
openvino.save_model(model, target / "model.xml", compress_to_fp16=False)
# 540 MB that nothing reads any more.
del model
shutil.rmtree(exported)
