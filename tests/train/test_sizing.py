"""The sizes of a recipe that leaves them to its data follow from the counted tokens."""

from __future__ import annotations

import json
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.runs import RecordingView

from trifold.batches import plan_epoch
from trifold.folders import UntrustedPath
from trifold.hub import read_config
from trifold.objectives import plans
from trifold.objectives.plans import MOST_STEPS, NEW, WITH_PATH
from trifold.objectives.sizes import positions_for
from trifold.predict.answer import most_answer_tokens
from trifold.recipe import load_recipe
from trifold.text import Tokenizer
from trifold.text.folder import read_tokenizers
from trifold.train import preparation, train
from trifold.train.data import TrainingData, load_data
from trifold.train.run_folder import RunFolder
from trifold.train.sizing import with_recorded_sizes

WORDS = [f"{a}{b}{c}" for a in "bdgklm" for b in "aeiou" for c in "nrst"]


def texts(rows: int, lengths: list[int], seed: int = 0) -> list[str]:
    """Texts of random words, whose numbers are drawn from `lengths`."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.choice(lengths))) for _ in range(rows)]


def table(folder: Path, rows: list[str]) -> str:
    lines = [f"{text}\t{'ab'[n % 2]}" for n, text in enumerate(rows)]
    (folder / "a.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "a.tsv")


def pairs(folder: Path, rows: list[str]) -> str:
    lines = [f"{text}\t{text[::-1]}" for text in rows]
    (folder / "a.tsv").write_text("source\ttarget\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "a.tsv")


def load(folder: Path, task: str, file: str, **changes: Any) -> tuple[TrainingData, list[str]]:
    view = RecordingView()
    values = {"data.train": file} | {key.replace("__", "."): x for key, x in changes.items()}
    return load_data(load_recipe(task, values), folder / "tokenizer", view), view.lines


SETS: dict[str, tuple[str, Any, int, list[int]]] = {
    # task, writer, rows, words of a text
    "few short": ("classify", table, 60, [2, 3]),
    "short": ("classify", table, 3_000, [4, 8, 12]),
    "long": ("classify", table, 400, [150, 250]),
    "one long": ("classify", table, 800, [5] * 99 + [400]),
    "pairs": ("translate", pairs, 1_500, [3, 30]),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("plan", [NEW, WITH_PATH])
@pytest.mark.parametrize("name", SETS)
def test_ten_epochs_are_ten_epochs(tmp_path, name, plan):
    """And five beside a linear path. Of data with few updates there are more, and of very much data
    fewer.
    """
    task, write, rows, lengths = SETS[name]
    if plan is WITH_PATH and task != "classify":
        pytest.skip("this task has no linear path")
    path = {"model__linear_path": plan is WITH_PATH} if task == "classify" else {}
    data, lines = load(tmp_path, task, write(tmp_path, texts(rows, lengths)), **path)
    train_settings = data.recipe.train
    expected = plan.epochs
    # The batches of each epoch differ by the order of rows of equal length.
    updates = [len(data.plan(data.train, epoch)) for epoch in range(plan.epochs)]
    if sum(updates) < plan.fewest_steps:
        expected = plan.fewest_steps / updates[0]
    assert train_settings.steps <= MOST_STEPS
    total = sum(len(data.plan(data.train, epoch)) for epoch in range(round(expected)))
    assert abs(train_settings.steps - total) <= max(1, plan.epochs)
    assert train_settings.steps / updates[0] == pytest.approx(expected, abs=1 / min(updates))
    tokens = data.recipe.batch.tokens
    assert 512 <= tokens <= 4096
    mean = data.train.lengths.sum(0).max() / len(data.train.lengths)
    assert updates[0] >= 70 or tokens <= max(512 + 64, 8 * mean + 64), "the data allow more"
    assert sum(f"train.steps={train_settings.steps} " in line for line in lines) == 1
    assert f"batch.tokens={tokens} " in "\n".join(lines)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("lengths", [[3], [60, 80], [5] * 99 + [300], [600, 900]])
def test_nothing_is_cut_silently(tmp_path, lengths):
    rows = texts(300, lengths)
    data, lines = load(tmp_path, "classify", table(tmp_path, rows), data__holdout=30)
    positions = data.config.max_positions
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    whole = np.array([len(row.ids) for row in tokenizer.rows(rows)])
    cut = np.maximum(whole - positions, 0)
    reported = [line for line in lines if "cut to fit" in line]
    assert (whole <= positions).mean() >= 0.999 or positions == 512
    assert positions >= 64 and bool(cut.any()) == bool(reported)
    if cut.any():
        share = cut.sum() / whole.sum()
        (line,) = reported
        assert line.startswith(f"{(cut > 0).sum()} texts cut to fit, {cut.sum():,} tokens lost")
        assert f": {share:.2%} of all" in line


@pytest.mark.parametrize("overflow", ["truncate", "drop"])
def test_long_pairs_are_reported_with_their_share_of_the_tokens(tmp_path, overflow):
    file = pairs(tmp_path, texts(300, [5] * 9 + [40]))
    limits = {"batch__on_overflow": overflow, "model__max_positions": 32}
    data, lines = load(tmp_path, "translate", file, data__holdout=30, **limits)
    lengths = data.train.lengths
    too_long = lengths.max(axis=1) > 32
    lost = {
        "truncate": np.maximum(lengths - 32, 0).sum(),
        "drop": lengths[too_long].sum(),
    }
    share = lost[overflow] / lengths.sum()
    (line,) = [line for line in lines if "pairs are longer" in line and line[0].isdigit()]
    assert line.startswith(f"{too_long.sum()} of 270 pairs are longer than 32 tokens: ")
    assert line.endswith(f", {share:.2%} of all tokens") and too_long.any()


def test_positions_have_room_for_longer_texts():
    assert [positions_for(n) for n in (1, 42, 60, 100, 200, 5_000)] == [64, 64, 128, 256, 512, 512]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.max_positions", 32),
        ("model.d_model", 32),
        ("batch.tokens", 300),
        ("train.steps", 7),
        ("train.warmup", 3),
        ("train.learning_rate", 0.5),
        ("train.validate_every", 2),
    ],
)
def test_what_a_user_sets_is_kept(tmp_path, key, value):
    data, lines = load(tmp_path, "classify", table(tmp_path, texts(300, [5, 9])), **{key: value})
    assert data.recipe.value(key) == value
    line = next(line for line in lines if line.startswith("for the size of the data"))
    assert f"{key}=" not in line
    if key == "batch.tokens":
        lengths = data.train.lengths
        updates = len(plan_epoch(lengths, data.batches, seed=data.recipe.train.seed, epoch=0))
        assert data.recipe.train.steps == max(WITH_PATH.fewest_steps, WITH_PATH.epochs * updates)
    if key == "model.d_model":
        assert data.config.d_ff == 4 * value


@pytest.mark.slow
def test_accumulated_batches_are_one_update(tmp_path):
    file = table(tmp_path, texts(4_000, [9, 15]))
    data, _ = load(tmp_path, "classify", file, train__accumulate=2)
    updates = len(data.plan(data.train, 0)) / 2
    assert data.recipe.train.steps == max(100, round(WITH_PATH.epochs * updates))


@pytest.mark.parametrize(("words", "expected"), [(2, 15), (40, None)])
def test_answers_are_as_long_as_those_of_training(tmp_path, words, expected):
    """Also in the folder of the model, for predictions."""
    rng = random.Random(2)
    rows = []
    for number, context in enumerate(texts(60, [80])):
        start = context.index(" ", rng.randrange(100)) + 1
        text = " ".join(context[start:].split()[:words])
        answer = {"text": text, "answer_start": start}
        rows.append(
            json.dumps({"question": f"q {number}", "context": context, "answers": [answer]})
        )
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    data, lines = load(tmp_path, "answer", str(tmp_path / "a.jsonl"))
    first, last = data.train.labels[data.train.labels[:, 0] > 0].T
    longest = int((last - first + 1).max())
    chosen = data.recipe.value("task.max_answer_length")
    assert chosen == (expected or longest) and (words == 2) == (longest < 15)
    assert f"task.max_answer_length={chosen} " in "\n".join(lines)
    assert data.objective.settings.max_answer_length == chosen
    data.objective.save(tmp_path / "saved")
    reader, _ = read_tokenizers(UntrustedPath(tmp_path / "saved", tmp_path))
    assert most_answer_tokens(reader) == chosen
    given, _ = load(tmp_path, "answer", str(tmp_path / "a.jsonl"), task__max_answer_length=7)
    assert given.objective.settings.max_answer_length == 7


# --- runs -----------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.d_ff": 16,
    "train.precision": "float32",
    "train.device": "cpu",
    "train.samples": 0,
}


@pytest.mark.slow
def test_a_continued_run_keeps_what_was_counted(tmp_path):
    settings = TINY | {"data.train": table(tmp_path, texts(400, [3, 40])), "data.holdout": 0.1}
    settings["model.linear_path"] = False  # for which more steps are estimated than the fewest
    folder = tmp_path / "run"
    view = RecordingView()
    train("classify", out=folder, view=view, **settings)
    recorded = load_recipe(folder)
    assert recorded.sized == []
    assert f"train.steps={recorded.train.steps} " in "\n".join(view.lines)
    assert read_config(folder / "model").max_positions == recorded.model.max_positions
    assert load_recipe("classify", settings).train.steps != recorded.train.steps  # an estimate
    again = with_recorded_sizes(load_recipe("classify", settings), RunFolder(folder))
    assert again.model_dump() == recorded.model_dump() and again.sized == []
    assert train("classify", out=folder, resume="auto", view=view, **settings).stopped_by == "steps"
    assert view.lines[-1].startswith("nothing to do")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The settings of a run, and its folder; without the fewest steps, so that it is short."""
    folder = tmp_path_factory.mktemp("whole")
    settings = TINY | {"data.train": table(folder, texts(100, [3, 40]))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "WITH_PATH", WITH_PATH._replace(fewest_steps=1))
        train("classify", out=folder / "run", view=RecordingView(), **settings)
        yield settings, folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["recipe", "run"])
def test_a_run_that_was_killed_before_it_counted_counts_when_it_continues(
    tmp_path, monkeypatch, whole, command
):
    """The estimates in its recipe.yaml are no sizes that it keeps."""
    settings, expected = whole

    class Killed(BaseException):
        pass

    def die(*_: Any) -> Any:
        raise Killed

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "load_data", die)
        patch.setattr(RunFolder, "removed_on_failure", nullcontext)
        with pytest.raises(Killed):
            train("classify", out=folder, view=RecordingView(), **settings)
    assert json.loads((folder / "environment.json").read_text())["estimated"]
    assert load_recipe(folder).train.steps != load_recipe(expected).train.steps
    if command == "run":
        train(folder, resume="auto", view=RecordingView())
    else:
        train("classify", out=folder, resume="auto", view=RecordingView(), **settings)
    assert load_recipe(folder).model_dump() == load_recipe(expected).model_dump()
    weights = [run / "model" / "model.safetensors" for run in (folder, expected)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert "estimated" not in json.loads((folder / "environment.json").read_text())
