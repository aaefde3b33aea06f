"""Words for the masks of a text.

prediction      states at the masks -> the head's logits there, and nowhere else -> a softmax over the vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.nn import Inputs
from trifold.predict.reading import Reading
from trifold.text import Encoded, Tokenizer


class Filling(NamedTuple):
    """A token for a mask: its text, its probability, its id, and the whole text with it."""

    text: str
    score: float
    token: int
    sequence: str


def fill_mask(reading: Reading, texts: Sequence[str], *, top_k: int = 5) -> list[list[list[Filling]]]:
    """For each text and each of its masks the `top_k` likeliest tokens, best first.

    Of several masks each is filled as if the others stayed (Devlin et al. 2019): the probabilities are not joint.
    Raises DataError for a text without a mask, UsageError for a tokenizer that has none.
    """
    tokenizer = reading.reader
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError("the tokenizer has no mask token: this model was not trained to fill masks")
    # Here a text may spell special tokens: the mask is one.
    rows = reading.rows(texts, special_in_text=True)
    for number, row in enumerate(rows):
        if mask not in row.ids:
            name, cut = tokenizer.names["mask_token"], ", or what was cut away held it" if row.dropped else ""
            raise DataError(
                f"{reading.place(number, len(rows))} has no mask: write {name} where a word is wanted{cut}"
            )
    head = reading.model.lm_head
    assert head is not None, "asked of a model without the head"

    def say(inputs: Inputs) -> list[Tensor]:
        """(masks, 2, top_k) of each row: scores and tokens. All scores of many texts would not fit into memory."""
        scores = [head(states).softmax(-1) for states in _at(inputs.tokens == mask, inputs, reading)]
        best = [each.topk(min(top_k, each.shape[-1])) for each in scores]
        return [torch.stack([values.double(), tokens.double()], 1) for values, tokens in best]

    found = reading.through(rows, say)
    return [
        _fillings(tokenizer, row, mask, best[:, 0], best[:, 1].long())
        for row, best in zip(rows, found, strict=True)
    ]


def _at(masks: Tensor, inputs: Inputs, reading: Reading) -> list[Tensor]:
    """masks (B, T) -> the states (masks, E) of each row that its words are read from.

    A model of two streams asks with the second, and sees the tokens around the masks but none of these.
    """
    if not reading.config.query_stream:
        return [states[here] for states, here in zip(reading.hidden(inputs), masks, strict=True)]
    counts = masks.sum(1).tolist()
    asked = masks.long().argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    answers = reading.model.ask(replace(inputs, ranks=masks.long()), asked)
    return [states[:count] for states, count in zip(answers, counts, strict=True)]


def _fillings(
    tokenizer: Tokenizer, row: Encoded, mask: int, scores: Tensor, tokens: Tensor
) -> list[list[Filling]]:
    """scores and tokens (masks, top_k) with their texts."""
    places = [place for place, token in enumerate(row.ids) if token == mask]
    # With several masks the others are to be seen in the sequence; what stands around the text is not.
    shown = [place for place, text in enumerate(row.texts) if text is not None or len(places) == 1]
    found = []
    for place, likely, best in zip(places, scores.tolist(), tokens.tolist(), strict=True):
        filled = [[token if at == place else row.ids[at] for at in shown] for token in best]
        sequences = tokenizer.decode(filled, keep_special=len(places) > 1)
        words = tokenizer.decode([[token] for token in best], keep_special=True)
        found.append([Filling(*one) for one in zip(words, likely, best, sequences, strict=True)])
    return found
