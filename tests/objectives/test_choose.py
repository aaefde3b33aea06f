"""Multiple choice: formats, the loss by hand, and the logits of transformers."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from tests.command_line import run_command
from tests.models import ONE_LAYER
from tests.objectives.common import eval_context, random_model
from tests.predict.references import TEXTS, both

import trifold
from trifold.batches import BatchSettings
from trifold.data import DataSettings
from trifold.errors import DataError
from trifold.nn import ModelConfig
from trifold.objectives.choose import ChooseSettings
from trifold.objectives.objective import BuildContext
from trifold.text import TokenizerSettings

ROWS = [
    {"question": "who runs", "choices": ["a dog", "a stone", "the sea"], "label": 0},
    {"question": "what is wet", "choices": ["the fire", "the sea"], "label": "B"},
    {
        "question": "what is hot",
        "choices": ["ice", "snow", "the fire", "rain"],
        "label": "the fire",
    },
    {
        "question": "who sings",
        "choices": {"label": ["A", "B"], "text": ["a bird", "a table"]},
        "label": "A",
    },
]
LABELS = [0, 1, 2, 0]
MODEL = ONE_LAYER | {
    "shape": "encoder", "positions": "learned", "n_token_types": 2, "max_positions": 24,
    "dropout": 0.0, "heads": ["pooler", "choice"], "classifier_input": "pooler",
}  # fmt: skip
SPECIAL = {"kind": "word", "min_frequency": 1, "special": ["cls", "sep", "mask"]}


@pytest.fixture
def build(tmp_path):
    def build(rows, name="rows.jsonl", report=lambda line: None):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name).write_text(text, encoding="utf-8")
        data = DataSettings.parse(dict.fromkeys(("train", "valid"), str(tmp_path / name)))
        parts = TokenizerSettings.parse(SPECIAL), ModelConfig.parse(MODEL), BatchSettings()
        return ChooseSettings().build(BuildContext(data, *parts, 1, tmp_path / "tokens", report))

    return build


def test_labels_are_numbers_letters_or_texts(build):
    bundle = build(ROWS)
    assert bundle.objective.examples(bundle.valid).labels.tolist() == LABELS
    for label in (3, "D", "a cat", ""):
        with pytest.raises(
            DataError, match=r"rows\.jsonl:1: the label .* of 3 choices|no row is left"
        ):
            build([ROWS[0] | {"label": label}])


def labels(build, rows):
    bundle = build(rows)
    return bundle.objective.examples(bundle.valid).labels.tolist()


def test_an_integer_is_a_number_where_a_choice_has_the_same_text(build):
    mmlu = {"question": "a sum", "choices": ["8", "2", "24", "120"]}
    assert labels(build, [mmlu | {"answer": number} for number in (0, 1, 2, 3)]) == [0, 1, 2, 3]
    by_number, by_text = (
        {"question": "a", "choices": ["x", "y"], "answer": label} for label in ("1", "y")
    )
    assert labels(build, [mmlu | {"answer": "2"}, by_number]) == [2, 1]
    assert labels(build, [mmlu | {"answer": "2"}, by_text]) == [1, 1]
    for others in ([], [by_number, by_text]):
        with pytest.raises(
            DataError, match=r"rows\.jsonl:1: the label '2' is .* of two of 4 choices"
        ):
            build([mmlu | {"answer": "2"}, *others])


def test_names_of_choices_are_looked_up_first(build):
    rows = [
        {
            "question": "a",
            "choices": {"label": names, "text": ["4", "3", "2", "1"]},
            "answerKey": key,
        }
        for names, key in (
            (["1", "2", "3", "4"], "1"),
            (["1", "2", "3", "4"], "4"),
            (["A", "B", "C", "D"], "C"),
        )
    ]
    assert labels(build, rows) == [0, 3, 2]


FORMATS = [
    ({"sentence": "s", "option1": "x", "option2": "y"}, "answer", ["1", "2"], [0, 1]),  # Winogrande
    ({"context": "c", "question": "q", "answerA": "x", "answerB": "y", "answerC": "z"}, "label",
     ["1", "3"], [0, 2]),  # SIQA
    ({"premise": "p", "choice1": "x", "choice2": "y", "question": "cause"}, "label", [0, 1], [0, 1]),  # COPA
    ({"goal": "g", "sol1": "x", "sol2": "y"}, "label", [1, 0], [1, 0]),  # PIQA
    ({"ctx_a": "n", "ctx": "c", "endings": ["x", "y", "z"]}, "label", ["2", "1"], [2, 1]),  # HellaSwag
    ({"question_stem": "s", "choices": {"text": ["x", "y"], "label": ["A", "B"]}}, "answerKey",
     ["B", "A"], [1, 0]),  # OpenBookQA
]  # fmt: skip
FIRST = ["s", "c", "p", "g", "c", "s"]


@pytest.mark.parametrize(("case", "first"), [*zip(FORMATS, FIRST, strict=True)])
def test_published_formats_are_read(build, case, first):
    row, column, given, expected = case
    bundle = build([row | {column: label} for label in given])
    assert bundle.objective.examples(bundle.valid).labels.tolist() == expected
    assert bundle.valid.columns["text"] == [first] * 2
    # The model reads the question before each choice; the choices stay as they are written.
    question = row.get("question")
    assert bundle.valid.columns["choices"][0][:2] == ["x", "y"]
    pairs = bundle.objective.examples(bundle.valid).texts.tolist()
    read = bundle.objective.tokenizer.decode(pairs[:2])
    for text, choice in zip(read, ["x", "y"], strict=True):
        assert text.split() == [first, *filter(None, [question]), choice]


def test_samples_have_the_choices_as_they_are_written(build):
    rows = [{"context": "c", "question": "q", "choices": ["x", "y"], "label": n} for n in (0, 1)]
    bundle = build(rows)
    model = random_model(bundle.config)
    examples = bundle.objective.examples(bundle.valid)
    context = dataclasses.replace(eval_context(8), samples=2)
    found = bundle.objective.evaluate(model, bundle.valid, examples, context).samples
    assert [each[:2] for each in found] == [("c q", "x"), ("c q", "y")]
    assert {each.ours for each in found} <= {"x", "y"}


def test_missing_choices_are_reported_with_the_setting(build):
    with pytest.raises(DataError, match=r"rows\.jsonl:1: no choices; set data\.columns\.choices"):
        build([{"question": "q", "one": "x", "two": "y", "label": 0}])


def test_a_row_has_at_least_two_choices(build):
    with pytest.raises(DataError, match=r"rows\.jsonl:5: a single choice; a row needs two or more"):
        build([*ROWS, {"question": "q", "choices": ["x"], "label": 0}])


def test_equal_choices_are_reported_with_the_first_line(build):
    reported = []
    equal = {"question": "q", "choices": ["x", "x "], "label": 0}
    blank = {"question": "q", "choices": ["x", " "], "label": 0}
    build([*ROWS, equal, blank], report=reported.append)
    warning = (
        "warning: rows.jsonl: 1 row with equal choices, the first in line 5; correct or remove"
    )
    assert any(line.startswith(warning) for line in reported)
    assert any("1 row with a blank choice, the first in line 6" in line for line in reported)


def test_columns_of_choices_are_read_as_lists(build):
    table = (
        "sent1,sent2,ending0,ending1,ending2,label\nit rains,so she,runs,sleeps,,0\na,b,c,d,e,2\n"
    )
    lists = [
        {"sent1": "it rains", "sent2": "so she", "endings": ["runs", "sleeps"], "label": 0},
        {"sent1": "a", "sent2": "b", "endings": ["c", "d", "e"], "label": "C"},
    ]
    one, two = (
        bundle.objective.examples(bundle.valid) for bundle in (build(table, "t.csv"), build(lists))
    )
    assert one.starts.tolist() == two.starts.tolist() == [0, 2, 5]
    assert one.labels.tolist() == two.labels.tolist() == [0, 2]
    assert one.lengths.tolist() == two.lengths.tolist() == [[3 + 5], [3 + 3]]


@torch.no_grad()
def test_the_loss_is_a_softmax_over_the_choices_of_each_row_in_any_batch(build):
    bundle = build(ROWS)
    objective, model = bundle.objective, random_model(bundle.config)
    examples = objective.examples(bundle.valid)
    logits = objective.logits(model, objective.batch(examples, np.arange(4)))
    expected = 0.0
    for row, count in enumerate([3, 2, 4, 2]):
        alone = objective.logits(model, objective.batch(examples, np.array([row])))
        torch.testing.assert_close(alone[0], logits[row, :count], rtol=1e-4, atol=1e-5)
        assert torch.isneginf(logits[row, count:]).all()
        expected -= float(alone[0].log_softmax(-1)[LABELS[row]])
    found = objective.loss(model, objective.batch(examples, np.arange(4)))["tokens"]
    assert (float(found.sum), found.count) == (pytest.approx(expected, rel=1e-4), 4)
    small, large = (
        objective.evaluate(model, bundle.valid, examples, eval_context(n)) for n in (8, 200)
    )
    assert (
        small.loss == pytest.approx(large.loss, rel=1e-4) == pytest.approx(expected / 4, rel=1e-4)
    )
    correct = sum(int(logits[row].argmax()) == LABELS[row] for row in range(4))
    assert small.scores == large.scores == {"accuracy": 25.0 * correct}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert"])
@torch.no_grad()
def test_logits_are_those_of_transformers(family, tmp_path):
    found = both(tmp_path, family, "ForMultipleChoice")
    text, *choices = TEXTS
    inputs = found.tokenizer([text] * 3, choices, return_tensors="pt", padding=True)
    theirs = found.theirs(**{name: values[None] for name, values in inputs.items()}).logits[0]
    ours = dict(found.ours.choose(text, choices))
    expected = dict(zip(choices, theirs.softmax(-1).tolist(), strict=True))
    assert ours == pytest.approx(expected, abs=1e-5)
    assert [*ours] == sorted(expected, key=lambda choice: -expected[choice])
    found.ours.save(tmp_path / "again")
    again = type(found.theirs).from_pretrained(tmp_path / "again").eval()
    for one, two in zip(found.theirs.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
def test_a_trained_model_chooses_on_the_command_line(tmp_path):
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS * 4), encoding="utf-8")
    sizes = "model.d_model=16 model.n_layers=1 model.n_heads=2 model.d_ff=24 train.steps=2 train.warmup=1 model.word_matches=false"
    done = run_command(
        "train", "choose", f"data.train={file}", f"data.valid={file}", *sizes.split(), "--out", str(tmp_path / "run")
    )  # fmt: skip
    assert done.code == 0, done.err
    done = run_command(
        "predict", str(tmp_path / "run"), "who runs", "--choices", "a dog", "--choices", "a stone"
    )
    assert sorted(part.rsplit(" ", 1)[0] for part in done.out.strip().split("\t")) == [
        "a dog",
        "a stone",
    ]
    assert sum(float(part.rsplit(" ", 1)[1]) for part in done.out.split("\t")) == pytest.approx(
        1, abs=1e-3
    )
    assert run_command("predict", str(tmp_path / "run"), "who runs").code == 2
    scores = json.loads(run_command("eval", str(tmp_path / "run"), str(file), "--json").out)[
        "scores"
    ]
    assert set(scores) == {"accuracy"}
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(
        tmp_path / "run" / "model"
    ).eval()
    row = trifold.load(tmp_path / "run").reader.rows(["who runs"], ["a dog"])[0]
    ids, types = torch.tensor([[row.ids]]), torch.tensor([[row.types]])
    with torch.no_grad():
        logits = theirs(ids, token_type_ids=types).logits[0]
        ours = trifold.load(tmp_path / "run").logits(ids[0], segments=types[0])
    torch.testing.assert_close(ours[0], logits, rtol=1e-4, atol=1e-5)
