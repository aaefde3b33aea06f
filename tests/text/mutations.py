"""Seeded mutations of tokenizer.json files of every kind of model."""

from __future__ import annotations

import base64
import copy
import json
import random
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer as Library,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

LETTERS = "abcdefghij"
TEXTS = [
    "",
    "a",
    "ab ba",
    "  a  ",
    "é\u0301x",
    "日本語 a-b 12",
    "\0",
    "xx a xx",
    "A" * 50,
    "😀👩‍👧 b",
    "-",
]
# What replaces a value, preferably one of its type.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 2**31, 2**32 - 1, 2**53, 1.5, -0.5, 1e300),
    *("", "a", "b", "▁", "é", "\0", "</w>", "##", "<unk>", "zz", "A", "B", "first", "always"),
    *("Isolated", "Removed", "MergedWithPrevious", "Contiguous"),
    *([], {}, [1], ["a"], ["a", "b"], [["a", "b"]], [["a", -1.0]], {"String": ""}, {"Regex": ""}),
    *({"type": "Strip", "content": "a", "start": 3, "stop": 3}, {"type": "FixedLength", "length": 1}),
]  # fmt: skip


def documents() -> list[dict[str, Any]]:
    """Sound documents: byte-level BPE, WordPiece, unigram, words, plain BPE, and a unigram model
    with rules of SentencePiece.
    """
    byte_level = _library(
        models.BPE(_ids("<s>", *pre_tokenizers.ByteLevel.alphabet(), "ab"), [("a", "b")]),
        normalizer=normalizers.NFC(),
        pre_tokenizer=pre_tokenizers.ByteLevel(),
        decoder=decoders.ByteLevel(),
        post_processor=processors.ByteLevel(),
    )
    word_piece = _library(
        models.WordPiece(_ids("[UNK]", "[CLS]", "[SEP]", *LETTERS, "##a"), unk_token="[UNK]"),
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
        post_processor=processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
    )
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    changes: list[Any] = [normalizers.Strip(), normalizers.Replace(" ", "▁"), normalizers.Nmt()]
    decoding: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    unigram = _library(
        models.Unigram(pieces, 0, False),
        normalizer=normalizers.Sequence(changes),
        pre_tokenizer=pre_tokenizers.Metaspace(),
        decoder=decoders.Sequence([*decoding, decoders.Strip(" ", 1, 0)]),
        post_processor=processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[("<s>", 1)]
        ),
    )
    unigram.add_tokens([AddedToken("xx", lstrip=True, rstrip=True, single_word=True)])
    splits: list[Any] = [
        *(pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True), pre_tokenizers.Punctuation()),
        *(pre_tokenizers.Split("a", "isolated"), pre_tokenizers.FixedLength(3)),
    ]
    words = _library(
        models.WordLevel(_ids("<unk>", *LETTERS), "<unk>"),
        pre_tokenizer=pre_tokenizers.Sequence(splits),
        decoder=decoders.CTC("a", "b", True),
        post_processor=processors.RobertaProcessing(("a", 1), ("b", 2)),
    )
    plain = _library(
        models.BPE(_ids("<unk>", *LETTERS, "ab", "a</w>"), [("a", "b")], unk_token="<unk>"),
        pre_tokenizer=pre_tokenizers.WhitespaceSplit(),
        decoder=decoders.BPEDecoder(),
        normalizer=normalizers.ByteLevel(),
    )
    made = [json.loads(each.to_str()) for each in (byte_level, word_piece, unigram, words, plain)]
    trie = struct.pack("<I", 0) * 256
    rules = base64.b64encode(struct.pack("<I", len(trie)) + trie + b"a\0b\0").decode()
    ruled = copy.deepcopy(made[2])
    ruled["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": rules}
    return [*made, ruled]


def _ids(*tokens: str) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def _library(model: Any, **parts: Any) -> Library:
    library = Library(model)
    for name, part in parts.items():
        setattr(library, name, part)
    return library


def mutate(document: Any, rng: random.Random) -> Any:
    """A copy with one to three values removed, repeated, or replaced."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        by_part = defaultdict[str, list[tuple[Any, ...]]](list)
        for path in _paths(changed):
            by_part[str(path[:2])].append(path)  # a vocabulary is one part
        *way, last = rng.choice(by_part[rng.choice(sorted(by_part))])
        place = changed
        for key in way:
            place = place[key]
        _change(place, last, rng)
    return changed


def _change(place: Any, key: Any, rng: random.Random) -> None:
    how = rng.random()
    if how < 0.15:
        del place[key]
    elif how < 0.3 and isinstance(place, list):
        place.append(copy.deepcopy(rng.choice(place)))
    else:
        alike = [value for value in VALUES if type(value) is type(place[key])]
        chosen = alike if alike and rng.random() < 0.75 else VALUES
        place[key] = copy.deepcopy(rng.choice(chosen))


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys that lead to every value in nested objects and lists, without the outermost."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield (*at, key)
        yield from _paths(value[key], (*at, key))
