"""train.recompute changes what is kept for the way back, and nothing that is learnt."""

from __future__ import annotations

import pytest

from trifold.recipe import load_recipe


@pytest.mark.parametrize(("precision", "workers"), [("float32", 1), ("bfloat16", 2)])
def test_a_run_that_recomputes_is_bit_equal_to_one_that_does_not(
    run, interrupting, state_of, tmp_path, precision, workers
):
    changes = {
        "train__precision": precision,
        "train__workers": workers,
        "model__n_layers": 2,
        "model__dropout": 0.2,
    }
    run("straight", **changes)
    run(view=interrupting(5), train__recompute="blocks", **changes)
    run(resume="auto", **changes)  # and one may become the other
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "straight")
    assert [key for key in theirs if ours[key] != theirs[key]] == []


def test_the_recipe_says_which_was_chosen_last(run, tmp_path):
    run(train__steps=3, train__warmup=2)
    run(resume="auto", train__steps=4, train__warmup=2, train__recompute="blocks")
    assert load_recipe(tmp_path / "run" / "recipe.yaml").train.recompute == "blocks"
