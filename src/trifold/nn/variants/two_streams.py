"""A factorization order of tokens, and the query stream that predicts them in it
                                                        (Yang et al. 2019, "XLNet", section 2)

In every layer g, the states of the query stream, attends to x, the states of the tokens, and x to
itself. A query attends to the tokens of a lower rank, but not to its own; it knows its position
from the scores. Shapes: B batch, P queries, T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from trifold.nn.config import CoreConfig
from trifold.nn.embeddings import Embeddings, TokenEmbedding
from trifold.nn.formulas import FormulaRow
from trifold.nn.inputs import Inputs, Request
from trifold.nn.masks import Mask, MaskPart, Rule
from trifold.nn.packing import Unpacked
from trifold.nn.parts import EXAMPLE_TOKENS, EmbeddingsPart, RulePart, parts
from trifold.nn.stack import Stack

if TYPE_CHECKING:
    from trifold.nn.transformer import Transformer


@dataclass(frozen=True)
class Order(Rule):
    """ranks: (B, N) the rank of each key in a factorization order (Yang et al. 2019, "XLNet",
    section 2.2). A query attends to the keys up to its own rank; the query stream, which predicts
    its targets, to those of a lower rank.
    """

    ranks: Tensor

    @property
    def sentence(self) -> str:
        return "a factorization order"

    def allowed(self, part: MaskPart) -> Tensor:
        own, others = part.at_pairs(self.ranks)
        if part.mask.queries is not None:  # the query stream
            return others < own
        return others <= own


class QueryEmbeddings(Embeddings):
    """Embeddings with the input of the query stream, one learned vector."""

    def __init__(self, config: CoreConfig, tokens: TokenEmbedding) -> None:
        super().__init__(config, tokens)
        self.query = nn.Parameter(torch.empty(1, config.d_model))

    def query_vectors(self, query_index: Tensor) -> Tensor:
        """The input of the query stream, the same vector everywhere: query_index (B, P) ->
        (B, P, E).
        """
        return self.drop(self.query.expand(*query_index.shape, -1))


def run_two_streams(
    stack: Stack,
    g: Tensor,
    x: Tensor,
    mask: Mask,
    query_index: Tensor,
    segments: Tensor | None = None,
) -> Tensor:
    """Two streams (Yang et al. 2019, equations 1 and 2): in every layer g (B, P, E), at the
    positions `query_index` (B, P), attends to x (B, T, E), and x to itself -> (B, P, E).
    """
    assert stack.offsets is not None, "without offsets a query does not know its position"
    keys = mask.keys
    if keys is None:
        keys = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    query_mask = replace(mask, keys=keys, queries=query_index)
    inputs = stack.layers(stack.inputs(x, Request(mask, segments=segments)), x.shape[1])
    query_inputs = stack.layers(stack.inputs(g, Request(query_mask, segments=segments)), g.shape[1])
    for layer, number in enumerate(stack.block_of_layer):
        block = stack.blocks[number]
        g = stack.run_block(block.attend_to, g, x, query_inputs[layer])
        if layer + 1 < len(stack.block_of_layer):  # no layer reads the last x
            x = stack.run_block(block, x, inputs[layer])
    return stack.final_norm(g)


def query_states(model: Transformer, inputs: Inputs, query_index: Tensor) -> Tensor:
    """Hidden states (B, P, E) of the query stream (Yang et al. 2019, section 2.3): query p has the
    position of token query_index[p] (B, P) and attends to the tokens of a lower rank in
    `inputs.order`, but not to that token.
    """
    embeddings = model.encoder_embeddings
    stack = model.encoder
    assert stack is not None and isinstance(embeddings, QueryEmbeddings), "no query stream"
    assert inputs.order is not None and isinstance(inputs.packing, Unpacked), (
        "a query stream needs an order, and rows that are not packed"
    )
    mask = Mask(inputs.attend, rules=(Order(inputs.order),))
    g = embeddings.query_vectors(query_index)
    x = embeddings(inputs)
    return run_two_streams(stack, g, x, mask, query_index, inputs.segments)


class OrderPart(RulePart):
    """The rule of an order of tokens, which the inputs of an encoder may state."""

    key = "order"
    row = "positions"

    def used(self, config: CoreConfig) -> bool:
        return config.query_stream

    def of_inputs(self, config: CoreConfig, inputs: Inputs) -> Rule | None:
        """Raises ValueError if tokens read others without regard to an order."""
        if inputs.order is None:
            return None
        for part in parts(config):
            if part.ignores_orders:
                name = part.label(config)
                raise ValueError(f"an order of tokens needs a model without {name}")
        return Order(inputs.order)

    def phrase(self, config: CoreConfig) -> str:
        return "query stream for the tokens to predict"

    def examples(self, given: Mapping[str, Mask]) -> Mapping[str, Mask]:
        places = torch.arange(EXAMPLE_TOKENS)
        prefix = Order((places - 3).clamp_min(0)[None])
        permutation = Order(torch.tensor([[3, 7, 0, 9, 1, 11, 5, 2, 10, 4, 8, 6]]))
        keys = torch.ones(1, EXAMPLE_TOKENS, dtype=torch.bool)
        return {
            "prefix of 4": Mask(rules=(prefix,)),
            "permutation": Mask(rules=(permutation,)),
            "query stream of the permutation": Mask(
                keys, queries=places[None], rules=(permutation,)
            ),
        }


class QueryStreamPart(EmbeddingsPart):
    """Embeddings of a model with a query stream."""

    key = "query_stream"
    needs: ClassVar = {
        "shape": ("encoder",),
        "positions": ("relative-sinusoidal",),
        "residual": ("sequential",),
    }
    has_queries = True

    def new(self, config: CoreConfig, tokens: TokenEmbedding | None) -> nn.Module:
        assert tokens is not None, "a query stream predicts tokens"
        return QueryEmbeddings(config, tokens)

    def query_states(self, model: Transformer, inputs: Inputs, query_index: Tensor) -> Tensor:
        return query_states(model, inputs, query_index)

    def side_parameters(self, config: CoreConfig, side: str) -> Iterator[FormulaRow]:
        yield FormulaRow(f"{side} query stream", "E")


PARTS = (OrderPart(), QueryStreamPart())
