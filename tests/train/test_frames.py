"""Training on data in memory: as on the file with the same rows, and known again on resume."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_frames import Pandas, Polars, rows_of
from tests.train.runs import InterruptingView, RecordingView, lines_of

import trifold
from trifold.errors import DataError, SettingsError, UsageError
from trifold.recipe import load_recipe

COLUMNS = ["id", "text", "label"]
ROWS = [(n, f"the {word} {n % 5}", word) for n in range(12) for word in ("good", "bad")]
TINY: dict[str, Any] = {
    "model.d_model": 8,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.d_ff": 16,
    "train.steps": 4,
    "train.warmup": 1,
    "train.validate_every": 2,
    "train.save_every": 1,
    "train.log_every": 1,
    "train.device": "cpu",
    "train.workers": 1,
    "train.precision": "float32",
}


def train(folder: Path, data: Any, **options: Any) -> Any:
    view = options.pop("view", None) or RecordingView()
    return trifold.train("classify", out=folder, data=data, view=view, **options, **TINY)


def losses(folder: Path) -> list[Any]:
    return [line.get("loss", line.get("valid/loss")) for line in lines_of(folder)]


@pytest.mark.slow
def test_frames_train_as_their_file_and_are_known_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *ROWS])
    train(tmp_path / "file", path)
    train(tmp_path / "frame", Pandas(COLUMNS, ROWS), view=InterruptingView(2))
    recorded = json.loads((tmp_path / "frame" / "data.json").read_text("utf-8"))
    ((name, digest),) = recorded["data.train"].items()
    assert (name, digest["size"]) == ("python:train", 24)

    for rows in (ROWS[::-1], [*ROWS[:-1], (0, "the bad 1", "good")]):
        with pytest.raises(
            DataError, match=r"python:train: the content has changed .*data_changed"
        ):
            trifold.resume(tmp_path / "frame", data=Pandas(COLUMNS, rows))
    with pytest.raises(UsageError, match=r"python:train: .* give it again in Python"):
        trifold.resume(tmp_path / "frame")
    # The library of the frame may be another one.
    outcome = trifold.resume(tmp_path / "frame", data=Polars(COLUMNS, ROWS), view=RecordingView())
    assert outcome.finished
    assert losses(tmp_path / "frame") == losses(tmp_path / "file")

    pipe = trifold.load(tmp_path / "frame")
    texts = [row[1] for row in ROWS[:5]]
    expected = pipe.predict(texts)
    for data in (
        Pandas(COLUMNS, ROWS[:5]),
        Polars(COLUMNS, ROWS[:5]),
        rows_of(COLUMNS, ROWS[:5]),
        {"text": texts},
        iter(texts),
    ):
        assert pipe.predict(data) == expected
    assert pipe.classify(rows_of(COLUMNS, ROWS[:5])) == expected
    found = pipe.search(texts[0], Pandas(COLUMNS, ROWS[:5]))
    assert found == pipe.search(texts[0], texts)
    with pytest.raises(UsageError, match=r"columns 'a', 'b', none of which .* frame\['text'\]"):
        pipe.predict(Pandas(["a", "b"], [("x", "y")]))
    for text in (None, float("nan"), 5):
        with pytest.raises(DataError, match="text 2 of 2: a text is a string, not"):
            pipe.predict(["a", text])


@pytest.mark.slow
def test_splits_may_be_in_memory(tmp_path: Path) -> None:
    view = RecordingView()
    data = {"train": rows_of(COLUMNS, ROWS[:16]), "validation": Pandas(COLUMNS, ROWS[16:])}
    train(tmp_path / "run", data, view=view)
    assert any(line.startswith("python:train: 16 rows") for line in view.lines)
    assert any(line.startswith("python:valid: 8 rows") for line in view.lines)
    assert "holdout: 0\n" in (tmp_path / "run" / "recipe.yaml").read_text("utf-8")
    with pytest.raises(SettingsError, match=r"other values of data\.valid \('python:valid'\)"):
        trifold.resume(tmp_path / "run", data=data["train"])
    again = data | {"validation": Pandas(COLUMNS, ROWS[15:])}
    with pytest.raises(DataError, match="python:valid: the content has changed"):
        trifold.resume(tmp_path / "run", data=again)
    assert trifold.resume(tmp_path / "run", data=again, data_changed=True).finished


@pytest.mark.slow
def test_a_first_stage_reads_the_frame(tmp_path: Path) -> None:
    view = RecordingView()
    stage = {"train": {"steps": 2, "warmup": 1}}
    train(tmp_path / "run", Pandas(COLUMNS, ROWS), view=view, pretrain=stage)
    assert sum(line.startswith("python:train: ") for line in view.lines) == 2


def test_a_recipe_with_its_values_takes_no_others(tmp_path: Path) -> None:
    recipe = load_recipe("smoke")
    with pytest.raises(UsageError, match=r"data\.train.*: a Recipe has its values already"):
        trifold.train(recipe, out=tmp_path / "run", data=[{"source": "a", "target": "b"}])
    with pytest.raises(UsageError, match=r"train\.steps: a Recipe has its values already"):
        trifold.train(recipe, out=tmp_path / "run", **{"train.steps": 1})
