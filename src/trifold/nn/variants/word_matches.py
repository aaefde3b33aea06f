"""An embedding of whether the word of a token also stands in the other text of a pair
                                    (Chen et al. 2017, "Reading Wikipedia to Answer Open-Domain
                                    Questions", section 3.2: exact match)

    x_t = E[w_t] + p_t + s_t + M[m_t]

m_t is 0 if neither the word of token t nor its first letters stand in the other text, 1 if the
letters do, 2 if the word does. Special tokens, padding and single texts have 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.embeddings import Embeddings, TokenEmbedding
from trifold.nn.formulas import FormulaRow
from trifold.nn.inputs import Inputs
from trifold.nn.parts import EmbeddingsPart

KINDS = 3  # of matches: none, the first letters, the word


class MatchEmbeddings(Embeddings):
    """Embeddings of tokens, to which those of matches are added."""

    def __init__(self, config: CoreConfig, tokens: TokenEmbedding) -> None:
        super().__init__(config, tokens)
        self.matches = TokenEmbedding(KINDS, config.sum_width)

    def marked(self, x: Tensor, inputs: Inputs) -> Tensor:
        """x (B, T, E) with the embedding of the match of each token, of none without matches."""
        if inputs.matches is None:
            return x + self.matches.weight[0]
        return x + self.matches(inputs.matches)


class WordMatchesPart(EmbeddingsPart):
    """Embeddings of tokens and of matches of their words."""

    key = "word_matches"
    needs: ClassVar = {"shape": ("encoder",)}
    conflicts = "query_stream patch_size"

    def new(self, config: CoreConfig, tokens: TokenEmbedding | None) -> nn.Module:
        assert tokens is not None, "embeddings of tokens need a table"
        return MatchEmbeddings(config, tokens)

    def side_parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        letter = "E" if config.sum_width == config.d_model else "W"
        yield FormulaRow(f"{side} word matches", f"{KINDS}·{letter}")

    def phrase(self, config: CoreConfig) -> str:
        return "an embedding of words that both texts of a pair have"

    def box(self, config: CoreConfig, lines: Sequence[str]) -> Sequence[str]:
        name, table, added = lines
        return (name, table, f"word matches, {added}")


PARTS = (WordMatchesPart(),)
