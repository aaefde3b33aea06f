"""Write a GGUF file: a header, pairs of keys and values, the table of tensors, and the data.

Tensors are made, encoded and written one after the other.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trifold import disk
from trifold.errors import CheckpointError
from trifold.hub.files import replacing
from trifold.hub.gguf.blocks import BlockType
from trifold.hub.gguf.file_format import ALIGNMENT, MAGIC, MAX_NAME, Value
from trifold.hub.gguf.quantize import quantize

VERSION = 3
# The numbers of types of values.
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    "uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5, "float32": 6,
    "bool": 7, "uint64": 10, "int64": 11, "float64": 12,
}  # fmt: skip
# Numbers that are encoded at a time; a multiple of all lengths of blocks.
_CHUNK = 2**22
Types = Mapping[str, tuple[int, BlockType]]


def write_file(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Tensor],
    types: Types,
    on_written: Callable[[int, int], None] | None = None,
) -> int:
    """Write a file; it is complete, or not there. Returns its bytes.

    tensors: each is made when it is its turn. shapes: the same ones on the meta device, in the
    order of the file. types: the number and the type of each. `on_written` is called with the bytes
    of all tensors and of some that were just written. Raises CheckpointError if writing fails, and
    for values that a type does not hold.
    """
    sizes = {name: _size(shape, types[name][1]) for name, shape in shapes.items()}
    padded = {name: size + -size % ALIGNMENT for name, size in sizes.items()}
    total = sum(padded.values())
    head = _head(metadata, shapes, types, padded)
    with replacing(path) as temporary, temporary.open("wb") as file:
        disk.put(file, head)
        for name in shapes:
            written = 0
            for chunk in _chunks(name, tensors[name], types[name][1]):
                disk.put(file, chunk.data.cast("B"))
                written += chunk.nbytes
                if on_written is not None:
                    on_written(total, chunk.nbytes)
            assert written == sizes[name], f"{name}: not what the table says"
            disk.put(file, bytes(padded[name] - sizes[name]))
        disk.flush(file)
    return len(head) + total


def _size(shape: Tensor, kind: BlockType) -> int:
    """The bytes of a tensor."""
    return shape.numel() // kind.length * kind.bytes


# --- metadata and the table of tensors ------------------------------------------------------------


def _head(
    metadata: Mapping[str, Value],
    shapes: Mapping[str, Tensor],
    types: Types,
    padded: Mapping[str, int],
) -> bytes:
    """Everything before the data."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(shapes), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _value(value)]
    offset = 0
    for name, shape in shapes.items():
        if len(name.encode("utf-8")) > MAX_NAME:
            raise CheckpointError(
                f"{name}: the name of a tensor in a GGUF file has at most {MAX_NAME} bytes"
            )
        axes = shape.shape[::-1]
        parts += [_string(name), struct.pack(f"<I{len(axes)}Q", len(axes), *axes)]
        parts.append(struct.pack("<IQ", types[name][0], offset))
        offset += padded[name]
    head = b"".join(parts)
    return head + bytes(-len(head) % ALIGNMENT)


def _string(text: str) -> bytes:
    content = text.encode("utf-8")
    return struct.pack("<Q", len(content)) + content


def _value(value: Value) -> bytes:
    """The number of the type of a value, and the value."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, list):
        content = b"".join(map(_string, value))
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + content
    if isinstance(value, np.ndarray):
        kind = _NUMBERS[value.dtype.name]
        content = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes()
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + content
    number = np.asarray(value, _type_of(value))
    return struct.pack("<I", _NUMBERS[number.dtype.name]) + number.tobytes()


def _type_of(number: float) -> str:
    """The type of a single number, as llama.cpp's converter chooses it."""
    if isinstance(number, bool):
        return "bool"
    if isinstance(number, float):
        return "float32"
    if number < 0:
        return "int32"
    return "uint32" if number < 2**32 else "uint64"


# --- tensors --------------------------------------------------------------------------------------


def _chunks(name: str, tensor: Tensor, kind: BlockType) -> Iterator[np.ndarray[Any, Any]]:
    """The bytes of a tensor, some blocks at a time. Raises CheckpointError for values that the type
    does not hold.
    """
    for part in tensor.detach().reshape(-1).split(_CHUNK):
        try:
            if kind.dtype is None:
                yield quantize(part, kind)
            else:
                yield _cast(part, kind).view(torch.uint8).numpy()
        except ValueError as error:
            raise CheckpointError(
                f"{name}: {error}; choose --weights bf16 or f32, or repair the weights"
            ) from None


def _cast(part: Tensor, kind: BlockType) -> Tensor:
    assert kind.dtype is not None
    cast = part.to(kind.dtype).contiguous()
    if kind.dtype == torch.float16 and cast.isinf().any() and part.isfinite().all():
        raise ValueError(f"has values up to {float(part.abs().max()):g}, too large for {kind.name}")
    return cast
