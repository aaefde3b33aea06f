"""Position offsets of attention scores against their formulas, and the dependencies of two-stream
attention.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.models import add_noise, randomize
from torch import Tensor

from trifold.errors import SettingsError
from trifold.nn import Inputs, Mask, ModelConfig, Transformer
from trifold.nn.positions import sinusoids
from trifold.nn.variants.alibi import AlibiOffsets, slopes
from trifold.nn.variants.disentangled import DisentangledScores, DistanceVectors, log_buckets
from trifold.nn.variants.relative_buckets import RelativeOffsets, buckets
from trifold.nn.variants.relative_sinusoids import RelativeScores, RelativeSinusoids
from trifold.nn.variants.two_streams import query_states
from trifold.train.blocks import recompute_blocks

CPU = torch.device("cpu")

# --- buckets, slopes and offsets ------------------------------------------------------------------


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (8, 20), (16, 64)])
def test_buckets_equal_those_of_transformers(both_ways: bool, count: int, farthest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distances, both_ways, count, farthest)
    assert torch.equal(buckets(distances, count, farthest, both_ways=both_ways), expected)


@given(st.integers(0, 500), st.integers(0, 500), st.booleans())
def test_buckets_grow_with_distance_and_small_distances_have_their_own(
    a: int, b: int, both: bool
) -> None:
    near, distance_key = sorted((a, b))
    first, second = buckets(torch.tensor([-near, -distance_key]), 32, 128, both_ways=both).tolist()
    assert first <= second < 32
    exact = 8 if both else 16
    assert first == near or near >= exact


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 71])
def test_slopes_equal_those_of_transformers(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    alibi = build_alibi_tensor(torch.ones(1, 3, dtype=torch.long), heads, torch.float32)
    torch.testing.assert_close(slopes(heads), alibi[:, 0, 1], rtol=1e-6, atol=0)


def test_slopes_of_the_alibi_paper() -> None:
    torch.testing.assert_close(slopes(8), torch.tensor([2.0**-h for h in range(1, 9)]))
    assert slopes(16)[0] == pytest.approx(1 / math.sqrt(2))


def decoder(**values: object) -> ModelConfig:
    return ModelConfig.parse({"shape": "decoder", "d_model": 12, "n_heads": 3} | values)


@pytest.mark.parametrize("rounded", [False, True])
def test_alibi_offsets_are_slope_times_distance_up_to_a_constant_per_row(rounded: bool) -> None:
    config = decoder(positions="alibi", alibi_rounded=rounded, alibi_scale=0.5)
    keys = torch.tensor([[False, True, True, True, True], [True, True, False, True, True]])
    offsets = AlibiOffsets(config)(Mask(keys, causal=True, offset=2), 3, CPU, None)
    m = slopes(3).bfloat16().float() if rounded else slopes(3)
    for row, real in enumerate(keys):
        real_keys = [j for j in range(5) if real[j]]
        for head in range(3):
            got = offsets[row, head, 0, real_keys]
            expected = torch.tensor([0.5 * float(m[head]) * n for n in range(len(real_keys))])
            torch.testing.assert_close(
                got - got[0], expected, rtol=1e-2 if rounded else 1e-5, atol=1e-6
            )


def test_rounded_alibi_equals_that_of_transformers() -> None:
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    keys = torch.arange(600)[None] >= 0
    offsets = AlibiOffsets(decoder(positions="alibi", alibi_rounded=True))(
        Mask(causal=True), 600, CPU, None
    )
    assert torch.equal(offsets[0, :, 0], build_alibi_tensor(keys, 3, torch.float32)[:, 0])


def test_bidirectional_alibi() -> None:
    config = ModelConfig(shape="encoder", d_model=12, n_heads=3, positions="alibi")
    offsets = AlibiOffsets(config)(Mask(), 4, CPU, None)
    for i in range(4):
        for j in range(4):
            torch.testing.assert_close(offsets[0, :, i, j], -slopes(3) * abs(i - j))


def test_relative_offsets_are_looked_up_by_distance() -> None:
    config = decoder(positions="relative", relative_buckets=8, relative_distance=20)
    part = randomize(RelativeOffsets(config))
    keys = torch.tensor([[False, True, True, True, True]])
    offsets = part(Mask(keys, causal=True, offset=3), 2, CPU, None)
    assert offsets.shape == (1, 3, 2, 5)
    for t, column in ((0, 3), (1, 4)):
        for j in range(1, column + 1):
            assert torch.equal(offsets[0, :, t, j], part.weight[column - j])


# --- scores by distance and segment, and two streams ----------------------------------------------

SMALL: dict[str, Any] = {
    "shape": "encoder",
    "vocab_size": 19,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 20,
    "positions": "relative-sinusoidal",
    "segment_offsets": True,
    "query_stream": True,
}


def config(**values: object) -> ModelConfig:
    return ModelConfig.parse(SMALL | values)


def model(**values: object) -> Transformer:
    torch.manual_seed(3)
    return add_noise(Transformer(config(**values)), 0.2)


@pytest.mark.parametrize("clamp", [None, 2])
def test_relative_scores_follow_their_formula(clamp: int | None) -> None:
    torch.manual_seed(0)
    part = randomize(RelativeScores(config()))
    q, segments = torch.randn(2, 4, 5, 4), torch.randint(0, 3, (2, 5))
    relations = RelativeSinusoids(config(relative_clamp=clamp)).eval()(Mask(), 5, CPU, segments)
    offsets = part.scores(q, relations)
    table = sinusoids(torch.arange(5), 16, "sinusoidal-halves")
    for b, h, i, j in [(0, 0, 0, 4), (1, 3, 4, 0), (1, 2, 2, 2), (0, 1, 3, 1), (1, 0, 1, 2)]:
        distance = max(-clamp, min(clamp, i - j)) if clamp else i - j
        wave = table[abs(distance)].clone()
        if distance < 0:  # sines are odd
            wave[:8] *= -1
        rows = slice(4 * h, 4 * h + 4)
        distance_key = part.r_proj.weight[rows] @ wave
        segment_key = part.segments[int(segments[b, i] != segments[b, j]), rows]
        expected = (q[b, h, i] + part.distance[rows]) @ distance_key + (
            q[b, h, i] + part.segment[rows]
        ) @ segment_key
        torch.testing.assert_close(
            offsets[b, h, i, j], expected / math.sqrt(4), rtol=1e-4, atol=1e-5
        )


def test_distances_count_real_tokens_from_the_query_index() -> None:
    real = torch.tensor([[True, False, True, True]])
    relations = RelativeSinusoids(config()).eval()(
        Mask(real, queries=torch.tensor([[3, 0]])), 2, CPU, None
    )
    distance = relations.distances - relations.distances[0, 0, 3]
    assert distance[0, :, [0, 2, 3]].tolist() == [[2, 1, 0], [0, -1, -2]]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=6), st.integers(0, 5))
def test_both_streams_depend_on_earlier_tokens_of_the_order_only(
    order: list[int], index: int
) -> None:
    """The content stream depends on tokens of the same rank too, the query stream does not."""
    made = model()
    inputs = Inputs(torch.arange(3, 9)[None], order=torch.tensor([order]))

    def reached(states: Tensor) -> list[bool]:
        table = made.encoder_embeddings.tokens.weight
        loss = (states * torch.randn_like(states)).sum()
        (gradient,) = torch.autograd.grad(loss, [table], allow_unused=True, materialize_grads=True)
        return (gradient[3:9].abs().sum(-1) > 0).tolist()

    query = query_states(made, inputs, torch.tensor([[index]]))
    assert reached(query) == [rank < order[index] for rank in order]
    assert reached(made(inputs)[:, index]) == [rank <= order[index] for rank in order]


def test_a_query_without_earlier_tokens_has_finite_gradients() -> None:
    made, tokens = model().train(), torch.arange(3, 9)[None]
    query_states(
        made, Inputs(tokens, order=torch.arange(6)[None]), torch.tensor([[0, 5]])
    ).sum().backward()
    gradients = [p.grad for p in made.parameters() if p.grad is not None]
    assert gradients and all(bool(g.isfinite().all()) for g in gradients)


def test_recomputation_of_both_streams_keeps_the_gradients() -> None:
    inputs = Inputs(torch.arange(3, 9)[None], order=torch.tensor([[0, 2, 0, 1, 0, 3]]))
    queries = torch.tensor([[1, 3, 5]])
    plain, recomputed = model(), model()
    recompute_blocks(recomputed)
    for made in (plain, recomputed):
        query_states(made, inputs, queries).square().sum().backward()
    for got, expected in zip(recomputed.parameters(), plain.parameters(), strict=True):
        assert (got.grad is None) == (expected.grad is None)
        assert got.grad is None or torch.equal(got.grad, expected.grad)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"positions": "learned"},
            "segment_offsets needs positions: relative-sinusoidal, not learned",
        ),
        ({"shape": "decoder"}, "(segment_offsets|query_stream) needs shape: encoder, not decoder"),
        (
            {"d_model": 15, "n_heads": 3},
            "relative-sinusoidal positions need an even d_model, not 15",
        ),
        (
            {"residual": "parallel", "norm_placement": "pre"},
            "query_stream needs residual: sequential, not parallel",
        ),
    ],
)
def test_a_contradiction_is_named(values: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        config(**values)


# --- disentangled content and position ------------------------------------------------------------

DISENTANGLED: dict[str, Any] = {
    "shape": "encoder",
    "vocab_size": 19,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 20,
    "positions": "disentangled",
    "attention_bias": True,
    "relative_buckets": 6,
    "relative_distance": 9,
}
KINDS = ["both", "content-to-position", "position-to-content"]


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (3, 24), (2, 12), (8, 9)])
def test_log_buckets_equal_those_of_transformers(span: int, farthest: int) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-farthest + 1, farthest)
    expected = make_log_bucket_position(distances, span, farthest).long()
    assert torch.equal(log_buckets(distances, span, farthest), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_disentangled_scores_follow_their_formula(kind: str, shared: bool, log: bool) -> None:
    torch.manual_seed(0)
    values = {"relative_scores": kind, "relative_shared": shared, "relative_log": log}
    made = ModelConfig.parse(DISENTANGLED | values)
    layer = randomize(Transformer(made)).eval().encoder.blocks[0].self_attention.sublayer
    vectors = randomize(DistanceVectors(made))
    q, k = torch.randn(2, 4, 7, 4), torch.randn(2, 4, 7, 4)
    offsets = layer.relative.scores(q, k, vectors(Mask(), 7, CPU, None), layer.q_proj, layer.k_proj)
    k_proj, q_proj = (
        (layer.k_proj, layer.q_proj) if shared else (layer.relative.k_proj, layer.relative.q_proj)
    )
    for b, h, i, j in [(0, 0, 0, 6), (1, 3, 6, 0), (1, 2, 2, 2), (0, 1, 3, 1), (1, 0, 1, 2)]:
        distance = int(log_buckets(torch.tensor(i - j), 3, 9)) if log else i - j
        vector, rows = vectors.weight[min(max(distance + 3, 0), 5)], slice(4 * h, 4 * h + 4)
        expected = torch.zeros(())
        if kind != "position-to-content":
            expected = expected + q[b, h, i] @ k_proj(vector)[rows]
        if kind != "content-to-position":
            expected = expected + k[b, h, j] @ q_proj(vector)[rows]
        torch.testing.assert_close(
            offsets[b, h, i, j], expected / math.sqrt(4), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", KINDS)
def test_all_products_of_disentangled_attention_have_one_scale(kind: str) -> None:
    """Without vectors of distances, it is attention scaled by the number of products."""
    torch.manual_seed(0)
    made = ModelConfig.parse(DISENTANGLED | {"relative_scores": kind, "relative_shared": True})
    model = add_noise(Transformer(made), 0.2)
    plain = ModelConfig.parse(
        {key: value for key, value in DISENTANGLED.items() if not key.startswith("relative")}
        | {"positions": "none", "attention_scale": 1 / math.sqrt(4 * (3 if kind == "both" else 2))}
    )
    with torch.no_grad():
        for part in model.encoder.blocks:  # projections without biases turn zeros into zeros
            part.self_attention.sublayer.q_proj.bias.zero_()
            part.self_attention.sublayer.k_proj.bias.zero_()
        model.encoder.offsets.weight.zero_()
    other = Transformer(plain).eval()
    other.load_state_dict({n: p for n, p in model.state_dict().items() if "offsets" not in n})
    tokens = torch.randint(3, 19, (2, 6))
    torch.testing.assert_close(model(Inputs(tokens)), other(Inputs(tokens)), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_three_products_separate_content_from_position() -> None:
    """Of one query, content-to-position depends on the distance only, position-to-content on the
    key too.
    """
    torch.manual_seed(0)
    q, k = torch.randn(1, 4, 9, 4), torch.randn(1, 4, 9, 4)
    for kind, side in (("content-to-position", 0), ("position-to-content", 1)):
        made = ModelConfig.parse(DISENTANGLED | {"relative_scores": kind})
        part, vectors = randomize(DisentangledScores(made)).eval(), randomize(DistanceVectors(made))
        unused = torch.nn.Identity()
        distances = vectors(Mask(), 9, CPU, None)
        before = part.scores(q, k, distances, unused, unused)
        changed = [q, k]
        changed[1 - side] = torch.randn(1, 4, 9, 4)
        assert torch.equal(part.scores(*changed, distances, unused, unused), before)
        same = [q, k]
        # One content: a function of the distance.
        same[side] = same[side][:, :, :1].expand(-1, -1, 9, -1)
        scores = part.scores(*same, distances, unused, unused)
        for distance in range(-8, 9):
            diagonal = scores.diagonal(distance, -2, -1)
            torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"shape": "decoder"}, "positions: disentangled needs shape: encoder"),
        ({"n_kv_heads": 2}, "positions: disentangled excludes n_kv_heads: 2"),
        ({"relative_buckets": 7}, "an even number of at least 4 relative_buckets, not 7"),
        ({"relative_distance": 2}, "relative_distance 2 above a quarter of them"),
        (
            {"positions": "relative", "relative_norm": True},
            "relative_norm needs positions: disentangled",
        ),
        (
            {"positions": "learned"},
            "relative_buckets needs positions: relative or disentangled, not learned",
        ),
    ],
)
def test_a_contradiction_of_disentangled_positions_is_named(
    values: dict[str, object], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        ModelConfig.parse(DISENTANGLED | values)


def test_learned_positions_are_added_to_relative_ones() -> None:
    values = {
        "shape": "encoder",
        "d_model": 16,
        "n_heads": 4,
        "positions": "relative",
        "max_positions": 9,
    }
    model = add_noise(
        Transformer(ModelConfig.parse(values | {"learned_positions": True, "position_offset": 2})),
        0.2,
    )
    assert model.encoder_embeddings.positions.weight.shape == (11, 16)
    assert model.encoder.offsets.weight.shape == (32, 4)
    with pytest.raises(ValueError, match="10 tokens exceed max_positions = 9"):
        model(Inputs(torch.ones(1, 10, dtype=torch.long)))
    with pytest.raises(
        SettingsError, match="learned_positions needs positions: relative or disentangled"
    ):
        ModelConfig.parse(values | {"positions": "none", "learned_positions": True})
