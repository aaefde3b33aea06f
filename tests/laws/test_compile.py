"""Compiled blocks compute what plain ones do: traced (backend eager), differentiated (aot_eager), and
compiled (inductor).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import (
    assert_close,
    assert_gradients_close,
    gradients_of,
    hidden_of,
    loss_of,
    model_of,
    new_model,
    padded,
    real_states,
    rows_of,
)
from tests.laws.parts import SIZES
from torch import Tensor

from trifold import fast
from trifold.nn import ModelConfig, Transformer
from trifold.nn.stack import Stack
from trifold.train.blocks import compile_blocks, under_graphs
from trifold.train.device import compile_obstacle


@pytest.fixture(autouse=True)
def operations() -> Iterator[None]:
    """The fast operations, as in training, with the usual thresholds: with low ones, graphs have a
    part for each of many blocks of queries."""
    fast.enable()
    yield
    torch._dynamo.reset()


def results(model: Transformer) -> tuple[Tensor, list[Tensor]]:
    """The real states and all gradients."""
    example = padded(rows_of(model.config))
    states = real_states(hidden_of(model, example), example)
    return states, gradients_of(loss_of(states), model)


@pytest.mark.slow
@cases("compile", alone=True)
def test_traced_blocks_equal_plain_blocks(name: str) -> None:
    """Configs that have every part and every variant; all pairs take twice as long."""
    states, gradients = results(model_of(name, torch.float32))
    model = new_model(config_of(name))
    torch._dynamo.reset()
    for stack in model.modules():
        if isinstance(stack, Stack):
            # Of any, with fixed sizes: other sizes take four times as long.
            block = stack.blocks[-1]
            if all(getattr(module, "has_fixed_shapes", True) for module in block.modules()):
                block.forward = torch.compile(block.forward, dynamic=False, backend="eager")
    with under_graphs():
        traced, traced_gradients = results(model)
    assert_close(traced, states, 1e-5)
    assert_gradients_close(traced_gradients, gradients, 1e-4)


# Name -> the backend and the config. What users run is inductor, which takes a second for each of some
# twenty kernels, so one model has all that it generates: attention to earlier tokens, to a window
# and to a padded memory; rotation; a norm; a gate. The classical decoder has the other norm and no
# gate; of aot_eager it has the graphs of both passes that inductor would get, executed as they are.
COMPILED: dict[str, tuple[str, dict[str, Any]]] = {
    "decoder of the Transformer": ("aot_eager", {"n_decoder_layers": 1}),
    "local Gemma with a memory": (
        "inductor",
        {
            **{"norm_placement": "pre", "positions": "rotary", "norm": "rms", "gated": True},
            **{"activation": "gelu-tanh", "n_kv_heads": 2, "sliding_window": 5},
            **{"n_decoder_layers": 1},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_blocks_equal_plain_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if obstacle := compile_obstacle(torch.device("cpu")):
        pytest.skip(obstacle)
    backend, values = COMPILED[name]
    model = new_model(ModelConfig.parse(SIZES | values))
    states, gradients = results(model)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compile_blocks(model.decoder or model)
    with under_graphs():
        compiled, compiled_gradients = results(model)
    assert_close(compiled, states, 1e-5)
    assert_gradients_close(compiled_gradients, gradients, 1e-4)
