"""Validate an untrusted `tokenizer.json` before it runs: sizes, ids, text growth. Patterns are run
by `patterns`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.jsonfiles import parse_json, read_bytes
from trifold.text.patterns import PARTS, PatternGuard, iter_objects

MAX_FILE = 100 * 2**20  # bytes; the largest in use has 33 MB
MAX_TOKENS = 4_000_000
_MAX_TOKEN = 10_000  # characters
_MAX_STRING = 1_000  # characters of a string in the parts that change text
_MAX_LIST = 128
_MAX_GROWTH = 1_000  # factor by which all replacements together may lengthen a text
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram", None)  # None: files from before 2020
_MAX_PATTERN = 10_000  # characters; the longest in use has about 1,000
_MAX_WORD = (
    1_000  # characters of a word, which WordPiece splits in quadratic time; the usual limit is 100
)


class Rejected(ValueError):
    """The reason why a part of a tokenizer is not used."""


def is_panic(error: BaseException) -> bool:
    """Whether the library's Rust code panicked; the type of such an error is not an Exception."""
    return type(error).__name__ == "PanicException"


def read_library(path: Path) -> tuple[Library, dict[str, Any], PatternGuard]:
    """The tokenizer in a `tokenizer.json`, its content, and the guard of its patterns.

    Raises CheckpointError if it is invalid or unsafe.
    """
    content = read_bytes(path, MAX_FILE)
    document = parse_json(content, str(path))
    validate(document, str(path))
    guard = PatternGuard(document, str(path))
    try:
        library = Library.from_str(content.decode("utf-8"))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(
            f"{path}: not a tokenizer of the `tokenizers` library ({error})"
        ) from None
    if document["model"].get("dropout"):
        library.model.dropout = None  # used for training only, and implemented in bpe_dropout.py
    return library, document, guard


def validate(document: Mapping[str, Any], place: str) -> None:
    """Raise CheckpointError if the vocabulary, merges, added tokens or other parts are out of
    bounds or unsafe.
    """
    try:
        model = _as_object(document.get("model"), "model")
        if model.get("type") not in _MODELS:
            raise Rejected(f"model.type {model.get('type')!r} is unknown")
        if model.get("max_input_chars_per_word", 0) not in range(_MAX_WORD + 1):
            raise Rejected(f"model.max_input_chars_per_word is not from 0 to {_MAX_WORD:,}")
        check_vocabulary(model.get("vocab"))
        _check_merges(model.get("merges", []))
        _check_added(document.get("added_tokens") or [])
        for name in (*PARTS, "post_processor"):
            _check_part(document.get(name), name)
        if any(_growth(document.get(part)) > _MAX_GROWTH for part in ("normalizer", "decoder")):
            raise Rejected(
                f"replacements that can make a text more than {_MAX_GROWTH:,} times as long"
            )
    except Rejected as error:
        raise CheckpointError(f"{place}: not a tokenizer that is safe to run ({error})") from None


def check_vocabulary(vocabulary: object) -> None:
    """Raise Rejected unless the vocabulary is a list of (token, score), or maps tokens to ids below
    MAX_TOKENS.
    """
    if isinstance(vocabulary, list):
        if len(vocabulary) > MAX_TOKENS:
            raise Rejected(f"model.vocab: {len(vocabulary):,} tokens is more than {MAX_TOKENS:,}")
        for entry in vocabulary:
            pair = isinstance(entry, list) and len(entry) == 2 and _is_token(entry[0])
            if not pair or not isinstance(entry[1], (int, float)) or isinstance(entry[1], bool):
                raise Rejected("model.vocab: an entry is not a token and its score")
        return
    ids = _as_object(vocabulary, "model.vocab")
    if not all(map(_is_token, ids)):
        raise Rejected(f"model.vocab: a token is longer than {_MAX_TOKEN:,} characters")
    for token, number in ids.items():
        _check_id(number, f"model.vocab: {token[:40]!r}")


def _check_id(number: object, what: str) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MAX_TOKENS:
        raise Rejected(
            f"{what} has the id {number!r}, which is not an integer from 0 to {MAX_TOKENS - 1:,}"
        )


def pair_of(merge: Any) -> Any:
    """The tokens of a merge, which older files write as a text with a space."""
    return merge.split(" ") if isinstance(merge, str) else merge


def _check_merges(merges: object) -> None:
    if not isinstance(merges, list) or len(merges) > MAX_TOKENS:
        raise Rejected(f"model.merges is not a list of at most {MAX_TOKENS:,} pairs")
    for merge in merges:
        pair = pair_of(merge)
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_token, pair)):
            raise Rejected(f"model.merges: {str(merge)[:60]!r} is not a pair of tokens")


def _check_added(tokens: object) -> None:
    if not isinstance(tokens, list) or len(tokens) > MAX_TOKENS:
        raise Rejected("added_tokens is not a list")
    for token in tokens:
        entry = _as_object(token, "added_tokens[…]")
        if not _is_token(entry.get("content")):
            raise Rejected("added_tokens[…].content is not a token")
        _check_id(entry.get("id"), f"added_tokens: {entry['content'][:40]!r}")


def _check_part(part: object, where: str, longest: int = _MAX_STRING) -> None:
    if isinstance(part, dict):
        if part.get("type") == "FixedLength" and not part.get("length"):
            raise Rejected(f"{where}.length is 0")
        for key, value in part.items():
            if key == "precompiled_charsmap":  # binary, and bounded by the file size
                continue
            limit = _MAX_PATTERN if key == "Regex" else _MAX_STRING
            _check_part(value, f"{where}.{key}", limit)
    elif isinstance(part, list):
        if len(part) > _MAX_LIST:
            raise Rejected(
                f"{where}: a list of {len(part):,} entries; at most {_MAX_LIST} are read"
            )
        for entry in part:
            _check_part(entry, where)
    elif isinstance(part, str) and len(part) > longest:
        raise Rejected(f"{where}: a text of {len(part):,} characters; at most {longest:,} are read")


def _growth(part: object) -> float:
    """The factor by which all replacements, applied in sequence, can lengthen a text."""
    product = 1.0
    for entry in iter_objects(part):
        content = entry.get("content")
        if isinstance(content, str):
            pattern = entry.get("pattern")
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            product *= max(1.0, len(content) / max(1, len(replaced or "")))
        elif isinstance(entry.get("prepend"), str):
            product *= 1 + len(entry["prepend"])
    return product


def _as_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_TOKENS:
        raise Rejected(f"{where} is not an object of at most {MAX_TOKENS:,} entries")
    return value


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TOKEN
