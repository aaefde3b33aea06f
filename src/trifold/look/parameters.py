"""How many parameters a model has, part by part, by formula; the tests count the real ones against it.

Letters: V vocabulary, E width (d_model), F feed-forward width, H heads, G heads of keys and values, D head width,
L layers, P positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trifold.nn.config import ModelConfig


class Part(NamedTuple):
    """One line of the table: what it is, its formula in letters, and the number of its parameters."""

    name: str
    formula: str
    parameters: int


def parameter_table(config: ModelConfig) -> list[Part]:
    """Every part that has parameters; shared ones count once."""
    return [part for part in _parts(config) if part.parameters]


def count(config: ModelConfig) -> int:
    """Parameters of the whole model. Nothing is allocated."""
    return sum(part.parameters for part in _parts(config))


def attention_matrices(config: ModelConfig) -> int:
    """Elements of the four projections of one attention: E·H·D for q and o, E·G·D for k and v."""
    return 2 * config.d_model * config.head_width * (config.n_heads + config.kv_heads)


def _parts(config: ModelConfig) -> Iterator[Part]:
    width, vocabulary = config.d_model, config.output_vocab_size
    sides = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    crosses = config.shape == "encoder-decoder"
    if config.target_vocab_size is None:
        yield Part("embeddings", "V·E", config.vocab_size * width)
    else:
        yield Part("source embeddings", "V·E", config.vocab_size * width)
        yield Part("target embeddings", "V·E", vocabulary * width)
    if config.positions == "learned":
        for side in (side for side, layers in sides.items() if layers):
            yield Part(f"{side} positions", "P·E", config.max_positions * width)
    for side, layers in sides.items():
        yield Part(f"{side} self-attention", *_attention(config, layers))
        if side == "decoder" and crosses:
            yield Part("decoder cross-attention", *_attention(config, layers))
        yield Part(f"{side} feed-forward", *_feed_forward(config, layers))
        yield Part(f"{side} norms", *_norms(config, layers, 3 if side == "decoder" and crosses else 2))
    if sides["decoder"]:
        matrix = 0 if config.tie_lm_head else vocabulary * width
        bias = vocabulary if config.lm_head_bias else 0
        formula = " + ".join([*(["V·E"] if matrix else []), *(["V"] if bias else [])])
        yield Part("language-model head", formula, matrix + bias)


def _attention(config: ModelConfig, layers: int) -> tuple[str, int]:
    grouped = config.kv_heads != config.n_heads
    formula = "2·E·D·(H+G)" if grouped else "4·E·H·D"
    biases = 0
    if config.attention_bias:
        formula = f"({formula} + D·{'(H+2G)' if grouped else '3H'} + E)"
        biases = config.head_width * (config.n_heads + 2 * config.kv_heads) + config.d_model
    return f"L·{formula}", layers * (attention_matrices(config) + biases)


def _feed_forward(config: ModelConfig, layers: int) -> tuple[str, int]:
    biases = config.d_ff + config.d_model if config.feed_forward_bias else 0
    formula = "L·(2·E·F + F + E)" if biases else "L·2·E·F"
    return formula, layers * (2 * config.d_model * config.d_ff + biases)


def _norms(config: ModelConfig, layers: int, sublayers: int) -> tuple[str, int]:
    """A weight and a bias each; a stack whose norms stand inside its branches has one more at its end."""
    each = sublayers * (2 if config.norm_placement == "sandwich" else 1)
    final = 0 if config.norm_placement == "post" or not layers else 1
    return f"L·{each}·2·E{' + 2·E' if final else ''}", (layers * each + final) * 2 * config.d_model
