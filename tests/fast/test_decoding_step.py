"""A decoding step in compiled lines is the ordinary step, for all that it covers; the rest goes the ordinary way."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trifold.fast import decoding_step as step, layers
from trifold.fast.int8 import Int8Weight
from trifold.nn import (
    Cache,
    Inputs,
    Memory,
    Transformer,
    capture,
)
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.layers import Linear

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
    monkeypatch.setattr(step, "MIN_WEIGHTS", 0)


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
    before, step.MIN_WEIGHTS = step.MIN_WEIGHTS, 10**12 if ordinary else step.MIN_WEIGHTS
    try:
        with torch.no_grad():
            if config.encoder_layers:
                source = torch.randint(3, config.vocab_size, (rows, 7), generator=generator)
                real = torch.arange(7) < torch.tensor([7, 4, 6, 5] * 3)[:rows, None]
                memory = model.encode(Inputs(source, real if rows > 1 else None))
            cache = model.new_cache(kind, capacity=20, rollback=2)
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
        step.MIN_WEIGHTS = before
    return torch.cat(out, 1), cache


def close(ours: Tensor, theirs: Tensor, limit: float) -> None:
    assert ours.dtype == theirs.dtype
    assert float((ours.float() - theirs.float()).abs().max()) <= limit * float(theirs.float().std())


def covered(cache: Cache) -> bool:
    known = step._translations.get(cache)
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
            if isinstance(module, Int8Weight):
                owner, _, _ = name.rpartition(".")
                rounded.get_submodule(owner).weight.copy_(module.dequantize())
    ours, cache = decoded(small, 2)
    theirs, _ = decoded(rounded, 2, ordinary=True)
    assert covered(cache)
    close(ours, theirs, 1e-4)
    monkeypatch.setattr(layers, "MIN_WEIGHTS", 0)
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
    made: dict[nn.Parameter, Int8Weight] = {}
    for module in model.modules():
        if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
            weight = module.weight
            made.setdefault(weight, Int8Weight.quantize(weight))
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
    monkeypatch.setattr(step, "MIN_WEIGHTS", 10**12)
    for one, other in zip(ours, run(), strict=True):
        close(one, other, 1e-5)


def test_what_it_does_not_cover_goes_the_ordinary_way(make_model: Make) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    assert not covered(decoded(model, layers.FEW_ROWS + 1)[1])  # too many rows
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
    monkeypatch.setattr(step, "MIN_WEIGHTS", 4 * 10**6)
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
            monkeypatch.setattr(step, "MIN_WEIGHTS", least)
            cache = model.new_cache()
            model.decode(Inputs(torch.tensor([[1, 5], [1, 5]])), blind, cache)
            found.append(model.decode(Inputs(torch.tensor([[6], [6]])), blind, cache))
    assert bool(found[0].isfinite().all())
    close(*found, 1e-5)
