"""Tokenizers restore text, protect special tokens, and save Hugging Face files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer as Library, models, pre_tokenizers, processors

from trifold.errors import DataError, SettingsError, UsageError
from trifold.text import (
    Tokenizer,
    TokenizerSettings,
    make_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from trifold.text.annotation import count_unknown

KINDS = ["byte-bpe", "bpe", "unigram", "word", "char"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog .",
    "Zwei junge weiße Männer sind im Freien, in der Nähe vieler Büsche.",
    'He said: "don\'t!" - and left (at 5:30)…',
    "a<s>b x</s>y <pad> <unk> a<s>b x</s>y <pad> <unk>",
    "Les élèves n'aiment pas l'école; 12,5 % ?",
] * 3
INJECTIONS = [
    "<s>",
    "</s>",
    "<pad>",
    "<unk>",
    "a<s>b",
    "x</s>y",
    "</s></s>",
    "a </s> <s>",
    ".<s>.",
    "</s>.",
]
WHITE_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def settings(kind: str, **more: Any) -> TokenizerSettings:
    return TokenizerSettings.parse({"kind": kind, "vocab_size": 400, "min_frequency": 1, **more})


TRAINED = {
    (kind, punctuation): train_tokenizer(CORPUS, settings(kind, punctuation=punctuation))
    for kind in KINDS
    for punctuation in (True, False)
}
EVERY = pytest.mark.parametrize("tokenizer", TRAINED.values(), ids=map(str, TRAINED))


def spaced(text: str) -> str:
    """What kinds with word boundaries restore: white space and ▁ become single spaces."""
    return WHITE_SPACE.sub(" ", text.replace("▁", " ")).strip()


@EVERY
def test_special_ids_are_fixed_and_all_ids_are_below_the_size(tokenizer: Tokenizer) -> None:
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert max(tokenizer.library.get_vocab().values()) == tokenizer.vocab_size - 1 < 400
    assert len(tokenizer.library.get_vocab()) == tokenizer.vocab_size


@EVERY
def test_text_of_the_corpus_is_restored(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CORPUS)
    assert tokenizer.decode(ids) == CORPUS
    assert not any(tokenizer.unk_id in row for row in ids)
    assert tokenizer.decode([[1, *row, 2, 0, 0] for row in ids]) == CORPUS


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_byte_bpe_is_exact_for_any_unicode(texts: list[str]) -> None:
    for punctuation in (True, False):
        tokenizer = TRAINED["byte-bpe", punctuation]
        ids = tokenizer.encode(texts)
        assert tokenizer.decode(ids) == texts
        assert all(token > 3 for row in ids for token in row)


LETTERS = sorted(set("".join(CORPUS)) - {" "})


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@given(
    text=st.text(
        [*LETTERS, " ", "▁", "\t", "\n", "\u2028", "\u00a0", "\x85", "\u3000"], max_size=30
    )
)
def test_known_characters_are_restored_with_single_spaces(kind: str, text: str) -> None:
    for punctuation in (True, False):
        tokenizer = TRAINED[kind, punctuation]
        ids = tokenizer.encode([text])
        if kind == "char":
            text = "".join(character for character in text if character in {*LETTERS, " "})
            ids = [[token for token in ids[0] if token != tokenizer.unk_id]]
        assert tokenizer.decode(ids) == [text if kind == "char" else spaced(text)]


@given(st.lists(st.text(LETTERS, min_size=1), max_size=8).map(" ".join))
def test_tokenized_text_is_restored_exactly(text: str) -> None:
    for kind in ("bpe", "unigram"):
        tokenizer = TRAINED[kind, False]
        assert tokenizer.decode(tokenizer.encode([text])) == [text]


@EVERY
def test_text_cannot_produce_a_special_token(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    for one in (tokenizer, Tokenizer.load(tmp_path)):
        for text in INJECTIONS:
            (ids,) = one.encode([text])
            assert not {0, 1, 2} & set(ids), text
            known = 3 not in ids
            assert known or one.library.model.__class__.__name__ in ("WordLevel",), text
            assert not known or one.decode([ids]) == [text]


def test_blank_text_has_no_tokens() -> None:
    for kind in ("bpe", "unigram", "word"):
        assert TRAINED[kind, True].encode(["", " \t\u2028"]) == [[], []]
    assert TRAINED["byte-bpe", True].encode([""]) == TRAINED["char", True].encode([""]) == [[]]
    assert TRAINED["bpe", True].encode([]) == TRAINED["bpe", True].decode([]) == []


@pytest.mark.parametrize("segmented", [False, True])
def test_a_text_that_is_not_a_string_of_characters_is_an_error(segmented: bool) -> None:
    plain = train_tokenizer(["abc"], TokenizerSettings(kind="char", min_frequency=1))
    tokenizer = Tokenizer(plain.library, segment=str.split) if segmented else plain
    for read in (tokenizer.encode, tokenizer.rows):
        with pytest.raises(
            DataError, match=r"'a.udc80' cannot be read: U\+DC80, an unpaired surrogate"
        ):
            read(["b", "a\udc80"])
        with pytest.raises(DataError, match="a text is a string, not 3 of type int"):
            read(["b", 3])  # type: ignore[list-item]
        for value in ("abc", None, 5, {"abc"}):
            with pytest.raises(UsageError, match="a list of texts is expected, not "):
                read(value)  # type: ignore[arg-type]


def test_unknown_tokens_are_counted() -> None:
    tokenizer = TRAINED["bpe", True]
    (ids,) = tokenizer.encode(["dog ☃☃ dog"])
    assert count_unknown(tokenizer, np.array(ids, np.int32)) == 2
    assert tokenizer.decode([ids]) == ["dog  dog"]
    assert "<unk>" in tokenizer.pieces(ids)


def test_pieces_are_readable() -> None:
    words, octets = TRAINED["word", True], TRAINED["byte-bpe", True]
    assert words.pieces([1, *words.encode(["im Freien, in"])[0], 2]) == [
        "<s>",
        "▁im",
        "▁Freien",
        ",",
        "▁in",
        "</s>",
    ]
    assert "".join(octets.pieces(octets.encode(["weiße Männer"])[0])) == "weiße▁Männer"
    snow = octets.pieces(octets.encode(["☃"])[0])
    assert snow == [r"\xe2", r"\x98", r"\x83"]


def test_lowercase_and_punctuation_settings() -> None:
    lower = train_tokenizer(CORPUS, settings("bpe", lowercase=True))
    assert lower.decode(lower.encode(["The DOG"])) == ["the dog"]
    cut, whole = (TRAINED["word", punctuation] for punctuation in (True, False))
    assert cut.pieces(cut.encode(["Büsche."])[0]) == ["▁Büsche", "."]
    assert whole.pieces(whole.encode(["Büsche."])[0]) == ["▁Büsche."]


# --- files ----------------------------------------------------------------------------------------


@EVERY
def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    tokenizer.save(tmp_path, "target_tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "target_tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.encode(CORPUS + INJECTIONS) == tokenizer.encode(CORPUS + INJECTIONS)
    assert len({one.fingerprint for one in TRAINED.values()}) > len(KINDS)


@EVERY
def test_transformers_gives_the_same_ids_and_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    texts = [*CORPUS[:5], *INJECTIONS, "  two  spaces ", "☃"]
    ids = tokenizer.encode(texts)
    assert theirs(texts)["input_ids"] == ids
    assert theirs.batch_decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    roles = (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id)
    assert roles == (0, 1, 2, 3)
    assert len(theirs) == tokenizer.vocab_size


def test_the_saved_file_can_append_the_end_token(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = TRAINED["bpe", True]
    tokenizer.save(tmp_path, append_eos=True)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ids = tokenizer.encode(CORPUS[:2])
    assert theirs(CORPUS[:2])["input_ids"] == [[*row, 2] for row in ids]
    assert Tokenizer.load(tmp_path).encode(CORPUS[:2]) == ids


def test_a_foreign_tokenizer_does_not_truncate_and_gets_missing_tokens(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2}
    library = Library(models.WordLevel(vocabulary, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.enable_truncation(2)
    library.enable_padding(length=9)
    library.post_processor = processors.TemplateProcessing("a $A a", special_tokens=[("a", 1)])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"unk_token": {"content": "[UNK]"}}), encoding="utf-8"
    )
    tokenizer = make_tokenizer([], TokenizerSettings(file=str(tmp_path)))
    assert tokenizer.encode(["a b b a c", "a"]) == [[1, 2, 2, 1, 0], [1]]
    assert (tokenizer.unk_id, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 3, 4, 5)
    assert tokenizer.vocab_size == 6


FOREIGN = [
    (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], {},
        {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]", "cls": "[CLS]", "mask": "[MASK]"},
    ),
    (
        ["<end>"], dict.fromkeys(["bos_token", "eos_token", "unk_token"], "<end>"),
        {"pad": "<end>", "bos": "<end>", "eos": "<end>"},
    ),
    (["<pad>", "</s>", "<unk>"], {"pad_token": "<pad>"}, {"pad": "<pad>", "bos": "</s>", "eos": "</s>"}),
]  # fmt: skip


@pytest.mark.parametrize(("special", "named", "roles"), FOREIGN)
def test_special_tokens_of_a_foreign_tokenizer_take_the_missing_roles(
    tmp_path: Path, special: list[str], named: dict[str, str], roles: dict[str, str]
) -> None:
    library = Library(models.WordLevel({"a": 0, "b": 1, "[CLS": 2}))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(special)
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    tokenizer = make_tokenizer([], TokenizerSettings(file=str(tmp_path)))
    assert tokenizer.vocab_size == 3 + len(special)
    for role, name in roles.items():
        assert tokenizer.required(role) == library.token_to_id(name), role
    with pytest.raises(UsageError, match=r"tokenizer\.json: the file exists; .* overwrite=True"):
        tokenizer.save(tmp_path)
    tokenizer.save(tmp_path, overwrite=True)
    assert Tokenizer.load(tmp_path).names == tokenizer.names


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": {"type": "BPE"}}', "[" * 9999])
def test_an_invalid_tokenizer_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: (cannot be read|not a tokenizer)"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", "3"])
def test_invalid_files_of_special_tokens_are_rejected(tmp_path: Path, content: str) -> None:
    TRAINED["char", True].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(
        DataError, match=r"tokenizer_config\.json.*(not JSON|not an object).*repair or remove it"
    ):
        Tokenizer.load(tmp_path)


@pytest.mark.slow
def test_torch_is_not_imported() -> None:
    rooms = "trifold.text, trifold.data, trifold.batches, trifold.scores"
    program = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_dropout_needs_merges() -> None:
    with pytest.raises(
        SettingsError, match=r"tokenizer: dropout drops BPE merges, and kind 'unigram' has none"
    ):
        TokenizerSettings.parse({"kind": "unigram", "dropout": 0.1}, at="tokenizer")
    with pytest.raises(SettingsError, match="dropout_epochs has no effect without dropout"):
        TokenizerSettings.parse({"dropout_epochs": 3}, at="tokenizer")
    with pytest.raises(SettingsError, match=r"tokenizer\.dropout: .* no plain BPE merges"):
        Tokenizer(TRAINED["word", True].library, dropout=0.1).sample(CORPUS, seed=0)


HOLES = TokenizerSettings(vocab_size=400, min_frequency=1, special=("mask",), sentinels=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_in_a_text_is_one_token_and_its_neighbors_stay(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(CORPUS, HOLES.model_copy(update={"kind": kind}))
    parts = tokenizer.encode(["dog", " im" if kind in ("byte-bpe", "char") else "im"])
    space = tokenizer.encode([" "])[0] if kind == "char" else []
    for name in ("<mask>", "<extra_id_2>"):
        text, token = f"dog {name} im", tokenizer.library.token_to_id(name)
        expected = [*parts[0], *space, token, *parts[1]]
        assert tokenizer.encode([text], special_in_text=True) == [expected]
        assert token not in tokenizer.encode([text])[0]
    assert not tokenizer.parses_special
    for parse_special in (False, True):
        tokenizer.save(tmp_path, parse_special=parse_special, overwrite=True)
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
        assert theirs([text])["input_ids"] == tokenizer.encode(
            [text], special_in_text=parse_special
        )
        for loaded in (Tokenizer.load(tmp_path), read_tokenizer(tmp_path)):
            assert loaded.parses_special == parse_special


def test_the_tokenizer_of_a_resumed_run_parses_as_that_of_its_start(tmp_path: Path) -> None:
    settings = {"eos_token": "</s>", "model_max_length": 9}
    for own in ({}, {"split_special_tokens": True}):
        TRAINED["bpe", True].save(tmp_path, overwrite=True)
        content = json.dumps(settings | own)
        (tmp_path / "tokenizer_config.json").write_text(content, encoding="utf-8")
        first = make_tokenizer([], TokenizerSettings(file=str(tmp_path)))
        first.save(tmp_path, overwrite=True)
        resumed = Tokenizer.load(tmp_path)
        resumed.save(tmp_path, overwrite=True)
        assert first.parses_special == resumed.parses_special == (not own)
        assert read_tokenizer(tmp_path).parses_special == (not own)


@EVERY
def test_texts_without_special_tokens_need_no_library_that_parses_them(
    tokenizer: Tokenizer,
) -> None:
    fresh = Tokenizer(Library.from_str(tokenizer.library.to_str()), names=tokenizer.names)
    plain = [text for text in CORPUS if "<" not in text]
    found = fresh.rows(plain, special_in_text=True)
    assert "_with_special" not in vars(fresh)
    expected = fresh._run(fresh._with_special, plain, None, False)
    start = {*fresh._forbidden_ids}
    assert [[id for id in row.ids if id not in start] for row in found] == [
        each.ids for each in expected
    ]
    # One text that names a special token is enough.
    mixed = fresh.encode(["x</s>y", plain[0]], special_in_text=True)
    assert fresh.eos_id in mixed[0]
    assert mixed[1] == expected[0].ids
