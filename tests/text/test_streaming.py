"""Incremental decoding: the parts form the text, and no part ends within a character."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tests.text.folders import OLD, lines

from trifold.text import Tokenizer, read_tokenizer

NAMES = ["gpt2", "bert uncased", "llama", "t5", "marian", "bertweet", "gpt 2018"]


@cache
def tokenizer(name: str) -> Tokenizer:
    pytest.importorskip("sentencepiece")
    return read_tokenizer(OLD[name](Path(mkdtemp()) / "model"))


def streamed(one: Tokenizer, ids: list[int], *, keep_special: bool = False) -> list[str]:
    stream = one.stream(keep_special=keep_special)
    return [*[stream.add(token) for token in ids], stream.end()]


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_form_the_text(name: str) -> None:
    one = tokenizer(name)
    for text in lines()[::23]:
        (ids,) = one.encode([text])
        parts = streamed(one, ids)
        assert "".join(parts) == one.decode([ids])[0]
    draw = random.Random(7)
    for _ in range(30):  # any ids: halves of characters, special tokens, pieces in no order
        ids = draw.choices(range(one.vocab_size), k=40)
        for keep in (False, True):
            assert (
                "".join(streamed(one, ids, keep_special=keep))
                == one.decode([ids], keep_special=keep)[0]
            )


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_a_long_text_is_decoded_within_a_window(name: str) -> None:
    one = tokenizer(name)
    (ids,) = one.encode([" ".join(lines()[:90])])
    assert len(ids) > 800
    stream, longest = one.stream(), 0
    parts = []
    for token in ids:
        parts.append(stream.add(token))
        longest = max(longest, len(stream._ids))
    assert "".join([*parts, stream.end()]) == one.decode([ids])[0]
    assert longest <= 300


def test_an_incomplete_character_is_held_back() -> None:
    one = tokenizer("gpt2")
    (ids,) = one.encode(["a🦊b"])
    parts = streamed(one, ids)
    assert len(ids) > 4 and "".join(parts) == "a🦊b"
    assert all("\ufffd" not in part for part in parts) and "🦊" in "".join(parts)


def test_a_stream_can_be_reused() -> None:
    stream = tokenizer("gpt2").stream()
    (ids,) = tokenizer("gpt2").encode(["hello world"])
    for _ in range(2):
        assert stream.add(ids) + stream.end() == "hello world"
