"""The linear path of pairs of texts: its numbers, its fit, and that training, evaluation and
prediction read the same words.
"""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from tests.train.runs import RecordingView, lines_of

import trifold
from trifold.costs import count_parameters
from trifold.linear import shared_words
from trifold.linear.hashed import hashed_names
from trifold.linear.overlap import NAMES, ORDER_NAMES, Overlap, common_subsequence, order_numbers
from trifold.linear.shared_words import counted_pairs
from trifold.nn import ModelConfig, Transformer, overlap
from trifold.nn.config import REGRESSION
from trifold.nn.overlap import overlap_numbers
from trifold.objectives.linear_path import PairRows, fit_pairs
from trifold.predict.text_features import as_features
from trifold.recipe import load_recipe
from trifold.train import train
from trifold.train.data import load_data
from trifold.train.initial_weights import new_model
from trifold.train.run_folder import RunFolder
from trifold.train.validate import Validator

BUCKETS = 2**16
WORDS = [*(f"word{n}s" for n in range(30)), "12", "7a", "wordless", "İzmir", "字"]


def texts_of(rows: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(9))) for _ in range(rows)]


FIRSTS, SECONDS = texts_of(80, 1), texts_of(80, 2)
FITTED = Overlap.fit([*FIRSTS, *SECONDS])


def test_the_numbers_are_those_of_the_overlap() -> None:
    """Also of empty texts, and of words that no text of the training has."""
    idf = np.zeros(BUCKETS + 1)
    ids = hashed_names([*FITTED.idf], BUCKETS)
    assert len({*ids.tolist()}) == len(ids)
    idf[ids] = [*FITTED.idf.values()]
    idf[-1] = FITTED.unknown
    firsts, seconds = [*FIRSTS, "never word1s", ""], [*SECONDS, "word1s ever ever", ""]
    expected = numbers_of(firsts, seconds)
    for has_order, count in ((False, 12), (True, 20)):
        counted = counted_pairs(firsts, seconds, BUCKETS, has_order=has_order)
        numbers = overlap_numbers(as_features(counted), torch.from_numpy(idf), count - 12)
        assert numbers.shape == (len(firsts), count)
        np.testing.assert_allclose(numbers, expected[:, :count], atol=1e-6)


def numbers_of(
    firsts: list[str], seconds: list[str], overlap: Overlap = FITTED
) -> NDArray[np.float64]:
    """The numbers that a path reads."""
    order = [*map(order_numbers, firsts, seconds)]
    return np.hstack([overlap.features(firsts, seconds), order])


