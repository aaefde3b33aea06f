"""Tokenizers of the library `tokenizers`: read from a `tokenizer.json`, and copied."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer as Library, models

from trifold.errors import CheckpointError
from trifold.folders import FileAsFolder, UntrustedPath, read_bytes
from trifold.jsonfiles import parse_json
from trifold.text.panics import hidden_panics, is_panic
from trifold.text.patterns import PatternGuard
from trifold.text.validation import MAX_FILE, pairs_of, validate

# The options of a BPE model. Dropout is left out: it is used for training only, and implemented in
# bpe_dropout.py.
_BPE_OPTIONS = (
    "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
    "ignore_merges",
)  # fmt: skip


def read_library(path: UntrustedPath) -> tuple[Library, dict[str, Any], PatternGuard]:
    """The tokenizer in a `tokenizer.json`, its content, and the guard of its patterns.

    Raises CheckpointError if it is invalid or unsafe.
    """
    document, text = _content(path)
    validate(document, str(path))
    guard = PatternGuard(document, str(path))
    try:
        with hidden_panics():
            library = make_library(document, text)
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise CheckpointError(
            f"{path}: not a tokenizer of the `tokenizers` library ({_explain(str(error))}); copy "
            "the file again"
        ) from None
    return library, document, guard


def _content(path: UntrustedPath) -> tuple[dict[str, Any], str]:
    """The parsed content of a file, and its text, which is "" for content that is made here."""
    if isinstance(path, FileAsFolder) and path.exists():
        made = path.made()
        if isinstance(made, dict):
            return made, ""
    content = read_bytes(path, MAX_FILE)
    return parse_json(content, str(path)), content.decode("utf-8")


def make_library(document: Mapping[str, Any], text: str = "") -> Library:
    """The tokenizer of the valid content of a `tokenizer.json`. text: the same content, if it is
    known.

    The vocabulary and the merges of BPE are passed as objects. The library parses everything else.
    """
    model = document["model"]
    if model.get("type") != "BPE":
        library = Library.from_str(text or json.dumps(document))
        if model.get("dropout"):
            library.model.dropout = None
        return library
    merges = [*map(tuple, pairs_of(model["merges"]))]
    options = {name: model[name] for name in _BPE_OPTIONS if model.get(name) is not None}
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    parts = Library.from_str(json.dumps({**document, "model": empty}))
    made = models.BPE(model["vocab"], merges, **options)
    return with_parts(parts, made, tokens_by_id(parts).values())


def copy_library(library: Library) -> Library:
    """A copy, which shares the model: no model is changed after it was read."""
    return with_parts(library, library.model, tokens_by_id(library).values())


def with_parts(library: Library, model: models.Model, tokens: Iterable[AddedToken]) -> Library:
    """A tokenizer of this model with the parts of another tokenizer, and these added tokens."""
    made = Library(model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(library, name)
        if part is not None:
            setattr(made, name, part)
    made.add_tokens([*tokens])
    return made


def tokens_by_id(library: Library) -> dict[int, AddedToken]:
    """Copies of the added tokens by id, in the order of the ids."""
    return dict(sorted(library.get_added_tokens_decoder().items()))


def _explain(message: str) -> str:
    """The library's message; that about a part of no known kind names its key."""
    found = re.search(r"untagged enum (?:Py)?(\w+?)(?:Wrapper|Untagged)", message)
    if found is None:
        return message
    key = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
    return f"{key} is of no known type, or lacks a key or has one of another type"
