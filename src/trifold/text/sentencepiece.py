"""SentencePiece models (Kudo & Richardson 2018), read and run without the library of that name.

`read_model` takes the few fields of the protobuf that decide about text. `Segmenter` cuts text exactly as the C++
library does, in its single precision: Marian's tokenizers need that, the others run on `tokenizers`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from trifold.errors import CheckpointError
from trifold.jsonfiles import read_bytes

LARGEST_MODEL = 16 * 2**20  # bytes; the largest in use has about 5 million
SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # the types of a piece
UNIGRAM, BPE = 1, 2

_UNK_PENALTY = 10.0  # kUnkPenalty in unigram_model.cc
_LONGEST_PIECE = 256  # bytes; trainers write at most 16 characters unless told otherwise
_MOST_CHARACTERS = (
    2_000_000  # of all pieces of a model that `Segmenter` runs; those in use have half a million
)


@dataclass(frozen=True)
class Model:
    """What a SentencePiece model says: pieces as (text, score, type) in the order of their ids, and how to clean."""

    pieces: list[tuple[str, float, int]]
    kind: int = UNIGRAM
    unk_id: int = 0
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_model(path: Path) -> Model:
    """Read `spiece.model` and its like. Raises CheckpointError where it is missing, too large or no such model."""
    content = read_bytes(path, LARGEST_MODEL)
    try:
        parts = list(_fields(content))
        pieces = [_piece(value) for number, value in parts if number == 1 and isinstance(value, bytes)]
        trainer, cleaner = (_last(parts, number) for number in (2, 3))
        kind = int(trainer.get(3, UNIGRAM))
        unk_id = int(trainer.get(40, 0))
        charsmap = cleaner.get(2, b"")
        flags = [bool(cleaner.get(number, True)) for number in (3, 4, 5)]
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise CheckpointError(f"{path}: no SentencePiece model ({error}); copy the file again") from None
    if kind not in (UNIGRAM, BPE):
        raise CheckpointError(
            f"{path}: a SentencePiece model of kind {kind}; only unigram (1) and BPE (2) are read"
        )
    if not pieces or not 0 <= unk_id < len(pieces) or not isinstance(charsmap, bytes):
        raise CheckpointError(
            f"{path}: no SentencePiece model (it has {len(pieces)} pieces); copy the file again"
        )
    return Model(pieces, kind, unk_id, bool(trainer.get(35, False)), charsmap, *flags)


def _piece(content: bytes) -> tuple[str, float, int]:
    fields = dict(_fields(content))
    text, score, kind = fields.get(1, b""), fields.get(2, 0.0), fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(kind, int) or len(text) > _LONGEST_PIECE:
        raise ValueError("a piece that is none")
    number = float(score)
    if number - number != 0:
        raise ValueError("a score that is not finite")
    return text.decode("utf-8"), number, kind


def _last(parts: list[tuple[int, bytes | int | float]], number: int) -> dict[int, bytes | int | float]:
    found = [value for field, value in parts if field == number and isinstance(value, bytes)]
    return dict(_fields(found[-1])) if found else {}


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """(number, value) of every field of a protobuf message; messages inside stay bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield number, value if value < 1 << 63 else value - (1 << 64)
            continue
        size, at = _varint(content, at) if wire == 2 else ({1: 8, 5: 4}[wire] if wire in (1, 5) else -1, at)
        if size < 0 or at + size > len(content):
            raise ValueError(f"cut off at byte {at}")
        raw = content[at : at + size]
        at += size
        yield number, raw if wire == 2 else struct.unpack("<f" if wire == 5 else "<d", raw)[0]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"no number at byte {at}")


