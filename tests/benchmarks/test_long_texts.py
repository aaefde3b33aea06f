"""The experiments with long texts: every kind that they name is a valid model, and their texts are
as described.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.benchmarks.scripts import load
from tests.models import ONE_LAYER

from trifold.nn import ModelConfig, Transformer
from trifold.recipe import load_recipe

long_range, extrapolation = load("", "long_range"), load("", "extrapolation")
long_decoders = load("", "long_decoders")


@pytest.mark.parametrize("kind", long_range.KINDS)
@pytest.mark.parametrize("task", long_range.TASKS)
def test_both_starts_have_the_same_number_of_updates(task: str, kind: str, tmp_path: Path) -> None:
    scratch, second = (
        load_recipe("classify", long_range.recipe(task, kind, start, 1, 1.0, tmp_path))
        for start in long_range.STARTS
    )
    assert scratch.model == second.model and scratch.batch == second.batch
    assert (
        scratch.train.steps == 2 * second.train.steps
    )  # the stage before it takes the values of `second`
    assert second.pretrain is not None and "train" not in second.pretrain


@pytest.mark.parametrize("kind", long_decoders.KINDS)
def test_decoders_of_every_kind_differ_in_attention_and_positions_only(
    kind: str, tmp_path: Path
) -> None:
    plain, other = (
        load_recipe("causal", long_decoders.recipe(each, 512, 10, 1, tmp_path / "text.jsonl"))
        for each in ("softmax", kind)
    )
    assert plain.train == other.train and plain.batch == other.batch
    changed = {*long_decoders.KINDS[kind]}
    same = {name for name, value in plain.model if value == getattr(other.model, name)}
    assert {name for name, _ in plain.model} - same <= changed


def test_documents_have_only_letters_and_at_least_1000_bytes() -> None:
    found = [*long_range.documents(["Don't PANIC: 42 ways!", "ü and more", ""] * 200)]
    assert found and all(1000 <= len(text) <= long_range.LONGEST_DOCUMENT for text in found)
    assert all(
        text.startswith(("don t panic ways and more don", "and more don t panic")) for text in found
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", extrapolation.KINDS)
def test_the_first_tokens_of_a_window_do_not_depend_on_its_length(kind: str) -> None:
    """For each variant at test time, except those whose rotations depend on the length."""
    torch.manual_seed(0)
    sizes = ONE_LAYER | {"d_ff": 16, "max_positions": 512, "vocab_size": 20}
    values = {"shape": "decoder", "norm_placement": "pre", **sizes, "dropout": 0.0}
    values |= extrapolation.KINDS[kind]
    tokens = torch.randint(20, (2, 257))
    for name, changes in extrapolation.variants(kind, 256).items():
        model = Transformer(ModelConfig.parse(values | changes)).eval()
        short, long = (extrapolation.token_losses(model, tokens, length) for length in (128, 256))
        assert short.shape == long.shape == (2, 256)
        if name != "rotary, dynamic":
            torch.testing.assert_close(short[:, :128], long[:, :128])
