"""Parts of current decoders: norms of queries and keys, sinks, experts, latent attention, …: laws
and definitions.
"""

from __future__ import annotations

import pytest
import torch
from tests.models import randomize
from torch.nn import functional as F

from trifold.costs import cached_elements, forward_flops
from trifold.errors import SettingsError
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.attention import Attention
from trifold.nn.hooks import capture
from trifold.nn.layers import FeedForward
from trifold.nn.masks import Mask
from trifold.nn.norms import RMSNorm
from trifold.nn.variants.experts import (
    MixtureOfExperts,
    Router,
    Routing,
    balance_loss,
    record_routers,
    z_loss,
)

BASE = {
    "shape": "decoder", "vocab_size": 50, "max_positions": 64, "d_model": 32, "n_layers": 4, "n_heads": 4, "d_ff": 48,
    "positions": "rotary", "norm_placement": "pre", "norm": "rms", "gated": True, "scale_embeddings": False,
    "dropout": 0.0,
}  # fmt: skip
EXPERTS = {"count": 6, "per_token": 2, "d_ff": 24}
DEEPSEEK = {"count": 8, "per_token": 3, "d_ff": 16, "shared": 1, "score": "sigmoid", "groups": 4,
            "groups_per_token": 2, "correction": True, "scale": 2.5, "dense_layers": 1}  # fmt: skip
LATENT = {"width": 12, "d_rotary": 4, "d_value": 6}
PARTS = {
    "qk-norm by head": {"qk_norm": "head", "n_kv_heads": 2},
    "qk-norm over the width": {"qk_norm": "width", "n_kv_heads": 2},
    "norms times 1 + w": {"norm_weight": "plus-one", "norm_placement": "sandwich"},
    "norms without weights": {"norm_weight": "none", "qk_norm": "head"},
    "norms of outputs": {"norm_placement": "exit"},
    "no first norm": {"first_norm": False, "norm": "layer"},
    "sinks": {"attention_sinks": True, "n_kv_heads": 2, "sliding_window": 3, "window_pattern": ("local", "global")},
    "two bases": {"rotary_local_theta": 50.0, "sliding_window": 3, "window_pattern": ("local", "local", "global")},
    "some layers without positions": {"rotary_pattern": ("rotary", "none")},
    "clamped gate": {"activation": "quick-gelu", "gate_limit": 0.3},
    "squared relu": {"activation": "relu2", "gated": False},
    "multipliers": {"embedding_scale": 3.0, "residual_scale": 0.4, "attention_scale": 0.2, "logits_scale": 0.5},
    "experts": {"experts": EXPERTS},
    "groups of experts": {"experts": DEEPSEEK},
    "projected tokens": {"d_embedding": 12, "token_projection": True, "positions": "learned", "position_offset": 2},
    "sinusoids of tensor2tensor": {"positions": "sinusoidal-tensor2tensor", "position_offset": 2},
    "alibi": {"attention_sinks": True, "positions": "alibi"},
    "latent": {"latent": LATENT},
    "latent queries": {"latent": LATENT | {"query_width": 10}, "attention_bias": True, "positions": "none"},
}  # fmt: skip
every = pytest.mark.parametrize("part", PARTS)
LENGTHS = (9, 5, 7)


def model(part: str, **more: object) -> Transformer:
    torch.manual_seed(0)
    return randomize(Transformer(ModelConfig.parse(BASE | PARTS[part] | more)).eval(), 0.3)


def rows() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (1, length), generator=generator) for length in LENGTHS]


