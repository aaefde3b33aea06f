"""Tokenizer folders of every layout give the ids, types and texts of the reference library."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.text.folders import (
    END,
    OLD,
    bert,
    bertweet,
    bpe,
    byte_level,
    lines,
    m2m,
    marian,
    sentencepiece,
    spm,
    write,
)
from tokenizers import Tokenizer as Library, decoders, models, pre_tokenizers

from trifold.errors import CheckpointError, UsageError
from trifold.text import Tokenizer, TokenizerSettings, Truncation, make_tokenizer, read_tokenizer

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()

ROLES = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
SLOW = ("marian", "bertweet", "m2m")  # the reference runs them in Python


def reference(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def check(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    """Compare ids, text and roles with the reference."""
    plain = theirs(texts, add_special_tokens=False)["input_ids"]
    ids = ours.encode(texts)
    wrong = [(t, a, b) for t, a, b in zip(texts, ids, plain, strict=True) if a != b]
    assert not wrong, (len(wrong), wrong[:3])
    around = theirs(texts)["input_ids"]
    assert [row.ids for row in ours.rows(texts)] == around
    for keep in (False, True):
        decoded = theirs.batch_decode(around, skip_special_tokens=not keep)
        assert ours.decode(around, keep_special=keep) == decoded
    for role in ROLES:
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id"), role
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("name", OLD)
def test_old_layouts_equal_the_reference(name: str, tmp_path: Path) -> None:
    folder = OLD[name](tmp_path / "model")
    check(read_tokenizer(folder), reference(folder), lines()[::4])


@pytest.mark.parametrize("name", [name for name in OLD if name not in SLOW])
def test_new_layouts_equal_the_reference(name: str, tmp_path: Path) -> None:
    """A folder saved by the reference, and one with both layouts, like most on the hub."""
    old = OLD[name](tmp_path / "old")
    theirs = reference(old)
    new = tmp_path / "new"
    theirs.save_pretrained(new)
    shutil.copy(old / "config.json", new)
    some = lines()[1::12]
    check(read_tokenizer(new), reference(new), some)
    shutil.copy(new / "tokenizer.json", old)
    check(read_tokenizer(old), reference(old), some)


LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
PATTERNS = {
    "llama 3, olmo, glm": rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}",
    "nanochat": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
    r"\s*[\r\n]|\s+(?!\S)|\s+",
    "phi 4": rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORT}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}",
}


@pytest.mark.parametrize("name", PATTERNS)
def test_published_patterns_equal_the_reference(name: str, tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "model", "qwen2", END)
    reference(folder).save_pretrained(folder)
    document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": PATTERNS[name]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END[0]}
    new = write(
        tmp_path / "new",
        tokenizer__json=document,
        tokenizer_config__json=settings,
        config__json={"model_type": "olmo2"},
    )
    check(read_tokenizer(new), reference(new), lines()[::9])


@pytest.mark.parametrize("name", [name for name in OLD if name not in SLOW])
def test_training_reads_pairs_like_the_reference(name: str, tmp_path: Path) -> None:
    """Ids and token types of pairs, in training and after the tokenizer is saved with a run."""
    folder = OLD[name](tmp_path / "model")
    ours, theirs = make_tokenizer([], TokenizerSettings(file=str(folder))), reference(folder)
    (tmp_path / "run").mkdir()
    ours.save(tmp_path / "run")
    some = lines()[:4]
    expected = theirs(some, some)
    for tokenizer in (ours, Tokenizer.load(tmp_path / "run"), read_tokenizer(tmp_path / "run")):
        rows = tokenizer.rows(some, some)
        assert [row.ids for row in rows] == expected["input_ids"]
        if tokenizer.has_token_types:
            assert [row.types for row in rows] == expected["token_type_ids"]
        else:
            assert not any(map(any, expected.get("token_type_ids", [])))
        assert all(getattr(tokenizer, f"{r}_id") == getattr(ours, f"{r}_id") for r in ROLES)
    assert all(getattr(theirs, f"{r}_token_id") in (None, getattr(ours, f"{r}_id")) for r in ROLES)


@pytest.mark.parametrize("name", OLD)
def test_saved_tokenizers_are_read_equally_by_the_reference(name: str, tmp_path: Path) -> None:
    ours = read_tokenizer(OLD[name](tmp_path / "model"))
    saved = tmp_path / "saved"
    saved.mkdir()
    ours.save(saved)
    if name in SLOW:
        shutil.copy(tmp_path / "model" / "config.json", saved)
    some = lines()[1::18]
    again = read_tokenizer(saved)
    assert again.encode(some) == ours.encode(some)
    assert again.names == ours.names
    theirs = reference(saved)
    assert theirs(some, add_special_tokens=False, split_special_tokens=True)[
        "input_ids"
    ] == ours.encode(some)
    assert theirs(some[:9])["input_ids"] == [row.ids for row in ours.rows(some[:9])]


@pytest.mark.parametrize("name", [name for name in OLD if name not in SLOW])
def test_pairs_types_offsets_and_truncation(name: str, tmp_path: Path) -> None:
    folder = OLD[name](tmp_path / "model")
    ours, theirs = read_tokenizer(folder), reference(folder)
    first, second = lines()[:60], lines()[400:460]
    for limit in (None, 16, 9):
        options = {"truncation": "longest_first", "max_length": limit} if limit else {}
        rows = ours.rows(first, second, max_length=limit)
        expected = theirs(
            first, second, return_token_type_ids=True, return_offsets_mapping=True, **options
        )
        assert [row.ids for row in rows] == expected["input_ids"]
        assert [row.types for row in rows] == expected["token_type_ids"]
        assert [row.offsets for row in rows] == expected["offset_mapping"]
        assert [row.texts for row in rows] == [expected.sequence_ids(i) for i in range(len(rows))]
        whole = ours.rows(first, second)
        assert [len(a.ids) + a.dropped for a in rows] == [len(b.ids) for b in whole]
        lost = Truncation()
        lost.add(row.dropped for row in rows)
        assert bool(lost) == any(row.dropped for row in rows) == bool(limit)
        assert all(len(row.ids) <= (limit or 10**9) for row in rows)


@pytest.mark.parametrize("name", OLD)
def test_rows_without_positions_have_the_same_ids_types_and_counts(
    name: str, tmp_path: Path
) -> None:
    ours = read_tokenizer(OLD[name](tmp_path / "model"))
    texts = [*lines()[:6], "", f"the {' '.join(ours.special_names)} fox"]
    second = [*lines()[40:44], "", *lines()[44:47]]
    for pairs, limit, special in product((None, second), (None, 7), (False, True)):
        options = {"max_length": limit, "special_in_text": special}
        for chosen in (slice(0, 8), slice(6, 7)):  # of which the second has no tokens
            columns = [texts[chosen], pairs and pairs[chosen]]
            rows = ours.rows(*columns, **options)
            found = ours.id_rows(*columns, **options)
            assert found.ids.tolist() == [row.ids for row in rows]
            assert found.types.tolist() == [row.types for row in rows]
            assert found.dropped == [row.dropped for row in rows]
            expected = [[row.texts.count(text) for text in (0, 1)] for row in rows]
            assert [[*counts, 0][:2] for counts in found.counts] == expected


@pytest.mark.parametrize("name", ["bert uncased", "roberta", "albert"])
def test_windows_of_a_long_second_text_overlap(name: str, tmp_path: Path) -> None:
    folder = OLD[name](tmp_path / "model")
    ours, theirs = read_tokenizer(folder), reference(folder)
    question, long = "the quick brown fox", " ".join(lines()[:8])
    for limit, stride in ((24, 5), (40, 0), (10_000, 5)):
        rows = ours.windows(question, long, max_length=limit, stride=stride)
        expected = theirs(
            question, long, truncation="only_second", max_length=limit, stride=stride,
            return_overflowing_tokens=True, return_offsets_mapping=True, return_token_type_ids=True,
        )  # fmt: skip
        assert [row.ids for row in rows] == expected["input_ids"]
        assert [row.types for row in rows] == expected["token_type_ids"]
        assert [row.offsets for row in rows] == expected["offset_mapping"]
        assert [row.texts for row in rows] == [expected.sequence_ids(i) for i in range(len(rows))]
        assert [row.words for row in rows] == [expected.word_ids(i) for i in range(len(rows))]
        assert (len(rows) > 1) == (limit < 10_000)
    with pytest.raises(UsageError, match="its parts overlap by 9: shorten the first text"):
        ours.windows(question, long, max_length=16, stride=9)
    assert ours.has_offsets


def test_only_the_chosen_text_is_truncated(tmp_path: Path) -> None:
    ours, theirs = read_tokenizer(bert(tmp_path)), reference(tmp_path)
    for cut in ("only_first", "only_second"):
        texts = (
            ["the quick brown fox played", "world"]
            if cut == "only_first"
            else ["hello", "play played playing the"]
        )
        (row,) = ours.rows(texts[:1], texts[1:], max_length=7, cut=cut)
        assert row.ids == theirs(*texts, truncation=cut, max_length=7)["input_ids"]
        assert row.dropped > 0
    with pytest.raises(UsageError, match="the second text has 1 tokens, too few to cut"):
        ours.rows(["the quick brown fox"], ["a"], max_length=5, cut="only_second")
    with pytest.raises(UsageError, match="no room for text"):
        ours.rows(["the"], max_length=1)
    with pytest.raises(UsageError, match="are not pairs"):
        ours.rows(["the"], ["a", "b"])


@pytest.mark.parametrize(
    "name", ["bert uncased", "roberta", "gptj added", "t5", "xlm-roberta", "camembert", "llama"]
)
def test_special_tokens_in_a_text_stay_text_by_default(name: str, tmp_path: Path) -> None:
    folder = OLD[name](tmp_path)
    ours, theirs = read_tokenizer(folder), reference(folder)
    special = {
        getattr(ours, f"{role}_id") for role in ("bos", "eos", "pad", "cls", "sep", "mask")
    } - {None}
    texts = [f"hello {token} world{token}the <ent> x" for token in ours.names.values()] + [
        "the  <mask> fox"
    ]
    assert (
        ours.encode(texts, special_in_text=True)
        == theirs(texts, add_special_tokens=False)["input_ids"]
    )
    assert not any(special & set(row) for row in ours.encode(texts))
    assert any(special & set(row) for row in ours.encode(texts, special_in_text=True))


@pytest.mark.parametrize(
    "name",
    ["bert uncased", "roberta", "bart", "gpt2", "qwen", "t5", "xlnet", "llama", "nllb", "m2m"],
)
def test_special_tokens_in_a_text_are_parsed_where_the_reference_does(
    name: str, tmp_path: Path
) -> None:
    folder = OLD[name](tmp_path)
    ours, theirs = read_tokenizer(folder), reference(folder)
    assert ours.parses_special
    written = [*ours.names.values(), "<extra_id_0>", "<extra_id_7>"]
    texts = [f"the {token} fox{token} the {token}" for token in written]
    rows = ours.rows(texts, special_in_text=True)
    assert [row.ids for row in rows] == theirs(texts)["input_ids"]
    around = ours.rows(["the fox"])[0].special
    assert all(row.special == around for row in rows)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text("utf-8")) if config.is_file() else {}
    config.write_text(json.dumps(settings | {"split_special_tokens": True}), encoding="utf-8")
    assert not read_tokenizer(folder).parses_special


def test_marian_sides_and_languages(tmp_path: Path) -> None:
    folder = marian(tmp_path / "joint")
    theirs = reference(folder)
    source, target = read_tokenizer(folder), read_tokenizer(folder, target=True)
    texts = [*lines()[::5], ">>fra<< hello world", ">>xxx<<hello", ">>fra", "ж", "жж ж"]
    assert source.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    assert target.encode(texts) == theirs(text_target=texts, add_special_tokens=False)["input_ids"]
    assert source.encode([">>fra<< hello"])[0][0] == source.library.token_to_id(">>fra<<")
    rows = source.rows(["hello world"], ["the fox"])
    assert rows[0].ids == theirs(["hello world"], ["the fox"])["input_ids"][0]
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids = list(vocab.values())
    assert source.decode([ids]) == theirs.batch_decode([ids], skip_special_tokens=True)


def test_marian_with_separate_vocabularies(tmp_path: Path) -> None:
    folder = marian(tmp_path, separate_vocabs=True)
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    special = ["</s>", "<unk>"]
    rest = [piece for piece in vocab if piece not in [*special, "<pad>"]]
    other = {piece: number for number, piece in enumerate([*special, *reversed(rest), "<pad>"])}
    write(folder, target_vocab__json=other)
    theirs, some = reference(folder), lines()[::20]
    target = read_tokenizer(folder, target=True)
    assert (
        read_tokenizer(folder).encode(some) == theirs(some, add_special_tokens=False)["input_ids"]
    )
    assert target.encode(some) == theirs(text_target=some, add_special_tokens=False)["input_ids"]
    ids = target.encode(some)
    assert target.decode(ids) == theirs.batch_decode(ids, skip_special_tokens=True)


def test_a_part_unknown_to_the_reference_classes_is_kept(tmp_path: Path) -> None:
    """StarCoder splits digits. The reference knows that for the first model only; both were trained
    with it.
    """
    vocab, merges = bpe(END)
    library = Library(models.BPE(vocab, [tuple(pair) for pair in merges]))
    parts = [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    library.pre_tokenizer = pre_tokenizers.Sequence(parts)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(list(END))
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": END[0],
        "eos_token": END[0],
        "unk_token": END[0],
    }
    content = {"tokenizer__json": library.to_str(), "tokenizer_config__json": settings}
    write(tmp_path, **content, config__json={"model_type": "gpt_bigcode"})
    ours = read_tokenizer(tmp_path)
    check(ours, reference(tmp_path), lines()[::4])
    assert len(ours.encode(["1234"])[0]) == 4
    write(tmp_path, config__json={"model_type": "starcoder2"})
    assert read_tokenizer(tmp_path).encode(lines()) == ours.encode(lines())


def test_a_role_without_a_token_has_the_id_none(tmp_path: Path) -> None:
    ours = read_tokenizer(byte_level(tmp_path, "gpt2", END))
    assert (ours.pad_id, ours.cls_id, ours.mask_id) == (None, None, None)
    assert ours.eos_id == ours.bos_id == ours.required("eos") == 0
    with pytest.raises(Exception, match="has no pad token, which is needed"):
        ours.required("pad")
    write(tmp_path, tokenizer_config__json={"pad_token": "<|pad|>", "bos_token": None})
    ours = read_tokenizer(tmp_path)
    assert (ours.pad_id, ours.bos_id, ours.vocab_size) == (706, None, 707)


def test_added_tokens_of_an_old_folder(tmp_path: Path) -> None:
    folder = bert(tmp_path)
    write(
        folder,
        added_tokens__json={"<ent>": 401, "[NEW]": 400},
        special_tokens_map__json={"additional_special_tokens": ["[NEW]"], "cls_token": "[CLS]"},
    )
    ours, theirs = read_tokenizer(folder), reference(folder)
    texts = ["the <ent> fox [NEW] x", "<ent>[NEW]"]
    assert (
        ours.encode(texts, special_in_text=True)
        == theirs(texts, add_special_tokens=False)["input_ids"]
    )
    assert ours.library.token_to_id("<ent>") == theirs.convert_tokens_to_ids("<ent>")


def test_an_empty_folder_lists_the_known_layouts(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"has no tokenizer; looked for tokenizer\.json; spiece.*vocab\.json \+ merges",
    ):
        read_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="looked for"):
        read_tokenizer(write(tmp_path, config__json={"model_type": "t5"}))


def test_a_class_that_does_not_match_its_file(tmp_path: Path) -> None:
    spm(tmp_path, "spiece.model", "bert", sentencepiece(), tokenizer_class="BertTokenizer")
    with pytest.raises(CheckpointError, match="hold no WordPiece vocabulary"):
        read_tokenizer(tmp_path)


def test_m2m_has_the_language_first_whatever_the_settings_of_nllb(tmp_path: Path) -> None:
    folder = m2m(tmp_path / "model", legacy_behaviour=True)
    check(read_tokenizer(folder), reference(folder), lines()[:20])


def test_lines_of_bertweet_without_a_pair_are_no_merges(tmp_path: Path) -> None:
    folder = bertweet(tmp_path / "model")
    before = read_tokenizer(folder).encode(lines())
    codes = folder / "bpe.codes"
    codes.write_text(f"\n{codes.read_text(encoding='utf-8')}\n", encoding="utf-8")
    assert read_tokenizer(folder).encode(lines()) == before
