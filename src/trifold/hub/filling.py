"""Tensors into a model, each once from its file to its place.

On a CPU all parameters lie in one stretch of memory, behind one another as a decoding step reads them. Fresh memory is
given page by page to who touches it first, and that takes longer than the copying: so threads fill it side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from trifold.fast.int8 import Int8
from trifold.fast.threads import sharing_cores
from trifold.nn import Transformer
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.layers import Linear

Stored = Literal["int8"]
BOUNDARY = 64  # bytes: every tensor begins at a line of memory
STRIP = 64  # columns of a transposed matrix that are copied together, so that they fit a cache
PIECE = 2**21  # numbers that a thread copies at a time, of a tensor that is larger
MANY = 2**24  # numbers that are worth threads


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
    with _copying(device, sum(place.numel() for place in places.values())) as copy:
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
                parameter.data = places[name]
                copy(tensor, places[name])
    left = [name for name in parameters if name not in kept]
    assert not left, f"left unread: {', '.join(left)}"
    return model


# Begins to copy a tensor to a place of its shape; neither may be touched before the end.
Copy = Callable[[Tensor, Tensor], None]


@contextmanager
def _copying(device: str | torch.device, numbers: int) -> Iterator[Copy]:
    """How so many numbers are copied: on a CPU, where they are many, some at once; at the end all are there."""
    threads = torch.get_num_threads()
    if torch.device(device).type != "cpu" or threads == 1 or numbers < MANY:
        yield _copied
        return
    under_way: deque[Future[None]] = deque()
    inference = (
        torch.is_inference_mode_enabled()
    )  # which is one thread's own, and what it made no other may fill

    def fill(part: Tensor, there: Tensor) -> None:
        with torch.inference_mode(inference):
            _copied(part, there)

    def begin(tensor: Tensor, place: Tensor) -> None:
        for part, there in _pieces(tensor, place):
            under_way.append(crew.submit(fill, part, there))
            if len(under_way) > 2 * threads:  # tensors may be made on the way, and not all fit at once
                under_way.popleft().result()

    with sharing_cores(threads) as crew:
        yield begin
        for copied in under_way:
            copied.result()


def _pieces(tensor: Tensor, place: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A large tensor in rows, unless it lies transposed."""
    if tensor.numel() <= PIECE or not tensor.is_contiguous():
        return iter([(tensor, place)])
    rows = max(1, PIECE * len(tensor) // tensor.numel())
    return zip(tensor.split(rows), place.split(rows), strict=True)


@torch.no_grad()
def _copied(tensor: Tensor, place: Tensor) -> None:
    """The numbers of the tensor, in this place."""
    transposed = tensor.dim() == 2 and tensor.stride(0) == 1 and tensor.shape[0] > 1
    if (
        not transposed or tensor.dtype == place.dtype
    ):  # of the same type, the library's own copy goes block by block
        place.copy_(tensor)
        return
    for strip, there in zip(tensor.split(STRIP, 1), place.split(STRIP, 1), strict=True):
        there.copy_(strip)


def _matrices(model: Transformer) -> dict[nn.Parameter, list[nn.Module]]:
    """The matrices that may become bytes, each with the modules that share it."""
    found: dict[nn.Parameter, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
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
    memory = torch.empty(end, dtype=torch.uint8)
    return {
        name: memory[start:end].view(wanted[name][1]).view(wanted[name][0])
        for name, (start, end) in ends.items()
    }
