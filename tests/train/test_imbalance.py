"""Classes of very different sizes: the same answer for every row is not kept, and thresholds are
chosen.
"""

from __future__ import annotations

import json
import random
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.runs import RecordingView, lines_of

from trifold.hub import load_model
from trifold.objectives.classify import Classify
from trifold.objectives.evaluation import Balance, EvalContext
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.checkpoint import BestValidation, TrainingProgress
from trifold.train.data import load_data
from trifold.train.monitor import View

SAME = Balance(50.0, "no")
APART = Balance(70.0)
WORSE = Balance(40.0)


def best_of(*results: tuple[float, Balance | None]) -> int:
    """The number of the validation whose model is kept."""
    best = BestValidation()
    for step, (score, balance) in enumerate(results, start=1):
        is_best = best.is_beaten(score, 1.0, balance)
        best = best.after(step, score, 1.0, balance, is_best=is_best)
        saved = json.loads(json.dumps({"best": best}))  # as a checkpoint has it
        assert repr(TrainingProgress.from_dict(saved).best) == repr(best)  # NaN too
    return best.step


@pytest.mark.parametrize(
    ("results", "kept"),
    [
        ([(95, SAME), (90, APART)], 2),
        ([(90, APART), (95, SAME)], 1),
        ([(90, APART), (94, WORSE), (95, SAME)], 2),  # an earlier one is better than the constant
        ([(95, SAME), (90, WORSE)], 1),  # nothing beats the constant answer
        ([(95, SAME), (90, APART), (91, WORSE), (95, SAME)], 3),
        ([(nan, SAME), (90, APART)], 2),
        ([(90, None), (95, None), (94, None)], 2),
        ([(95, SAME), (96, SAME)], 2),
    ],
)
def test_the_same_answer_for_every_row_is_not_kept_if_another_model_is_better(results, kept):
    assert best_of(*results) == kept


@pytest.mark.parametrize(
    ("results", "kept"),
    [
        ([(70, 0.50), (73, 0.55), (72, 0.49), (74, 0.51)], 2),  # the loss is that of the fit
        ([(70, 0.50), (73, 0.50), (69, 0.40)], 0),
        ([(70, 0.50), (72, 0.40), (73, 0.45)], 2),  # above the lowest loss, below that of the fit
        ([(70, nan), (73, 0.50)], 1),
    ],
)
def test_weights_beside_a_fitted_part_have_a_lower_loss_and_a_better_score(results, kept):
    best = BestValidation()
    for step, (score, loss) in enumerate(results):
        best = best.after(step, score, loss, None, is_best=best.is_beaten(score, loss))
        saved = json.loads(json.dumps({"best": best}))
        assert repr(TrainingProgress.from_dict(saved).best) == repr(best)
    assert best.step == kept


def test_a_fitted_part_with_the_same_answer_for_every_row_is_not_kept():
    best = BestValidation().after(0, 95, 0.2, SAME, is_best=True)
    assert best.is_beaten(90, 0.3, APART) and not best.is_beaten(96, 0.3, SAME)


RARE = 0.05
TINY: dict[str, Any] = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.d_ff": 16,
    "model.dropout": 0.0,
    "model.linear_path": False,
    "train.steps": 60,
    "train.validate_every": 20,
    "train.save_every": 60,
    "train.learning_rate": 0.01,
    "train.precision": "float32",
    "train.device": "cpu",
    "train.samples": 0,
    "batch.tokens": 512,
}


@pytest.fixture(scope="module")
def rare(tmp_path_factory) -> Path:
    """Rows of which 5 % have the label yes, and a word that half of them share with a few others,
    so that always answering no has the highest accuracy.
    """
    rng = random.Random(3)
    lines = []
    for _ in range(600):
        is_rare = rng.random() < RARE
        words = rng.choices("the a film story scene actor plot end".split(), k=5)
        if rng.random() < (0.6 if is_rare else 0.06):
            words[rng.randrange(5)] = "rare"
        lines.append(f"{' '.join(words)}\t{'yes' if is_rare else 'no'}")
    file = tmp_path_factory.mktemp("rare") / "rows.tsv"
    file.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.slow
