"""A text or a pair of texts as model input: special tokens, token types, offsets, truncation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from trifold.errors import CheckpointError, DataError, UsageError, plural
from trifold.jsonfiles import lone_surrogate
from trifold.ragged import Ragged

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


def token_types(rows: Sequence[Encoded], count: int) -> Ragged:
    """The token types of rows, for a model with a table of `count` of them (0: any number). Raises
    CheckpointError for a type beyond it.
    """
    types = Ragged.of([row.types for row in rows])
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
    """Truncate two library encodings in place to `size` tokens in total. Returns the number of
    tokens removed.

    `longest_first` shortens the longer text until both are equally long, then both. Raises
    UsageError if the text that may be cut is too short.
    """
    lengths = [len(first), 0 if second is None else len(second)]
    excess = sum(lengths) - size
    if excess <= 0:
        return 0
    if size < 0:
        raise UsageError(
            f"max_length leaves no room for text: special tokens alone take {-size} more"
        )
    if cut == "longest_first":
        kept = list(share_room(lengths[0], lengths[1], size))
    else:
        which = ("only_first", "only_second").index(cut)
        if lengths[which] <= excess:
            found = f"the {cut.removeprefix('only_')} text has {lengths[which]} tokens"
            raise UsageError(f"{found}, too few to cut {excess}; raise max_length")
        kept = [length - excess * (text == which) for text, length in enumerate(lengths)]
    for encoding, length, keep in zip((first, second), lengths, kept, strict=True):
        if encoding is not None and keep < length:
            encoding.truncate(keep)
    return excess


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
