"""Learning from what was taken out of raw text: the laws of a run for each kind of task, and what comes out."""

from __future__ import annotations

import json
import random
from copy import deepcopy

import numpy as np
import pytest
import torch
import yaml

from trifold.errors import DataError, SettingsError
from trifold.pipeline import load
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data

pytestmark = pytest.mark.slow

SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "max_positions": 24, "dropout": 0.1}
READER = SIZES | {
    "shape": "encoder", "positions": "learned", "scale_embeddings": False, "embedding_norm": True,
    "attention_bias": True, "n_token_types": 2, "activation": "gelu", "norm_epsilon": 1e-12,
    "heads": ["lm"], "lm_head_transform": "gelu", "lm_head_bias": True,
}  # fmt: skip
READS = {"kind": "word", "vocab_size": 60, "special": ["cls", "sep", "mask"]}
WRITES = {"kind": "word", "vocab_size": 60, "special": ["mask"], "sentinels": 8}
PRETRAINED = {"heads": ["lm", "pooler", "next-sentence"]}

ASKER = SIZES | {
    "shape": "encoder", "positions": "relative-sinusoidal", "query_stream": True, "segment_offsets": True,
    "scale_embeddings": False, "heads": ["lm"], "lm_head_bias": True,
}  # fmt: skip

RECIPES = {
    "plain": ({"kind": "masked"}, READS, READER),
    "words": (
        {"kind": "masked", "mask": "words", "pseudo_perplexity": 2}, READS | {"kind": "bpe", "vocab_size": 36}, READER
    ),
    "spans": (
        {"kind": "masked", "mask": "spans", "boundary": 1.0}, READS, READER | {"heads": ["lm", "boundary"]},
    ),
    "any order": (
        {"kind": "permutation", "share": 3}, READS, ASKER,
    ),
    "follows": ({"kind": "pairs"}, READS, READER | PRETRAINED),
    "order": ({"kind": "pairs", "pairs": "order", "mask": "spans"}, READS, READER | PRETRAINED),
    "denoise": ({"kind": "denoise", "written": 4}, WRITES, SIZES),
    "sentinels": ({"kind": "spans", "written": 4, "rate": 0.3}, WRITES, SIZES),
}  # fmt: skip
KINDS = list(RECIPES)
ENCODERS = KINDS[:6]

TRAIN = {
    "schedule": "constant", "learning_rate": 0.005, "warmup": 4, "precision": "float32", "device": "cpu",
    "steps": 10, "validate_every": 6, "save_every": 3, "keep_last": 4, "log_every": 1, "samples": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A recipe a kind, beside a text of sixty documents, in each of which the weather never changes."""
    folder, draw = tmp_path_factory.mktemp("pretraining"), random.Random(5)

    def document():
        weather = draw.choice(["sun", "rain", "snow", "hail", "fog"])
        lengths = [draw.randint(2, 6) for _ in range(draw.randint(2, 6))]
        return " ".join(" ".join(["Today", *[weather] * length]) + " ." for length in lengths)

    documents = [document() for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
    for name, (task, tokenizer, model) in RECIPES.items():
        values = {
            "task": task, "tokenizer": tokenizer, "model": model, "train": TRAIN, "batch": {"tokens": 400},
            "data": {"train": str(folder / "text.txt"), "holdout": 0.2},
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(deepcopy(values)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A run of each kind, made when it is first asked for."""
    runs = {}

    def run(name):
        if name not in runs:
            runs[name] = tmp_path_factory.mktemp("runs") / name
            train(folder / f"{name}.yaml", out=runs[name])
        return runs[name]

    return run


@pytest.mark.parametrize("name", KINDS)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(
    folder, trained, interrupting, state_of, tmp_path, name
):
    recipe = folder / f"{name}.yaml"
    for stop in (2, 6):  # between checkpoints, while validating
        outcome = train(recipe, out=tmp_path, resume="auto", view=interrupting(stop))
        assert (outcome.steps, outcome.stopped_by) == (stop, "signal")
    train(recipe, out=tmp_path, resume="auto")
    ours, theirs = state_of(tmp_path), state_of(trained(name))
    assert theirs["progress"]["epoch"] >= 1
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if ours[key] != theirs[key]] == []


@pytest.mark.parametrize("name", ["plain", "spans", "follows", "denoise", "sentinels"])
def test_the_loss_falls(folder, tmp_path, name):
    often = dict.fromkeys(("train.validate_every", "train.save_every"), 50)
    outcome = train(
        folder / f"{name}.yaml", out=tmp_path, **often, **{"train.steps": 100, "model.dropout": 0.0}
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [line["valid/loss"] for line in lines if "valid/loss" in line]
    assert losses[-1] < losses[0] < lines[0]["train/loss"]
    assert losses[-1] < 1.7  # nats; who only knows how frequent words are is left with 1.9
    if name in ENCODERS:
        assert outcome.scores["accuracy"] > 30  # … and is right in 17 of 100


@pytest.mark.parametrize("name", ["spans", "order", "denoise"])
def test_workers_share_a_batch(folder, tmp_path, name):
    one, two = (
        train(
            folder / f"{name}.yaml",
            out=tmp_path / str(workers),
            **{"train.workers": workers, "model.dropout": 0.0},
        )
        for workers in (1, 2)
    )
    assert one.scores == pytest.approx(two.scores, rel=1e-3)


# --- what comes out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("plain", "BertForMaskedLM"), ("words", "BertForMaskedLM"), ("order", "BertForPreTraining")],
)
def test_the_folder_is_berts_and_the_reference_gives_the_same_logits(trained, name, theirs):
    import transformers

    folder = trained(name) / "model"
    reference = getattr(transformers, theirs).from_pretrained(folder).eval()
    assert json.loads((folder / "config.json").read_text("utf-8"))["architectures"] == [theirs]
    mine = load(folder)
    tokens = torch.randint(7, mine.config.vocab_size, (3, 20))
    segments = (torch.arange(20) > 9).long().expand(3, -1)
    with torch.no_grad():
        wanted = reference(tokens, token_type_ids=segments)
        ours = mine.logits(tokens, segments=segments)
    assert torch.allclose(ours, wanted[0], rtol=1e-4, atol=1e-5)
    own = transformers.AutoTokenizer.from_pretrained(folder)
    text, other = "Today sun rain .", "Today fog"
    assert own(text, other)["input_ids"] == mine.tokenizer.rows([text], [other])[0].ids
    assert own(text, other)["token_type_ids"] == mine.tokenizer.rows([text], [other])[0].types
    assert own.mask_token == "<mask>"


