"""Formulas of the numbers of parameters, as texts of letters.

V vocabulary, E width (d_model), F feed-forward width, H heads, G key/value heads, D head size, Y
value size, P positions, W embedding width, L blocks. A part may add letters of its own to a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trifold.nn.config import CoreConfig
from trifold.nn.norms import norm_of


class FormulaRow(NamedTuple):
    """A row of the table of parameters: what has them, how many these are, and the letters of the
    formula that are not those of the config.
    """

    name: str
    formula: str
    letters: Mapping[str, int] = {}


def evaluate(config: CoreConfig, formula: str, letters: Mapping[str, int]) -> int:
    """The value of a formula; `letters` are added to those of the config."""
    sizes = {
        "V": config.vocab_size, "E": config.d_model, "F": config.d_ff,
        "H": config.n_heads, "G": config.kv_heads, "D": config.head_width, "Y": config.value_width,
        "P": config.max_positions, "W": config.embedding_width, "C": config.n_labels,
    }  # fmt: skip
    value: int = eval(formula.replace("·", "*"), {}, {**sizes, **letters})
    return value


def times(number: int, letter: str) -> str:
    """A multiple of a letter."""
    return letter if number == 1 else f"{number}·{letter}"


def total(terms: Iterable[str]) -> str:
    """A sum, in parentheses if it has several terms."""
    chosen = [term for term in terms if term]
    if len(chosen) == 1:
        return chosen[0]
    return f"({' + '.join(chosen)})"


def norm(config: CoreConfig, letter: str) -> str:
    """The parameters of a norm; the letter stands for its width."""
    return norm_of(config).parameters_of(config, letter)


def attention(config: CoreConfig, reads: str = "E") -> list[str]:
    """The terms of attention: four projections, E·H·D for q, E·G·D for k, E·G·Y for v, E·H·Y for o;
    biases of q, k and v, and of o; norms and sinks.

    reads: the letter of the width that k and v read.
    """
    terms = [_projections(config, reads)]
    if config.attention_bias:
        terms.append(_biases(config))
    if config.out_bias:
        terms.append("E")
    if config.qk_norm == "head":
        terms.append(f"2·{norm(config, 'D')}")
    if config.qk_norm == "width":
        terms.append(norm(config, "D·(H+G)"))
    if config.attention_sinks:
        terms.append("H")
    return terms


def _projections(config: CoreConfig, reads: str) -> str:
    """The elements of the four projections."""
    is_wide = config.value_width != config.head_width
    widths = "(D+Y)" if is_wide else "2·D"
    if reads != "E":
        return f"{widths}·(E·H+{reads}·G)"
    if config.kv_heads != config.n_heads:
        return f"{widths}·E·(H+G)" if is_wide else "2·E·D·(H+G)"
    return "2·E·H·(D+Y)" if is_wide else "4·E·H·D"


def _biases(config: CoreConfig) -> str:
    """The biases of q, k and v."""
    if config.value_width != config.head_width:
        return "D·(H+G) + Y·G"
    return "3·H·D" if config.kv_heads == config.n_heads else "D·(H+2·G)"


def feed_forward(config: CoreConfig, width: str = "F") -> str:
    """The layers of a network with that inner width, and their biases."""
    inner = 1 + config.gated  # layers into the inner width
    matrices = f"{inner + 1}·E·{width}"
    if not config.feed_forward_bias:
        return matrices
    return total([matrices, times(inner, width), "E"])
