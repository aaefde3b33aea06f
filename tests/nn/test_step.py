"""A decoding step in compiled lines is the ordinary step, for all that it covers; the rest goes the ordinary way."""

from __future__ import annotations

import copy
import multiprocessing
import os
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trifold.nn import (
    Cache,
    Inputs,
    Mask,
    Memory,
    Transformer,
    bytes_product,
    capture,
    crew,
    line,
    query,
    step,
)
from trifold.nn.attention import attend
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.int8 import Int8
from trifold.nn.linear import Linear

pytest.importorskip("numba", reason="the compiled loops need numba: pip install 'trifold[fast]'")

DECODER = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}
CONFIGS: dict[str, dict[str, object]] = {
    "learned, tanh-GELU, biases": {
        **DECODER,
        **{"positions": "learned", "activation": "gelu-tanh", "attention_bias": True},
    },
    "post, ReLU, sinusoidal": {"shape": "decoder", "activation": "relu"},
    "RMS, rotary, gated SiLU, shared keys": {
        **DECODER,
        **{"norm": "rms", "positions": "rotary", "gated": True, "activation": "silu", "n_kv_heads": 2},
        **{"feed_forward_bias": False, "d_head": 8},
    },
    "parallel, part of a head turns, neighbours": {
        **DECODER,
        **{"residual": "parallel", "positions": "rotary", "rotary_width": 4, "rotary_pairs": "interleaved"},
        **{"d_head": 8, "n_kv_heads": 1, "norm_bias": False},
    },
    "parallel with two norms, GELU, ALiBi": {
        **DECODER,
        **{"residual": "parallel-two-norms", "positions": "alibi", "activation": "gelu", "n_layers": 3},
    },
    "sandwich, soft caps, another scale": {
        **DECODER,
        **{"norm_placement": "sandwich", "norm": "rms", "score_soft_cap": 2.0, "logit_soft_cap": 5.0},
        **{"attention_scale": 0.3, "attention_scale_by_layer": True, "positions": "learned", "gated": True},
        **{"activation": "gelu"},
    },
    "windows in every other layer": {
        **DECODER,
        **{"positions": "rotary", "sliding_window": 4, "window_pattern": ("local", "global"), "n_layers": 3},
        **{"activation": "quick-gelu"},
    },
    "one block for all layers": {**DECODER, "block_of_layer": (0, 0, 0), "n_layers": 3, "activation": "tanh"},
    "relative offsets": {
        **DECODER,
        **{"positions": "relative", "norm": "rms", "attention_scale": 1.0, "relative_distance": 6},
        **{"relative_buckets": 8},
    },
    "encoder-decoder, post": {"attention_bias": True, "activation": "silu"},
    "encoder-decoder, pre, relative": {
        **{"norm_placement": "pre", "norm": "rms", "positions": "relative", "gated": True},
        **{"activation": "gelu-tanh", "n_decoder_layers": 1},
    },
}
every = pytest.mark.parametrize("values", CONFIGS.values(), ids=CONFIGS)
Make = Callable[..., Transformer]


@pytest.fixture(autouse=True)
def _small_stacks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LEAST", 0)


def decoded(
    model: Transformer,
    rows: int,
    attend: Tensor | None = None,
    *,
    steps: int = 6,
    kind: str = "growing",
    beams: int = 1,
    ordinary: bool = False,
) -> tuple[Tensor, Cache]:
    """Hidden states (R, steps, E) of tokens read one by one after a prompt; beams change places on the way."""
    generator = torch.Generator().manual_seed(3)
    config = model.config
    tokens = torch.randint(3, config.output_vocab_size, (rows * beams, 5 + steps), generator=generator)
    memory = None
    before, step.LEAST = step.LEAST, 10**12 if ordinary else step.LEAST
    try:
        with torch.no_grad():
            if config.encoder_layers:
                source = torch.randint(3, config.vocab_size, (rows, 7), generator=generator)
                real = torch.arange(7) < torch.tensor([7, 4, 6, 5] * 3)[:rows, None]
                memory = model.encode(Inputs(source, real if rows > 1 else None))
            cache = model.new_cache(kind, room=20, rollback=2)
            model.decode(Inputs(tokens[::beams, :5], attend), memory, cache)
            cache.expand(beams)
            out = []
            for t in range(5, 5 + steps):
                if beams > 1 and t == 7:
                    cache.reorder(torch.arange(rows * beams).view(rows, beams).flip(1).flatten())
                if attend is not None:
                    attend = torch.cat([attend, torch.ones(rows, 1, dtype=torch.bool)], 1)
                out.append(model.decode(Inputs(tokens[:, t : t + 1], attend), memory, cache))
    finally:
        step.LEAST = before
    return torch.cat(out, 1), cache


