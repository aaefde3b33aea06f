"""Advice after training and evaluation: each rule on the numbers of a real run, and none on those
of healthy ones.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from trifold.errors import wrapped
from trifold.folders import UntrustedPath
from trifold.objectives.evaluation import ConstantAnswer
from trifold.recipe import load_recipe
from trifold.train import advice
from trifold.train.advice import (
    OF_RUNS,
    OF_SCORES,
    FinishedRun,
    LossCurve,
    MeasuredScores,
    advise_run,
    advise_scores,
)

MAJORITY = ConstantAnswer("always answering 'bad'", "accuracy", 50.0)
SCORES = {"accuracy": 85.0, "macro_f1": 84.9, "matthews": 0.7}


def curve(train, valid, steps):
    """Losses at equal distances up to `steps`."""
    return LossCurve(
        *(
            [((at + 1) * steps // len(losses), loss) for at, loss in enumerate(losses)]
            for losses in (train, valid)
        )
    )


def finished(
    *losses,
    steps=100,
    scores=None,
    count=1_000,
    constant=MAJORITY,
    recipe=(),
    start_from=None,
    **facts,
):
    """A run with the training and the validation losses at equal distances."""
    overrides = {"model.dropout": 0.1, "train.steps": steps, "train.warmup": 10, **dict(recipe)}
    best = MeasuredScores(scores or SCORES, math.nan, count, "texts", constant)
    facts = {"best_step": steps, "epochs": 5, "rows": 9_000, **facts}
    # Loading it would look for the folder.
    chosen = load_recipe("smoke", overrides).model_copy(update={"start_from": start_from})
    return FinishedRun(chosen, "runs/r", curve(*losses, steps), best, steps=steps, **facts)


FALLING = [0.71, 0.62, 0.5, 0.42, 0.36]
HEALTHY = [0.62, 0.5, 0.44, 0.42, 0.41]
RISING = [0.582, 1.25, 1.37, 1.63, 1.73]  # 270 reviews
CASES = {
    "overfitting": (
        finished([0.71, 0.3, 0.1, 0.02, 0.006], RISING, best_step=20),
        "overfitting: validation loss rose from 0.582 (step 20) to 1.73, training loss fell; try "
        "more data, start_from=PRETRAINED or model.dropout=0.3",
    ),
    "overfitting, pretrained": (
        finished(
            [0.71, 0.3, 0.1, 0.02, 0.006], RISING, start_from="runs/a",
            recipe={"train.learning_rate": 0.003},
        ),
        "try more data, train.learning_rate=0.001 or model.dropout=0.3",
    ),
    "overfitting, much dropout": (
        finished(
            [0.71, 0.3, 0.1, 0.02, 0.006], RISING, recipe={"model.dropout": 0.4, "model.n_layers": 4}
        ),
        "try more data, start_from=PRETRAINED or model.n_layers=2",
    ),
    "repeated": (
        finished(FALLING, [0.5, 0.49, 0.5, 0.49, 0.5], best_step=40, epochs=27, rows=270),
        "each of the 270 training texts was seen 27 times, and nothing after step 40 was better; "
        "try more data",
    ),
    "plateau": (
        finished(
            FALLING, HEALTHY, best_step=40, stopped_by="patience", recipe={"train.patience": 1}
        ),
        "the score has not improved since step 40; try more data or train.patience=8",
    ),
    "flat, low rate": (
        finished([0.807, 0.806, 0.804], HEALTHY, recipe={"train.learning_rate": 1e-7}),
        "the training loss barely fell, from 0.807 to 0.804; try train.learning_rate=0.002",
    ),
    "flat, high rate": (
        finished([0.807, 0.806, 0.804], HEALTHY, recipe={"train.learning_rate": 0.1}),
        "try train.learning_rate=0.01, and check that texts and labels belong together",
    ),
    "diverged": (
        finished([0.7, 0.5, 0.4, 0.9, 1.3], HEALTHY, recipe={"train.learning_rate": 0.015}),
        "the training loss fell to 0.4 and rose to 1.3 again; try train.learning_rate=0.005",
    ),
    "diverged, and fallen since": (
        finished(
            [24.0, 64.8, 80.2, 53.0, 10.1], [53.7, 56.4, 26.0, 12.6, 6.0],
            recipe={"train.learning_rate": 1.0, "train.clip": None},
        ),
        "the training loss rose from 24 to 80.2; try train.learning_rate=0.002 and train.clip=1.0",
    ),
    "rejected": (
        finished(FALLING, HEALTHY, rejected=12, recipe={"train.learning_rate": 0.03}),
        "12 updates were rejected, whose losses were too high or no numbers; try "
        "train.learning_rate=0.002",
    ),
    "short": (
        finished([4.2], [3.1], steps=2, constant=None, scores={"pearson": 0.44}),
        "hardly trained: after 2 updates the weights are nearly random; try another run with "
        "train.steps=100 or more",
    ),
    "short, by minutes": (
        finished([4.2], [3.1], steps=1, stopped_by="minutes", recipe={"train.minutes": 1.0}),
        "after 1 update the weights are nearly random; try `trifold resume runs/r train.minutes=2`",
    ),
    "constant": (
        finished(FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03}),
        "accuracy 52.00 is not clearly better than always answering 'bad' (50.00); try more data "
        "or start_from=PRETRAINED, and check that labels belong to texts",
    ),
    "constant, impatient": (
        finished(
            FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03},
            stopped_by="patience", recipe={"train.patience": 5},
        ),
        "(50.00); try train.patience=10, more data or start_from=PRETRAINED",
    ),
    "constant, few epochs": (
        finished(
            FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03}, epochs=1,
            recipe={"train.schedule": "linear"},
        ),
        "(50.00); try another run with train.steps=200, or start_from=PRETRAINED",
    ),
    "constant, high rate": (
        finished(
            FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03},
            recipe={"train.learning_rate": 0.5},
        ),
        "(50.00); try train.learning_rate=0.002",
    ),
    "constant, fine-tuned": (
        finished(
            FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03}, start_from="runs/bert",
            recipe={"model.d_model": 64, "train.learning_rate": 0.0002},
        ),
        "(50.00); try train.learning_rate=0.002 (it was 0.0002), more data or another pretrained "
        "model",
    ),
    "constant, fine-tuned at the usual rate": (
        finished(
            FALLING, HEALTHY, scores={"accuracy": 52.0, "matthews": 0.03}, start_from="runs/bert",
            recipe={"model.d_model": 64, "train.learning_rate": 0.002},
        ),
        "(50.00); try train.learning_rate=0.006 (it was 0.002), more data or another",
    ),
    "known": (
        finished(FALLING, HEALTHY, known=400, recipe={"data.valid": "a.tsv", "data.holdout": 0}),
        "400 of 1,000 validation texts are also in the training data, so the score is too good; "
        "try data.valid=null data.holdout=0.1, which keeps equal texts on one side",
    ),
    "unfinished": (
        finished(
            [5.0, 4.0, 3.0, 2.0, 1.0], [4.0, 3.5, 2.9, 2.2, 1.6],
            recipe={"train.schedule": "linear"},
        ),
        "the validation loss was still falling at the end, from 2.2 to 1.6; try another run with "
        "train.steps=200",
    ),
    "unfinished, endless schedule": (
        finished(
            [5.0, 4.0, 3.0, 2.0, 1.0], [4.0, 3.5, 2.9, 2.2, 1.6],
            recipe={"train.schedule": "inverse-sqrt"},
        ),
        "try `trifold resume runs/r train.steps=200`",
    ),
    "untrained": (
        finished(
            FALLING, [], scores={"bleu": 0.08, "chrf": 9.0}, constant=None,
            recipe={"train.schedule": "linear"},
        ),
        "BLEU 0.08: hardly any word is right, so the model has learned little yet; try another run "
        "with train.steps=200, more data or start_from=PRETRAINED",
    ),
    "untrained, best early": (
        finished(
            FALLING, [], scores={"bleu": 0.08, "chrf": 9.0}, constant=None, best_step=20
        ),
        "learned little yet; try more data or start_from=PRETRAINED",
    ),
    "weak": (
        finished(FALLING, [], scores={"bleu": 4.3, "chrf": 22.0}, constant=None),
        "the last validation was the best, at BLEU 4.30, so the model was still learning; try "
        "`trifold resume runs/r train.steps=200`",
    ),
    "tiny": (
        finished(FALLING, HEALTHY, count=30),
        "only 30 texts: accuracy is uncertain, 68 to 94 (95 %); try --folds 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_advice_states_what_is_wrong_and_what_to_try(name):
    run, text = CASES[name]
    assert text in advise_run(run)[0], advise_run(run)
    applies = [rule for rule in OF_RUNS if OF_RUNS[rule].applies(run)]
    if name != "rejected":
        assert applies == [name.partition(",")[0]]


def test_every_rule_has_a_case():
    assert {name.partition(",")[0] for name in CASES} == {*OF_RUNS, "rejected"}


# Losses of runs that need no advice: fine-tuning, which begins low; noise; a slow end; a validation.
FINE = {
    "healthy": finished(FALLING, HEALTHY),
    "fine-tuned": finished([1.01, 1.0, 1.005, 1.0], [1.0, 0.99, 0.99], start_from="x"),
    "noise at the end": finished([0.7, 0.1, 0.01, 0.004, 0.01], [0.3, 0.21, 0.2, 0.21, 0.205]),
    "little overfitting": finished([0.7, 0.5, 0.3, 0.25, 0.2], [0.5, 0.42, 0.4, 0.41, 0.42]),
    "one validation": finished(FALLING, [0.5]),
    "no validation": finished(FALLING, [], best_step=0, count=None, constant=None),
    "no logged step": finished([], [0.5]),
    "rare label": finished(
        FALLING, HEALTHY, scores={"accuracy": 95.2, "matthews": 0.4},
        constant=ConstantAnswer("always answering 'ham'", "accuracy", 95.0),
    ),
    "many epochs that help": finished(FALLING, HEALTHY, epochs=60, rows=500),
    "patience on the last best": finished(FALLING, HEALTHY, rejected=2),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_healthy_runs_get_no_advice(name):
    assert advise_run(FINE[name]) == []


def test_advice_has_at_most_three_lines():
    worst = finished(
        [0.7, 0.2, 0.1], RISING, known=29, rejected=9, count=30, best_step=20,
        scores={"accuracy": 50.0}, stopped_by="patience",
    )  # fmt: skip
    assert sum(OF_RUNS[rule].applies(worst) for rule in OF_RUNS) > 3
    lines = [line for text in advise_run(worst) for line in wrapped(text, 80).splitlines()]
    assert 0 < len(lines) <= 3


@pytest.mark.parametrize(
    ("measured", "texts"),
    [
        (
            MeasuredScores({"accuracy": 57.0, "matthews": 0.14}, 0.7, 100, "texts", MAJORITY),
            ["is not clearly better than", "only 100 texts: accuracy is uncertain, 47 to 66"],
        ),
        (MeasuredScores({"bleu": 20.0}, math.nan, 40, "sentences"), ["only 40 sentences: another"]),
        (
            MeasuredScores({"bleu": 0.71, "chrf": 6.85}, math.nan, 1_000, "sentences"),
            ["BLEU 0.71: hardly any word is right, so the model has learned little yet; try more"],
        ),
        (MeasuredScores({"bleu": 20.0}, math.nan, 1_000, "sentences"), []),
        # Right outputs of two words.
        (MeasuredScores({"bleu": 0.0, "chrf": 41.05}, math.nan, 1_000, "sentences"), []),
        (
            MeasuredScores(
                {"pearson": 0.02}, 2.3, 500, "texts", ConstantAnswer("the mean", "loss", 2.25)
            ),
            ["loss 2.3000 is not clearly better than the mean (2.25)"],
        ),
        (
            MeasuredScores(
                {"f1": 0.0}, 1.0, 500, "texts", ConstantAnswer("finding no entity", "f1", 0.0)
            ),
            ["f1 0.00 is not clearly better than finding no entity (0.00)"],
        ),
        (
            MeasuredScores(
                {"f1": 5.2}, 1.0, 500, "texts", ConstantAnswer("finding no entity", "f1", 0.0)
            ),
            ["f1 5.20 is not clearly better than finding no entity (0.00)"],
        ),
        (MeasuredScores({"perplexity": 20.0}, 3.0, None, "pieces"), []),
    ],
)
def test_advice_of_a_test_set(measured, texts):
    found = advise_scores(measured)
    assert [text in line for text, line in zip(texts, found, strict=True)] == [True] * len(texts)


def test_the_interval_is_that_of_wilson():
    # statsmodels.stats.proportion.proportion_confint(22, 30, method="wilson")
    text = OF_SCORES["tiny"].sentence(MeasuredScores({"accuracy": 2200 / 30}, 0.5, 30, "texts"))
    assert "56 to 86" in text


def test_a_curve_has_the_finite_losses_of_the_metrics(tmp_path):
    lines = [
        {"step": 20, "train/loss": 0.7},
        {"step": 20, "valid/loss": 0.6, "valid/accuracy": 50.0},
        {"step": 30, "event": "skipped"},
        {"step": 40, "train/loss": None},
    ]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    found = advice.read_curve(UntrustedPath(file, tmp_path))
    assert found == LossCurve([(20, 0.7)], [(20, 0.6)])
    assert LossCurve([(n, float(n)) for n in range(100)]).parts[-1] == np.mean(range(90, 100))


def test_a_loss_that_begins_low_because_a_part_was_fitted_is_not_flat():
    losses = [0.54, 0.535, 0.53]
    assert advise_run(finished(losses, HEALTHY))
    assert not advise_run(finished(losses, HEALTHY, is_fitted=True))
