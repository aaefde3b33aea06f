"""How a tokenizer splits a text: its words, the pieces of each, and the steps that lead to them.

BPE merges pairs of pieces by priority (Sennrich et al. 2016), Unigram takes the most probable
pieces (Kudo 2018), WordPiece the longest piece from the left (Devlin et al. 2019).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from trifold.text.encoded import Encoded
from trifold.text.tokenizer import Tokenizer

MAX_WORD = 1_000  # characters of a word whose merges are shown; the time grows with the square
_NEVER = 1 << 62  # rank of a pair that is not a merge
# Keys of BPE with which the pieces are no result of merges alone.
_OTHER_RULES = ("continuing_subword_prefix", "ignore_merges")


@dataclass(frozen=True)
class Merge:
    """One merge in a word: the pair, its rank in the list of merges (from 1), and all pieces
    afterwards. Equal pairs that follow each other are merged at once.
    """

    pair: tuple[str, str]
    rank: int
    pieces: list[str]


@dataclass(frozen=True)
class Word:
    """A part of the text that the tokenizer segments alone, and its tokens by their positions.

    pieces: of the tokens. start: the pieces before the first merge, empty for another model.
    merges: None if they are not known. scores: the log-probability of each piece, of Unigram.
    """

    first: int
    last: int
    pieces: list[str]
    start: list[str] = field(default_factory=list)
    merges: list[Merge] | None = None
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Segmentation:
    """A text as tokens. model: BPE, Unigram, WordPiece, WordLevel, or "pieces" of a tokenizer that
    splits outside of the library. row: ids with the special tokens around the text.
    """

    text: str
    model: str
    row: Encoded
    pieces: list[str]
    words: list[Word]
    has_offsets: bool

    def byte_offsets(self) -> list[tuple[int, int] | None]:
        """The first byte of each token in UTF-8 and the one after its last; None for special tokens
        around the text, and if the tokenizer gives no offsets.
        """
        sizes = [0]
        for character in self.text:
            sizes.append(sizes[-1] + len(character.encode("utf-8", "surrogatepass")))
        return [
            None if text is None or not self.has_offsets else (sizes[start], sizes[end])
            for (start, end), text in zip(self.row.offsets, self.row.texts, strict=True)
        ]


def segment(tokenizer: Tokenizer, text: str, *, special_in_text: bool = False) -> Segmentation:
    """The segmentation of a text. special_in_text: whether special tokens in it are parsed. Raises
    CheckpointError for damaged files.
    """
    row = tokenizer.rows([text], special_in_text=special_in_text)[0]
    model = json.loads(tokenizer.library.to_str())["model"]
    kind = str(model.get("type") or "WordLevel")
    if not tokenizer.has_offsets:
        kind = "pieces"
    added = tokenizer.library.get_added_tokens_decoder()
    names = [str(tokenizer.library.id_to_token(token)) for token in row.ids]
    words = list[Word]()
    for first, last in _words(row):
        ids = row.ids[first:last]
        if added.keys().isdisjoint(ids):
            readable = tokenizer.pieces(ids)
            words.append(_word(kind, model, first, names[first:last], readable, tokenizer))
    return Segmentation(text, kind, row, tokenizer.pieces(row.ids), words, tokenizer.has_offsets)


def _words(row: Encoded) -> Iterator[tuple[int, int]]:
    """The first token of each word, and the one after its last."""
    numbers = enumerate(zip(row.texts, row.words, strict=True))
    for (text, word), group in groupby(numbers, key=lambda numbered: numbered[1]):
        positions = [position for position, _ in group]
        if text is not None and word is not None:
            yield positions[0], positions[-1] + 1


def _word(
    kind: str,
    model: Mapping[str, Any],
    first: int,
    names: list[str],
    readable: list[str],
    tokenizer: Tokenizer,
) -> Word:
    """A word of which `names` are the tokens and `readable` the same for people."""
    last = first + len(names)
    if kind == "Unigram":
        scores = dict(map(tuple, model["vocab"]))
        return Word(first, last, readable, scores=[scores.get(name, 0.0) for name in names])
    if kind != "BPE" or any(model.get(key) for key in _OTHER_RULES):
        return Word(first, last, readable)
    start = _first_pieces(names, str(model.get("end_of_word_suffix") or ""))
    if len(start) > MAX_WORD:
        return Word(first, last, readable)
    merges = list(_merges(start, _ranks(model["merges"])))
    end = merges[-1].pieces if merges else start
    if end != names:  # a piece without merges, such as the unknown token
        return Word(first, last, readable)
    read = tokenizer.readable
    shown = [
        Merge((read(one.pair[0]), read(one.pair[1])), one.rank, [*map(read, one.pieces)])
        for one in merges
    ]
    return Word(first, last, readable, [*map(read, start)], shown)


def _first_pieces(names: Sequence[str], suffix: str) -> list[str]:
    """The characters of the tokens of a word; a byte (<0x0A>) is one piece, and the last character
    has the suffix that marks the end of a word.
    """
    pieces = list[str]()
    for name in names:
        is_byte = len(name) == len("<0x00>") and name.startswith("<0x")
        ends = bool(suffix) and name.endswith(suffix)
        if is_byte:
            pieces.append(name)
        elif ends:
            pieces += name.removesuffix(suffix)
            pieces[-1:] = [pieces[-1] + suffix] if pieces else [suffix]
        else:
            pieces += name
    return pieces


def _ranks(merges: Sequence[Any]) -> dict[tuple[str, str], int]:
    """The rank of each pair, from 0; a pair is a list, or a text with a space in older files."""
    pairs = (tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in merges)
    return {(pair[0], pair[1]): rank for rank, pair in enumerate(pairs)}


def _merges(start: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> Iterator[Merge]:
    """The merges of a word, in the order in which they are applied: of all pairs the one with the
    least rank, and of equal ones the first.
    """
    pieces = list(start)
    latest: Merge | None = None
    while True:
        found = [ranks.get(pair, _NEVER) for pair in pairwise(pieces)]
        rank = min(found, default=_NEVER)
        if latest is not None and rank != latest.rank - 1:
            yield latest
        if rank == _NEVER:
            return
        at = found.index(rank)
        pair = (pieces[at], pieces[at + 1])
        pieces[at : at + 2] = ["".join(pair)]
        latest = Merge(pair, rank + 1, list(pieces))
