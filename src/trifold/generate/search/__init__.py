"""From what the model says next to whole outputs. One search a file:

    single        one token after the other: greedy, or drawn
    speculative   the same tokens, several of them checked at once
    contrastive   likely tokens that do not resemble what is written
    beams         several beginnings side by side, in one group or in diverse ones
    constrained   beams in which every forced phrase appears

One step: processors -> log-softmax -> choose -> retire what has ended -> the rest goes on, tokens and cache together.
Sentences that are finished leave the batch. Shapes: B sentences, K beams, R = B·K rows, V vocabulary.
"""

from __future__ import annotations

from trifold.generate.search.beams import beam_search
from trifold.generate.search.constrained import constrained_beam_search
from trifold.generate.search.contrastive import contrastive_search
from trifold.generate.search.finished import LENGTH_PENALTIES, Watch
from trifold.generate.search.single import Steps, drained, one_by_one
from trifold.generate.search.speculative import DraftModel, Lookup, speculative

__all__ = [
    "LENGTH_PENALTIES",
    "DraftModel",
    "Lookup",
    "Steps",
    "Watch",
    "beam_search",
    "constrained_beam_search",
    "contrastive_search",
    "drained",
    "one_by_one",
    "speculative",
]
