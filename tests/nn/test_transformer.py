"""Parameters of the presets, and laws of every model: drawn at random from all parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.models import add_noise
from torch import Tensor

from trifold.nn import PRESETS, Inputs, ModelConfig, Transformer
from trifold.nn.packing import Packing

Make = Callable[..., Transformer]
some = st.sampled_from

# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "count"), [("transformer-base", 63_045_632), ("transformer-big", 214_171_648)]
)
def test_presets_have_the_parameter_count_of_the_formula(preset: str, count: int) -> None:
    config = PRESETS[preset]
    with torch.device("meta"):
        model = Transformer(config)
    e, f, n = config.d_model, config.d_ff, config.n_layers
    attention, feed_forward, norm = 4 * e * e, 2 * e * f + e + f, 2 * e
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    assert config.vocab_size * e + n * (encoder + decoder) == count
    assert model.count_parameters() == count


def test_the_tiny_preset_has_at_most_2_7_million_parameters() -> None:
    assert Transformer(PRESETS["transformer-tiny"]).count_parameters() <= 2_700_000


def test_tied_embeddings_are_one_tensor(make_model: Make) -> None:
    shared, own = make_model(), make_model(target_vocab_size=17)
    assert (
        shared.encoder_embeddings.tokens.weight
        is shared.decoder_embeddings.tokens.weight
        is shared.lm_head.weight
    )
    assert own.encoder_embeddings.tokens.weight is not own.decoder_embeddings.tokens.weight
    assert own.decoder_embeddings.tokens.weight is own.lm_head.weight
    untied = make_model(tie_lm_head=False)
    assert untied.lm_head.weight is not untied.decoder_embeddings.tokens.weight


def test_initialization_is_xavier() -> None:
    """Uniform with variance 2 / (in + out); embeddings N(0, 1/d); norms 1; biases 0."""
    model = Transformer(
        ModelConfig(
            vocab_size=500, d_model=128, n_heads=4, d_ff=512, n_layers=1, attention_bias=True
        )
    )
    matrix = model.encoder.blocks[0].feed_forward.sublayer.in_proj.weight
    assert abs(matrix.var() * (128 + 512) / 2 - 1) < 0.02
    assert matrix.abs().max() <= (6 / (128 + 512)) ** 0.5
    assert abs(model.lm_head.weight.var() * 128 - 1) < 0.03
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name


# --- random models --------------------------------------------------------------------------------


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
                *(["disentangled"] if shape == "encoder" else []),
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
        values |= {
            "n_decoder_layers": draw(some([None, 2])),
            "d_decoder_ff": draw(some([None, 12])),
            "target_vocab_size": draw(some([None, 23])),
        }
        if draw(st.booleans()):
            values |= {
                "d_decoder": 24,
                "target_vocab_size": 23,
                "d_decoder_head": draw(some([None, 4])),
            }
            values |= {
                "n_decoder_heads": draw(some([None, 2])),
                "n_decoder_kv_heads": draw(some([None, 2])),
            }
    if draw(st.booleans()):
        values |= {
            "sliding_window": draw(st.integers(1, 4)),
            "window_pattern": draw(
                some([("local",), ("global", "local"), ("local", 3), (5, "local")])
            ),
            "decoder_window": draw(some([None, 2])) if shape == "encoder-decoder" else None,
        }
    match positions:
        case "disentangled":
            scores = ["both", "content-to-position", "position-to-content"]
            values |= {
                "n_kv_heads": None,
                "relative_buckets": draw(some([4, 10])),
                "relative_distance": 12,
                "relative_log": draw(st.booleans()),
                "relative_scores": draw(some(scores)),
                "relative_shared": draw(st.booleans()),
                "relative_norm": draw(st.booleans()),
                "learned_positions": draw(st.booleans()),
            }
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
                            *("linear", "yarn", "llama3"),
                            *["longrope"]
                            * (values["rotary_width"] == 2 or "d_decoder" not in values),
                            *["dynamic"] * (values["rotary_width"] is None),
                        ]
                    )
                )
                values["rotary_scaling"] = {"kind": kind, "factor": 2.0, "original_positions": 30}
                if kind == "longrope":
                    waves = (
                        values["rotary_width"] or values["d_head"] or 16 // values["n_heads"]
                    ) // 2
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
            if shape == "encoder" and values["norm_placement"] == "post":
                values["convolution"] = draw(
                    some([None, {"kernel": 5, "groups": 2, "activation": "tanh"}])
                )
    if draw(st.booleans()) and (
        values["lm_head_transform"] or not values["tie_lm_head"] or shape == "encoder"
    ):
        values["d_embedding"] = 8
    torch.manual_seed(draw(st.integers(0, 99)))
    return add_noise(Transformer(ModelConfig.parse(values)), 0.1)


LENGTHS = torch.tensor([9, 4, 1])


def padded_inputs(model: Transformer, *, left: bool = False) -> Inputs:
    """Three rows of different lengths, padded on one side with random tokens."""
    columns = torch.arange(9)
    real = columns >= 9 - LENGTHS[:, None] if left else columns < LENGTHS[:, None]
    has_segments = model.config.n_token_types or model.config.segment_offsets
    segments = torch.randint(0, 2, (3, 9)) if has_segments else None
    return Inputs(torch.randint(3, 23, (3, 9)), real, segments=segments)


def row_of(inputs: Inputs, row: int) -> Inputs:
    assert inputs.attend is not None
    real = inputs.attend[row]
    segments = None if inputs.segments is None else inputs.segments[row : row + 1, real]
    return Inputs(inputs.tokens[row : row + 1, real], segments=segments)


def hidden_states(model: Transformer, inputs: Inputs) -> Tensor:
    return model(inputs, inputs) if model.config.shape == "encoder-decoder" else model(inputs)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=3e-5)


def reached_tokens(model: Transformer, states: Tensor, tokens: Tensor) -> list[bool]:
    """Whether the gradient of the states for the embedding of each token is not 0."""
    embeddings = model.encoder_embeddings if model.decoder is None else model.decoder_embeddings
    (gradient,) = torch.autograd.grad(
        (states * torch.randn_like(states)).sum(), [embeddings.tokens.weight]
    )
    return (gradient[tokens].abs().sum(-1) > 0).tolist()


@settings(max_examples=40)
@given(models(), st.booleans())
@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch_or_its_padding(model: Transformer, left: bool) -> None:
    inputs = padded_inputs(model, left=left)
    together = hidden_states(model, inputs)
    for row in range(3):
        close(
            together[row : row + 1, inputs.attend[row]], hidden_states(model, row_of(inputs, row))
        )


@settings(max_examples=40)
@given(models())
@torch.no_grad()
def test_packed_rows_equal_padded_rows(model: Transformer) -> None:
    inputs = padded_inputs(model)
    padded = hidden_states(model, inputs)[inputs.attend]
    packing = Packing.of(LENGTHS)
    tokens = torch.zeros(1, packing.length, dtype=torch.long)
    tokens[0, : packing.real] = inputs.tokens[inputs.attend]
    segments = None
    if inputs.segments is not None:
        segments = torch.zeros_like(tokens)
        segments[0, : packing.real] = inputs.segments[inputs.attend]
    packed = hidden_states(model, Inputs(tokens, packing=packing, segments=segments))
    close(packed[0, : packing.real], padded)


@settings(max_examples=40)
@given(models(("encoder-decoder", "decoder")), some(["growing", "static", "sliding"]), st.data())
@torch.no_grad()
def test_cached_steps_equal_an_uncached_pass(
    model: Transformer, kind: Any, data: st.DataObject
) -> None:
    """Prompts of different lengths in chunks, padded on either side; then token by token."""
    inputs = padded_inputs(model, left=data.draw(st.booleans()))
    memory = None if model.encoder is None else model.encode(inputs)
    more = torch.randint(3, 23, (3, 4))
    attend = torch.cat([inputs.attend, torch.ones(3, 4, dtype=torch.bool)], 1)
    tokens = torch.cat([inputs.tokens, more], 1)
    segments = None
    if inputs.segments is not None:
        segments = torch.cat([inputs.segments, torch.ones(3, 4, dtype=torch.long)], 1)
    whole = model.decode(Inputs(tokens, attend, segments=segments), memory)
    explicit = data.draw(st.booleans())
    positions = (attend.cumsum(-1) - 1).clamp_min(0)
    cache = model.new_cache(kind, capacity=20)
    start = 0
    for end in (data.draw(st.integers(1, 8)), 9, 10, 13):
        part = slice(start, end)
        step_inputs = Inputs(
            tokens[:, part],
            attend[:, :end],
            positions[:, part] if explicit else None,
            segments=None if segments is None else segments[:, part],
        )
        step = model.decode(step_inputs, memory, cache)
        real = attend[:, part]
        close(step[real], whole[:, part][real])
        start = end
    assert cache.length == 13


@settings(max_examples=25)
@given(models(("encoder-decoder", "decoder")), some(["growing", "static", "sliding"]))
@torch.no_grad()
def test_a_rearranged_cache_equals_the_cache_of_the_rearranged_rows(
    model: Transformer, kind: Any
) -> None:
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
def test_a_state_depends_on_the_tokens_up_to_its_own_within_the_windows(
    model: Transformer, t: int
) -> None:
    tokens = torch.arange(9, 17)[None]
    memory = None if model.encoder is None else model.encode(Inputs(torch.arange(3, 9)[None]))
    reached = reached_tokens(model, model.decode(Inputs(tokens), memory)[:, t], tokens[0])
    windows = model.decoder.windows
    first = 0 if None in windows else max(0, t - sum(window - 1 for window in windows))
    assert reached[t]
    assert not any(reached[t + 1 :] + reached[:first])
    assert windows.count(None) < len(windows) or all(reached[: t + 1])


@settings(max_examples=15)
@given(models())
@torch.no_grad()
def test_hidden_states_start_with_the_embeddings_and_end_with_the_output(
    model: Transformer,
) -> None:
    inputs = padded_inputs(model)
    states = model.hidden_states(inputs, inputs)
    last = states["decoder" if model.decoder is not None else "encoder"][-1]
    assert torch.equal(last, hidden_states(model, inputs))
    for side, layers in states.items():
        assert len(layers) == len(getattr(model, side).order) + 1
        assert torch.equal(layers[0], getattr(model, f"{side}_embeddings")(inputs))


def test_an_encoder_state_depends_on_all_tokens(make_model: Make) -> None:
    model, tokens = make_model(shape="encoder"), torch.arange(8, 14)
    assert all(reached_tokens(model, model(Inputs(tokens[None]))[:, 2], tokens))


def test_names_of_the_previous_release_work_with_a_warning() -> None:
    model = Transformer(
        ModelConfig(
            shape="decoder", vocab_size=9, d_model=8, n_heads=2, n_layers=1, d_ff=8, dropout=0.0
        )
    )
    inputs = Inputs(torch.arange(4)[None])
    with pytest.warns(DeprecationWarning, match="use head_outputs"):
        old = model.answer(inputs, heads=["lm"])["lm"]
    assert torch.equal(old, model.head_outputs(inputs)["lm"])
    with pytest.warns(DeprecationWarning, match="use capacity"):
        model.new_cache("static", room=5)
    with pytest.warns(DeprecationWarning, match="use order"):
        ranked = Inputs(inputs.tokens, ranks=inputs.tokens)
    assert ranked.order is inputs.tokens and ranked.to(torch.device("cpu")).order is not None
