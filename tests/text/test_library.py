"""Tokenizers made of the content of a file, and copies, equal what the library reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer as Library, models

from trifold.text.library import copy_library, make_library
from trifold.text.templates import template

TOKENS = ["<unk>", "<0x61>", "a", "b", "ab", "c", "##c", "</s>", "b</w>", " ", "a ", "ac"]
IDS = {token: number for number, token in enumerate(TOKENS)}


def bpe(merges: list[Any], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": IDS, "merges": merges, **options}


PAIRS = [["a", "b"], ["a", " "]]
MODELS = {
    "pairs": bpe(PAIRS),
    "texts": bpe(["a b"]),
    "texts with a version": bpe(["#version: 0.2", "a b"]),
    "no merges": bpe([]),
    "bytes": bpe(PAIRS, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
    "affixes": bpe(
        [["a", "##c"]], continuing_subword_prefix="##", end_of_word_suffix="</w>"
    ),
    "whole words": bpe(PAIRS, ignore_merges=True),
    "nothing": bpe(PAIRS, unk_token=None, fuse_unk=False, dropout=None),
    "wordpiece": {
        "type": "WordPiece", "vocab": IDS, "unk_token": "<unk>",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    },
    "unigram": {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.5] for token in TOKENS]},
}  # fmt: skip


def added(number: int, content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"id": number, "content": content, **dict.fromkeys(names, False), **flags}


def document(model: dict[str, Any]) -> dict[str, Any]:
    """With all parts, and added tokens of the model and others, not in the order of ids."""
    library = Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    library.add_tokens([AddedToken("<s>", special=True)])
    library.post_processor = template(library, "<s> $A", "<s> $A $B")
    return {
        **json.loads(library.to_str()),
        "model": model,
        "added_tokens": [
            added(12, "<s>", special=True),
            added(7, "</s>", special=True, lstrip=True),
            added(13, "later", normalized=True, single_word=True, rstrip=True),
            added(14, "a", special=True),
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated",
                          "invert": False},
        "decoder": {"type": "Fuse"},
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_tokenizer_equals_the_one_that_the_library_reads(name: str) -> None:
    content = document(MODELS[name])
    expected = Library.from_str(json.dumps(content))
    for made in (make_library(content), make_library(content, json.dumps(content))):
        assert made.to_str() == expected.to_str()
        for text in ("ab abc", "Ab later</s>b ", "a\u00e4b", ""):
            assert made.encode(text).ids == expected.encode(text).ids, text


def test_dropout_of_a_file_is_not_used() -> None:
    made = make_library(document(bpe(PAIRS, dropout=0.9)))
    assert made.to_str() == make_library(document(bpe(PAIRS))).to_str()
    unread = Library(models.BPE(IDS, [("a", "b")], dropout=0.9))
    assert unread.model.dropout == pytest.approx(0.9)  # the library would have used it


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_is_equal_and_is_changed_alone(name: str) -> None:
    library = make_library(document(MODELS[name]))
    before = library.to_str()
    copy = copy_library(library)
    assert copy.to_str() == before
    copy.add_tokens(["new"])
    copy.post_processor = None
    copy.encode_special_tokens = True
    assert library.to_str() == before and not library.encode_special_tokens
    assert library.encode("new</s>").tokens != copy.encode("new</s>").tokens
