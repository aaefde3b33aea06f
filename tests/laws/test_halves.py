"""A decoder with weights in 16 bits computes in float32 what a copy in float32 does."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.laws.kernels import count_kernels
from tests.laws.operations import lower_thresholds
from tests.models import add_noise
from torch import Tensor

from trifold import fast
from trifold.fast.decoding_step import translation_of
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.instruction import FEW_WIDENED_ROWS
from trifold.nn import Inputs, ModelConfig, Transformer, ops

SIZES = {
    **{"shape": "decoder", "positions": "rotary", "norm_placement": "pre", "dropout": 0.0},
    **{"max_positions": 64, "n_heads": 4, "n_layers": 2, "gated": True, "activation": "silu"},
}
EVEN = SIZES | {"vocab_size": 64, "d_model": 64, "d_ff": 96, "tie_lm_head": False}
ODD = SIZES | {"vocab_size": 53, "d_model": 40, "d_ff": 51, "tie_lm_head": True}
CONFIGS = {"even sizes": EVEN, "odd sizes, tied embeddings": ODD}
ROWS = (1, 8, 16, 64)
TOKENS, PROMPT = 9, 5


@pytest.fixture(autouse=True)
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast operations, with low thresholds."""
    pytest.importorskip("numba")
    count_kernels(monkeypatch)
    lower_thresholds(monkeypatch)
    fast.enable()


def models_of(config: dict[str, object], stored: torch.dtype) -> tuple[Transformer, Transformer]:
    """A model with matrices in 16 bits, and one with the same values in float32."""
    torch.manual_seed(3)
    dense = add_noise(Transformer(ModelConfig.parse(config)), 0.2)
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.copy_(parameter.to(stored))
    halves = copy.deepcopy(dense)
    known = dict[int, HalfWeight]()
    for module in [*halves.modules()]:
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() == 2:
            if id(weight) not in known:
                known[id(weight)] = HalfWeight(weight.detach().to(stored), torch.float32)
            del module.weight
            module.weight = known[id(weight)]
    return halves, dense


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Each product is equal to 1e-6 of its largest value, because the order of sums differs; the
    layers increase the difference.
    """
    assert found.dtype is torch.float32
    assert (found - expected).abs().max() <= 4e-6 * expected.abs().max()


@torch.no_grad()
def logits_of(model: Transformer, tokens: Tensor) -> Tensor:
    return model.head_outputs(Inputs(tokens))["lm"]


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("rows", ROWS)
def test_logits_are_those_of_a_copy_in_float32(
    rows: int, config: dict[str, object], stored: torch.dtype
) -> None:
    halves, dense = models_of(config, stored)
    tokens = torch.randint(3, 50, (rows, TOKENS))
    assert_equal(logits_of(halves, tokens), logits_of(dense, tokens))


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("rows", ROWS)
def test_logits_of_cached_steps_are_those_of_a_copy_in_float32(
    rows: int, config: dict[str, object], stored: torch.dtype
) -> None:
    """Also those of the whole text."""
    halves, dense = models_of(config, stored)
    tokens = torch.randint(3, 50, (rows, TOKENS))
    steps = list[Tensor]()
    caches = [model.new_cache() for model in (halves, dense)]
    with torch.no_grad():
        for model, cache in zip((halves, dense), caches, strict=True):
            model.decode(Inputs(tokens[:, :PROMPT]), None, cache)
            for position in range(PROMPT, TOKENS):
                given = model, model.lm_head, tokens[:, position], None, None, cache
                steps.append(ops.next_logits(*given))
    found, expected = (torch.stack(part, 1) for part in (steps[:4], steps[4:]))
    assert_equal(found, expected)
    assert_equal(found, logits_of(halves, tokens)[:, PROMPT:])
    translation = translation_of(caches[0])
    assert translation is not None and translation.decoder is not None
    assert (not translation.decoder.matmuls) == (rows <= FEW_WIDENED_ROWS)
