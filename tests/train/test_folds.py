"""Folds choose the steps of a run on few rows, and the saved model is trained on all of them."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections import Counter
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.train.runs import InterruptingView, RecordingView

from trifold import train
from trifold.baselines.stored import read_comparison
from trifold.cli.runs import describe_run, find_runs
from trifold.errors import DataError, SettingsError
from trifold.folders import UntrustedPath
from trifold.hub import save_model
from trifold.jsonfiles import iter_metrics
from trifold.nn import ModelConfig, Transformer
from trifold.objectives import sizes
from trifold.objectives.evaluation import PATH_LOGITS
from trifold.recipe import load_recipe
from trifold.train.data import load_data
from trifold.train.fold_scores import Choice, JoinedFolds, fold_path
from trifold.train.folds import _best_step, _last_step
from trifold.train.held_out import HeldOut
from trifold.train.monitor import FoldScores, View
from trifold.train.run_folder import RunFolder

FOLDS = 3
ROWS = 60
BIAS = "heads.sequence.out_proj.bias"
TINY: dict[str, Any] = {
    "model.d_model": 8, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 8, "model.max_positions": 16,
    "model.linear_path": {"words": 256, "characters": 256},
    "train.steps": 18, "train.warmup": 3, "train.validate_every": 6, "train.save_every": 6, "train.learning_rate": 0.02,
    "train.device": "cpu", "train.precision": "float32", "train.samples": 0, "batch.tokens": 64, "tokenizer.vocab_size": 40,
}  # fmt: skip


def write_table(folder: Path, **columns: Any) -> str:
    """A table of 60 texts whose labels are those of a word in them, mostly; and more columns."""
    rng = np.random.default_rng(1)
    file = folder / "rows.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label", *columns])
        for number in range(ROWS):
            label = number % 3 == 0
            words = [*rng.choice(["a", "film", "with", "music"], 2), ["bad", "good"][label]]
            label ^= number % 11 == 0
            more = [values[number] for values in columns.values()]
            writer.writerow([f"{' '.join(words)} {number}", ["no", "yes"][label], *more])
    return str(file)


def train_here(folder: Path, table: str, view: Any = None, **changes: Any) -> Any:
    folds = {} if "data.valid" in changes else {"data.holdout": f"folds:{FOLDS}"}
    settings = TINY | {"data.train": table} | folds | changes
    return train("classify", out=folder, view=view or RecordingView(), **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, its outcome and what it has printed."""
    folder = tmp_path_factory.mktemp("folds")
    view = RecordingView()
    outcome = train_here(folder / "run", write_table(folder), view)
    return folder / "run", outcome, view.lines


def read_fold(run: Path, number: int, step: int) -> HeldOut:
    fold = RunFolder(run / "folds" / f"fold-{number}")
    return HeldOut.read(fold.below(fold.held_out(step)))


def validations(run: Path, number: int) -> dict[int, dict[str, float]]:
    """The scores of a fold by step, as its metrics have them."""
    file = UntrustedPath(run / "folds" / f"fold-{number}" / "metrics.jsonl", run)
    return {line["step"]: line for line in iter_metrics(file) if "valid/loss" in line}


def test_folds_partition_the_rows(finished):
    run, _, _ = finished
    step = Choice.read(RunFolder(run)).step
    lines = [read_fold(run, number, step).lines.tolist() for number in range(1, FOLDS + 1)]
    assert sorted(chain(*lines)) == list(range(2, ROWS + 2))  # the first line is the header
    with (run.parent / "rows.csv").open(encoding="utf-8") as stream:
        labels = [row["label"] for row in csv.DictReader(stream)]
    shares = [Counter(labels[line - 2] for line in fold)["yes"] for fold in lines]
    assert max(shares) - min(shares) <= 1


def test_no_model_has_seen_the_rows_that_it_validates(finished):
    run, _, _ = finished
    for number in range(1, FOLDS + 1):
        recipe = load_recipe(run / "folds" / f"fold-{number}")
        assert recipe.data.holdout == f"fold:{number}/{FOLDS}"
    assert load_recipe(run).data.holdout == f"folds:{FOLDS}"


