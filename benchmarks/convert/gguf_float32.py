"""Writes a quantised GGUF file with every tensor as float32, for llama.cpp.

    python gguf_float32.py quantised.gguf float32.gguf

Names, order and metadata stay. The values are those that gguf's own dequantisation gives, which transformers uses too.
"""

from __future__ import annotations

import sys

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

source, target = sys.argv[1:3]
reader = GGUFReader(source)
architecture = reader.get_field("general.architecture")
assert architecture is not None
writer = GGUFWriter(target, architecture.contents())

for field in reader.fields.values():
    # The writer sets the first itself, the reader makes up the second; both are not metadata of the model.
    if field.name == "general.architecture" or field.name.startswith("GGUF."):
        continue
    kind = field.types[0]
    element = field.types[-1] if kind == GGUFValueType.ARRAY else None
    value = 0 if field.name == "general.file_type" else field.contents()
    writer.add_key_value(field.name, value, kind, sub_type=element)

for tensor in reader.tensors:
    # The reader's data has the shape of rows already; what dequantize returns has, too.
    values = numpy.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=numpy.float32)
    writer.add_tensor(tensor.name, values, raw_dtype=GGMLQuantizationType.F32)

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
