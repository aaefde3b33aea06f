"""Copy tensors into a model, each once from its file to its place in memory.

The system assigns new memory page by page to the thread that first writes it, which takes longer
than copying, so several threads copy.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from trifold.errors import CheckpointError
from trifold.fast.block_weight import BlockWeight
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.huge_pages import HugeMemory
from trifold.fast.int8 import Int8Weight
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.fast.smoothing import is_smoothed, layers_of_states, smooth
from trifold.fast.thread_pool import executor_sharing_cores
from trifold.nn import Transformer
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.layers import Linear
from trifold.nn.stack import all_modules, all_parameters

Stored = Literal["int8", "int4", "file"]
Matrices: TypeAlias = dict[nn.Parameter, list[nn.Module]]
NONE: Mapping[str, Any] = MappingProxyType({})
# Parts of the names of matrices: those of attention, and among them those that make its values.
ATTENTION = "attention."
VALUES = "v_proj.weight"
QUANTIZABLE = (Linear, TokenEmbedding, LanguageModelHead)  # have matrices
STRIP = 64  # columns of a transposed matrix that are copied together and fit into a cache
CHUNK = 2**21  # elements that a thread copies at a time
MIN_FOR_THREADS = 2**24  # elements; smaller models are copied in one thread
MIN_FOR_POOL = 2**16  # elements of a tensor for which threads are started
MIN_FOR_HUGE_PAGES = 2**15  # elements; it takes longer to provide a huge page than to fill it


@torch.no_grad()
def fill_model(
    model: Transformer,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: str | torch.device,
    stored: Stored | None = None,
    blocks: Mapping[str, QuantizedWeight] = NONE,
    ready: Mapping[str, Tensor] = NONE,
) -> None:
    """Copy the tensors into the model's parameters and convert them to `dtype`, or at least float32
    for corrections of routers, whose differences are smaller than those of bfloat16.

    stored: how linear weights and token embeddings are stored, see `_small_weight`. In int8, those
        of encoders in bfloat16 have factors (`fast.smoothing`). "file": those in 16 bits stay in
        the memory of their file, if that has their form, and are not converted to float32.
    blocks: matrices that are not among the tensors, by name.
    ready: further tensors by name, which become parameters without a copy.

    Raises CheckpointError for a matrix that has no such form.
    """
    device = torch.device(device)
    modules = all_modules(model)
    _convert_buffers(modules, dtype, device)
    parameters = all_parameters(model)
    matrices = _quantizable(modules)
    for name, weight in blocks.items():
        if weight.device != device:
            weight.to(device)
        _replace(matrices[parameters.pop(name)], weight)
    if stored not in ("int8", "int4"):
        matrices = {}
    halves = kept_halves(model, dtype, device, stored)
    smooths = stored == "int8" and dtype is torch.bfloat16 and is_smoothed(model.config)
    if smooths:
        # Their factors depend on the states, so the model is filled first.
        for layer in layers_of_states(model):
            matrices.pop(layer.weight)
    types = wide_types(modules, dtype)
    for name, tensor in ready.items():
        parameters.pop(name).data = tensor.to(device)
    new = _allocator(device)
    elements = sum(each.numel() for each in parameters.values() if each not in matrices)
    with _copying(device, elements) as copy:
        for name, tensor in tensors:
            parameter = parameters.pop(name)
            if parameter in halves and tensor.dtype in STORED:
                _replace(halves[parameter], HalfWeight(tensor, dtype))
            elif parameter in matrices:
                modules = matrices[parameter]
                bits = block_bits(model, name, modules, stored)
                _replace(modules, _small_weight(name, tensor.to(device), dtype, bits))
            else:
                target = new(parameter.shape, types.get(parameter, dtype))
                parameter.data = target
                copy(tensor, target)
    assert not parameters, f"not read: {', '.join(parameters)}"
    if smooths:
        smooth(model)


def kept_halves(
    model: Transformer, dtype: torch.dtype, device: torch.device, stored: Stored | None
) -> Matrices:
    """The matrices that are not converted if their file has them in 16 bits. Encoders read many
    rows at once, whose products are faster with converted ones.
    """
    is_read = dtype is torch.float32 and device.type == "cpu" and model.config.decoder_layers
    return modules_of_matrices(model) if stored == "file" and is_read else {}


def _convert_buffers(
    modules: Sequence[nn.Module], dtype: torch.dtype, device: torch.device
) -> None:
    """Convert the buffers of modules and move them to a device."""
    for module in modules:
        for buffer in module._buffers.values():
            if buffer is not None:
                buffer.data = buffer.to(device=device, dtype=dtype)


def wide_types(
    modules: Sequence[nn.Module], dtype: torch.dtype
) -> dict[Tensor | None, torch.dtype]:
    """The parameters that are not converted to a type below float32, with their type."""
    wide = torch.promote_types(dtype, torch.float32)
    # Few classes have such parameters, and looking for what a class lacks takes long.
    names_of = {kind: getattr(kind, "wide_parameters", ()) for kind in set(map(type, modules))}
    return {getattr(module, name): wide for module in modules for name in names_of[type(module)]}


def _allocator(device: torch.device) -> Callable[[Sequence[int], torch.dtype], Tensor]:
    """A function that makes uninitialized tensors of a shape and type on a device."""
    memory = HugeMemory()

    def new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if device.type == "cpu" and prod(shape) >= MIN_FOR_HUGE_PAGES:
            return memory.empty(shape, dtype)
        return torch.empty(tuple(shape), dtype=dtype, device=device)

    return new


@contextmanager
def _copying(
    device: str | torch.device, elements: int
) -> Iterator[Callable[[Tensor, Tensor], None]]:
    """A function that copies a tensor to one of the same shape, in several threads if worthwhile.

    Neither may be used before the block ends.
    """
    threads = torch.get_num_threads()
    if torch.device(device).type != "cpu" or threads == 1 or elements < MIN_FOR_THREADS:
        yield _copy
        return
    inference = torch.is_inference_mode_enabled()  # a setting of each thread
    pending: deque[Future[None]] = deque()
    pool: ThreadPoolExecutor | None = None

    def copy_in_thread(source: Tensor, target: Tensor) -> None:
        with torch.inference_mode(inference):
            _copy(source, target)

    def copy(source: Tensor, target: Tensor) -> None:
        nonlocal pool
        if pool is None and source.numel() < MIN_FOR_POOL:
            _copy(source, target)
            return
        pool = pool or executor_sharing_cores(threads)
        for source_rows, target_rows in _chunks(source, target):
            pending.append(pool.submit(copy_in_thread, source_rows, target_rows))
            # Tensors are made on demand, and may not all fit into memory.
            if len(pending) > 2 * threads:
                pending.popleft().result()

    try:
        yield copy
        for copied in pending:
            copied.result()
    finally:
        if pool is not None:
            pool.shutdown()


def _chunks(source: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a large tensor, unless it is transposed, with those to which they are copied."""
    if source.numel() <= CHUNK or not source.is_contiguous():
        return iter([(source, target)])
    rows = max(1, CHUNK * len(source) // source.numel())
    return zip(source.split(rows), target.split(rows), strict=True)


@torch.no_grad()
def _copy(source: Tensor, target: Tensor) -> None:
    transposed = source.dim() == 2 and source.stride(0) == 1 and source.shape[0] > 1
    # For equal types, PyTorch copies block by block.
    if not transposed or source.dtype == target.dtype:
        target.copy_(source)
        return
    strips = zip(source.split(STRIP, 1), target.split(STRIP, 1), strict=True)
    for source_strip, target_strip in strips:
        target_strip.copy_(source_strip)


def named_matrices(model: Transformer) -> dict[str, nn.Parameter]:
    """The matrices that can be stored in few bits, by the names of their parameters."""
    matrices = modules_of_matrices(model)
    return {name: each for name, each in all_parameters(model).items() if each in matrices}


def block_bits(
    model: Transformer, name: str, modules: Sequence[nn.Module], stored: str | None
) -> int | None:
    """The bits of a matrix in blocks. In int8, 8; None for an encoder, whose int8 matmuls need a
    scale for each row. In int4, more for the matrices whose errors change predictions most.
    """
    is_encoder = model.config.shape == "encoder"
    if stored != "int4":
        return None if is_encoder else 8
    is_head, is_linear = (
        any(isinstance(module, kind) for module in modules) for kind in (LanguageModelHead, Linear)
    )
    if is_head or name.endswith(VALUES):
        return 6
    return 5 if ATTENTION in name or (is_encoder and is_linear) else 4


def _small_weight(
    name: str, matrix: Tensor, dtype: torch.dtype, bits: int | None
) -> QuantizedWeight:
    """The matrix in blocks of 32 columns; in int8 with a scale for each row if `bits` is None."""
    if bits is None:
        return Int8Weight.quantize(matrix, dtype)
    try:
        return BlockWeight.quantize(matrix, bits, dtype)
    except ValueError as error:
        raise CheckpointError(f"{name} {error}; load the model without `weights`") from None


def _replace(modules: Sequence[nn.Module], weight: QuantizedWeight) -> None:
    """Make this the weight of modules that share one."""
    for module in modules:
        # As the attribute is deleted and set, in a fraction of the time.
        module._parameters.pop("weight", None)  # the module may be there twice
        module._modules["weight"] = weight


def modules_of_matrices(model: Transformer) -> Matrices:
    """The matrices that can be stored in few bits, each with the modules that share it."""
    return _quantizable(all_modules(model))


def _quantizable(modules: Sequence[nn.Module]) -> Matrices:
    modules_of: Matrices = {}
    for module in modules:
        if isinstance(module, QUANTIZABLE):
            modules_of.setdefault(module.weight, []).append(module)
    return modules_of
