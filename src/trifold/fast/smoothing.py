"""Int8 weights of an encoder whose inputs have a few large dimensions.

The states after a norm have dimensions that are ten times as large as the others, in every token.
They decide the steps in which a token is quantized. Each dimension is therefore multiplied by a
factor before it is quantized, and the column of the weight is divided by it, so that both have
about the same range (Xiao et al. 2023, "SmoothQuant", with α = ½). The ranges of the states are
those of random tokens, the same in every process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trifold.fast.int8 import Int8Weight
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.layers import FeedForward, Linear
from trifold.nn.parts import has_packed_attention

ROWS, COLUMNS = 64, 32  # of random tokens
SMALLEST = 1e-5  # of a range, so that a factor is finite


def is_smoothed(config: ModelConfig) -> bool:
    """Whether `smooth` knows the layers of such a model."""
    return config.shape == "encoder" and not config.n_patches and has_packed_attention(config)


@torch.no_grad()
def smooth(model: Transformer) -> None:
    """Store the projections of queries, keys and values and the first matrix of each feed-forward
    network of an encoder in int8, with factors.
    """
    groups = [group for module in model.modules() if (group := _of_states(module))]
    ranges = _ranges(model, [group[0] for group in groups])
    for group, largest in zip(groups, ranges, strict=True):
        columns = torch.stack([layer.weight.abs().amax(0) for layer in group]).amax(0)
        factors = (columns.float().clamp(min=SMALLEST) / largest.clamp(min=SMALLEST)).sqrt()
        factors /= factors.mean()
        for layer in group:
            weight = Int8Weight.quantize(layer.weight / factors, layer.weight.dtype)
            weight.factors = factors
            del layer.weight
            layer.weight = weight  # type: ignore[assignment]


def layers_of_states(model: Transformer) -> list[Linear]:
    """The layers that `smooth` stores."""
    return [layer for module in model.modules() for layer in _of_states(module)]


def _of_states(module: nn.Module) -> Sequence[Linear]:
    """The layers of a module that read the states."""
    if type(module) is Attention:
        return (module.q_proj, module.k_proj, module.v_proj)
    if type(module) is FeedForward:
        gate = module.gate_proj
        return (module.in_proj,) if gate is None else (module.in_proj, gate)
    return ()


def _ranges(model: Transformer, layers: Sequence[Linear]) -> list[Tensor]:
    """For each layer the largest magnitude (K,) of each dimension of its inputs."""
    config = model.config
    ranges = [
        layer.weight.new_zeros(layer.weight.shape[1], dtype=torch.float32) for layer in layers
    ]

    def widen(largest: Tensor, layer: nn.Module, arguments: Any) -> None:
        x = arguments[0].float().abs().flatten(0, -2).amax(0)
        torch.maximum(largest, x, out=largest)

    hooks = [
        layer.register_forward_pre_hook(partial(widen, largest))
        for layer, largest in zip(layers, ranges, strict=True)
    ]
    columns = min(COLUMNS, config.max_positions)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab_size, (ROWS, columns), generator=generator)
    was_training = model.training
    threads = torch.get_num_threads()
    # On one thread, as texts are read: other numbers of threads have other kernels, and the factors
    # would depend on it.
    torch.set_num_threads(1)
    try:
        model.eval().encode(Inputs(tokens.to(ranges[0].device)))
    finally:
        torch.set_num_threads(threads)
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return ranges
