"""What must hold for every model that can be put together, drawn at random from all parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing

pytestmark = pytest.mark.slow

some = st.sampled_from


@st.composite
def models(
    draw: st.DrawFn, shapes: tuple[str, ...] = ("encoder-decoder", "encoder", "decoder")
) -> Transformer:
    shape = draw(some(shapes))
    positions = draw(
        some(
            [
                *("sinusoidal", "sinusoidal-halves", "learned", "rotary"),
                *("relative", "relative-sinusoidal", "alibi", "none"),
            ]
        )
    )
    parallel = shape != "encoder-decoder" and draw(st.booleans())
    values: dict[str, Any] = {
        "shape": shape,
        "vocab_size": 23,
        "max_positions": 40,
        "d_model": 16,
        "n_layers": 3,
        "n_heads": 4,
        "d_ff": 20,
        "n_kv_heads": draw(some([None, 1, 2])),
        "d_head": draw(some([None, 6])),
        "positions": positions,
        "scale_embeddings": draw(st.booleans()),
        "embedding_norm": draw(st.booleans()),
        "n_token_types": draw(some([0, 2])),
        "norm": draw(some(["layer", "rms"])),
        "norm_bias": draw(st.booleans()),
        "norm_placement": "pre" if parallel else draw(some(["post", "pre", "sandwich"])),
        "residual": draw(some(["parallel", "parallel-two-norms"])) if parallel else "sequential",
        "encoder_final_norm": draw(some([None, True, False])),
        "decoder_final_norm": draw(some([None, True, False])),
        "activation": draw(some(["relu", "gelu", "gelu-tanh", "quick-gelu", "silu"])),
        "gated": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "attention_out_bias": draw(some([None, True, False])),
        "attention_scale": draw(some([None, 1.0, 0.3])),
        "score_soft_cap": draw(some([None, None, 2.0])),
        "logit_soft_cap": draw(some([None, 5.0])),
        "logits_scale": draw(some([1.0, 0.25])),
        "lm_head_bias": draw(st.booleans()),
        "lm_head_transform": draw(some([None, "gelu"])) if shape != "encoder" else None,
        "tie_lm_head": draw(st.booleans()),
    }
    if shape == "encoder-decoder":
        values |= {"n_decoder_layers": draw(some([None, 2])), "d_decoder_ff": draw(some([None, 12]))}
    if draw(st.booleans()):
        values |= {
            "sliding_window": draw(st.integers(1, 4)),
            "window_pattern": draw(some([("local",), ("global", "local")])),
        }
    match positions:
        case "learned":
            values["position_offset"] = draw(some([0, 2]))
        case "rotary":
            values |= {
                "rotary_width": draw(some([None, 2])),
                "rotary_pairs": draw(some(["halves", "interleaved"])),
            }
            if draw(st.booleans()):
                kind = draw(
                    some(
                        [
                            *("linear", "yarn", "llama3", "longrope"),
                            *["dynamic"] * (values["rotary_width"] is None),
                        ]
                    )
                )
                values["rotary_scaling"] = {"kind": kind, "factor": 2.0, "original_positions": 30}
                if kind == "longrope":
                    waves = (values["rotary_width"] or values["d_head"] or 16 // values["n_heads"]) // 2
                    values["rotary_scaling"] |= {
                        "short_factors": (1.5,) * waves,
                        "long_factors": (3.0,) * waves,
                    }
        case "relative":
            values |= {"relative_buckets": 8, "relative_distance": 12}
        case "relative-sinusoidal":
            values |= {
                "relative_clamp": draw(some([None, 3])),
                "segment_offsets": shape == "encoder" and draw(st.booleans()),
            }
        case "alibi":
            values |= {"alibi_scale": draw(some([1.0, 0.5])), "alibi_rounded": draw(st.booleans())}
    if values.get("n_decoder_layers") is None:
        if draw(st.booleans()):
            values["block_of_layer"] = draw(some([(0, 0, 0), (0, 1, 1), (0, 1, 0)]))
        else:
            values["attention_scale_by_layer"] = draw(st.booleans())
    if draw(st.booleans()) and (
        values["lm_head_transform"] or not values["tie_lm_head"] or shape == "encoder"
    ):
        values["d_embedding"] = 8
    torch.manual_seed(draw(st.integers(0, 99)))
    model = Transformer(ModelConfig.parse(values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=3e-5)


LENGTHS = torch.tensor([9, 4, 1])


def texts(model: Transformer, *, left: bool = False) -> Inputs:
    """Three rows of different lengths, padded on one side."""
    columns = torch.arange(9)
    real = columns >= 9 - LENGTHS[:, None] if left else columns < LENGTHS[:, None]
    tells = model.config.n_token_types or model.config.segment_offsets
    segments = torch.randint(0, 2, (3, 9)) if tells else None
    return Inputs(torch.randint(3, 23, (3, 9)), real, segments=segments)


def row_of(inputs: Inputs, row: int) -> Inputs:
    assert inputs.attend is not None
    real = inputs.attend[row]
    segments = None if inputs.segments is None else inputs.segments[row : row + 1, real]
    return Inputs(inputs.tokens[row : row + 1, real], segments=segments)


def hidden(model: Transformer, inputs: Inputs) -> Tensor:
    return model(inputs, inputs) if model.config.shape == "encoder-decoder" else model(inputs)


@settings(max_examples=40)
@given(models(), st.booleans())
@torch.no_grad()
def test_padded_is_alone_on_either_side(model: Transformer, left: bool) -> None:
    inputs = texts(model, left=left)
    together = hidden(model, inputs)
    for row in range(3):
        close(together[row : row + 1, inputs.attend[row]], hidden(model, row_of(inputs, row)))


@settings(max_examples=40)
@given(models())
@torch.no_grad()
def test_packed_is_padded(model: Transformer) -> None:
    inputs = texts(model)
    padded = hidden(model, inputs)[inputs.attend]
    packing = Packing.of(LENGTHS)
    tokens = torch.zeros(1, packing.length, dtype=torch.long)
    tokens[0, : packing.real] = inputs.tokens[inputs.attend]
    segments = None
    if inputs.segments is not None:
        segments = torch.zeros_like(tokens)
        segments[0, : packing.real] = inputs.segments[inputs.attend]
    packed = hidden(model, Inputs(tokens, packing=packing, segments=segments))
    close(packed[0, : packing.real], padded)


@settings(max_examples=40)
@given(models(("encoder-decoder", "decoder")), some(["growing", "static", "sliding"]), st.data())
@torch.no_grad()
def test_cached_is_uncached_at_every_step(model: Transformer, kind: Any, data: st.DataObject) -> None:
    """Prompts in chunks, of different lengths and so with padding left in the middle; then token by token."""
    inputs = texts(model)
    memory = None if model.encoder is None else model.encode(inputs)
    more = torch.randint(3, 23, (3, 4))
    attend = torch.cat([inputs.attend, torch.ones(3, 4, dtype=torch.bool)], 1)
    tokens = torch.cat([inputs.tokens, more], 1)
    segments = None
    if inputs.segments is not None:
        segments = torch.cat([inputs.segments, torch.ones(3, 4, dtype=torch.long)], 1)
    whole = model.decode(Inputs(tokens, attend, segments=segments), memory)
    cache = model.new_cache(kind, capacity=20)
    start = 0
    for end in (data.draw(st.integers(1, 8)), 9, 10, 13):
        part = segments if segments is None else segments[:, start:end]
        step = model.decode(Inputs(tokens[:, start:end], attend[:, :end], segments=part), memory, cache)
        real = attend[:, start:end]
        close(step[real], whole[:, start:end][real])
        start = end
    assert cache.length == 13


@settings(max_examples=25)
@given(models(("encoder-decoder", "decoder")), some(["growing", "static", "sliding"]))
@torch.no_grad()
def test_caches_are_reordered_selected_expanded_and_truncated(model: Transformer, kind: Any) -> None:
    tokens = torch.randint(3, 23, (2, 6))
    memory = None if model.encoder is None else model.encode(Inputs(tokens))
    cache = model.new_cache(kind, capacity=20, rollback=2)
    model.decode(Inputs(tokens), memory, cache)
    cache.truncate(5)
    cache.expand(2)
    cache.reorder(torch.tensor([1, 0, 2, 2]))
    step = torch.randint(3, 23, (4, 1))
    model.decode(Inputs(step), memory, cache)
    sentences = torch.tensor([1])
    cache.select(torch.tensor([2, 3]), sentences)
    own = None if memory is None else memory.select(sentences)
    last = torch.randint(3, 23, (2, 2))
    got = model.decode(Inputs(last), own, cache)
    read = torch.cat([tokens[[1, 1], :5], step[2:], last], 1)
    full = None if memory is None else memory.select(torch.tensor([1, 1]))
    close(got, model.decode(Inputs(read), full)[:, -2:])


@settings(max_examples=40)
@given(models(("encoder-decoder", "decoder")), st.integers(0, 7))
def test_the_future_does_not_leak_and_what_a_window_holds_is_seen(model: Transformer, t: int) -> None:
    """The gradient of state t for later tokens is 0; one layer's window is kept by as many layers as there are."""
    weight = model.decoder_embeddings.tokens.weight
    tokens = torch.arange(9, 17)[None]
    memory = None if model.encoder is None else model.encode(Inputs(torch.arange(3, 9)[None]))
    states = model.decode(Inputs(tokens), memory)[:, t]
    (gradient,) = torch.autograd.grad((states * torch.randn_like(states)).sum(), [weight])
    reached = gradient[9:17].abs().sum(-1) > 0
    assert reached[t]
    assert not reached[t + 1 :].any()
    windows = model.decoder.windows
    if None not in windows:
        assert not reached[: max(0, t - sum(w - 1 for w in windows))].any()


@settings(max_examples=15)
@given(models())
@torch.no_grad()
def test_hidden_states_are_what_flows(model: Transformer) -> None:
    inputs = texts(model)
    states = model.hidden_states(inputs, inputs)
    last = states["decoder" if model.decoder is not None else "encoder"][-1]
    assert torch.equal(last, hidden(model, inputs))
    for side, layers in states.items():
        assert len(layers) == len(getattr(model, side).order) + 1
        assert torch.equal(layers[0], getattr(model, f"{side}_embeddings")(inputs))
