"""Estimate of the memory of training: the persistent tensors, and those saved for the backward pass."""

from __future__ import annotations

from typing import NamedTuple

from trifold.fast.compiled import loops
from trifold.nn.config import ModelConfig


def saved_elements(
    config: ModelConfig,
    tokens: int,
    length: int,
    *,
    compiled: bool | None = None,
    recompute: bool = False,
    int8: bool = False,
) -> int:
    """Elements saved for the backward pass, with `tokens` on each side in rows of `length`.

    With E the model width, A = H·D and F the feed-forward width, a sub-layer saves per token: its input, the inputs of
    its norms (an RMS norm: also the scaled values) and the dropout mask (E each; once for parallel sub-layers).
    Attention adds q, k, v and its output twice, by heads and merged (A each), and H·S weights unless a fused kernel
    recomputes them. The feed-forward network adds the inputs of its activation (F, and F of a gate), and also the
    outputs with activation dropout or int8 training. Small tensors, copies of weights and the overhead of the
    allocator are not counted.

    compiled: whether the compiled loops run; default: whether they are installed. recompute: blocks save only their
    inputs, and one block at a time the rest. int8: linear layers train with int8 matmul.
    """
    compiled = loops() is not None if compiled is None else compiled
    mask = 1 if config.dropout and not compiled else 0  # the compiled loops redraw the mask
    layers = 0
    for side, sized in config.stacks.items():
        crosses = side == "decoder" and config.shape == "encoder-decoder"
        block = _saved_by_block(sized, length, mask, attentions=2 if crosses else 1, int8=int8)
        block += sized.d_ff if config.activation_dropout and not compiled else 0
        layers += sized.n_layers * config.d_model + block if recompute else sized.n_layers * block
    stacks = len(config.stacks)
    # The outputs of the stacks, and the inputs of their final norms.
    ends = stacks + (_READ[config.norm] * stacks if config.norm_placement != "post" else 0)
    return tokens * (layers + config.d_model * (ends + stacks * mask))


_READ = {"layer": 1, "rms": 2}  # tensors of width E that a norm saves


def _saved_by_block(config: ModelConfig, length: int, mask: int, attentions: int, *, int8: bool) -> int:
    """Elements per token, saved by the residuals and the sub-layers of one block."""
    merged = config.n_heads * config.head_width
    read = _READ[config.norm]
    each = 1 + read * {"post": 1, "pre": 1, "sandwich": 2}[config.norm_placement] + mask
    residuals = {
        "sequential": (attentions + 1) * each,
        "parallel": 1 + read + mask,
        "parallel-two-norms": 2 + read + mask,
    }[config.residual]
    attention = 5 * merged + config.n_heads * _weights_per_key(config, length) * length
    inner = 2 if config.gated else 1  # inputs or outputs of the activation
    if config.activation_dropout or int8:  # both, and the product with the gate
        inner = 4 if config.gated else 2
    feed_forward = config.d_ff * inner
    return config.d_model * residuals + attentions * attention + feed_forward


def _weights_per_key(config: ModelConfig, length: int) -> int:
    """Number of saved tensors of attention weights: the softmax, and with dropout a mask and the product."""
    if config.attention_dropout:
        return 3
    return 1 if length <= 128 else 0


# --- total ---------------------------------------------------------------------------------------------

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
RUNTIME = 450 * 2**20  # interpreter, PyTorch and compiled loops; measured


class TrainingMemory(NamedTuple):
    """Peak bytes by part while training on a batch."""

    weights: int
    gradients: int
    optimizer: int
    validation: int
    activations: int
    runtime: int

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(self)


def training_memory(
    config: ModelConfig,
    parameters: int,
    tokens: int,
    length: int,
    precision: str = "float32",
    *,
    workers: int = 1,
    optimizer: int = 8,
    validation: int = 8,
    recompute: bool = False,
    on_cpu: bool = True,
    graphs: bool = False,
    int8: bool = False,
) -> TrainingMemory:
    """Bytes to train on batches of `tokens` source and as many target tokens in rows of `length`.

    weights      4 bytes per parameter, and 2 for the bf16 copy used in computations
    gradients    2 or 4 bytes per parameter and worker, and 4 for their sum
    optimizer    bytes per parameter; default 8: the two moments of Adam
    validation   bytes per parameter; default 8: a second model with the averaged weights, and the file it is written to
    activations  `saved_elements` in the precision of the arithmetic
    runtime      the process, on a CPU

    graphs: blocks are compiled and do not use the compiled loops. int8: linear layers train with int8 matmul.
    """
    width, compiled = BYTES[precision], on_cpu and not graphs and loops() is not None
    kept = saved_elements(config, tokens, length, compiled=compiled, recompute=recompute, int8=int8)
    return TrainingMemory(
        weights=(4 if precision == "float32" else 4 + width) * parameters,
        gradients=(width * workers + 4) * parameters,
        optimizer=optimizer * parameters,
        # On a GPU the file is built in host memory.
        validation=(validation if on_cpu else validation - 4) * parameters,
        activations=width * kept,
        runtime=RUNTIME if on_cpu else 0,
    )
