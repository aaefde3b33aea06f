"""How much memory learning takes: what stays all the time, and what the forward pass leaves for the backward pass."""

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
    by_bytes: bool = False,
) -> int:
    """Elements that the forward pass leaves for the backward pass, `tokens` on each side in rows of `length`.

    For each token, with E the width, A = H·D and F the feed-forward width, a sub-layer leaves its input, what its norms
    read (an RMS norm: also what it scaled) and the dropout's mask (E each; once for both where they work in parallel);
    an attention also q, k, v and its output twice, by heads and merged (A each), and H·S weights unless a fused kernel
    computes them anew; the feed-forward what goes into its activation (F, and F of a gate), or with dropout there, or
    learning by bytes, what comes out too. An estimate: small tensors, copies of weights and the allocator's own share
    are left out. compiled: by the loops of loops.py; where they are installed, unless said. recompute: blocks keep
    their inputs only, and one of them at a time what it needs. by_bytes: layers learn by products of bytes.
    """
    compiled = loops() is not None if compiled is None else compiled
    mask = 1 if config.dropout and not compiled else 0  # the compiled loops draw theirs again
    layers = 0
    for side, sized in config.stacks.items():
        crosses = side == "decoder" and config.shape == "encoder-decoder"
        block = _saved_by_block(sized, length, mask, attentions=2 if crosses else 1, by_bytes=by_bytes)
        block += sized.d_ff if config.activation_dropout and not compiled else 0
        layers += sized.n_layers * config.d_model + block if recompute else sized.n_layers * block
    stacks = len(config.stacks)
    # The stacks' outputs, and what their last norms read.
    ends = stacks + (_READ[config.norm] * stacks if config.norm_placement != "post" else 0)
    return tokens * (layers + config.d_model * (ends + stacks * mask))


_READ = {"layer": 1, "rms": 2}  # tensors of width E that a norm leaves


def _saved_by_block(config: ModelConfig, length: int, mask: int, attentions: int, *, by_bytes: bool) -> int:
    """For one token: what its residuals leave, and what stands in its sub-layers."""
    merged = config.n_heads * config.head_width
    read = _READ[config.norm]
    each = 1 + read * {"post": 1, "pre": 1, "sandwich": 2}[config.norm_placement] + mask
    residuals = {
        "sequential": (attentions + 1) * each,
        "parallel": 1 + read + mask,
        "parallel-two-norms": 2 + read + mask,
    }[config.residual]
    attention = 5 * merged + config.n_heads * _weights_per_key(config, length) * length
    inner = 2 if config.gated else 1  # what goes into the activation, or comes out of it
    if config.activation_dropout or by_bytes:  # both; and of a gate the product too
        inner = 4 if config.gated else 2
    feed_forward = config.d_ff * inner
    return config.d_model * residuals + attentions * attention + feed_forward


def _weights_per_key(config: ModelConfig, length: int) -> int:
    """How many tensors of attention weights stay: the softmax, and with dropout on it a mask and the product."""
    if config.attention_dropout:
        return 3
    return 1 if length <= 128 else 0


# --- all of it -----------------------------------------------------------------------------------------

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
RUNTIME = 450 * 2**20  # the interpreter, PyTorch, the compiled loops; measured


class TrainingMemory(NamedTuple):
    """Bytes while a batch is learnt from, each at its most."""

    weights: int
    gradients: int
    optimizer: int
    validation: int
    activations: int
    runtime: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
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
    by_bytes: bool = False,
) -> TrainingMemory:
    """Bytes to learn from batches of `tokens` source and as many target tokens in rows of `length`.

    weights      4 bytes a parameter, and 2 more for the bfloat16 copy that computes
    gradients    2 or 4 bytes a parameter for each worker, and 4 for their sum
    optimizer    8: Adam's two averages; or as many as are said
    validation   8: a second model, which holds the (averaged) weights, and the file that it is written into; or as said
    activations  what the backward pass needs again, by `saved_elements`, in the precision of the arithmetic
    runtime      of the process, on a CPU

    graphs: blocks are compiled, and have no use for the loops. by_bytes: layers learn by products of bytes.
    """
    width, compiled = BYTES[precision], on_cpu and not graphs and loops() is not None
    kept = saved_elements(config, tokens, length, compiled=compiled, recompute=recompute, by_bytes=by_bytes)
    return TrainingMemory(
        weights=(4 if precision == "float32" else 4 + width) * parameters,
        gradients=(width * workers + 4) * parameters,
        optimizer=optimizer * parameters,
        validation=(validation if on_cpu else validation - 4)
        * parameters,  # the file is made in the host's memory
        activations=width * kept,
        runtime=RUNTIME if on_cpu else 0,
    )
