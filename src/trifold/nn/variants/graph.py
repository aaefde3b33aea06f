"""Attention along the edges of a graph: a_ij = softmax over the neighbours j of i, and i itself
                                                               (Veličković et al. 2018, section 2.1)

A Transformer is a graph network: each layer sends messages along all pairs of tokens, which are a
complete graph. `Inputs.edges` is the table of pairs of another one: molecules, links, or the
dependency tree of a sentence. Without positions, tokens have no order: if they are permuted, so are
their states. Heads may have graphs of their own. No setting chooses this: the inputs do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trifold.nn.config import CoreConfig
from trifold.nn.inputs import Inputs
from trifold.nn.masks import PairTable, Rule
from trifold.nn.parts import AttentionPart, RulePart, part_of, rules_of


class GraphPart(RulePart):
    """The rule of the edges that inputs state."""

    key = "edges"

    def of_inputs(self, config: CoreConfig, inputs: Inputs) -> Rule | None:
        """Raises ValueError for an attention that does not read pairs of tokens."""
        if inputs.edges is None:
            return None
        attention = part_of(AttentionPart, config)
        if not attention.has_scores:
            raise ValueError(
                f"{attention.label(config)} has no weight for each pair of tokens, so it cannot "
                "follow edges; choose attention: softmax"
            )
        if any(rule.keys_added(config, config.max_positions) for rule in rules_of(config)):
            raise ValueError("edges are between tokens; a model with summaries has other keys, too")
        return PairTable(with_loops(inputs.edges))


def with_loops(edges: Tensor) -> Tensor:
    """(B, T, T) or, by head, (B, H, T, T) -> (B, 1 or H, T, T), in which a token is its own
    neighbour.
    """
    if edges.dim() == 3:
        edges = edges[:, None]
    return edges | torch.eye(edges.shape[-1], dtype=torch.bool, device=edges.device)


def tree_edges(heads: list[int], *, both_ways: bool = True) -> Tensor:
    """(T, T) the edges of a dependency tree: heads[i] is the number of the head of word i, from 1,
    and 0 for the root, as in CoNLL-U. A word reads its head; both_ways: a head also its words.

    Raises ValueError for a head that is no word.
    """
    edges = torch.zeros(len(heads), len(heads), dtype=torch.bool)
    for word, head in enumerate(heads):
        if not 0 <= head <= len(heads):
            raise ValueError(
                f"word {word + 1} has the head {head}, but the sentence has {len(heads)} words; "
                "heads are numbers from 1, and 0 is the root"
            )
        if head:
            edges[word, head - 1] = True
    return edges | edges.T if both_ways else edges


PARTS = (GraphPart(),)
