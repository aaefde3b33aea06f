from __future__ import annotations

import json

import pytest

from trifold.nn import PRESETS
from trifold.recipe import recipe_names


@pytest.mark.parametrize("name", [*PRESETS, *recipe_names()])
def test_every_preset_and_recipe_can_be_shown(trifold, name):
    done = trifold("show", name)
    assert done.code == 0
    told = json.loads(trifold("show", name, "--json").out)
    assert sum(part["parameters"] for part in told["parts"]) == told["parameters"]
    assert f"{told['parameters']:,} parameters" in done.out
    assert "cross-attention" in done.out


def test_a_trained_model_is_shown_as_it_is(trifold, run):
    told = json.loads(trifold("show", str(run), "--json").out)
    config = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert told["config"]["vocab_size"] == config["vocab_size"]


def test_the_big_model_is_counted_by_the_formula_of_the_paper(trifold):
    assert json.loads(trifold("show", "transformer-big", "--json").out)["parameters"] == 214_171_648


def test_training_memory_grows_with_the_batch_and_only_there(trifold):
    small, large = (
        json.loads(trifold("show", "transformer-base", "--json", "--batch-tokens", tokens).out)[
            "training_bytes"
        ]
        for tokens in ("1000", "2000")
    )
    assert large["activations"] == 2 * small["activations"]
    assert all(large[part] == small[part] for part in ("weights", "gradients", "optimizer"))
