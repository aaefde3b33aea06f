"""Tensors into a model, each once from its file to its place.

All parameters lie in one stretch of memory that asks for huge pages: half a gigabyte in small ones costs as much time
for the pages as for the bytes, at loading and again at every decoding step.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from trifold.nn import Transformer
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.int8 import Int8
from trifold.nn.linear import Linear

Stored = Literal["int8"]
BOUNDARY = 64  # bytes: every tensor begins at a line of memory
STRIP = 64  # columns of a transposed matrix that are copied together


@torch.no_grad()
def filled(
    model: Transformer,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    new: tuple[str, ...] = (),
    stored: Stored | None = None,
) -> Transformer:
    """The model with these tensors; those whose names begin as `new` says may be missing, or of another size.

    `stored` "int8" keeps the matrices of products and the tables of tokens in one byte a weight.
    """
    for buffer in model.buffers():
        buffer.data = buffer.to(device=device, dtype=dtype)
    parameters = dict(model.named_parameters())
    matrices = _matrices(model) if stored == "int8" else {}
    kept = {name: p for name, p in parameters.items() if name.startswith(new)} if new else {}
    for parameter in kept.values():
        parameter.data = parameter.to(device=device, dtype=dtype)
    read = {name: p for name, p in parameters.items() if name not in kept}
    kinds = {name: torch.int8 if p in matrices else dtype for name, p in read.items()}
    places = _places({name: (p.shape, kinds[name]) for name, p in read.items()}, device)
    for name, tensor in tensors:
        fits = name in parameters and parameters[name].shape == tensor.shape
        if not fits and name.startswith(new):
            continue
        parameter = parameters.pop(name)
        if parameter in matrices:
            small = Int8.of(tensor.to(device), dtype, places.get(name))
            for module in matrices[parameter]:
                del module.weight
                module.weight = small
        elif name in kept:
            parameter.copy_(tensor)
        else:
            parameter.data = _copied(tensor, places[name])
    left = [name for name in parameters if name not in kept]
    assert not left, f"left unread: {', '.join(left)}"
    return model


def _copied(tensor: Tensor, place: Tensor) -> Tensor:
    """place, with the numbers of the tensor; a matrix that lies transposed comes in strips that fit a cache."""
    if tensor.dim() < 2 or tensor.stride(0) != 1 or tensor.shape[0] == 1:
        return place.copy_(tensor)
    for strip, there in zip(tensor.split(STRIP, 1), place.split(STRIP, 1), strict=True):
        there.copy_(strip)
    return place


def _matrices(model: Transformer) -> dict[nn.Parameter, list[nn.Module]]:
    """The matrices that may become bytes, each with the modules that share it."""
    found: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
            assert isinstance(module.weight, nn.Parameter)
            found.setdefault(module.weight, []).append(module)
    return found


def _places(
    wanted: dict[str, tuple[torch.Size, torch.dtype]], device: str | torch.device
) -> dict[str, Tensor]:
    """Room for each tensor, one behind the other on a CPU."""
    if torch.device(device).type != "cpu":
        return {
            name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in wanted.items()
        }
    ends, end = {}, 0
    for name, (shape, dtype) in wanted.items():
        start = -(-end // BOUNDARY) * BOUNDARY
        end = start + shape.numel() * dtype.itemsize
        ends[name] = start, end
    memory = _stretch(end)
    return {
        name: memory[start:end].view(wanted[name][1]).view(wanted[name][0])
        for name, (start, end) in ends.items()
    }


def _stretch(size: int) -> Tensor:
    """(size,) bytes, which live as long as some tensor in them."""
    if not size or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
