"""Small encoders that read short packed rows in fp32 on one thread: one call of `encoder_loops`
computes all layers, for heads of one state without the other states of the last one.

`encoder_block` computes one layer at a time, of more kinds of encoders. Between layers a thread
needs the lock of the interpreter, which the threads of `trifold predict` share. A table is
predicted 1.09 times as fast as with `encoder_block` (0.90 to 1.46 in three pairs of runs of
benchmarks/predict_table.py).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trifold.fast import as_array, compiled_loops, is_autocast, is_eager_cpu
from trifold.fast.attention import is_plain
from trifold.fast.instruction import ACTIVATIONS
from trifold.fast.layers import is_matrix
from trifold.nn.attention import Attention
from trifold.nn.layers import FeedForward, Residual
from trifold.nn.norms import LayerNorm
from trifold.nn.packing import Packing
from trifold.nn.parts import has_plain_attention
from trifold.nn.stack import Block, Stack
from trifold.nn.walk import StackInputs

LANES = 16  # numbers of a register of AVX-512
MIN_TOKENS = 1024  # from which it is worth its compiled code and the copies of the weights
MAX_LENGTH = 128  # of a row
MAX_WEIGHTS = 2**22  # of the layers, which each thread copies; `encoder_block` has no copies


class LayerWeights(NamedTuple):
    """The weights of a layer in the order of `encoder_loops`."""

    qkv: Tensor
    qkv_bias: Tensor
    o: Tensor
    o_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    inner: Tensor
    inner_bias: Tensor
    out: Tensor
    out_bias: Tensor
    last_norm: Tensor
    last_norm_bias: Tensor

    @classmethod
    def of(cls, block: Any) -> LayerWeights:
        """Those of a block."""
        attention = block.self_attention
        network = block.feed_forward
        layer = attention.sublayer
        projections = (layer.q_proj, layer.k_proj, layer.v_proj)
        return cls(
            torch.cat([each.weight for each in projections]),
            torch.cat([each.bias for each in projections]),
            *(layer.o_proj.weight, layer.o_proj.bias),
            *(attention.after.weight, attention.after.bias),
            *(network.sublayer.in_proj.weight, network.sublayer.in_proj.bias),
            *(network.sublayer.out_proj.weight, network.sublayer.out_proj.bias),
            *(network.after.weight, network.after.bias),
        )

    def write(self, out: NDArray[np.float32]) -> None:
        """Write the parts one after the other, matrices as panels."""
        from trifold.fast.encoder_loops import PANEL, pack_panels

        place = 0
        for part in self:
            target = out[place : place + part.numel()]
            place += part.numel()
            if part.dim() == 1:
                target[:] = as_array(part)
            else:
                pack_panels(as_array(part), target.reshape(-1, part.shape[1], PANEL))


# --- what is supported ----------------------------------------------------------------------------


def supports_packed_encoder(stack: Stack, x: Tensor, inputs: StackInputs) -> bool:
    """Whether `packed_encoder` computes the layers of a stack for x (1, N, E)."""
    packing = inputs.mask.packing
    if not isinstance(packing, Packing) or not _is_supported_input(x, packing):
        return False
    mask = inputs.mask
    if mask.causal or not mask.has_only() or mask.keys is not packing.attend:
        return False
    if inputs.bias is not None or len(inputs.rotations) > 0 or inputs.memory is not None:
        return False
    if type(stack) is not Stack or stack.is_watched() or not has_plain_attention(stack.config):
        return False
    if stack.streams > 1 or any(window is not None for window in stack.windows):
        return False
    weights = sum(weight.numel() for weight in stack.parameters())
    return weights <= MAX_WEIGHTS and all(map(_is_supported_block, stack.blocks))


def _is_supported_input(x: Tensor, packing: Packing) -> bool:
    """Whether one thread of a processor with AVX-512 reads many tokens of short rows in fp32."""
    if torch.is_grad_enabled() or x.dtype is not torch.float32 or not is_eager_cpu(x):
        return False
    if is_autocast(x) or torch.get_num_threads() > 1 or compiled_loops() is None:
        return False
    is_worth = packing.n_real >= MIN_TOKENS and packing.shape[1] <= MAX_LENGTH
    return is_worth and has_wide_vectors()


@cache
def has_wide_vectors() -> bool:
    """Whether the registers of this processor hold the sums of a tile."""
    return torch.cpu._is_avx512_supported()


def _is_supported_block(block: nn.Module) -> bool:
    """Whether a block is one of the paper, with norms after the sub-layers (placement post)."""
    if type(block) is not Block or block.cross_attention is not None:
        return False
    attention: Any = block.self_attention
    network: Any = block.feed_forward
    if not (_is_supported_residual(attention) and _is_supported_residual(network)):
        return False
    layer = attention.sublayer
    if type(layer) is not Attention or layer.drop.active or layer.watched or not is_plain(layer):
        return False
    inner = network.sublayer
    if type(inner) is not FeedForward or inner.gate_proj is not None or inner.drop.active:
        return False
    if inner.watched or inner.activation_name not in ACTIVATIONS:
        return False
    if layer.head_width % LANES:
        return False
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    return all(map(_is_supported_linear, (*projections, inner.in_proj, inner.out_proj)))


def _is_supported_residual(residual: Residual) -> bool:
    """Whether it is a norm of the sum, and nothing else."""
    is_post = type(residual.after) is LayerNorm and residual.after.bias is not None
    has_others = any(type(each) is not nn.Identity for each in (residual.enter, residual.exit))
    return is_post and not has_others and not residual.drop.active and residual.scale == 1.0


def _is_supported_linear(layer: Any) -> bool:
    """Whether tiles compute the layer."""
    if not is_matrix(layer) or layer.bias is None or layer.weight.dtype is not torch.float32:
        return False
    return all(size % (2 * LANES) == 0 for size in layer.weight.shape)


# --- all layers -----------------------------------------------------------------------------------


def layers(stack: Stack, x: Tensor, inputs: StackInputs) -> Tensor:
    """See `nn.ops.layers`."""
    if not supports_packed_encoder(stack, x, inputs):
        return stack.run_layers(x, inputs)
    states: Tensor = stack.final_norm(packed_encoder(stack, x, inputs.mask.packing))
    return states


def packed_encoder(stack: Stack, x: Tensor, packing: Any, chosen: Tensor | None = None) -> Tensor:
    """The layers of a stack for packed x (1, N, E), which `supports_packed_encoder` -> (1, N, E);
    or only the states (B, E) of the tokens chosen (B,) from the N, one of each row.
    """
    from trifold.fast.encoder_loops import encode

    blocks: list[Any] = [stack.blocks[number] for number in stack.block_of_layer]
    of_layers = [LayerWeights.of(block) for block in blocks]
    sizes = [part.numel() for part in of_layers[0]]
    weights = np.empty((len(blocks), sum(sizes)), np.float32)
    for layer, target in zip(of_layers, weights, strict=True):
        layer.write(target)
    attention = blocks[0].self_attention
    network = blocks[0].feed_forward.sublayer
    width = x.shape[2]
    head_width = attention.sublayer.head_width
    out = torch.zeros(x.shape[1] if chosen is None else len(chosen), width)
    activation = ACTIVATIONS[network.activation_name]
    places = np.cumsum([0, *sizes])
    encode()(
        as_array(x[0]),
        as_array(packing.starts),
        (weights, places, width // head_width, activation, attention.after.epsilon),
        as_array(packing.starts[:0] if chosen is None else chosen),
        as_array(out),
        _memory(packing.shape[1], width, head_width, len(network.in_proj.weight)),
    )
    return out[None] if chosen is None else out


def _memory(longest: int, width: int, head_width: int, inner: int) -> tuple[Any, ...]:
    """The memory of `encoder_loops.encode` for rows up to a length."""
    from trifold.fast.encoder_loops import BLOCK, HEAD_TILE, TILE

    tokens = max(BLOCK, longest) + TILE
    of_attention = LANES + (head_width + longest + HEAD_TILE) * (longest + LANES)
    sizes = (width, width, width, width, 2 * width, inner)
    of_tokens = [np.zeros((tokens, size), np.float32) for size in sizes]
    return (*of_tokens, np.zeros(of_attention, np.float32))
