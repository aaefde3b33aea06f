"""Scores by distance and segment against the formula, and who sees whom in two streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from trifold.nn import Inputs, Mask, ModelConfig, Transformer
from trifold.nn.positions import sinusoids
from trifold.nn.relative import RelativeScores, RelativeSinusoids
from trifold.train.blocks import recompute_blocks

CPU = torch.device("cpu")
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
    made = Transformer(config(**values)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


@pytest.mark.parametrize("clamp", [None, 2])
def test_offsets_are_the_formula(clamp: int | None) -> None:
    torch.manual_seed(0)
    part = RelativeScores(config())
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    q, segments = torch.randn(2, 4, 5, 4), torch.randint(0, 3, (2, 5))
    relations = RelativeSinusoids(config(relative_clamp=clamp)).eval()(Mask(), 5, CPU, segments)
    offsets = part.scores(q, relations)
    assert part.segment is not None and part.segments is not None
    table = sinusoids(torch.arange(5), 16, halves=True)
    for b, h, i, j in [(0, 0, 0, 4), (1, 3, 4, 0), (1, 2, 2, 2), (0, 1, 3, 1), (1, 0, 1, 2)]:
        apart = max(-clamp, min(clamp, i - j)) if clamp else i - j
        wave = table[abs(apart)].clone()
        if apart < 0:  # sines are odd
            wave[:8] *= -1
        rows = slice(4 * h, 4 * h + 4)
        far = part.r_proj.weight[rows] @ wave
        kin = part.segments[int(segments[b, i] != segments[b, j]), rows]
        expected = (q[b, h, i] + part.distance[rows]) @ far + (q[b, h, i] + part.segment[rows]) @ kin
        torch.testing.assert_close(offsets[b, h, i, j], expected / math.sqrt(4), rtol=1e-4, atol=1e-5)


def test_distances_count_real_tokens_and_start_where_a_question_stands() -> None:
    real = torch.tensor([[True, False, True, True]])
    relations = RelativeSinusoids(config()).eval()(
        Mask(real, query_index=torch.tensor([[3, 0]])), 2, CPU, None
    )
    apart = relations.distances - relations.distances[0, 0, 3]
    assert apart[0, :, [0, 2, 3]].tolist() == [[2, 1, 0], [0, -1, -2]]


ranked = st.lists(st.integers(0, 4), min_size=6, max_size=6)


@settings(max_examples=25)
@given(ranked, st.integers(0, 5))
def test_a_question_sees_what_comes_before_it_in_the_order_and_nothing_else(
    order: list[int], place: int
) -> None:
    made, ranks = model(), torch.tensor([order])
    tokens = torch.arange(3, 9)[None]
    table = made.encoder_embeddings.tokens.weight  # type: ignore[union-attr]
    answer = made.query_stream(Inputs(tokens, order=ranks), torch.tensor([[place]]))
    (gradient,) = torch.autograd.grad((answer * torch.randn_like(answer)).sum(), [table], allow_unused=True)
    reached = torch.zeros(6, dtype=torch.bool) if gradient is None else gradient[3:9].abs().sum(-1) > 0
    assert reached.tolist() == [rank < order[place] for rank in order]


@settings(max_examples=25)
@given(ranked, st.integers(0, 5))
def test_a_content_sees_itself_and_what_does_not_come_after_it(order: list[int], place: int) -> None:
    made, tokens = model(), torch.arange(3, 9)[None]
    states = made(Inputs(tokens, order=torch.tensor([order])))[:, place]
    table = made.encoder_embeddings.tokens.weight  # type: ignore[union-attr]
    (gradient,) = torch.autograd.grad((states * torch.randn_like(states)).sum(), [table])
    assert (gradient[3:9].abs().sum(-1) > 0).tolist() == [rank <= order[place] for rank in order]


@torch.no_grad()
def test_a_question_does_not_depend_on_padding_or_on_other_questions() -> None:
    made = model()
    tokens, order = torch.randint(3, 19, (1, 7)), torch.tensor([[0, 0, 2, 0, 1, 3, 0]])
    alone = made.query_stream(Inputs(tokens, order=order), torch.tensor([[5]]))
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], 1)
    real = torch.arange(9)[None] >= 2
    wide = torch.cat([torch.full((1, 2), 3), order], 1)
    together = made.query_stream(Inputs(padded, real, order=wide), torch.tensor([[4, 7, 6]]))
    torch.testing.assert_close(together[:, 1], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_a_question_with_nothing_before_it_has_finite_gradients() -> None:
    made, tokens = model().train(), torch.arange(3, 9)[None]
    made.query_stream(Inputs(tokens, order=torch.arange(6)[None]), torch.tensor([[0, 5]])).sum().backward()
    gradients = [p.grad for p in made.parameters() if p.grad is not None]
    assert gradients and all(bool(g.isfinite().all()) for g in gradients)


def test_both_streams_may_be_recomputed_on_the_way_back() -> None:
    inputs, asked = (
        Inputs(torch.arange(3, 9)[None], order=torch.tensor([[0, 2, 0, 1, 0, 3]])),
        torch.tensor([[1, 3, 5]]),
    )
    kept, again = model(), model()
    recompute_blocks(again)
    for made in (kept, again):
        made.query_stream(inputs, asked).square().sum().backward()
    for mine, theirs in zip(again.parameters(), kept.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"positions": "learned"}, "segment_offsets needs positions: relative-sinusoidal, not learned"),
        ({"shape": "decoder"}, "segment_offsets needs shape: encoder, not decoder"),
        ({"d_model": 15, "n_heads": 3}, "relative-sinusoidal positions need an even d_model, not 15"),
        (
            {"residual": "parallel", "norm_placement": "pre"},
            "query_stream needs residual: sequential, not parallel",
        ),
    ],
)
def test_what_does_not_hang_together(values: dict[str, object], problem: str) -> None:
    from trifold.errors import SettingsError

    with pytest.raises(SettingsError, match=problem):
        config(**values)
