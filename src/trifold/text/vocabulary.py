"""Vocabulary files of all layouts: `tokenizer.json`, `vocab.txt`, `vocab.json` + `merges.txt`,
SentencePiece models.
"""

import base64
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken

from trifold.errors import CheckpointError
from trifold.folders import UntrustedPath, read_bytes, read_text
from trifold.jsonfiles import parse_json
from trifold.text.patterns import iter_objects
from trifold.text.validation import MAX_FILE, MAX_TOKENS, Rejected, check_vocabulary, pairs_of

SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model")
SPACE = "▁"  # stands for a space in SentencePiece and similar vocabularies

# Character -> byte in byte-level BPE: a visible byte is itself, the others are mapped to U+0100 and
# up.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = sorted({*range(256)}.difference(_VISIBLE))
BYTE_ALPHABET = {chr(byte): byte for byte in _VISIBLE}
BYTE_ALPHABET |= {chr(256 + number): byte for number, byte in enumerate(_HIDDEN)}


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer folder of any layout.

    scores: of a unigram model, in the order of the ids. unk_id, byte_fallback: of a SentencePiece
    model.
    """

    ids: dict[str, int] = field(default_factory=dict)
    scores: list[tuple[str, float]] = field(default_factory=list)
    merges: list[tuple[str, str]] = field(default_factory=list)
    charsmap: bytes = b""
    added: list[AddedToken] = field(default_factory=list)
    unk_id: int | None = None
    byte_fallback: bool = False


def read_vocabulary(folder: UntrustedPath) -> Vocabulary:
    """The vocabulary of a folder without a `tokenizer.json`. Raises CheckpointError if there is
    none.
    """
    for name in SENTENCEPIECE:
        if (folder / name).exists():
            return read_sentencepiece(folder / name)
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        return from_vocab_and_merges(folder / "vocab.json", folder / "merges.txt")
    if (folder / "vocab.txt").exists():
        return Vocabulary(
            ids={line.rstrip(): n for n, line in enumerate(read_lines(folder / "vocab.txt"))}
        )
    layouts = ("tokenizer.json", *SENTENCEPIECE, "source.spm + target.spm + vocab.json")
    looked = "; ".join([*layouts, "vocab.json + merges.txt", "vocab.txt"])
    raise CheckpointError(f"{folder}: has no tokenizer; looked for {looked}")


def from_document(document: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a validated `tokenizer.json`."""
    model = document["model"]
    merges = pairs_of(model.get("merges") or [])
    parts = (
        part
        for part in iter_objects(document.get("normalizer"))
        if part.get("type") == "Precompiled"
    )
    tokens = model["vocab"]
    ids: dict[str, int] = {}
    scores: list[tuple[str, float]] = []
    if isinstance(tokens, dict):
        ids = tokens
    elif isinstance(tokens, list):
        scores = [(piece, float(score)) for piece, score in tokens]
    return Vocabulary(
        ids=ids,
        scores=scores,
        merges=[(left, right) for left, right in merges],
        charsmap=base64.b64decode(next(parts, {}).get("precompiled_charsmap") or ""),
    )


def from_vocab_and_merges(vocab: UntrustedPath, merges: UntrustedPath) -> Vocabulary:
    """`vocab.json` and `merges.txt`, one pair per line in order of priority."""
    pairs = []
    for number, line in enumerate(read_lines(merges), start=1):
        if line.startswith("#version") or not line:
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise CheckpointError(f"{merges}:{number}: {line[:60]!r} is not a pair of tokens")
        pairs.append((pair[0], pair[1]))
    return Vocabulary(ids=read_ids(vocab), merges=pairs)


def read_ids(path: UntrustedPath) -> dict[str, int]:
    """A `vocab.json`, token -> id. Raises CheckpointError for an invalid id."""
    ids = parse_json(read_bytes(path, MAX_FILE), str(path))
    try:
        check_vocabulary(ids)
    except Rejected as error:
        raise CheckpointError(f"{path}: not a vocabulary that is safe to use ({error})") from None
    return ids


