"""LSH attention: it equals its dense definition where that is defined, approximates full attention,
and obeys its laws; reversible blocks; axial positions."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.costs import cached_elements, count_parameters, forward_flops
from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer, capture
from trifold.nn.masks import Mask
from trifold.nn.parts import AttentionPart, part_of
from trifold.nn.variants import lsh
from trifold.nn.variants.axial import AxialPositions
from trifold.nn.variants.lsh import LSHAttention, default_buckets
from trifold.train.blocks import recompute_blocks

BASE = {
    "shape": "decoder", "vocab_size": 50, "max_positions": 4096, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48,
    "positions": "rotary", "norm_placement": "pre", "scale_embeddings": False, "dropout": 0.0, "tie_lm_head": False,
    "attention": "lsh", "lsh": {"chunk": 4, "hashes": 3, "layers": ["lsh", "local"], "local_chunk": 6},
}  # fmt: skip
LENGTHS = (17, 5, 7, 3)
ENCODER = {"shape": "encoder"}
AROUND = {"chunk": 4, "hashes": 2, "buckets": [2, 4]}
CASES = {
    "decoder": {},
    "encoder": ENCODER | {"lsh": AROUND, "residual": "reversible"},
    "local": ENCODER | {"lsh": {"layers": ["local"], "local_chunk": 4}},
    "reversible": {"residual": "reversible", "positions": "learned"},
}
every = pytest.mark.parametrize("case", CASES)
REVERSIBLE = {
    "lsh": {"attention_dropout": 0.2, "activation_dropout": 0.1},
    "softmax, shared blocks": {
        "attention": "softmax",
        "lsh": {},
        "block_of_layer": [0, 1, 0],
        "n_layers": 3,
    },
    "linear": {"attention": "elu", "lsh": {}, "norm": "rms", "gated": True},
    "local": {
        "lsh": {"layers": ["local"], "local_chunk": 4, "local_dropout": 0.3},
        "positions": "none",
    },
}


def model(**values: object) -> Transformer:
    torch.manual_seed(0)
    return randomize(Transformer(ModelConfig.parse(BASE | values)).eval(), 0.3)


def layer(kind: str = "lsh", **settings: object) -> LSHAttention:
    values = {"positions": "none", "lsh": settings | {"layers": [kind]}, **ENCODER}
    torch.manual_seed(0)
    config = ModelConfig.parse(BASE | values)
    return randomize(part_of(AttentionPart, config).new(config, 0), 0.3)


def texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (1, length), generator=generator) for length in LENGTHS]


def defined(attention: LSHAttention, x: torch.Tensor, mask: Mask) -> torch.Tensor:
    """softmax over all allowed keys but the query itself, which it may attend to if there is no
    other.
    """
    q, k, v = attention.project(x)
    if attention.sorts:
        k = F.rms_norm(k, k.shape[-1:], eps=1e-6)
    scores, itself = q @ k.mT / math.sqrt(q.shape[-1]), torch.eye(x.shape[1], dtype=torch.bool)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if (dense := mask.dense(x.shape[1], x.shape[1], x.device)) is not None:
        allowed = allowed & dense
    if attention.sorts:
        others = allowed & ~itself
        allowed = others | (itself & ~others.any(-1, keepdim=True))
    out = scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v
    return attention.o_proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("settings", [
    {"chunk": 12}, {"chunk": 20}, {"chunk": 6, "buckets": [6], "hashes": 1}, {"kind": "local", "local_chunk": 6},
], ids=str)  # fmt: skip
@torch.no_grad()
def test_where_every_chunk_sees_the_whole_text_it_is_the_dense_definition(settings, causal):
    attention, x = (
        layer(**settings),
        torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(1)),
    )
    keys = torch.ones(3, 12, dtype=torch.bool)
    keys[1, 11] = keys[2, 10:] = False  # one padded length
    mask = Mask(keys, causal)
    found, expected = attention(x, mask=mask), defined(attention, x, mask)
    torch.testing.assert_close(found[keys], expected[keys], atol=1e-4, rtol=1e-4)
    nothing = attention(x, mask=Mask(torch.zeros(3, 12, dtype=torch.bool)))
    assert not nothing.any()


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_more_hashes_approximate_full_attention(causal):
    x, mask = (
        4 * torch.randn(1, 512, 32, generator=torch.Generator().manual_seed(1)),
        Mask(causal=causal),
    )
    errors = []
    for hashes in (1, 4, 16, 64):
        attention = layer(chunk=16, hashes=hashes)
        expected = defined(attention, x, mask)
        errors.append(float((attention(x, mask=mask) - expected).norm() / expected.norm()))
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2] > 2.5 * errors[3] and errors[3] < 0.25


@every
def test_weights_give_the_same_states_and_gradients(case):
    net, (tokens, *_) = model(**CASES[case]).double(), texts()
    expected = net(Inputs(tokens))
    expected.square().sum().backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    with capture(net, "pattern") as captured:
        out = net(Inputs(tokens))
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
    assert all(
        torch.allclose(x.sum(-1), torch.ones(()))
        for x in map(torch.Tensor.float, captured.values())
    )
    for name, gradient in gradients.items():
        torch.testing.assert_close(net.get_parameter(name).grad, gradient, msg=name)


@every
def test_one_head_at_a_time_gives_the_same_states_and_gradients_and_stores_less(case, monkeypatch):
    net, (tokens, *_), found = model(**CASES[case]).double(), texts(), []
    for limit in (lsh.MAX_SCORES, 1):
        monkeypatch.setattr(lsh, "MAX_SCORES", limit)
        net.zero_grad()
        sizes = list[int]()
        with torch.autograd.graph.saved_tensors_hooks(partial(count, sizes), lambda x: x):
            out = net(Inputs(tokens))
        out.square().sum().backward()
        gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        found.append((out, gradients, sum(sizes)))
    (out, gradients, stored), (other_out, other_gradients, other_stored) = found
    torch.testing.assert_close(other_out, out)
    torch.testing.assert_close(other_gradients, gradients)
    assert other_stored < 0.8 * stored or "residual" in CASES[case]  # reversible blocks store less


@pytest.mark.parametrize("case", ["decoder", "reversible"])
def test_no_value_of_the_future_is_read(case):
    net, (tokens, *_) = model(**CASES[case]), texts()
    with torch.no_grad():
        embedded = net.decoder_embeddings(Inputs(tokens))
    embedded.requires_grad_()
    out = net.decoder(embedded, Mask(causal=True))
    (gradient,) = torch.autograd.grad(out[:, 8].sum(), embedded)
    assert not gradient[:, 9:].any() and gradient[:, :8].any()


@pytest.mark.parametrize("case", ["decoder", "reversible"])
@torch.no_grad()
def test_the_state_of_the_last_token_is_the_same_with_a_cache(case):
    net, rows = model(**CASES[case]), texts()
    tokens = torch.cat([rows[0], rows[0].flip(1)])
    for kind in ("growing", "static", "sliding"):
        cache = net.new_cache(kind, capacity=32)
        start = 0
        for part in tokens.split([6, 1, 3, 1, 6], 1):
            found, start = net.decode(Inputs(part), cache=cache)[:, -1], start + part.shape[1]
            torch.testing.assert_close(found, net.decode(Inputs(tokens[:, :start]))[:, -1])
    stored = cache.layers[0].past.buffers[0][:, :, :17]
    assert cache.length == 17 and stored[0].numel() == cached_elements(net.config, 17)
    cache.reorder(torch.tensor([1, 0]))
    cache.expand(2)
    found = net.decode(Inputs(torch.full((4, 1), 7)), cache=cache)
    whole = torch.cat([tokens[[1, 1, 0, 0]], torch.full((4, 1), 7)], 1)
    torch.testing.assert_close(found, net.decode(Inputs(whole))[:, -1:])
    with pytest.raises(ValueError, match="cannot remove tokens"):
        cache.truncate(3)


def test_an_encoder_decoder_reads_its_text_again():
    net, rows = model(shape="encoder-decoder", residual="sequential"), texts()
    memory, cache = net.encode(Inputs(rows[0])), net.new_cache()
    target = rows[1].repeat(2, 1)  # two beams of one source
    steps = [net.decode(Inputs(part), memory, cache)[:, -1] for part in target.split(1, 1)]
    torch.testing.assert_close(steps[-1], net.decode(Inputs(target), memory)[:, -1])


def test_rotations_are_constant_in_evaluation_and_new_in_training():
    net, (tokens, *_) = model(lsh={"chunk": 4}), texts()
    assert torch.equal(net(Inputs(tokens)), net(Inputs(tokens)))
    net.train()
    assert not torch.equal(net(Inputs(tokens)), net(Inputs(tokens)))


def test_default_buckets():
    """As many as the reference computes: a power of two near twice the chunks; factors above a
    limit.
    """
    assert default_buckets(128, 64, 4096) == (4,)
    assert default_buckets(4096, 64, 4096) == (128,)
    assert default_buckets(2**16, 64, 2**16) == (32, 64)


# --- reversible blocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", REVERSIBLE)
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("scores", [lsh.MAX_SCORES, 1])
def test_reversible_blocks_equal_the_two_streams(case, recomputes, scores, monkeypatch):
    monkeypatch.setattr(lsh, "MAX_SCORES", scores)
    net = model(residual="reversible", dropout=0.3, **REVERSIBLE[case]).double().train()
    tokens = torch.cat([texts()[0], texts()[0].flip(1)])
    net.decoder.blocks[0].feed_forward.sublayer.in_proj.weight.requires_grad_(False)
    plain = copy.deepcopy(net)
    plain.decoder.watched = True
    if recomputes:
        recompute_blocks(net)
        recompute_blocks(plain)
    outs = []
    for each in (plain, net):
        torch.manual_seed(3)
        outs.append(each(Inputs(tokens)))
        outs[-1].square().sum().backward()
    torch.testing.assert_close(outs[1], outs[0])
    for (name, found), expected in zip(net.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=name, atol=1e-7, rtol=1e-5)


def count(sizes: list[int], x: torch.Tensor) -> torch.Tensor:
    sizes.append(x.numel())
    return x


def test_the_memory_of_reversible_blocks_does_not_grow_with_the_layers():
    (tokens, *_), saved = texts(), dict[tuple[str, int], int]()
    for residual in ("sequential", "reversible"):
        for layers in (1, 6):
            net, sizes = (
                model(residual=residual, n_layers=layers, attention="softmax", lsh={}),
                list[int](),
            )
            with torch.autograd.graph.saved_tensors_hooks(partial(count, sizes), lambda x: x):
                net(Inputs(tokens))
            saved[residual, layers] = sum(sizes)
    assert saved["sequential", 6] > 4 * saved["sequential", 1]
    assert saved["reversible", 6] == saved["reversible", 1]


@torch.no_grad()
def test_reversible_blocks_have_ordinary_caches():
    net, (tokens, *_) = model(residual="reversible", attention="softmax", lsh={}), texts()
    cache = net.new_cache()
    steps = [net.decode(Inputs(part), cache=cache) for part in tokens.split([6, 1, 10], 1)]
    torch.testing.assert_close(
        torch.cat(steps, 1), net.decode(Inputs(tokens)), atol=1e-4, rtol=1e-4
    )
    assert steps[0].shape[-1] == 2 * net.config.d_model == net.config.state_width


# --- positions, costs, checks ---------------------------------------------------------------------


def test_axial_positions_are_a_table_of_rows_and_columns():
    values = {
        "positions": "axial",
        "axial_shape": [3, 5],
        "axial_widths": [8, 24],
        "max_positions": 15,
    }
    axial = randomize(AxialPositions(ModelConfig.parse(BASE | values)))
    table = axial(torch.zeros(1, 15, 32), torch.arange(15)[None])[0]
    for position in range(15):
        expected = torch.cat([axial.rows[position // 5], axial.columns[position % 5]])
        assert torch.equal(table[position], expected)


@pytest.mark.parametrize("values", [
    *CASES.values(), {"positions": "axial", "axial_shape": [64, 64], "axial_widths": [8, 24], "attention_bias": True},
    ENCODER | {"residual": "reversible", "heads": ["sequence", "token", "span"], "classifier_transform": "tanh"},
    ENCODER | {"residual": "reversible", "heads": ["pooler", "sequence"], "classifier_input": "pooler",
               "classifier_transform": "tanh"},
], ids=str)  # fmt: skip
def test_costs(values):
    net = model(**values)
    assert count_parameters(net.config) == net.count_parameters()
    lengths = [(n, 0) if net.config.shape == "encoder" else (0, n) for n in (1536, 3072)]
    one, two = (sum(forward_flops(net.config, *each)) for each in lengths)
    assert one == pytest.approx(two, rel=0.2)  # per token


@pytest.mark.parametrize(("values", "message"), [
    ({"attention": "softmax"}, "lsh needs attention: lsh, not softmax"),
    ({"n_kv_heads": 2}, "excludes n_kv_heads"),
    ({"qk_norm": "head"}, "excludes qk_norm"),
    ({"sliding_window": 4}, "excludes sliding_window"),
    ({"positions": "alibi"}, "has no offsets of scores"),
    ({"lsh": {"buckets": [3]}}, "buckets"),
    ({"positions": "axial"}, "need axial_shape"),
    ({"axial_shape": [2, 3]}, "axial_shape needs positions: axial"),
    ({"residual": "reversible", "shape": "encoder-decoder"}, "has no cross-attention"),
    ({"residual": "reversible", "norm_placement": "post"}, "needs norm_placement: pre"),
    ({"residual": "reversible", "token_transform": "tanh"}, "excludes token_transform: tanh"),
    ({"residual": "reversible", "attention": "softmax", "lsh": {}, "positions": "relative"}, "learned offsets"),
])  # fmt: skip
def test_contradictions_are_named(values, message):
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse(BASE | values)
