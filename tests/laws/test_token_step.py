"""A step as one program, from tokens to logits, has the bits of the step with operators around the
layers."""

from __future__ import annotations

import pytest
import torch
from tests.laws.configs import cases
from tests.laws.models import int8_model_of, model_of, texts_of
from torch import Tensor

from trifold.fast import token_step
from trifold.fast.token_step import TokenStep, next_logits
from trifold.nn import Inputs, Transformer
from trifold.nn.ops import PLAIN

pytestmark = pytest.mark.parametrize("operations", ["fast"], indirect=True)
PROMPT, LENGTH = 5, 20  # longer than the memory of a growing cache at first


def logits_of(model: Transformer, next_logits: object, tokens: Tensor) -> tuple[Tensor, bool]:
    """The logits (steps, R, V) after each token of rows that follows a prompt, and whether a program
    computed some."""
    with torch.inference_mode():
        cache = model.new_cache("growing", capacity=LENGTH)
        model.decode(Inputs(tokens[:, :PROMPT]), None, cache)
        found = [
            next_logits(model, model.lm_head, column, None, None, cache)  # type: ignore[operator]
            for column in tokens[:, PROMPT:].T
        ]
    return torch.stack(found), isinstance(token_step._steps.get(cache), TokenStep)


def assert_equal_bits(model: Transformer, rows: int) -> bool:
    """Whether a program computed the logits."""
    tokens = texts_of(model.config, rows, LENGTH)
    expected, _ = logits_of(model, PLAIN["next_logits"], tokens)
    found, is_program = logits_of(model, next_logits, tokens)
    assert found.dtype is expected.dtype and torch.equal(found, expected)
    return is_program


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@cases("any cache", shapes=["decoder"])
def test_a_step_as_a_program_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    if model.lm_head is None:
        pytest.skip("it has no head")
    for rows in (1, 3):
        assert_equal_bits(model, rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@cases("fast int8", shapes=["decoder"], every=3)
def test_a_step_with_int8_weights_has_the_same_bits(name: str, dtype: torch.dtype) -> None:
    model = int8_model_of(name, dtype)
    if model.lm_head is None:
        pytest.skip("it has no head")
    assert_equal_bits(model, 2)
