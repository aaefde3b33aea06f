"""Validate an untrusted `tokenizer.json` before it runs: sizes, ids, text growth, regular expressions.

`tokenizers` runs regular expressions on a backtracking engine that cannot be interrupted. A pattern is rejected if
its shape can backtrack exponentially (nested repetition, back reference, recursion), or if it is slow on test texts
built from its characters; these grow until the first one takes too long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer as Library, normalizers

from trifold.errors import CheckpointError
from trifold.jsonfiles import parse_json, read_bytes

MAX_FILE = 100 * 2**20  # bytes; the largest in use has 33 MB
MAX_TOKENS = 4_000_000
_MAX_TOKEN = 10_000  # characters
_MAX_STRING = 1_000  # characters of a string in the parts that change text
_MAX_LIST = 128
_MAX_GROWTH = 1_000  # factor by which all replacements together may lengthen a text
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram", None)  # None: files from before 2020
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

_MAX_PATTERN = 10_000  # characters; the longest in use has about 1,000
_MAX_REPEATS = 1_000
_MAX_CHOICES = 12  # variable-length parts of one alternative; those in use have up to five
_PROBE_LENGTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)
_PROBE_SECONDS = 0.04  # processor time for one probe; a linear pattern takes a microsecond per character
_COMMON = " \n\ta0A!é日"
_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_GROUP = re.compile(r"\?(?:[imx-]*:|[=!>]|<[=!]|<\w+>|P<\w+>)")
_OPTIONS = re.compile(r"\?[imx-]+\)")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]{1,8}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^\d\n])|\\0", re.DOTALL
)


class Rejected(ValueError):
    """The reason why a part of a tokenizer is not used."""


def is_panic(error: BaseException) -> bool:
    """Whether the library's Rust code panicked; the type of such an error is not an Exception."""
    return type(error).__name__ == "PanicException"


def read_library(path: Path) -> tuple[Library, dict[str, Any]]:
    """The tokenizer in a `tokenizer.json`, and its content. Raises CheckpointError if it is invalid or unsafe."""
    content = read_bytes(path, MAX_FILE)
    document = parse_json(content, str(path))
    validate(document, str(path))
    try:
        library = Library.from_str(content.decode("utf-8"))
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(f"{path}: not a tokenizer of the `tokenizers` library ({error})") from None
    if document["model"].get("dropout"):
        library.model.dropout = None  # used for training only, and implemented in bpe_dropout.py
    return library, document


def validate(document: Mapping[str, Any], place: str) -> None:
    """Raise CheckpointError if the vocabulary, merges, added tokens or other parts are out of bounds or unsafe."""
    try:
        model = _as_object(document.get("model"), "model")
        if model.get("type") not in _MODELS:
            raise Rejected(f"model.type {model.get('type')!r} is unknown")
        check_vocabulary(model.get("vocab"))
        _check_merges(model.get("merges", []))
        _check_added(document.get("added_tokens") or [])
        for name in _PARTS:
            _check_part(document.get(name), name)
        if any(_growth(document.get(part)) > _MAX_GROWTH for part in ("normalizer", "decoder")):
            raise Rejected(f"replacements that can make a text more than {_MAX_GROWTH:,} times as long")
    except Rejected as error:
        raise CheckpointError(f"{place}: not a tokenizer that is safe to run ({error})") from None


def check_vocabulary(vocabulary: object) -> None:
    """Raise Rejected unless the vocabulary is a list of (token, score), or maps tokens to ids below MAX_TOKENS."""
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
        raise Rejected(f"{what} has the id {number!r}, which is not an integer from 0 to {MAX_TOKENS - 1:,}")


def _check_merges(merges: object) -> None:
    if not isinstance(merges, list) or len(merges) > MAX_TOKENS:
        raise Rejected(f"model.merges is not a list of at most {MAX_TOKENS:,} pairs")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
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


def _check_part(part: object, where: str) -> None:
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "Regex" and isinstance(value, str):
                try:
                    check_regex(value)
                except Rejected as error:
                    raise Rejected(f"{where}: the pattern {value[:60]!r}: {error}") from None
            elif key != "precompiled_charsmap":  # binary, and bounded by the file size
                _check_part(value, f"{where}.{key}")
    elif isinstance(part, list):
        if len(part) > _MAX_LIST:
            raise Rejected(f"{where}: a list of {len(part):,} entries; at most {_MAX_LIST} are read")
        for entry in part:
            _check_part(entry, where)
    elif isinstance(part, str) and len(part) > _MAX_STRING:
        raise Rejected(f"{where}: a text of {len(part):,} characters; at most {_MAX_STRING:,} are read")


def _growth(part: object) -> float:
    """The factor by which all replacements, applied in sequence, can lengthen a text."""
    product = 1.0
    for entry in _iter_objects(part):
        content = entry.get("content")
        if isinstance(content, str):
            pattern = entry.get("pattern")
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            product *= max(1.0, len(content) / max(1, len(replaced or "")))
        elif isinstance(entry.get("prepend"), str):
            product *= 1 + len(entry["prepend"])
    return product


def _iter_objects(part: object) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    if isinstance(part, (dict, list)):
        for value in part.values() if isinstance(part, dict) else part:
            yield from _iter_objects(value)


def _as_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MAX_TOKENS:
        raise Rejected(f"{where} is not an object of at most {MAX_TOKENS:,} entries")
    return value