def read_lines(path: UntrustedPath) -> list[str]:
    r"""Lines of a UTF-8 file; only \n and \r\n end a line."""
    text = read_text(path, MAX_FILE)
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines or len(lines) > MAX_TOKENS:
        raise CheckpointError(
            f"{path}: {len(lines):,} lines; between 1 and {MAX_TOKENS:,} are read"
        )
    return [line.removesuffix("\r") for line in lines]


# --- SentencePiece (Kudo & Richardson 2018) -------------------------------------------------------

MAX_MODEL = 16 * 2**20  # bytes; the largest in use has about 5 million
NORMAL, CONTROL, USER = 1, 3, 4  # piece types
UNIGRAM, BPE = 1, 2  # model types
_MAX_PIECE = 256  # bytes; trainers write at most 16 characters by default


def all_merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """Every pair of pieces that forms another piece, in the order of that piece, and then by the
    length of the first.
    """
    known = {*pieces}
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def read_sentencepiece(path: UntrustedPath) -> Vocabulary:
    """The vocabulary of a SentencePiece model; the merges of a BPE model are all those that its
    pieces allow.

    Raises CheckpointError if the file is missing, too large or invalid.
    """
    content = read_bytes(path, MAX_MODEL)
    try:
        fields = list(_iter_fields(content))
        pieces = [_parse_piece(value) for number, value in fields if number == 1]
        messages = dict(fields)
        trainer, normalizer = (dict(_iter_fields(messages.get(number, b""))) for number in (2, 3))
        kind = int(trainer.get(3, UNIGRAM))
        unk_id = int(trainer.get(40, 0))
        charsmap = normalizer.get(2, b"")
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise CheckpointError(
            f"{path}: not a SentencePiece model ({error}); copy the file again"
        ) from None
    if kind not in (UNIGRAM, BPE):
        raise CheckpointError(
            f"{path}: SentencePiece kind {kind}; only unigram (1) and BPE (2) are read"
        )
    if not pieces or not 0 <= unk_id < len(pieces) or not isinstance(charsmap, bytes):
        raise CheckpointError(
            f"{path}: not a SentencePiece model ({len(pieces)} pieces); copy it again"
        )
    added = [
        AddedToken(piece, normalized=False, special=kind_of_piece == CONTROL)
        for piece, _, kind_of_piece in pieces
        if kind_of_piece in (CONTROL, USER)
    ]
    more: dict[str, Any] = {"scores": [(piece, score) for piece, score, _ in pieces]}
    if kind == BPE:
        ids = {piece: number for number, (piece, _, _) in enumerate(pieces)}
        more = {"ids": ids, "merges": all_merges(sorted(ids, key=ids.__getitem__))}
    byte_fallback = bool(trainer.get(35, False))
    return Vocabulary(
        charsmap=charsmap, added=added, unk_id=unk_id, byte_fallback=byte_fallback, **more
    )


def _parse_piece(content: bytes) -> tuple[str, float, int]:
    fields = dict(_iter_fields(content))
    text = str(fields.get(1, b""), "utf-8")
    score = float(fields.get(2, 0.0))
    kind = fields.get(3, NORMAL)
    if not math.isfinite(score) or len(text.encode()) > _MAX_PIECE:
        raise ValueError(f"the piece {text!r:.40} is too long, or its score is not finite")
    return text, score, kind


def _iter_fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of every field of a protobuf message: an integer, a float32, or bytes (nested
    messages too).
    """
    at = 0
    value: Any
    while at < len(content):
        tag, at = _read_varint(content, at)
        match tag & 7:
            case 0:
                value, at = _read_varint(content, at)
            case 2:
                size, at = _read_varint(content, at)
                value = content[at : at + size]
                at = at + size
            case 5:
                value = struct.unpack_from("<f", content, at)[0]
                at = at + 4
            case 1:
                value = content[at : at + 8]
                at = at + 8
            case wire:
                raise ValueError(f"wire type {wire} at byte {at}")
        if at > len(content):
            raise ValueError(f"cut off at byte {at}")
        yield tag >> 3, value


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"no number at byte {at}")
