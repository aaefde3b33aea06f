"""Mask filling: the most probable tokens for each mask of a text, from the language-model head."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from trifold.errors import DataError, UsageError
from trifold.nn import Inputs
from trifold.nn.parts import EmbeddingsPart, part_of
from trifold.predict.model_reader import ModelReader
from trifold.text import Encoded, Tokenizer


class Filling(NamedTuple):
    """A token for a mask: its text, probability and id, and the whole text with it."""

    text: str
    score: float
    token: int
    sequence: str


def fill_mask(
    reader: ModelReader, texts: Sequence[str], *, top_k: int = 5
) -> list[list[list[Filling]]]:
    """For each mask of each text the `top_k` most probable tokens, best first.

    Each of several masks is filled while the others stay (Devlin et al. 2019): the probabilities
    are not joint. Raises DataError for a text without a mask, UsageError if the tokenizer has no
    mask token.
    """
    tokenizer = reader.required_tokenizer
    mask = tokenizer.mask_id
    if mask is None:
        raise UsageError(
            "the tokenizer has no mask token: this model was not trained to fill masks"
        )
    rows = reader.encode(texts)
    for number, row in enumerate(rows):
        if mask not in row.ids:
            name = tokenizer.names["mask_token"]
            truncated = ", or the mask was truncated" if row.dropped else ""
            raise DataError(
                f"{reader.place(number, len(rows))} has no mask: write {name} in place of a "
                f"word{truncated}"
            )
    head = reader.model.lm_head
    assert head is not None, "called for a model without the head"

    def apply(inputs: Inputs) -> list[Tensor]:
        """(masks, 2, top_k) of each row: scores and tokens. The scores of all tokens would need too
        much memory.
        """
        scores = [
            head(states).softmax(-1)
            for states in _mask_states(inputs.tokens == mask, inputs, reader)
        ]
        best = [each.topk(min(top_k, each.shape[-1])) for each in scores]
        return [torch.stack([values.double(), tokens.double()], 1) for values, tokens in best]

    found = reader.run_rows(rows, apply)
    return [_fillings(tokenizer, row, mask, best) for row, best in zip(rows, found, strict=True)]


def _mask_states(masks: Tensor, inputs: Inputs, reader: ModelReader) -> list[Tensor]:
    """masks (B, T) -> the states (masks, E) of each row that predict the masked tokens.

    A model with a query stream predicts with it, so that the masks themselves are not seen.
    """
    embeddings = part_of(EmbeddingsPart, reader.config)
    if not embeddings.has_queries:
        return [states[here] for states, here in zip(reader.model(inputs), masks, strict=True)]
    counts = masks.sum(1).tolist()
    positions = masks.long().argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    states = embeddings.query_states(reader.model, replace(inputs, order=masks.long()), positions)
    return [own[:count] for own, count in zip(states, counts, strict=True)]


def _fillings(tokenizer: Tokenizer, row: Encoded, mask: int, found: Tensor) -> list[list[Filling]]:
    """The scores and tokens of a row's masks with their texts; found (masks, 2, top_k)."""
    places = [place for place, token in enumerate(row.ids) if token == mask]
    # Without special tokens, unless there are other masks.
    shown = [place for place, text in enumerate(row.texts) if text is not None or len(places) == 1]
    fillings = []
    for place, values, best in zip(
        places, found[:, 0].tolist(), found[:, 1].long().tolist(), strict=True
    ):
        filled = [[token if at == place else row.ids[at] for at in shown] for token in best]
        sequences = tokenizer.decode(filled, keep_special=len(places) > 1)
        words = tokenizer.decode([[token] for token in best], keep_special=True)
        fillings.append([Filling(*one) for one in zip(words, values, best, sequences, strict=True)])
    return fillings
