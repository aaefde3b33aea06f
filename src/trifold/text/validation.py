"""Validate an untrusted `tokenizer.json` before it runs: sizes, ids, text growth, special tokens
around a text. Patterns are run by `patterns`.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.text.patterns import PARTS, iter_objects

MAX_FILE = 100 * 2**20  # bytes; the largest in use has 33 MB
MAX_TOKENS = 4_000_000
_MAX_TOKEN = 10_000  # characters
_MAX_STRING = 1_000  # characters of a string in the parts that change text
_MAX_LIST = 128
_MAX_GROWTH = 1_000  # factor by which all replacements together may lengthen a text
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram", None)  # None: files from before 2020
_MAX_PATTERN = 10_000  # characters; the longest in use has about 1,000
_MAX_TYPE = 255  # of a token; XLNet has the most, 0 to 4
_MAX_WORD = (
    1_000  # characters of a word, which WordPiece splits in quadratic time; the usual limit is 100
)


class Rejected(ValueError):
    """The reason why a part of a tokenizer is not used."""


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
        if model.get("type") == "BPE" or "merges" in model:
            _check_merges(model.get("merges"), model.get("continuing_subword_prefix"))
        _check_added(document.get("added_tokens") or [])
        for name in (*PARTS, "post_processor"):
            _check_part(document.get(name), name)
        _check_numbers_around(document.get("post_processor"))
        if any(_growth(document.get(part)) > _MAX_GROWTH for part in ("normalizer", "decoder")):
            raise Rejected(
                f"replacements that can make a text more than {_MAX_GROWTH:,} times as long"
            )
    except Rejected as error:
        raise CheckpointError(
            f"{place}: not a tokenizer that is safe to run ({error}); copy the file again, or use "
            "another tokenizer"
        ) from None


# --- special tokens around a text -----------------------------------------------------------------


def check_post_processor(library: Library, place: str) -> None:
    """Raise CheckpointError unless the special tokens that the library puts around texts exist with
    their ids, and its templates hold each text once.
    """
    if library.post_processor is None:
        return
    state = json.loads(library.post_processor.__getstate__())
    try:
        for part in iter_objects(state):
            _check_template(part)
            for token, number in _tokens_around(part):
                _check_special(library, token, number)
    except Rejected as error:
        remedy = "correct it, or copy the tokenizer files again"
        raise CheckpointError(f"{place}: post_processor: {error}; {remedy}") from None


def _check_numbers_around(post_processor: object) -> None:
    """Check the ids and token types in a post-processor, whatever its kind."""
    for part in iter_objects(post_processor):
        ids = part.get("ids", [])
        for number in ids if isinstance(ids, list) else [ids]:
            check_id(number, "post_processor: a special token")
        for key in ("sep", "cls"):
            if isinstance(pair := part.get(key), list) and len(pair) == 2:
                check_id(pair[1], f"post_processor.{key}: {pair[0]!r:.40}")
        kind = part.get("type_id", 0)
        if not isinstance(kind, int) or isinstance(kind, bool) or kind not in range(_MAX_TYPE + 1):
            raise Rejected(
                f"post_processor has the type_id {kind!r:.40}, which is not an integer from 0 to "
                f"{_MAX_TYPE}"
            )


def _check_template(part: Mapping[str, Any]) -> None:
    """Check the templates of a TemplateProcessing: `single` has the text A, `pair` A and B."""
    if part.get("type") != "TemplateProcessing":
        return
    known = part["special_tokens"]
    for name, texts in (("single", ["A"]), ("pair", ["A", "B"])):
        pieces = part[name]
        found = sorted(piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece)
        if found != texts:
            has = " and ".join(found) or "no text"
            raise Rejected(f"the template {name!r} has {has} instead of {' and '.join(texts)}")
        for piece in pieces:
            token = piece.get("SpecialToken", {}).get("id")
            if token is not None and token not in known:
                raise Rejected(
                    f"the template {name!r} uses {token!r:.60}, which special_tokens does not "
                    "define"
                )


def _tokens_around(part: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The special tokens that a post-processor inserts, with their ids."""
    if part.get("type") in ("BertProcessing", "RobertaProcessing"):
        yield from (part["sep"], part["cls"])
    if part.get("type") == "TemplateProcessing":
        for name, entry in part["special_tokens"].items():
            tokens: Sequence[str] = entry["tokens"]
            if len(tokens) != len(entry["ids"]):
                raise Rejected(f"{name!r:.60} has {len(tokens)} tokens and {len(entry['ids'])} ids")
            yield from zip(tokens, entry["ids"], strict=True)


