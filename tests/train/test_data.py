from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.train.runs import RecordingView, overrides

from trifold.batches import BatchSettings, plan_epoch
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.causal import Causal, CausalSettings, EncodedDocuments
from trifold.pipeline import Pipeline
from trifold.ragged import Ragged
from trifold.recipe import load_recipe
from trifold.text import Tokenizer, TokenizerSettings, make_tokenizer
from trifold.train.data import batches_of_all_ranks, iterate_batches, load_data


@pytest.fixture
def files(tmp_path):
    """Write parallel lines; returns the value of a data key."""

    def files(name: str, *pairs: tuple[str, str]) -> list[str]:
        sides = [tmp_path / f"{name}.en", tmp_path / f"{name}.xx"]
        for side, lines in zip(sides, zip(*pairs, strict=True), strict=True):
            side.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return [str(side) for side in sides]

    return files


@pytest.fixture
def load_tiny(tmp_path, recorder):
    """Load the data of the tiny recipe; keyword arguments use __ for the dot."""

    def load_tiny(tokenizer: str = "tokenizer", **changes):
        recipe = load_recipe("smoke", overrides(**{"model__max_positions": 40} | changes))
        return load_data(recipe, tmp_path / tokenizer, recorder)

    return load_tiny


# --- translation pairs ----------------------------------------------------------------------------

SHORT = [(f"a b {c}", f"{c} b a") for c in "cdefgh"]
LONG = ("a b " * 30, "b a " * 30)


def test_model_size_follows_vocabularies(load_tiny):
    joint = load_tiny()
    assert joint.config.vocab_size == joint.objective.source.vocab_size
    assert joint.config.target_vocab_size is None
    assert joint.objective.source is joint.objective.target
    separate = load_tiny("two", tokenizer__joint=False)
    sizes = separate.config.vocab_size, separate.config.target_vocab_size
    assert sizes == (separate.objective.source.vocab_size, separate.objective.target.vocab_size)
    assert sizes[0] != sizes[1]


def test_existing_tokenizer_is_used_whatever_the_data(load_tiny, files):
    first = load_tiny().objective.source
    again = load_tiny(data__train=files("other", *SHORT)).objective.source
    assert again.library.get_vocab() == first.library.get_vocab()
    assert again.encode(["two hundred", "2 0 0"]) == first.encode(["two hundred", "2 0 0"])


@pytest.mark.parametrize(
    ("policy", "printed"), [("drop", "skipped, 87.05%"), ("truncate", "truncated, 58.27%")]
)
def test_pairs_longer_than_the_context_are_counted(load_tiny, recorder, files, policy, printed):
    found = load_tiny(data__train=files("train", *SHORT, LONG, LONG), batch__on_overflow=policy)
    line = f"2 of 8 pairs are longer than 40 tokens: {printed} of all tokens"
    assert line in recorder.lines
    rows = sorted(int(row) for batch in found.plan(found.train, 0) for row in batch)
    assert rows == list(range(6 if policy == "drop" else 8))
    assert found.max_length == (None if policy == "drop" else 40)


def test_overflow_error_names_the_row_and_the_setting(load_tiny, files):
    message = r"row 6: 121 tokens, more than batch\.max_length=40 .*batch\.on_overflow=drop"
    with pytest.raises(DataError, match=message):
        load_tiny(data__train=files("train", *SHORT, LONG), batch__on_overflow="error")
    with pytest.raises(DataError, match=r"no rows remain: all 2 are longer than 40 tokens"):
        load_tiny(data__train=files("long", LONG, LONG))


def test_validation_pairs_longer_than_the_context_are_left_out_before_training(
    load_tiny, recorder, files
):
    found = load_tiny(data__valid=files("valid", *SHORT, LONG))
    assert "valid.en + valid.xx: 1 of 7 pairs are longer than 40 tokens: left out" in recorder.lines
    assert len(found.bundle.valid) == len(found.valid.lengths) == 6
    message = r"no validation row has at most 40 tokens; raise model\.max_positions"
    with pytest.raises(DataError, match=message):
        load_tiny(data__valid=files("long", LONG))


def test_max_length_of_training_does_not_shorten_validation(load_tiny):
    found = load_tiny(batch__max_length=12)
    assert len(found.bundle.valid) == 28
    assert (found.valid.lengths > 12).any()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("data__train", r"data\.train: no training data; set data\.train="),
        ("data__valid", r"data\.valid: no validation data; .*data\.holdout="),
    ],
)
def test_missing_data_error_names_the_key(load_tiny, key, message):
    with pytest.raises(SettingsError, match=message):
        load_tiny(**{key: None}, model__shape="encoder-decoder")


