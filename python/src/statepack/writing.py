"""exported.pb and its weights on disk: whole, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import struct
from collections.abc import Sequence

import torch

from . import _codes as codes
from . import program_pb2 as pb
from .diagnostics import Diagnostic, ExportError
from .tables import element_bytes

#: Tensors of at most this many bytes together travel inside exported.pb.
INLINE_LIMIT = 1 << 20

#: Two fixed-width fields, tag and eight bytes each.
HEADER_LENGTH = 18


def file_bytes(program: pb.Program, recording: pb.Recording) -> bytes:
    """The whole file. The first two fields say how long the rest is and what it hashes to."""
    body = pb.ExportedFile(program=program, recording=recording).SerializeToString(deterministic=True)
    digest = hashlib.sha256(body).digest()[:8]
    return b"\x09" + struct.pack("<Q", len(body)) + b"\x11" + digest + body


def write(
    path: str | os.PathLike[str], program: pb.Program, recording: pb.Recording, tensors: Sequence[torch.Tensor]
) -> list[str]:
    """Writes the file, and its weights beside it when they are more than `INLINE_LIMIT`.

    Each goes to a temporary sibling first and is renamed when both are complete. Returns the paths written.
    """
    target = pathlib.Path(path)
    complete = pb.Program()
    complete.CopyFrom(program)
    temporaries: list[tuple[pathlib.Path, pathlib.Path]] = []
    try:
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= INLINE_LIMIT:
            for stored, tensor in zip(complete.tensors, tensors, strict=True):
                stored.inline = True
                stored.data = element_bytes(tensor)
        else:
            weights = target.with_name(target.stem + ".safetensors")
            temporary = _temporary(weights)
            temporaries.append((temporary, weights))
            _write_weights(temporary, complete, tensors)
            complete.weights_file = weights.name
            complete.weights_length = temporary.stat().st_size
            complete.weights_digest = _digest(temporary)
        temporary = _temporary(target)
        temporaries.append((temporary, target))
        temporary.write_bytes(file_bytes(complete, recording))
        for temporary, _ in temporaries:
            _sync(temporary)
        # Weights first: a program beside weights that are not its own is told by their digest.
        for temporary, final in temporaries:
            os.replace(temporary, final)
        _sync(target.parent)
    except OSError as error:
        raise ExportError(
            Diagnostic(
                codes.OUTPUT_NOT_WRITTEN,
                f"`{target.name}` cannot be written",
                str(path),
                found=error.strerror or type(error).__name__,
                hint="check the folder, its permissions and the space left",
            )
        ) from error
    finally:
        for temporary, _ in temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink()
    return [str(final) for _, final in reversed(temporaries)]


def _temporary(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write_weights(path: pathlib.Path, program: pb.Program, tensors: Sequence[torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contents = {}
    for stored, tensor in zip(program.tensors, tensors, strict=True):
        whole = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share storage, which views of one base do.
        owns = whole.untyped_storage().nbytes() == whole.numel() * whole.element_size()
        contents[stored.name] = whole if owns else whole.clone()
    # Opened here first: of a folder that is missing or closed the system speaks more plainly.
    path.touch()
    try:
        save_file(contents, str(path))
    except SafetensorError as error:
        raise OSError(0, str(error)) from error
    # safetensors makes its file private; ours has the mode that any new file gets here.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _digest(path: pathlib.Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.digest()


def _sync(path: pathlib.Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
