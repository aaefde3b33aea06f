"""Texts as tokens that know where words and sentences start, and what of a vocabulary noise may touch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from trifold.errors import UsageError
from trifold.ragged import Ragged
from trifold.text.sentences import split_sentences
from trifold.text.spans import Flags, Ids
from trifold.text.tokenizer import Tokenizer

Kind = TypeVar("Kind", np.int32, np.bool_)

# Thai, Lao, Burmese, Khmer, Kana and Han: no space tells words apart, so each character is one.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_LINE = re.compile(r".*(?:\n\s*|\Z)")  # with the blank lines behind it


@dataclass(frozen=True)
class Marked(Ragged):
    """Token ids of many texts, with flags (total tokens,) at the first token of each word and of each sentence."""

    words: Flags
    sentences: Flags


def sentence_starts(text: str) -> list[int]:
    """The characters at which a sentence starts, but for the first: where the rules of sentences.py say so, and behind
    the end of every line, since a sentence a line is how such text is often kept.
    """
    found, place = [], 0
    for line in _LINE.findall(text):
        for sentence in split_sentences(line):
            found.append(place)
            place += len(sentence)
    visible = len(text) - len(text.lstrip())
    return [start for start in found if start > visible]


def mark(tokenizer: Tokenizer, texts: Sequence[str]) -> Marked:
    """Encode texts, without special tokens, and mark them. Raises UsageError for a tokenizer that cannot say which
    characters a token stands for.
    """
    if not tokenizer.knows_places:
        raise UsageError(
            "this tokenizer cuts a text into words before it looks at it, and cannot say where a token stands: "
            "take another one to learn from noise (tokenizer.kind, or tokenizer.file of another family)"
        )
    ids: list[NDArray[np.int32]] = []
    words: list[Flags] = []
    sentences: list[Flags] = []
    for text, encoding in zip(texts, tokenizer.encodings(texts), strict=True):
        ids.append(np.array(encoding.ids, np.int32))
        # A token that is of no word (None) is one of its own.
        numbers = [-1 - at if word is None else word for at, word in enumerate(encoding.word_ids)]
        starts_word = np.diff(np.array(numbers, np.int64), prepend=-(2**40)) != 0
        if _UNSPACED.search(text):
            starts_word |= _beside_unspaced(text, encoding.offsets)
        words.append(starts_word)
        starts_sentence = np.zeros(len(numbers) + 1, np.bool_)
        starts_sentence[0] = True
        if inner := sentence_starts(text):
            ends = np.maximum.accumulate(np.array([end for _, end in encoding.offsets], np.int64))
            starts_sentence[np.searchsorted(ends, inner, side="right")] = True
        sentences.append(starts_sentence[: len(numbers)])
    lengths = np.array([len(each) for each in ids], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return Marked(_joined(ids, np.int32), starts, _joined(words, np.bool_), _joined(sentences, np.bool_))


def _beside_unspaced(text: str, offsets: Sequence[tuple[int, int]]) -> Flags:
    """Tokens at the first of which a character that is a word begins, or ends before it. A character may be several
    tokens, and a token parts of two.
    """
    flags, end = np.zeros(len(offsets), np.bool_), 0
    for at, (first, last) in enumerate(offsets):
        behind = end > 0 and _UNSPACED.match(text, end - 1) is not None
        flags[at] = first >= end and (behind or _UNSPACED.match(text, first) is not None)
        end = max(end, last)
    return flags


def unknown(tokenizer: Tokenizer, ids: NDArray[np.int32]) -> int:
    """How many of the tokens stand for something that the vocabulary does not hold.

    0 where the one for that is also the one that begins or ends a text, as GPT-2 has it, whose bytes hold everything.
    """
    told = tokenizer.unk_id not in (None, tokenizer.bos_id, tokenizer.eos_id)
    return int(np.count_nonzero(ids == tokenizer.unk_id)) if told else 0


def special_flags(tokenizer: Tokenizer) -> Flags:
    """(V,): whether an id is a special token, which noise leaves alone."""
    added = tokenizer.library.get_added_tokens_decoder()
    flags = np.zeros(max([tokenizer.vocab_size, *(number + 1 for number in added)]), np.bool_)
    flags[[number for number, token in added.items() if token.special]] = True
    return flags


def sentinel_ids(tokenizer: Tokenizer) -> Ids:
    """The ids of <extra_id_0>, <extra_id_1>, … as far as there are any: T5's sentinels."""
    found: list[int] = []
    while (token := tokenizer.library.token_to_id(f"<extra_id_{len(found)}>")) is not None:
        found.append(token)
    return np.array(found, dtype=np.int64)


def _joined(parts: list[NDArray[Kind]], kind: type[Kind]) -> NDArray[Kind]:
    return np.concatenate(parts) if parts else np.zeros(0, kind)
