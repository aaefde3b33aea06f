"""Compressive memory: what each segment reads, by the algorithm of its paper, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tests.models import add_noise
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.parts import AttentionPart, part_of

SIZE, REACH, RATE, MEMORY = 4, 3, 2, 2


def config(**values: object) -> ModelConfig:
    given = {"shape": "decoder", "d_model": 12, "n_heads": 3, "n_layers": 2, "vocab_size": 30}
    more = {"d_ff": 8, "dropout": 0.0, "positions": "none", "norm_placement": "post"}
    recurrence = {"recurrence": {"size": SIZE, "reach": REACH}}
    return ModelConfig.parse(
        given | more | recurrence | {"compression": {"rate": RATE, "memory": MEMORY}} | values
    )


def compressed(function: str, layer: Any, old: list[Tensor]) -> Tensor:
    """f of two states, channel by channel."""
    if function == "mean":
        return (old[0] + old[1]) / 2
    if function == "max":
        return torch.maximum(old[0], old[1])
    weight = layer.convolution.weight  # (out, in, place)
    return weight[:, :, 0] @ old[0] + weight[:, :, 1] @ old[1] + layer.convolution.bias


def attention(layer: Any, query: Tensor, states: list[Tensor]) -> Tensor:
    """One query."""
    return layer.o_proj.weight @ read(layer, query, states)


def read(layer: Any, query: Tensor, states: list[Tensor]) -> Tensor:
    """attn(h, m) of one query, head by head."""
    heads = []
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        q = layer.q_proj.weight[own] @ query
        scores = torch.stack([q @ (layer.k_proj.weight[own] @ state) / 2 for state in states])
        values = torch.stack([layer.v_proj.weight[own] @ state for state in states])
        heads.append(scores.softmax(0) @ values)
    return torch.cat(heads)


@torch.no_grad()
@pytest.mark.parametrize("function", ["mean", "max", "convolution"])
def test_states_are_those_of_the_paper(function: str) -> None:
    """Algorithm 1: the oldest states leave the memory, two become one, and the last two of these
    are kept. A memory of three states first holds four, because one alone is not compressed.
    """
    with torch.random.fork_rng():
        torch.manual_seed(4)
        settings = {"rate": RATE, "memory": MEMORY, "function": function}
        model = add_noise(Transformer(config(compression=settings)), 0.3).double().eval()
    tokens = torch.randint(0, 30, (1, 15), generator=torch.Generator().manual_seed(2))
    decoder = model.decoder
    assert decoder is not None and model.decoder_embeddings is not None
    x = model.decoder_embeddings(Inputs(tokens))[0]
    for block in decoder.blocks:
        layer = block.self_attention.sublayer
        memory: list[Tensor] = []
        small: list[Tensor] = []
        outs = []
        for start in range(0, 15, SIZE):
            segment = list(x[start : start + SIZE])
            for i, state in enumerate(segment):
                seen = [*small, *memory, *segment[: i + 1]]
                state = block.self_attention.after(state + attention(layer, state, seen))
                outs.append(block.feed_forward(state[None, None])[0, 0])
            memory += segment
            while len(memory) - REACH >= RATE:
                small.append(compressed(function, layer, memory[:RATE]))
                memory = memory[RATE:]
            small = small[-MEMORY:]
        x = torch.stack(outs)
    got = model(Inputs(tokens))[0]
    torch.testing.assert_close(got, decoder.final_norm(x), rtol=1e-10, atol=1e-10)


def recorded(seen: list[Tensor], attend_to: Any, g: Tensor, *args: Any) -> Tensor:
    """A block that records the segments which enter it."""
    seen.append(g.detach())
    out: Tensor = attend_to(g, *args)
    return out


def test_the_convolution_learns_what_attention_reads() -> None:
    """Algorithm 2, for two texts of which the second is shorter: L is that of the definition, and
    its gradient reaches the convolutions only.
    """
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = add_noise(Transformer(config(norm_placement="pre")), 0.3).double()
    tokens = torch.randint(0, 30, (2, 15), generator=torch.Generator().manual_seed(2))
    attend = torch.ones(2, 15, dtype=torch.bool)
    attend[1, 9:] = False
    segments = [list[Tensor]() for _ in model.decoder.blocks]
    for seen, block in zip(segments, model.decoder.blocks, strict=True):
        block.attend_to = partial(recorded, seen, block.attend_to)
    with part_of(AttentionPart, model.config).penalty(model) as penalty:
        model(Inputs(tokens, attend))
    error = penalty()
    error.backward()
    trained = {name for name, each in model.named_parameters() if each.grad is not None}
    assert {name.rpartition("convolution")[2] for name in trained} == {".weight", ".bias"}

    expected = torch.zeros((), dtype=torch.float64)
    for block, seen in zip(model.decoder.blocks, segments, strict=True):
        residual = block.self_attention
        layer = residual.sublayer
        text = torch.cat(seen, 1)
        memory: list[int] = []
        for start in range(0, 15, SIZE):
            queries = range(start, min(start + SIZE, 15))
            memory += queries
            leaving = (len(memory) - REACH) // RATE * RATE
            if leaving <= 0:
                continue
            old, memory = memory[:leaving], memory[leaving:]
            for row in range(2):
                states_of_row = text[row]
                pairs = [states_of_row[old[n : n + RATE]] for n in range(0, leaving, RATE)]
                new = [compressed("convolution", layer, [*pair]) for pair in pairs]
                for query in queries:
                    if attend[row, query]:
                        h = residual.enter(states_of_row[query])
                        kept, was = (
                            read(layer, h, [residual.enter(each) for each in group])
                            for group in (new, [states_of_row[n] for n in old])
                        )
                        expected = expected + (kept - was).square().mean() / attend.sum()
    torch.testing.assert_close(error, expected, rtol=1e-10, atol=1e-12)
    learned = [each for each in model.parameters() if each.grad is not None]
    for each, gradient in zip(learned, torch.autograd.grad(expected, learned), strict=True):
        torch.testing.assert_close(each.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("loss", "trains"), [("task", True), ("attention", False)])
def test_the_loss_of_later_segments_trains_the_convolution_if_it_is_to(
    loss: str, trains: bool
) -> None:
    settings = {"rate": RATE, "memory": MEMORY, "loss": loss}
    model = add_noise(Transformer(config(compression=settings)), 0.3)
    model(Inputs(torch.randint(0, 30, (2, 15)))).square().sum().backward()
    for block in model.decoder.blocks:
        gradient = block.self_attention.sublayer.convolution.weight.grad
        assert (gradient is not None and bool(gradient.abs().sum() > 0)) == trains


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recurrence": None}, "compression needs recurrence, whose memory it compresses"),
        ({"positions": "rotary"}, "needs positions: relative-sinusoidal or none, not rotary"),
        ({"shape": "encoder"}, "needs shape: decoder, not encoder"),
        ({"compression": {"rate": 1, "memory": 2}}, "compression.rate: .* greater than 1"),
    ],
)
def test_what_it_needs(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        config(**values)
