"""Which attention kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trifold.nn import Inputs, Transformer, capture

Make = Callable[..., Transformer]


@torch.no_grad()
def test_a_captured_model_uses_the_plain_kernel_and_gives_the_same_result(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(shape="decoder", max_positions=200)
    inputs = Inputs(torch.randint(3, 17, (1, 200)))
    calls: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def counted(*tensors: Any, **named: Any) -> torch.Tensor:
        calls.append(1)
        return kernel(*tensors, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    unseen = model(inputs)
    assert len(calls) == 2  # a long text uses the fused kernel in both layers
    with capture(model) as seen:
        watched = model(inputs)
    assert len(calls) == 2
    assert len(seen) >= 2
    torch.testing.assert_close(watched, unseen, rtol=1e-4, atol=1e-5)
    model(inputs)
    assert len(calls) == 4  # again when nothing is captured
