from __future__ import annotations

import random

import pytest

from trifold.errors import DataError, SettingsError
from trifold.recipe import load_recipe
from trifold.train.data import load_data


@pytest.fixture
def files(tmp_path):
    """Write parallel lines; gives the value of a data key."""

    def files(name: str, *pairs: tuple[str, str]) -> list[str]:
        sides = [tmp_path / f"{name}.en", tmp_path / f"{name}.xx"]
        for side, lines in zip(sides, zip(*pairs, strict=True), strict=True):
            side.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [str(side) for side in sides]

    return files


SHORT = [(f"a b {c}", f"{c} b a") for c in "cdefgh"]
LONG = ("a b " * 30, "b a " * 30)


def prepared(tmp_path, listening, tiny, **changes):
    overrides = (
        tiny | {"model.max_positions": 40} | {key.replace("__", "."): value for key, value in changes.items()}
    )
    return load_data(load_recipe("smoke", overrides), tmp_path / "tokenizer", listening)


def test_the_model_is_as_large_as_the_vocabularies(tmp_path, listening, tiny):
    joint = prepared(tmp_path, listening, tiny)
    assert joint.config.vocab_size == joint.objective.source.vocab_size
    assert joint.config.target_vocab_size is None
    assert joint.objective.source is joint.objective.target
    separate = prepared(tmp_path / "two", listening, tiny, tokenizer__joint=False)
    assert separate.config.vocab_size == separate.objective.source.vocab_size
    assert (
        separate.config.target_vocab_size
        == separate.objective.target.vocab_size
        != separate.config.vocab_size
    )


def test_a_run_goes_on_with_its_own_tokenizer(tmp_path, listening, tiny, files):
    first = prepared(tmp_path, listening, tiny).objective.source
    again = prepared(tmp_path, listening, tiny, data__train=files("other", *SHORT)).objective.source
    assert again.library.get_vocab() == first.library.get_vocab()
    assert again.encode(["two hundred", "2 0 0"]) == first.encode(["two hundred", "2 0 0"])


@pytest.mark.parametrize(("fate", "said"), [("drop", "skipped"), ("truncate", "truncated")])
def test_pairs_longer_than_the_model_allows_are_counted_never_silently_cut(
    tmp_path, listening, tiny, files, fate, said
):
    train = files("train", *SHORT, LONG, LONG)
    found = prepared(tmp_path, listening, tiny, data__train=train, batch__on_overflow=fate)
    assert f"2 of 8 pairs are longer than 40 tokens: {said}" in listening.lines
    rows = sorted(int(row) for batch in found.plan(found.train, 0) for row in batch)
    assert rows == list(range(6 if fate == "drop" else 8))
    assert found.max_length == (None if fate == "drop" else 40)


def test_or_they_are_an_error(tmp_path, listening, tiny, files):
    with pytest.raises(
        DataError, match=r"row 6: 121 tokens, more than batch\.max_length=40 .*batch\.on_overflow=drop"
    ):
        prepared(
            tmp_path, listening, tiny, data__train=files("train", *SHORT, LONG), batch__on_overflow="error"
        )


def test_validation_pairs_that_the_model_cannot_read_are_found_before_training(
    tmp_path, listening, tiny, files
):
    found = prepared(tmp_path, listening, tiny, data__valid=files("valid", *SHORT, LONG))
    assert "valid.en + valid.xx: 1 of 7 pairs are longer than 40 tokens: left out" in listening.lines
    assert len(found.bundle.valid) == len(found.valid.lengths) == 6
    with pytest.raises(
        DataError, match=r"no validation row has at most 40 tokens; raise model\.max_positions"
    ):
        prepared(tmp_path, listening, tiny, data__valid=files("long", LONG))


def test_validation_pairs_longer_than_training_wants_are_kept(tmp_path, listening, tiny):
    found = prepared(tmp_path, listening, tiny, batch__max_length=12)
    assert len(found.bundle.valid) == 28
    assert (found.valid.lengths > 12).any()