def test_the_steps_are_those_with_the_best_mean_over_folds(finished):
    run, outcome, _ = finished
    by_fold = [validations(run, number) for number in range(1, FOLDS + 1)]
    steps = [*by_fold[0]]
    assert steps == [0, 4, 8, 12]
    steps = [step for step in steps if all(step in fold for fold in by_fold)]

    def rank(step: int) -> tuple[float, float]:
        scores, losses = (
            [fold[step][f"valid/{key}"] for fold in by_fold] for key in ("accuracy", "loss")
        )
        return round(mean(scores), 9), -mean(losses)

    choice = Choice.read(RunFolder(run))
    assert choice.step == max(steps, key=rank) and choice.steps == 12
    recorded = load_recipe(run).train
    assert recorded.steps == 18
    assert recorded.last_step == outcome.steps == outcome.best_step == round(choice.step * 18 / 12)


def test_the_score_is_that_of_the_folds(finished):
    run, outcome, lines = finished
    step = Choice.read(RunFolder(run)).step
    values = [validations(run, number)[step]["valid/accuracy"] for number in range(1, FOLDS + 1)]
    assert outcome.scores["accuracy"] == pytest.approx(mean(values))
    assert outcome.folds.deviations["accuracy"] == pytest.approx(stdev(values))
    logged = [*iter_metrics(UntrustedPath(run / "metrics.jsonl", run))]
    (last,) = [line for line in logged if "valid/loss" in line]  # there are no validation rows
    assert last["valid/accuracy"] == pytest.approx(mean(values))
    assert last["deviation/accuracy"] == pytest.approx(stdev(values))
    folds = [read_fold(run, number, step) for number in range(1, FOLDS + 1)]
    right = sum((fold.logits.argmax(1) == fold.labels).sum() for fold in folds)
    comparison = read_comparison(UntrustedPath(run / "scores.json", run))
    assert comparison == outcome.comparison and comparison.count == ROWS
    assert comparison.model.scores["accuracy"] == pytest.approx(100 * right / ROWS)
    words = sum((fold.baselines["WordModel"] == fold.labels).sum() for fold in folds)
    assert comparison.baselines[1].name == "a linear model on words"
    assert comparison.baselines[1].scores["accuracy"] == pytest.approx(100 * words / ROWS)
    assert comparison.model.intervals["accuracy"][0] < comparison.model.intervals["accuracy"][1]
    of_path = sum((fold.parts[PATH_LOGITS].argmax(1) == fold.labels).sum() for fold in folds)
    alone = comparison.parts["its linear path alone"]["accuracy"]
    assert alone == pytest.approx(100 * of_path / ROWS)
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "Scores of all rows" in card and "held out of the training of one of 3 models" in card
    assert any("for the folds and the run on all rows" in line for line in lines)
    assert lines[0].startswith("data.holdout=folds:3: 3 folds choose the steps")


def test_one_of_several_folds_chooses_the_steps(tmp_path, finished):
    view = RecordingView()
    run = tmp_path / "run"
    outcome = train_here(run, write_table(tmp_path), view, **{"data.holdout": "folds:1/5"})
    assert [path.name for path in (run / "folds").iterdir() if path.is_dir()] == ["fold-1"]
    assert load_recipe(run / "folds" / "fold-1").data.holdout == "fold:1/5"
    assert view.lines[0].startswith("data.holdout=folds:1/5: 1 of 5 folds chooses the steps")
    assert load_recipe(run / "folds" / "fold-1").train.steps == round(18 * 4 / 5)
    assert load_recipe(run).train.steps == 18
    step = Choice.read(RunFolder(run)).step
    held_out = read_fold(run, 1, step)
    assert len(held_out.lines) == ROWS // 5
    right = 100 * float((held_out.logits.argmax(1) == held_out.labels).mean())
    assert outcome.folds.folds == 1 and outcome.folds.deviations == {}
    assert outcome.folds.scores["accuracy"] == pytest.approx(right)
    assert outcome.folds.describe().startswith(f"a held-out fold: accuracy {right:.2f}")
    comparison = read_comparison(UntrustedPath(run / "scores.json", run))
    assert comparison.count == ROWS // 5
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "Scores of the held-out rows" in card
    assert "These rows were held out of the training of a model, which scored them" in card
    path = load_file(run / "model" / "model.safetensors")
    of_all_rows = load_file(finished[0] / "model" / "model.safetensors")
    for name in ("weight", "idf"):  # of the linear path, which both have fitted on all rows
        key = f"heads.sequence.path.{name}"
        np.testing.assert_array_equal(path[key].numpy(), of_all_rows[key].numpy())


