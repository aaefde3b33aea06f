"""How long a model is trained, and in which batches: what is chosen for rows, and what a user sets."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import pytest
from tests.recipes import BERT, MASKS

from trifold import train
from trifold.nn import ModelConfig, Transformer
from trifold.objectives.plans import FINE_TUNING, MOST_STEPS, NEW, plan_for
from trifold.objectives.rates import MOST_OF_ADAPTERS, SMALL_WIDTH, fine_tuning_rate
from trifold.pipeline import Pipeline
from trifold.recipe import Recipe, load_recipe
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.train.monitor import View

WIDE = BERT | {"d_model": 2 * SMALL_WIDTH, "n_heads": 4, "n_layers": 1, "d_ff": 8}
ROWS = 200
TEXT = "a sentence of some words"


@pytest.mark.parametrize(
    ("rows", "steps"),
    [(32, 10), (100, 40), (320, 100), (500, 100), (2_000, 189), (6_000, 564), (60_000, 5_625)],
)
def test_few_rows_are_read_more_often(rows, steps):
    batch = FINE_TUNING.rows_for(rows)
    assert batch == 32
    assert FINE_TUNING.steps_for(-(-rows // batch)) == steps


@pytest.mark.parametrize("rows", [200_000, 1_000_000])
def test_batches_of_many_rows_are_larger(rows):
    batch = FINE_TUNING.rows_for(rows)
    assert FINE_TUNING.epochs * rows / batch == pytest.approx(MOST_STEPS, rel=0.01)
    assert FINE_TUNING.steps_for(rows / batch) <= MOST_STEPS


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model that is wider than those that learn like new ones."""
    folder = tmp_path_factory.mktemp("wide")
    tokenizer = train_tokenizer([TEXT], TokenizerSettings.parse(MASKS))
    config = ModelConfig.parse(WIDE | {"vocab_size": tokenizer.vocab_size, "pad_id": 0})
    Pipeline(Transformer(config), tokenizer).save(folder)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    rows = [f"{TEXT} {number},{number % 2}" for number in range(ROWS)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return str(path)


def fine_tune(wide: Path, table: str, **values: Any) -> Recipe:
    """The recipe of a classification that starts from the wide model."""
    sources = {"start_from": str(wide), "data.train": table, "data.valid": table}
    return load_recipe("classify", sources | values)


def test_a_recipe_with_a_wide_model_is_planned_by_rows(wide, table):
    recipe = fine_tune(wide, table)
    assert (recipe.batch.rows, recipe.batch.tokens) == (32, 4096)
    assert recipe.train.steps == pytest.approx(FINE_TUNING.steps_for(ROWS / 32), abs=1)
    assert recipe.train.warmup == recipe.train.steps // 10
    assert recipe.train.validate_every == ceil(recipe.train.steps / 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch.rows", 7), ("train.steps", 9), ("train.warmup", 2), ("train.validate_every", 4)],
)
def test_explicit_values_win(wide, table, key, value):
    assert fine_tune(wide, table, **{key: value}).value(key) == value


def test_batches_that_a_user_counts_in_tokens_have_no_limit_on_rows(wide, table):
    batch = fine_tune(wide, table, **{"batch.tokens": 1024}).batch
    assert (batch.tokens, batch.rows) == (1024, None)


@pytest.mark.parametrize(
    ("width", "factor"), [(16, 1.0), (64, 1.0), (128, 1.43), (384, 10.0), (768, 10.0)]
)
def test_adapters_have_a_higher_rate(width, factor):
    rate = fine_tuning_rate(width, adapters=True)
    assert rate == pytest.approx(factor * fine_tuning_rate(width), rel=0.02)


def test_the_rate_of_adapters_is_that_of_a_recipe_with_them(wide, table):
    rates = [
        fine_tune(wide, table, **values).train.learning_rate
        for values in ({"train.lora.rank": 2}, {})
    ]
    assert rates == [MOST_OF_ADAPTERS, pytest.approx(fine_tuning_rate(WIDE["d_model"]), rel=0.05)]


@pytest.mark.parametrize(
    ("kind", "width", "plan"),
    [
        ("classify", 2 * SMALL_WIDTH, FINE_TUNING),
        ("tag", 768, FINE_TUNING),
        ("classify", SMALL_WIDTH, NEW),
        ("causal", 768, NEW),
        ("images", 768, NEW),
        ("embed", 768, NEW),
    ],
)
def test_wide_models_and_labelled_texts_are_fine_tuned(kind, width, plan):
    assert plan_for(kind, ModelConfig.parse(WIDE | {"d_model": width})) is plan
    assert plan_for(kind, None) is NEW


@pytest.mark.slow
def test_training_counts_rows(wide, table, tmp_path):
    """Its recipe has the counted steps."""
    train("classify", out=tmp_path / "run", view=View(), **{
        "start_from": str(wide), "data.train": table, "data.holdout": 0.8, "train.device": "cpu",
    })  # fmt: skip
    recipe = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert recipe.batch.rows == 32
    assert recipe.train.steps == FINE_TUNING.steps_for(2) == 20
