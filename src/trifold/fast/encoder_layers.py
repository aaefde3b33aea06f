"""All layers of an encoder in one compiled function; replaces `nn.ops.layers`.

A thread of its own (`thread_pool.map_on`) reads packed rows, or images, with the loops of
`block_loops`, in fp32, bf16 or int8. Between layers it does not need the lock of the interpreter,
which the threads of `trifold predict` share. Everything else takes the operations of the layers.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from trifold.fast import as_array, compiled_block, has_instructions, is_autocast, is_eager_cpu
from trifold.fast.attention import has_plain_products
from trifold.fast.instruction import ACTIVATIONS
from trifold.fast.instruction_sets import LaneInstructions, instruction_set
from trifold.fast.int8 import Int8Weight
from trifold.fast.int8_linear import has_hooks, int8_weight
from trifold.nn.attention import Attention, ScoreBias
from trifold.nn.layers import FeedForward, Linear, Residual
from trifold.nn.masks import Mask
from trifold.nn.norms import LayerNorm, RMSNorm
from trifold.nn.packing import Packing
from trifold.nn.parts import has_packed_attention
from trifold.nn.stack import Block, Stack, all_modules
from trifold.nn.walk import StackInputs

LANES = 16  # numbers that the loops read at a time
CACHE_LINE = 64  # bytes
SUPPORTED = ("gelu", "gelu-tanh", "relu")  # activations
NORMS = (LayerNorm, RMSNorm)
PRECISIONS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# Type of quantized rows -> that of the weights with which they are multiplied.
INTEGERS = {np.uint8: torch.int8, np.int16: torch.int16}
MIN_TOKENS = 256  # from which they are worth the loading of the loops

Array = NDArray[Any]


def layers(stack: Stack, x: Tensor, inputs: StackInputs) -> Tensor:
    """See `nn.ops.layers`."""
    if not supports_encoder_layers(stack, x, inputs):
        return stack.run_layers(x, inputs)
    states: Tensor = stack.final_norm(encoder_layers(stack, x, inputs))
    return states


# --- what is supported ----------------------------------------------------------------------------


def supports_encoder_layers(stack: Stack, x: Tensor, inputs: StackInputs) -> bool:
    """Whether one thread computes the layers, which are those of BERT, MPNet, T5 or a vision
    Transformer without a hook, for many tokens without a gradient, and the processor has the
    instructions.
    """
    if torch.is_grad_enabled() or not is_eager_cpu(x) or torch.get_num_threads() > 1:
        return False
    if x.dtype not in (torch.float32, torch.bfloat16) or is_autocast(x):
        return False
    if type(stack) is not Stack or x.shape[0] * x.shape[1] < MIN_TOKENS:
        return False
    if not has_packed_attention(stack.config) or stack.streams > 1:
        return False
    if any(window is not None for window in stack.windows):
        return False
    return (
        _reads_whole_rows(x, inputs)
        and not any(
            getattr(each, "watched", False) or has_hooks(each) for each in all_modules(stack)
        )
        and _are_alike(stack, x.dtype)
        and compiled_block() is not None
        and has_instructions(_precision(stack))
        and _fits_sums(stack)
    )


def _precision(stack: Stack) -> str:
    """The precision of the matmuls with weights, one of `LaneInstructions.products`."""
    weight: Any = _layers(cast(Block, stack.blocks[0]))[0].weight
    return "int8" if isinstance(weight, Int8Weight) else PRECISIONS[weight.dtype]


def _fits_sums(stack: Stack) -> bool:
    """Whether no sum of products of integers, if there are any, exceeds 32 bits."""
    if _precision(stack) != "int8":
        return True
    blocks: list[Any] = [*stack.blocks]
    inputs = [each.weight.shape[1] for block in blocks for each in _layers(block)]
    return max(inputs) <= _set().most_inputs


def _reads_whole_rows(x: Tensor, inputs: StackInputs) -> bool:
    """Whether each token attends to its row, packed or without padding, and to nothing else, with
    a bias that all rows share, if any.
    """
    mask = inputs.mask
    if inputs.memory is not None or len(inputs.rotations) > 0:
        return False
    if inputs.bias is not None and not _is_shared(inputs.bias, x, mask):
        return False
    if mask.causal or not mask.has_only():
        return False
    if isinstance(mask.packing, Packing):
        return mask.keys is None or mask.keys is mask.packing.attend
    return mask.keys is None


def _is_shared(bias: ScoreBias, x: Tensor, mask: Mask) -> bool:
    """Whether a bias is (1, H, T, T), the same for all rows."""
    width = mask.count(x)
    return isinstance(bias, Tensor) and len(bias) == 1 and bias.shape[2:] == (width, width)


def _are_alike(stack: Stack, dtype: torch.dtype) -> bool:
    """Whether all blocks are supported and differ in their weights only."""
    blocks: list[Any] = [*stack.blocks]
    if not all(_is_classical(block) and _has_weights(block, dtype) for block in blocks):
        return False
    kinds = {(norm.epsilon, *_kind(block)) for block in blocks for norm in _norms(block)}
    return len(kinds) == 1


def _kind(block: Any) -> tuple[Any, ...]:
    """The placement of the norms and their types, the width of a head and the scale of scores, the
    width and the activation of the feed-forward network, and whether its weights are in int8.
    """
    network = block.feed_forward.sublayer
    attention = block.self_attention.sublayer
    is_int8 = isinstance(network.in_proj.weight, Int8Weight)
    inner = len(network.in_proj.weight)
    return (
        _placement(block),
        *map(type, _norms(block)),
        attention.head_width,
        attention.query_scale,
        inner,
        network.activation_name,
        is_int8,
    )


def _is_classical(layer: nn.Module) -> bool:
    """Whether a block has the attention, the network and the norms that the loops compute."""
    if type(layer) is not Block:
        return False
    attention = layer.self_attention.sublayer
    network = layer.feed_forward.sublayer
    if layer.cross_attention is not None or type(network) is not FeedForward:
        return False
    if type(attention) is not Attention or not has_plain_products(attention):
        return False
    if attention.q_proj.weight.shape[0] != attention.q_proj.weight.shape[1]:
        return False
    if network.gate_proj is not None or network.activation_name not in SUPPORTED:
        return False
    if any(module.active for module in (attention.drop, network.drop)):
        return False
    return _placement(layer) is not None and attention.head_width % LANES == 0


def _placement(layer: Block) -> str | None:
    """Where both sub-layers have their norm: "pre" or "post"; None if it is elsewhere, or the sum
    is not plain.
    """
    found = set[tuple[int, ...]]()
    for residual in (layer.self_attention, layer.feed_forward):
        if residual.drop.active or residual.scale != 1:
            return None
        kinds = [type(each) for each in (residual.enter, residual.exit, residual.after)]
        found.add(tuple(int(kind in NORMS) for kind in kinds))
        if not set(kinds) <= {*NORMS, nn.Identity}:
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
    """The linear layers of a block in the order of their use."""
    attention: Any = layer.self_attention.sublayer
    network: Any = layer.feed_forward.sublayer
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, network.in_proj, network.out_proj]


def _norms(block: Any) -> list[LayerNorm | RMSNorm]:
    """The norms of a block in the order of their use."""
    residuals = (block.self_attention, block.feed_forward)
    is_pre = _placement(block) == "pre"
    return [residual.enter if is_pre else residual.after for residual in residuals]


# --- weights --------------------------------------------------------------------------------------


class Weights:
    """The weights of a block for the loops: see `block_loops.ADDRESSES`."""

    def __init__(self, block: Block) -> None:
        *projections, out, first, second = _layers(block)
        self.tensors: list[Tensor | None] = [_values(layer) for layer in _layers(block)]
        for linears in (projections, [out], [first], [second]):
            self.tensors += _finishing(linears)
        for norm in _norms(block):
            self.tensors += _norm_vectors(norm)
        self.addresses = [0 if each is None else each.data_ptr() for each in self.tensors]


def _norm_vectors(norm: LayerNorm | RMSNorm) -> list[Tensor | None]:
    """Weight and bias (E,) of a norm. An RMS norm has no bias."""
    if isinstance(norm, RMSNorm):
        weight = torch.ones(norm.width) if norm.weight is None else norm.factor
        return [_vector(weight), None]
    assert isinstance(norm.weight, Tensor)
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return [_vector(norm.weight), _vector(bias)]


def _values(layer: Linear) -> Tensor:
    """The matrix (N, K) of fp32, bf16 or integers."""
    weight: Any = layer.weight
    if isinstance(weight, Int8Weight):
        values: Tensor = weight.values.to(INTEGERS[_set().products["int8"]])
    else:
        values = weight.detach()
    return values.contiguous()


def _set() -> LaneInstructions:
    found = instruction_set()
    assert found is not None, "see `supports_encoder_layers`"
    return found


def _finishing(linears: list[Linear]) -> list[Tensor | None]:
    """What the products of layers with the same inputs are finished with: biases; of int8 scales,
    sums and factors.
    """
    biases = [
        torch.zeros(len(each.weight)) if each.bias is None else _vector(each.bias)
        for each in linears
    ]
    bias = _joined(biases)
    if not isinstance(linears[0].weight, Int8Weight):
        return [bias, None, None, None]
    weights = [int8_weight(each) for each in linears]
    factors = weights[0].factors
    return [
        bias,
        _joined([_vector(weight.scales) for weight in weights]),
        _joined([_vector(weight.sums) for weight in weights]),
        None if factors is None else _vector(factors),
    ]


def _joined(vectors: list[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)


def _vector(values: Tensor) -> Tensor:
    """A vector in fp32."""
    return values.detach().float().contiguous()


# --- memory ---------------------------------------------------------------------------------------


class Shapes(NamedTuple):
    """What the memory of a thread depends on. attending: the type of queries, keys and values.
    entering: that of the rows that enter a matmul with weights.
    """

    width: int
    inner: int
    heads: int
    longest: int
    attending: np.dtype[Any]
    entering: np.dtype[Any]


_memories = threading.local()


def _memory_of(shapes: Shapes) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
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
    # With those that tiles, and blocks of keys, read beyond the last one.
    rows = loops.CHUNK_ROWS + shapes.longest + max(loops.ROWS, LANES)
    inner_rows = loops.INNER_ROWS + loops.ROWS
    keys = -(-shapes.longest // LANES) * LANES
    head_width = shapes.width // shapes.heads
    attending = shapes.attending
    entering = shapes.entering
    words = head_width * attending.itemsize // 4
    is_same = attending == entering
    in_rows = aligned((rows, _spread(shapes.width, entering)), entering)
    inner = aligned((inner_rows, _spread(shapes.inner, entering)), entering)
    qkv = aligned((rows, 3 * shapes.width), attending)
    scores = aligned((loops.QUERIES, keys), np.float32)
    memory = loops.ChunkMemory(
        entering=in_rows,
        scales=np.zeros(rows, np.float32),
        zeros=np.zeros(rows, np.float32),
        qkv=qkv,
        qkv_words=qkv.view(np.uint32),
        heads=in_rows if is_same else aligned((rows, shapes.width), np.float32),
        sums=aligned((rows, shapes.width), np.float32),
        row=np.zeros(shapes.width, np.float32),
        tile=aligned((max(loops.ROWS * loops.COLUMNS, loops.QUERIES * head_width),), np.float32),
        activated=inner if is_same else aligned((inner_rows, shapes.inner), np.float32),
        inner=inner,
        keys=aligned((keys // LANES, words, LANES), np.uint32),
        values=aligned((head_width // LANES, keys, LANES), np.uint32),
        scores=scores,
        weights=scores if attending == np.float32 else aligned((loops.QUERIES, keys), attending),
        inverses=np.zeros(loops.QUERIES, np.float32),
    )
    return tuple(memory)


def _new_tiles(shapes: Shapes) -> tuple[Array, ...]:
    """Memory for the tiles of each weight of a layer."""
    per_word = 4 // shapes.entering.itemsize
    sizes = (
        (3 * shapes.width, shapes.width),
        (shapes.width, shapes.width),
        (shapes.inner, shapes.width),
        (shapes.width, shapes.inner),
    )
    columns = compiled_block().COLUMNS
    return tuple(
        aligned((-(-outputs // columns), inputs // per_word, columns), np.uint32)
        for outputs, inputs in sizes
    )


def _spread(width: int, dtype: np.dtype[Any]) -> int:
    """The width of rows that are read together: an odd number of cache lines. The lines of a column
    would compete for the same places of the cache if rows were a multiple of 4096 bytes apart.
    """
    of_line = CACHE_LINE // dtype.itemsize
    lines = -(-width // of_line)
    return (lines | 1) * of_line


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that starts at a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    array: Array = memory[start : start + size].view(dtype).reshape(shape)
    return array


# --- all layers -----------------------------------------------------------------------------------


def encoder_layers(
    stack: Stack, x: Tensor, inputs: StackInputs, chosen: Tensor | None = None
) -> Tensor:
    """The layers of a stack: x (B, T, E), or packed (1, N, E) -> the same shape; or, without a bias
    of scores, only the states (B, E) of the tokens chosen (B,) from the N, one of each row, which
    changes x.
    """
    assert chosen is None or inputs.bias is None
    loops = compiled_block()
    blocks: list[Any] = [*stack.blocks]
    packing = inputs.mask.packing
    if isinstance(packing, Packing):
        starts = packing.starts.numpy()
        longest = packing.shape[1]
    else:
        longest = x.shape[1]
        starts = np.arange(x.shape[0] + 1) * longest
    attention = blocks[0].self_attention.sublayer
    first = blocks[0].feed_forward.sublayer.in_proj
    products = _set().products
    shapes = Shapes(
        width=x.shape[2],
        inner=len(first.weight),
        heads=x.shape[2] // attention.head_width,
        longest=longest,
        attending=np.dtype(products.get(PRECISIONS[x.dtype], np.float32)),
        entering=np.dtype(products[_precision(stack)]),
    )
    memory, tiles = _memory_of(shapes)
    weights = [Weights(block) for block in blocks]
    activation = ACTIVATIONS[blocks[0].feed_forward.sublayer.activation_name]
    addresses = np.array([weights[block].addresses for block in stack.block_of_layer], np.int64)
    options = loops.Options(
        heads=shapes.heads,
        is_pre=_placement(blocks[0]) == "pre",
        epsilon=np.float32(_norms(blocks[0])[0].epsilon),
        activation=activation,
        query_scale=np.float32(attention.query_scale),
        bias=as_array(_bias_rows(inputs.bias, attention)),
    )
    read = as_array(x).reshape(-1, x.shape[2])
    if chosen is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        written = states = as_array(out).reshape(read.shape)
    else:
        out = x.new_empty(len(chosen), x.shape[2])
        written = as_array(out)
        states = read
    loops.run_layers(
        read,
        starts,
        starts[:0] if chosen is None else chosen.numpy(),
        addresses,
        tuple(options),
        memory,
        tiles,
        states,
        written,
    )
    return out


def _bias_rows(bias: ScoreBias | None, attention: Attention) -> Tensor:
    """A bias (1, H, T, S) of scores, divided by their scale -> (H·T, S') fp32, S' a multiple of
    LANES; (0, LANES) if there is none.
    """
    if bias is None:
        return torch.empty(0, LANES)
    assert isinstance(bias, Tensor), "see `supports_encoder_layers`"
    rows = bias[0].float().flatten(0, 1) / attention.scale
    return F.pad(rows, (0, -rows.shape[1] % LANES))