@pytest.mark.slow
def test_the_run_on_all_rows_has_more_steps_if_the_data_decide(tmp_path):
    planned = ("train.steps", "train.warmup", "train.validate_every", "train.save_every")
    given = {key: value for key, value in TINY.items() if key not in planned}
    given |= {"data.train": write_table(tmp_path), "data.holdout": "folds:1/5"}
    train("classify", out=tmp_path / "run", view=RecordingView(), **given)
    of_fold = load_recipe(tmp_path / "run" / "folds" / "fold-1").train
    of_all = load_recipe(tmp_path / "run").train
    assert of_all.steps == round(of_fold.steps * 5 / 4) > of_fold.steps
    assert of_all.warmup == round(of_fold.warmup * 5 / 4)


def test_a_run_is_listed_once_and_keeps_no_model_of_a_fold(finished):
    run, outcome, _ = finished
    assert [*find_runs(run.parent)] == [run]
    facts = describe_run(run, "run")
    assert (facts.state, facts.best_step) == ("finished", outcome.steps)
    assert facts.value == pytest.approx(outcome.scores["accuracy"])
    left = {path.name for path in (run / "folds" / "fold-1").iterdir()}
    assert not left & {"model", "checkpoints", "tokenizer", "baselines.safetensors"}


def held_out(step: int, value: float, needed_share: float = 1.0) -> HeldOut:
    """A validation of one row. The loss is lower than before the first step."""
    none = np.zeros(0)
    row = np.zeros(1, np.int64)
    loss = 1.0 if step == 0 else 0.9
    return HeldOut(step, value, loss, {}, None, needed_share, [], row, row, none, {}, {})


@pytest.mark.parametrize(("needed_share", "best"), [(0.91, 4), (0.89, 0)])
def test_the_loss_of_the_folds_must_be_as_much_lower_as_that_of_a_single_run(
    tmp_path, needed_share, best
):
    run = RunFolder(tmp_path)
    fold = RunFolder(fold_path(run, 1))
    for step in (0, 4):
        held_out(step, step, needed_share).write(fold.held_out(step))
    assert _best_step(run, 1, [0, 4]) == best


@pytest.mark.parametrize(
    ("values", "last"),
    [([5, 4, 3, 2, 1], 8), ([1, 2, 5, 4, 3], 16), ([1, 2, 3, 4, 5], 16), ([5], 0)],
)
def test_a_fold_ends_two_validations_after_the_best_one_of_the_earlier_folds(
    tmp_path, values, last
):
    run = RunFolder(tmp_path)
    for number, sign in ((1, 1), (2, -1)):
        fold = RunFolder(fold_path(run, number))
        for place, value in enumerate(values):
            held_out(4 * place, sign * value).write(fold.held_out(4 * place))
    assert _last_step(run, 1) == last
    held_out(20, 9).write(RunFolder(fold_path(run, 1)).held_out(20))  # that fold 2 lacks
    assert _last_step(run, 2) == min(12, 4 * (len(values) - 1))  # all mean scores are equal


def test_a_fold_has_the_model_and_batches_of_all_rows(tmp_path, monkeypatch):
    """And the share of the steps that it has of the rows."""
    monkeypatch.setattr(sizes, "WIDTHS", ((700, 16, 1), (math.inf, 32, 1)))
    sized = {key: value for key, value in TINY.items() if key.startswith(("task", "tokenizer"))}
    found = []
    for name, holdout in (("all", 0), ("fold", "fold:1/3")):
        given = {"data.train": write_table(tmp_path), "data.holdout": holdout}
        if not holdout:
            given["data.valid"] = given["data.train"]
        recipe = load_recipe("classify", sized | given)
        data = load_data(recipe, UntrustedPath(tmp_path / name, tmp_path), View())
        found.append((data.recipe.train.steps, data.recipe.batch, data.config.d_model))
    (steps, batch, width), of_fold = found
    assert of_fold == (round(steps * 2 / 3), batch, width) and (steps, width) == (100, 32)


