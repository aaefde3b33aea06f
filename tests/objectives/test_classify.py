"""Classification: batches, loss, scores and labels."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from tests.objectives.common import random_model
from torch.nn import functional as F

import trifold
from trifold.batches import BatchSettings
from trifold.data import DataSettings, Rows, read_records
from trifold.errors import DataError, SettingsError
from trifold.generation_config import GenerationConfig
from trifold.nn import Inputs, ModelConfig
from trifold.objectives.classify import Classify, ClassifySettings
from trifold.objectives.evaluation import EvalContext
from trifold.objectives.labels import ROLES, label_sets, read_label, sort_labels
from trifold.predict.model_reader import ModelReader
from trifold.recipe import load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train.data import load_data
from trifold.train.monitor import View

TEXTS = ["good and fine", "bad", "so bad it is good", "fine", "it is bad and it is sad"]
LABELS = ["glad", "sad", "glad", "glad", "sad"]
READS = ("pooler", "first", "last", "eos")


def rows(texts=TEXTS, labels=LABELS, pairs=None):
    columns = {"text": list(texts), "pair": pairs or [None] * len(texts), "label": list(labels)}
    return Rows(columns, list(range(1, len(texts) + 1)))


@pytest.fixture(scope="module")
def tokenizer():
    settings = TokenizerSettings(
        kind="word", vocab_size=40, min_frequency=1, special=["cls", "sep"]
    )
    return train_tokenizer(TEXTS, settings)


def model_of(tokenizer, reads="pooler", shape="encoder", **more):
    names = None if "n_labels" in more else ["glad", "sad"]
    config = ModelConfig(
        shape=shape, vocab_size=tokenizer.vocab_size, max_positions=16, positions="learned", d_model=16, n_layers=2,
        n_heads=2, d_ff=24, dropout=0.0, heads=["pooler", "sequence"] if reads == "pooler" else ["sequence"],
        classifier_input=reads, label_names=names, eos_id=tokenizer.sep_id, pad_id=tokenizer.pad_id,
        **more,
    )  # fmt: skip
    return random_model(config)


def r_drop_loss(objective, model, batch):
    terms = objective.loss(model, batch)
    assert objective.counts(batch) == {name: term.count for name, term in terms.items()}
    return sum(term.weight * term.sum / term.count for term in terms.values())


def test_without_dropout_r_drop_has_the_gradient_of_cross_entropy(tokenizer):
    model = model_of(tokenizer).train()
    plain = Classify(ClassifySettings(), tokenizer, model.config)
    batch = plain.batch(plain.examples(rows()), np.arange(5))
    ours = Classify(ClassifySettings(r_drop=3.0), tokenizer, model.config)
    parameters = list(model.parameters())
    losses = [r_drop_loss(each, model, batch) for each in (ours, plain)]
    assert torch.equal(*losses)
    for pair in zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True):
        assert torch.allclose(*pair, atol=1e-6)


def test_r_drop_is_the_mean_loss_and_the_symmetric_divergence_of_two_passes(tokenizer, monkeypatch):
    model = model_of(tokenizer)
    objective = Classify(ClassifySettings(r_drop=0.7, label_smoothing=0.1), tokenizer, model.config)
    batch = objective.batch(objective.examples(rows()), np.arange(5))
    passes = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(1))
    logits = iter(passes)
    monkeypatch.setattr(objective, "_of_rows", lambda *_: next(logits))
    p, q = (torch.distributions.Categorical(logits=each) for each in passes)
    kl = torch.distributions.kl_divergence
    entropies = [F.cross_entropy(each, batch.labels, label_smoothing=0.1) for each in passes]
    expected = sum(entropies) / 2 + 0.7 * (kl(p, q) + kl(q, p)).mean() / 2
    assert torch.allclose(r_drop_loss(objective, model, batch), expected)


def test_r_drop_requires_one_label_per_text(tokenizer):
    config = model_of(tokenizer, n_labels=1, problem_type="regression").config
    with pytest.raises(
        SettingsError, match=r"task\.r_drop: has no effect with model\.problem_type=regression"
    ):
        Classify(ClassifySettings(r_drop=1.0), tokenizer, config)


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_packed_logits_equal_those_of_single_texts(tokenizer, reads, shape):
    model = model_of(tokenizer, reads, shape)
    objective = Classify(ClassifySettings(), tokenizer, model.config)
    examples = objective.examples(rows())
    batch = objective.batch(examples, np.array([4, 0, 2, 1, 3]))
    found = objective.logits(model, batch)
    for place, row in enumerate([4, 0, 2, 1, 3]):
        ids = torch.tensor([tokenizer.rows([TEXTS[row]])[0].ids])
        alone = model.head_outputs(Inputs(ids), heads=["sequence"])["sequence"][0]
        assert torch.allclose(found[place], alone, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_a_sum_of_cross_entropies(tokenizer, smoothing):
    model = model_of(tokenizer)
    objective = Classify(ClassifySettings(label_smoothing=smoothing), tokenizer, model.config)
    batch = objective.batch(objective.examples(rows()), np.arange(5))
    term = objective.loss(model, batch)["tokens"]
    logits = objective.logits(model, batch)
    assert objective.counts(batch) == {"tokens": 5} == {"tokens": term.count}
    expected = F.cross_entropy(
        logits, batch.labels, reduction="none", label_smoothing=smoothing
    ).sum()
    assert torch.allclose(term.sum, expected)
    plain = term.sum if term.nll is None else term.nll
    assert torch.allclose(plain, F.cross_entropy(logits, batch.labels, reduction="sum"))


def test_long_texts_are_truncated_and_counted(tokenizer):
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config, 5)
    examples = objective.examples(rows())
    assert examples.lengths.max() == 5
    ends = examples.texts.ids[examples.texts.starts[1:] - 1]
    assert (ends == tokenizer.sep_id).all()  # what stands around a text stays
    assert str(objective.truncation).startswith("2 texts cut to fit, ")


def test_the_constant_answer_is_the_most_frequent_label_or_the_mean(tokenizer):
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config)
    labels = ["sad", "sad", "glad", "sad"]
    examples = objective.examples(rows(["a"] * 4, labels))
    assert objective.constant_answer(examples) == ("always answering 'sad'", "accuracy", 75.0)
    config = model_of(tokenizer, n_labels=1, problem_type="regression").config
    numbers = Classify(ClassifySettings(), tokenizer, config)
    examples = numbers.examples(rows(["a"] * 4, ["1", "2", "3", "6"]))
    assert numbers.constant_answer(examples) == ("always answering the mean", "loss", 3.5)


@pytest.mark.parametrize("types", [0, 2])
def test_packed_logits_of_pairs_equal_those_of_prediction(tokenizer, types):
    more = {"n_token_types": types} if types else {}
    model, seconds = (
        model_of(tokenizer, **more),
        ["bad", "it is sad", "good", "fine and good", "bad"],
    )
    objective = Classify(ClassifySettings(), tokenizer, model.config, pairs=True)
    found = objective.logits(
        model, objective.batch(objective.examples(rows(pairs=seconds)), np.array([2, 4, 0]))
    )
    reader = ModelReader(model, tokenizer)
    alone = reader.run(TEXTS, seconds, reader.head("sequence"))
    assert all(
        torch.allclose(found[place], alone[row], atol=1e-5) for place, row in enumerate([2, 4, 0])
    )
    swapped = objective.logits(
        model, objective.batch(objective.examples(rows(seconds, pairs=TEXTS)), np.arange(1))
    )
    assert not torch.allclose(swapped[0], found[2], atol=1e-3)


@pytest.mark.parametrize(
    ("pairs", "message"), [(True, "1: no second text"), (False, "1: a second text")]
)
def test_second_texts_are_in_all_rows_or_in_none(tokenizer, pairs, message):
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config, pairs=pairs)
    with pytest.raises(DataError, match=message):
        objective.examples(rows(pairs=None if pairs else TEXTS))


def test_labels_that_training_has_not_count_as_wrong(tokenizer):
    lines, model = [], model_of(tokenizer).eval()
    objective = Classify(ClassifySettings(), tokenizer, model.config, None, lines.append)
    known = evaluate(objective, model, rows())
    more = rows([*TEXTS, "fine", "bad"], [*LABELS, "angry", "odd"])
    found = evaluate(objective, model, more)
    assert found.scores["accuracy"] == pytest.approx(known.scores["accuracy"] * 5 / 7)
    assert found.loss == pytest.approx(known.loss)
    metrics = pytest.importorskip("sklearn.metrics")
    truth = [*LABELS, "angry", "odd"]
    predictions = [
        objective.config.labels[int(row.argmax())] for row in all_logits(objective, model, more)
    ]
    assert found.scores["macro_f1"] == pytest.approx(
        100 * metrics.f1_score(truth, predictions, average="macro")
    )
    assert found.scores["matthews"] == pytest.approx(metrics.matthews_corrcoef(truth, predictions))
    assert lines == [
        "nothing: 2 rows with labels not seen in training, counted as wrong: angry, odd"
    ]


def all_logits(objective, model, records):
    batch = objective.batch(objective.examples(records), np.arange(len(records)))
    return objective.logits(model, batch).detach()


def evaluate(objective, model, records):
    context = EvalContext(BatchSettings(tokens=20), GenerationConfig(), 2, 1, lambda: None)
    return objective.evaluate(model, records, objective.examples(records), context)


# --- several labels, numbers, weights -------------------------------------------------------------


def test_the_loss_of_several_labels_is_a_sum_over_all(tokenizer):
    config = {"problem_type": "multi_label_classification"}
    model = model_of(tokenizer, **config).eval()
    objective = Classify(ClassifySettings(), tokenizer, model.config)
    records = rows(labels=["glad,sad", "", ["sad"], "glad , sad", "sad"])
    batch = objective.batch(objective.examples(records), np.arange(5))
    assert batch.labels.tolist() == [[1, 1], [0, 0], [0, 1], [1, 1], [0, 1]]
    probabilities = objective.logits(model, batch).sigmoid()
    expected = -torch.where(batch.labels > 0, probabilities, 1 - probabilities).log().sum()
    assert torch.allclose(objective.loss(model, batch)["tokens"].sum, expected, rtol=1e-5)
    found = evaluate(objective, model, rows(labels=["glad,sad", "", ["sad"], "glad , sad", "odd"]))
    metrics = pytest.importorskip("sklearn.metrics")
    truth = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]])
    predictions = np.pad((probabilities > 0.5).numpy(), ((0, 0), (0, 1)))
    expected = {
        kind: metrics.f1_score(truth, predictions, average=kind, zero_division=0)
        for kind in ("micro", "macro")
    }
    assert found.value == found.scores["micro_f1"] == pytest.approx(100 * expected["micro"])
    assert found.scores["macro_f1"] == pytest.approx(100 * expected["macro"])
    assert found.samples[0].reference == "glad, sad"


def test_regression_predicts_numbers(tokenizer):
    model = model_of(tokenizer, problem_type="regression", n_labels=1).eval()
    objective = Classify(ClassifySettings(), tokenizer, model.config)
    records = rows(labels=["0.5", "1", "-2e1", "3", "2.25"])
    batch = objective.batch(objective.examples(records), np.arange(5))
    outputs = objective.logits(model, batch)[:, 0].detach()
    labels = torch.tensor([0.5, 1, -20, 3, 2.25])
    assert torch.allclose(
        objective.loss(model, batch)["tokens"].sum, ((outputs - labels) ** 2).sum(), rtol=1e-5
    )
    found = evaluate(objective, model, records)
    stats = pytest.importorskip("scipy.stats")
    assert (
        found.value
        == found.scores["pearson"]
        == pytest.approx(stats.pearsonr(labels, outputs)[0], abs=1e-5)
    )
    assert found.scores["spearman"] == pytest.approx(stats.spearmanr(labels, outputs)[0], abs=1e-9)


@pytest.mark.slow
def test_a_regression_on_pairs_trains_and_scores(tmp_path):
    path = tmp_path / "pairs.tsv"
    lines = [f"word {n}\tword {n % 3}\t{n % 3 + 0.5}\n" for n in range(24)]
    path.write_text("sentence1\tsentence2\tscore\n" + "".join(lines), encoding="utf-8")
    files = {"data.train": str(path), "data.valid": str(path), "data.test": None}
    settings = {key: value for key, value in SMALL.items() if not key.startswith("data.")} | files
    steps = {
        "train.steps": 40,
        "train.validate_every": 40,
        "train.save_every": 40,
        "train.samples": 1,
    }
    outcome = trifold.train("classify", out=tmp_path / "run", **settings, **steps)
    assert outcome.scores["pearson"] > 0.9
    from tests.command_line import run_command

    assert (
        "mean squared error\npearson " in run_command("eval", str(tmp_path / "run"), str(path)).out
    )
    found = run_command("predict", str(tmp_path / "run"), "word 5", "--pair", "word 2").out
    assert found.startswith("score ")


def test_class_weights_are_factors_of_the_loss(tokenizer):
    model = model_of(tokenizer).eval()

    def loss(weights, texts=TEXTS, labels=LABELS):
        settings = ClassifySettings(class_weights=weights)
        objective = Classify(settings, tokenizer, model.config, train=rows())
        batch = objective.batch(objective.examples(rows(texts, labels)), np.arange(len(texts)))
        term = objective.loss(model, batch)["tokens"]
        return float(term.sum.detach()), float(term.nll)

    whole, glad = loss(None), loss(None, [TEXTS[0], TEXTS[2], TEXTS[3]], ["glad"] * 3)
    assert loss({"sad": 3.0}) == pytest.approx((3 * whole[0] - 2 * glad[0], whole[1]), rel=1e-5)
    balanced = 5 / (2 * 3) * glad[0] + 5 / (2 * 2) * (whole[0] - glad[0])
    assert loss("balanced") == pytest.approx((balanced, whole[1]), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        (
            {"best_by": "pearson"},
            {},
            r"task\.best_by: pearson is no score of single_label.*choose loss, accuracy",
        ),
        (
            {"best_by": "f1"},
            {"n_labels": 3, "label_names": ["a", "b", "c"]},
            r"task\.best_by: f1 .* with 3 labels",
        ),
        (
            {"class_weights": "balanced"},
            {"problem_type": "multi_label_classification"},
            r"task\.class_weights: has no",
        ),
        (
            {"label_smoothing": 0.1},
            {"problem_type": "multi_label_classification"},
            r"task\.label_smoothing: has no",
        ),
        (
            {"class_weights": {"gald": 2.0}},
            {},
            r"task\.class_weights\.gald: no such label; did you mean 'glad'",
        ),
    ],
)
def test_settings_that_do_not_fit_the_problem_are_errors(tokenizer, settings, config, message):
    config = model_of(tokenizer).config.model_copy(update=config)
    with pytest.raises(SettingsError, match=message):
        Classify(ClassifySettings(**settings), tokenizer, config, train=rows())


@pytest.mark.parametrize(
    ("labels", "problem", "message"),
    [
        (
            [["a"], "b"],
            "single_label_classification",
            "nothing:1: a list of labels; set model.problem_type",
        ),
        (["1.5", "much"], "regression", "nothing:2: the label 'much' is not a number"),
        (["1.5", "nan"], "regression", "nothing:2: the label 'nan' is not a number"),
        ([["1"], "2"], "regression", r"nothing:1: the label \['1'\] is not a number"),
    ],
)
def test_labels_that_do_not_fit_the_problem_are_errors_with_their_line(
    tokenizer, labels, problem, message
):
    config = model_of(tokenizer).config.model_copy(update={"problem_type": problem})
    with pytest.raises(DataError, match=message):
        Classify(ClassifySettings(), tokenizer, config).examples(rows(["good", "bad"], labels))


def test_labels_are_read_from_text_numbers_and_lists():
    found = [read_label(value, "here") for value in ("a", 3, 1.5, True, [1, "b"], [])]
    assert found == ["a", "3", "1.5", "True", ["1", "b"], []]
    for value in ({"a": 1}, [None]):
        with pytest.raises(DataError, match="here is "):
            read_label(value, "here")
    assert label_sets(rows(["x"], ["a; b;;c"]), "multi_label_classification", ";") == [
        ["a", "b", "c"]
    ]


def test_a_missing_head_is_an_error(tokenizer):
    config = model_of(tokenizer).config.model_copy(update={"heads": ("lm",)})
    problem = "model.heads: pooler, sequence is missing; set model.heads=[pooler, sequence]"
    assert ClassifySettings().model_problem(config) == problem


def test_a_missing_end_token_is_an_error(tokenizer):
    config = model_of(tokenizer, "eos").config.model_copy(update={"eos_id": tokenizer.unk_id})
    objective = Classify(ClassifySettings(), tokenizer, config)
    with pytest.raises(SettingsError, match="classifier_input"):
        objective.batch(objective.examples(rows()), np.arange(5))


# --- labels and scores ----------------------------------------------------------------------------


def test_labels_are_sorted_by_name_and_number():
    assert sort_labels(["10 stars", "2 stars", "1 star", "2 stars"]) == (
        "1 star",
        "2 stars",
        "10 stars",
    )
    assert sort_labels([f"LABEL_{n}" for n in range(12)]) == tuple(f"LABEL_{n}" for n in range(12))
    assert sort_labels(["b", "1", "a", "", "01"]) == sort_labels(["01", "", "a", "1", "b"])


# --- runs -----------------------------------------------------------------------------------------

SMALL = {
    "model.d_model": 16, "model.n_heads": 2, "model.n_layers": 1, "model.d_ff": 32, "model.dropout": 0.0,
    "model.max_positions": 32, "tokenizer.vocab_size": 60, "tokenizer.kind": "word", "batch.tokens": 256,
    "train.device": "cpu", "train.precision": "float32", "train.warmup": 5, "train.learning_rate": 0.02,
    "data.source": "text", "data.target": "label",
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """Texts with one word that determines the label."""
    lines = [
        {"text": f"some {word} words of {other} sort {n}", "label": label}
        for word, label in (("merry", "3 glad"), ("dull", "20 sad"), ("odd", "100 odd"))
        for other in ("this", "that", "any")
        for n in range(6)
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_trained_classifier_loads_and_predicts(table, tmp_path):
    settings = SMALL | {"data.train": str(table), "data.valid": str(table), "data.test": str(table)}
    steps = {
        "train.steps": 60,
        "train.validate_every": 60,
        "train.save_every": 60,
        "train.samples": 1,
    }
    outcome = trifold.train("demo-read-translations", out=tmp_path / "run", **settings, **steps)
    assert outcome.scores == pytest.approx({"accuracy": 100.0, "macro_f1": 100.0, "matthews": 1.0})
    loaded = trifold.load(tmp_path / "run")
    assert loaded.config.labels == ("3 glad", "20 sad", "100 odd")
    found = loaded.classify(["some dull words", "some odd words"])
    assert [candidates[0].label for candidates in found] == ["20 sad", "100 odd"]
    from tests.command_line import run_command

    result = json.loads(run_command("eval", str(tmp_path / "run"), "--json").out)
    assert result["scores"] == outcome.scores
    assert run_command("eval", str(tmp_path / "run")).out.splitlines()[0].endswith(" nats per text")
    written = tmp_path / "run" / "samples" / "step-00000060.scores.txt"
    assert written.read_text("utf-8") == "accuracy 100.00\nmacro f1 100.00\nmatthews 1.000\n"


@pytest.mark.slow
def test_training_starts_from_a_masked_language_model(table, tmp_path):
    raw = {key: value for key, value in SMALL.items() if key not in ("data.source", "data.target")}
    steps = {"train.steps": 6, "train.validate_every": 6, "train.save_every": 6}
    first, files = tmp_path / "first", {"data.train": str(table), "data.valid": str(table)}
    trifold.train("demo-read", out=first, **raw, **steps, **files)
    own = {"tokenizer.file": str(first / "model"), "train.start_from": str(first)}
    few = {
        "train.steps": 2,
        "train.learning_rate": 1e-12,
        "train.warmup": 0,
        "train.validate_every": 2,
    }
    trifold.train(
        "demo-read-translations", out=tmp_path / "second", **SMALL | own | few | files,
        **{"data.test": None, "train.save_every": 1},
    )  # fmt: skip
    before, after = (
        dict(trifold.load(tmp_path / run).model.named_parameters()) for run in ("first", "second")
    )
    shared = [name for name in before if not name.startswith(("heads.", "lm_head."))]
    assert shared
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in shared)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "model.shape": "encoder-decoder",
                "model.heads": None,
                "model.classifier_input": "first",
            },
            "model.shape",
        ),
        (
            {"model.shape": "decoder", "model.heads": None, "model.classifier_input": "pooler"},
            r"model: classifier_input: pooler needs pooler in heads",
        ),
        ({"data.valid": None}, "data.valid"),
        ({"data.target": "nothing"}, "nothing"),
        (
            {"model.problem_type": "regression"},
            r"labels.jsonl:1: the label '3 glad' is not a number",
        ),
        (
            {
                "model.label_names": ["3 glad", "20 sad"],
                "model.n_labels": 2,
                "data.valid": None,
                "data.holdout": 9,
            },
            "the label '100 odd' is not in model.label_names",
        ),
    ],
)
def test_contradictory_settings_are_errors(table, tmp_path, changes, words):
    settings = (
        SMALL | {"data.train": str(table), "data.valid": str(table), "data.test": None} | changes
    )
    with pytest.raises(trifold.errors.TrifoldError, match=words):
        trifold.train("demo-read-translations", out=tmp_path / "run", **settings)


def test_swapped_columns_are_pointed_out(tmp_path):
    path = tmp_path / "swapped.tsv"
    path.write_text(
        "".join(f"pos\ttext {n}\nneg\tother {n}\n" for n in range(50)), encoding="utf-8"
    )
    settings = SMALL | {
        "data.train": str(path),
        "data.holdout": 5,
        "data.valid": None,
        "data.test": None,
    }
    with pytest.raises(
        DataError, match=r"2 different texts with 9. different labels; .* likely swapped"
    ):
        trifold.train(
            "demo-read-translations",
            out=tmp_path / "run",
            **settings | {"data.source": 0, "data.target": 1},
        )


@pytest.fixture
def report_of(tmp_path):
    """The lines reported about the data of a file with this content, used for training and
    validation.
    """

    def read(content, **changes):
        path, lines, view = tmp_path / "rows.tsv", [], View()
        path.write_text(content, encoding="utf-8")
        files = {"data.train": str(path), "data.valid": str(path), "data.test": None}
        recipe = load_recipe(
            "demo-read-translations", SMALL | files | {"data.source": 0, "data.target": 1} | changes
        )
        view.say = lines.append
        with suppress(DataError):  # a label of the validation rows that is not in the training rows
            load_data(recipe, tmp_path / "tokenizer", view)
        return lines

    return read


@pytest.mark.parametrize(
    "names", [[f"label{n} {'x' * 99}" for n in range(100)], [f"name{n}" for n in range(30)]]
)
def test_few_of_many_labels_are_reported(report_of, names):
    lines = report_of("".join(f"text {n}\t{name}\n" for n, name in enumerate(names * 2)))
    (reported,) = (line for line in lines if line.startswith("labels: "))
    assert names[0][:20] in reported
    assert reported.endswith(f" … ({len(names)} labels)")
    assert 40 < len(reported) <= 80


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (
            "good bad good good bad",
            "shares (rows.tsv): good 60 %, bad 40 %; always answering 'good' has accuracy 60.0; "
            "f1 is that of 'good'",
        ),
        ("a b b b", "shares (rows.tsv): b 75 %, a 25 %; always answering 'b' has accuracy 75.0; f1 is that of 'b'"),
        ("1 0 1", "shares (rows.tsv): 1 67 %, 0 33 %; always answering '1' has accuracy 66.7; f1 is that of '1'"),
        ("NA bad NA bad", "warning: 'NA' is learned as a label; if it says that there is none, leave the cell empty"),
        ("- bad - None", "warning: '-' or 'None' is learned as a label; if it says that there is none, leave the cell empty"),
        ("x y z x", "shares (rows.tsv): x 50 %, y 25 %, z 25 %; always answering 'x' has accuracy 50.0"),
        ("a b c d e f g g", "shares (rows.tsv): g 25 %; always answering 'g' has accuracy 25.0"),
    ],
)  # fmt: skip
def test_what_a_score_is_worth_is_reported(report_of, labels, line):
    lines = report_of("".join(f"text {n}\t{label}\n" for n, label in enumerate(labels.split())))
    assert line in lines


DATA = "".join(f"text {n}\t{n % 2}\n" for n in range(8))


@pytest.mark.parametrize(
    ("first", "changes", "warns"),
    [
        ("foo\tbar\n", {}, True),
        ("foo\tbar\n", {"data.valid": None, "data.holdout": 4}, True),
        ("foo\tbar\n", {"data.header": True}, False),
        ("foo\tbar\n", {"data.header": False}, False),
        ("text\tlabel\n", {}, False),
        ("foo\t1\n", {}, False),
    ],
)
def test_a_label_of_the_first_row_only_is_reported(report_of, first, changes, warns):
    lines = report_of(first + DATA, **changes)
    assert any("'bar' is in row 1 only" in line for line in lines) == warns


def test_a_header_that_joined_files_repeat_is_reported(report_of):
    lines = report_of(("foo\tbar\n" + DATA) * 2)
    assert any("'bar' is in row 1 only" in line for line in lines)


def test_labels_of_held_out_rows_are_labels(report_of):
    lines = report_of(DATA + "text\trare\n", **{"data.valid": None, "data.holdout": 8})
    assert "labels: 0, 1, rare" in lines


NUMBERS = "model.problem_type=regression predicts numbers"
SCORES = "text\t{}\n" + "".join(f"text {n}\t{7 * n}\n" for n in range(12))


@pytest.mark.parametrize(
    ("column", "factor", "changes"),
    [
        ("label", 1, {}),  # 0 to 11, the numbers of classes
        ("score", 7, {"model.problem_type": "single_label_classification"}),
        ("score", 7, {"model.problem_type": "regression"}),
    ],
)
def test_numbers_of_classes_and_a_chosen_problem_are_not_questioned(
    report_of, column, factor, changes
):
    rows = "".join(f"text {n}\t{factor * n}\n" for n in range(12))
    named = {"data.source": "source", "data.target": "target"}
    lines = report_of(f"text\t{column}\n{rows}", **named | changes)
    assert not any("whole numbers" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "changes", "line"),
    [
        ("text\tscore\na b\t0.5\nc\t3\n", {}, "'score' has decimals: regression"),
        (
            "text\tlabel\na b\t0.5\nc\t3\n",
            {},
            "warning: labels with decimals; model.problem_type=regression",
        ),
        (
            "text\tlabel\na b\t1\nc\t3\n",
            {"model.problem_type": "regression"},
            "numbers from 1 to 3: regression",
        ),
        ("text\tscore\na b\t1\nc\t3\n", {}, "labels: 1, 3"),
        ("text\tscore\na b\t1\nc\t3\n", {}, f"'score' has whole numbers: classes; {NUMBERS}"),
        (SCORES.format("label"), {}, f"'label' has whole numbers: classes; {NUMBERS}"),
        (
            "text\tlabel\na b\tx,y\nc\ty\n",
            {"model.problem_type": "multi_label_classification"},
            "labels: x, y",
        ),
    ],
)
def test_the_choice_of_the_problem_is_reported(report_of, content, changes, line):
    named = {"data.source": "source", "data.target": "target"}
    assert any(found.startswith(line) for found in report_of(content, **named | changes))


def test_a_single_label_is_an_error(tmp_path):
    path = tmp_path / "one.tsv"
    path.write_text("text\tlabel\na b\tx\nb c\tx\n", encoding="utf-8")
    with pytest.raises(DataError, match="the only label is 'x'"):
        trifold.train(
            "demo-read-translations",
            out=tmp_path / "run",
            **SMALL | {"data.train": str(path), "data.valid": str(path), "data.test": None},
        )


def test_pairs_without_a_gold_label_are_left_out(tmp_path):
    """As in SNLI, whose annotators do not agree on some pairs."""
    file = tmp_path / "snli.jsonl"
    lines = [
        {"gold_label": label, "sentence1": "a", "sentence2": "b"}
        for label in ("neutral", "-", "entailment")
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_records(str(file), DataSettings(), ROLES)
    assert found.columns["label"] == ["neutral", "entailment"]
    assert "1 without a label (left out)" in str(found.report)


def test_a_column_of_other_labels_is_an_error(tokenizer):
    objective = Classify(ClassifySettings(), tokenizer, model_of(tokenizer).config)
    with pytest.raises(DataError, match=r"no row has a label of the model .*but 'x' for example"):
        objective.examples(rows(["a", "b"], ["x", "y"]))