@pytest.mark.parametrize("name", ENCODERS)
def test_a_loaded_reader_fills_masks(trained, name):
    found = load(trained(name)).fill_mask("Today sun <mask> snow .", top_k=60)
    assert sum(one.score for one in found[0]) == pytest.approx(1, abs=1e-4)


def test_a_loaded_reader_says_what_follows(trained):
    found = load(trained("follows")).next_sentence("Today sun .", "Today rain .")
    assert 0 <= found.score <= 1


def test_the_boundary_head_is_kept_and_can_be_left_out(trained):
    from trifold.hub import load_model

    model, _ = load_model(trained("spans") / "model")
    assert model.config.chosen_heads == ("lm", "boundary")
    plain, _ = load_model(trained("spans") / "model", heads=("lm",))
    assert plain.config.chosen_heads == ("lm",)


@pytest.mark.parametrize("name", ["denoise", "sentinels"])
def test_a_loaded_writer_writes(trained, name):
    assert isinstance(load(trained(name)).generate("Today sun rain .", max_new_tokens=4), str)


# --- what is said and refused --------------------------------------------------------------------------------


def test_masks_are_drawn_anew_each_epoch_and_not_by_the_batch(folder, listening, tmp_path):
    prepared = load_data(load_recipe(folder / "plain.yaml"), tmp_path, listening)
    examples, task = prepared.train, prepared.objective
    alone = task.batch(examples, np.array([3]), draw=prepared.seed_of(0))
    among = task.batch(examples, np.array([9, 3, 5]), draw=prepared.seed_of(0))
    later = task.batch(examples, np.array([3]), draw=prepared.seed_of(1))
    size = int(examples.lengths[3, 0])
    start = int(examples.lengths[9, 0])
    assert (alone.inputs.tokens[0, :size] == among.inputs.tokens[0, start : start + size]).all()
    assert not (alone.inputs.tokens[0, :size] == later.inputs.tokens[0, :size]).all()
    said = "\n".join(listening.lines)
    assert "documents have more than 22 tokens: split into pieces of 22" in said
    assert " texts, " in said and " tokens, " in said


REFUSED = [
    ("plain", {"tokenizer.special": []}, SettingsError, r"no mask token; set tokenizer\.special="),
    ("plain", {"tokenizer.special": ["cls"]}, SettingsError, "give both or neither"),
    ("plain", {"model.shape": "encoder-decoder"}, SettingsError, "does not support task.kind: masked"),
    ("plain", {"task.masked": 0.95}, SettingsError, "above 1"),
    ("plain", {"task.boundary": 1.0}, SettingsError, "objective requires both a weight and the head"),
    (
        "spans",
        {"tokenizer.special": ["mask"]},
        SettingsError,
        "a span at the end of a text has no neighbor",
    ),
    ("plain", {"data.cache": "cache"}, SettingsError, r"data\.cache: "),
    ("plain", {"model.max_positions": 2}, SettingsError, "2 tokens leave no room"),
    ("follows", {"model.heads": ["lm"]}, SettingsError, r"model\.heads: next-sentence, pooler is missing"),
    ("denoise", {"tokenizer.special": []}, SettingsError, "no mask token"),
    ("denoise", {"task.noise": {"permute": 0.0, "infill": 0.0}}, SettingsError, "every rate is 0"),
    (
        "denoise",
        {"task.written": 0, "task.best_by": "exact_match"},
        SettingsError,
        "exact_match requires generated texts",
    ),
    ("sentinels", {"tokenizer.sentinels": 1}, SettingsError, r"set tokenizer\.sentinels=2"),
]


@pytest.mark.parametrize(("name", "changes", "error", "message"), REFUSED)
def test_what_does_not_hang_together_is_refused(folder, listening, tmp_path, name, changes, error, message):
    with pytest.raises(error, match=message):
        load_data(load_recipe(folder / f"{name}.yaml", changes), tmp_path, listening)


def test_pairs_need_documents_of_several_sentences(folder, listening, tmp_path):
    (tmp_path / "lines.txt").write_text("sun rain\nrain snow\nhail\n" * 9, encoding="utf-8")
    recipe = load_recipe(folder / "follows.yaml", {"data.train": str(tmp_path / "lines.txt")})
    with pytest.raises(
        DataError, match=r"lines\.txt: of 22 documents 0 have two sentences or more; pairs require 2"
    ):
        load_data(recipe, tmp_path / "tokenizer", listening)