def close(ours: Tensor, theirs: Tensor, limit: float) -> None:
    assert ours.dtype == theirs.dtype
    assert float((ours.float() - theirs.float()).abs().max()) <= limit * float(theirs.float().std())


def covered(cache: Cache) -> bool:
    known = step._programs.get(cache)
    return known is not None and known[2] is not None


@every
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_it_is_the_ordinary_step(make_model: Make, values: dict[str, object], rows: int) -> None:
    model = make_model(**values)
    for kind in ("growing", "static", "sliding"):
        ours, cache = decoded(model, rows, kind=kind)
        theirs, other = decoded(model, rows, kind=kind, ordinary=True)
        assert covered(cache) and not covered(other)
        assert cache.length == other.length == 11
        close(ours, theirs, 1e-5)


@every
def test_in_bf16_it_differs_by_rounding(make_model: Make, values: dict[str, object]) -> None:
    model = make_model(**values)
    exact, _ = decoded(model, 2, ordinary=True)
    model.bfloat16()
    ours, cache = decoded(model, 2)
    theirs, _ = decoded(model, 2, ordinary=True)
    assert covered(cache) and ours.dtype is torch.bfloat16
    distance = [float((x.float() - exact).abs().mean()) for x in (ours, theirs)]
    assert distance[0] <= 1.2 * distance[1]  # it rounds less often


@every
def test_int8_is_the_model_of_its_rounded_weights(
    make_model: Make, values: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**values)
    small, rounded = copy.deepcopy(model), model
    to_int8(small)
    with torch.no_grad():
        for name, module in small.named_modules():
            if isinstance(module, Int8):
                owner, _, _ = name.rpartition(".")
                rounded.get_submodule(owner).weight.copy_(module.wide())
    ours, cache = decoded(small, 2)
    theirs, _ = decoded(rounded, 2, ordinary=True)
    assert covered(cache)
    close(ours, theirs, 1e-4)
    monkeypatch.setattr(crew, "WORTH", 0)
    with torch.no_grad():
        close(small.lm_head(ours[:, -1]), rounded.lm_head(theirs[:, -1]), 1e-4)


