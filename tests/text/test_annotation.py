"""Word and sentence starts of encoded texts, for tokenizers of every kind."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.text import folders

from trifold.text import TokenizerSettings, make_tokenizer, read_tokenizer, train_tokenizer
from trifold.text.annotation import (
    _borders_unspaced,
    annotate,
    count_unknown,
    find_sentence_starts,
    sentinel_ids,
    special_flags,
    unknown_words,
    written_holes,
)
from trifold.text.spans import find_words

TEXT = 'Mr. Jones saw it. "Was it red?" It was!  Nobody knew… Then J. Smith came.\nanother line'
TEXTS = [TEXT, "a b c", "", "Ende. Anfang. 3 Uhr. e.g. this"]
KINDS = ["byte-bpe", "bpe", "unigram", "word", "char"]


def tokenizer(kind, **more):
    return train_tokenizer(
        TEXTS * 3, TokenizerSettings(kind=kind, vocab_size=400, min_frequency=1, **more)
    )


def test_sentences_start_after_closing_quotes_and_line_ends():
    starts = [0, *find_sentence_starts(TEXT), len(TEXT)]
    parts = [TEXT[a:b].strip() for a, b in pairwise(starts)]
    assert parts == [
        "Mr. Jones saw it.", '"Was it red?"', "It was!", "Nobody knew…", "Then J. Smith came.", "another line",
    ]  # fmt: skip
    assert (
        find_sentence_starts("")
        == []
        == find_sentence_starts("One.")
        == find_sentence_starts("No. 3 is e.g. here. ")
    )
    assert find_sentence_starts("今日は。明日は。") == [4]
    assert find_sentence_starts("\n\n One.\n\nTwo.") == [9]
    assert len(find_sentence_starts("यह एक है। वह दो है। यह तीन है।")) == 2
    assert len(find_sentence_starts("Sie las z. B. Peter vor. Dann ging er.")) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_words_are_those_with_characters_or_words_outside_the_vocabulary(kind):
    own = tokenizer(kind)
    texts = ["Jones saw ☃☃.", "", "a ☃☃.\n", "<pad>☃</s> one <s>"]
    expected = [] if kind == "byte-bpe" else ["☃☃.", "☃"] + ["one"] * (kind == "word")
    assert unknown_words(own, texts) == expected
    known: set[str] = set()
    for _ in range(2):  # known words are remembered, and unknown ones reported again
        assert unknown_words(own, texts, known) == expected
        assert "Jones" in known and known.isdisjoint(expected)
    for text in texts:
        assert bool(unknown_words(own, [text])) == bool(
            count_unknown(own, np.array(own.encode([text])[0]))
        )


def test_unknown_words_of_a_tokenizer_without_offsets(tmp_path):
    folders.marian(tmp_path)
    own = read_tokenizer(tmp_path)
    known, unknown = folders.WORDS[0], "☃☃"
    assert not own.has_offsets
    assert unknown_words(own, [f"{known} {unknown} {known}", known]) == [unknown]


@pytest.mark.parametrize("kind", KINDS)
def test_word_and_sentence_starts_match_the_text(kind):
    own = tokenizer(kind)
    marked = annotate(own, TEXTS)
    assert [
        marked.ids[a:b].tolist() for a, b in zip(marked.starts, marked.starts[1:], strict=False)
    ] == own.encode(TEXTS)
    whole = slice(0, marked.starts[1])
    heads = np.flatnonzero(marked.sentence_starts[whole])
    sentences = [
        text.strip()
        for text in own.decode([part.tolist() for part in np.split(marked.ids[whole], heads[1:])])
    ]
    starts = [0, *find_sentence_starts(TEXT), len(TEXT)]
    expected = [TEXT[a:b].strip() for a, b in pairwise(starts)]
    if kind in ("byte-bpe", "char"):
        assert sentences == expected
    else:
        assert len(sentences) == len(expected)
    assert not marked.sentence_starts[~marked.word_starts].any() or kind == "char"


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "word"])
def test_words_match_the_text(kind):
    own = tokenizer(kind)
    marked = annotate(own, ["Nobody saw another line"])
    bounds = find_words(np.ones(len(marked.ids), np.bool_), marked.word_starts)
    assert [
        own.decode([marked.ids[a:b].tolist()])[0].strip() for a, b in bounds
    ] == "Nobody saw another line".split()


@pytest.mark.parametrize(("kind", "size"), [("byte-bpe", 260), ("char", 50)])
def test_without_spaces_every_character_is_a_word(kind, size):
    """Also if it is several tokens (bytes)."""
    texts = ["我们今天去看书", "กินข้าว"]
    own = train_tokenizer(texts, TokenizerSettings(kind=kind, vocab_size=size, min_frequency=1))
    marked = annotate(own, texts)
    for start, end, text in zip(marked.starts, marked.starts[1:], texts, strict=False):
        assert (
            marked.word_starts[start]
            and marked.word_starts[start:end].sum() == len(text) <= end - start
        )


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "char"])
def test_a_token_with_parts_of_two_characters_starts_no_word(kind):
    texts = ["我用Python写书很", "我用Python看书很个人", "用人我很"]
    own = train_tokenizer(texts * 9, TokenizerSettings(kind=kind, vocab_size=300, min_frequency=1))
    marked = annotate(own, texts)
    for start, end, text in zip(marked.starts, marked.starts[1:], texts, strict=False):
        ids, heads = marked.ids[start:end], np.flatnonzero(marked.word_starts[start:end])
        words = [
            one.strip() for one in own.decode([part.tolist() for part in np.split(ids, heads[1:])])
        ]
        assert "".join(words) == text  # so no character is in two words


def test_letters_after_an_unspaced_character_start_a_word():
    text = "我用Python写"
    apart, astride = (
        [(0, 1), (1, 2), (2, 3), (3, 8), (8, 9)],
        [(0, 2), (1, 4), (4, 8), (8, 9), (8, 9)],
    )
    assert _borders_unspaced(text, apart).tolist() == [True, True, True, False, True]
    assert _borders_unspaced(text, astride).tolist() == [True, False, False, True, False]


def test_special_tokens_and_sentinels():
    own = tokenizer("bpe", special=("cls", "sep", "mask"), sentinels=3)
    flags = special_flags(own)
    assert len(flags) == own.vocab_size and flags.sum() == 10 and flags[:10].all()
    assert own.pieces(sentinel_ids(own)) == ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert own.pieces([own.cls_id, own.sep_id, own.mask_id]) == ["<cls>", "<sep>", "<mask>"]
    assert not len(sentinel_ids(tokenizer("bpe")))
    row = own.rows(["a b"], ["c"])[0]
    assert own.pieces([row.ids[0], row.ids[-1]]) == ["<cls>", "<sep>"]
    assert row.types[0] == 0 and row.types[-1] == 1 and own.has_token_types


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_survive_saving_and_loading(kind, tmp_path):
    own = tokenizer(kind, special=("cls", "sep", "mask"), sentinels=2)
    own.save(tmp_path)
    back = type(own).load(tmp_path)
    assert (back.cls_id, back.mask_id, back.has_token_types) == (own.cls_id, own.mask_id, True)
    back.save(tmp_path / "again" if (tmp_path / "again").mkdir() is None else tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()
    spelt = set(own.encode(["<mask> <cls> </s> <extra_id_0>"])[0]) - {own.unk_id}
    assert not special_flags(own)[list(spelt)].any()  # text that spells a special token stays text


def test_written_holes_are_the_mask_and_the_sentinels_of_the_tokenizer():
    settings = TokenizerSettings(
        kind="word", vocab_size=60, min_frequency=1, special=("mask",), sentinels=2
    )
    own = make_tokenizer(["a b"], settings)
    assert written_holes(own, ["a <mask>", "<extra_id_1> <extra_id_7> </s> <mask>"]) == [
        "<mask>",
        "<extra_id_1>",
    ]
    assert written_holes(own, ["a </s>"]) == []
    assert unknown_words(own, ["a <extra_id_1> <mask>", "strange <extra_id_7>"]) == [
        "strange",
        "<extra_id_7>",
    ]
