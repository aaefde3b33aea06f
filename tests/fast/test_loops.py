"""The compiled loops against the operators they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from trifold.fast import kernels
from trifold.fast.packed_attention import PART, packed_attention
from trifold.nn import Inputs, ModelConfig, Transformer, ops, rng
from trifold.nn.losses import LossSums, linear_cross_entropy
from trifold.nn.packing import Packing

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def leaf(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape) * scale).to(dtype).requires_grad_()


def close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCE[dtype] * max(1.0, float(theirs.detach().abs().max()))
    assert float((ours.detach().float() - theirs.detach().float()).abs().max()) <= limit


@pytest.mark.parametrize("how", ["narrow", "round_off", "shorten"])
def test_numbers_are_rounded_as_the_library_rounds_them(how: str) -> None:
    """Of every exponent and sign, of every kind of last bits, ties among them; infinite ones and none at all too."""
    from numba import njit

    from trifold.fast import loops

    rounded = getattr(loops, how)

    @njit(fastmath=loops.MATHS)
    def run(x, out):
        for j in range(len(x)):
            out[j] = rounded(out[j], x[j])

    last = [
        0,
        1,
        0x7FFF,
        0x8000,
        0x8001,
        0xFFFF,
        0x10000,
        0x18000,
        0x3A7FFF,
        0x400000,
        0x7F0000,
        0x7F8000,
        0x7FFFFF,
    ]
    upper = np.arange(512, dtype=np.uint32) << np.uint32(23)
    bits = (upper[:, None] | np.array(last, np.uint32)).reshape(-1)[
        :-5
    ]  # some are left over when taken by sixteens
    x = bits.view(np.float32)
    if (
        how == "shorten"
    ):  # ties go elsewhere; and what is no number says so in its upper half, as that of a bf16 does
        x = x[(bits & 0xFFFF != 0x8000) & (~np.isnan(x) | (bits & 0xFFFF == 0))]
    out = np.empty(x.size, np.uint16)
    run(x, out)
    ours, theirs = torch.from_numpy(out).view(torch.bfloat16), torch.from_numpy(x).bfloat16()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if how == "round_off":
        same |= (ours == 0) & (theirs.abs() < 1.2e-38)
    assert same.all(), x[~same.numpy()]


@both
def test_a_layer_norm_is_the_librarys(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = leaf(3, 37, 48, dtype=dtype), leaf(48, dtype=dtype), leaf(48, dtype=dtype)
    above = torch.randn(3, 37, 48).to(dtype)
    ours = kernels.layer_norm(x, weight, bias, 1e-5)
    found = torch.autograd.grad(ours, (x, weight, bias), above)
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    theirs = F.layer_norm(wide[0], (48,), wide[1], wide[2], 1e-5)
    wanted = torch.autograd.grad(theirs, wide, above.double())
    close(ours, theirs, dtype)
    for a, b in zip(found, wanted, strict=True):
        close(a, b, dtype)


@both
def test_the_activation_is_the_librarys(dtype: torch.dtype) -> None:
    wide = torch.cat((torch.linspace(-30, 30, 4001), torch.randn(4002), torch.zeros(3))).to(dtype)
    x = wide.clone().requires_grad_()
    above = torch.randn(len(x)).to(dtype)
    ours = kernels.gelu_tanh(x)
    (found,) = torch.autograd.grad(ours, x, above)
    plain = wide.double().requires_grad_()
    theirs = F.gelu(plain, approximate="tanh")
    (wanted,) = torch.autograd.grad(theirs, plain, above.double())
    limit = 2**-8 if dtype is torch.bfloat16 else 1e-5
    for a, b in ((ours, theirs), (found, wanted)):
        assert float(((a.detach().double() - b.detach()).abs() / (b.detach().abs() + 1e-2)).max()) <= limit
    assert bool(kernels.gelu_tanh(torch.full((3,), math.nan, dtype=dtype, requires_grad=True)).isnan().all())


@both
@given(p=st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.9]), seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_dropout_keeps_its_share_and_its_mask(dtype: torch.dtype, p: float, seed: int) -> None:
    torch.manual_seed(seed)
    y = torch.ones(40_001, dtype=dtype, requires_grad=True)
    out = kernels.dropped(y, p)
    (gradient,) = torch.autograd.grad(out, y, torch.ones_like(out))
    assert torch.equal(out, gradient)  # the way back hashes the same mask
    assert set(out.detach().float().unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p), dtype=dtype))}
    deviation = (p * (1 - p) / len(y)) ** 0.5
    assert abs(float((out == 0).float().mean()) - p) < 5 * deviation
    x = torch.randn(40_001).to(dtype).requires_grad_()
    torch.manual_seed(seed)
    added = kernels.added_dropped(x, y, p)
    scaled = torch.where(out == 0, 0.0, float(np.float32(1 / (1 - p))))
    assert torch.equal(added, (x.float() + scaled).to(dtype))


def test_neighbouring_draws_of_dropout_are_not_alike() -> None:
    y = torch.ones(200_000, requires_grad=True)
    masks = torch.stack([(kernels.dropped(y, 0.5) > 0).float() for _ in range(6)])
    # Between draws, and between an element and those near it in one draw.
    lags = torch.stack([masks[0].roll(k) for k in (1, 2, 3, 16, 64, 128, 512)])
    kept = torch.cat((masks, lags)) - 0.5
    correlation = (kept @ kept.T / 200_000 * 4).fill_diagonal_(0)
    assert float(correlation.abs().max()) < 5 / 200_000**0.5


def test_a_thread_can_draw_from_a_generator_of_its_own() -> None:
    y = torch.ones(1000, requires_grad=True)
    with rng.use_thread_rng(torch.Generator().manual_seed(3)):
        first = kernels.dropped(y, 0.5)
    torch.manual_seed(99)
    with rng.use_thread_rng(torch.Generator().manual_seed(3)):
        assert torch.equal(first, kernels.dropped(y, 0.5))
    assert rng.thread_rng() is None


@both
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 40) | st.integers(PART, 3 * PART), st.integers(1, 40)),
        min_size=1,
        max_size=9,
    ),
    own=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(lengths=[(500, 3), *[(200, 1)] * 16], own=True, causal=True, seed=0)  # 17 rows are laid out as 18
@settings(max_examples=25, deadline=None)
def test_packed_attention_is_each_rows_own(
    dtype: torch.dtype, lengths: list[tuple[int, int]], own: bool, causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    heads, width = 3, 8
    size = heads * width
    queries = Packing.of(torch.tensor([q for q, _ in lengths]))
    keys = queries if own else Packing.of(torch.tensor([k for _, k in lengths]))
    causal = causal and own
    q = leaf(queries.length, 3 * size if own else size, dtype=dtype)
    kv = None if own else leaf(keys.length, 2 * size, dtype=dtype)
    above = torch.randn(queries.length, size).to(dtype)
    given_ = [t for t in (q, kv) if t is not None]
    ours = packed_attention(q, kv, queries, keys, width, causal=causal)
    found = torch.autograd.grad(ours, given_, above)

    wide = [t.detach().double().requires_grad_() for t in given_]
    parts = wide[0].split(size, 1) if own else (wide[0], *wide[1].split(size, 1))
    rows = []
    for row in range(len(lengths)):
        asked = slice(int(queries.starts[row]), int(queries.starts[row + 1]))
        seen = slice(int(keys.starts[row]), int(keys.starts[row + 1]))
        q_, k_, v_ = (
            part[there].unflatten(1, (heads, width)).transpose(0, 1)
            for part, there in zip(parts, (asked, seen, seen), strict=True)
        )
        answer = F.scaled_dot_product_attention(q_, k_, v_, is_causal=causal)
        rows.append(answer.transpose(0, 1).flatten(1))
    theirs = torch.cat(rows)
    wanted = torch.autograd.grad(theirs, wide, above[: queries.real].double())
    close(ours[: queries.real], theirs, dtype)
    assert not ours[queries.real :].any()
    for a, b in zip(found, wanted, strict=True):
        close(a, b, dtype)


@both
def test_the_softmax_over_the_vocabulary_is_the_librarys(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(9, 1031) * 4).to(dtype)
    logits[3, 5] = 200.0  # all the others vanish beside it
    targets = torch.tensor([0, 1030, 7, 5, 8, -1, 256, 255, 4])
    wanted = logits.double().log_softmax(-1)
    e = logits.t().contiguous()
    inverse, picked = kernels.exponentials(e, targets)
    asked = targets >= 0
    close((e.float() * inverse).t()[asked], wanted.exp()[asked], dtype)
    assert torch.allclose(
        picked[asked].double(), -wanted[asked].gather(1, targets[asked][:, None])[:, 0], rtol=4e-3, atol=4e-3
    )
    assert picked[5] == 0 and inverse[5] == 0
    alone = logits[7:8].t().contiguous()
    assert torch.equal(kernels.exponentials(alone, targets[7:8])[0], inverse[7:8]), (
        "as alone, so among others"
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@both
def test_what_is_not_a_number_stays_so(dtype: torch.dtype, bad: float) -> None:
    """A loop that lost a NaN would let a broken run go on."""
    x = torch.randn(300, 64).to(dtype)
    x[7, 9] = bad
    x.requires_grad_()
    assert not kernels.dropped(x, 0.01)[7].isfinite().all()
    assert kernels.layer_norm(x, *(torch.ones(64, dtype=dtype) for _ in "wb"), 1e-5)[7].isnan().any()
    inverse, picked = kernels.exponentials(x.detach().t().contiguous(), torch.zeros(300, dtype=torch.int64))
    assert not picked[7].isfinite() or not inverse[7].isfinite()
    packing = Packing.of(torch.full((30,), 8))
    qkv = torch.randn(packing.length, 3 * 16).to(dtype)
    qkv[7, 20] = bad
    qkv.requires_grad_()
    assert not packed_attention(qkv, None, packing, packing, 8, causal=False)[:8].isfinite().all()


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_model_learns_the_same_with_and_without(placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = ModelConfig.parse(
        {"vocab_size": 300, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "dropout": 0.0}
        | {"norm_placement": placement}
    )
    model = Transformer(config).train()
    source, target = (Packing.of(torch.randint(1, 25, (17,))) for _ in "st")
    read, wrote = (torch.randint(3, 300, (1, packing.length)) for packing in (source, target))
    wanted = torch.randint(3, 300, (target.length,))
    wanted[target.real :] = -1

    def learnt() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        hidden = model(Inputs(read, packing=source), Inputs(wrote, packing=target))[0]
        sums = linear_cross_entropy(hidden, model.lm_head.weight, None, wanted, 0.1)
        sums.loss.backward()
        return sums.loss.detach(), [p.grad.clone() for p in model.parameters()]

    loss, gradients = learnt()
    monkeypatch.setattr(kernels, "loops", lambda: None)
    plain_loss, plain_gradients = learnt()
    assert torch.allclose(loss, plain_loss, rtol=1e-6)
    for a, b in zip(gradients, plain_gradients, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_the_loss_with_loops_is_the_loss_by_the_book() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (leaf(*shape, dtype=torch.float32) for shape in ((700, 16), (901, 16), (901,)))
    targets = torch.randint(0, 901, (700,))
    ours = linear_cross_entropy(hidden, weight, bias, targets, 0.1)
    theirs = LossSums(*ops.PLAIN["cross_entropy"](hidden, weight, bias, targets, 0.1))
    assert torch.allclose(ours.loss, theirs.loss, rtol=1e-6) and torch.allclose(
        ours.nll, theirs.nll, rtol=1e-6
    )
    found = torch.autograd.grad(ours.loss, (hidden, weight, bias))
    wanted = torch.autograd.grad(theirs.loss, (hidden, weight, bias))
    for a, b in zip(found, wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_layer_norm_leaves_the_storage_of_its_parameters_free() -> None:
    """Sharded parameters are gathered and freed again; an array of one would hold on to it."""
    weight, bias = leaf(6, dtype=torch.float32), leaf(6, dtype=torch.float32)
    kernels.layer_norm(leaf(3, 6, dtype=torch.float32), weight, bias, 1e-5).sum().backward()
    assert weight.grad is not None
    assert weight.untyped_storage().resizable() and bias.untyped_storage().resizable()
