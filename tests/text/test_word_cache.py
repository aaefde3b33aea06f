"""Words that are remembered give the ids of the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.text.test_tokenizer import CORPUS, INJECTIONS, TRAINED
from tokenizers import (
    AddedToken,
    Tokenizer as Library,
    models,
    normalizers as norms,
    pre_tokenizers as pre,
)

from trifold.errors import CheckpointError, DataError
from trifold.text import Tokenizer, word_cache
from trifold.text.word_cache import encodes_words_alone

SPLITTER = pre.BertPreTokenizer()
BERT = [norms.BertNormalizer(lowercase=True), norms.Replace("▁", " ")]
NORMALIZER = norms.Sequence(BERT)
LETTERS = "abeltwz ZÄßé\u0301▁.,!<s>/ \t\n\x1c\x85\xa0\u3000Σ漢字"
TEXTS = [*CORPUS, *INJECTIONS, "", " ", "  a  b ", "a\tb\x1cc", "e\u0301 \u0301e", "ΟΔΟΣ ΟΔΟΣ."]


def word_pieces(normalizer: Any = NORMALIZER, splitter: Any = SPLITTER) -> Library:
    vocabulary = ["[UNK]", "[CLS]", *"abeltwz.,!<s>/σ", *(f"##{x}" for x in "abeltwzσς"), "</s>"]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(vocabulary))}
    library = Library(models.WordPiece(ids, unk_token="[UNK]"))
    library.normalizer = normalizer
    library.pre_tokenizer = splitter
    library.add_special_tokens(["[UNK]", "[CLS]", "</s>"])
    return library


TOKENIZERS = {
    **TRAINED,
    "BERT": Tokenizer(word_pieces()),
    "names as words": Tokenizer(word_pieces(splitter=pre.WhitespaceSplit())),
}
REMEMBER = {name for name, each in TOKENIZERS.items() if encodes_words_alone(each.library)}


def whole(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encodings(texts)]


@pytest.fixture(autouse=True)
def few_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_tokenizers_that_split_at_white_space_remember_words() -> None:
    assert {("bpe", True), ("word", False), "BERT", "names as words"} <= REMEMBER
    assert not {("byte-bpe", True), ("char", True)} & REMEMBER


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=map(str, TOKENIZERS))
def test_texts_have_the_ids_that_the_library_gives_them(tokenizer: Tokenizer) -> None:
    for _ in range(2):  # the second time, all words are known
        assert tokenizer.encode(TEXTS) == whole(tokenizer, TEXTS)


@given(
    texts=st.lists(st.text(LETTERS), max_size=5), name=st.sampled_from(sorted(map(str, REMEMBER)))
)
@settings(max_examples=200, deadline=None)
def test_any_text_has_the_ids_that_the_library_gives_it(texts: list[str], name: str) -> None:
    tokenizer = {str(key): each for key, each in TOKENIZERS.items()}[name]
    assert tokenizer.encode(texts) == whole(tokenizer, texts)


def test_many_words_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_CHARACTERS", 20)
    tokenizer = Tokenizer(word_pieces())
    for _ in range(3):
        assert tokenizer.encode(TEXTS) == whole(tokenizer, TEXTS)
    assert tokenizer._words is not None and len("".join(tokenizer._words._ids)) <= 20


@pytest.mark.parametrize(
    "library",
    [
        word_pieces(splitter=pre.Metaspace()),
        word_pieces(splitter=pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace("▁", "first")])),
        word_pieces(splitter=pre.Sequence([pre.Digits(), pre.WhitespaceSplit()])),
        word_pieces(norms.Strip()),
        word_pieces(norms.Prepend("▁")),
        word_pieces(norms.Replace(" a", "b")),
        word_pieces(norms.Sequence([*BERT, norms.Replace("  ", " ")])),
    ],
)
def test_tokenizers_of_which_a_word_depends_on_others_remember_none(library: Library) -> None:
    assert not encodes_words_alone(library)
    assert Tokenizer(library)._words is None


def test_tokens_that_are_added_and_not_special_may_contain_spaces() -> None:
    library = word_pieces()
    library.add_tokens([AddedToken("a b")])
    assert not encodes_words_alone(library)


def test_errors_name_the_whole_text() -> None:
    with pytest.raises(DataError, match="a \\\\ud800"):
        Tokenizer(word_pieces()).encode(["a \ud800"])
    with pytest.raises(DataError, match="text 2 of 2"):
        Tokenizer(word_pieces()).encode(["a", 1])  # type: ignore[list-item]


def test_a_smaller_table_is_checked_though_the_words_are_known() -> None:
    tokenizer = Tokenizer(word_pieces())
    tokenizer.encode(["w z"])
    with pytest.raises(CheckpointError, match="the model has 4 tokens"):
        tokenizer.for_model(4).encode(["w z"])
