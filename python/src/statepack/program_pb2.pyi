from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BFLOAT16: ScalarType
BOOL: ScalarType
DESCRIPTOR: _descriptor.FileDescriptor
FLOAT16: ScalarType
FLOAT32: ScalarType
FLOAT64: ScalarType
INT16: ScalarType
INT32: ScalarType
INT64: ScalarType
INT8: ScalarType
SCALAR_TYPE_UNSPECIFIED: ScalarType
UINT16: ScalarType
UINT32: ScalarType
UINT64: ScalarType
UINT8: ScalarType

class Argument(_message.Message):
    __slots__ = ["flag", "name", "none", "number", "numbers", "scalar_type", "size", "sizes", "tensor", "tensors", "text"]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    flag: bool
    name: str
    none: bool
    number: float
    numbers: NumberList
    scalar_type: ScalarType
    size: Size
    sizes: SizeList
    tensor: int
    tensors: TensorList
    text: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[int] = ..., tensors: _Optional[_Union[TensorList, _Mapping]] = ..., size: _Optional[_Union[Size, _Mapping]] = ..., sizes: _Optional[_Union[SizeList, _Mapping]] = ..., number: _Optional[float] = ..., flag: bool = ..., scalar_type: _Optional[_Union[ScalarType, str]] = ..., text: _Optional[str] = ..., none: bool = ..., numbers: _Optional[_Union[NumberList, _Mapping]] = ...) -> None: ...

class ConstantValue(_message.Message):
    __slots__ = ["tensor", "value"]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    value: int
    def __init__(self, value: _Optional[int] = ..., tensor: _Optional[int] = ...) -> None: ...

class ContextAxis(_message.Message):
    __slots__ = ["axis", "state"]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    axis: int
    state: int
    def __init__(self, state: _Optional[int] = ..., axis: _Optional[int] = ...) -> None: ...

class ContextRules(_message.Message):
    __slots__ = ["axes", "positions"]
    AXES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    axes: _containers.RepeatedCompositeFieldContainer[ContextAxis]
    positions: int
    def __init__(self, positions: _Optional[int] = ..., axes: _Optional[_Iterable[_Union[ContextAxis, _Mapping]]] = ...) -> None: ...