@every
@pytest.mark.parametrize("beams", [1, 3])
def test_many_rows_of_int8_differ_by_the_rounding_of_bytes(
    make_model: Make, values: dict[str, object], beams: int
) -> None:
    model = make_model(**values)
    if beams > 1 and not model.config.encoder_layers:
        pytest.skip("only a memory is shared by beams")
    exact, _ = decoded(model, 12 // beams, beams=beams, ordinary=True)
    to_int8(model.bfloat16())
    ours, cache = decoded(model, 12 // beams, beams=beams)
    theirs, _ = decoded(model, 12 // beams, beams=beams, ordinary=True)
    assert covered(cache) and ours.dtype is torch.bfloat16
    distance = [float((x.float() - exact).abs().mean()) for x in (ours, theirs)]
    assert distance[0] <= 1.3 * distance[1]


def to_int8(model: Transformer) -> None:
    """Every matrix of a product and every table of tokens, those that are one remaining one."""
    made: dict[nn.Parameter, Int8] = {}
    for module in model.modules():
        if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
            weight = module.weight
            made.setdefault(weight, Int8.of(weight))
            del module.weight
            module.weight = made[weight]


@pytest.mark.parametrize("name", ["learned, tanh-GELU, biases", "relative offsets", "encoder-decoder, post"])
def test_padding_is_not_read(make_model: Make, name: str) -> None:
    model = make_model(**CONFIGS[name])
    attend = torch.tensor([[True] * 5, [True, True, True, False, False], [False, True, True, True, False]])
    ours, cache = decoded(model, 3, attend)
    theirs, _ = decoded(model, 3, attend, ordinary=True)
    assert covered(cache)
    close(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", ["encoder-decoder, post", "encoder-decoder, pre, relative"])
def test_beams_change_places_and_share_a_memory(make_model: Make, name: str) -> None:
    model = make_model(**CONFIGS[name])
    ours, cache = decoded(model, 2, beams=2)
    theirs, _ = decoded(model, 2, beams=2, ordinary=True)
    assert covered(cache)
    close(ours, theirs, 1e-5)


def test_rows_may_leave_on_the_way(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    tokens = torch.randint(3, 29, (3, 9))

    def run() -> list[Tensor]:
        with torch.no_grad():
            cache, out = model.new_cache(), []
            model.decode(Inputs(tokens[:, :5]), None, cache)
            for t, rows in ((5, [0, 1, 2]), (6, [0, 2]), (7, [0, 2]), (8, [2])):
                if t in (6, 8):
                    keep = torch.tensor([0, 2] if t == 6 else [1])
                    cache.select(keep, keep)
                out.append(model.decode(Inputs(tokens[rows, t : t + 1]), None, cache))
        return out

    ours = run()
    monkeypatch.setattr(step, "LEAST", 10**12)
    for one, other in zip(ours, run(), strict=True):
        close(one, other, 1e-5)


def test_what_it_does_not_cover_goes_the_ordinary_way(make_model: Make) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    assert not covered(decoded(model, crew.FEW + 1)[1])  # too many rows
    hook = model.decoder.blocks[0].register_forward_hook(lambda *_: None)
    assert not covered(decoded(model, 1)[1])  # somebody listens
    hook.remove()
    with capture(model, "pattern") as seen:
        decoded(model, 1)
    assert len(seen) == 2  # what is watched is seen
    windows = make_model(**CONFIGS["windows in every other layer"])
    attend = torch.tensor([[True] * 5, [True, True, True, False, False]])
    ours, _ = decoded(windows, 2, attend)
    theirs, _ = decoded(windows, 2, attend, ordinary=True)
    assert torch.equal(ours, theirs)
    cache = model.new_cache()
    model.decode(Inputs(torch.tensor([[3, 4]])), None, cache)
    assert model.decode(Inputs(torch.tensor([[5]])), None, cache).requires_grad  # gradients flow

    class Other(Linear):
        pass

    model.decoder.blocks[1].feed_forward.sublayer.in_proj = Other(16, 24)
    assert not covered(decoded(model, 1)[1])


def test_a_small_stack_is_not_worth_it(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LEAST", 4 * 10**6)
    assert not covered(decoded(make_model(**CONFIGS["learned, tanh-GELU, biases"]), 1)[1])


def test_a_row_that_may_attend_to_nothing_gives_zero(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**CONFIGS["encoder-decoder, post"])
    source = torch.randint(3, 29, (2, 4))
    with torch.no_grad():
        memory = model.encode(Inputs(source))
        blind = Memory(memory.hidden, torch.tensor([[True] * 4, [False] * 4]))
        found = []
        for least in (0, 10**12):
            monkeypatch.setattr(step, "LEAST", least)
            cache = model.new_cache()
            model.decode(Inputs(torch.tensor([[1, 5], [1, 5]])), blind, cache)
            found.append(model.decode(Inputs(torch.tensor([[6], [6]])), blind, cache))
    assert bool(found[0].isfinite().all())
    close(*found, 1e-5)


# --- products of few rows ------------------------------------------------------------------------------


@pytest.fixture
def small_products_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "WORTH", 0)


@pytest.mark.usefixtures("small_products_too")
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 8])
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_thin_product_is_the_librarys(rows: int, kind: str, threads: int) -> None:
    x, weight, bias = torch.randn(rows, 1, 200), torch.randn(333, 200), torch.randn(333)
    matrix = {"fp32": weight, "bf16": weight.bfloat16(), "int8": Int8.of(weight)}[kind]
    wide = matrix.wide() if isinstance(matrix, Int8) else matrix.float()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            assert crew.thin(x, matrix)
            found = crew.thin_product(x, matrix, bias)
    finally:
        torch.set_num_threads(before)
    theirs = torch.nn.functional.linear(x.double(), wide.double(), bias.double())
    assert found.dtype is torch.float32
    assert torch.allclose(found.double(), theirs, atol=1e-4)


def test_several_callers_do_not_disturb_each_other() -> None:
    weight = torch.randn(400, 300)
    inputs = [torch.randn(1, 300) for _ in range(4)]
    found: list[Tensor | None] = [None] * len(inputs)

    def work(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                found[number] = crew.thin_product(inputs[number], weight, None)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    torch.set_num_threads(before)
    for x, y in zip(inputs, found, strict=True):
        assert y is not None and torch.allclose(y, x @ weight.T, atol=1e-4)


def product_of(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        return crew.thin_product(x, weight, None)


def test_without_a_team_one_thread_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 300), torch.randn(400, 300)
    together = product_of(x, weight)
    monkeypatch.setattr(crew, "team", lambda: None)
    assert torch.equal(product_of(x, weight), together)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_has_none_of_its_parents_threads_and_waits_for_none() -> None:
    x, weight = torch.randn(1, 300), torch.randn(400, 300)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = product_of(x, weight).tolist()  # the team is there now
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=lambda: answers.put(product_of(x, weight).tolist()))
        child.start()
        child.join(60)
        assert child.exitcode == 0 and answers.get() == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_the_same_numbers_have_the_same_bits_wherever_they_lie(kind: str) -> None:
    weight = torch.randn(64, 200)
    rows, results = torch.randn(5, 200), []
    matrix = {"fp32": weight, "bf16": weight.bfloat16(), "int8": Int8.of(weight)}[kind]
    room = torch.zeros(20_000)
    for x_at, out_at in ((0, 1_000), (0, 10_000), (3, 1_004), (320, 0), (333, 1_340)):
        x, out = room[x_at : x_at + 1_000].view(5, 200), room[out_at : out_at + 320].view(5, 64)
        out.zero_()
        x.copy_(rows)
        crew.run_line(**crew.matrix_fields(matrix), rows=5, x=x, out=out)
        results.append(out.clone())
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.usefixtures("small_products_too")
def test_few_rows_of_a_large_matrix_and_no_gradients() -> None:
    weight = torch.randn(64, 32)
    with torch.no_grad():
        assert crew.thin(torch.randn(1, 4, 32), weight)
        assert not crew.thin(torch.randn(crew.FEW + 1, 32), weight)
        assert not crew.thin(torch.randn(1, 32), weight.half())
        assert not crew.thin(torch.randn(1, 32), torch.randn(32, 64).T)
        assert not crew.thin(torch.randn(0, 32), weight)
    assert not crew.thin(torch.randn(1, 32), weight)


# --- attention of one query ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("rows", "sentences", "groups"), [(6, 6, 1), (6, 2, 1), (6, 6, 2)])
def test_one_query_a_row_is_attended_to_as_any_other(
    dtype: torch.dtype, window: int | None, rows: int, sentences: int, groups: int
) -> None:
    q, keys = torch.randn(rows, 4, 1, 8).to(dtype), 9
    k, v = (torch.randn(sentences, 12, 4 // groups, 8).to(dtype).transpose(1, 2)[:, :, :keys] for _ in "kv")
    real = None if window else torch.rand(sentences, keys) < 0.7
    mask = Mask(real, causal=sentences == rows, offset=keys - 1, window=window)
    bias = torch.randn(1, 4, 1, keys)
    with torch.no_grad():
        assert query.asks_once(q, k, mask, 2**18)
        ours = query.attend_once(q, k, v, mask, bias, 3.0)
    wide = [y.double().repeat_interleave(n, d) for y, n, d in ((k, groups, 1), (v, groups, 1))]
    wide = [y.repeat_interleave(rows // sentences, 0) for y in wide]
    seen = real if real is None else real.repeat_interleave(rows // sentences, 0)
    twin = Mask(seen, causal=mask.causal, offset=keys - 1, window=window)
    theirs = attend(q.double(), *wide, twin, bias=bias.double(), soft_cap=3.0, kernel="plain")
    assert ours.shape == (rows, 1, 32) and ours.dtype is dtype
    limit = 1e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(ours.double(), theirs.transpose(1, 2).flatten(2), atol=limit)


# --- bytes times bytes ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_products_too")
@pytest.mark.parametrize("biased", [True, False])
def test_bytes_times_bytes_is_the_product_of_what_was_rounded(
    biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytes_product, "WORTH", 0)
    x, bias = torch.randn(33, 1, 64).bfloat16(), torch.randn(96).bfloat16() if biased else None
    x[5] = 0
    weight = Int8.of(torch.randn(96, 64))
    with torch.no_grad():
        assert bytes_product.many(x, weight)
        ours = bytes_product.bytes_product(x, weight, bias)
    rounded = Int8.of(x[:, 0].float())
    small, scales = torch.empty(33, 64, dtype=torch.int8), torch.empty(33)
    about = {"kind": line.BRAIN, "rows": 33, "units": 33, "inputs": 64}
    crew.run_line(op=line.TO_BYTES, **about, x=x, out=small, scales=scales)
    assert torch.allclose(scales, rounded.scales)
    apart = (small.int() - rounded.values.int()).abs()
    assert int(apart.max()) <= 1 and float(apart.float().mean()) < 0.05  # a tie may go to either side
    exact = (small.double() * scales.double()[:, None]) @ weight.wide().double().T
    exact = exact if bias is None else exact + bias.double()
    assert ours.shape == (33, 1, 96) and ours.dtype is torch.bfloat16
    assert torch.allclose(ours[:, 0].double(), exact, rtol=2**-8, atol=1e-3)
    with torch.no_grad():
        assert torch.equal(
            ours[7:29], bytes_product.bytes_product(x[7:29], weight, bias)
        )  # rows are on their own


def test_only_many_rows_in_bf16_are_rounded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_product, "WORTH", 0)
    weight, x = Int8.of(torch.randn(96, 64)), torch.randn(33, 1, 64).bfloat16()
    assert not bytes_product.many(x, weight)  # gradients
    with torch.no_grad():
        assert bytes_product.many(x, weight)
        assert not bytes_product.many(x.float(), weight)
        assert not bytes_product.many(x[: crew.FEW], weight)
        assert bytes_product.many(x.view(3, 11, 64), weight)
