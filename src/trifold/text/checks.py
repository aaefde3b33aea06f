"""What a `tokenizer.json` may say: everything that a stranger's file could use to hurt is looked at before it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.jsonfiles import parse_json, read_bytes
from trifold.text.regexes import Refused, check_regex, panicked

LARGEST_TOKENIZER = 100 * 2**20  # bytes; the largest in use has 33 MB
MOST_TOKENS = 4_000_000
_LONGEST_TOKEN = 10_000  # characters
_LONGEST_STRING = 1_000  # in the parts that change text
_LONGEST_LIST = 128
_MOST_GROWTH = 1_000  # how much longer all replacements together may make a text
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram", None)  # None: files of before 2020 do not say
_WORKING_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def read_library(path: Path) -> tuple[Library, dict[str, Any]]:
    """The tokenizer in a `tokenizer.json`, and its content. Raises CheckpointError where it is none, or hostile."""
    content = read_bytes(path, LARGEST_TOKENIZER)
    document = parse_json(content, str(path))
    check_document(document, str(path))
    library = library_of(content.decode("utf-8"), str(path))
    if document["model"].get("dropout"):
        library.model.dropout = (
            None  # a tokenizer that rolls dice belongs to training, and there we roll our own
        )
    return library, document


def library_of(text: str, place: str) -> Library:
    """`Library.from_str`, whose failures and panics become CheckpointError."""
    try:
        return Library.from_str(text)
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        raise CheckpointError(f"{place}: not a tokenizer of the `tokenizers` library ({error})") from None


def check_document(document: Mapping[str, Any], place: str) -> None:
    """Raises CheckpointError where vocabulary, merges, added tokens or parts are absurd or could explode."""
    try:
        model = _mapping(document.get("model"), "model")
        if model.get("type") not in _MODELS:
            raise Refused(f"model.type {model.get('type')!r} is unknown")
        check_vocabulary(model.get("vocab"))
        _check_merges(model.get("merges", []))
        _check_added(document.get("added_tokens") or [])
        for name in _WORKING_PARTS:
            _check_part(document.get(name), name)
        if (
            _growth(document.get("normalizer")) > _MOST_GROWTH
            or _growth(document.get("decoder")) > _MOST_GROWTH
        ):
            raise Refused(f"replacements that can make a text more than {_MOST_GROWTH:,} times as long")
    except Refused as error:
        raise CheckpointError(f"{place}: not a tokenizer that is safe to run ({error})") from None


def check_vocabulary(vocabulary: object) -> None:
    """Ids of a vocabulary: whole numbers from 0 up, not far beyond their count. Raises Refused."""
    if isinstance(vocabulary, list):
        if len(vocabulary) > MOST_TOKENS:
            raise Refused(f"model.vocab: {len(vocabulary):,} tokens is more than {MOST_TOKENS:,}")
        if not all(
            isinstance(e, list) and len(e) == 2 and _token(e[0]) and _number(e[1]) for e in vocabulary
        ):
            raise Refused("model.vocab: an entry is not a token and its score")
        return
    ids = _mapping(vocabulary, "model.vocab")
    if not all(map(_token, ids)):
        raise Refused(f"model.vocab: a token is longer than {_LONGEST_TOKEN:,} characters")
    for token, number in ids.items():
        _check_id(number, f"model.vocab: {token[:40]!r}")


def _check_id(number: object, what: str) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MOST_TOKENS:
        raise Refused(
            f"{what} has the id {number!r}, which is not a whole number from 0 to {MOST_TOKENS - 1:,}"
        )


def _check_merges(merges: object) -> None:
    if not isinstance(merges, list) or len(merges) > MOST_TOKENS:
        raise Refused(f"model.merges is not a list of at most {MOST_TOKENS:,} pairs")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_token, pair)):
            raise Refused(f"model.merges: {str(merge)[:60]!r} is not a pair of pieces")


def _check_added(tokens: object) -> None:
    if not isinstance(tokens, list) or len(tokens) > MOST_TOKENS:
        raise Refused("added_tokens is not a list")
    for token in tokens:
        entry = _mapping(token, "added_tokens[…]")
        if not _token(entry.get("content")):
            raise Refused("added_tokens[…].content is not a token")
        _check_id(entry.get("id"), f"added_tokens: {entry['content'][:40]!r}")


def _check_part(part: object, where: str) -> None:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "Regex" and isinstance(value, str):
                _check_pattern(value, where)
            elif key == "precompiled_charsmap":
                continue  # binary, and bounded by the file
            else:
                _check_part(value, f"{where}.{key}")
    elif isinstance(part, list):
        if len(part) > _LONGEST_LIST:
            raise Refused(f"{where}: a list of {len(part):,} entries; at most {_LONGEST_LIST} are read")
        for entry in part:
            _check_part(entry, where)
    elif isinstance(part, str) and len(part) > _LONGEST_STRING:
        raise Refused(f"{where}: a text of {len(part):,} characters; at most {_LONGEST_STRING:,} are read")


def _check_pattern(pattern: str, where: str) -> None:
    try:
        check_regex(pattern)
    except Refused as error:
        raise Refused(f"{where}: the pattern {pattern[:60]!r}: {error}") from None


def _growth(part: object) -> float:
    """By how much all replacements, one after the other, can multiply the length of a text."""
    product = 1.0
    for entry in _dictionaries(part):
        content = entry.get("content")
        if isinstance(content, str):
            pattern = entry.get("pattern")
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            product *= max(1.0, len(content) / max(1, len(replaced or "")))
        elif isinstance(entry.get("prepend"), str):
            product *= 1 + len(entry["prepend"])
    return product


def _dictionaries(part: object) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for value in part.values():
            yield from _dictionaries(value)
    elif isinstance(part, list):
        for value in part:
            yield from _dictionaries(value)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MOST_TOKENS:
        raise Refused(f"{where} is not an object of at most {MOST_TOKENS:,} entries")
    return value


def _token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TOKEN


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