class Segmenter:
    """Text -> pieces, as `SentencePieceProcessor.encode(text, out_type=str)` of a unigram model gives them.

    Not promised: which of two overlapping symbols of the user's own is taken where both ways score the same.
    """

    def __init__(self, model: Model) -> None:
        if model.kind != UNIGRAM:
            raise CheckpointError("a Marian tokenizer needs SentencePiece models of the unigram kind")
        self._model = model
        self._rules = Charsmap(model.charsmap)
        if sum(len(text) for text, _, _ in model.pieces) > _MOST_CHARACTERS:
            raise CheckpointError("a SentencePiece model whose pieces are too long, all together")
        normal = [score for _, score, kind in model.pieces if kind == NORMAL]
        best = max(normal, default=0.0)
        self._unk = _single(min(normal, default=0.0) - _UNK_PENALTY)
        self._scores: dict[str, float] = {}
        for text, score, kind in model.pieces:
            if kind == NORMAL and text:
                self._scores[text] = score
            elif kind == USER and text:  # a bonus, so that it is always taken
                self._scores[text] = _single(_single(len(text.encode("utf-8")) * best) - 0.1)
        self._user = sorted((t for t, _, kind in model.pieces if kind == USER and t), key=len, reverse=True)
        self._starts = {text[:end] for text in self._scores for end in range(1, len(text) + 1)}

    def __call__(self, text: str) -> list[str]:
        """The pieces of `text`; neighbours that are unknown are one piece."""
        text = self._normal(text)
        best: list[_Path | None] = [None] * (len(text) + 1)
        best[0] = (0.0, 0, True)
        for start in range(len(text)):
            here = best[start]
            assert here is not None  # every character leads on, by itself if by nothing else
            alone = False
            for end in range(start + 1, len(text) + 1):
                piece = text[start:end]
                if piece not in self._starts:
                    break
                score = self._scores.get(piece)
                if score is not None:
                    _offer(best, end, _single(here[0] + score), start, True)
                    alone = alone or end == start + 1
            if not alone:
                _offer(best, start + 1, _single(here[0] + self._unk), start, False)
        return _walk_back(text, best)

    def _normal(self, text: str) -> str:
        """normalizer.cc: characters replaced by the longest rules, white space squeezed, a space put before."""
        model = self._model
        changed = [part for part in self._parts(text) if part]
        written: list[str] = []
        after_space = model.remove_extra_whitespaces
        for part in changed:
            if after_space:
                part = part.lstrip(" ")
            if part:
                written.append(part)
                after_space = part.endswith(" ") and model.remove_extra_whitespaces
        clean = "".join(written)
        clean = " " * (model.add_dummy_prefix and bool(text)) + clean
        if model.escape_whitespaces:
            clean = clean.replace(" ", SPACE)
        if not model.remove_extra_whitespaces:
            return clean
        return clean.rstrip(SPACE if model.escape_whitespaces else " ")

    def _parts(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            user = next((one for one in self._user if text.startswith(one, at)), None) if self._user else None
            part, taken = (user, len(user)) if user is not None else self._rules.longest(text, at)
            yield part
            at += taken


_Path: TypeAlias = tuple[
    float, int, bool
]  # the best score up to here, where its last piece begins, is it known


def _single(number: float) -> float:
    """Rounded to single precision, in which the C++ library keeps scores."""
    return float(np.float32(number))


def _offer(best: list[_Path | None], end: int, score: float, start: int, known: bool) -> None:
    old = best[end]
    if old is None or score > old[0]:
        best[end] = (score, start, known)


def _walk_back(text: str, best: list[_Path | None]) -> list[str]:
    pieces: list[str] = []
    end, unknown_before = len(text), False
    while end > 0:
        path = best[end]
        assert path is not None
        _, start, known = path
        if unknown_before and not known:
            pieces[-1] = text[start:end] + pieces[-1]
        else:
            pieces.append(text[start:end])
        unknown_before, end = not known, start
    return pieces[::-1]


class Charsmap:
    """The replacement rules of a model: a double-array trie (Darts) over UTF-8 with a block of results."""

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little") if blob else 0
        if size % 4 or (blob and not 1024 <= size <= len(blob) - 4):
            raise CheckpointError(f"a SentencePiece model whose rules are broken (a trie of {size} bytes)")
        self._units = np.frombuffer(blob, "<u4", size // 4, 4).tolist() if blob else []
        self._results = blob[4 + size :]
        self._single: dict[str, str] = {}  # characters that begin no longer rule, and what becomes of them

    def longest(self, text: str, at: int) -> tuple[str, int]:
        """What the longest rule that fits at `at` gives, and how many characters of the text it takes."""
        character = text[at]
        known = self._single.get(character)
        if known is not None:
            return known, 1
        if not self._units:
            return character, 1
        found, alone = self._search(text[at : at + 32])
        if alone:
            self._single[character] = character if found is None else found[0]
        return (character, 1) if found is None else found

    def _search(self, text: str) -> tuple[tuple[str, int] | None, bool]:
        """The longest match at the beginning of `text`; and whether one character was enough to know it."""
        units, node, found = self._units, 0, None
        node ^= _offset(units[0])
        for taken, character in enumerate(text, start=1):
            for byte in character.encode("utf-8", "surrogatepass"):
                node ^= byte
                if node >= len(units) or units[node] & 0x800000FF != byte:
                    return found, taken == 1
                has_leaf = units[node] >> 8 & 1
                node ^= _offset(units[node])
                if node >= len(units):
                    return found, taken == 1
                leaf = units[node] & 0x7FFFFFFF if has_leaf else None
            if leaf is not None:
                end = self._results.find(b"\0", leaf)
                found = self._results[leaf : max(end, leaf)].decode("utf-8", "replace"), taken
        return found, False


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