def _is_token(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TOKEN


# --- regular expressions --------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def check_regex(pattern: str) -> None:
    """Raise Rejected if the pattern is invalid or could take more than about linear time."""
    if len(pattern) > _MAX_PATTERN:
        raise Rejected(f"{len(pattern):,} characters is too long; at most {_MAX_PATTERN:,} are read")
    end, _ = _parse_alternatives(pattern, 0, 0)
    if end < len(pattern):
        raise Rejected(f"an unmatched ) at character {end}")
    try:
        finder = normalizers.Replace(Regex(pattern), "")
    except Exception as error:  # the library raises plain Exception
        raise Rejected(str(error)) from None
    for repeated, ending in _probes(pattern):
        _check_speed(finder, repeated, ending)


def _parse_alternatives(text: str, at: int, depth: int) -> tuple[int, int]:
    """Parse up to the closing bracket or the end. Returns the position, and the number of choices of a match."""
    if depth > 50:
        raise Rejected("brackets nested more than 50 deep")
    branches = [0]
    while at < len(text) and text[at] != ")":
        if text[at] == "|":
            branches.append(0)
            at += 1
            continue
        at, inner = _parse_atom(text, at, depth)
        at, low, high = _parse_quantifiers(text, at)
        if inner and high > 1:
            raise Rejected(f"a repetition of what may match in several ways, before character {at}")
        branches[-1] += inner + (low != high)
        if branches[-1] > _MAX_CHOICES:
            raise Rejected(f"more than {_MAX_CHOICES} choices in a row, before character {at}")
    return at, max(branches) + (len(branches) > 1)


def _parse_atom(text: str, at: int, depth: int) -> tuple[int, int]:
    if text[at] == "\\":
        found = _ESCAPE.match(text, at)
        if found is None or text[at + 1] in "kgKGRX":
            raise Rejected(f"a back reference or an unknown escape at character {at}")
        return found.end(), 0
    if text[at] == "[":
        return _parse_class(text, at), 0
    if text[at] != "(":
        return at + 1, 0
    options = _OPTIONS.match(text, at + 1)
    if options is not None:
        return options.end(), 0
    start = _GROUP.match(text, at + 1)
    if start is None and text[at + 1 : at + 2] in ("?", "*"):
        raise Rejected(f"an unknown kind of group at character {at}")
    end, choices = _parse_alternatives(text, at + 1 if start is None else start.end(), depth + 1)
    if end >= len(text):
        raise Rejected(f"a bracket that is never closed, at character {at}")
    return end + 1, choices


def _parse_class(text: str, at: int) -> int:
    start, at, depth = at, at + 1, 1
    at += text.startswith("^", at)
    at += text.startswith("]", at)
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "[") - (text[at] == "]")
        at += 1
        if not depth:
            return at
    raise Rejected(f"a character class that is never closed, at character {start}")


def _parse_quantifiers(text: str, at: int) -> tuple[int, int, float]:
    """The position after the quantifiers at `at`, and the minimum and maximum number of repeats."""
    low, high = 1, 1.0
    while at < len(text):
        counted = _COUNTED.match(text, at)
        if text[at] in "*+?":
            one_low, one_high = {"*": (0, float("inf")), "+": (1, float("inf")), "?": (0, 1.0)}[text[at]]
            after = at + 1
        elif counted is not None and counted.group() not in ("{}", "{,}"):
            one_low = int(counted[1] or 0)
            one_high = float(one_low) if counted[2] is None else float(counted[2] or "inf")
            after = counted.end()
            if one_low > _MAX_REPEATS or _MAX_REPEATS < one_high < float("inf"):
                raise Rejected(f"more than {_MAX_REPEATS:,} repeats, at character {at}")
        else:
            break
        if (low, high) == (1, 1.0):
            low, high = one_low, one_high
        elif text[at] not in "?+":  # a ? or + after a quantifier makes it lazy or possessive
            raise Rejected(f"a repetition of a repetition at character {at}")
        at = after
    return at, low, high


def _probes(pattern: str) -> list[tuple[str, str]]:
    """(repeated text, ending): common characters and those of the pattern, alone and in pairs.

    The ending holds every character of the pattern, or the engine would rule out a match at once.
    """
    own = [c for c in dict.fromkeys(pattern) if c not in "\\[](){}|*+?^$." and c not in _COMMON]
    single = [*_COMMON, *own[:12]]
    ending = "\x01" + "".join(dict.fromkeys([*own, *pattern]))
    pairs = [a + b for a, b in combinations(single[:6], 2)]
    return [*((c, "") for c in single), *((c, ending) for c in [*single, *pairs])]


def _check_speed(finder: normalizers.Replace, repeated: str, ending: str) -> None:
    for length in _PROBE_LENGTHS:
        text = repeated * (length // len(repeated)) + ending
        seconds = _measure(finder, text)
        if seconds > _PROBE_SECONDS and (
            seconds > 10 * _PROBE_SECONDS or _measure(finder, text) > _PROBE_SECONDS
        ):
            raise Rejected(f"too slow: {length} characters of {repeated!r} take more than {_PROBE_SECONDS} s")


def _measure(finder: normalizers.Replace, text: str) -> float:
    """Processor time of this thread, which the load of the machine does not change."""
    before = time.thread_time()
    try:
        finder.normalize_str(text)
    except BaseException as error:  # the engine panics after some million steps
        if not is_panic(error):
            raise
        return float("inf")
    return time.thread_time() - before
