"""What is measured: each system with its environment, its model and its worker."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent

#: The system that every other one is compared with.
OURS = "statepack"


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, from benchmarks/requirements-<name>.txt."""

    name: str
    #: Packages whose wheels are not taken, but built here.
    built: tuple[str, ...] = ()
    #: What the build sees in its environment.
    variables: tuple[tuple[str, str], ...] = ()
    #: Packages that are taken out again when all are installed.
    removed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Model:
    """A file or folder that a script of benchmarks/convert writes: in `environment`, from `source`."""

    name: str
    environment: str
    script: str
    source: str
    #: Arguments behind source and target. `{threads}` is replaced.
    arguments: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class System:
    name: str
    label: str
    environment: str = ""
    model: str = ""
    worker: str = ""
    arguments: tuple[str, ...] = ()
    #: Only measured when asked for by name.
    optional: bool = False


def clang() -> str:
    """The compiler that CLANG names, or what is on the path, or the Swift toolchain's."""
    named = os.environ.get("CLANG") or shutil.which("clang")
    if named:
        return named
    swift = shutil.which(os.environ.get("SWIFT", "swift"))
    return str(pathlib.Path(swift).resolve().with_name("clang")) if swift else "clang"


# -mno-avx512fp16: with it llama.cpp's flash attention converts through half floats and grows three to four times as
# fast with the context. clang: gcc 12 sets up the tiles of AMX wrongly, and llama.cpp dies of SIGILL. Its own threads
# instead of OpenMP, which the Swift toolchain's clang has no runtime for.
ENVIRONMENTS = {
    environment.name: environment
    for environment in [
        Environment("plot"),
        Environment("pytorch"),
        Environment(
            "llama",
            built=("llama-cpp-python",),
            variables=(
                ("CC", "{clang}"),
                ("CXX", "{clang}++"),
                (
                    "CMAKE_ARGS",
                    "-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF "
                    "-DCMAKE_C_FLAGS=-mno-avx512fp16 -DCMAKE_CXX_FLAGS=-mno-avx512fp16",
                ),
            ),
        ),
        Environment("onnxruntime"),
        # optimum-intel brings a torchvision for CUDA; beside torch for processors transformers does not import with it.
        Environment("openvino", removed=("torchvision",)),
    ]
}

MODELS = {
    model.name: model
    for model in [
        Model("huggingface", "pytorch", "huggingface_folder.py", "gguf"),
        Model("smollm2-float32.gguf", "llama", "gguf_float32.py", "gguf"),
        Model("onnxruntime", "onnxruntime", "onnxruntime_model.py", "huggingface", ("{threads}",)),
        Model("openvino", "openvino", "openvino_model.py", "huggingface"),
    ]
}

SYSTEMS = {
    system.name: system
    for system in [
        System(OURS, "Statepack"),
        System(
            "llama-flash",
            "llama.cpp, flash attention",
            "llama",
            "smollm2-float32.gguf",
            "llama_worker.py",
            ("--flash", "on"),
        ),
        System(
            "llama-plain",
            "llama.cpp, plain attention",
            "llama",
            "smollm2-float32.gguf",
            "llama_worker.py",
            ("--flash", "off"),
        ),
        System("onnxruntime", "ONNX Runtime GenAI", "onnxruntime", "onnxruntime", "onnxruntime_worker.py"),
        System("openvino", "OpenVINO", "openvino", "openvino", "openvino_worker.py"),
        System(
            "pytorch-dynamic",
            "PyTorch eager, dynamic cache",
            "pytorch",
            "huggingface",
            "pytorch_worker.py",
            ("--cache", "dynamic"),
        ),
        System(
            "pytorch-static",
            "PyTorch eager, static cache",
            "pytorch",
            "huggingface",
            "pytorch_worker.py",
            ("--cache", "static"),
        ),
        System(
            "torch-compile",
            "torch.compile, static cache",
            "pytorch",
            "huggingface",
            "pytorch_worker.py",
            ("--cache", "static", "--compile"),
            optional=True,
        ),
    ]
}