def _check_special(library: Library, token: str, number: int) -> None:
    found = library.token_to_id(token)
    if found is None:
        raise Rejected(f"the special token {token!r:.60} is not in the vocabulary")
    if found != number:
        raise Rejected(
            f"the special token {token!r:.60} has the id {number}, but {found} in the vocabulary"
        )


# --- vocabulary -----------------------------------------------------------------------------------


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
    if not _are_tokens(ids):
        raise Rejected(f"model.vocab: a token is longer than {_MAX_TOKEN:,} characters")
    if not _are_ids(ids.values()):
        for token, number in ids.items():
            check_id(number, f"model.vocab: {token[:40]!r}")


def check_id(number: object, what: str) -> None:
    """Raise Rejected, which begins with `what`, unless the number can be the id of a token."""
    if not _are_ids([number]):
        raise Rejected(
            f"{what} has the id {number!r:.40}, which is not an integer from 0 to "
            f"{MAX_TOKENS - 1:,}"
        )


def pairs_of(merges: list[Any]) -> list[Any]:
    """The tokens of each merge, which older files write as a text with a space, perhaps after a
    line with a version.
    """
    return [
        merge.split(" ") if isinstance(merge, str) else merge
        for merge in merges
        if not (isinstance(merge, str) and merge.startswith("#version"))
    ]


def _check_merges(merges: object, prefix: object) -> None:
    """prefix: begins the second token of each merge. The library removes it without a check."""
    if not isinstance(merges, list) or len(merges) > MAX_TOKENS:
        raise Rejected(f"model.merges is not a list of at most {MAX_TOKENS:,} pairs")
    pairs = pairs_of(merges)
    if not _are_pairs(pairs):
        wrong = next(merge for merge in merges if not _are_pairs(pairs_of([merge])))
        raise Rejected(f"model.merges: {str(wrong)[:60]!r} is not a pair of tokens")
    if isinstance(prefix, str) and not all(second.startswith(prefix) for _, second in pairs):
        raise Rejected(f"model.merges: a second token does not begin with {prefix!r:.40}")


def _check_added(tokens: object) -> None:
    if not isinstance(tokens, list) or len(tokens) > MAX_TOKENS:
        raise Rejected("added_tokens is not a list")
    for token in tokens:
        entry = _as_object(token, "added_tokens[…]")
        if not _is_token(entry.get("content")):
            raise Rejected("added_tokens[…].content is not a token")
        check_id(entry.get("id"), f"added_tokens: {entry['content'][:40]!r}")


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


# These check all values at once, by functions in C: a vocabulary has up to millions of tokens.


def _are_tokens(values: Collection[Any]) -> bool:
    return set(map(type, values)) <= {str} and max(map(len, values), default=0) <= _MAX_TOKEN


def _are_ids(values: Collection[Any]) -> bool:
    """Whether all are integers below MAX_TOKENS; booleans are not."""
    is_integer = set(map(type, values)) <= {int}
    return is_integer and min(values, default=0) >= 0 and max(values, default=0) < MAX_TOKENS


def _are_pairs(values: Collection[Any]) -> bool:
    """Whether all are pairs of tokens."""
    is_pair = set(map(type, values)) <= {list, tuple} and set(map(len, values)) <= {2}
    return is_pair and _are_tokens([*chain.from_iterable(values)])
