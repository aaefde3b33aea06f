from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from trifold.costs import cached_elements
from trifold.nn import Inputs, Mask, ModelConfig, RotaryScaling, Transformer
from trifold.nn.parts import ScoresPart, part_of
from trifold.nn.rotary import Rotary, frequencies
from trifold.nn.variants.rotary_scaling import _dynamic, magnitude, scaled_frequencies


def rotary(**values: object) -> Rotary:
    config = ModelConfig.parse(
        {
            "shape": "decoder",
            "d_model": 32,
            "n_heads": 2,
            "positions": "rotary",
            "max_positions": 64,
        }
        | values
    )
    found: Rotary = part_of(ScoresPart, config).new_rotary(config).everywhere
    return found


def rotate(rotary: Rotary, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return rotary.rotation(positions, Mask(causal=True), x)(x)


def reference(x: torch.Tensor, position: int, theta: float, pairs: str, width: int) -> torch.Tensor:
    """One head at one position, pair by pair as complex numbers: z e^{ip θ^(−2i/R)}."""
    out = x.clone()
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + width // 2)
        angle = position * theta ** (-2 * i / width)
        z = complex(x[a], x[b]) * complex(math.cos(angle), math.sin(angle))
        out[a], out[b] = z.real, z.imag
    return out


@given(
    position=st.integers(0, 63),
    pairs=st.sampled_from(["halves", "interleaved"]),
    width=st.sampled_from([None, 4, 10]),
    theta=st.sampled_from([100.0, 10_000.0]),
)
def test_pairs_rotate_as_complex_numbers(
    position: int, pairs: str, width: int | None, theta: float
) -> None:
    part = rotary(rotary_pairs=pairs, rotary_width=width, rotary_theta=theta)
    x = torch.randn(1, 2, 1, 16)
    got = rotate(part, x, torch.tensor([[position]]))
    for head in range(2):
        expected = reference(x[0, head, 0], position, theta, pairs, width or 16)
        torch.testing.assert_close(got[0, head, 0], expected, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 40), st.integers(0, 20), st.sampled_from(["halves", "interleaved"]))
def test_a_product_depends_on_the_distance_only(shift: int, distance: int, pairs: str) -> None:
    part = rotary(rotary_pairs=pairs)
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def product(at: int) -> torch.Tensor:
        return (
            rotate(part, q, torch.tensor([[at + distance]])) * rotate(part, k, torch.tensor([[at]]))
        ).sum()

    torch.testing.assert_close(product(0), product(shift), rtol=1e-3, atol=1e-4)


SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
        "attention_factor": 1.3,
    },
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 128,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
]


def our_scaling(parameters: dict[str, object]) -> RotaryScaling | None:
    if parameters["rope_type"] == "default":
        return None
    names = {
        "low_freq_factor": "low_frequency",
        "high_freq_factor": "high_frequency",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "round_bounds",
        "attention_factor": "magnitude",
    }
    return RotaryScaling.parse(
        {
            "kind": parameters["rope_type"],
            "factor": parameters["factor"],
            "original_positions": parameters.get("original_max_position_embeddings", 512),
        }
        | {
            our_scaling: parameters[name]
            for name, our_scaling in names.items()
            if name in parameters
        }
    )


@pytest.mark.parametrize("parameters", SCALINGS, ids=lambda p: p["rope_type"])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_scalings_equal_those_of_transformers(parameters: dict[str, object], theta: float) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    reference = LlamaRotaryEmbedding(config)
    scaling = our_scaling(parameters)
    torch.testing.assert_close(
        (frequencies(64, theta) if scaling is None else scaled_frequencies(64, theta, scaling)),
        reference.inv_freq,
        rtol=2e-6,
        atol=0,
    )
    assert magnitude(scaling) == pytest.approx(reference.attention_scaling)


SHORT, LONG = ([base + 0.5 * n for n in range(8)] for base in (1.0, 3.0))
FACTORS = {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32}


