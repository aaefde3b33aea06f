"""Summarization: columns, several references, truncated sources, ROUGE."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.objectives.common import eval_context

import trifold
from trifold.data import DataSettings
from trifold.errors import DataError
from trifold.objectives.evaluation import EvalRun
from trifold.objectives.summarize import Summarize, SummarizeSettings
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train.monitor import View

ROWS = [
    {"id": 1, "source": ["a b c.", "d e f."], "target": ["a b.", "d e f."]},
    {"id": 2, "source": "g h i j k l m n", "target": "g h"},
    {"id": 3, "source": ["n o."], "target": ["n"]},
]


@pytest.fixture
def read(tmp_path):
    def read(rows=ROWS, name="a.jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows) if name.endswith("jsonl") else rows
        (tmp_path / name).write_text(text, encoding="utf-8")
        return SummarizeSettings().read(str(tmp_path / name), DataSettings(), "train")

    return read


@pytest.fixture
def objective(read):
    settings = TokenizerSettings(kind="word", vocab_size=60, min_frequency=1)
    tokenizer = train_tokenizer([*read().sources, *read().targets], settings)
    return Summarize(SummarizeSettings(max_source=5), tokenizer, tokenizer)


def test_sentences_are_joined_and_the_first_reference_is_the_target(read):
    rows = read()
    assert rows.sources == ["a b c. d e f.", "g h i j k l m n", "n o."]
    assert rows.targets == ["a b.", "g h", "n"]
    assert rows.columns["target"][0] == ["a b.", "d e f."]
    assert "not used: id" in str(rows.report)
    train, held = rows.hold_out(1, seed=1)
    assert sorted([*train.targets, *held.targets]) == sorted(rows.targets)


@pytest.mark.parametrize(
    "header", ["document,summary", "article,highlights", "dialogue,summary", "text,summary"]
)
def test_columns_are_recognized_in_tables(read, header):
    rows = read(f'{header}\n"one, two",three\n', "a.csv")
    assert (rows.sources, rows.targets) == (["one, two"], ["three"])


def test_a_row_without_a_reference_is_an_error(read):
    with pytest.raises(DataError, match=r"a\.jsonl:1: 'target' is an empty list; remove the row"):
        read([{"source": "a", "target": []}])


def test_empty_references_among_others_are_counted(read):
    rows = read([{"source": "a", "target": ["b", " "]}, {"source": "c", "target": ["d", "e"]}])
    assert "1 row with an empty reference among others" in str(rows.report)


def test_long_sources_are_truncated_and_counted(read, objective):
    examples, end = objective.examples(read()), objective.source.eos_id
    assert (examples.sources.lengths <= 5).all()
    assert [row[-1] for row in examples.sources.tolist()] == [end] * 3
    whole = objective.source.encode(read().sources)
    assert [row[:-1] for row in examples.sources.tolist()] == [row[:4] for row in whole]
    assert str(objective.truncation).startswith("2 texts cut to fit, ")
    assert (
        objective.target.decode([row[:-1] for row in examples.targets.tolist()]) == read().targets
    )


def test_scores_are_those_of_rouge_score(read, objective, monkeypatch):
    """The best of the references for each score, and the mean over the rows."""
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(
        ["rouge1", "rouge2", "rougeL"]
    )
    outputs, rows = ["d f a", "g x", "n"], read()
    monkeypatch.setattr(objective, "outputs", lambda *_: outputs)
    found = objective.compute_scores(
        EvalRun(None, rows, objective.examples(rows), eval_context(), {})
    )
    for name, value in found.scores.items():
        best = [
            max(scorer.score(each, output)[name].fmeasure for each in references)
            for references, output in zip(rows.columns["target"], outputs, strict=True)
        ]
        assert value == pytest.approx(100 * np.mean(best))
    assert found.scores["rouge1"] > found.scores["rouge2"]


def test_the_script_of_the_references_is_reported(read):
    rows = read([{"source": "a", "target": "Собака бежит."}])
    note = "ROUGE: Unicode words, by the script of the references"
    assert SummarizeSettings().script_note(rows) == note
    assert SummarizeSettings().script_note(read()) is None


@pytest.mark.slow
def test_it_trains_from_scratch_and_from_an_encoder_decoder(tmp_path):
    rows = [{"document": f"{a} {b} x y z", "summary": f"{b}"} for a in "pqrs" for b in "abcdefgh"]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    changes = {
        "data.train": str(file), "data.valid": str(file), "train.steps": 2, "train.warmup": 1,
        "train.validate_every": 2, "train.save_every": 2, "train.device": "cpu", "train.precision": "float32",
        "generate.max_new_tokens": 3, "task.max_source": 4,
    }  # fmt: skip
    small = {"model.d_model": 16, "model.n_layers": 1, "model.d_ff": 16}
    first = trifold.train("summarize", out=tmp_path / "one", view=View(), **changes, **small)
    assert {*first.scores} == {"rouge1", "rouge2", "rougeL"}
    lines = []
    view = type("Recorder", (View,), {"say": lambda self, line: lines.append(line)})()
    start = {"start_from": str(tmp_path / "one")}
    second = trifold.train("summarize", out=tmp_path / "two", view=view, **changes, **start)
    assert second.finished and any("0 new" in line for line in lines), lines
    # Of both sets of rows, once.
    (cut,) = (line for line in lines if "cut to fit" in line)
    assert cut.startswith("64 texts cut to fit, ")
