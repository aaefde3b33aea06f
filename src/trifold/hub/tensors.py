"""Tensors by name, one at a time in memory: lazy mappings, and reading and writing of safetensors
files.

A safetensors file is 8 bytes with the length of the header, the header (JSON: type, shape and
position of every tensor), and the tensors.
"""

import json
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.fast.huge_pages import release_pages
from trifold.folders import AnyPath, UntrustedPath, named, open_file
from trifold.hub.quantized import REMEDY
from trifold.jsonfiles import parse_json

# Bytes; the format allows ten times as many, and the largest in use has below 1 MB.
MAX_HEADER = 10 * 2**20

# In the reverse order of the library's files, which store the widest types first.
TYPE_NAMES = {
    **{torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16"},
    **{torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32"},
    **{torch.float64: "F64", torch.int64: "I64"},
}
DTYPES = dict(zip(TYPE_NAMES.values(), TYPE_NAMES, strict=True))
_METADATA = {"format": "pt"}  # `transformers` rejects files without it
_ALIGNMENT = 8  # bytes; the header is padded with spaces


# --- lazy mappings --------------------------------------------------------------------------------


class TransformedTensors(Mapping[str, Tensor]):
    """Tensors with the names of these values: `function(name, value)`, each made when it is
    read.

    shapes: the same tensors on the meta device, if making one takes time.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        function: Callable[[str, Any], Tensor],
        shapes: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._values = values
        self._function = function
        self.shapes = shapes

    def __getitem__(self, name: str) -> Tensor:
        return self._function(name, self._values[name])

    def __contains__(self, name: object) -> bool:
        return name in self._values  # that of Mapping makes the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@lru_cache(maxsize=256)  # layers are alike
def shape_only(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor without values, on the meta device; equal ones are shared."""
    return torch.empty(shape, dtype=dtype, device="meta")


def shapes_of(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors of the same names, shapes and types, whose values are not read."""
    return getattr(tensors, "shapes", None) or tensors


def renamed_tensors(places: Mapping[str, tuple[Mapping[str, Tensor], str]]) -> Mapping[str, Tensor]:
    """Tensors of one or several mappings under new names: new name -> (mapping, its name)."""
    return TransformedTensors(
        places,
        lambda name, place: place[0][place[1]],
        TransformedTensors(places, lambda name, place: shapes_of(place[0])[place[1]]),
    )


def lazy_tensors(
    makers: Mapping[tuple[str, ...], Callable[[], Sequence[Tensor]]],
) -> Mapping[str, Tensor]:
    """Groups of names, each with the function that makes its tensors in the order of the names."""

    @lru_cache(maxsize=1)  # neighbours are read in sequence, and made once
    def make(group: tuple[str, ...]) -> dict[str, Tensor]:
        return dict(zip(group, makers[group](), strict=True))

    groups = {name: group for group in makers for name in group}
    return TransformedTensors(groups, lambda name, group: make(group)[name])


# --- files ----------------------------------------------------------------------------------------


class TensorFile(TransformedTensors):
    """The tensors of a safetensors file, which is mapped into memory once: read them, do not write.

    Raises CheckpointError if the file is missing, damaged or refused by `open_file`, if a name
    occurs twice (the library takes the last one), or if a tensor is of a type that is not read.
    """

    def __init__(self, path: AnyPath) -> None:
        path = named(path)
        try:
            with open_file(path) as file:
                status = os.fstat(file.fileno())
                size = int.from_bytes(file.read(8), "little")
                if size > status.st_size - 8:
                    raise CheckpointError(
                        f"{path}: damaged or truncated (its header does not fit); copy the file "
                        "again"
                    )
                if size > MAX_HEADER:
                    raise CheckpointError(
                        f"{path}: a header of {size:,} bytes is too large; at most "
                        f"{MAX_HEADER:,} are read"
                    )
                header = parse_json(file.read(size), str(path))
                # Copy-on-write, so that PyTorch takes it.
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise CheckpointError(
                f"{path}: no such file, though the index names it; copy the folder again"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
        header.pop("__metadata__", None)
        super().__init__(header, partial(_read_tensor, memory, 8 + size))
        wrong = [
            f"{name!r} is of {entry.get('dtype')!r}"
            for name, entry in header.items()
            if isinstance(entry, dict) and str(entry.get("dtype")) not in DTYPES
        ]
        if wrong:
            remedy = "write it as F32 or BF16"
            if any("is of 'F" in line for line in wrong):  # of 8 bits or less
                remedy = f"these are quantized weights: {REMEDY}"
            raise list_problems(f"{path}: tensors of types that are not read; {remedy}", wrong)
        _check_positions(path, status)


def _check_positions(path: UntrustedPath, status: os.stat_result) -> None:
    """Raise CheckpointError if the sizes and positions in a file do not fit; status: of the file
    that is mapped, because the library opens it by its name.
    """
    try:
        target = path.target()
        safe_open(target, framework="pt", device="cpu")
        is_same = os.path.samestat(status, target.stat())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: damaged or truncated ({error}); copy the file again"
        ) from None
    if not is_same:
        raise CheckpointError(f"{path}: was replaced while it was read; repeat the command")


def _read_tensor(memory: mmap.mmap, first: int, name: str, entry: dict[str, Any]) -> Tensor:
    """The tensor of an entry of the header; first: the position of the first tensor."""
    dtype = DTYPES[entry["dtype"]]
    shape = entry["shape"]
    start, end = (first + offset for offset in entry["data_offsets"])
    if start == end:
        return torch.empty(shape, dtype=dtype)
    raw = mapped_bytes(memory, start, end)
    if start % dtype.itemsize != 0:  # old files do not align tensors
        raw = raw.clone()
    return raw.view(dtype).view(shape)


def mapped_bytes(memory: mmap.mmap, start: int, end: int) -> Tensor:
    """The bytes from `start` to `end`, which are more than none, without a copy. Their pages are
    freed when the tensor is.
    """
    view = memoryview(memory)[start:end]  # which lives as long as the tensor
    weakref.finalize(view, release_pages, memory, start, end).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def list_problems(what: str, problems: list[str]) -> CheckpointError:
    """An error with one line per problem."""
    return CheckpointError("\n  ".join([what, *problems]))


def encode_header(
    shapes: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, dict[str, int]]:
    """The header of a file with these tensors in this order, and the position of each tensor after
    the header.
    """
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = metadata
    positions = {}
    end = 0
    for name, shape in shapes.items():
        positions[name] = end
        end += shape.numel() * shape.itemsize
        entry = {"dtype": TYPE_NAMES[shape.dtype], "shape": list(shape.shape)}
        header[name] = entry | {"data_offsets": [positions[name], end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, positions


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, in row-major order."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Tensor],
    names: Sequence[str],
    on_written: Callable[[int], None] | None = None,
) -> None:
    """Write the tensors `names`; each is made when it is its turn, and released before the next
    one.

    The file is byte for byte what the safetensors library writes, which needs all tensors at once.
    shapes: the same tensors on the meta device. `on_written` is called with the bytes of each
    tensor. Raises OSError.
    """
    order = [*TYPE_NAMES]
    ordered = sorted(sorted(names), key=lambda name: -order.index(shapes[name].dtype))
    header, positions = encode_header({name: shapes[name] for name in ordered}, _METADATA)
    with path.open("wb") as file:
        file.write(header)
        for name in names:  # those that are made together follow each other
            file.seek(len(header) + positions[name])
            written = file.write(_checked_bytes(tensors[name], shapes[name]))
            if on_written is not None:
                on_written(written)


def _checked_bytes(tensor: Tensor, like: Tensor) -> memoryview:
    assert (tensor.shape, tensor.dtype) == (like.shape, like.dtype), "not what the header says"
    return tensor_bytes(tensor)
