"""Prompts: how they are written, filled, shortened, and what follows them."""

from __future__ import annotations

import re

import pytest

from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.prompts import QUESTION, Prompt, encode_prompts

TEXTS = ["a dog runs in the park", "the cat sleeps = here", "TL;DR: Question Answer A a"] * 3
SOURCE = ("source",)


def tokenizer(kind):
    return train_tokenizer(TEXTS, TokenizerSettings(kind=kind, vocab_size=320, min_frequency=1))


@pytest.mark.parametrize(
    ("written", "names", "text"),
    [
        ("{source} =", SOURCE, "{source} ="),
        (r"{source}\nTL;DR:", SOURCE, "{source}\nTL;DR:"),  # as a shell passes it
        ("{source}\nTL;DR: {target}", SOURCE, "{source}\nTL;DR:"),
        ("{source} => ", SOURCE, "{source} =>"),
        ({"source": None}, SOURCE, "{source}"),  # as YAML reads it without quotes
        ("Say {anything}: ", (), "Say {anything}:"),
        ("{question} {context}", (), "{question} {context}"),
    ],
)
def test_a_prompt_is_read_as_people_write_it(written, names, text):
    assert Prompt.parse(written, names).text == text


@pytest.mark.parametrize(
    ("written", "names", "message"),
    [
        ("to German", SOURCE, "'to German' names no text in braces; name {source} once, as in "
         "'{source} TL;DR:'"),
        ("{text} =", SOURCE, "'{text} =' names {text}; name {source} once"),
        ("{source} {source}", SOURCE, "names {source}, {source}; name {source} once"),
        ("{source} {target} =", SOURCE, "has {target} before its end, but the model writes the "
         "target after the prompt; put it last, or leave it out"),
        ("{context}", QUESTION, "names {context}; name {question} and {context} once, as in "
         "'{context} Question: {question} Answer:'"),
        ("{a} {b}", (), "names {a}, {b}; name {source} once"),
        (3, SOURCE, "3 is no text; write one, such as '{source} TL;DR:'"),
        ({"a": 1}, SOURCE, "{'a': 1} is no text"),
    ],
)  # fmt: skip
def test_errors_name_the_prompt_and_what_to_write(written, names, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Prompt.parse(written, names)


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "word", "char"])
def test_a_target_follows_its_prompt_after_one_space(kind):
    codec = tokenizer(kind)
    prompt = Prompt("{source} =")
    (before,) = codec.encode([prompt.fill({"source": "a dog"})])
    (after,) = prompt.ids_of_target(codec, ["the cat"])
    assert codec.decode([before + after]) == ["a dog = the cat"]
    assert codec.decode([after])[0].lstrip() == "the cat"
    assert Prompt("{source}\n").ids_of_target(codec, ["a"]) == codec.encode(["a"])


@pytest.mark.parametrize("kind", ["byte-bpe", "word", "char"])
def test_a_long_prompt_loses_the_end_of_its_text_and_never_the_template(kind):
    codec = tokenizer(kind)
    prompt = Prompt("{context} Question: {question} Answer:")
    question = "the cat"
    whole = codec.encode([prompt.fill({"context": TEXTS[0], "question": question})])[0]
    bare = codec.encode([prompt.fill({"context": "", "question": question})])[0]
    for size in (len(whole), len(whole) - 1, len(bare) + 2, len(bare), 1):
        values = [{"context": TEXTS[0], "question": question}]
        found = encode_prompts(prompt, values, [size], codec, codec.encode)
        (text,), (row,), (dropped,) = found
        assert codec.encode([text]) == [row]
        assert len(row) <= max(size, len(bare)) and dropped == len(whole) - len(row)
        kept = text.removesuffix(f" Question: {question} Answer:")
        assert TEXTS[0].startswith(kept) and kept != text
        assert (kept == TEXTS[0]) == (size == len(whole))
        assert bool(kept) == (size >= len(bare) + 2)
    assert values == [{"context": TEXTS[0], "question": question}]
