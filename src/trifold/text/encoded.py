"""A text, or a pair of texts, as a model reads it: special tokens, types, places in the text, what was cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from trifold.errors import UsageError

Cut = Literal["longest_first", "only_first", "only_second"]


@dataclass(frozen=True)
class Encoded:
    """One row. All lists are as long as `ids`; `dropped` counts the tokens that did not fit into `max_length`."""

    ids: list[int]
    types: list[int]  # 0 for the first text, 1 for the second, as the tokenizer's template says
    offsets: list[tuple[int, int]]  # characters [from, to) of the text that the token stands for
    texts: list[int | None]  # which text a token is of, 0 or 1; None for special tokens
    dropped: int = 0
    words: list[int | None] = field(default_factory=list)  # which word of its text; None as in `texts`


def around(library: Any, first: Any, second: Any | None, dropped: int) -> Encoded:
    """Two encodings of the library (or one), with the special tokens around them, as a plain value."""
    length = len(first)  # the library forgets which text is the first, but not which tokens are of neither
    whole = library.post_process(first, second)
    places = count()
    texts = [None if special else int(next(places) >= length) for special in whole.special_tokens_mask]
    return Encoded(whole.ids, whole.type_ids, whole.offsets, texts, dropped, whole.word_ids)


def parts(encoding: Any, room: int, overlap: int) -> list[Any]:
    """An encoding of the library, cut into parts of at most `room` tokens, each of which repeats the last `overlap` of
    the one before it. Raises UsageError where there is no room for more than those.
    """
    if len(encoding) <= room:
        return [encoding]
    if room <= overlap:
        raise UsageError(
            f"{max(0, room)} tokens of the second text fit beside the first, and its parts overlap by {overlap}: "
            "shorten the first text, lower stride, or raise max_length"
        )
    encoding.truncate(room, stride=overlap)
    return [encoding, *encoding.overflowing]


def fit(first: Any, second: Any | None, room: int, cut: Cut) -> int:
    """Cut two encodings, in place and from their ends, so that together they have at most `room` tokens.

    Gives the number of tokens cut away. `longest_first` takes from the longer until both are of one length, then
    from both. Raises UsageError where the text that may be cut is not long enough to make room.
    """
    lengths = [len(first), 0 if second is None else len(second)]
    excess = sum(lengths) - room
    if excess <= 0:
        return 0
    kept = _shares(lengths, room, excess, cut)
    for encoding, length, keep in zip((first, second), lengths, kept, strict=True):
        if encoding is not None and keep < length:
            encoding.truncate(keep)
    return excess


def _shares(lengths: list[int], room: int, excess: int, cut: Cut) -> list[int]:
    if room < 0:
        raise UsageError(f"max_length leaves no room for text: special tokens alone take {-room} more")
    if cut == "longest_first":
        half = min(*lengths, room // 2)  # what the shorter one keeps
        return [half, room - half] if lengths[0] <= lengths[1] else [room - half, half]
    which = 0 if cut == "only_first" else 1
    if lengths[which] <= excess:
        what = ("first", "second")[which]
        raise UsageError(
            f"the {what} text has {lengths[which]} tokens, too few to cut {excess}; raise max_length"
        )
    return [length - excess * (place == which) for place, length in enumerate(lengths)]


def report(rows: Iterable[Encoded]) -> str:
    """One line that says how many texts were cut and how many tokens that cost; empty where none was."""
    cut = [row.dropped for row in rows if row.dropped]
    if not cut:
        return ""
    return f"{len(cut):,} texts were cut to fit, {sum(cut):,} tokens in all (at most {max(cut):,} in one)"
