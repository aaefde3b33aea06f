"""Mask filling: the most probable tokens for each mask of a text, from the language-model head."""

import re
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


# A word for the mask that some model has, such as [MASK], <mask> or ___.
_ANY_MASK = re.compile(r"[<\[{(|]+ *mask *[>\]})|]+|_{3,}", re.IGNORECASE)


def check_mask(text: str, tokenizer: Tokenizer, place: str = "") -> None:
    """Raises DataError for a text with the mask of another model and without that of this one."""
    name = tokenizer.names.get("mask_token")
    other = _ANY_MASK.search(text)
    if name is not None and name not in text and other is not None:
        raise DataError(
            f"{place}{other[0]!r:.40} is not the mask of this model; did you mean {name}?"
        )


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
            check_mask(texts[number], tokenizer, f"{reader.place(number, len(rows))}: ")
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
            for states in _mask_states(inputs.grid().tokens == mask, inputs, reader)
        ]
        best = [probabilities.topk(min(top_k, probabilities.shape[-1])) for probabilities in scores]
        return [torch.stack([values.double(), tokens.double()], 1) for values, tokens in best]

    best_of_rows = reader.run_rows(rows, apply)
    return [
        _fillings(tokenizer, row, mask, best) for row, best in zip(rows, best_of_rows, strict=True)
    ]


def _mask_states(masks: Tensor, inputs: Inputs, reader: ModelReader) -> list[Tensor]:
    """masks (B, T) -> the states (masks, E) of each row that predict the masked tokens.

    A model with a query stream predicts with it, so that the masks themselves are not seen.
    """
    embeddings = part_of(EmbeddingsPart, reader.config)
    if not embeddings.has_queries:
        hidden = inputs.packing.grid(reader.model(inputs))
        return [states[is_mask] for states, is_mask in zip(hidden, masks, strict=True)]
    counts = masks.sum(1).tolist()
    # Each row's masks first; then any others, up to the largest number of masks.
    positions = masks.long().argsort(dim=1, descending=True, stable=True)[:, : max(counts)]
    # In the order of factorization, all other tokens precede the masks.
    states = reader.model.query_states(replace(inputs, order=masks.long()), positions)
    return [row[:count] for row, count in zip(states, counts, strict=True)]


def _fillings(tokenizer: Tokenizer, row: Encoded, mask: int, best: Tensor) -> list[list[Filling]]:
    """The scores and tokens of a row's masks with their texts; best (masks, 2, top_k)."""
    positions = [n for n, token in enumerate(row.ids) if token == mask]
    # Without special tokens, unless there are other masks.
    shown = [n for n, text in enumerate(row.texts) if text is not None or len(positions) == 1]
    scores_of_masks = best[:, 0].tolist()
    tokens_of_masks = best[:, 1].long().tolist()
    fillings = []
    for position, scores, tokens in zip(positions, scores_of_masks, tokens_of_masks, strict=True):
        filled = [_fill(row.ids, position, token, shown) for token in tokens]
        sequences = tokenizer.decode(filled, keep_special=len(positions) > 1)
        words = tokenizer.texts(tokens)
        fillings.append(list(map(Filling, words, scores, tokens, sequences)))
    return fillings


def _fill(ids: Sequence[int], position: int, token: int, shown: Sequence[int]) -> list[int]:
    """The ids at the positions `shown`, with a token at one of them replaced."""
    filled = [*ids]
    filled[position] = token
    return [filled[n] for n in shown]
