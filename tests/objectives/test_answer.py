"""Question answering: labels of windows, the loss, predictions, scores, and invalid data."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.command_line import run_command
from tests.models import ONE_LAYER
from tests.objectives.common import eval_context, random_model

from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.errors import DataError, SettingsError
from trifold.nn import ModelConfig
from trifold.objectives.answer import UNKNOWN, AnswerSettings, label_windows
from trifold.objectives.objective import BuildContext
from trifold.predict.answer import answer
from trifold.predict.model_reader import ModelReader
from trifold.scores.squad import SquadScore
from trifold.text import TokenizerSettings, train_tokenizer

MODEL = ONE_LAYER | {
    "shape": "encoder", "positions": "learned", "n_token_types": 2, "heads": ["span"],
    "max_positions": 40, "dropout": 0.0,
}  # fmt: skip
SPECIAL = {"special": ["cls", "sep", "mask"], "min_frequency": 1}
CONTEXT = "Ada wrote the first program. Grace wrote a compiler; Linus, much later, wrote a kernel and a tool."


def question(text="Grace", name="q", start=None, **more):
    """A question with an answer in CONTEXT, or with none if `text` is None."""
    answers = []
    if text is not None:
        answers = [{"text": text, "answer_start": CONTEXT.find(text) if start is None else start}]
    return {
        "id": name,
        "question": "Who wrote a compiler?",
        "context": CONTEXT,
        "answers": answers,
    } | more


def write(folder, rows, name="qa.jsonl"):
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def build(folder, rows, lines=None, tokenizer=None, data=None, **values):
    """The objective and its rows, for a file of these rows."""
    file = rows if isinstance(rows, str) else write(folder, rows)
    context = BuildContext(
        DataSettings.parse({"train": file, "valid": file} | (data or {})),
        TokenizerSettings.parse(tokenizer or {"kind": "word"} | SPECIAL),
        ModelConfig.parse(MODEL), BatchSettings(), 1, folder / "run", (lines if lines is not None else []).append,
    )  # fmt: skip
    return AnswerSettings.parse({"max_length": 18, "stride": 4} | values).build(context)


def question_numbers(bundle):
    """The number of the question of each window."""
    return np.repeat(
        np.arange(len(bundle.valid)),
        [len(parts) for parts in bundle.objective.windows(bundle.valid)],
    )


# --- labels ---------------------------------------------------------------------------------------

ALPHABET = "ab cde fgh, ij. Äßß é 😀 日本\u00a0"


@pytest.fixture(scope="module")
def tokenizers():
    rng = random.Random(1)
    texts = ["".join(rng.choices(ALPHABET, k=40)) for _ in range(60)] + ["who wrote what"]
    return {
        kind: train_tokenizer(
            texts, TokenizerSettings.parse({"kind": kind, "vocab_size": size} | SPECIAL)
        )
        for kind, size in (
            ("word", 120),
            ("bpe", 60),
            ("byte-bpe", 300),
            ("unigram", 60),
            ("char", 60),
        )
    }


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("kind", ["word", "bpe", "byte-bpe", "unigram", "char"])
@settings(max_examples=60, deadline=None)
@given(context=st.text(ALPHABET, min_size=1, max_size=50), data=st.data())
def test_labels_map_back_to_the_tokens_that_contain_the_answer(tokenizers, kind, context, data):
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    whole = tokenizers[kind].rows(["who"], [context])[0]
    tokens = [span for span, side in zip(whole.offsets, whole.texts, strict=True) if side == 1]
    inside = [span for span in tokens if any(start <= place < end for place in range(*span))]
    parts = tokenizers[kind].windows("who", context, max_length=14, stride=5)
    labels = label_windows(parts, start, end)
    if not inside:
        assert labels == [(UNKNOWN, UNKNOWN)] * len(parts)
        return
    first, last = min(begin for begin, _ in inside), max(finish for _, finish in inside)
    found = 0
    for part, (begin, finish) in zip(parts, labels, strict=True):
        own = [span for span, side in zip(part.offsets, part.texts, strict=True) if side == 1]
        if begin > 0:
            found += 1
            assert part.texts[begin] == part.texts[finish] == 1
            assert (part.offsets[begin][0], part.offsets[finish][1]) == (first, last)
            assert (
                part.offsets[begin][1] > start and part.offsets[finish][0] < end
            )  # no token too many
        elif begin == 0:
            assert finish == 0 and not {*inside} <= {*own}
    assert found or {label for pair in labels for label in pair} == {UNKNOWN}


def test_windows_without_the_whole_answer_point_to_the_class_token(tmp_path):
    bundle = build(
        tmp_path, [question("Ada"), question(None, "none"), question("kernel and a tool", "late")]
    )
    examples, parts = (
        bundle.objective.examples(bundle.valid),
        [*bundle.objective.windows(bundle.valid)],
    )
    assert len(parts[0]) > 2
    for row, texts in enumerate(["Ada", None, "kernel and a tool"]):
        labels = examples.labels[question_numbers(bundle) == row].tolist()
        spans = {
            CONTEXT[part.offsets[first][0] : part.offsets[last][1]]
            for part, (first, last) in zip(parts[row], labels, strict=True)
            if first
        }
        assert spans == ({texts} if texts else set())
        assert [0, 0] in labels


@pytest.mark.slow
def test_answers_in_no_window_are_reported_and_not_in_the_loss(tmp_path):
    lines = []
    bundle = build(tmp_path, [question("Ada"), question(CONTEXT, "long")], lines)
    examples = bundle.objective.examples(bundle.valid)
    assert lines[-1] == "qa.jsonl: 1 answers match no tokens of a single window: not in the loss"
    assert (examples.labels[question_numbers(bundle) == 1] == UNKNOWN).all()
    batch = bundle.objective.batch(examples, np.arange(len(examples.labels)))
    assert batch.tokens == (question_numbers(bundle) == 0).sum() < len(examples.labels)
    model = random_model(bundle.config)
    alone = bundle.objective.batch(examples, np.flatnonzero(question_numbers(bundle) == 0))
    torch.testing.assert_close(
        bundle.objective.loss(model, batch)["tokens"].sum,
        bundle.objective.loss(model, alone)["tokens"].sum,
    )


# --- loss, predictions, scores --------------------------------------------------------------------


@torch.no_grad()
def test_the_loss_is_the_mean_of_start_and_end_over_context_and_class_token(tmp_path):
    bundle = build(tmp_path, [question("Grace"), question(None, "none")])
    objective, model = bundle.objective, random_model(bundle.config)
    examples, expected = objective.examples(bundle.valid), 0.0
    parts = [part for windows in objective.windows(bundle.valid) for part in windows]
    reader = ModelReader(model, objective.tokenizer)
    for part, logits, labels in zip(
        parts, reader.run_rows(parts, reader.head("span")), examples.labels, strict=True
    ):
        read = [0, *(place for place, side in enumerate(part.texts) if side == 1)]
        for column, label in enumerate(labels):
            expected -= float(logits[read, column].log_softmax(0)[read.index(label)]) / 2
    batch = objective.batch(examples, np.arange(len(parts)))
    assert float(objective.loss(model, batch)["tokens"].sum) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("impossible", [False, True])
def test_predictions_and_scores_are_those_of_predict(tmp_path, impossible):
    rows = [question("Grace"), question("Ada", "p", question="Who wrote the first program?")]
    rows += [question(None, "none")] * impossible
    bundle = build(tmp_path, rows, max_answer_length=6)
    objective, model = bundle.objective, random_model(bundle.config)
    result = objective.evaluate(
        model, bundle.valid, objective.examples(bundle.valid), eval_context(samples=3)
    )
    columns = bundle.valid.columns
    found = answer(
        ModelReader(model, objective.tokenizer), columns["question"], columns["context"],
        max_length=18, stride=4, max_answer_length=6, impossible=impossible,
    )  # fmt: skip
    assert [sample.ours for sample in result.samples] == [best.text for (best,) in found]
    assert [sample.source for sample in result.samples] == [row["question"] for row in rows]
    score = SquadScore()
    score.add(
        [[each["text"] for each in row["answers"]] for row in rows],
        [best.text for (best,) in found],
    )
    assert result.scores == score.values() and ("no_answer_f1" in result.scores) == impossible
    assert (result.value, result.signatures) == (result.scores["f1"], [score.signature])


@pytest.mark.slow
def test_a_trained_model_answers_its_questions_with_every_command(tmp_path):
    rng, rows = random.Random(1), []
    for number in range(24):
        name, town, animal = (
            rng.choice(["Ada", "Ben", "Cleo"]),
            rng.choice(["Rome", "Oslo"]),
            rng.choice(["cat", "dog"]),
        )
        context = f"{name} lives in {town} with a {animal}."
        asked, text = rng.choice([("Who?", name), ("Where?", town), ("With which animal?", animal)])
        rows.append(question(None, f"q{number}", question=asked, context=context))
        if number % 6:
            rows[-1]["answers"] = [{"text": text, "answer_start": context.index(text)}]
        else:
            rows[-1]["question"] = "When?"
    file, run = write(tmp_path, rows), str(tmp_path / "run")
    done = run_command(
        "train", "answer", f"data.train={file}", f"data.valid={file}", "tokenizer.kind=word",
        "tokenizer.min_frequency=1", "model.d_model=32", "model.max_positions=64", "model.dropout=0",
        "model.attention_dropout=0", "train.steps=60",
        "train.validate_every=60", "train.save_every=60", "train.learning_rate=0.005", "--out", run,
    )  # fmt: skip
    assert done.code == 0, done.err
    scores = json.loads(run_command("eval", run, file, "--json").out)["scores"]
    assert set(scores.values()) == {100.0} and len(scores) == 6
    asked = (rows[1]["question"], "--context", rows[1]["context"], "--json")
    outputs = json.loads(run_command("predict", run, *asked).out)["outputs"]
    assert [one["text"] for one in outputs] == [rows[1]["answers"][0]["text"]]
    asked = ("When?", "--context", rows[1]["context"], "--impossible", "--json")
    assert json.loads(run_command("predict", run, *asked).out)["outputs"][0]["text"] == ""


# --- data -----------------------------------------------------------------------------------------


def test_squad_jsonl_and_hub_forms_give_the_same_rows(tmp_path):
    rows = [question("Grace"), question(None, "none")]
    squad = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [{**row} for row in rows]}]}]}
    (tmp_path / "qa.json").write_text(json.dumps(squad), encoding="utf-8")
    lists = [
        row
        | {
            "answers": {
                key: [each[key] for each in row["answers"]] for key in ("text", "answer_start")
            }
        }
        for row in rows
    ]
    files = [str(tmp_path / "qa.json"), write(tmp_path, rows), write(tmp_path, lists, "hub.jsonl")]
    found = [build(tmp_path, file).valid.columns for file in files]
    assert found[0] == found[1] == found[2]
    assert found[0]["answers"] == [[{"text": "Grace", "start": 29}], []]


EMPTY = {
    "an empty list": [],
    "an empty text": [{"text": "", "answer_start": 0}],
    "a blank text": [{"text": " \t", "answer_start": -1}],
    "no start": [{"text": ""}],
    "null": [{"text": None, "answer_start": None}],
    "several": [{"text": "", "answer_start": 0}, {"text": "", "answer_start": 900}],
    "two lists": {"text": [], "answer_start": []},
    "lists with an empty text": {"text": [""], "answer_start": [-1]},
    "lists without a start": {"text": [""], "answer_start": []},
    "an object": {"text": "", "answer_start": -1},
    "only a text": "",
    "only a blank text": "  ",
}


@pytest.mark.parametrize("case", EMPTY)
def test_an_answer_with_an_empty_text_is_no_answer(tmp_path, case):
    lines = []
    rows = [question("Ada"), question(answers=EMPTY[case], id="none")]
    bundle = build(tmp_path, rows, lines)
    for found in (bundle.train, bundle.valid):
        assert found.columns["answers"] == [[{"text": "Ada", "start": 0}], []]
    assert lines[0].startswith("qa.jsonl: 2 rows, ") and lines[0].endswith(", 1 without an answer")
    examples = bundle.objective.examples(bundle.train)
    assert not examples.labels[question_numbers(bundle) == 1].any()


def test_an_empty_answer_beside_another_is_left_out(tmp_path):
    answers = [{"text": "", "answer_start": 0}, {"text": "Grace", "answer_start": 29}]
    bundle = build(tmp_path, [question("Ada"), question(answers=answers, id="p")])
    assert bundle.valid.columns["answers"][1] == [{"text": "Grace", "start": 29}]


@torch.no_grad()
def test_a_model_is_trained_and_measured_with_empty_answers(tmp_path):
    rows = [question("Grace"), question("", "none", start=3)]
    bundle = build(tmp_path, rows)
    objective, model = bundle.objective, random_model(bundle.config)
    examples = objective.examples(bundle.train)
    batch = objective.batch(examples, np.arange(len(examples.labels)))
    assert torch.isfinite(objective.loss(model, batch)["tokens"].sum)
    found = objective.evaluate(model, bundle.valid, examples, eval_context(samples=2))
    assert {"answerable_f1", "no_answer_f1"} <= {*found.scores}
    assert found.samples[1].reference == ""


@pytest.mark.parametrize("impossible", [True, False, None])
def test_squad_files_may_have_empty_answers(tmp_path, impossible):
    row = question("", "none", start=3)
    row |= {} if impossible is None else {"is_impossible": impossible}
    qas = [question("Grace"), row]
    squad = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    (tmp_path / "qa.json").write_text(json.dumps(squad), encoding="utf-8")
    lines = []
    bundle = build(tmp_path, str(tmp_path / "qa.json"), lines)
    assert bundle.valid.columns["answers"] == [[{"text": "Grace", "start": 29}], []]
    assert lines[0].endswith(", 1 without an answer")


AS_CELLS = {
    "JSON": ("answers", lambda text, start: json.dumps([{"text": text, "answer_start": start}])),
    "Python": ("answers", lambda text, start: str({"text": [text], "answer_start": [start]})),
    "columns": ("answer,answer_start", lambda text, start: (text, start)),
    "numbers of pandas": ("answer_text,answer_start", lambda text, start: (text, f"{start}.0")),
}


@pytest.mark.parametrize("case", AS_CELLS)
@pytest.mark.parametrize("empty", [("", 0), ("", -1), None])
def test_tables_have_answers_in_cells_or_columns(tmp_path, case, empty):
    names, cells = AS_CELLS[case]
    file = tmp_path / "qa.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["question", "context", *names.split(",")])
        for answer in (("Grace", 29), empty):
            found = [""] * (names.count(",") + 1) if answer is None else cells(*answer)
            found = [found] if isinstance(found, str) else found
            table.writerow(["Who?" if answer else "When?", CONTEXT, *found])
    bundle = build(tmp_path, str(file))
    assert bundle.valid.columns["answers"] == [[{"text": "Grace", "start": 29}], []]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            question("Grace", "x", start=3),
            r"qa\.jsonl, question 'x': the answer 'Grace' is not at character 3",
        ),
        (question("Grace", "x", start="3"), r"question 'x': answer_start of 'Grace' is '3'"),
        (
            question(answers="Grace"),
            r"qa\.jsonl:1: 'answers' is 'Grace', expected a list of answers",
        ),
        (
            question(answers="Grace", answer_start=3),
            r"question 'q': the answer 'Grace' is not at character 3",
        ),
        (question(answers="[3"), r"qa\.jsonl:1: 'answers' is '\[3', expected a list of answers"),
        (question(answers=3), r"qa\.jsonl:1: 'answers' is 3, expected a list of answers"),
        (question(answers=None), r"qa\.jsonl:1: 'answers' is None, expected a list of answers"),
        (question(context=3), r"qa\.jsonl:1: 'context' is a value of type int"),
        ({"question": "a", "context": "b"}, r"qa\.jsonl:1: no value 'answers'"),
        (
            question(None, "x", question="who " * 20),
            r"qa\.jsonl, question 'x': .* raise max_length",
        ),
    ],
)
def test_invalid_questions_name_file_and_id_or_line(tmp_path, row, message):
    def read():
        bundle = build(tmp_path, [row])
        bundle.objective.examples(bundle.valid)

    with pytest.raises(DataError, match=message):
        read()


def test_a_tokenizer_without_class_token_is_an_error(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"a class token in front.* set tokenizer\.kind=bpe and tokenizer\.special=",
    ):
        build(tmp_path, [question()], tokenizer={"kind": "word", "min_frequency": 1})
