"""Heads that read one state of each row, as that of [CLS]: the last block computes no other.

Only its keys and values need all tokens. Of an encoder with 2 layers that saves 40 % of the
products, of one with 12 layers 7 %.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trifold.fast import enabled
from trifold.fast.encoder_layers import encoder_layers, supports_encoder_layers
from trifold.nn import Inputs, Transformer
from trifold.nn.attention import Attention
from trifold.nn.embeddings import default_segments
from trifold.nn.heads import Classes
from trifold.nn.inputs import Request
from trifold.nn.layers import FeedForward
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.nn.parts import has_plain_attention, input_rules
from trifold.nn.stack import Block, Stack
from trifold.nn.walk import StackInputs


def head_output(model: Transformer, inputs: Inputs, name: str) -> Tensor:
    """The output of one head; see `Transformer.head_outputs`."""
    if enabled() and reads_one_state(model, inputs, name):
        return output_of_one_state(model, inputs, name)
    return model.head_outputs(inputs, heads=[name])[name]


def reads_one_state(model: Transformer, inputs: Inputs, name: str) -> bool:
    """Whether the head reads one state of an encoder whose last block is classical, and nothing
    needs the others: no gradient, no hook.
    """
    stack = model.encoder
    head = model.heads[name.replace("-", "_")] if name != "lm" else None
    if not isinstance(head, Classes) or type(stack) is not Stack or model.decoder is not None:
        return False
    if torch.is_grad_enabled() or inputs.pixels is not None or not head.reads_one_state:
        return False
    if not has_plain_attention(model.config) or input_rules(model.config, inputs):
        return False
    block: Any = stack.blocks[stack.block_of_layer[-1]]
    is_classical = type(block) is Block and type(block.self_attention.sublayer) is Attention
    return (
        is_classical and type(block.feed_forward.sublayer) is FeedForward and not stack.is_watched()
    )


def output_of_one_state(model: Transformer, inputs: Inputs, name: str) -> Tensor:
    """The output (B, …) of a head that reads one state of each row."""
    stack = model.encoder
    head: Any = model.heads[name.replace("-", "_")]
    assert stack is not None and model.encoder_embeddings is not None
    inputs = replace(inputs, segments=default_segments(model.config, inputs))
    x = model.encoder_embeddings(inputs)
    mask = Mask(inputs.real, packing=inputs.packing)
    request = Request(mask, positions=inputs.positions, segments=inputs.segments)
    read = stack.inputs(x, request)
    grid = inputs.grid()
    columns = head.columns(grid)[:, None]
    if supports_encoder_layers(stack, x, read):
        chosen = _starts(inputs) + columns[:, 0]
        states = encoder_layers(stack, x, read, chosen)[:, None]
    else:
        states = last_states(stack, x, read, inputs, columns)
    alone = Inputs(grid.tokens.take_along_dim(columns, 1), features=inputs.features)
    return model.apply_heads(stack.final_norm(states), alone, [name])[name]


def _starts(inputs: Inputs) -> Tensor:
    """(B,) the first token of each row, in the order of the states."""
    if isinstance(inputs.packing, Packing):
        return inputs.packing.starts[:-1]
    rows, width = inputs.shape
    return torch.arange(rows) * width


def last_states(
    stack: Stack, x: Tensor, read: StackInputs, inputs: Inputs, columns: Tensor
) -> Tensor:
    """The states (B, 1, E) after all layers of one column (B, 1) of each row."""
    layers = stack.layers(read, read.mask.count(x))
    *before, last = stack.block_of_layer
    last_block: Any = stack.blocks[last]
    for block, layer in zip(before, layers, strict=False):
        x = stack.blocks[block](x, layer)
    chosen = inputs.packing.grid(x).take_along_dim(columns[..., None], 1)
    mask = Mask(inputs.real, key_packing=inputs.packing)
    states: Tensor = last_block.attend_to(chosen, x, layers[-1]._replace(mask=mask))
    return states
