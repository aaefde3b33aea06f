"""ModelConfig: every variant of the Transformer as plain values.

A family or a preset is nothing but one of these; `nn` picks its parts by looking the values up and never
asks for a family's name. The defaults are the base model of "Attention Is All You Need" (Vaswani et al. 2017).
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from trifold.settings import Settings

Shape = Literal["encoder-decoder", "encoder", "decoder"]


class ModelConfig(Settings):
    """Sizes and choices of one Transformer. Derived numbers are properties; nothing is ever overwritten."""

    shape: Shape = "encoder-decoder"

    vocab_size: int = Field(
        37_000, gt=0, description="source vocabulary, and the target's unless that is given"
    )
    target_vocab_size: int | None = Field(None, gt=0, description="a target vocabulary of its own")
    max_positions: int = Field(1024, gt=0, description="longest sequence, in tokens")

    d_model: int = Field(512, gt=0)
    n_layers: int = Field(6, gt=0, description="layers of each stack")
    n_decoder_layers: int | None = Field(None, gt=0, description="layers of the decoder, where they differ")
    n_heads: int = Field(8, gt=0)
    n_kv_heads: int | None = Field(None, gt=0, description="heads of keys and values; fewer share them")
    d_head: int | None = Field(None, gt=0, description="width of a head; d_model / n_heads unless given")
    d_ff: int = Field(2048, gt=0)

    positions: Literal["sinusoidal", "sinusoidal-halves", "learned", "none"] = "sinusoidal"
    scale_embeddings: bool = Field(True, description="embeddings times sqrt(d_model)")
    norm: Literal["layer"] = "layer"
    norm_placement: Literal["post", "pre", "sandwich"] = "post"
    norm_epsilon: float = Field(1e-5, gt=0)
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    attention_bias: bool = False
    feed_forward_bias: bool = True
    tie_lm_head: bool = Field(True, description="the output projection is the target embedding")
    lm_head_bias: bool = False

    dropout: float = Field(0.1, ge=0, lt=1, description="on embedding sums and sub-layer outputs")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="on attention weights")

    pad_id: int = Field(0, ge=0)
    bos_id: int = Field(1, ge=0)
    eos_id: int = Field(2, ge=0)
    decoder_start_id: int | None = Field(None, ge=0, description="first decoder token; bos_id unless given")

    @property
    def head_width(self) -> int:
        return self.d_head or self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        return self.n_kv_heads or self.n_heads

    @property
    def encoder_layers(self) -> int:
        return 0 if self.shape == "decoder" else self.n_layers

    @property
    def decoder_layers(self) -> int:
        return 0 if self.shape == "encoder" else self.n_decoder_layers or self.n_layers

    @property
    def output_vocab_size(self) -> int:
        return self.target_vocab_size or self.vocab_size

    @property
    def start_id(self) -> int:
        return self.bos_id if self.decoder_start_id is None else self.decoder_start_id

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads {self.n_heads} does not divide d_model {self.d_model}: "
                f"choose one of {_divisors(self.d_model)}, or set d_head"
            )
        if self.n_heads % self.kv_heads:
            raise ValueError(f"n_kv_heads {self.kv_heads} does not divide n_heads {self.n_heads}")
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.shape != "encoder-decoder" and self.target_vocab_size is not None:
            raise ValueError(f"target_vocab_size needs shape: encoder-decoder, not {self.shape}")
        return self


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, min(number, 64) + 1) if number % n == 0)


# Vaswani et al. 2017, table 3; the counts by formula are in docs and tests.
PRESETS: dict[str, ModelConfig] = {
    "transformer-base": ModelConfig(),
    "transformer-big": ModelConfig(d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
    # Wu et al. 2021 ("Transformer-Tiny" of the Multi30k literature).
    "transformer-tiny": ModelConfig(
        vocab_size=9_700, d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3
    ),
}
