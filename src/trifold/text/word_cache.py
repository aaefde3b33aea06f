"""The ids of words that were encoded before, for tokenizers that encode each word alone.

A text is then split at spaces and its words are looked up, in an eighth of the time that the
library takes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer as Library

MAX_CHARACTERS = 2**19  # of words that are remembered, which take about 20 MB
MAX_CORES = 8  # with more, the library, which uses all, is faster
SPLITTERS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")
# Normalizers that change a character, or a letter with its marks, without regard to the words
# before it.
NORMALIZERS = ("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents")

Ids = Sequence[int]


def is_worth_a_cache(library: Library) -> bool:
    """Whether a cache is faster, and the ids of a text are those of its parts between spaces, if
    special tokens in a text are encoded as text.
    """
    return (os.cpu_count() or 1) <= MAX_CORES and encodes_words_alone(library)


def encodes_words_alone(library: Library) -> bool:
    """Whether the ids of a text are those of its parts between spaces."""
    if library.pre_tokenizer is None or getattr(library.model, "dropout", None):
        return False
    first, *others = _steps(library.pre_tokenizer, "pretokenizers")
    if first["type"] not in SPLITTERS:
        return False
    if any(step.get("prepend_scheme") == "first" for step in others):  # of the first word
        return False
    if not all(map(_is_of_characters, _steps(library.normalizer, "normalizers"))):
        return False
    return all(token.special for token in library.get_added_tokens_decoder().values())


def _steps(component: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a component of the library, as in tokenizer.json."""
    if component is None:
        return []
    state: dict[str, Any] = json.loads(component.__getstate__())
    steps: list[dict[str, Any]] = state.get(name, [state])
    return steps


def _is_of_characters(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String", " ")
        return len(pattern) == 1 and not pattern.isspace()
    return step["type"] in NORMALIZERS


class WordCache:
    """Encodes texts word by word, in several threads at once if need be.

    encode: the ids of words; None of a word whose text the library has to encode as a whole.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Iterable[Ids | None]]) -> None:
        self._encode = encode
        self._ids: dict[str, Ids | None] = {}
        self._characters = 0

    def encode(self, texts: Sequence[str]) -> list[list[int] | None]:
        """The ids of each text; None of one that has such a word."""
        split = [text.split(" ") for text in texts]
        ids = self._ids  # of this call, also if another thread begins with none
        new = [*{*chain.from_iterable(split)}.difference(ids)]
        if new:
            ids.update(zip(new, self._encode(new), strict=True))
            self._characters += sum(map(len, new))
            if self._characters > MAX_CHARACTERS:
                self._ids = {}
                self._characters = 0
        return [_joined(map(ids.__getitem__, words)) for words in split]


def _joined(words: Iterable[Any]) -> list[int] | None:
    """The ids of words one after the other; None if one of the words has none."""
    try:
        return [*chain.from_iterable(words)]
    except TypeError:  # of None
        return None
