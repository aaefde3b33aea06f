"""Short training runs of the objectives on raw text: laws of a run, use of the model, reports and
errors.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.recipes import (
    BERT,
    ELECTRA,
    GPT2,
    MASKS,
    PRETRAINED_BERT,
    SENTINELS,
    SIZES,
    WEATHER,
    XLNET,
    weather_text,
)
from tests.train.runs import InterruptingView, RecordingView, assert_equal_runs, values_of

from trifold.errors import DataError, SettingsError
from trifold.hub import load_model
from trifold.pipeline import load
from trifold.recipe import load_recipe
from trifold.train import checkpoint, train
from trifold.train.data import load_data

pytestmark = pytest.mark.slow

CHARACTERS = {"kind": "char", "vocab_size": 40}

# name -> task, tokenizer, model
RECIPES = {
    "causal": ({"kind": "causal"}, CHARACTERS, GPT2),
    "plain": ({"kind": "masked"}, MASKS, BERT),
    "words": (
        {"kind": "masked", "mask": "words", "pseudo_perplexity": 2}, MASKS | {"kind": "bpe", "vocab_size": 36}, BERT
    ),
    "spans": ({"kind": "masked", "mask": "spans", "boundary": 1.0}, MASKS, BERT | {"heads": ["lm", "boundary"]}),
    "replaced": ({"kind": "replaced", "rate": 0.3}, MASKS, ELECTRA),
    "permutation": ({"kind": "permutation", "share": 3}, MASKS, XLNET),
    "follows": ({"kind": "pairs"}, MASKS, PRETRAINED_BERT),
    "order": ({"kind": "pairs", "pairs": "order", "mask": "spans"}, MASKS, PRETRAINED_BERT),
    "denoise": ({"kind": "denoise", "written": 4}, SENTINELS, SIZES),
    "sentinels": ({"kind": "spans", "written": 4, "rate": 0.3}, SENTINELS, SIZES),
}  # fmt: skip
ENCODERS = ["plain", "words", "spans", "permutation", "follows", "order"]

TRAIN = {
    "schedule": "constant", "learning_rate": 0.005, "warmup": 4, "precision": "float32", "device": "cpu",
    "steps": 10, "validate_every": 6, "save_every": 3, "keep_last": 4, "log_every": 1, "samples": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe per objective, and two texts: `words.txt` for causal, and sentences about constant
    weather.
    """
    folder, rng = tmp_path_factory.mktemp("recipes"), random.Random(5)
    documents = [" ".join(rng.choices(WEATHER, k=rng.randint(1, 12))) for _ in range(40)]
    (folder / "words.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")

    (folder / "text.txt").write_text(weather_text(rng), encoding="utf-8")
    for name, (task, tokenizer, model) in RECIPES.items():
        values = {
            "task": task, "tokenizer": tokenizer, "model": model | {"dropout": 0.1}, "train": TRAIN,
            "batch": {"tokens": 400}, "data": {"train": str(folder / "text.txt"), "holdout": 0.2},
        }  # fmt: skip
        if name == "causal":
            values["data"] |= {
                "train": str(folder / "words.txt"),
                "cut": "windows",
                "documents": "blank",
            }
            values |= {"batch": {"tokens": 200}, "generate": {"max_new_tokens": 8}}
        (folder / f"{name}.yaml").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A run of each recipe, trained at first use."""
    runs = {}

    def trained(name):
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp("runs") / name
            train(folder / f"{name}.yaml", out=runs[name])
        return runs[name]

    return trained


@pytest.fixture
def prepare(folder, tmp_path):
    """Load the data of a recipe with some changes; returns it and the messages."""

    def prepare(name, changes=None):
        view = RecordingView()
        data = load_data(
            load_recipe(folder / f"{name}.yaml", changes or {}), tmp_path / "tokenizer", view
        )
        return data, "\n".join(view.lines)

    return prepare


# --- laws of a run --------------------------------------------------------------------------------

LONGER = {"train.steps": 20, "train.workers": 2, "train.precision": "bfloat16"}


@pytest.mark.parametrize(
    ("name", "changes", "stops"),
    [
        ("causal", {}, (2, 6)),  # between checkpoints, while validating
        *((name, {}, (6,)) for name in RECIPES if name != "causal"),
        ("causal", LONGER, (3, 6, 17)),
        ("causal", {"train.steps": 20, "data.cache": "cache"}, (3, 17)),
    ],
)
def test_resumed_run_equals_uninterrupted_run(
    folder, trained, tmp_path, monkeypatch, name, changes, stops
):
    monkeypatch.chdir(tmp_path)
    recipe, whole = folder / f"{name}.yaml", tmp_path / "whole"
    if changes:
        train(recipe, out=whole, **changes)
    for stop in stops:
        outcome = train(recipe, out="run", resume="auto", view=InterruptingView(stop), **changes)
        assert (outcome.steps, outcome.stopped_by) == (stop, "signal")
    train(recipe, out="run", resume="auto", **changes)
    assert_equal_runs(tmp_path / "run", whole if changes else trained(name))
    last = checkpoint.load(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert last.progress["epoch"] >= (2 if changes else 1)


LEARNING = {"causal": (80, 0.02), "follows": (100, 0.005)}  # steps and rate


@pytest.mark.parametrize("name", ["causal", "plain", "spans", "follows", "denoise", "sentinels"])
def test_loss_falls_below_that_of_word_frequencies(folder, tmp_path, name):
    steps, rate = LEARNING.get(name, (50, 0.01))
    twice = dict.fromkeys(("train.validate_every", "train.save_every"), steps // 2)
    changes = twice | {"train.steps": steps, "train.learning_rate": rate, "model.dropout": 0.0}
    outcome = train(folder / f"{name}.yaml", out=tmp_path, **changes)
    losses = [loss for _, loss in values_of(tmp_path, "valid/loss")]
    assert losses[-1] < losses[0] < values_of(tmp_path, "train/loss")[0][1]
    if name == "causal":  # about fifteen characters
        assert outcome.scores["accuracy"] > 50
        assert outcome.scores["bits_per_byte"] < 1.6
        return
    assert losses[-1] < 1.7  # nats; word frequencies give 1.9
    if name in ENCODERS:
        assert outcome.scores["accuracy"] > 30  # word frequencies give 17


@pytest.mark.parametrize("name", ["spans", "order", "denoise", "replaced"])
def test_workers_do_not_change_the_scores(folder, tmp_path, name):
    one, two = (
        train(
            folder / f"{name}.yaml",
            out=tmp_path / str(workers),
            **{"train.workers": workers, "model.dropout": 0.0},
        )
        for workers in (1, 2)
    )
    assert one.scores == pytest.approx(two.scores, rel=1e-3)


# --- use of the model -----------------------------------------------------------------------------


def test_causal_model_equals_gpt2_of_transformers(trained):
    from transformers import AutoModelForCausalLM

    theirs, ours = (
        AutoModelForCausalLM.from_pretrained(trained("causal") / "model").eval(),
        load(trained("causal")),
    )
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    tokens = torch.randint(4, ours.config.vocab_size, (3, 24))
    with torch.no_grad():
        assert torch.allclose(ours.logits(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("plain", "BertForMaskedLM"), ("words", "BertForMaskedLM"), ("order", "BertForPreTraining")],
)
def test_masked_model_and_tokenizer_equal_bert_of_transformers(trained, name, architecture):
    import transformers

    folder = trained(name) / "model"
    theirs = getattr(transformers, architecture).from_pretrained(folder).eval()
    assert json.loads((folder / "config.json").read_text("utf-8"))["architectures"] == [
        architecture
    ]
    ours = load(folder)
    tokens = torch.randint(7, ours.config.vocab_size, (3, 20))
    segments = (torch.arange(20) > 9).long().expand(3, -1)
    with torch.no_grad():
        expected = theirs(tokens, token_type_ids=segments)[0]
        assert torch.allclose(
            ours.logits(tokens, segments=segments), expected, rtol=1e-4, atol=1e-5
        )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text, other = "Today sun rain .", "Today fog"
    (row,) = ours.tokenizer.rows([text], [other])
    assert tokenizer(text, other)["input_ids"] == row.ids
    assert tokenizer(text, other)["token_type_ids"] == row.types
    assert tokenizer.mask_token == "<mask>"
    assert tokenizer.mask_token_id in tokenizer("Today <mask> .")["input_ids"]


@pytest.mark.parametrize("name", ENCODERS)
def test_trained_encoder_fills_masks(trained, name):
    candidates = load(trained(name)).fill_mask("Today sun <mask> snow .", top_k=60)
    assert sum(candidate.score for candidate in candidates[0]) == pytest.approx(1, abs=1e-4)


def test_model_trained_on_pairs_predicts_the_next_sentence(trained):
    found = load(trained("follows")).next_sentence("Today sun .", "Today rain .")
    assert 0 <= found.score <= 1


def test_boundary_head_is_saved(trained):
    model, _ = load_model(trained("spans") / "model")
    assert model.config.chosen_heads == ("lm", "boundary")


@pytest.mark.parametrize("name", ["denoise", "sentinels"])
def test_trained_encoder_decoder_generates(trained, name):
    assert isinstance(load(trained(name)).generate("Today sun rain .", max_new_tokens=4), str)


def run_successfully(*arguments):
    result = run_command(*arguments)
    assert result.code == 0, result.err
    return result


def test_causal_model_works_with_eval_generate_and_show(trained, tmp_path):
    folder, text = trained("causal"), tmp_path / "text.txt"
    report = json.loads(run_successfully("eval", str(folder), "--json").out)
    assert report["loss"] == pytest.approx(
        min(dict(values_of(folder, "valid/loss")).values()), rel=1e-4
    )
    assert report["scores"].keys() == {"perplexity", "bits_per_byte", "accuracy"}
    text.write_text("sun rain\n\nfog snow sun\n", encoding="utf-8")
    result = run_successfully("eval", str(folder), str(text))
    words = [line.split(" ")[0] for line in result.out.splitlines()]
    assert words == ["loss", "perplexity", "bits", "accuracy"]
    assert "2 documents" in result.err
    # A model without a run: the text is one document.
    (tmp_path / "model").symlink_to(folder / "model")
    run_successfully("eval", str(tmp_path / "model"), str(text), "--json")
    for options in (("--tokenize", "13a"), ("--num-beams", "2"), ("--split", "train")):
        assert run_command("eval", str(folder), *options).code == 2
    generated = run_successfully(
        "generate", str(folder), "sun ", "--seed", "1", "--temperature", "0.8"
    )
    assert generated.err == ""
    run_successfully("show", str(folder))


def test_run_from_a_cache_builds_it_once_per_split_and_can_be_evaluated(folder, tmp_path):
    view, run = RecordingView(), tmp_path / "run"
    train(folder / "causal.yaml", out=run, view=view, **{"data.cache": str(tmp_path / "cache")})
    assert sum("built in" in line for line in view.lines) == 2  # training and validation
    assert any("no padding" in line for line in view.lines)
    assert len([entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]) == 2
    report = json.loads(run_successfully("eval", str(run), "--json").out)
    assert report["loss"] == pytest.approx(
        min(dict(values_of(run, "valid/loss")).values()), rel=1e-4
    )


def test_samples_have_one_line_each(trained):
    first = min((trained("causal") / "samples").glob("*.tsv"))
    head, *lines = first.read_text("utf-8").splitlines()
    assert head == "prompt\tcontinuation"
    assert len(lines) == 2
    assert all(line.count("\t") == 1 for line in lines)


# --- reports and errors ---------------------------------------------------------------------------


def test_documents_and_chunks_are_reported(prepare):
    data, report = prepare("causal")
    size = "documents have more than 24 tokens: split into pieces of 24, at other positions in each epoch"
    assert "words.txt: 40 documents" in report and size in report
    assert (
        "an epoch: " in report
        and " pieces, " in report
        and " tokens, " in report
        and "vocabulary " in report
    )
    assert data.config.vocab_size == data.objective.tokenizer.vocab_size
    one, two, again = (data.examples(epoch).chunks for epoch in (0, 1, 0))
    assert one.starts.tolist() == again.starts.tolist() != two.starts.tolist()
    assert one.sizes.sum() == two.sizes.sum()


def test_dropped_documents_and_tokens_without_label_are_reported(prepare):
    _, report = prepare("causal", {"data.cut": "drop", "task.begin": False, "task.end": False})
    assert "left out, with " in report
    assert "the first token of each of 32 documents is never a label" in report


def test_masks_depend_on_the_epoch_but_not_on_the_batch(prepare):
    data, report = prepare("plain")
    examples, task = data.train, data.objective
    alone = task.batch(examples, np.array([3]), draw=data.seed_of(0))
    among = task.batch(examples, np.array([9, 3, 5]), draw=data.seed_of(0))
    later = task.batch(examples, np.array([3]), draw=data.seed_of(1))
    start, size = (int(examples.lengths[row, 0]) for row in (9, 3))
    assert (alone.inputs.tokens[0, :size] == among.inputs.tokens[0, start : start + size]).all()
    assert not (alone.inputs.tokens[0, :size] == later.inputs.tokens[0, :size]).all()
    assert "documents have more than 22 tokens: split into pieces of 22" in report
    assert " texts, " in report and " tokens, " in report


REJECTED = [
    ("causal", {"model.shape": "encoder"}, r"model\.shape: encoder does not support task\.kind: causal"),
    ("causal", {"model.logit_soft_cap": 30.0}, r"model\.logit_soft_cap: "),
    ("causal", {"data.holdout": 0}, r"data\.valid: no validation data; .*data\.holdout=0\.1"),
    ("causal", {"data.cache": "c", "data.cut": "drop"}, r"data\.cut: drop is not supported with data\.cache"),
    ("causal", {"data.cache": "c", "data.holdout": 8}, r"data\.holdout: .* \(8\) cannot be held out of a cache"),
    ("plain", {"tokenizer.special": []}, r"no mask token; set tokenizer\.special="),
    ("plain", {"tokenizer.special": ["cls"]}, "give both or neither"),
    ("plain", {"model.shape": "encoder-decoder"}, "does not support task.kind: masked"),
    ("plain", {"task.masked": 0.95}, "above 1"),
    ("plain", {"task.boundary": 1.0}, "objective requires both a weight and the head"),
    ("spans", {"tokenizer.special": ["mask"]}, "a span at the end of a text has no neighbor"),
    ("plain", {"data.cache": "cache"}, r"data\.cache: "),
    ("plain", {"model.max_positions": 2}, "2 tokens leave no room"),
    ("follows", {"model.heads": ["lm"]}, r"model\.heads: next-sentence, pooler is missing"),
    ("denoise", {"tokenizer.special": []}, "no mask token"),
    ("denoise", {"task.noise": {"permute": 0.0, "infill": 0.0}}, "all rates are 0"),
    ("denoise", {"task.written": 0, "task.best_by": "exact_match"}, "exact_match requires generated texts"),
    ("sentinels", {"tokenizer.sentinels": 1}, r"set tokenizer\.sentinels=2"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), REJECTED)
def test_contradictory_settings_are_rejected(prepare, name, changes, message):
    with pytest.raises(SettingsError, match=message):
        prepare(name, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.shape": "encoder"}, r"encoder does not support task\.kind: translate"),
        (
            {"data.cache": "cache"},
            r"data\.cache: a task of kind translate reads its text into memory",
        ),
    ],
)
def test_settings_that_translation_does_not_support_are_rejected(tmp_path, changes, message):
    with pytest.raises(SettingsError, match=message):
        load_data(load_recipe("smoke", changes), tmp_path, RecordingView())


def test_sentence_pairs_require_documents_of_several_sentences(prepare, tmp_path):
    (tmp_path / "lines.txt").write_text("sun rain\nrain snow\nhail\n" * 9, encoding="utf-8")
    message = r"lines\.txt: of \d+ documents 0 have two sentences or more; pairs require 2"
    with pytest.raises(DataError, match=message):
        prepare("follows", {"data.train": str(tmp_path / "lines.txt")})