def test_a_majority_of_95_percent_is_no_model(rare, tmp_path, monkeypatch):
    """The model of the second validation tells rows apart; the others always answer no, which has
    the best accuracy.
    """
    real = Classify.compute_scores
    tells_apart = iter([False, True, False])
    view = RecordingView()

    def compute(self: Classify, run: Any) -> Any:
        if next(tells_apart):
            outputs = np.concatenate(run.sums["logits"]).argmax(1)
            outputs[:40] = 1
            run.sums["outputs"] = [outputs]
        else:
            run.sums["outputs"] = [np.zeros_like(labels) for labels in run.sums["labels"]]
        return real(self, run)

    monkeypatch.setattr(Classify, "compute_scores", compute)
    lines: list[str] = []
    view.validated = lambda result: lines.append(result.remark)  # type: ignore[method-assign]
    data = {"data.train": str(rare), "data.holdout": 200}
    outcome = train("classify", out=tmp_path / "run", view=view, **TINY, **data)
    scores = [line["valid/accuracy"] for line in lines_of(tmp_path / "run") if "valid/loss" in line]
    assert scores[0] == scores[2] > scores[1]  # the majority has the best accuracy
    assert outcome.best_step == 40
    assert lines[:2] == ["", ""]
    assert lines[2].startswith("it always answers 'no' and is not kept: with the same weight for")


@pytest.mark.slow
@pytest.mark.parametrize("best_by", ["f1", "matthews"])
def test_the_threshold_of_two_classes_is_chosen_and_saved(rare, tmp_path, best_by):
    view = RecordingView()
    remarks: list[str] = []
    view.validated = lambda result: remarks.append(result.remark)  # type: ignore[method-assign]
    settings = TINY | {"data.train": str(rare), "data.holdout": 200, "task.best_by": best_by}
    scores = {}
    for thresholds in ("half", "chosen"):
        folder = tmp_path / thresholds
        more = {"task.thresholds": thresholds}
        outcome = train("classify", out=folder, view=view, **settings, **more)
        scores[thresholds] = outcome.scores[best_by]
    assert scores["chosen"] > scores["half"]
    assert remarks[0] == "" and any(
        line.startswith(f"threshold of the probability for {best_by}: 'yes' above 0.")
        for line in remarks
    )
    # The saved model has the threshold: its usual decision is the one that was measured.
    folder = tmp_path / "chosen"
    recipe = load_recipe(folder)
    data = load_data(recipe, folder / "tokenizer", View())
    context = EvalContext(recipe.batch, recipe.generate, 0, 1, lambda: None)
    model = load_model(folder / "model")[0].eval()
    result = data.objective.evaluate(model, data.bundle.valid, data.valid, context)
    assert result.scores[best_by] == pytest.approx(scores["chosen"])
    assert result.shift is None


@pytest.mark.slow
def test_thresholds_of_several_labels_are_chosen(tmp_path):
    rng = random.Random(5)
    lines = []
    for _ in range(500):
        words = rng.choices("the a film story scene actor plot end".split(), k=5)
        labels = [name for name in ("red", "blue") if rng.random() < 0.15]
        for label in labels:
            if rng.random() < 0.7:
                words[rng.randrange(5)] = label
        lines.append(json.dumps({"text": " ".join(words), "labels": labels}))
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = TINY | {"data.train": str(tmp_path / "a.jsonl"), "data.holdout": 150}
    settings |= {"model.problem_type": "multi_label_classification"}
    scores = []
    for thresholds in ("half", "chosen"):
        more = {"task.thresholds": thresholds}
        outcome = train(
            "classify", out=tmp_path / thresholds, view=RecordingView(), **settings, **more
        )
        scores.append(outcome.scores["micro_f1"])
    assert scores[1] >= scores[0] and scores[1] > 0
