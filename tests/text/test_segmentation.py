"""How a tokenizer splits a text: its merges, scores, bytes and words."""

from __future__ import annotations

import json

import pytest

from trifold.text import Tokenizer, TokenizerSettings, train_tokenizer
from trifold.text.segmentation import segment

TEXT = "The newest news: é, 😀 and the widest world!"


def trained(kind: str, **settings: object) -> Tokenizer:
    size = TokenizerSettings(kind=kind, vocab_size=320, min_frequency=1, **settings)
    return train_tokenizer([TEXT] * 3, size)


def test_the_merges_of_the_example_of_gage():
    """aaabdaaabac becomes XdXac with X = ZY, Y = ab, Z = aa (Gage 1994)."""
    size = TokenizerSettings(kind="bpe", vocab_size=12)
    word = segment(train_tokenizer(["aaabdaaabac"] * 20, size), "aaabdaaabac").words[0]
    assert word.start == ["▁", *"aaabdaaabac"]
    assert [(merge.pair, merge.rank) for merge in word.merges] == [
        (("a", "a"), 1), (("a", "b"), 2), (("aa", "ab"), 3)
    ]  # fmt: skip
    assert [" ".join(merge.pieces) for merge in word.merges] == [
        "▁ aa a b d aa a b a c", "▁ aa ab d aa ab a c", "▁ aaab d aaab a c"
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe"])
def test_the_last_merge_of_a_word_has_its_tokens(kind):
    segmentation = segment(trained(kind), TEXT)
    assert segmentation.model == "BPE" and len(segmentation.words) > 5
    for word in segmentation.words:
        assert word.merges is not None
        end = word.merges[-1].pieces if word.merges else word.start
        assert end == word.pieces == segmentation.pieces[word.first : word.last]
        assert "".join(word.start) == "".join(word.pieces) or "\\x" in "".join(word.start)


def test_a_word_with_an_unknown_token_is_left_out():
    segmentation = segment(trained("bpe"), "news q news")
    assert [word.pieces for word in segmentation.words] == [["▁news"], ["▁news"]]


def test_unigram_scores_are_those_of_the_vocabulary():
    tokenizer = trained("unigram")
    segmentation = segment(tokenizer, "the news")
    scores = dict(json.loads(tokenizer.library.to_str())["model"]["vocab"])
    names = [tokenizer.library.id_to_token(token) for token in segmentation.row.ids]
    assert len(segmentation.words) == 2
    for word in segmentation.words:
        assert word.scores == [scores[name] for name in names[word.first : word.last]]


def test_bytes_are_those_of_the_text():
    segmentation = segment(trained("byte-bpe"), "é 😀 news")
    raw = segmentation.text.encode()
    spans = segmentation.byte_offsets()
    assert spans[0] == (0, 2) and spans[-1][1] == len(raw) == 12
    assert {raw[a:b].decode() for a, b in spans} >= {"é", " 😀"}


def test_special_tokens_have_no_bytes_and_no_word():
    tokenizer = trained("bpe", special=("cls", "sep", "mask"))
    mask = tokenizer.names["mask_token"]
    segmentation = segment(tokenizer, f"news {mask} news", special_in_text=True)
    spans = segmentation.byte_offsets()
    assert (spans[0], spans[-1]) == (None, None) and (5, 5 + len(mask)) in spans
    named = {n for word in segmentation.words for n in range(word.first, word.last)}
    assert segmentation.pieces.index(mask) not in named and 0 not in named
