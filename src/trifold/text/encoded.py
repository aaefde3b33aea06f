"""A text or a pair of texts as model input: special tokens, token types, offsets, truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest
from typing import Any, Literal, Self

import numpy as np

from trifold.errors import CheckpointError, DataError, UsageError, plural
from trifold.jsonfiles import lone_surrogate
from trifold.ragged import Ragged, positions

Cut = Literal["longest_first", "only_first", "only_second"]
_BATCH = 10_000  # texts encoded at once: enough for all cores, few enough to bound the memory


@dataclass(frozen=True)
class Encoded:
    """A row of model input. All lists are as long as `ids`; `dropped` counts the tokens beyond
    `max_length`.
    """

    ids: list[int]
    types: list[int]  # 0 for the first text, 1 for the second, as in the tokenizer's template
    offsets: list[tuple[int, int]]  # characters of the text, start and end (exclusive)
    texts: list[int | None]  # the text a token belongs to, 0 or 1; None for special tokens
    dropped: int = 0
    # The word of its text; None as in `texts`.
    words: list[int | None] = field(default_factory=list)
    # See `text.matches`; empty if the texts were not compared.
    matches: list[int] = field(default_factory=list)

    @property
    def special(self) -> list[int]:
        """The ids of the special tokens around the texts."""
        return [token for token, text in zip(self.ids, self.texts, strict=True) if text is None]


def add_special_tokens(library: Any, first: Any, second: Any | None, dropped: int) -> Encoded:
    """One or two library encodings with the special tokens around them."""
    length = len(first)  # the result tells special tokens apart, but not the two texts
    whole = library.post_process(first, second)
    places = count()
    texts = [
        None if special else int(next(places) >= length) for special in whole.special_tokens_mask
    ]
    return Encoded(whole.ids, whole.type_ids, whole.offsets, texts, dropped, whole.word_ids)


@dataclass(frozen=True)
class IdRows:
    """Rows of model input without positions in their texts, which take longer than the ids.

    ids, types, dropped: as in `Encoded`. counts: the number of tokens of each text of a row.
    matches: of the tokens, if the texts were compared.
    """

    ids: Ragged
    types: Ragged
    counts: list[tuple[int, ...]]
    dropped: list[int]
    matches: Ragged | None = None

    @classmethod
    def of(cls, rows: Sequence[Encoded]) -> Self:
        """The same rows."""
        return cls(
            Ragged.of([row.ids for row in rows]),
            Ragged.of([row.types for row in rows]),
            [(row.texts.count(0), row.texts.count(1)) for row in rows],
            [row.dropped for row in rows],
            matches_of(rows),
        )

    @classmethod
    def like(
        cls, example: Encoded, columns: Sequence[Sequence[list[int]]], dropped: list[int]
    ) -> Self:
        """Rows with the special tokens of an example, which has tokens of each text.

        columns: the ids of the first texts, and those of the second texts, if there are any.
        """
        ids = [*map(Ragged.of, columns)]
        types = [
            Ragged(
                np.full_like(column.ids, example.types[example.texts.index(text)]), column.starts
            )
            for text, column in enumerate(ids)
        ]
        return cls(
            _surround(example, example.ids, ids),
            _surround(example, example.types, types),
            [*zip(*(column.lengths.tolist() for column in ids), strict=True)],
            dropped,
        )


def _surround(example: Encoded, values: Sequence[int], columns: Sequence[Ragged]) -> Ragged:
    """The columns joined by what an example has before, between and after its texts. values: those
    of the tokens of the example.
    """
    special: list[list[int]] = [[] for _ in range(len(columns) + 1)]
    n_texts = 0
    for value, text in zip(values, example.texts, strict=True):
        if text is None:
            special[n_texts].append(value)
        else:
            n_texts = text + 1
    n_special = sum(map(len, special))
    lengths = sum((column.lengths for column in columns), start=n_special)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    joined = np.empty(starts[-1], np.int32)
    place = starts[:-1].copy()  # in each row
    for before, column in zip_longest(special, columns):
        for value in before:
            joined[place] = value
            place += 1
        if column is not None:
            joined[positions(place, column.lengths)] = column.ids
            place += column.lengths
    return Ragged(joined, starts)


def matches_of(rows: Sequence[Encoded]) -> Ragged | None:
    """The matches of the tokens of rows; None if their texts were not compared."""
    if not any(row.matches for row in rows):
        return None
    return Ragged.of([row.matches for row in rows])


def token_types(rows: Sequence[Encoded], count: int) -> Ragged:
    """The token types of rows; see `check_types`."""
    return check_types(Ragged.of([row.types for row in rows]), count)


def check_types(types: Ragged, count: int) -> Ragged:
    """The token types, for a model with a table of `count` of them (0: any number). Raises
    CheckpointError for a type beyond it.
    """
    if count and len(types.ids) and int(types.ids.max()) >= count:
        raise CheckpointError(
            f"the tokenizer gives the token type {types.ids.max()}, but the model has {count:,} "
            "token types (from 0): they do not belong together; give the tokenizer of the model, "
            "or single texts"
        )
    return types


def split_encoding(encoding: Any, size: int, overlap: int) -> list[Any]:
    """Split a library encoding into parts of at most `size` tokens that overlap by `overlap`.
    Raises UsageError.
    """
    if len(encoding) <= size:
        return [encoding]
    if size <= overlap:
        raise UsageError(
            f"{max(0, size)} tokens of the second text fit beside the first, and its parts "
            f"overlap by {overlap}: "
            "shorten the first text, lower stride, or raise max_length"
        )
    encoding.truncate(size, stride=overlap)
    return [encoding, *encoding.overflowing]


def truncate(first: Any, second: Any | None, size: int, cut: Cut) -> int:
    """Truncate two library encodings in place as `kept_lengths` says. Returns the number of tokens
    removed.
    """
    lengths = [len(first), 0 if second is None else len(second)]
    kept = kept_lengths(lengths, size, cut)
    for encoding, length, keep in zip((first, second), lengths, kept, strict=True):
        if encoding is not None and keep < length:
            encoding.truncate(keep)
    return sum(lengths) - sum(kept)


def kept_lengths(lengths: Sequence[int], size: int, cut: Cut) -> list[int]:
    """The tokens that two texts of these lengths keep if they have at most `size` in total.

    `longest_first` shortens the longer text until both are equally long, then both. Raises
    UsageError if the text that may be cut is too short.
    """
    excess = sum(lengths) - size
    if excess <= 0:
        return [*lengths]
    if size < 0:
        raise UsageError(
            f"max_length leaves no room for text: special tokens alone take {-size} more"
        )
    if cut == "longest_first":
        return [*share_room(lengths[0], lengths[1], size)]
    which = ("only_first", "only_second").index(cut)
    if lengths[which] <= excess:
        found = f"the {cut.removeprefix('only_')} text has {lengths[which]} tokens"
        raise UsageError(f"{found}, too few to cut {excess}; raise max_length")
    return [length - excess * (text == which) for text, length in enumerate(lengths)]


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """The tokens that two texts keep: the longer one is truncated to the length of the other, then
    both are.
    """
    if first + second <= room:
        return first, second
    half = min(first, second, room // 2)
    if first <= second:
        return half, room - half
    return room - half, half


@dataclass
class Truncation:
    """How many texts were truncated, the tokens that they lost, and the most of one; summed over
    batches and sets of rows. As text, a line of a report.
    """

    texts: int = 0
    tokens: int = 0
    most: int = 0

    def add(self, dropped: Iterable[int]) -> None:
        """Add the numbers of dropped tokens of further texts."""
        for tokens in filter(None, dropped):
            self.texts += 1
            self.tokens += tokens
            self.most = max(self.most, tokens)

    def clear(self) -> None:
        """Begin again."""
        self.texts = 0
        self.tokens = 0
        self.most = 0

    def merge(self, other: Truncation) -> None:
        """Add the counts of other texts."""
        self.texts += other.texts
        self.tokens += other.tokens
        self.most = max(self.most, other.most)

    def __bool__(self) -> bool:
        return self.texts > 0

    def __str__(self) -> str:
        return (
            f"{plural(self.texts, 'text')} cut to fit, {plural(self.tokens, 'token')} lost "
            f"(at most {self.most:,} in one)"
        )


def batched(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts in groups that are encoded together. Raises UsageError for a single text, and for
    no list.
    """
    if isinstance(texts, str) or not hasattr(texts, "__getitem__"):
        raise UsageError(
            f"a list of texts is expected, not {texts!r:.60}; for a single text, write [text]"
        )
    return (texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH))


def check_strings(texts: Any) -> None:
    """Raises DataError, which has its number, for a text of a list that is no string."""
    if not hasattr(texts, "__getitem__"):  # `batched` rejects it
        return
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            what = f"{text!r:.60} of type {type(text).__name__}"
            raise DataError(f"text {number:,} of {len(texts):,}: a text is a string, not {what}")


def verify(texts: Sequence[str]) -> None:
    """Raises DataError if a text is not a string of whole characters."""
    check_strings(texts)
    for text in texts:
        if problem := lone_surrogate(text):
            raise DataError(f"the text {text!r:.60} cannot be read: {problem}")


def truncate_ids(ids: list[int], limit: int, end: int | None) -> list[int]:
    """The first `limit` ids. With an end token, what follows the text is kept: all from the last of
    these tokens on, or the last id.
    """
    if len(ids) <= limit:
        return ids
    if end is None:
        return ids[:limit]
    kept = 1  # ids at the end
    if end in ids:
        kept += ids[::-1].index(end)
    return [*ids[: limit - kept], *ids[len(ids) - kept :]]
