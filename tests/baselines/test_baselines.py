"""Each baseline is trained and printed by the command line, scored as the model is, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.command_line import run_command
from tests.recipes import SIZES

from trifold.baselines.comparison import Comparison, MeasuredSystem
from trifold.baselines.stored import FILE, load_baselines
from trifold.baselines.table import BASELINES, KINDS
from trifold.nn import Transformer
from trifold.objectives.evaluation import EvalContext
from trifold.recipe import load_recipe
from trifold.train.baseline_advice import describe_rival
from trifold.train.data import load_data
from trifold.train.monitor import View

pytestmark = pytest.mark.slow

RUN = (
    "train.steps=2 train.validate_every=2 train.save_every=2 train.warmup=1 train.samples=1 "
    "train.precision=float32 train.device=cpu batch.tokens=400"
).split()
SMALL = [f"model.{key}={value}" for key, value in SIZES.items()]
ENCODER = [*SMALL, "model.preset=bert-base"]
WORDS = ["tokenizer.kind=word", "tokenizer.min_frequency=1"]
GOOD = ["warm", "sun", "fine"]
BAD = ["cold", "rain", "grey"]


def phrase(rng: np.random.Generator, words: list[str]) -> str:
    return " ".join([*rng.choice(["the", "day", "is"], 3), *rng.choice(words, 2)])


def tables() -> dict[str, list[dict[str, Any]]]:
    """Rows whose labels are in their words."""
    rng = np.random.default_rng(0)
    tables: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in "classes numbers sets pairs scores tags answers choices summaries".split()
    }
    for number in range(60):
        is_good = number % 3 > 0
        text = phrase(rng, GOOD if is_good else BAD)
        other = phrase(rng, BAD if is_good else GOOD)
        near = f"so {text}"
        tables["classes"].append({"text": text, "label": "yes" if is_good else "no"})
        tables["numbers"].append({"text": text, "score": 3.5 if is_good else 1.25})
        tables["sets"].append({"text": text, "labels": ["a", "b"] if is_good else ["b"]})
        second = near if is_good else other
        tables["pairs"].append({"sentence1": text, "sentence2": second, "label": int(is_good)})
        score = 4.5 if is_good else 0.25 + number / 100
        tables["scores"].append({"sentence1": text, "sentence2": second, "score": score})
        tags = ["O", "O", "O", "B-X", "I-X"]
        tables["tags"].append({"tokens": text.split(), "tags": tags})
        context = f"{text.capitalize()}. {other.capitalize()}."
        answers = [{"text": text.split()[-1], "answer_start": len(text) - len(text.split()[-1])}]
        tables["answers"].append({"question": text, "context": context, "answers": answers})
        choices = [other, near] if is_good else [near, other]
        tables["choices"].append({"text": text, "choices": choices, "label": int(is_good)})
        source = f"{text.capitalize()} now. {other.capitalize()} then. Nobody knows."
        tables["summaries"].append({"source": source, "target": f"{text} now"})
    return tables


ENCODER_WORDS = [*ENCODER, *WORDS]
# A recipe, its rows, its settings, and the baselines that it has.
CASES: dict[str, tuple[str, str, list[str], list[str]]] = {
    "classes": ("classify", "classes", ENCODER_WORDS, ["always answering 'yes'", "a linear model on words"]),
    "numbers": ("classify", "numbers", ENCODER_WORDS, ["always answering the mean, 2.7", "a linear model on words"]),
    "sets": ("classify", "sets", ENCODER_WORDS, ["always answering 'a, b'", "a linear model on words"]),
    "pairs": ("classify", "pairs", ENCODER_WORDS, ["always answering '1'", "a linear model on shared words", "a linear model on words"]),
    "scores": ("similarity", "scores", ENCODER_WORDS, ["the cosine of TF-IDF", "a linear model on shared words"]),
    "tags": ("tag", "tags", ENCODER_WORDS, ["the most frequent tag of each word", "a linear model on the form of words"]),
    "answers": ("answer", "answers", [*ENCODER[:-2], ENCODER[-1], "model.max_positions=64", "tokenizer.kind=bpe", "tokenizer.special=[cls, sep, mask]"], ["the sentence with most words of the question"]),
    "choices": ("choose", "choices", ENCODER_WORDS, ["always choosing number 2", "the choice with most words of the text"]),
    "summaries": ("summarize", "summaries", [*SMALL, *WORDS], ["the first sentence"]),
}  # fmt: skip
# The scores that the best baseline reaches on rows of which it knows everything.
REACHED = {"numbers": 0.99, "scores": 0.9, "answers": 30.0, "summaries": 99.0}


def train(here: Path, kind: str, *more: str, valid: Path | None = None) -> Any:
    recipe, rows, settings, _ = CASES[kind]
    file = here / f"{rows}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in tables()[rows]), "utf-8")
    data = [f"data.train={file}", f"data.valid={valid or file}"]
    done = run_command("train", recipe, *RUN, *settings, *data, *more, "--out", str(here / "run"))
    assert done.code == 0, done.err
    return done


def unwrapped(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("kind", CASES)
def test_each_baseline_is_printed_and_kept(kind: str, tmp_path: Path) -> None:
    done = train(tmp_path, kind)
    names = CASES[kind][3]
    line = unwrapped(done.out.partition("compared:")[2].partition("\nmodel:")[0])
    assert all(f"{name}" in line for name in names) and "this model: " in line and "±" in line
    run = tmp_path / "run"
    comparison = json.loads((run / "scores.json").read_text())
    assert [each["name"].partition(", 2.")[0] for each in comparison["baselines"]] == [
        name.partition(", 2.")[0] for name in names
    ]
    key = comparison["score"]
    best = max(each["scores"][key] for each in comparison["baselines"])
    assert best >= REACHED.get(kind, 99.0)
    # The table of the validation has the scores of the model that has them here.
    assert comparison["model"]["scores"][key] == pytest.approx(
        json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])[f"valid/{key}"]
    )
    card = (run / "model" / "README.md").read_text("utf-8")
    logged = (run / "metrics.jsonl").read_text()
    for each in comparison["baselines"]:
        assert f"of `{each['name']}` | " in card and f"baseline/{each['name']}" in logged
        low, high = each["intervals"][key]
        assert low - 1e-9 <= each["scores"][key] <= high + 1e-9
    # Evaluated again, the saved baselines have the scores that they had.
    again = run_command("eval", str(run), "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)["comparison"]
    assert [each["name"] for each in found["baselines"]] == [
        each["name"] for each in comparison["baselines"]
    ]
    for one, other in zip(found["baselines"], comparison["baselines"], strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)


def test_every_kind_of_baseline_is_in_a_case() -> None:
    names = {"PixelModel"}  # below
    assert {kind.__name__ for kinds in BASELINES.values() for kind in kinds} == {*KINDS}
    assert names | {
        "FrequentLabel", "Mean", "FrequentChoice", "WordModel", "PairOverlap", "SimilarWords",
        "FrequentTags", "FormModel", "OverlappingSentence", "OverlappingChoice", "LeadSentences",
    } == {*KINDS}  # fmt: skip


def test_baselines_can_be_left_out(tmp_path: Path) -> None:
    done = train(tmp_path, "classes", "train.baselines=false")
    assert "a linear model" not in done.out + done.err and "always answering" not in done.out
    assert "accuracy of 60 texts:" in unwrapped(done.out) and "±" in done.out  # the interval stays
    assert not (tmp_path / "run" / FILE).exists()
    again = run_command("eval", str(tmp_path / "run"))
    assert "baseline" not in again.out + again.err


def test_a_model_that_loses_says_so_and_what_to_try(tmp_path: Path) -> None:
    done = train(tmp_path, "classes", "model.problem_type=single_label_classification")
    assert (
        "a linear model on words is ahead of this model (accuracy 100.0 ± 0.0 against"
        in unwrapped(done.err)
    )
    (command,) = [
        part
        for part in done.err.replace("\n    ", " ").split("`")
        if part.startswith("trifold train classify")
    ]
    assert "start_from=" in command and f"data.train={tmp_path / 'classes.jsonl'}" in command
    assert "model.problem_type=" in command
    # The sizes and the tokenizer are those of the checkpoint.
    assert "model.d_model" not in command and "tokenizer." not in command
    assert "not clearly better" not in done.err  # what the constant answer reaches is said once
    again = run_command("eval", str(tmp_path / "run"))
    assert f"`{command.replace(' --out', '` --out')}"[:60] in again.err.replace("\n    ", " ")
    assert "a linear model on words is ahead of this model" in unwrapped(again.err)


def test_pairs_with_scores_are_for_similarity(tmp_path: Path) -> None:
    recipe, _, settings, _ = CASES["pairs"]
    CASES["numbers of pairs"] = (recipe, "scores", settings, [])
    done = train(tmp_path, "numbers of pairs")
    assert "`trifold train similarity " in done.err.replace("\n    ", " ")


def test_a_run_without_its_file_or_with_a_damaged_one_is_still_evaluated(tmp_path: Path) -> None:
    train(tmp_path, "classes")
    run = tmp_path / "run"
    tensors = load_file(run / FILE)
    (run / FILE).unlink()
    done = run_command("eval", str(run))
    assert done.code == 0 and "no baseline is known" in unwrapped(done.err)
    for name in tensors:  # in one of which a number or a letter is missing
        save_file({**tensors, name: tensors[name][:-1].clone()}, run / FILE)
        done = run_command("eval", str(run))
        assert done.code == 0 and "is no file of baselines" in unwrapped(done.err), name
    table = json.loads(tensors["baselines"].numpy().tobytes())
    table[0]["values"]["labels"] = [7]
    content = torch.frombuffer(bytearray(json.dumps(table).encode()), dtype=torch.uint8)
    save_file({**tensors, "baselines": content}, run / FILE)
    done = run_command("eval", str(run))
    assert done.code == 0 and "do not fit the model" in unwrapped(done.err), done.err
    (run / FILE).write_bytes(b"damaged")
    assert run_command("eval", str(run)).code == 0


def test_baselines_know_the_training_rows_only(tmp_path: Path) -> None:
    """Those of validation rows with the other labels are wrong about all of them."""
    opposite = [
        {**row, "label": "no" if row["label"] == "yes" else "yes"} for row in tables()["classes"]
    ]
    file = tmp_path / "opposite.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in opposite), "utf-8")
    done = train(tmp_path, "classes", valid=file)
    assert "always answering 'yes': 33.3" in unwrapped(done.out)
    assert "a linear model on words: 0.0 ± 0.0" in unwrapped(done.out)


def test_a_resample_has_the_same_rows_of_the_model_and_of_the_baselines(tmp_path: Path) -> None:
    """The model reads rows in the order of their lengths; its scores are of rows as they stand."""
    rows = [
        {"text": "sun " * (1 + number * 7 % 20), "label": "ab"[number % 3 > 0]}
        for number in range(24)
    ]
    settings = [each.partition("=") for each in [*RUN, *ENCODER_WORDS]]
    values = {key: yaml.safe_load(value) for key, _, value in settings}
    recipe = load_recipe("classify", values | {"data.train": rows, "data.valid": rows})
    data = load_data(recipe, tmp_path / "tokenizer", View())
    model = Transformer(data.config).eval()
    context = EvalContext(recipe.batch, recipe.generate, 24, 1, lambda: None)
    result = data.objective.evaluate(model, data.bundle.valid, data.valid, context)
    assert result.resampled is not None and len(result.samples) == 24
    correct = [100.0 * (sample.ours == sample.reference) for sample in result.samples]
    found = [result.resampled.scorer(np.array([row]))["accuracy"] for row in range(24)]
    assert found == correct and 0 < sum(correct) < 2400


# --- one at a time --------------------------------------------------------------------------------


def comparison(model: float, baseline: float, low: float, high: float) -> Comparison:
    systems = [
        MeasuredSystem(name, {"accuracy": value}, {"accuracy": (value - 2, value + 1)}, lead)
        for name, value, lead in (("this model", model, None), ("a rule", baseline, (low, high)))
    ]
    return Comparison("accuracy", 1_000, "texts", systems[0], (systems[1],))


@pytest.mark.parametrize(
    ("numbers", "is_rival", "words"),
    [
        ((85, 80, 3, 7), False, ""),
        ((85, 84, -1, 3), True, "this model is not clearly ahead of a rule (accuracy 85.0 ± 1.5 against 84.0 ± 1.5)"),
        ((85, 86, -3, 1), True, "a rule is ahead of this model (accuracy 86.0 ± 1.5 against 85.0 ± 1.5), though"),
        ((85, 90, -7, -3), True, "a rule is ahead of this model (accuracy 90.0 ± 1.5 against 85.0 ± 1.5)"),
        ((85, 85, 0, 0), True, "this model is not clearly ahead of a rule"),
    ],
)  # fmt: skip
def test_the_sentence_follows_from_the_interval_of_the_difference(numbers, is_rival, words):
    found = comparison(*numbers)
    assert bool(found.rivals) == is_rival
    if is_rival:
        assert describe_rival(found, found.rivals[0]).startswith(words)
    assert Comparison.from_json(json.loads(json.dumps(found.as_json()))) == found
    assert found.lines() == [
        f"accuracy of 1,000 texts: a rule: {numbers[1]:.1f} ± 1.5; this model: {numbers[0]:.1f} ± 1.5"
    ]


def test_large_data_is_read_in_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("trifold.baselines.table.MOST_ROWS", 30)
    done = train(tmp_path, "classes")
    assert "baselines, of 30 training rows" in unwrapped(done.err)
    assert [baseline.rows for baseline in load_baselines(tmp_path / "run")] == [30, 30]


def test_a_linear_model_on_pixels_learns_which_half_is_bright(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for split, count in (("train", 20), ("valid", 6)):
        for side in ("left", "right"):
            folder = tmp_path / split / side
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (40, 40), dtype=np.uint8)
                half = slice(0, 20) if side == "left" else slice(20, 40)
                pixels[:, half] += 100
                pillow.fromarray(pixels).save(folder / f"{number}.png")
    model = [f"model.{key}={value}" for key, value in SIZES.items() if key != "max_positions"]
    sizes = [*model, "model.image_size=[40,40]", "model.patch_size=[20,20]", "model.n_channels=1"]
    done = run_command(
        "train", "images", *[each for each in RUN if not each.startswith("batch")], *sizes,
        f"data.train={tmp_path / 'train'}", f"data.valid={tmp_path / 'valid'}", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "always answering 'left': 50.0" in unwrapped(done.out)
    assert "a linear model on pixels: 100.0 ± 0.0" in unwrapped(done.out)
    again = run_command("eval", str(tmp_path / "run"))
    assert "a linear model on pixels: 100.0" in unwrapped(again.out), again.err