@pytest.mark.parametrize("length", [3, 32, 33, 100])
@pytest.mark.parametrize(
    ("values", "max_positions"),
    [
        ({"rope_type": "dynamic", "factor": 3.0}, 32),
        ({"rope_type": "longrope", **FACTORS}, 96),
        ({"rope_type": "longrope", **FACTORS, "factor": 4.0}, 96),
        ({"rope_type": "longrope", **FACTORS, "attention_factor": 1.2}, 96),
    ],
)
def test_scalings_by_length_equal_those_of_transformers(
    length: int, values: dict[str, Any], max_positions: int
) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=32,
        num_attention_heads=2,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_theta": 10_000.0, **values},
    )
    x, positions = torch.randn(1, 2, length, 16), torch.arange(length)[None]
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    scaling = {
        "kind": values["rope_type"],
        "factor": values.get("factor", 3.0),
        "original_positions": 32,
    }
    if "short_factor" in values:
        scaling |= {"short_factors": SHORT, "long_factors": LONG}
        scaling |= {"magnitude": values.get("attention_factor")}
    rotation = rotary(rotary_scaling=scaling).rotation(positions, Mask(causal=True), x)
    torch.testing.assert_close(rotation.cos[:, 0], cos[..., :8], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotation.sin[:, 0], sin[..., :8], rtol=1e-4, atol=1e-5)


def test_dynamic_scaling_depends_on_the_length_of_the_row() -> None:
    scaling = RotaryScaling(kind="dynamic", factor=2.0, original_positions=8)
    both = _dynamic(16, 10_000.0, scaling, torch.tensor([[5], [30]]))
    torch.testing.assert_close(both[0], frequencies(16, 10_000.0))
    assert (both[1, 1:] < both[0, 1:]).all()


def scaled_decoder(kind: str, **more: object) -> Transformer:
    scaling = {"kind": kind, "factor": 3.0, "original_positions": 5}
    if kind == "longrope":
        scaling |= {"short_factors": (1.0, 2.0, 3.0, 4.0), "long_factors": (2.0, 4.0, 6.0, 9.0)}
    sizes = {
        "vocab_size": 20,
        "max_positions": 32,
        "d_model": 16,
        "n_layers": 3,
        "n_heads": 2,
        "d_ff": 16,
    }
    parts = {
        "shape": "decoder",
        "positions": "rotary",
        "norm_placement": "pre",
        "rotary_scaling": scaling,
    }
    torch.manual_seed(0)
    return Transformer(ModelConfig.parse(sizes | parts | more)).eval()


PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "latent": {"latent": {"width": 12, "d_rotary": 8, "d_value": 6}},
    "window": {"sliding_window": 4, "window_pattern": ("local", "global")},
}


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("part", PARTS)
@torch.no_grad()
def test_a_text_is_read_again_when_its_length_changes_the_angles(kind: str, part: str) -> None:
    model = scaled_decoder(kind, **PARTS[part])
    tokens = torch.randint(0, 20, (2, 12))
    real = torch.arange(12) >= torch.tensor([[0], [2]])
    for cache in ("growing", "static", "sliding"):
        held = model.new_cache(cache, capacity=12)
        for start, end in ((0, 3), (3, 4), (4, 5), (5, 6), (6, 9), (9, 12)):
            step = model.decode(Inputs(tokens[:, start:end], real[:, :end]), cache=held)
            whole = model.decode(Inputs(tokens[:, :end], real[:, :end]))
            found, expected = (x[real[:, start:end]] for x in (step, whole[:, start:]))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        padded = Inputs(tokens[:, :8], torch.arange(8) < torch.tensor([[8], [4]]))
        alone = model.decode(Inputs(tokens[1:, :4]))
        torch.testing.assert_close(model.decode(padded)[1:, :4], alone, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_removed_tokens_change_the_angles_back() -> None:
    model = scaled_decoder("longrope")
    tokens, real = torch.randint(0, 20, (3, 7)), torch.arange(7) >= torch.tensor([[0], [1], [0]])
    held = model.new_cache()
    model.decode(Inputs(tokens, real), cache=held)
    held.truncate(4)
    held.expand(2)
    held.select(torch.tensor([3, 0]), torch.tensor([1, 0]))
    rows, real = tokens[[1, 0]], real[[1, 0]]
    step = model.decode(Inputs(rows[:, 4:5], real[:, :5]), cache=held)
    whole = model.decode(Inputs(rows[:, :5], real[:, :5]))
    torch.testing.assert_close(step, whole[:, 4:], rtol=1e-4, atol=1e-5)
    assert held.inputs is not None and held.inputs.buffers is not None
    stored = [
        x
        for own in (*(layer.past for layer in held.layers), held.inputs)
        for x in own.buffers or ()
    ]
    assert sum(x[:, :, :5].numel() for x in stored) == 2 * cached_elements(model.config, 5)
