"""Encoded texts annotated with word and sentence starts, for corruptions that respect them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.ragged import Ragged
from trifold.scripts import UNSPACED
from trifold.text.sentences import split_sentences
from trifold.text.spans import Flags, Ids
from trifold.text.special_tokens import is_hole
from trifold.text.tokenizer import Tokenizer

_LINE = re.compile(r".*(?:\n\s*|\Z)")  # with the blank lines that follow


@dataclass(frozen=True)
class AnnotatedTexts(Ragged):
    """Token ids of many texts, with flags at the first tokens of words and of sentences (sum of
    lengths,).
    """

    word_starts: Flags
    sentence_starts: Flags


def find_sentence_starts(text: str) -> list[int]:
    """Characters at which a sentence starts, except the first one. A line break always ends a
    sentence.
    """
    sentences = (sentence for line in _LINE.findall(text) for sentence in split_sentences(line))
    visible = len(text) - len(text.lstrip())
    return [start for start in accumulate(map(len, sentences)) if visible < start < len(text)]


def annotate(tokenizer: Tokenizer, texts: Sequence[str]) -> AnnotatedTexts:
    """Encode texts without special tokens. Raises UsageError if the tokenizer gives no character
    offsets.
    """
    if not tokenizer.has_offsets:
        raise UsageError(
            "this tokenizer splits text before tokenization and gives no character offsets; "
            "choose another one for pretraining (tokenizer.kind, or tokenizer.file of another "
            "family)"
        )
    ids: list[list[int]] = []
    words = [np.zeros(0, np.bool_)]
    sentences = [np.zeros(0, np.bool_)]
    for text, encoding in zip(texts, tokenizer.encodings(texts), strict=True):
        ids.append(encoding.ids)
        # A token outside all words (None) is a word of its own.
        numbers = [-1 - at if word is None else word for at, word in enumerate(encoding.word_ids)]
        starts_word = np.diff(np.array(numbers, np.int64), prepend=-(2**40)) != 0
        if UNSPACED.search(text):
            starts_word |= _borders_unspaced(text, encoding.offsets)
        words.append(starts_word)
        starts = np.zeros(len(numbers) + 1, np.bool_)
        starts[0] = True
        if inner := find_sentence_starts(text):
            ends = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], np.int64))
            starts[np.searchsorted(ends, inner, side="right")] = True
        sentences.append(starts[: len(numbers)])
    rows = Ragged.of(ids)
    return AnnotatedTexts(rows.ids, rows.starts, np.concatenate(words), np.concatenate(sentences))


def _borders_unspaced(text: str, offsets: Sequence[tuple[int, int]]) -> Flags:
    """Tokens that start at, or right after, a character that is a word.

    A character may be several tokens, and a token may hold parts of two characters.
    """
    flags = np.zeros(len(offsets), np.bool_)
    end = 0
    for at, (first, last) in enumerate(offsets):
        after = end > 0 and UNSPACED.match(text, end - 1) is not None
        flags[at] = first >= end and (after or UNSPACED.match(text, first) is not None)
        end = max(end, last)
    return flags


def count_unknown(tokenizer: Tokenizer, ids: NDArray[np.int32]) -> int:
    """Number of unknown tokens.

    0 if the unknown token also starts or ends a text, as in GPT-2, whose byte alphabet covers every
    text.
    """
    if tokenizer.unk_id in (None, tokenizer.bos_id, tokenizer.eos_id):
        return 0
    return int(np.count_nonzero(ids == tokenizer.unk_id))


def unknown_words(
    tokenizer: Tokenizer, texts: Iterable[str], known: set[str] | None = None
) -> list[str]:
    """The different words with unknown tokens; words end at white space and at the names of special
    tokens.

    known: words of other texts without unknown tokens, to which those of these are added.
    """
    known = set() if known is None else known
    words = [word for word in _different_words(tokenizer, "\n".join(texts)) if word not in known]
    rows = zip(words, tokenizer.encode(words), strict=True)
    unknown = [word for word, ids in rows if count_unknown(tokenizer, np.array(ids, np.int32))]
    known.update({*words}.difference(unknown))
    return unknown


def _different_words(tokenizer: Tokenizer, text: str) -> Iterable[str]:
    """The different words between white space and names of special tokens, in text order."""
    names = {*tokenizer.special_names, *tokenizer.names.values()}
    written = sorted((name for name in names if name in text), key=len, reverse=True)
    if not written:
        return dict.fromkeys(text.split())
    borders = "|".join([r"\s+", *map(re.escape, written)])
    return dict.fromkeys(re.split(borders, text))


def written_holes(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """The names of the mask token and of sentinels that the texts contain."""
    mask = tokenizer.names.get("mask_token")
    whole = list(texts)
    holes = [name for name in tokenizer.special_names if name == mask or is_hole(name)]
    return [name for name in holes if any(name in text for text in whole)]


def special_flags(tokenizer: Tokenizer) -> Flags:
    """(V,): True at ids of special tokens, which corruption must not change."""
    added = tokenizer.library.get_added_tokens_decoder()
    flags = np.zeros(max([tokenizer.vocab_size, *(number + 1 for number in added)]), np.bool_)
    flags[[number for number, token in added.items() if token.special]] = True
    return flags


def sentinel_ids(tokenizer: Tokenizer) -> Ids:
    """Ids of T5's sentinels <extra_id_0>, <extra_id_1>, … in order, as far as the vocabulary has
    them.
    """
    found: list[int] = []
    while (token := tokenizer.library.token_to_id(f"<extra_id_{len(found)}>")) is not None:
        found.append(token)
    return np.array(found, dtype=np.int64)