def test_no_training_pair_is_short_enough(tmp_path, listening, tiny, files):
    with pytest.raises(DataError, match=r"no rows remain: all 2 are longer than 40 tokens"):
        prepared(tmp_path, listening, tiny, data__train=files("train", LONG, LONG))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("data__train", r"data\.train: no training data; set data\.train="),
        ("data__valid", r"data\.valid: no validation data; .*data\.holdout="),
    ],
)
def test_data_that_is_not_there_is_asked_for_with_the_key(tmp_path, listening, tiny, key, message):
    with pytest.raises(SettingsError, match=message):
        prepared(tmp_path, listening, tiny, **{key: None})


def test_what_was_read_is_said(tmp_path, listening, tiny, files):
    pairs = [*SHORT, ("", "nothing"), ("c", " ")]
    prepared(
        tmp_path, listening, tiny, data__train=files("train", *pairs), data__valid=files("valid", *SHORT)
    )
    assert "train.en + train.xx: 8 pairs, 2 with a blank side (dropped); 6 used" in listening.lines
    assert any(
        "an epoch: 6 pairs" in line and "packed; " in line and "vocabulary" in line
        for line in listening.lines
    )


def test_merges_drop_out_anew_each_epoch_until_they_are_left_alone(tmp_path, listening, tiny):
    asked = {"tokenizer__kind": "bpe", "tokenizer__dropout": 0.3, "tokenizer__dropout_epochs": 2}
    found = prepared(tmp_path, listening, tiny, **asked)
    usual, zero, one, two = found.train, *(found.examples(epoch) for epoch in range(3))
    assert two is usual
    assert zero.lengths.sum() > 1.1 * usual.lengths.sum()
    assert (zero.lengths != one.lengths).any()
    assert (zero.lengths == found.examples(0).lengths).all()


# --- raw text -------------------------------------------------------------------------------------------------


def raw(tmp_path, listening, texts, valid, **changes):
    for name, lines in (("train", texts), ("valid", valid)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    found = {
        "data.train": str(tmp_path / "train.txt"),
        "data.valid": str(tmp_path / "valid.txt"),
        "tokenizer.vocab_size": 60,
        "model.d_model": 8,
        "model.d_ff": 8,
        "model.n_layers": 1,
        "model.n_heads": 2,
    }
    return load_data(load_recipe("mlm-plain", found | changes), tmp_path / "tokenizer", listening)


def test_raw_text_is_packed_with_less_than_a_hundredth_of_filling(tmp_path, listening):
    chance = random.Random(1)
    texts = [
        " ".join(chance.choices("abcdefgh", k=min(120, 1 + int(chance.lognormvariate(3, 1)))))
        for _ in range(1500)
    ]
    found = raw(tmp_path, listening, texts, texts[:20])
    real = filled = 0
    for rows in found.plan(found.train, 0):
        batch = found.objective.batch(found.train, rows)
        real, filled = real + int(found.train.lengths[rows].sum()), filled + batch.inputs.tokens.numel()
    assert real >= 0.99 * filled and found.batches.tokens == 8192
    assert any(", packed; vocabulary" in line for line in listening.lines)


def test_a_validation_that_asks_for_nothing_is_refused(tmp_path, listening):
    with pytest.raises(DataError, match=r"valid\.txt: this validation text has no target tokens"):
        raw(tmp_path, listening, ["a b c d e f g h"] * 20, ["x y", "z"], **{"tokenizer.kind": "word"})


def test_what_the_task_would_not_look_at_is_refused_before_anything_is_read(tmp_path, listening):
    with pytest.raises(SettingsError, match=r"tokenizer\.dropout: has no effect on a task of kind masked"):
        raw(tmp_path, listening, ["a b c"] * 20, ["a b"], **{"tokenizer.dropout": 0.1})
    assert listening.lines == []
