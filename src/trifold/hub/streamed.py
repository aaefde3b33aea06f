"""A safetensors file, written tensor by tensor: never more than one of them is in memory.

The library writes a file from all of its tensors at once. To the byte, this is what it would have written: a header
that says where each tensor lies, then the tensors, those of the widest numbers first, by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Names in the header, in the order of the library: later ones stand first in a file.
NAMES = {
    **{torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16"},
    **{torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32"},
    **{torch.float64: "F64", torch.int64: "I64"},
}
_RANK = {dtype: rank for rank, dtype in enumerate(NAMES)}
_METADATA = {"format": "pt"}  # the reference library refuses files that do not say who wrote them
_EVEN = (
    8  # bytes: the header is filled up with spaces to a multiple, so that the numbers behind it are aligned
)


def write_streamed(
    path: Path,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Tensor],
    names: Sequence[str],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """The tensors called `names`, each asked for in their order and let go before the next.

    shapes: the same on the meta device. `on_written` hears of bytes. Raises OSError where the disk refuses.
    """
    ordered = sorted(sorted(names), key=lambda name: -_RANK[shapes[name].dtype])
    header: dict[str, object] = {"__metadata__": _METADATA}
    places, end = {}, 0
    for name in ordered:
        shape = shapes[name]
        places[name], end = end, end + shape.numel() * shape.itemsize
        about = {"dtype": NAMES[shape.dtype], "shape": list(shape.shape)}
        header[name] = about | {"data_offsets": [places[name], end]}
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    said += b" " * (-len(said) % _EVEN)
    with path.open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        start = file.tell()
        for name in names:
            file.seek(start + places[name])
            written = file.write(_bytes(tensors[name], shapes[name]).data)
            if on_written is not None:
                on_written(written)


def _bytes(tensor: Tensor, like: Tensor) -> NDArray[np.uint8]:
    assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype), "not what the header says"
    raw: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw
