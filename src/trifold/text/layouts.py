"""The vocabulary files of every age: `tokenizer.json`, `vocab.txt`, `vocab.json` + `merges.txt`, SentencePiece."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from trifold.errors import CheckpointError
from trifold.jsonfiles import parse_json, read_bytes
from trifold.text.assembly import Vocabulary
from trifold.text.checks import LARGEST_TOKENIZER, MOST_TOKENS, check_vocabulary
from trifold.text.regexes import Refused
from trifold.text.sentencepiece import CONTROL, UNIGRAM, USER, Model

SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")


def of_document(document: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a `tokenizer.json` that was checked."""
    model = document["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or []]
    vocabulary = model["vocab"]
    return Vocabulary(
        ids=vocabulary if isinstance(vocabulary, dict) else {},
        scores=[(piece, float(score)) for piece, score in vocabulary] if isinstance(vocabulary, list) else [],
        merges=[(left, right) for left, right in merges],
        charsmap=_charsmap(document.get("normalizer")),
    )


def _charsmap(normalizer: object) -> bytes:
    if not isinstance(normalizer, dict):
        return b""
    for part in normalizer.get("normalizers", [normalizer]):
        if part.get("type") == "Precompiled":
            return base64.b64decode(part.get("precompiled_charsmap") or "")
    return b""


def of_sentencepiece(model: Model) -> Vocabulary:
    """The vocabulary of a SentencePiece model; its merges, where it is a BPE, are those that its pieces allow."""
    added = [
        AddedToken(piece, normalized=False, special=kind == CONTROL)
        for piece, _, kind in model.pieces
        if kind in (CONTROL, USER)
    ]
    if model.kind == UNIGRAM:
        scores = [(piece, score) for piece, score, _ in model.pieces]
        return Vocabulary(scores=scores, charsmap=model.charsmap, added=added, of_sentencepiece=True)
    ids = {piece: number for number, (piece, _, _) in enumerate(model.pieces)}
    return Vocabulary(
        ids=ids, merges=merges_of(ids), charsmap=model.charsmap, added=added, of_sentencepiece=True
    )


def merges_of(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, in the order of the pieces and then of their parts."""
    found: list[tuple[str, str]] = []
    for piece in sorted(ids, key=ids.__getitem__):
        pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += sorted(known, key=lambda pair: (len(pair[0]), len(pair[1])))
    return found


def of_text(path: Path) -> Vocabulary:
    """`vocab.txt`: one token a line, its id the number of the line."""
    lines = read_lines(path)
    return Vocabulary(ids={line.rstrip(): number for number, line in enumerate(lines)})


def of_vocab_and_merges(vocab: Path, merges: Path) -> Vocabulary:
    """`vocab.json` and `merges.txt`, one pair a line, the most important first."""
    pairs = []
    for number, line in enumerate(read_lines(merges), start=1):
        if line.startswith("#version") or not line:
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise CheckpointError(f"{merges}:{number}: {line[:60]!r} is not a pair of pieces")
        pairs.append((pair[0], pair[1]))
    return Vocabulary(ids=read_ids(vocab), merges=pairs)


def read_ids(path: Path) -> dict[str, int]:
    """A `vocab.json`, token -> id. Raises CheckpointError where an id is none."""
    ids = parse_json(read_bytes(path, LARGEST_TOKENIZER), str(path))
    try:
        check_vocabulary(ids)
    except Refused as error:
        raise CheckpointError(f"{path}: not a vocabulary that is safe to use ({error})") from None
    return ids


def read_lines(path: Path) -> list[str]:
    r"""Lines of a UTF-8 file, ended by \n or \r\n and by nothing else."""
    content = read_bytes(path, LARGEST_TOKENIZER)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not UTF-8; copy the file again") from None
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines or len(lines) > MOST_TOKENS:
        raise CheckpointError(f"{path}: {len(lines):,} lines; between 1 and {MOST_TOKENS:,} are read")
    return [line.removesuffix("\r") for line in lines]
