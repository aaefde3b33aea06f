"""The metadata of a tokenizer for a GGUF file: `tokenizer` in the other direction.

The keys are read back, and both tokenizers split the same texts. One that gives other tokens is
refused.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer as Library

from trifold.errors import CheckpointError
from trifold.folders import FileAsFolder
from trifold.hub.gguf.file_format import Value
from trifold.hub.gguf.metadata import Metadata
from trifold.hub.gguf.tokenizer import (
    BYTE,
    CONTROL,
    DEFAULTS,
    LOWERCASE,
    MODEL,
    NORMAL,
    PREFIX,
    ROLES,
    STRIP_ACCENTS,
    TEMPLATE,
    UNKNOWN,
    UNUSED,
    USER,
    Document,
    ends,
    splitter,
    tokenizer_files,
)
from trifold.text import Tokenizer
from trifold.text.folder import read_tokenizer
from trifold.text.pre_tokenizers import PRE_TOKENIZERS, WHOLE_WORDS
from trifold.text.validation import pairs_of
from trifold.text.vocabulary import SPACE

Values = dict[str, Value]
BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}
REMEDY = (
    "train with tokenizer.kind=byte-bpe, or write a Hugging Face folder (trifold convert OLD NEW)"
)
# Texts that tokenizers split differently, for a comparison.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "don't, WE'LL, it's 1998: 3,141½ and 12345678!",
    " two  spaces   and\ttabs\n\n and lines\r\n\n\n  indented",
    "Größe über Zürich — „Anführung“ … ÀÉÎ naïve coöperate",
    "日本語とカタカナ 中文字符 한국어 العربية עברית हिन्दी ไทย",
    "emoji 🙂👍🏽, ∑ ∫ √2 ≤ π, €5.00 / $3 + 7% = x_y#z@w",
    "CamelCaseWord ABCdef HTTPServer http://x.y/z?q=1&r=2 <b>tag</b> {x: [1]}",
    "def f(x):\n    return x**2  # comment\n\n\nclass A: pass",
    "word\u00a0with\u2003spaces -- a...b !!! ??",
)
_SAMPLES, _LENGTH = 24, 60  # texts of tokens at random, and the tokens of each
# A letter and its accent are one character after Unicode's form NFC, which llama.cpp does not
# apply. Texts from keyboards and web pages are in this form already.
_DECOMPOSED = "Cafe\u0301 Zu\u0308rich"


class TokenizerKeys(NamedTuple):
    """The keys of a tokenizer, and sentences about what they do not hold."""

    values: Values
    notes: list[str]


def tokenizer_keys(
    tokenizer: Tokenizer, rows: int, end_ids: Iterable[int], place: str
) -> TokenizerKeys:
    """The keys of a tokenizer.

    rows: those of the table of tokens; ids without a token get an unused one. end_ids: the tokens
    that end an answer. Raises CheckpointError for a tokenizer that a file does not hold.
    """
    return _Writer(tokenizer, rows, place).keys(end_ids)


@dataclass(frozen=True)
class _Writer:
    tokenizer: Tokenizer
    rows: int
    place: str

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.place}: the tokenizer {problem}; {REMEDY}")

    def keys(self, end_ids: Iterable[int]) -> TokenizerKeys:
        """The keys, of which readers make the same tokenizer."""
        document: Document = json.loads(self.tokenizer.library.to_str())
        kind = str(document["model"].get("type"))
        if not self.tokenizer.has_offsets or kind not in _MAKERS:
            raise self.error(
                f"({kind}) has no form in GGUF files, which hold BPE of bytes, SentencePiece, "
                "WordPiece and unigram models"
            )
        common = self._roles() | self._templates()
        if kind != "WordPiece":  # which always has tokens around a text
            common |= self._around()
        problem = ""
        for candidate in _MAKERS[kind](self, document):
            values = candidate | common
            values |= self._ends(values, end_ids)
            reread = self._reread(values)
            problem = self._difference(reread)
            if not problem:
                return TokenizerKeys(values, self._notes(reread))
        raise self.error(problem)

    def _reread(self, values: Values) -> Tokenizer:
        """The tokenizer that readers make of keys."""
        file = Metadata(values, {}, self.place)
        path = Path(self.place)
        return read_tokenizer(FileAsFolder(path, path, tokenizer_files(file)))

    def _notes(self, reread: Tokenizer) -> list[str]:
        """What is different in rare texts."""
        [ours], [theirs] = (codec.rows([_DECOMPOSED]) for codec in (self.tokenizer, reread))
        if ours.ids == theirs.ids:
            return []
        return [
            "llama.cpp does not join letters and combining accents (Unicode NFC) as the tokenizer "
            "does; normalize texts that have them"
        ]

    def _difference(self, reread: Tokenizer) -> str:
        """What the tokenizer that is read back does differently; "" for nothing."""
        texts = [*PROBES, *self._samples()]
        rows = zip(texts, self.tokenizer.rows(texts), reread.rows(texts), strict=True)
        for text, ours, theirs in rows:
            if ours.ids != theirs.ids:
                return (
                    f"gives other tokens than llama.cpp makes of its vocabulary: {text!r:.60} has "
                    f"{len(ours.ids)} tokens, and there {len(theirs.ids)}"
                )
        return ""

    def _samples(self) -> list[str]:
        """Texts of tokens at random."""
        ids = sorted(self._vocabulary().values())
        chosen = [Random(seed).choices(ids, k=_LENGTH) for seed in range(_SAMPLES)]
        return self.tokenizer.decode(chosen)

    # --- parts of all models ----------------------------------------------------------------------

    def tokens(self, document: Document, *, unknown: bool = True) -> tuple[list[str], list[int]]:
        """The tokens by id, and their types. unknown: whether the token of the unknown has a type
        of its own.
        """
        names = {number: token for token, number in self._vocabulary().items()}
        if max(names) >= self.rows:
            raise CheckpointError(
                f"{self.place}: the tokenizer has the id {max(names):,}, and the table of the "
                f"model {self.rows:,} rows; give the tokenizer of the model with --tokenizer"
            )
        tokens = [names.get(number, f"[PAD{number}]") for number in range(self.rows)]
        types = [NORMAL if number in names else UNUSED for number in range(self.rows)]
        for entry in document["added_tokens"]:
            types[entry["id"]] = CONTROL if entry["special"] else USER
        number = self.tokenizer.unk_id
        if unknown and number is not None:
            types[number] = UNKNOWN
        return tokens, types

    def _vocabulary(self) -> dict[str, int]:
        found: dict[str, int] = self.tokenizer.library.get_vocab(with_added_tokens=True)
        return found

    def _roles(self) -> Values:
        ids = self._vocabulary()
        names = self.tokenizer.names
        return {
            f"{PREFIX}{key}_token_id": ids[names[role]]
            for role, key in ROLES.items()
            if names.get(role) in ids
        }

    def _around(self) -> Values:
        """Whether the tokens of begin and end are around a text."""
        [row] = self.tokenizer.rows(["a"])
        [inner] = self.tokenizer.encode(["a"])
        starts = (n for n in range(len(row.ids)) if row.ids[n : n + len(inner)] == inner)
        at = next(starts, 0)
        before, after = row.ids[:at], row.ids[at + len(inner) :]
        bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
        if before not in ([], [bos]) or after not in ([], [eos]):
            raise self.error("puts tokens around a text that are not those of begin and end")
        return {f"{PREFIX}add_bos_token": bool(before), f"{PREFIX}add_eos_token": bool(after)}

    def _templates(self) -> Values:
        templates = self.tokenizer.templates
        found: Values = {
            f"{TEMPLATE}.{name}": text for name, text in templates.items() if name != "default"
        }
        if found:
            found["tokenizer.chat_templates"] = [name for name in templates if name != "default"]
        if "default" in templates:
            found[TEMPLATE] = templates["default"]
        return found

    def _ends(self, values: Values, end_ids: Iterable[int]) -> Values:
        """Two more tokens that end an answer, besides those that readers know by their text."""
        known = ends(Metadata(values, {}, self.place))
        others = [number for number in end_ids if number not in known and number < self.rows]
        if len(others) > 2:
            raise self.error(f"has {len(others)} further tokens that end an answer, and a file 2")
        return {
            f"{PREFIX}{role}_token_id": number
            for role, number in zip(("eot", "eom"), others, strict=False)
        }


# --- the four models ------------------------------------------------------------------------------


def _bpe(writer: _Writer, document: Document) -> Iterator[Values]:
    if _is_byte_level(document):
        yield _byte_level(writer, document)
    else:
        yield from _sentencepiece(writer, document)


def _is_byte_level(document: Document) -> bool:
    return '"ByteLevel"' in json.dumps(document["pre_tokenizer"])


def _byte_level(writer: _Writer, document: Document) -> Values:
    """BPE of bytes, with merges in order, and the name of the way to split texts."""
    normalizer = json.dumps(document["normalizer"])
    if any(kind in normalizer for kind in ("Lowercase", "Strip", "Replace", "Prepend", "NFK")):
        raise writer.error("changes texts before it splits them, which GGUF files do not hold")
    tokens, types = writer.tokens(document, unknown=False)
    merges = [" ".join(pair) for pair in pairs_of(document["model"]["merges"])]
    return {
        MODEL: "gpt2",
        f"{PREFIX}pre": _way_of(writer, document),
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": np.array(types, np.int32),
        f"{PREFIX}merges": merges,
    }


def _way_of(writer: _Writer, document: Document) -> str:
    """The name of a way that splits the probes as the tokenizer does."""
    ignores_merges = bool(document["model"].get("ignore_merges"))
    pieces = _pieces(document["pre_tokenizer"])
    for name, way in PRE_TOKENIZERS.items():
        if (name in WHOLE_WORDS) == ignores_merges and _pieces(splitter(way)) == pieces:
            return name
    raise writer.error("splits texts in a way that has no name in GGUF files")


def _pieces(splitter: Document) -> list[Any]:
    """The pieces of the probes."""
    model: Document = {"type": "BPE", "vocab": {}, "merges": []}
    empty: Document = {"version": "1.0", "added_tokens": [], "model": model}
    library = Library.from_str(json.dumps(empty | {"pre_tokenizer": splitter}))
    return [library.pre_tokenizer.pre_tokenize_str(text) for text in PROBES]


def _sentencepiece(writer: _Writer, document: Document) -> Iterator[Values]:
    """BPE of characters. The score of a piece is the rank of the merge that makes it."""
    tokens, types = writer.tokens(document)
    if not BYTE_TOKENS.issubset(tokens):
        raise writer.error(
            "has no tokens of bytes, <0x00> to <0xFF>, of which llama.cpp makes characters that "
            "are not in the vocabulary"
        )
    scores = dict.fromkeys(tokens, 0.0)
    for rank, pair in enumerate(pairs_of(document["model"]["merges"])):
        piece = "".join(pair)
        if scores.get(piece) == 0.0:
            scores[piece] = -1.0 - rank
    for number, token in enumerate(tokens):
        if token in BYTE_TOKENS:
            types[number] = BYTE
    for has_prefix in (True, False):
        yield {
            MODEL: "llama",
            f"{PREFIX}pre": "default",
            f"{PREFIX}tokens": tokens,
            f"{PREFIX}scores": np.array([scores[token] for token in tokens], np.float32),
            f"{PREFIX}token_type": np.array(types, np.int32),
            f"{PREFIX}add_space_prefix": has_prefix,
        }


def _unigram(writer: _Writer, document: Document) -> Iterator[Values]:
    """A unigram model, with rules that normalize characters."""
    if writer.tokenizer.unk_id is None:
        raise writer.error("has no token of the unknown")
    tokens, types = writer.tokens(document)
    scores = dict(document["model"]["vocab"])
    values: Values = {
        MODEL: "t5",
        f"{PREFIX}pre": "default",
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}scores": np.array([scores.get(token, 0.0) for token in tokens], np.float32),
        f"{PREFIX}token_type": np.array(types, np.int32),
        f"{PREFIX}add_space_prefix": True,
        f"{PREFIX}remove_extra_whitespaces": True,
    }
    rules = _step(document["normalizer"], "Precompiled")
    if rules.get("precompiled_charsmap"):
        content = np.frombuffer(base64.b64decode(rules["precompiled_charsmap"]), np.uint8)
        values[f"{PREFIX}precompiled_charsmap"] = content
    yield values


def _step(normalizer: Any, kind: str) -> Mapping[str, Any]:
    """The first step of a kind in a normalizer; empty if there is none."""
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, Mapping) else []
    return next((step for step in steps if step.get("type") == kind), {})


def _wordpiece(writer: _Writer, document: Document) -> Iterator[Values]:
    """WordPiece. Files mark the start of a word, ▁x, instead of what continues it, ##x."""
    names, types = writer.tokens(document, unknown=False)
    tokens = [_phantom(name, kind) for name, kind in zip(names, types, strict=True)]
    normalizer = _step(document["normalizer"], "BertNormalizer")
    lowercase = bool(normalizer.get("lowercase"))
    strips = normalizer.get("strip_accents")
    values: Values = {
        MODEL: "bert",
        f"{PREFIX}pre": "default",
        f"{PREFIX}tokens": tokens,
        f"{PREFIX}token_type": np.array(types, np.int32),
        LOWERCASE: lowercase,
        STRIP_ACCENTS: lowercase if strips is None else bool(strips),
    }
    first = writer.tokenizer.cls_id
    if first is not None and first != DEFAULTS["bert"]["cls_token"]:
        values[f"{PREFIX}bos_token_id"] = first  # llama.cpp begins texts with this one
    yield values


def _phantom(name: str, kind: int) -> str:
    """A token of vocab.txt as files have it."""
    if kind in (CONTROL, UNKNOWN) or (name.startswith("[") and name.endswith("]")):
        return name
    return name.removeprefix("##") if name.startswith("##") else f"{SPACE}{name}"


_MAKERS: dict[str, Callable[[_Writer, Document], Iterator[Values]]] = {
    "BPE": _bpe,
    "Unigram": _unigram,
    "WordPiece": _wordpiece,
}