def longest_common(a: list[str], b: list[str]) -> int:
    """By the table of all pairs of starts."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for row, x in enumerate(a):
        for column, y in enumerate(b):
            longest = max(table[row, column + 1], table[row + 1, column])
            table[row + 1, column + 1] = table[row, column] + 1 if x == y else longest
    return int(table[-1, -1])


def test_common_subsequences_are_those_of_the_table() -> None:
    rng = random.Random(3)
    for _ in range(200):
        a, b = (rng.choices("abcd", k=rng.randrange(90)) for _ in range(2))
        assert common_subsequence(a, b) == longest_common(a, b)


def test_the_numbers_of_the_order_of_two_texts() -> None:
    numbers = order_numbers("One two three four", "one three two four five")
    expected = [2 * 3 / 9, 3 / 4, 0.0, None, 18 / 23, np.log(24 / 19), np.log(24 / 19), 1.0]
    assert len(numbers) == len(expected) == len(ORDER_NAMES) == overlap.ORDER_NUMBERS
    for found, number in zip(numbers, expected, strict=True):
        assert number is None or found == pytest.approx(number)
    assert order_numbers("a b c d", "x b c d")[2] == pytest.approx(1 / 3)
    same, other = (order_numbers("strangely", text)[3] for text in ("strangely", "strange"))
    assert same == pytest.approx(1) and 0 < other < 1


def test_blocks_and_places_are_those_that_the_model_knows() -> None:
    ours = (shared_words.SHARED, shared_words.FIRST, shared_words.SECOND, shared_words.UNSHARED)
    assert ours == (overlap.SHARED, overlap.FIRST, overlap.SECOND, overlap.UNSHARED)
    assert (shared_words.BLOCKS, shared_words.GIVEN) == (overlap.PAIR_BLOCKS, overlap.WITHOUT)
    assert shared_words.WITHOUT_IDF == overlap.WITHOUT_IDF
    assert sorted([*overlap.WITHOUT_IDF, *overlap.WITH_IDF]) == [*range(len(NAMES))]
    assert (len(NAMES), len(ORDER_NAMES)) == (overlap.NUMBERS, overlap.ORDER_NUMBERS)


def config_of(**values: Any) -> ModelConfig:
    path = {"words": 0, "characters": 0, "compared": BUCKETS, "order_numbers": 8}
    return ModelConfig.parse(
        {"shape": "encoder", "heads": ["sequence"], "linear_path": path} | values
    )


@pytest.mark.parametrize("problem", ["classes", "numbers"])
def test_the_fit_is_that_of_scikit_learn(problem):
    x = numbers_of(FIRSTS, SECONDS)
    counted = counted_pairs(FIRSTS, SECONDS, BUCKETS, has_order=True)
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.1, len(x))
    z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    if problem == "classes":
        labels: Any = (x[:, 1] + noise > np.median(x[:, 1])).astype(np.int64)
        config = config_of()
        oracle: Any = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit(z, labels)
        expected = oracle.decision_function(z)
    else:
        labels = x[:, 0] + noise
        config = config_of(problem_type=REGRESSION, n_labels=1)
        expected = Ridge(1.0).fit(z, labels).predict(z)
    fitted = fit_pairs(config, counted, labels)
    idf = fitted.of_features["idf"].double()
    numbers = overlap_numbers(as_features(counted), idf, overlap.ORDER_NUMBERS)
    logits = numbers @ fitted.weight.double() + fitted.bias
    found = logits[:, 0] if problem == "numbers" else logits[:, 1] - logits[:, 0]
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_features_of_some_rows_are_theirs() -> None:
    counted = counted_pairs(FIRSTS, SECONDS, BUCKETS)
    rows = np.array([5, 0, 61])
    some = PairRows(counted).features(config_of(), rows)
    alone = as_features(
        counted_pairs([FIRSTS[row] for row in rows], [SECONDS[row] for row in rows], BUCKETS)
    )
    for name in ("ids", "values", "starts"):
        assert torch.equal(getattr(some, name), getattr(alone, name)), name


# --- runs -----------------------------------------------------------------------------------------

TINY: dict[str, Any] = {
    "model.d_model": 16, "model.n_layers": 1, "model.n_heads": 2, "model.d_ff": 16,
    "train.steps": 12, "train.validate_every": 6, "train.save_every": 6, "train.precision": "float32",
    "train.device": "cpu", "train.samples": 2, "batch.tokens": 512,
}  # fmt: skip


def write(folder: Path, kind: str, seed: int) -> str:
    firsts, seconds = texts_of(120, 10 + seed), texts_of(120, 20 + seed)
    rng = random.Random(seed)
    lines = ["sentence1\tsentence2\t" + ("score" if kind == "numbers" else "label")]
    for first, second in zip(firsts, seconds, strict=True):
        share = rng.random()
        words = [word for word in first.split() if rng.random() < share]
        label: object = round(5 * share, 2)
        if kind == "classes":
            label = "yes" if share > 0.5 else "no"
        lines.append(f"{first} a\t{' '.join(words)} {second} b\t{label}")
    file = folder / f"{kind}-{seed}.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_training_evaluation_and_prediction_agree(tmp_path, kind):
    """The run begins with the path alone; predictions of the saved model, alone and together, are
    those of its best validation.
    """
    valid = write(tmp_path, kind, 1)
    data = {"data.train": write(tmp_path, kind, 0), "data.valid": valid}
    outcome = train("classify", out=tmp_path / "run", view=RecordingView(), **TINY, **data)
    validations = [line for line in lines_of(tmp_path / "run") if "valid/loss" in line]
    assert [line["step"] for line in validations] == [0, 6, 12]
    key = outcome.comparison.score
    parts = outcome.comparison.parts
    alone = parts["its linear path alone"][key]
    assert validations[0][f"valid/{key}"] == pytest.approx(alone, abs=1e-6)
    assert any(each.name.endswith("shared words") for each in outcome.comparison.baselines)
    model = trifold.load(tmp_path / "run")
    rows = [line.split("\t") for line in Path(valid).read_text("utf-8").splitlines()[1:]]
    firsts, seconds, labels = (list(column) for column in zip(*rows, strict=True))
    together = model.classify(firsts, pairs=seconds)
    for row in range(9):
        (one,) = model.classify([firsts[row]], pairs=[seconds[row]])
        assert [each.label for each in one] == [each.label for each in together[row]]
        scores = ([x.score for x in each] for each in (one, together[row]))
        np.testing.assert_allclose(*scores, atol=1e-4)
    if kind == "classes":
        hits = sum(found[0].label == label for found, label in zip(together, labels, strict=True))
        assert outcome.scores["accuracy"] == pytest.approx(100 * hits / len(labels))
    else:
        numbers = [found[0].score for found in together]
        r = np.corrcoef(numbers, [float(label) for label in labels])[0, 1]
        assert outcome.scores["pearson"] == pytest.approx(r, abs=1e-4)


def test_a_new_model_has_the_path_unless_both_orders_are_read(tmp_path):
    def config_with(kind: str = "classes", **more: Any) -> ModelConfig:
        data = {"data.train": write(tmp_path, kind, 0), "data.valid": write(tmp_path, kind, 1)}
        recipe = load_recipe(
            "classify", data | {key.replace("__", "."): x for key, x in more.items()}
        )
        return load_data(recipe, tmp_path / "tokenizer", RecordingView()).config

    path: Any = config_with().linear_path
    assert (path.compared, path.words, path.characters) == (BUCKETS, 0, 0)
    assert path.order_numbers == overlap.ORDER_NUMBERS
    of_regression: Any = config_with("numbers").linear_path
    assert (of_regression.compared, of_regression.order_numbers) == (BUCKETS, 0)
    assert config_with(model__linear_path=False).linear_path is None
    assert config_with(task__both_orders=True).linear_path is None


@pytest.mark.parametrize(("path", "loss"), [(True, 1.94), (False, None)])
def test_a_mean_must_have_a_clearly_lower_loss_than_the_path_alone(tmp_path, path, loss):
    data = {
        "data.train": write(tmp_path, "classes", 0),
        "data.valid": write(tmp_path, "classes", 1),
    }
    recipe = load_recipe("classify", TINY | data | {"model.linear_path": path})
    loaded = load_data(recipe, tmp_path / "tokenizer", RecordingView())
    validator = Validator(loaded, RunFolder(tmp_path / "run"), torch.device("cpu"))
    reached = validator.loss_to_reach(2.0)
    assert reached == (None if loss is None else pytest.approx(loss))


def test_the_parameters_are_those_of_the_formula() -> None:
    config = config_of(d_model=16, n_layers=1, n_heads=2, d_ff=16, vocab_size=31, n_labels=3)
    model = Transformer(config)
    assert count_parameters(config) == sum(weight.numel() for weight in model.parameters())


def test_the_outputs_are_the_mean_of_both_once_the_transformer_has_learned(tmp_path):
    data = {
        "data.train": write(tmp_path, "numbers", 0),
        "data.valid": write(tmp_path, "numbers", 1),
    }
    loaded = load_data(
        load_recipe("classify", TINY | data), tmp_path / "tokenizer", RecordingView()
    )
    objective: Any = loaded.objective
    model = new_model(loaded).eval()
    batch = objective.batch(loaded.valid, np.arange(20))

    def outputs_with(weights: dict[str, torch.Tensor], inputs: Any) -> torch.Tensor:
        saved = copy.deepcopy(model)
        saved.load_state_dict(weights)
        with torch.no_grad():
            return saved.head_outputs(inputs, heads=["sequence"])["sequence"]

    path = outputs_with(objective.saved_weights(model.state_dict()), batch.inputs)
    baseline = Overlap.fit(
        [*loaded.bundle.train.columns["text"], *loaded.bundle.train.columns["pair"]]
    )
    columns = (loaded.bundle.train.columns, loaded.bundle.valid.columns)
    x, of_valid = (baseline.features(each["text"], each["pair"]) for each in columns)
    deviations = np.where(x.std(0) > 0, x.std(0), 1)
    oracle = Ridge(1.0).fit((x - x.mean(0)) / deviations, loaded.train.labels)
    expected = oracle.predict((of_valid[:20] - x.mean(0)) / deviations)
    np.testing.assert_allclose(path[:, 0], expected, atol=5e-3)  # as long as nothing is learned
    torch.nn.init.normal_(model.heads["sequence"].out_proj.weight)
    weights = objective.saved_weights(model.state_dict())
    alone = dict(model.state_dict())
    mean, deviation = objective.scale
    without = replace(batch.inputs, features=None)
    transformer = outputs_with(alone, without) * deviation + mean
    assert torch.allclose(outputs_with(weights, batch.inputs), (path + transformer) / 2, atol=1e-4)
    for name, value in objective.trained_weights(weights).items():
        assert torch.allclose(value, alone[name], atol=1e-6), name