def test_data_report(load_tiny, recorder, files):
    pairs = [*SHORT, ("", "nothing"), ("c", " ")]
    load_tiny(data__train=files("train", *pairs), data__valid=files("valid", *SHORT))
    assert "train.en + train.xx: 8 pairs, 2 with a blank side (dropped); 6 used" in recorder.lines
    (epoch,) = (line for line in recorder.lines if "an epoch: 6 pairs" in line)
    assert "no padding; " in epoch and "vocabulary" in epoch


def test_bpe_dropout_differs_by_epoch_and_ends_after_dropout_epochs(load_tiny):
    found = load_tiny(tokenizer__kind="bpe", tokenizer__dropout=0.3, tokenizer__dropout_epochs=2)
    usual, zero, one, two = found.train, *(found.examples(epoch) for epoch in range(3))
    assert two is usual
    assert zero.lengths.sum() > 1.1 * usual.lengths.sum()
    assert (zero.lengths != one.lengths).any()
    assert (zero.lengths == found.examples(0).lengths).all()


# --- raw text -------------------------------------------------------------------------------------


@pytest.fixture
def load_raw(tmp_path, recorder):
    """Load lines of raw text for a masked language model."""

    def load_raw(train: list[str], valid: list[str], **changes):
        sizes = {"model.d_model": 8, "model.d_ff": 8, "model.n_layers": 1, "model.n_heads": 2}
        values = {"tokenizer.vocab_size": 60} | sizes | changes
        for name, lines in (("train", train), ("valid", valid)):
            values[f"data.{name}"] = str(tmp_path / f"{name}.txt")
            Path(values[f"data.{name}"]).write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )
        return load_data(load_recipe("mlm-plain", values), tmp_path / "tokenizer", recorder)

    return load_raw


@pytest.mark.slow
def test_packed_raw_text_has_less_than_one_percent_padding(load_raw, recorder):
    rng = random.Random(1)
    lengths = [min(120, 1 + int(rng.lognormvariate(3, 1))) for _ in range(1500)]
    texts = [" ".join(rng.choices("abcdefgh", k=length)) for length in lengths]
    found = load_raw(texts, texts[:20])
    real = filled = 0
    for rows in found.plan(found.train, 0):
        batch = found.objective.batch(found.train, rows)
        real, filled = (
            real + int(found.train.lengths[rows].sum()),
            filled + batch.inputs.tokens.numel(),
        )
    assert real >= 0.99 * filled and found.batches.tokens == 8192
    assert any(", no padding; vocabulary" in line for line in recorder.lines)


def test_validation_without_target_tokens_is_rejected(load_raw):
    with pytest.raises(DataError, match=r"valid\.txt: this validation text has no target tokens"):
        load_raw(["a b c d e f g h"] * 20, ["x y", "z"], **{"tokenizer.kind": "word"})


def test_settings_without_effect_are_rejected_before_data_is_read(load_raw, recorder):
    with pytest.raises(
        SettingsError, match=r"tokenizer\.dropout: has no effect on a task of kind masked"
    ):
        load_raw(["a b c"] * 20, ["a b"], **{"tokenizer.dropout": 0.1})
    assert recorder.lines == []


def test_start_from_keeps_unused_rows_of_the_embeddings(tmp_path: Path, load_raw) -> None:
    texts, folder = ["a b c d"] * 20, tmp_path / "start"
    load_raw(texts, texts)
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    shutil.rmtree(tmp_path / "tokenizer")
    sizes = {"shape": "encoder", "d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2}
    config = ModelConfig.parse(
        sizes | {"vocab_size": tokenizer.vocab_size + 7, "max_positions": 32}
    )
    Pipeline(Transformer(config).eval()).save(folder)
    tokenizer.save(folder)
    sizes = {f"model.{key}": size for key, size in sizes.items()}
    loaded = {"tokenizer.file": str(folder), "train.start_from": str(folder)} | sizes
    assert load_raw(texts, texts, **loaded).config.vocab_size == tokenizer.vocab_size + 7
    assert (
        load_raw(texts, texts, **loaded | {"train.start_from": None}).config.vocab_size
        == tokenizer.vocab_size
    )


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ({"add": ["a"]}, "tokenizer: add: there is no joint tokenizer to add tokens to"),
        (
            {"add": "nothing.txt", "file": "FILE"},
            "tokenizer.add: nothing.txt cannot be read .*; name a file",
        ),
    ],
)
def test_tokens_that_cannot_be_added_are_errors(
    tmp_path: Path, tokenizer: dict, message: str
) -> None:
    make_tokenizer(["a b"], TokenizerSettings(kind="word", min_frequency=1)).save(tmp_path)
    given = tokenizer | ({"file": str(tmp_path)} if "file" in tokenizer else {})
    with pytest.raises(SettingsError, match=message):
        make_tokenizer([], TokenizerSettings.parse(given, at="tokenizer"))


