"""BP-Transformer: tokens read the spans of the authors' program, and its blocks equal the dense
definition.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.costs import count_parameters, forward_flops
from trifold.errors import SettingsError
from trifold.fast import sparse
from trifold.fast.attention import attend as fast_attend
from trifold.nn import Inputs, ModelConfig, Transformer, ops
from trifold.nn.hooks import capture
from trifold.nn.masks import Mask
from trifold.nn.variants.spans import SpanAttention, Spans

BASE = {
    "vocab_size": 50, "max_positions": 4096, "d_model": 32, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 48,
    "positions": "none", "norm_placement": "pre", "scale_embeddings": False, "dropout": 0.0, "attention": "spans",
    "span_keys": 2,
}  # fmt: skip
shapes = pytest.mark.parametrize("shape", ["encoder", "decoder"])
LENGTHS = (13, 5, 8)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(sparse, "BLOCK", 4)


def model(shape: str, **more: object) -> Transformer:
    torch.manual_seed(0)
    return randomize(Transformer(ModelConfig.parse(BASE | {"shape": shape} | more)).eval(), 0.3)


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (1, length), generator=generator) for length in LENGTHS]


def spans_read(token: int, length: int, k: int, causal: bool) -> set[tuple[int, int]]:
    """(level, span) of all that a token reads, found step by step."""
    found = {(0, token)}
    left, right, left_half, right_half, level = token - 1, token + 1, False, False, 0
    while left >= 0 or (not causal and right << level < length):
        for _ in range(k):
            if left >= 0:
                found.add((level - 1, 2 * left) if left_half else (level, left))
            if not causal:
                found.add((level - 1, 2 * right + 1) if right_half else (level, right))
            left, right, left_half, right_half = left - 1, right + 1, False, False
        left_half, right_half = left % 2 == 0, right % 2 == 1
        left, right, level = left // 2, right // 2, level + 1
    return {(level, span) for level, span in found if span << level < length}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_token_reads_every_other_token_once_in_k_spans_of_each_level(k, causal):
    for length in (1, 2, 3, 8, 21, 64, 65):
        spans = Spans(Mask(causal=causal), torch.zeros(1, length, 1), k)
        starts = torch.tensor(spans.starts)
        read = spans.mask.dense(length, spans.starts[-1], torch.device("cpu"))[0, 0]
        for token in range(length):
            keys = read[token].nonzero()[:, 0]
            levels = torch.bucketize(keys, starts, right=True) - 1
            found = [*zip(levels.tolist(), (keys - starts[levels]).tolist(), strict=True)]
            assert {*found} == spans_read(token, length, k, causal)
            tokens = [t for level, span in found for t in range(span << level, (span + 1) << level)]
            assert sorted(t for t in tokens if t < length) == [
                *range(token + 1 if causal else length)
            ]


@shapes
def test_a_layer_is_full_attention_with_the_mask_of_the_rule(shape):
    layer = randomize(SpanAttention(model(shape, n_kv_heads=None).config), 0.4).double()
    spans = Spans(Mask(causal=shape == "decoder"), torch.zeros(1, 13, 1), 2)
    x = torch.randn(2, spans.starts[-1], 32, dtype=torch.float64)
    allowed = torch.zeros(spans.starts[-1], spans.starts[-1], dtype=torch.bool)
    bias = torch.zeros(4, *allowed.shape, dtype=torch.float64)
    for token in range(13):
        for level, span in spans_read(token, 13, 2, shape == "decoder"):
            allowed[token, spans.starts[level] + span] = True
    pair = torch.arange(13)[:, None], torch.arange(spans.starts[-1])[None]
    bias[:, :13] = layer.offsets[spans.places(*pair).clamp_min(0)].permute(2, 0, 1)
    for level in range(1, len(spans.starts) - 1):
        for token in range(13):
            allowed[spans.starts[level] + (token >> level), token] = True
    some = allowed.any(-1)  # the last spans of some levels have no tokens
    q, k, v = layer.project(x)
    weights = (
        ((q @ k.mT) / 8**0.5 + bias).masked_fill(~allowed, float("-inf"))[:, :, some].softmax(-1)
    )
    expected = layer.o_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x, mask=spans.mask)[:, some], expected)


@shapes
@pytest.mark.parametrize("length", [7, 16, 45])
def test_blocks_equal_the_plain_definition_with_their_gradients(shape, length, monkeypatch):
    net = model(shape).double()
    tokens = torch.randint(50, (2, length), generator=torch.Generator().manual_seed(2))
    attend = torch.arange(length) < torch.tensor([[length], [length - 3]])
    results = []
    for each in (fast_attend, ops.PLAIN["attend"]):
        monkeypatch.setattr(ops, "attend", each)
        net.zero_grad()
        out = net(Inputs(tokens, attend))[attend]
        out.square().sum().backward()
        results.append([out, *(p.grad for p in net.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@shapes
@pytest.mark.parametrize("length", [1, 9])
@torch.no_grad()
def test_a_block_of_one_token_equals_the_plain_definition(shape, length, monkeypatch):
    monkeypatch.setattr("trifold.fast.attention.MIN_WIDTH", 1)  # of attend_one_query
    net, tokens, found = model(shape, n_kv_heads=None), rows()[0][:, :length], []
    for each in (fast_attend, ops.PLAIN["attend"]):
        monkeypatch.setattr(ops, "attend", each)
        found.append(net(Inputs(tokens)))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@shapes
def test_hooks_see_tokens_where_they_are(shape):
    net, texts = model(shape), rows()
    left = torch.cat([F.pad(text, (13 - text.shape[1], 0)) for text in texts])
    real = (torch.arange(13) < torch.tensor(LENGTHS)[:, None]).flip(1)
    states = net.hidden_states(Inputs(left, real))[shape]
    for number, text in enumerate(texts):
        for found, expected in zip(states, net.hidden_states(Inputs(text))[shape], strict=True):
            torch.testing.assert_close(
                found[number, real[number]], expected[0], atol=1e-5, rtol=1e-5
            )
    with capture(net, "pattern") as patterns:
        net(Inputs(texts[0]))
    for pattern in patterns.values():
        torch.testing.assert_close(pattern.sum(-1), torch.ones(1, 4, 13))


@pytest.mark.quick_cases(1)
@torch.no_grad()
@pytest.mark.parametrize(("k", "read"), [(1, 1), (3, 30), (16, 5), (16, 20), (16, 64)])
def test_a_long_text_can_be_read_token_by_token(k, read):
    decoder = model("decoder", span_keys=k)
    tokens = torch.randint(50, (2, 75), generator=torch.Generator().manual_seed(3))
    attend = torch.ones(2, 75, dtype=torch.bool)
    attend[0, :3] = attend[1, 40:45] = False
    expected, cache = decoder.decode(Inputs(tokens, attend)), decoder.new_cache()
    parts = pairwise((0, *range(read, 76)))
    steps = [decoder.decode(Inputs(tokens[:, a:b], attend[:, :b]), cache=cache) for a, b in parts]
    torch.testing.assert_close(torch.cat(steps, 1)[attend], expected[attend], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_it_learns_to_find_a_token_that_only_spans_reach():
    torch.manual_seed(0)
    small = {
        "vocab_size": 8,
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "d_ff": 32,
        "span_keys": 1,
    }
    net = Transformer(ModelConfig.parse(BASE | {"shape": "decoder"} | small))
    optimizer, losses = torch.optim.Adam(net.parameters(), 0.02), []
    for _ in range(34):
        first = torch.randint(3, 8, (16, 1))
        tokens = torch.cat([first, torch.randint(0, 3, (16, 5))], 1)
        loss = F.cross_entropy(net.lm_head(net.decode(Inputs(tokens))[:, -1]), first[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 < 1.5 < losses[0]


@shapes
def test_costs(shape):
    config = model(shape).config
    assert count_parameters(config) == model(shape).count_parameters()
    side = ("encoder", "decoder").index(shape)
    flops = [sum(forward_flops(config, *((n, 0) if side == 0 else (0, n)))) for n in (1024, 4096)]
    assert flops[0] < flops[1] < 1.2 * flops[0]  # per token


@pytest.mark.parametrize(("values", "message"), [
    ({"shape": "encoder-decoder"}, "excludes shape: encoder-decoder"),
    ({"positions": "rotary"}, "positions: rotary"),
    ({"positions": "alibi"}, "has no offsets of scores"),
    ({"experts": {"count": 2, "per_token": 1}}, "excludes experts"),
    ({"attention": "softmax"}, "span_keys needs attention: spans"),
])  # fmt: skip
def test_contradictions_are_named(values, message):
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse(BASE | {"shape": "decoder"} | values)
