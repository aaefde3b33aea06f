"""Several tasks as one: templates, numbers as text, shares, and the scores of each part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.models import ONE_LAYER
from tests.train.runs import RecordingView, values_of

from trifold.errors import DataError, SettingsError
from trifold.objectives.text_to_text import NO_NUMBER, format_number, parse_number, rows_per_part
from trifold.pipeline import load
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [(2.57, 0.2, "2.6"), (5, 0.2, "5.0"), (0.09, 0.2, "0.0"), (3.3, 1, "3"), (0.13, 0.05, "0.15")],
)
def test_format_number_rounds_to_the_step(value, step, text):
    assert format_number(value, step) == text
    assert abs(parse_number(text) - value) <= step / 2 + 1e-9


def test_parse_number_maps_other_text_to_a_constant():
    assert [parse_number(text) for text in (" 3.4 ", "three", "", "nan", "1e999")] == [
        3.4,
        *[NO_NUMBER] * 4,
    ]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6),
    st.integers(1, 3000),
    st.sampled_from([1.0, 2.0, 8.0]),
)
def test_rows_per_part_follow_limited_sizes(sizes, limit, temperature):
    counts = rows_per_part(sizes, limit, temperature)
    capped = np.minimum(sizes, limit)
    assert sum(counts) == capped.sum()
    if temperature == 1:
        assert counts == capped.tolist()  # Raffel et al. 2020, section 3.5.2
    else:
        shares = capped ** (1 / temperature)
        assert np.abs(np.array(counts) - capped.sum() * shares / shares.sum()).max() <= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two parts: copying a word, and a number for two words; one row is blank."""
    folder = tmp_path_factory.mktemp("parts")
    names = ["ant", "bee", "cat", "dog"]
    copies = "\n".join(f"{name}\t{name}" for name in names * 10)
    (folder / "copy.tsv").write_text(f"source\ttarget\n{copies}\n", encoding="utf-8")
    rows = [(a, b, 4.93 if a == b else 1.07) for a in names for b in names]
    likes = "\n".join(f"x\t{score}\t{a}\t{b}" for a, b, score in rows)
    (folder / "like.tsv").write_text(
        f"genre\tscore\tone\ttwo\n{likes}\nx\t3\t\tbee\n", encoding="utf-8"
    )
    parts = {
        "copy": {"input": "copy: {source}"},
        "like": {
            "input": "like one: {one} two: {two}",
            "target": "score",
            "number": 0.2,
            "score": "pearson",
        },
    }
    for name, part in parts.items():
        part |= dict.fromkeys(("train", "valid"), str(folder / f"{name}.tsv"))
    recipe = {
        "task": {"kind": "text-to-text", "parts": parts, "limit": 20},
        "data": {},
        "tokenizer": {"kind": "word", "vocab_size": 60, "min_frequency": 1},
        "model": ONE_LAYER | {"d_ff": 32, "max_positions": 24, "dropout": 0.0},
        "batch": {"tokens": 150},
        "train": {
            "schedule": "constant", "learning_rate": 0.02, "warmup": 4, "precision": "float32", "device": "cpu",
            "steps": 60, "validate_every": 30, "save_every": 30, "keep_last": 4, "log_every": 1,
        },
        "generate": {"max_new_tokens": 4},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def test_templates_are_filled_and_shares_reported(folder, tmp_path):
    view = RecordingView()
    data = load_data(load_recipe(folder / "recipe.yaml"), tmp_path, view)
    rows = data.bundle.train
    assert rows.sources[:1] == ["copy: ant"] and rows.targets[:1] == ["ant"]
    assert (rows.sources[40], rows.targets[40]) == ("like one: ant two: ant", "5.0")
    assert (rows.sources[41], rows.targets[41]) == ("like one: ant two: bee", "1.0")
    report = "\n".join(view.lines)
    assert "like: 1 of 17 rows with a blank text: left out" in report
    for counts in (
        "copy: 40 rows, 20 of them in each epoch",
        "like: 16 rows, 16 of them in each epoch",
    ):
        assert counts in report
    epochs = [data.objective.choose_rows(rows, data.seed_of(epoch)) for epoch in (0, 1, 0)]
    assert epochs[0].tolist() == epochs[2].tolist() != epochs[1].tolist()
    for chosen in epochs:
        assert (
            len(chosen) == len(set(chosen.tolist())) == 36
            and (chosen[20:] == np.arange(40, 56)).all()
        )
    for epoch, chosen in enumerate(epochs[:2]):
        sources = [rows.examples.sources.tolist()[row] for row in chosen]
        assert data.examples(epoch).sources.tolist() == sources
    assert len(data.valid.lengths) == 56


@pytest.mark.slow
def test_a_trained_model_loads_and_generates(folder, tmp_path):
    outcome = train(folder / "recipe.yaml", out=tmp_path)
    losses = [loss for _, loss in values_of(tmp_path, "valid/loss")]
    assert losses[-1] < losses[0]
    assert set(outcome.scores) == {"copy", "like", "mean"}
    assert outcome.scores["mean"] == pytest.approx(
        (outcome.scores["copy"] + outcome.scores["like"]) / 2
    )
    assert outcome.scores["copy"] > 60
    assert "like: Pearson" in next(Path(tmp_path / "samples").glob("*.scores.txt")).read_text(
        "utf-8"
    )
    assert load(tmp_path).generate("copy: bee", max_new_tokens=3)


REJECTED = [
    ({"data.train": "a,b"}, SettingsError, r"move it to task\.parts\.NAME\.train"),
    ({"task.parts": {}}, SettingsError, "no task is named"),
    (
        {"task.parts.copy.input": "copy"},
        SettingsError,
        r"task\.parts\.copy\.input: no column in braces",
    ),
    (
        {"task.parts.copy.inputs": "x"},
        SettingsError,
        r"task\.parts\.copy\.inputs: unknown key; did you mean 'input'",
    ),
    ({"task.parts.copy.valid": None}, SettingsError, r"task\.parts\.copy\.valid: no data"),
    ({"task.parts.copy.number": 0.2}, DataError, "copy.train, line .: 'ant' is not a number"),
    ({"task.parts.copy.score": "pearson"}, SettingsError, "pearson compares numbers"),
    ({"task.parts.copy.input": "{word}"}, DataError, "no column 'word'"),
    ({"model.logit_soft_cap": 5.0}, SettingsError, "never materializes the logits"),
    ({"model.max_positions": 3}, DataError, "no validation row has at most 3 tokens"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REJECTED)
def test_contradictory_settings_are_errors(folder, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        load_data(load_recipe(folder / "recipe.yaml", changes), tmp_path, RecordingView())