@every
def test_the_future_does_not_leak_and_every_parameter_learns(part):
    decoder, (tokens, *_) = model(part), rows()
    x = decoder.decoder_embeddings.tokens.weight
    out = decoder.decode(Inputs(tokens))
    changed = tokens.clone()
    changed[0, 6] = (tokens[0, 6] + 1) % 50
    with torch.no_grad():
        again = decoder.decode(Inputs(changed))
    torch.testing.assert_close(again[:, :6], out[:, :6].detach(), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(again[:, 6:], out[:, 6:], atol=1e-2)
    out.square().sum().backward()
    assert x.grad is not None
    # A correction changes which experts are chosen, which has no gradient.
    without = [
        n for n, p in decoder.named_parameters() if p.grad is None and not n.endswith("correction")
    ]
    assert without in ([], ["lm_head.weight"])


@every
@torch.no_grad()
def test_hook_points_do_not_change_the_result(part):
    decoder, (tokens, *_) = model(part), rows()
    expected = decoder.decode(Inputs(tokens))
    with capture(decoder, "pattern") as captured:
        torch.testing.assert_close(decoder.decode(Inputs(tokens)), expected, atol=1e-5, rtol=1e-5)
    sums = torch.stack([pattern.sum(-1) for pattern in captured.values()])
    assert sums.shape == (4, 1, 4, 9)
    assert (sums < 1 - 1e-3).all() if part in ("sinks", "alibi") else (sums - 1).abs().max() < 1e-5


# --- definitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("qk_norm", ["head", "width"])
def test_normalized_queries_and_keys_have_no_size(qk_norm):
    config = ModelConfig.parse(
        BASE | {"qk_norm": qk_norm, "norm_epsilon": 1e-12, "positions": "none"}
    )
    attention = randomize(Attention(config), 0.3)
    x = torch.randn(1, 5, 32)
    before = attention(x, mask=Mask(causal=True))
    with torch.no_grad():
        attention.q_proj.weight *= 7
        attention.k_proj.weight *= 0.2
    torch.testing.assert_close(attention(x, mask=Mask(causal=True)), before)
    with torch.no_grad():  # one head only: its size counts in a norm over the width
        attention.q_proj.weight[:8] *= 3
    equal = torch.allclose(attention(x, mask=Mask(causal=True)), before, atol=1e-6)
    assert equal == (qk_norm == "head")


def test_norms_times_one_plus_weight():
    norm = RMSNorm(ModelConfig.parse(BASE | {"norm_weight": "plus-one"}))
    x = torch.randn(3, 32)
    torch.nn.init.constant_(norm.weight, 0.25)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (32,), torch.full((32,), 1.25), 1e-5))
    torch.nn.init.constant_(norm.weight, 0.001)
    half = norm.bfloat16()
    exact = F.rms_norm(x.bfloat16().float(), (32,), 1 + half.weight.float(), 1e-5)
    assert torch.equal(half(x.bfloat16()), exact.bfloat16())
    fresh = Transformer(ModelConfig.parse(BASE | {"norm_weight": "plus-one"}))
    assert not fresh.decoder.final_norm.weight.any()


def test_a_sink_is_a_key_whose_value_is_zero():
    config = ModelConfig.parse(BASE | {"attention_sinks": True, "positions": "none"})
    attention = randomize(Attention(config), 0.4)
    x = torch.randn(1, 5, 32)
    q, k, v = attention.project(x)
    scores = (q @ k.mT / 8**0.5).masked_fill(~torch.ones(5, 5).tril().bool(), float("-inf"))
    with_sink = torch.cat([scores, attention.sinks.view(1, 4, 1, 1).expand(1, 4, 5, 1)], -1)
    expected = (with_sink.softmax(-1)[..., :5] @ v).transpose(1, 2).flatten(2)
    got = attention(x, mask=Mask(causal=True))
    torch.testing.assert_close(got, attention.o_proj(expected))
    nothing = attention(x, mask=Mask(torch.zeros(1, 5, dtype=torch.bool)))  # no key at all
    nothing.sum().backward()
    assert torch.equal(nothing, attention.o_proj(torch.zeros(1, 5, 32)))
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in attention.parameters())


def test_layers_without_positions_ignore_the_order():
    tokens = torch.tensor([[3, 1, 4, 15, 9]])
    moved = tokens[:, [2, 0, 3, 1, 4]]
    for pattern, equal in ((("none",), True), (("none", "rotary"), False)):
        decoder = model("norms of outputs", rotary_pattern=pattern, n_layers=2, sliding_window=None)
        mask = Mask()
        x, y = (
            decoder.decoder(decoder.decoder_embeddings(Inputs(t)), mask) for t in (tokens, moved)
        )
        assert torch.allclose(x[0, -1], y[0, -1], atol=1e-5) == equal


