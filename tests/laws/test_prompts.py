"""A prompt through all layers at once has the states that it has in parts and beside other rows."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tests.laws.models import decode_parts, relative_error, texts_of
from tests.laws.operations import plain

from trifold.fast.instruction_sets import has_panels
from trifold.nn import ModelConfig, Transformer

pytestmark = pytest.mark.parametrize("operations", ["fast"], indirect=True)
# The heads of most models of the laws are too narrow for a compiled prompt.
PROMPTED = {
    **{"shape": "decoder", "norm": "rms", "positions": "rotary", "gated": True},
    **{"activation": "silu", "attention_bias": False, "feed_forward_bias": False},
    **{"norm_placement": "pre", "dropout": 0.0, "vocab_size": 64, "max_positions": 32},
    **{"d_model": 64, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "d_ff": 96},
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prompt_of_a_decoder_in_parts_has_the_states_of_a_whole_one(dtype: torch.dtype) -> None:
    model = Transformer(ModelConfig(**PROMPTED)).eval()
    exact = deepcopy(model).double()
    tokens = texts_of(model.config, 2, 21)
    model.to(dtype)
    whole, parts, one = (
        decode_parts(model, some, ends, None, model.new_cache())
        for some, ends in ((tokens, [21]), (tokens, [9, 21]), (tokens[:1], [21]))
    )
    if has_panels():
        assert torch.equal(parts, whole) and torch.equal(one, whole[:1])
    with plain():
        expected = decode_parts(exact, tokens, [21], None, exact.new_cache())
    for found in (whole, parts):
        assert relative_error([found], [expected]) <= {torch.float32: 1e-5}.get(dtype, 2e-2)