# --- batches of ranks -----------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_epoch_contains_every_token_once_even_if_the_number_of_ranks_changes(
    accumulate, workers
):
    """Counted on a corpus in which every token has its own id."""
    sizes = np.random.default_rng(3).integers(1, 40, 60)
    task = Causal(CausalSettings(begin=False, end=False), SimpleNamespace(padding_id=0), 16)
    ids = np.arange(1, sizes.sum() + 1)
    documents = [part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])]
    examples = task.examples(EncodedDocuments(Ragged.of(documents), 0))
    plan = [
        plan_epoch(examples.lengths, BatchSettings(tokens=64), seed=1, epoch=epoch)
        for epoch in range(9)
    ]
    data = SimpleNamespace(
        recipe=SimpleNamespace(train=SimpleNamespace(accumulate=accumulate)),
        objective=task,
        max_length=None,
        examples=lambda epoch: examples,
        seed_of=lambda epoch: epoch,
        plan=lambda examples, epoch: plan[epoch],
    )
    expected = Counter(int(i) for i in ids) - Counter(int(i) for i in ids[np.cumsum(sizes) - sizes])
    found: Counter[int] = Counter()
    position = (0, 0)
    for world, updates in ((1, 3), (4, 2), (2, 3), (3, 60)):
        streams = [
            iterate_batches(data, workers, *position, rank=rank, world=world)
            for rank in range(world)
        ]
        for _ in range(updates * accumulate):
            batches = [next(stream) for stream in streams]
            assert len({(each.epoch, each.number) for each in batches}) == 1, (
                "all ranks are at one position"
            )
            position = batches[0].epoch, batches[0].number + 1
            for each in batches:
                for batch in each.micro_batches if each.epoch == 0 else []:
                    found.update(int(i) for i in batch.labels if i >= 0)
        if position[0] > 0:
            break
    assert position[0] > 0, "the epoch is complete"
    assert found == expected


def test_batches_of_all_ranks_can_be_rebuilt(load_tiny):
    data = load_tiny()
    mine = list(itertools.islice(iterate_batches(data, 1, rank=1, world=3), 2))
    rebuilt = batches_of_all_ranks(data, 1, mine, world=3)
    assert len(rebuilt) == 6
    assert torch.equal(rebuilt[2].inputs.tokens, mine[0].micro_batches[0].inputs.tokens)


def test_batches_of_a_single_rank_are_not_built_again(load_tiny):
    data = load_tiny()
    taken = list(itertools.islice(iterate_batches(data, 1), 2))
    assert batches_of_all_ranks(data, 1, taken, world=1)[1] is taken[1].micro_batches[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model__max_positions": 2**18, "model__d_model": 256},
            "model.max_positions: 262144 positions of width 256",
        ),
        ({"generate__num_beams": 1001}, "generate.num_beams: 1001 is more than 1,000"),
        (
            {"generate__max_new_tokens": 2**20},
            "generate.max_new_tokens: 1048576 is more than 131,072",
        ),
        ({"generate__bad_words": ["x" * 10_001]}, "generate.bad_words: 10001 ids or characters"),
    ],
)
def test_a_run_whose_folder_could_not_be_loaded_is_rejected(load_tiny, changes, message):
    with pytest.raises(SettingsError) as caught:
        load_tiny(**changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "texts", "lines"),
    [
        ({"data.train": "missing.csv"}, "missing.csv: no such file", 0),
        ({"data.train": "empty.csv"}, "empty.csv: the file is empty", 0),
        (
            {"data.train": "phrases.csv"},
            "you probably mean `data.header=true data.source=Satz data.target=Sentence`",
            0,
        ),
        ({"data.train": "pairs.csv"}, "", 1),
    ],
)
def test_defaults_for_the_size_of_data_are_printed_once_it_is_read(
    tmp_path, monkeypatch, settings, texts, lines
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").touch()
    pairs = "".join(f"{n},ein Hund und {n},a dog with {n},AB\n" for n in range(30))
    (tmp_path / "phrases.csv").write_text(f"Nr,Satz,Sentence,By\n{pairs}", "utf-8")
    (tmp_path / "pairs.csv").write_text(f"Nr,source,target,By\n{pairs}", "utf-8")
    recipe = load_recipe("translate", settings)
    view = RecordingView()
    try:
        load_data(recipe, tmp_path / "tokenizer", view)
        error = ""
    except DataError as found:
        error = found.message
    assert texts in error
    assert bool(texts) == bool(error)
    assert sum(line.startswith("for the size of the data") for line in view.lines) == lines