def test_layers_with_a_window_have_their_own_base():
    base = {"sliding_window": 4, "window_pattern": ("local", "global"), "n_layers": 2}
    scaled = {"kind": "linear", "factor": 4.0, "original_positions": 16}
    config = ModelConfig.parse(BASE | base | {"rotary_local_theta": 77.0, "rotary_scaling": scaled})
    stack = Transformer(config).decoder
    mask, x = Mask(causal=True), torch.zeros(1, 5, 32)
    positions = torch.arange(5)[None]
    local, whole = stack.rotary(mask, 5, x, positions)
    exponents = torch.arange(0, 8, 2) / 8
    torch.testing.assert_close(local.cos[0, 0, 3], (3 * 77.0**-exponents).cos())
    torch.testing.assert_close(whole.cos[0, 0, 3], (3 / 4 * 10_000.0**-exponents).cos())


def test_the_clamped_gate_and_the_squared_relu_are_their_formulas():
    network = randomize(FeedForward(ModelConfig.parse(BASE | PARTS["clamped gate"])), 0.5)
    x = torch.randn(4, 32)
    gate, inner = network.gate_proj(x).clamp(max=0.3), network.in_proj(x).clamp(-0.3, 0.3)
    torch.testing.assert_close(
        network(x), network.out_proj(gate * torch.sigmoid(1.702 * gate) * (inner + 1))
    )
    network = randomize(FeedForward(ModelConfig.parse(BASE | PARTS["squared relu"])), 0.5)
    torch.testing.assert_close(network(x), network.out_proj(network.in_proj(x).clamp_min(0) ** 2))


# --- experts --------------------------------------------------------------------------------------


def mixture(**experts: object) -> MixtureOfExperts:
    torch.manual_seed(0)
    return randomize(
        MixtureOfExperts(ModelConfig.parse(BASE | {"experts": EXPERTS | experts})), 0.4
    )


def test_equal_experts_are_one_network():
    layer, x = mixture(), torch.randn(2, 7, 32)
    for expert in layer.experts:
        expert.load_state_dict(layer.experts[0].state_dict())
    torch.testing.assert_close(layer(x), layer.experts[0](x))


def test_a_mixture_is_the_weighted_sum_of_the_best_experts():
    for normalize in (True, False):
        layer, x = mixture(normalize=normalize, shared=2, scale=1.5), torch.randn(11, 32)
        scores = (x @ layer.router.weight.T).softmax(-1)
        best = scores.topk(2)
        expected = layer.shared(x)
        for row in range(11):
            weights = best.values[row] / (best.values[row].sum() if normalize else 1)
            for weight, number in zip(weights, best.indices[row].tolist(), strict=True):
                expected[row] = expected[row] + 1.5 * weight * layer.experts[number](x[row])
        torch.testing.assert_close(layer(x), expected)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), expected.detach())


