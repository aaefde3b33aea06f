"""Sentence embeddings: losses equal those of sentence-transformers; parts of a batch equal the
whole; scores; runs.
"""

from __future__ import annotations

import json
import threading
from copy import deepcopy
from itertools import chain
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.models import ONE_LAYER
from tests.objectives.common import eval_context, random_model
from tests.train.runs import InterruptingView, assert_equal_runs

import trifold
from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.embed import Embed, EmbedSettings, _count_shared, _numbered
from trifold.objectives.objective import BuildContext
from trifold.pipeline import Pipeline
from trifold.recipe import TrainSettings
from trifold.text import TokenizerSettings
from trifold.train.device import Machine
from trifold.train.ranks import SINGLE, Ranks
from trifold.train.trainer import Trainer

SIZES = ONE_LAYER | {"max_positions": 24}
ENCODER = SIZES | {
    "shape": "encoder",
    "positions": "learned",
    "n_token_types": 2,
    "heads": ["pooler"],
}
WORDS = {"kind": "word", "min_frequency": 1, "special": ["cls", "sep", "mask"]}
TEXTS = [
    (f"w{n} w{n * 3 % 7} w{n % 5}", f"w{n} w{n % 4}", f"w{n * 5 % 8} w{n % 3} w1")
    for n in range(12)
]


def pairs(file, *, score=False, negative=False):
    keys = ["anchor", "positive"] + ["negative"] * negative + ["score"] * score
    rows = [[*texts[: 2 + negative], *([f"{n % 6}.0"] * score)] for n, texts in enumerate(TEXTS)]
    file.write_text("\n".join("\t".join(row) for row in [keys, *rows]) + "\n")
    return str(file)


def build(
    folder, loss="auto", *, score=False, negative=False, dropout=0.0, reports=None, **settings
):
    file = pairs(folder / "rows.tsv", score=score, negative=negative)
    context = BuildContext(
        DataSettings(train=file, valid=file),
        TokenizerSettings.parse(WORDS),
        ModelConfig.parse(ENCODER | {"dropout": dropout}),
        BatchSettings(),
        1,
        folder / "tokenizer",
        (reports if reports is not None else []).append,
    )
    return EmbedSettings(loss=loss, **settings).build(context)


class Embedded(torch.nn.Module):
    """What a loss of sentence-transformers calls instead of a model."""

    def forward(self, features):
        return features