def test_a_finished_run_has_nothing_to_do(finished):
    run, outcome, _ = finished
    view = RecordingView()
    again = train(run, resume="auto", view=view)
    assert again.folds == outcome.folds and again.scores == outcome.scores
    assert view.lines[-1].startswith("nothing to do: the run has ended at step")
    assert "train.last_step" in view.lines[-1]


class InterruptingAt(InterruptingView):
    """Sends a signal at a step of the run that begins as number `run`."""

    def __init__(self, run: int, at: int) -> None:
        super().__init__(at)
        self.runs = -run

    def begin(self, total: int, done: int = 0) -> None:
        self.runs += 1

    def step(self, snapshot: Any) -> None:
        if self.runs == 0:
            super().step(snapshot)


@pytest.mark.slow
@pytest.mark.parametrize(("run", "at", "command"), [(1, 2, "recipe"), (2, 6, "run"), (4, 3, "run")])
def test_a_continued_run_equals_an_uninterrupted_one(finished, tmp_path, run, at, command):
    whole, expected, _ = finished
    table = str(whole.parent / "rows.csv")
    view = InterruptingAt(run, at)
    logged: dict[str, Any] = {"train.log_every": 1}
    if run > FOLDS:  # beside a linear path, the folds choose no steps
        logged["model.linear_path"] = False
        whole = tmp_path / "whole"
        expected = train_here(whole, table, **logged)
    stopped = train_here(tmp_path / "run", table, view, **logged)
    assert (stopped.finished, stopped.exit_code) == (False, 143)
    assert stopped.folder == tmp_path / "run"
    assert f"trifold resume {tmp_path / 'run'}`" in view.lines[-1]
    if command == "run":
        outcome = train(tmp_path / "run", resume="auto", view=RecordingView())
    else:
        options = TINY | {"data.train": table, "data.holdout": f"folds:{FOLDS}"} | logged
        outcome = train(
            "classify", out=tmp_path / "run", resume="auto", view=RecordingView(), **options
        )
    assert outcome.finished and outcome.folds == expected.folds
    ours, theirs = (
        (path / "model" / "model.safetensors").read_bytes() for path in (tmp_path / "run", whole)
    )
    assert ours == theirs