def test_experts_come_from_the_best_groups_and_a_correction_changes_the_choice_only():
    config = ModelConfig.parse(BASE | {"experts": DEEPSEEK})
    router = randomize(Router(config, config.experts), 0.4)
    x = torch.randn(50, 32)
    _, scores, weights, chosen = router(x)
    assert max(len({*(row // 2).tolist()}) for row in chosen) == 2
    torch.testing.assert_close(weights.sum(-1), torch.full((50,), 2.5))
    torch.testing.assert_close(scores, (x @ router.weight.T).sigmoid())
    torch.testing.assert_close(weights / weights.sum(-1, keepdim=True),
                               F.normalize(scores.gather(1, chosen), p=1, dim=-1))  # fmt: skip
    with torch.no_grad():
        router.correction[5] = 100.0
    assert bool((router(x).chosen == 5).any(-1).all())


def test_losses_of_routers():
    rows = torch.tensor([0, 0, 0, 0, 1, 1, -1])
    chosen = torch.tensor([[0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [0, 1], [0, 0]])
    even = Routing(torch.zeros(7, 4), torch.full((7, 4), 0.25), torch.ones(7, 2), chosen)
    torch.testing.assert_close(balance_loss(even, rows, 2), torch.tensor(2.0))  # 1 for each row
    logits = torch.tensor([[9.0, 9.0, 0.0, 0.0]]).expand(7, 4)
    sharp = Routing(logits, logits.softmax(-1), torch.ones(7, 2), chosen)
    first, second = (
        balance_loss(Routing(*(x[rows == n] for x in sharp)), rows[rows == n] * 0, 1)
        for n in (0, 1)
    )
    torch.testing.assert_close(balance_loss(sharp, rows, 2), first + second)
    assert second > 1.9
    torch.testing.assert_close(z_loss(even, rows, 1), 6 * torch.tensor(4.0).log() ** 2)
    # DeepSeek-V3, equations 17 to 20: sigmoids, divided by their sum. Both rows choose 0 and 1 half
    # or all of the time.
    sigmoid = sharp._replace(scores=torch.tensor([[0.9, 0.6, 0.3, 0.2]]).expand(7, 4))
    torch.testing.assert_close(
        balance_loss(sigmoid, rows, 2), torch.tensor(4 * (0.25 + 0.5 * 1.5 / 2.0))
    )
    decoder = model("groups of experts")
    with record_routers(decoder) as calls:
        decoder.decode(Inputs(torch.tensor([[1, 2, 3]])))
    assert [[call.out.chosen.shape for call in each] for each in calls] == [[(3, 3)]] * 3


def test_a_token_costs_its_experts_only():
    config = ModelConfig.parse(BASE | {"experts": EXPERTS})
    dense = ModelConfig.parse(BASE | {"d_ff": 48})
    router = 2 * 4 * 32 * 6
    assert forward_flops(config, 0, 8).target == forward_flops(dense, 0, 8).target + router


@pytest.mark.parametrize(("values", "layers"), [
    ({}, 0), ({"experts": EXPERTS}, 4), ({"experts": DEEPSEEK}, 3), ({"experts": DEEPSEEK | {"dense_layers": 9}}, 0),
    ({"experts": DEEPSEEK, "block_of_layer": (0, 1, 1, 1)}, 3), ({"experts": EXPERTS, "shape": "encoder-decoder"}, 8),
])  # fmt: skip
def test_layers_with_experts_are_counted(values, layers):
    transformer = Transformer(ModelConfig.parse(BASE | values))
    tokens = Inputs(torch.tensor([[1, 2, 3]]))
    with record_routers(transformer) as calls:
        transformer(tokens)
    assert transformer.config.expert_layers == sum(map(len, calls)) == layers


# --- latent attention -----------------------------------------------------------------------------


def test_latent_attention_is_attention_of_expanded_keys():
    layer = model("latent queries").decoder.blocks[0].self_attention.sublayer
    x = torch.randn(1, 6, 32)
    q = layer.q_proj(layer.q_norm(layer.q_down(x))).view(6, 4, 12)
    c, r = layer.kv_down(x)[0].split([12, 4], -1)
    expanded = (layer.kv_norm(c) @ layer.kv_proj.T).view(6, 4, 8 + 6)
    heads = []
    for head in range(4):
        k = torch.cat([expanded[:, head, :8], r], -1)
        scores = q[:, head] @ k.T / 12**0.5
        weights = scores.masked_fill(~torch.ones(6, 6).tril().bool(), float("-inf")).softmax(-1)
        heads.append(weights @ expanded[:, head, 8:])
    torch.testing.assert_close(
        layer(x, mask=Mask(causal=True))[0], layer.o_proj(torch.cat(heads, -1))
    )


@torch.no_grad()
def test_a_rounded_factor_of_embeddings_has_the_precision_of_the_model():
    config = ModelConfig.parse(
        BASE | {"embedding_scale": 3072**0.5, "embedding_scale_rounded": True}
    )
    decoder, tokens = Transformer(config), rows()[0]
    table = decoder.decoder_embeddings.tokens.weight
    assert torch.equal(decoder.decoder_embeddings(Inputs(tokens)), table[tokens] * 3072**0.5)
    decoder.bfloat16()
    assert torch.equal(
        decoder.decoder_embeddings(Inputs(tokens)), (table[tokens].float() * 55.5).bfloat16()
    )


@torch.no_grad()
def test_both_stacks_may_have_windows_of_their_own():
    config = ModelConfig.parse(
        BASE | {"shape": "encoder-decoder", "n_layers": 1, "sliding_window": 4, "decoder_window": 2}
    )
    model, (tokens, *_) = randomize(Transformer(config).eval(), 0.3), rows()
    with capture(model, "pattern") as captured:
        model(Inputs(tokens), Inputs(tokens))
    distance = (torch.arange(9)[:, None] - torch.arange(9)).abs()
    for side, allowed in (("encoder", distance < 4), ("decoder", (distance < 2).tril())):
        pattern = captured[f"{side}.blocks.0.self_attention.sublayer.pattern"][0]
        assert torch.equal(pattern > 0, allowed.expand_as(pattern))
    assert cached_elements(config, 9) == 2 * 2 * 4 * 8


def test_norms_inside_latent_attention_may_have_their_own_epsilon():
    own = LATENT | {"query_width": 10, "norm_epsilon": 0.3}
    for values, expected in ((own, 0.3), (own | {"norm_epsilon": None}, 1e-5)):
        block = (
            Transformer(ModelConfig.parse(BASE | {"latent": values}))
            .decoder.blocks[0]
            .self_attention
        )
        assert block.sublayer.q_norm.epsilon == block.sublayer.kv_norm.epsilon == expected
        assert block.enter.epsilon == 1e-5


@pytest.mark.parametrize(("values", "message"), [
    ({"experts": EXPERTS | {"per_token": 7}}, "experts.per_token 7 exceeds 6, the experts"),
    ({"experts": EXPERTS | {"groups": 4}}, "experts.groups 4 does not divide experts.count 6"),
    ({"experts": EXPERTS | {"groups": 2, "groups_per_token": 3}}, "groups_per_token 3 exceeds experts.groups 2"),
    ({"latent": LATENT, "n_kv_heads": 2}, "latent excludes n_kv_heads"),
    ({"latent": LATENT, "positions": "learned"}, "latent needs positions"),
    ({"norm_weight": "none", "norm": "layer"}, "norm_weight: none needs norm: rms"),
    ({"gate_limit": 2.0, "gated": False}, "gate_limit needs gated"),
    ({"first_norm": False, "norm_placement": "post"}, "first_norm: false needs norm_placement: pre"),
    ({"rotary_pattern": ("none",), "positions": "learned"}, "rotary_pattern needs positions: rotary"),
])  # fmt: skip
def test_contradictions_are_named(values, message):
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse(BASE | values)


@torch.no_grad()
def test_tokens_are_projected_before_positions_and_states_back_for_the_head():
    decoder, (tokens, *_) = model("projected tokens"), rows()
    embeddings = decoder.decoder_embeddings
    x = (
        embeddings.tokens.weight[tokens] @ embeddings.projection.weight.T
        + embeddings.positions.weight[2:11]
    )
    torch.testing.assert_close(embeddings(Inputs(tokens)), x)
    assert embeddings.projection.bias is None and decoder.projection.bias is None
    hidden = decoder.decoder(x, Mask(None, causal=True))
    expected = hidden @ decoder.projection.weight.T @ embeddings.tokens.weight.T
    torch.testing.assert_close(
        decoder.head_outputs(Inputs(tokens))["lm"], expected, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        decoder.hidden_states(Inputs(tokens))["decoder"][-1], hidden @ decoder.projection.weight.T
    )
    flops = forward_flops(decoder.config, 9, 9).target
    plain = decoder.config.model_copy(update={"token_projection": False, "d_embedding": None})
    assert flops - forward_flops(plain, 9, 9).target == 2 * (2 * 12 * 32 - 50 * (32 - 12))
