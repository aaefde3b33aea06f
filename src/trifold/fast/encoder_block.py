"""Blocks of encoders in one compiled function; replaces `nn.ops.block`.

A thread of its own (`thread_pool.map_on`) reads packed rows, or images, with the loops of
`block_loops`, in fp32, bf16 or int8. Everything else takes the operations of the layers.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trifold.fast import as_array, compiled_block, is_autocast, is_eager_cpu
from trifold.fast.attention import is_plain
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_linear import has_hooks, int8_weight
from trifold.nn.attention import Attention
from trifold.nn.layers import FeedForward, Linear, Residual
from trifold.nn.norms import LayerNorm
from trifold.nn.ops import block as plain_block
from trifold.nn.packing import Packing
from trifold.nn.stack import Block
from trifold.nn.walk import LayerInputs

LANES = 16  # numbers of an AVX-512 register
MIN_TOKENS = 256  # from which they are worth their loading

Array = NDArray[Any]


def block(layer: nn.Module, x: Tensor, inputs: LayerInputs) -> Tensor:
    """See `nn.ops.block`."""
    if not supports_encoder_block(layer, x, inputs):
        return plain_block(layer, x, inputs)
    assert isinstance(layer, Block), "see `supports_encoder_block`"
    return encoder_block(layer, x, inputs)


# --- what is supported ----------------------------------------------------------------------------


def supports_encoder_block(layer: nn.Module, x: Tensor, inputs: LayerInputs) -> bool:
    """Whether one thread computes the block, which is that of BERT or a vision Transformer without
    a hook, for many tokens without a gradient, and the processor has the instructions.
    """
    if torch.is_grad_enabled() or not is_eager_cpu(x) or torch.get_num_threads() > 1:
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or is_autocast(x):
        return False
    if type(layer) is not Block or x.shape[0] * x.shape[1] < MIN_TOKENS:
        return False
    return (
        _reads_whole_rows(inputs)
        and _is_classical(layer)
        and _has_weights(layer, x.dtype)
        and compiled_block() is not None
        and has_instructions()
    )


def _reads_whole_rows(inputs: LayerInputs) -> bool:
    """Whether each token attends to its row, packed or without padding, and to nothing else."""
    mask = inputs.mask
    if inputs.memory is not None or inputs.bias is not None or inputs.rotary is not None:
        return False
    if mask.causal or not mask.has_only():
        return False
    if isinstance(mask.packing, Packing):
        return mask.keys is None or mask.keys is mask.packing.attend
    return mask.keys is None


def _is_classical(layer: Block) -> bool:
    """Whether the block has the attention, the network and the norms that the loops compute."""
    attention = layer.self_attention.sublayer
    network = layer.feed_forward.sublayer
    if layer.cross_attention is not None or type(network) is not FeedForward:
        return False
    if type(attention) is not Attention or not is_plain(attention):
        return False
    if network.gate_proj is not None or network.activation_name != "gelu":
        return False
    if any(module.active for module in (attention.drop, network.drop)):
        return False
    if _placement(layer) is None or attention.head_width % LANES:
        return False
    modules = layer.modules()
    return not any(getattr(each, "watched", False) or has_hooks(each) for each in modules)


def _placement(layer: Block) -> str | None:
    """Where both sub-layers have their norm: "pre" or "post"; None if it is elsewhere, or the sum
    is not plain.
    """
    found = set[tuple[int, ...]]()
    for residual in (layer.self_attention, layer.feed_forward):
        if residual.drop.active or residual.scale != 1:
            return None
        kinds = [type(each) for each in (residual.enter, residual.exit, residual.after)]
        found.add(tuple(int(kind is LayerNorm) for kind in kinds))
        if not set(kinds) <= {LayerNorm, nn.Identity}:
            return None
    if len(found) > 1:
        return None
    names = [name for name in ("pre", "post") if Residual.PLACEMENTS[name] in found]
    return names[0] if names else None


def _has_weights(layer: Block, dtype: torch.dtype) -> bool:
    """Whether all matrices are dense ones of the type of the states, or all in int8, of sizes that
    fill registers.
    """
    layers = _layers(layer)
    if any(type(each) is not Linear for each in layers):
        return False
    if any(size % LANES for each in layers for size in each.weight.shape):
        return False
    if all(isinstance(each.weight, Int8Weight) for each in layers):
        factors = [int8_weight(each).factors for each in layers[:3]]
        return dtype is torch.bfloat16 and all(each is factors[0] for each in factors)
    dense = (Tensor, nn.Parameter)
    return all(type(each.weight) in dense and each.weight.dtype is dtype for each in layers)


def _layers(layer: Block) -> list[Linear]:
    """Its linear layers in the order of their use."""
    attention: Any = layer.self_attention.sublayer
    network: Any = layer.feed_forward.sublayer
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, network.in_proj, network.out_proj]


@cache
def has_instructions() -> bool:
    """Whether this processor has the instructions of `lanes`, and no unit for matrices, with which
    the library of PyTorch is faster.
    """
    import llvmlite.binding as llvm

    from trifold.fast.lanes import FEATURES

    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # unknown to LLVM
        return False
    has_all = all(features.get(name, False) for name in FEATURES)
    return has_all and not features.get("amx-tile", False)


# --- weights --------------------------------------------------------------------------------------


class Matrix(NamedTuple):
    """A weight (N, K) with what its products are finished with; see `block_loops.Weight`."""

    values: Tensor
    bias: Tensor
    scales: Tensor
    sums: Tensor
    factors: Tensor


def _matrix(layers: list[Linear]) -> Matrix:
    """The matrices of layers with the same inputs, one below the other."""
    sizes = [layer.weight.shape[0] for layer in layers]
    biases = [
        torch.zeros(size) if layer.bias is None else layer.bias.detach().float()
        for layer, size in zip(layers, sizes, strict=True)
    ]
    bias = torch.cat(biases)
    empty = torch.empty(0)
    if not isinstance(layers[0].weight, Int8Weight):
        values = [layer.weight.detach() for layer in layers]
        return Matrix(torch.cat(values), bias, empty, empty, empty)
    weights = [int8_weight(layer) for layer in layers]
    weight = weights[0] if len(weights) == 1 else Int8Weight.stacked(weights)
    factors = empty if weight.factors is None else weight.factors
    return Matrix(weight.values, bias, weight.scales, weight.sums, factors)


def _words(values: Tensor) -> Array:
    """A matrix (N, K) of int8, bf16 or fp32 as words of 32 bits (N, W)."""
    return as_array(values).view(np.uint32)


# --- memory ---------------------------------------------------------------------------------------


class Shapes(NamedTuple):
    """What the memory of a thread depends on. entering: the type of rows that enter a matmul."""

    width: int
    inner: int
    heads: int
    longest: int
    states: torch.dtype
    entering: torch.dtype


_memories = threading.local()


def _memory_of(shapes: Shapes) -> tuple[tuple[Array, ...], list[Array]]:
    """The memory of a thread for chunks, and for the tiles of weights; kept, because new memory is
    slow.
    """
    found = getattr(_memories, "memory", None)
    if found is None or not _covers(found[0], shapes):
        found = shapes, _new_memory(shapes), _new_tiles(shapes)
        _memories.memory = found
    return found[1], found[2]


def _covers(kept: Shapes, needed: Shapes) -> bool:
    """Whether memory that was made for `kept` suffices."""
    return kept.longest >= needed.longest and kept._replace(longest=needed.longest) == needed


def _new_memory(shapes: Shapes) -> tuple[Array, ...]:
    loops = compiled_block()
    rows = loops.CHUNK_ROWS + shapes.longest + loops.ROWS
    inner_rows = loops.INNER_ROWS + loops.ROWS
    keys = -(-shapes.longest // LANES) * LANES
    head_width = shapes.width // shapes.heads
    states = _numpy_type(shapes.states)
    entering = _numpy_type(shapes.entering)
    words = head_width * states.itemsize // 4
    is_int8 = shapes.entering is torch.uint8
    in_rows = aligned((rows, shapes.width), entering)
    inner = aligned((inner_rows, shapes.inner), entering)
    qkv = aligned((rows, 3 * shapes.width), states)
    scores = aligned((loops.QUERIES, keys), np.float32)
    memory = loops.ChunkMemory(
        entering=in_rows,
        scales=np.zeros(rows, np.float32),
        zeros=np.zeros(rows, np.float32),
        qkv=qkv,
        qkv_words=qkv.view(np.uint32),
        heads=aligned((rows, shapes.width), np.float32) if is_int8 else in_rows,
        sums=aligned((rows, shapes.width), np.float32),
        row=np.zeros(shapes.width, np.float32),
        tile=aligned((max(loops.ROWS * loops.COLUMNS, loops.QUERIES * head_width),), np.float32),
        activated=aligned((inner_rows, shapes.inner), np.float32) if is_int8 else inner,
        inner=inner,
        keys=aligned((keys // LANES, words, LANES), np.uint32),
        values=aligned((head_width // LANES, keys, LANES), np.uint32),
        scores=scores,
        weights=scores if states == np.float32 else aligned((loops.QUERIES, keys), states),
        inverses=np.zeros(loops.QUERIES, np.float32),
    )
    return tuple(memory)


def _new_tiles(shapes: Shapes) -> list[Array]:
    """Memory for the tiles of each weight."""
    per_word = 4 // _numpy_type(shapes.entering).itemsize
    sizes = (
        (3 * shapes.width, shapes.width),
        (shapes.width, shapes.width),
        (shapes.inner, shapes.width),
        (shapes.width, shapes.inner),
    )
    columns = compiled_block().COLUMNS
    return [
        aligned((-(-outputs // columns), inputs // per_word, columns), np.uint32)
        for outputs, inputs in sizes
    ]


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """The type of arrays; bf16 is uint16."""
    return as_array(torch.empty(0, dtype=dtype)).dtype


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that starts at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array: Array = memory[start : start + size].view(dtype).reshape(shape)
    return array


# --- a block --------------------------------------------------------------------------------------


def encoder_block(layer: Block, x: Tensor, inputs: LayerInputs) -> Tensor:
    """x (B, T, E), or packed (1, N, E) -> the same shape."""
    loops = compiled_block()
    attention: Any = layer.self_attention.sublayer
    packing = inputs.mask.packing
    if isinstance(packing, Packing):
        starts = packing.starts.numpy()
        longest = packing.shape[1]
    else:
        longest = x.shape[1]
        starts = np.arange(x.shape[0] + 1) * longest
    *projections, out, first, second = _layers(layer)
    is_int8 = isinstance(out.weight, Int8Weight)
    shapes = Shapes(
        width=x.shape[2],
        inner=len(first.weight),
        heads=x.shape[2] // attention.head_width,
        longest=longest,
        states=x.dtype,
        entering=torch.uint8 if is_int8 else x.dtype,
    )
    memory, tiles = _memory_of(shapes)
    weights = tuple(
        _packed(_matrix(layers), own)
        for layers, own in zip((projections, [out], [first], [second]), tiles, strict=True)
    )
    is_pre = _placement(layer) == "pre"
    norms: list[Any] = [
        residual.enter if is_pre else residual.after
        for residual in (layer.self_attention, layer.feed_forward)
    ]
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat = as_array(x).reshape(-1, x.shape[2])
    loops.run_block(
        flat,
        starts,
        weights,
        tuple(map(_norm, norms)),
        shapes.heads,
        is_pre,
        np.float32(norms[0].epsilon),
        memory,
        as_array(result).reshape(flat.shape),
    )
    return result


def _packed(matrix: Matrix, tiles: Array) -> tuple[Array, ...]:
    """A matrix with its tiles, for the loops: the fields of `block_loops.Weight`."""
    compiled_block().pack(_words(matrix.values), tiles)
    return tiles, *(as_array(each.float()) for each in matrix[1:])


def _norm(norm: Any) -> tuple[Array, Array]:
    """Weight and bias of a norm in fp32."""
    weight = norm.weight.detach().float()
    bias = torch.zeros_like(weight) if norm.bias is None else norm.bias.detach().float()
    return as_array(weight), as_array(bias)