@pytest.mark.slow
def test_groups_stay_in_one_fold(tmp_path):
    groups = [number // 6 for number in range(ROWS)]
    table = write_table(tmp_path, customer=groups)
    train_here(tmp_path / "run", table, **{"data.group": "customer", "train.steps": 5})
    folds = [read_fold(tmp_path / "run", number, 3).lines for number in range(1, FOLDS + 1)]
    owners = [{groups[line - 2] for line in fold} for fold in folds]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 10


@pytest.mark.slow
def test_a_set_of_rows_that_is_given_or_held_out_is_used_as_before(tmp_path):
    table = write_table(tmp_path)
    cases = {"data.holdout": 0.1}, {"data.holdout": "fold:1/5"}, {"data.valid": table}
    for number, given in enumerate(cases):
        run = tmp_path / str(number)
        train_here(run, table, **given, **{"train.steps": 2, "train.warmup": 0})
        assert not (run / "folds").exists() and not (run / "held-out").exists()
        assert load_recipe(run).train.last_step is None


@pytest.mark.parametrize(
    ("changes", "holdout"),
    [
        ({}, "folds:3"),
        ({"train.minutes": 1}, 0.1),
        ({"data.time": "when"}, 0.1),
        ({"pretrain": {"train": {"steps": 2}}}, 0.1),
        ({"data.holdout": "folds:5"}, "folds:5"),
        ({"data.holdout": "folds:2/5"}, "folds:2/5"),
    ],
)
def test_the_default_is_three_folds_of_few_rows(tmp_path, changes, holdout):
    table = write_table(tmp_path, when=range(ROWS))
    assert load_recipe("classify", {"data.train": table} | changes).data.holdout == holdout


def write_many(folder: Path, rows: int, words: int = 1) -> str:
    lines = ["text,label", *(f"{'a text ' * words}{n},{n % 2}" for n in range(rows))]
    (folder / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "a.csv")


@pytest.mark.parametrize(
    ("rows", "words", "holdout"),
    [
        (48, 1, 0.1),
        (49, 1, "folds:3"),
        (5_000, 1, "folds:3"),
        (5_001, 1, 0.1),
        (1_999, 20, "folds:3"),  # of more tokens than rows above these may have
        (2_000, 20, "folds:1/10"),
        (5_000, 6, "folds:1/10"),
        (5_001, 6, 0.1),
        (2_000, 60, 0.1),
    ],
)
def test_many_rows_and_very_few_are_held_out(tmp_path, rows, words, holdout):
    recipe = load_recipe("classify", {"data.train": write_many(tmp_path, rows, words)})
    assert recipe.data.holdout == holdout and "data.holdout" in recipe.sized


def test_groups_of_many_rows_are_held_out(tmp_path):
    table = write_many(tmp_path, 2_000, 20)
    recipe = load_recipe("classify", {"data.train": table, "data.group": "label"})
    assert recipe.data.holdout == 0.1


def test_some_folds_of_more_are_named_so():
    scores = FoldScores(2, {"accuracy": 50.0}, {"accuracy": 1.0}, 4)
    assert scores.describe() == "mean ± deviation of 2 of 4 folds: accuracy 50.00 ± 1.0"
    assert scores._replace(parts=2).describe().startswith("mean ± deviation of 2 folds: ")


def test_folds_have_the_buckets_of_the_model_that_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("trifold.objectives.linear_path.USUAL_BUCKETS", 256)
    table = write_table(tmp_path)

    def buckets(holdout: str) -> int:
        given = TINY | {"data.train": table, "data.holdout": holdout}
        data = load_data(load_recipe("classify", given), tmp_path / holdout, RecordingView())
        return data.config.linear_path.words

    with Path(table).open(encoding="utf-8") as stream:
        characters = sum(len(row["text"]) for row in csv.DictReader(stream))
    assert buckets("fold:1/2") == buckets("folds:3") == 1 << (characters - 1).bit_length() > 256


@pytest.mark.parametrize(("rows", "holdout"), [(1_999, "folds:3"), (2_000, 0.1)])
def test_a_start_has_folds_of_fewer_rows(tmp_path, rows, holdout):
    sizes = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "vocab_size": 30}
    config = ModelConfig.parse({"shape": "encoder", "heads": ["sequence"], **sizes})
    save_model(tmp_path / "start", Transformer(config))
    given = {"data.train": write_many(tmp_path, rows), "start_from": str(tmp_path / "start")}
    assert load_recipe("classify", given).data.holdout == holdout


