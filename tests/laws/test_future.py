"""A state of a decoder depends on its token and on those before it, not on later ones; with a
factorization order, on tokens up to its rank."""

from __future__ import annotations

import torch
from tests.laws.configs import cases
from tests.laws.models import (
    assert_close,
    hidden_of,
    limit_of,
    memory_of,
    model_in,
    rows_of,
    texts_of,
)

from trifold.nn import Inputs
from trifold.nn.hooks import hooked

LENGTH = 19


@cases("future", shapes=("encoder-decoder", "decoder"))
def test_the_future_does_not_leak(name: str, operations: str) -> None:
    """Values do not change with later tokens, and later embeddings have no gradient."""
    model = model_in(operations, name)
    tokens = texts_of(model.config, 2, LENGTH)
    memory = memory_of(model, 2)
    embedded: list[torch.Tensor] = []

    def leaf(point: str, x: torch.Tensor) -> torch.Tensor:
        embedded.append(x.detach().requires_grad_())
        return embedded[-1]

    with hooked(model, leaf, "decoder_embeddings.output"):
        states = model.decode(Inputs(tokens), memory)
    for t in (0, 7, LENGTH - 2):
        (gradient,) = torch.autograd.grad(
            states[:, t].sum(-1).sin().sum(), embedded, retain_graph=True
        )
        assert not gradient[:, t + 1 :].any()
        assert gradient[:, t].abs().sum(-1).all()
        changed = tokens.clone()
        changed[:, t + 1 :] = texts_of(model.config, 2, LENGTH, seed=1)[:, t + 1 :]
        with torch.no_grad():
            others = model.decode(Inputs(changed), memory)
            again = model.decode(Inputs(tokens), memory)
        assert_close(others[:, : t + 1], again[:, : t + 1], limit_of(operations))
        assert not torch.allclose(others[:, t + 1 :], again[:, t + 1 :])


@torch.no_grad()
@cases("order", shapes=["encoder"])
def test_a_state_does_not_see_tokens_of_higher_rank(name: str, operations: str) -> None:
    model = model_in(operations, name)
    (example, *_) = rows_of(model.config, ordered=True)
    source = example.source
    assert source.order is not None
    states = hidden_of(model, example)
    for rank in (0, 9, 17):
        later = source.order > rank
        changed = Inputs(
            torch.where(later, source.tokens % 20 + 7, source.tokens),
            segments=source.segments,
            order=source.order,
        )
        other = model(changed)
        torch.testing.assert_close(other[~later], states[~later])
        assert not torch.allclose(other[later], states[later])