THEIRS = {
    "ranking": ("MultipleNegativesRankingLoss", {"scale": 7.0}),
    "cosent": ("CoSENTLoss", {"scale": 7.0}),
    "cosine": ("CosineSimilarityLoss", {}),
    "triplet": ("TripletLoss", {"triplet_margin": 2.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", THEIRS)
@pytest.mark.filterwarnings("ignore")
def test_losses_and_gradients_equal_those_of_sentence_transformers_on_200_random_cases(loss):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    name, options = THEIRS[loss]
    theirs = getattr(losses, name)(Embedded(), **options)
    settings = EmbedSettings(loss=loss, scale=7.0, margin=2.0)
    rng = torch.Generator().manual_seed(4)
    for case in range(200):
        rows = int(torch.randint(1, 9, (), generator=rng))
        sides = 3 if loss == "triplet" or (loss == "ranking" and case % 2) else 2
        objective = Embed(settings, None, ModelConfig(), roles=["text"] * sides)
        vectors = torch.randn(rows, sides, 5, generator=rng, requires_grad=True)
        scores = torch.randint(0, 4, (rows, 1), generator=rng) / 3
        numbers = torch.arange(rows * sides).view(rows, sides)
        ours = objective.table_loss(torch.cat([scores, numbers, vectors.flatten(1)], 1))
        expected = theirs(
            [{"sentence_embedding": vectors[:, n]} for n in range(sides)], scores[:, 0]
        )
        torch.testing.assert_close(ours, expected.to(ours), rtol=1e-5, atol=1e-6)
        (got,), (wanted,) = (
            torch.autograd.grad(each, vectors, allow_unused=True) for each in (ours, expected)
        )
        torch.testing.assert_close(
            got, torch.zeros_like(got) if wanted is None else wanted, rtol=1e-4, atol=1e-6
        )


def ranking(roles):
    return Embed(EmbedSettings(loss="ranking", scale=7.0), None, ModelConfig(), roles=roles)


def table_of(texts, vectors):
    numbers = torch.from_numpy(_numbered([*chain(*texts)], texts[0]))
    return torch.cat([torch.zeros(len(texts), 1), numbers, vectors.flatten(1)], 1)


# Rows, and for each one the texts of other rows that are its negatives.
REPEATED = {
    "one positive of all": ([(n, "x") for n in "abcdefgh"], [""] * 8),
    "case and space": ([("a", "A dog."), ("b", " a  DOG. "), ("c", "z")], [["z"], ["z"], ["A dog.", " a  DOG. "]]),
    "positives of one anchor": ([("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")], ["z", "z", "yz", "xyx"]),
    "the anchor itself": ([("a", "b"), ("b", "c"), ("c", "d")], ["cd", "d", "b"]),
    "equal sides": ([("a", "a"), ("b", "b"), ("c", "c")], ["bc", "ac", "ab"]),
    "negatives": ([("a", "x", "n"), ("b", "n", "x"), ("c", "z", "m")], ["nnzm", "xxzm", "xnnxm"]),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATED)
def test_equal_texts_are_no_negatives_of_each_other(name):
    texts, negatives = REPEATED[name]
    sides = len(texts[0])
    objective = ranking(["text", "pair", "negative"][:sides])
    vectors = torch.randn(len(texts), sides, 5, generator=torch.Generator().manual_seed(3))
    cosine = torch.cosine_similarity
    expected = []
    for row, chosen in enumerate(negatives):
        others = [
            vectors[n, side]
            for side in range(1, sides)
            for n, other in enumerate(texts)
            if other[side] in chosen and (n != row or side > 1)
        ]
        assert len(others) == len(chosen)
        logits = [7 * cosine(vectors[row, 0], each, dim=0) for each in (vectors[row, 1], *others)]
        expected.append(-torch.stack(logits).log_softmax(0)[0])
    loss = objective.table_loss(table_of(texts, vectors))
    torch.testing.assert_close(loss, torch.stack(expected).mean(), rtol=1e-5, atol=1e-6)


def test_rows_that_share_texts_are_counted_and_other_files_get_no_line(tmp_path):
    names, reports = ("anchor", "positive"), []
    rows = [dict(zip(names, texts[:2], strict=True)) for texts in TEXTS]
    assert _count_shared(_numbered([*chain(*(t[:2] for t in TEXTS))], names)) == 0
    build_rows(tmp_path, rows, reports=reports)
    assert not any("share a text" in line for line in reports)
    rows[3]["positive"] = rows[5]["positive"].upper()
    rows[7]["anchor"] = rows[9]["anchor"]
    rows[1]["anchor"] = rows[0]["positive"]
    build_rows(tmp_path, rows, reports=reports)
    # The row whose second text is the first one of another has that row's texts as negatives.
    assert any(line.startswith("5 of 12 rows share a text with another row") for line in reports)


def test_other_positives_of_an_anchor_do_not_rank_above_its_own():
    objective = ranking(["text", "pair"])
    texts = [("a", "x"), ("a", "y"), ("b", "z")]
    sides = torch.tensor([[[1.0, 0], [0.9, 0.1]], [[1, 0], [1, 0]], [[0, 1], [0, 1]]])
    found = objective.scores_of_sums({"tables": [table_of(texts, sides).numpy()]})
    assert found == {"recall_at_1": 100.0, "mrr": 100.0}
    texts[1] = ("c", "y")
    found = objective.scores_of_sums({"tables": [table_of(texts, sides).numpy()]})
    assert found["recall_at_1"] == pytest.approx(200 / 3)


# --- prompts --------------------------------------------------------------------------------------


PROMPTS = {"query": "w6 w5 ", "document": "w4 "}


def test_prompts_are_put_before_the_texts_of_their_column(tmp_path):
    reports = []
    chosen = {"prompts": PROMPTS, "prompt_of": {"anchor": "query", "pair": "document"}}
    bundle = build(tmp_path, negative=True, reports=reports, **chosen)
    objective = bundle.objective
    before = ("w6 w5 ", "w4 ", "")
    for rows in (bundle.train, bundle.valid):
        expected = objective.tokenizer.rows(
            [prompt + text for texts in TEXTS for prompt, text in zip(before, texts, strict=True)]
        )
        assert objective.examples(rows).texts.tolist() == [row.ids for row in expected]
    assert "prompts: text 'w6 w5 ', pair 'w4 '" in reports


def test_prompts_without_a_column_are_not_used_and_this_is_reported(tmp_path):
    reports, plain = [], build(tmp_path)
    bundle = build(tmp_path, reports=reports, prompts=PROMPTS)
    ids, expected = (each.objective.examples(each.train).texts.tolist() for each in (bundle, plain))
    assert ids == expected
    assert any(
        line.startswith("prompts of the model, not used in training: query, document")
        for line in reports
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"prompt_of": {"text": "query"}},
            r"task\.prompt_of\.text: 'query' is no prompt; known: none",
        ),
        (
            {"prompts": PROMPTS, "prompt_of": {"text": "queri"}},
            "'queri' is no prompt; known: query, document",
        ),
        (
            {"prompts": PROMPTS, "prompt_of": {"txt": "query"}},
            r"task\.prompt_of\.txt: .*did you mean 'text'",
        ),
        ({"default_prompt": "query"}, r"task\.default_prompt: 'query' is no prompt"),
    ],
)
def test_unknown_prompts_and_columns_are_errors(settings, message, tmp_path):
    with pytest.raises(SettingsError, match=message):
        build(tmp_path, **settings)


