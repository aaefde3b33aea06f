"""The decoder that every toolkit trains, and its cost by formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """nanoGPT's "baby GPT" on the characters of tinyshakespeare, which is the recipe
    `shakespeare-char`.
    """

    vocab_size: int = 65
    d_model: int = 384
    n_layers: int = 6
    n_heads: int = 6
    context: int = 256
    rows: int = 32  # windows a step: 8,192 tokens
    dropout: float = 0.2  # on embeddings and sub-layer outputs
    attention_dropout: float = 0.0  # spares the peers the work
    gelu: str = "tanh"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.1
    clip: float = 1.0


def flops_per_token(setting: Setting) -> float:
    """Floating-point operations of one forward and backward pass per token: 6 per weight of the
    products, and attention to (context + 1) / 2 tokens on average (Kaplan et al. 2020, section 2.1,
    with the causal half only)."""
    d = setting.d_model
    weights = setting.n_layers * 12 * d * d + d * setting.vocab_size
    return 6 * weights + 6 * setting.n_layers * 2 * d * (setting.context + 1) / 2
