"""Fast operations equal the plain ones at sizes from which they run: 512 columns, 8 heads, 4 million
weights, 256 queries. No threshold is lowered, except that texts are short for decoding."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.laws.kernels import COUNTS, count_kernels
from tests.laws.models import (
    assert_close,
    assert_gradients_close,
    decode_parts,
    gradients_of,
    loss_of,
    texts_of,
)
from tests.laws.operations import plain
from tests.models import add_noise
from torch import Tensor

from trifold import fast
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing

SIZES = {"vocab_size": 50, "max_positions": 600, "d_model": 512, "n_heads": 8, "d_ff": 1024}
SIZES |= {"n_layers": 2, "dropout": 0.0, "norm_placement": "pre"}
CONFIGS = {
    "GPT": {"shape": "decoder", "positions": "learned", "activation": "gelu-tanh"},
    "Llama": {
        **{"shape": "decoder", "positions": "rotary", "norm": "rms", "n_kv_heads": 2},
        **{"gated": True, "activation": "silu", "qk_norm": "head"},
    },
    "local Gemma": {
        **{"shape": "decoder", "positions": "rotary", "norm": "rms", "sliding_window": 40},
        **{"norm_placement": "sandwich", "score_soft_cap": 20.0},
    },
    "Longformer": {"shape": "encoder", "sliding_window": 20, "global_tokens": "first"},
    "Transformer": {"n_layers": 2},
}
# What must run in each.
KERNELS = {
    "GPT": ("CompiledDecoder.run", "packed_attention", "_GeluTanh"),
    "Llama": ("CompiledDecoder.run", "fused_attention"),
    "local Gemma": ("CompiledDecoder.run", "sparse_attend"),
    "Longformer": ("sparse_attend", "_LayerNorm"),
    "Transformer": ("CompiledDecoder.run", "packed_attention"),
}


@pytest.fixture(autouse=True)
def operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast operations, with the usual thresholds."""
    pytest.importorskip("numba")
    count_kernels(monkeypatch)
    fast.enable()


@cache
def model_of(name: str) -> Transformer:
    torch.manual_seed(5)
    return add_noise(Transformer(ModelConfig.parse(SIZES | CONFIGS[name])), 0.02)


def states_and_gradients(model: Transformer, length: int) -> tuple[Tensor, list[Tensor]]:
    """Of packed rows."""
    packing = Packing.of(torch.tensor([length, length // 2]))
    tokens = torch.randint(3, 50, (1, packing.length), generator=torch.Generator().manual_seed(1))
    inputs = Inputs(tokens, packing=packing)
    states = model(inputs, inputs) if model.encoder and model.decoder else model(inputs)
    states = states[0, : packing.n_real]
    return states, gradients_of(loss_of(states), model)


@torch.no_grad()
def decoded(model: Transformer, rows: int) -> Tensor:
    tokens = texts_of(model.config, rows, 12)
    memory = model.encode(Inputs(tokens)) if model.encoder is not None else None
    return decode_parts(model, tokens, [7, 8, 9, 10, 11, 12], memory, model.new_cache())


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_run_at_their_sizes_and_equal_plain_operations(name: str) -> None:
    model, before = model_of(name), COUNTS.copy()
    length = 360 if model.config.sliding_window else 270
    states, gradients = states_and_gradients(model, length)
    decoding = decoded(model, 3) if model.decoder is not None else None
    ran = COUNTS - before
    for kernel in KERNELS[name]:
        assert any(kernel in title for title in ran), kernel
    with plain():
        other, others = states_and_gradients(model, length)
        if decoding is not None:
            assert_close(decoding, decoded(model, 3), 1e-5)
    assert_close(states, other, 1e-5)
    assert_gradients_close(gradients, others, 1e-4)
