"""Parameters, FLOPs and elements of the cache by formula are the counted ones."""

from __future__ import annotations

import pytest
import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import (
    Example,
    decode_parts,
    hidden_of,
    memory_of,
    model_of,
    padded,
    rows_of,
    texts_of,
)
from torch.utils.flop_counter import FlopCounterMode

from trifold.costs import cached_elements, count_parameters, forward_flops
from trifold.nn.cache import History, StoredInputs

# Formulas do not depend on the operations: they describe the plain ones.
pytestmark = pytest.mark.parametrize("operations", ["plain"], indirect=True)


@cases("costs")
def test_parameters_are_those_of_the_formula(name: str) -> None:
    assert model_of(name).count_parameters() == count_parameters(config_of(name))


@torch.no_grad()
@cases("flops")
def test_flops_are_those_of_the_formula(name: str) -> None:
    config, model, rows = config_of(name), model_of(name), 2
    batch: Example = padded([rows_of(config)[0]] * rows)
    with FlopCounterMode(display=False) as counter:
        hidden = hidden_of(model, batch)
        if model.lm_head is not None:
            model.lm_head(hidden)
    target = hidden.shape[1]
    source = batch.source.tokens.shape[1] if batch.target is not None else target
    flops = forward_flops(config, source, target)
    expected = rows * (source * flops.source + target * flops.target)
    # A token has a share of the projection of patches, rounded down.
    rounding = 2 * rows * target if config.patch_size else 0
    assert 0 <= counter.get_total_flops() - expected <= rounding


@torch.no_grad()
@cases("cache size", shapes=("encoder-decoder", "decoder"))
def test_the_cache_has_the_elements_of_the_formula(name: str) -> None:
    """A sliding cache, which stores what windows reach."""
    model, length = model_of(name), 12
    cache = model.new_cache("sliding")
    tokens, memory = texts_of(model.config, 1, length), memory_of(model, 1)
    decode_parts(model, tokens, [length - 1], memory, cache)
    found = 0
    for keys in (*(layer.past for layer in cache.layers), cache.inputs):
        if (state := getattr(keys, "state", None)) is not None:  # of a constant size
            found += state.numel()
        elif keys is not None and keys.buffers is not None:
            # One more key than is stored, which a step adds. Inputs are stored as keys only.
            count = keys.filled + keys.slots_per_token
            buffers = keys.buffers[: 1 if isinstance(keys, History | StoredInputs) else 2]
            found += sum(each.numel() // each.shape[2] * count for each in buffers)
    assert found == cached_elements(model.config, length)