def test_the_rows_of_a_workbook_are_counted(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [("text", "label"), *((f"a text {n}", n % 2) for n in range(60))]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    recipe = load_recipe("classify", {"data.train": str(tmp_path / "a.xlsx")})
    assert recipe.data.holdout == "folds:3"


def test_other_tasks_and_limits_of_time_have_no_folds(tmp_path):
    table = write_table(tmp_path)
    with pytest.raises(SettingsError, match=r"train\.minutes: folds are compared"):
        train_here(tmp_path / "run", table, **{"data.holdout": "folds:5", "train.minutes": 1})
    with pytest.raises(SettingsError, match=r"data\.holdout: folds:5 is for classification"):
        train("causal", out=tmp_path / "run", **{"data.train": table, "data.holdout": "folds:5"})
    wrong = {
        "folds:1": "at least two folds are needed",
        "folds:1/1": "at least two folds are needed",
        "folds:0/3": "some of 3 folds, such as folds:1/3",
        "folds:4/3": "some of 3 folds, such as folds:1/3",
    }
    for folds, words in wrong.items():
        with pytest.raises(SettingsError, match=words):
            load_recipe("classify", {"data.train": table, "data.holdout": folds})
    assert not (tmp_path / "run").exists()


def test_a_failed_run_leaves_no_files(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n" + "a,\n" * 60, encoding="utf-8")
    with pytest.raises(DataError):
        train_here(tmp_path / "run", str(tmp_path / "a.csv"))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def one_fold(tmp_path):
    """A run that has ended between two folds, and its data."""
    table = write_table(tmp_path)
    stopped = train_here(tmp_path / "run", table, InterruptingAt(2, 2), **{"train.log_every": 1})
    assert not stopped.finished
    shutil.rmtree(tmp_path / "run" / "folds" / "fold-2")
    return tmp_path / "run", Path(table)


@pytest.mark.slow
def test_changed_data_is_refused_between_folds(one_fold):
    run, table = one_fold
    table.write_text(table.read_text("utf-8").replace("film", "song"), "utf-8")
    with pytest.raises(DataError, match="the content has changed"):
        train(run, resume="auto", view=RecordingView())
    assert not (run / "folds" / "fold-2").exists()


def test_a_changed_setting_is_refused_between_folds(one_fold):
    run, _ = one_fold
    with pytest.raises(SettingsError, match=r"train\.learning_rate"):
        train(run, resume="auto", **{"train.learning_rate": 0.5})


NUMBERS = [f"{number % 7 + 0.5}" for number in range(ROWS)]
SETS = [["a", "a,b", "b", "c"][number % 4] for number in range(ROWS)]
KINDS = {
    "numbers": ({"score": NUMBERS}, {"data.columns": {"label": "score"}}),
    "sets": (
        {"tags": SETS},
        {"data.columns": {"label": "tags"}, "model.problem_type": "multi_label_classification"},
    ),
    "pairs": ({"other": [f"a film {n}" for n in range(ROWS)]}, {"data.columns": {"pair": "other"}}),
    "thresholds": ({}, {"task.best_by": "f1"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_problem_has_the_scores_of_its_folds(tmp_path, kind):
    columns, changes = KINDS[kind]
    table = write_table(tmp_path, **columns)
    outcome = train_here(tmp_path / "run", table, **changes, **{"train.steps": 10})
    run = RunFolder(tmp_path / "run")
    joined = JoinedFolds.read(run, FOLDS, Choice.read(run).step)
    assert outcome.scores == joined.facts.scores
    assert outcome.comparison.count == ROWS
    assert json.loads((tmp_path / "run/scores.json").read_text())["count"] == ROWS
    assert len(joined.labels()) == ROWS


@pytest.mark.slow
def test_the_weights_before_training_can_be_chosen(tmp_path):
    """As where a part of the model is fitted before the first step."""
    table = write_table(tmp_path)
    run = tmp_path / "run"
    chosen = {"data.holdout": "folds:2", "train.last_step": 0}
    outcome = train_here(run, table, **chosen)
    assert (outcome.finished, outcome.steps, outcome.best_step) == (True, 0, 0)
    assert load_recipe(run / "folds" / "fold-1").train.last_step is None
    assert describe_run(run, "run").state == "finished"
    saved, trained = (
        load_file(run / name)
        for name in ("model/model.safetensors", "checkpoints/step-00000000/weights.safetensors")
    )
    assert saved[BIAS].equal(trained[BIAS])
    view = RecordingView()
    assert train(run, resume="auto", view=view).folds == outcome.folds
    assert view.lines[-1].startswith("nothing to do: the run has ended at step 0")


@pytest.mark.slow
def test_thresholds_are_those_of_all_folds(tmp_path):
    table = write_table(tmp_path)
    run = tmp_path / "run"
    outcome = train_here(
        run, table, **{"task.best_by": "f1", "data.holdout": "folds:2", "train.steps": 4}
    )
    choice = Choice.read(RunFolder(run))
    joined = JoinedFolds.read(RunFolder(run), 2, choice.step)
    logits = np.concatenate([fold.logits for fold in joined.folds])
    margin = logits[:, 1] - logits[:, 0]
    saved = load_file(run / "model/model.safetensors")[BIAS]
    steps = f"checkpoints/step-{outcome.steps:08d}/weights.safetensors"
    shift = (saved - load_file(run / steps)[BIAS]).numpy()
    assert shift[0] == 0 and shift[1] != 0
    labels = joined.labels() == 1
    predicted = margin + shift[1] > 0
    f1 = 2 * (predicted & labels).sum() / (predicted.sum() + labels.sum())
    assert outcome.comparison.model.scores["f1"] == pytest.approx(100 * f1)