@pytest.mark.slow
def test_the_settings_of_a_folder_of_sentence_transformers_outlast_training(tmp_path):
    options = {**TINY, "data.train": pairs(tmp_path / "rows.tsv"), "train.steps": 2}
    options |= {"train.validate_every": 2, "train.accumulate": 1}
    trifold.train("similarity", out=tmp_path / "first", **options)
    model = tmp_path / "first" / "model"
    kept = {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    (model / "config_sentence_transformers.json").write_text(json.dumps(kept))
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    options = {key: value for key, value in options.items() if not key.startswith("model.")}
    options |= {"start_from": str(model), "task.prompt_of": {"text": "query", "pair": "document"}}
    trifold.train("similarity", out=tmp_path / "second", **options)
    file = tmp_path / "second" / "model" / "config_sentence_transformers.json"
    assert json.loads(file.read_text()) == kept
    assert trifold.load(tmp_path / "second").modules == trifold.load(model).modules
    (model / "1_Pooling" / "config.json").write_text('{"include_prompt": false}')
    with pytest.raises(SettingsError, match=r"include_prompt False, which training does"):
        trifold.train("similarity", out=tmp_path / "third", **options)


@pytest.mark.parametrize(
    ("loss", "columns"), [("ranking", {"negative": True}), ("cosent", {"score": True})]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_micro_batches_have_the_gradient_of_the_global_batch(loss, columns, workers, tmp_path):
    bundle = build(tmp_path, loss, **columns)
    objective, examples = bundle.objective, bundle.objective.examples(bundle.train)
    assert objective.gathers
    gradients, values = [], []
    for parts in ([range(12)], [range(5), range(5, 7), range(7, 12)]):
        machine = Machine(torch.device("cpu"), torch.float32, workers)
        trainer = Trainer(random_model(bundle.config), objective, TrainSettings(), machine)
        trainer.optimizer.step = lambda gradient, rate: gradients.append(gradient.clone())
        values.append(
            trainer.update([objective.batch(examples, np.array(part)) for part in parts], 1).loss
        )
        trainer.close()
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    whole = objective.table_loss(
        objective.table(random_model(bundle.config), objective.batch(examples, np.arange(12)))
    )
    assert values[0] == pytest.approx(float(whole.detach()), rel=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-6)
    assert gradients[0].abs().max() > 0


def test_both_passes_draw_the_same_dropout(tmp_path, monkeypatch):
    bundle = build(tmp_path, "ranking", dropout=0.5)
    objective, examples, tables = bundle.objective, bundle.objective.examples(bundle.train), []
    table = objective.table
    objective.table = lambda model, batch: tables.append(table(model, batch)) or tables[-1]
    trainer = Trainer(
        random_model(bundle.config),
        objective,
        TrainSettings(),
        Machine(torch.device("cpu"), torch.float32, 1),
    )
    trainer.update([objective.batch(examples, np.arange(n, n + 6)) for n in (0, 6)], 1)
    assert not torch.equal(tables[0], tables[1])
    for first, second in zip(tables[:2], tables[2:], strict=True):
        assert not first.requires_grad and second.requires_grad
        torch.testing.assert_close(first, second.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "loss", "best_by"),
    [
        ({"score": True}, "cosent", "pearson"),
        ({"negative": True}, "ranking", "accuracy"),
        ({}, "ranking", "mrr"),
        ({"score": True, "negative": True}, "cosent", "pearson"),
    ],
)
def test_the_columns_choose_the_loss_which_is_reported(columns, loss, best_by, tmp_path):
    reports = []
    bundle = build(tmp_path, reports=reports, **columns)
    settings = bundle.objective.settings
    assert (settings.loss, settings.best_by) == (loss, best_by)
    assert f"loss: {loss}" in reports


@pytest.mark.parametrize(
    ("loss", "column"), [("cosent", "label"), ("cosine", "label"), ("triplet", "negative")]
)
def test_a_loss_without_its_column_is_an_error(loss, column, tmp_path):
    with pytest.raises(
        SettingsError, match=rf"task.loss: {loss} requires a column; set data.columns.{column}"
    ):
        build(tmp_path, loss)


def build_rows(folder, rows, loss="auto", reports=None, **columns):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings.parse({"train": str(file), "valid": str(file), "columns": columns})
    parts = TokenizerSettings.parse(WORDS), ModelConfig.parse(ENCODER), BatchSettings()
    return EmbedSettings(loss=loss).build(
        BuildContext(
            data, *parts, 1, folder / "tokens", ([] if reports is None else reports).append
        )
    )


@pytest.mark.parametrize(
    "names", [("question1", "question2", "is_duplicate"), ("#1 String", "#2 String", "Quality")]
)
def test_binary_labels_are_scores(names, tmp_path):
    rows = [dict(zip(names, (*texts[:2], n % 2), strict=True)) for n, texts in enumerate(TEXTS)]
    bundle = build_rows(tmp_path, rows)
    assert bundle.objective.settings.loss == "cosent"
    assert bundle.objective.examples(bundle.valid).labels.tolist() == [n % 2 for n in range(12)]


@pytest.mark.parametrize("column", ["label", "gold_label"])
def test_classes_of_inference_are_not_trained_as_scores(column, tmp_path):
    rows = [
        {"premise": one, "hypothesis": other, column: n % 3}
        for n, (one, other, _) in enumerate(TEXTS)
    ]
    with pytest.raises(SettingsError, match=rf"data\.columns\.label: '{column}' .* is a class"):
        build_rows(tmp_path, rows)
    assert build_rows(tmp_path, rows, label=column).objective.settings.loss == "cosent"
    assert build_rows(tmp_path, rows, label=None).objective.settings.loss == "ranking"


def test_a_row_without_the_negative_of_others_is_an_error_with_its_line(tmp_path):
    rows = [dict(zip(("anchor", "positive", "negative"), texts, strict=True)) for texts in TEXTS]
    del rows[4]["negative"]
    with pytest.raises(DataError, match=r"rows\.jsonl:5: a text is missing"):
        build_rows(tmp_path, rows)


def test_a_first_row_without_score_or_negative_does_not_hide_those_of_others(tmp_path):
    names = ("sentence1", "sentence2", "score")
    rows = [dict(zip(names, (*texts[:2], 0.0), strict=True)) for texts in TEXTS]
    del rows[0]["score"]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the label None is not a number"):
        build_rows(tmp_path, rows)
    rows = [dict(zip(("anchor", "positive", "negative"), texts, strict=True)) for texts in TEXTS]
    del rows[0]["negative"]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: a text is missing"):
        build_rows(tmp_path, rows)


def test_a_score_that_is_no_number_is_an_error_with_its_line(tmp_path):
    rows = [{"sentence1": one, "sentence2": other, "score": "high"} for one, other, _ in TEXTS]
    with pytest.raises(
        DataError, match=r"rows\.jsonl:1: the label 'high' is not a number; correct it"
    ):
        build_rows(tmp_path, rows)


@pytest.mark.slow
def test_pooling_and_normalization_are_those_of_start_from_unless_set(tmp_path):
    file = pairs(tmp_path / "rows.tsv", score=True)
    options = {
        **TINY,
        "data.train": file,
        "train.steps": 2,
        "train.validate_every": 2,
        "train.accumulate": 1,
    }
    first = options | {"task.pooling": "max", "task.normalise": True}
    trifold.train("similarity", out=tmp_path / "first", **first)
    again = {key: value for key, value in options.items() if not key.startswith("model.")}
    again |= {"start_from": str(tmp_path / "first" / "model")}
    trifold.train("similarity", out=tmp_path / "second", **again)
    modules = trifold.load(tmp_path / "second").modules
    assert (modules.pooling, modules.normalise) == ("max", True)
    vector = trifold.load(tmp_path / "second").embed("w1 w2")
    assert float(vector.norm()) == pytest.approx(1, abs=1e-5)
    trifold.train("similarity", out=tmp_path / "third", **again, **{"task.pooling": "mean"})
    modules = trifold.load(tmp_path / "third").modules
    assert (modules.pooling, modules.normalise) == ("mean", True)


def test_a_missing_text_is_an_error(tmp_path):
    bundle = build(tmp_path, negative=True)
    bundle.valid.columns["negative"][3] = None
    with pytest.raises(DataError, match=r"rows.tsv:5: a text is missing"):
        bundle.objective.examples(bundle.valid)


def cosine(a, b):
    return float(a @ b / a.norm() / b.norm())


def test_scores_are_those_of_the_vectors_of_single_texts(tmp_path):
    """So vectors of one text equal those of many."""
    for columns in ({"score": True}, {"negative": True}, {}):
        bundle = build(tmp_path, "auto", **columns)
        objective, model = bundle.objective, random_model(bundle.config).eval()
        examples = objective.examples(bundle.valid)
        result = objective.evaluate(model, bundle.valid, examples, eval_context(30))
        pipeline = Pipeline(model, objective.tokenizer)
        vectors = [[pipeline.embed(text) for text in texts] for texts in TEXTS]
        near = [cosine(a, b) for a, b, _ in vectors]
        if "score" in columns:
            labels = [n % 6 for n in range(12)]
            assert result.scores["pearson"] == pytest.approx(
                np.corrcoef(labels, near)[0, 1], abs=1e-4
            )
        elif "negative" in columns:
            right = [own > cosine(a, c) for own, (a, _, c) in zip(near, vectors, strict=True)]
            assert result.scores == {"accuracy": pytest.approx(100 * np.mean(right))}
        else:
            table = np.array([[cosine(a, b) for _, b, _ in vectors] for a, _, _ in vectors])
            ranks = 1 + (table > np.array(near)[:, None] + 1e-6).sum(1)
            assert result.scores["recall_at_1"] == pytest.approx(100 * np.mean(ranks == 1))
            assert result.scores["mrr"] == pytest.approx(100 * np.mean(1 / ranks))


class PairOfRanks(Ranks):
    """Two ranks in threads of one process."""

    world = 2
    barrier = threading.Barrier(2)
    shared: ClassVar = {}

    def __init__(self, rank):
        self.rank = rank

    def all_reduce(self, vector):
        self.shared[self.rank] = vector.clone()
        self.barrier.wait(10)
        vector.copy_(self.shared[0] + self.shared[1])
        self.barrier.wait(10)

    def sum(self, values):
        self.all_reduce(sums := torch.tensor(values, dtype=torch.float64))
        return sums.tolist()


@pytest.mark.parametrize("split", [((range(5), range(5, 7)), (range(7, 12),)), ((range(12),), ())])
def test_ranks_have_the_gradient_of_the_global_batch(split, tmp_path):
    bundle = build(tmp_path, "ranking", negative=True)
    objective, examples, gradients = bundle.objective, bundle.objective.examples(bundle.train), {}

    def learn(name, ranks, parts):
        machine = Machine(torch.device("cpu"), torch.float32, 1, ranks)
        trainer = Trainer(model := deepcopy(random), objective, TrainSettings(), machine)
        assert model is trainer.model
        trainer.optimizer.step = lambda gradient, rate: gradients.update({name: gradient.clone()})
        idle = [] if parts else [objective.batch(examples, np.arange(1))]
        trainer.update([objective.batch(examples, np.array(part)) for part in parts], 1, idle=idle)

    random = random_model(bundle.config)
    threads = [threading.Thread(target=learn, args=(n, PairOfRanks(n), split[n])) for n in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    learn("whole", SINGLE, [range(12)])
    torch.testing.assert_close(gradients[0], gradients["whole"], rtol=1e-3, atol=1e-6)
    assert torch.equal(gradients[0], gradients[1])


TINY = {
    "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 32, "model.dropout": 0.1,
    "train.device": "cpu", "train.precision": "float32", "train.steps": 8, "train.warmup": 1, "batch.rows": 4,
    "train.validate_every": 4, "train.save_every": 2, "train.accumulate": 2, "train.log_every": 1, "data.holdout": 3,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_is_equal_and_its_model_gives_the_vectors_of_sentence_transformers(tmp_path):
    options = TINY | {"data.train": pairs(tmp_path / "rows.tsv", score=True), "task.pooling": "max"}
    trifold.train("similarity", out=tmp_path / "whole", **options)
    for stop in (3, 4):
        trifold.train(
            "similarity",
            out=tmp_path / "run",
            resume="auto",
            view=InterruptingView(stop),
            **options,
        )
    trifold.train("similarity", out=tmp_path / "run", resume="auto", **options)
    assert_equal_runs(tmp_path / "run", tmp_path / "whole")

    texts = ["w1 w2 w3", "w4", "w5 w1 " * 40]
    pipeline = trifold.load(tmp_path / "run")
    assert pipeline.modules.pooling == "max"
    vectors = torch.stack(pipeline.embed(texts))
    assert torch.equal(vectors, torch.stack(pipeline.embed(texts, pooling="max")))
    printed = run_command("predict", str(tmp_path / "run"), texts[0], "--json").out
    assert json.loads(printed)["outputs"] == pytest.approx(vectors[0].tolist(), abs=1e-6)
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    torch.testing.assert_close(
        theirs.encode(texts, convert_to_tensor=True), vectors, rtol=0, atol=1e-5
    )


def test_scores_become_at_most_one(tmp_path):
    bundle = build(tmp_path, "cosine", score=True)
    assert bundle.objective.top == 5
    assert bundle.objective.examples(bundle.valid).labels.tolist() == pytest.approx(
        [n % 6 / 5 for n in range(12)]
    )
