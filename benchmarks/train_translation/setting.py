"""The model and training settings of all toolkits, and their cost by formula."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Transformer-Tiny (Wu et al. 2021) as trained on Multi30k; `vocab_size` comes with the
    data.
    """

    vocab_size: int
    d_model: int = 128
    d_ff: int = 256
    n_heads: int = 4
    n_layers: int = 4  # in the encoder, and as many in the decoder
    dropout: float = 0.3  # on sub-layer outputs and on embedding sums
    attention_dropout: float = 0.0  # on attention weights: 0 spares the peers the work
    label_smoothing: float = 0.1
    batch_tokens: int = 8192  # sentences of a batch times its longest side
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9


def training_flops(setting: Setting, lengths: Iterable[tuple[int, int]]) -> int:
    """Floating-point operations of one forward and backward pass over real tokens, padding left
    out.

    `lengths` are (source, target) token counts a pair, the target with its end token. A matrix of w
    weights costs 6·w a token; attention costs 12·d_model a layer for each (query, key) pair that is
    allowed."""
    d, ff = setting.d_model, setting.d_ff
    encoder = setting.n_layers * (4 * d * d + 2 * d * ff)
    cross_keys_and_values = setting.n_layers * 2 * d * d
    decoder = setting.n_layers * (6 * d * d + 2 * d * ff)
    output = d * setting.vocab_size

    flops = 0
    for source, target in lengths:
        products = source * (encoder + cross_keys_and_values) + target * (decoder + output)
        allowed = source * source + target * (target + 1) // 2 + target * source
        flops += 6 * products + 12 * d * setting.n_layers * allowed
    return flops
