"""Hidden states start with the embeddings and end with the output; a state of a decoder with windows
depends on the tokens that they reach.
"""

from __future__ import annotations

import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import hidden_of, memory_of, model_in, rows_of, texts_of

from trifold.nn import Inputs
from trifold.nn.hooks import hooked

LENGTH = 19


@torch.no_grad()
@cases("states", every=2)
def test_hidden_states_start_with_the_embeddings_and_end_with_the_output(
    name: str, operations: str
) -> None:
    model = model_in("fast", name)
    source, target = rows_of(config_of(name))[0]
    if source.pixels is not None:
        source = Inputs(pixels=source.pixels.float())
    states = model.hidden_states(source, target)
    last = states["decoder" if model.decoder is not None else "encoder"][-1]
    torch.testing.assert_close(
        last, hidden_of(model, rows_of(config_of(name))[0]), rtol=1e-4, atol=1e-5
    )
    for side, layers in states.items():
        assert len(layers) == len(getattr(model, side).block_of_layer) + 1


@cases("states", shapes=("encoder-decoder", "decoder"), parts=("window", "window pattern"))
def test_a_state_depends_on_the_tokens_within_the_windows(name: str, operations: str) -> None:
    model = model_in(operations, name)
    embedded: list[torch.Tensor] = []

    def leaf(point: str, x: torch.Tensor) -> torch.Tensor:
        embedded.append(x.detach().requires_grad_())
        return embedded[-1]

    with hooked(model, leaf, "decoder_embeddings.output"):
        states = model.decode(Inputs(texts_of(model.config, 1, LENGTH)), memory_of(model, 1))
    (gradient,) = torch.autograd.grad(states[:, -1].sum(-1).sin().sum(), embedded)
    reached = (gradient[0].abs().sum(-1) > 0).tolist()
    assert model.decoder is not None
    windows = model.decoder.windows
    first = 0 if None in windows else LENGTH - 1 - sum(window - 1 for window in windows)
    assert not any(reached[: max(0, first)])
    assert reached[-1]
    assert all(reached) or windows.count(None) < len(windows)