class ExportedFile(_message.Message):
    __slots__ = ["body_digest", "body_length", "program", "recording"]
    BODY_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BODY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    body_digest: int
    body_length: int
    program: Program
    recording: Recording
    def __init__(self, body_length: _Optional[int] = ..., body_digest: _Optional[int] = ..., program: _Optional[_Union[Program, _Mapping]] = ..., recording: _Optional[_Union[Recording, _Mapping]] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ["constants", "context", "inputs", "name", "nodes", "outputs", "states", "values"]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    constants: _containers.RepeatedCompositeFieldContainer[ConstantValue]
    context: ContextRules
    inputs: _containers.RepeatedCompositeFieldContainer[NamedValue]
    name: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    outputs: _containers.RepeatedCompositeFieldContainer[NamedValue]
    states: _containers.RepeatedCompositeFieldContainer[FunctionState]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[NamedValue, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[NamedValue, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[FunctionState, _Mapping]]] = ..., constants: _Optional[_Iterable[_Union[ConstantValue, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., context: _Optional[_Union[ContextRules, _Mapping]] = ...) -> None: ...

class FunctionState(_message.Message):
    __slots__ = ["after", "before", "state", "written_by"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BY_FIELD_NUMBER: _ClassVar[int]
    after: int
    before: int
    state: int
    written_by: str
    def __init__(self, state: _Optional[int] = ..., before: _Optional[int] = ..., after: _Optional[int] = ..., written_by: _Optional[str] = ...) -> None: ...

class NamedValue(_message.Message):
    __slots__ = ["name", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ["arguments", "op", "results", "source"]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    arguments: _containers.RepeatedCompositeFieldContainer[Argument]
    op: str
    results: _containers.RepeatedScalarFieldContainer[int]
    source: int
    def __init__(self, op: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., results: _Optional[_Iterable[int]] = ..., source: _Optional[int] = ...) -> None: ...

class NumberList(_message.Message):
    __slots__ = ["numbers"]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, numbers: _Optional[_Iterable[float]] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ["format_major", "format_minor", "functions", "producer", "sources", "states", "symbols", "tensors", "weights_digest", "weights_file", "weights_length"]
    FORMAT_MAJOR_FIELD_NUMBER: _ClassVar[int]
    FORMAT_MINOR_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FILE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_LENGTH_FIELD_NUMBER: _ClassVar[int]
    format_major: int
    format_minor: int
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    producer: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    states: _containers.RepeatedCompositeFieldContainer[State]
    symbols: _containers.RepeatedCompositeFieldContainer[Symbol]
    tensors: _containers.RepeatedCompositeFieldContainer[StoredTensor]
    weights_digest: bytes
    weights_file: str
    weights_length: int
    def __init__(self, format_major: _Optional[int] = ..., format_minor: _Optional[int] = ..., producer: _Optional[str] = ..., symbols: _Optional[_Iterable[_Union[Symbol, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[StoredTensor, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[State, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., sources: _Optional[_Iterable[str]] = ..., weights_file: _Optional[str] = ..., weights_length: _Optional[int] = ..., weights_digest: _Optional[bytes] = ...) -> None: ...

class RecordedOutput(_message.Message):
    __slots__ = ["absolute", "indices", "name", "relative", "scalar_type", "shape", "values"]
    ABSOLUTE_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    absolute: float
    indices: _containers.RepeatedScalarFieldContainer[int]
    name: str
    relative: float
    scalar_type: ScalarType
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    def __init__(self, name: _Optional[str] = ..., scalar_type: _Optional[_Union[ScalarType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., indices: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ..., absolute: _Optional[float] = ..., relative: _Optional[float] = ...) -> None: ...

class RecordedState(_message.Message):
    __slots__ = ["absolute", "moves_data", "name", "relative", "runs", "sampled", "untouched_exact", "values"]
    ABSOLUTE_FIELD_NUMBER: _ClassVar[int]
    MOVES_DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    UNTOUCHED_EXACT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    absolute: float
    moves_data: bool
    name: str
    relative: float
    runs: _containers.RepeatedScalarFieldContainer[int]
    sampled: bool
    untouched_exact: bool
    values: bytes
    def __init__(self, name: _Optional[str] = ..., runs: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ..., absolute: _Optional[float] = ..., relative: _Optional[float] = ..., untouched_exact: bool = ..., moves_data: bool = ..., sampled: bool = ...) -> None: ...

class RecordedTensor(_message.Message):
    __slots__ = ["data", "name", "scalar_type", "shape"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    scalar_type: ScalarType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., scalar_type: _Optional[_Union[ScalarType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Recording(_message.Message):
    __slots__ = ["replays"]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    replays: _containers.RepeatedCompositeFieldContainer[Replay]
    def __init__(self, replays: _Optional[_Iterable[_Union[Replay, _Mapping]]] = ...) -> None: ...

class Replay(_message.Message):
    __slots__ = ["steps"]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Size(_message.Message):
    __slots__ = ["postfix"]
    POSTFIX_FIELD_NUMBER: _ClassVar[int]
    postfix: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, postfix: _Optional[_Iterable[int]] = ...) -> None: ...

class SizeList(_message.Message):
    __slots__ = ["sizes"]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedCompositeFieldContainer[Size]
    def __init__(self, sizes: _Optional[_Iterable[_Union[Size, _Mapping]]] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ["initial_digest", "initial_splat", "initial_tensor", "name", "named_by_author", "scalar_type", "shape", "source", "source_name"]
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BUFFER: State.Source
    INITIAL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_SPLAT_FIELD_NUMBER: _ClassVar[int]
    INITIAL_TENSOR_FIELD_NUMBER: _ClassVar[int]
    INPUT: State.Source
    NAMED_BY_AUTHOR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_UNSPECIFIED: State.Source
    initial_digest: bytes
    initial_splat: bytes
    initial_tensor: int
    name: str
    named_by_author: bool
    scalar_type: ScalarType
    shape: _containers.RepeatedCompositeFieldContainer[Size]
    source: State.Source
    source_name: str
    def __init__(self, name: _Optional[str] = ..., source: _Optional[_Union[State.Source, str]] = ..., source_name: _Optional[str] = ..., scalar_type: _Optional[_Union[ScalarType, str]] = ..., shape: _Optional[_Iterable[_Union[Size, _Mapping]]] = ..., initial_splat: _Optional[bytes] = ..., initial_tensor: _Optional[int] = ..., named_by_author: bool = ..., initial_digest: _Optional[bytes] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ["function", "inputs", "outputs", "states"]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    function: str
    inputs: _containers.RepeatedCompositeFieldContainer[RecordedTensor]
    outputs: _containers.RepeatedCompositeFieldContainer[RecordedOutput]
    states: _containers.RepeatedCompositeFieldContainer[RecordedState]
    def __init__(self, function: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[RecordedTensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[RecordedOutput, _Mapping]]] = ..., states: _Optional[_Iterable[_Union[RecordedState, _Mapping]]] = ...) -> None: ...

class StoredTensor(_message.Message):
    __slots__ = ["aliases", "data", "inline", "name", "scalar_type", "shape"]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    data: bytes
    inline: bool
    name: str
    scalar_type: ScalarType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., scalar_type: _Optional[_Union[ScalarType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., inline: bool = ..., aliases: _Optional[_Iterable[str]] = ...) -> None: ...

class Symbol(_message.Message):
    __slots__ = ["max", "min", "name"]
    MAX_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    max: int
    min: int
    name: str
    def __init__(self, name: _Optional[str] = ..., min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class TensorList(_message.Message):
    __slots__ = ["tensors"]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensors: _Optional[_Iterable[int]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["scalar_type", "shape"]
    SCALAR_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    scalar_type: ScalarType
    shape: _containers.RepeatedCompositeFieldContainer[Size]
    def __init__(self, scalar_type: _Optional[_Union[ScalarType, str]] = ..., shape: _Optional[_Iterable[_Union[Size, _Mapping]]] = ...) -> None: ...

class ScalarType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
