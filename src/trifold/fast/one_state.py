"""Heads that read one state of each row, as that of [CLS]: the last block computes no other;
replaces `nn.ops.head_output`.

Only its keys and values need all tokens. Of an encoder with 2 layers that saves 40 % of the
products, of one with 12 layers 7 %; in training also those of the backward pass.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trifold.fast.encoder_layers import encoder_layers, supports_encoder_layers
from trifold.fast.int8_linear import has_hooks
from trifold.nn import Inputs, Transformer
from trifold.nn.attention import Attention
from trifold.nn.embeddings import default_segments
from trifold.nn.heads import Classes
from trifold.nn.inputs import Request
from trifold.nn.layers import FeedForward
from trifold.nn.masks import Mask
from trifold.nn.ops import head_output as plain_head_output
from trifold.nn.packing import Packing
from trifold.nn.parts import WalkPart, has_plain_attention, input_rules
from trifold.nn.registry import classical
from trifold.nn.stack import Block, Stack, all_modules
from trifold.nn.walk import StackInputs


def head_output(model: Transformer, inputs: Inputs, name: str) -> Tensor:
    """See `nn.ops.head_output`."""
    if reads_one_state(model, inputs, name):
        return output_of_one_state(model, inputs, name)
    return plain_head_output(model, inputs, name)


def reads_one_state(model: Transformer, inputs: Inputs, name: str) -> bool:
    """Whether the head reads one state of an encoder whose last block is classical, and nothing
    needs the others.
    """
    stack = model.encoder
    head = model.heads[name.replace("-", "_")] if name != "lm" else None
    if not isinstance(head, Classes) or type(stack) is not Stack or model.decoder is not None:
        return False
    if not head.reads_one_state:
        return False
    if not has_plain_attention(model.config) or input_rules(model.config, inputs):
        return False
    block: Any = stack.blocks[stack.block_of_layer[-1]]
    if type(block) is not Block or type(block.self_attention.sublayer) is not Attention:
        return False
    if type(block.feed_forward.sublayer) is not FeedForward or _is_observed(model):
        return False
    return not torch.is_grad_enabled() or _trains_in_order(stack)


def _is_observed(model: Transformer) -> bool:
    """Whether a hook reads what some module computes."""
    return any(getattr(each, "watched", False) or has_hooks(each) for each in all_modules(model))


def _trains_in_order(stack: Stack) -> bool:
    """Whether training calls one block after the other, and none of them is compiled."""
    is_compiled = any("forward" in vars(block) for block in stack.blocks)
    return stack.walk is classical(WalkPart.place) and not is_compiled


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
    columns = head.columns(grid)
    chosen = _starts(x, inputs) + columns
    if supports_encoder_layers(stack, x, read):
        states = encoder_layers(stack, x, read, chosen)[:, None]
    else:
        states = last_states(stack, x, read, inputs, chosen)
    tokens = columns[:, None]
    if inputs.pixels is None:
        tokens = grid.tokens.gather(1, tokens)
    # Images are read by a path beside the states.
    alone = Inputs(tokens, pixels=inputs.pixels, features=inputs.features)
    return model.apply_heads(stack.final_norm(states), alone, [name])[name]


def _starts(x: Tensor, inputs: Inputs) -> Tensor:
    """(B,) the first token of each row in the states, x (B, T, E) or packed (1, N, E)."""
    if isinstance(inputs.packing, Packing):
        return inputs.packing.starts[:-1].to(x.device)
    rows, width = x.shape[:2]
    return torch.arange(rows, device=x.device) * width


def last_states(
    stack: Stack, x: Tensor, read: StackInputs, inputs: Inputs, chosen: Tensor
) -> Tensor:
    """The states (B, 1, E) after all layers of the chosen tokens (B,) of x, one of each row."""
    layers = stack.layers(read, read.mask.count(x))
    *before, last = stack.block_of_layer
    last_block: Any = stack.blocks[last]
    for block, layer in zip(before, layers, strict=False):
        x = stack.run_block(stack.blocks[block], x, layer)
    queries = x.flatten(0, 1)[chosen][:, None]
    mask = Mask(inputs.real, key_packing=inputs.packing)
    inputs_of_last = layers[-1]._replace(mask=mask)
    return stack.run_block(last_block.attend_to, queries, x, inputs_of_last)
