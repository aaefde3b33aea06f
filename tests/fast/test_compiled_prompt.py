"""A compiled prompt equals the plain operators; unsupported cases use them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.fast.test_decoding_step import replace_matrices
from torch import Tensor, nn

from trifold import fast
from trifold.fast import decoding_step as step
from trifold.fast.block_weight import BlockWeight
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.instruction_sets import has_panels, products_of_keys
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.nn import Cache, Inputs, Transformer
from trifold.nn.layers import Linear

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

Make = Callable[..., Transformer]
BASE = {
    **{"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False, "n_layers": 2},
    **{"d_model": 64, "n_heads": 2, "d_ff": 80, "max_positions": 64},
}
LLAMA = {
    **BASE,
    **{"norm": "rms", "positions": "rotary", "gated": True, "activation": "silu"},
    **{"n_kv_heads": 1, "attention_bias": False, "feed_forward_bias": False},
}
CONFIGS: dict[str, dict[str, object]] = {
    "RMS, rotary, gated SiLU, shared keys": LLAMA,
    "learned, biases, post": {
        **BASE,
        **{"positions": "learned", "norm_placement": "post", "activation": "gelu-tanh"},
        **{"attention_bias": True, "feed_forward_bias": True},
    },
    "norms of heads, interleaved": {**LLAMA, "qk_norm": "head", "rotary_pairs": "interleaved"},
    "norms of all heads after the sub-layers": {
        **LLAMA,
        **{"norm_placement": "sandwich", "qk_norm": "width", "norm_weight": "plus-one"},
    },
    "parallel, a part of each head, another scale": {
        **BASE,
        **{"residual": "parallel", "positions": "rotary", "rotary_width": 16},
        **{"activation": "gelu", "attention_scale": 0.3},
    },
}
all_configs = pytest.mark.parametrize("values", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(autouse=True)
def _no_minimum_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(step, "MIN_WEIGHTS", 0)
    with torch.no_grad():
        yield


class Reader:
    """Reads tokens (B, T) up to each of the ends, and counts the compiled prompts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled = 0
        prompt = step.compiled_prompt

        def counted(*arguments: object) -> Tensor:
            self.compiled += 1
            return prompt(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(step, "compiled_prompt", counted)

    def read(
        self, model: Transformer, tokens: Tensor, *ends: int, kind: str = "growing"
    ) -> tuple[Tensor, Cache]:
        """All states (B, T, E)."""
        cache = model.new_cache(kind, capacity=64)
        starts = (0, *ends[:-1])
        parts = zip(starts, ends, strict=True)
        states = [model.decode(Inputs(tokens[:, a:b]), None, cache) for a, b in parts]
        return torch.cat(states, 1), cache


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(monkeypatch)


def tokens_of(model: Transformer, rows: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, model.config.vocab_size, (rows, count), generator=generator)


def relative(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def plain(model: Transformer, tokens: Tensor, *ends: int) -> tuple[Tensor, Cache]:
    with fast.disabled():
        cache = model.new_cache("growing", capacity=64)
        starts = (0, *ends[:-1])
        parts = zip(starts, ends, strict=True)
        states = [model.decode(Inputs(tokens[:, a:b]), None, cache) for a, b in parts]
    return torch.cat(states, 1), cache


@all_configs
@pytest.mark.parametrize("rows", [1, 3])
def test_a_compiled_prompt_equals_the_plain_operators(
    make_model: Make, values: dict[str, object], rows: int, reader: Reader
) -> None:
    model = make_model(**values)
    tokens = tokens_of(model, rows, 23)
    for kind in ("growing", "static"):
        got, cache = reader.read(model, tokens, 20, 21, 23, kind=kind)
        expected, other = plain(model, tokens, 20, 21, 23)
        assert relative(got, expected) <= 1e-5
        for own, usual in zip(cache.layers, other.layers, strict=True):
            assert own.past.buffers is not None and usual.past.buffers is not None
            for mine, theirs in zip(own.past.buffers, usual.past.buffers, strict=True):
                assert relative(mine[:, :, :23], theirs[:, :, :23]) <= 1e-5
    assert reader.compiled == (2 if has_panels() else 0)


@all_configs
def test_errors_in_bf16_are_at_most_those_of_the_plain_operators(
    make_model: Make, values: dict[str, object], reader: Reader
) -> None:
    model = make_model(**values)
    tokens = tokens_of(model, 1, 40)
    exact, _ = plain(model, tokens, 40)
    model.bfloat16()
    got, _ = reader.read(model, tokens, 40)
    expected, _ = plain(model, tokens, 40)
    assert reader.compiled == is_program(torch.bfloat16) and got.dtype is torch.bfloat16
    assert relative(got, exact) <= 1.2 * relative(expected, exact)  # it rounds less often


@pytest.mark.parametrize("bits", [8, 6, 5, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_in_blocks_equal_their_values(
    make_model: Make, dtype: torch.dtype, bits: int, reader: Reader
) -> None:
    """Up to the rounding of activations, to 16 bits or to bf16."""
    model = make_model(**LLAMA)
    replace_matrices(model, lambda matrix: BlockWeight.quantize(matrix, bits))
    tokens = tokens_of(model, 1, 21)
    expected, _ = plain(with_values(model), tokens, 21)
    got, _ = reader.read(model.to(dtype), tokens, 21)
    assert relative(got, expected) <= {torch.float32: 1e-4}.get(dtype, 2e-2)
    assert reader.compiled == is_program(dtype)


@pytest.mark.parametrize("stored", STORED, ids=str)
def test_weights_in_16_bits_are_not_rounded_further(
    make_model: Make, reader: Reader, stored: torch.dtype
) -> None:
    model = make_model(**LLAMA)
    replace_matrices(model, lambda matrix: HalfWeight(matrix.to(stored), torch.float32))
    tokens = tokens_of(model, 1, 21)
    expected, _ = plain(with_values(model), tokens, 21)
    got, _ = reader.read(model, tokens, 21)
    assert relative(got, expected) <= 1e-5
    assert reader.compiled == has_panels()


def is_program(dtype: torch.dtype) -> bool:
    """Whether short prompts in that type are programs on this processor."""
    has_products = dtype is torch.bfloat16 and products_of_keys("bfloat16") is not None
    return has_panels() or has_products


def with_values(model: Transformer) -> Transformer:
    """The same model, whose quantized weights are replaced by their values."""
    dense = copy.deepcopy(model)
    for module in dense.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, QuantizedWeight):
            del module.weight
            module.weight = nn.Parameter(weight.dequantize().float(), requires_grad=False)
    return dense


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_do_not_depend_on_other_tokens(
    make_model: Make, dtype: torch.dtype, blocks: bool, reader: Reader
) -> None:
    """Neither on how a prompt is divided, nor on other rows, nor on the number of threads."""
    if not has_panels():
        pytest.skip("operators compute prompts here, whose bits depend on shapes")
    model = make_model(**LLAMA)
    if blocks:
        replace_matrices(model, lambda matrix: BlockWeight.quantize(matrix, 8))
    model.to(dtype)
    tokens = tokens_of(model, 3, 47)
    whole, _ = reader.read(model, tokens[:1], 47)
    for ends in ((9, 47), (12, 25, 47), (20, 30, 47)):
        assert torch.equal(reader.read(model, tokens[:1], *ends)[0], whole)
    assert torch.equal(reader.read(model, tokens, 47)[0][:1], whole)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert torch.equal(reader.read(model, tokens[:1], 47)[0], whole)
    finally:
        torch.set_num_threads(threads)
    assert reader.compiled == 11


def test_unsupported_prompts_use_the_operators(make_model: Make, reader: Reader) -> None:
    model = make_model(**LLAMA)
    tokens = tokens_of(model, 2, 20)
    attend = torch.ones(2, 20, dtype=torch.bool)
    attend[1, :3] = False
    model.decode(Inputs(tokens, attend), None, model.new_cache())
    model.decode(Inputs(tokens[:, :4]), None, model.new_cache())
    for changes in (
        {"score_soft_cap": 2.0},
        {"sliding_window": 8},
        {"d_ff": 72},
        {"n_heads": 8, "n_kv_heads": 8},
    ):
        other = make_model(**{**LLAMA, **changes})
        other.decode(Inputs(tokens), None, other.new_cache("growing", capacity=64))
    handle = model.decoder.blocks[0].register_forward_hook(lambda *_: None)
    model.decode(Inputs(tokens), None, model.new_cache())
    handle.remove()
    layer = model.decoder.blocks[0].feed_forward.sublayer.in_proj
    layer.__class__ = type("OtherLinear", (type(layer),), {})
    model.decode(Inputs(tokens), None, model.new_cache())
    layer.__class__ = Linear
    with torch.enable_grad():
        model.decode(Inputs(tokens), None, model.new_cache())
    assert reader.compiled == 0
    model.decode(Inputs(tokens), None, model.new_cache())
    assert reader.compiled == has_panels()


@pytest.mark.skipif(not has_panels(), reason="other processors compile no prompts")
def test_a_stack_is_examined_once_for_a_prompt_and_its_steps(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**LLAMA)
    tokens = tokens_of(model, 1, 22)
    cache, other = (model.new_cache("growing", capacity=64) for _ in range(2))
    model.decode(Inputs(tokens[:, :20]), None, cache)
    model.decode(Inputs(tokens[:, :4]), None, other)  # which is no program
    monkeypatch.setattr(step, "_has_instructions", lambda module: False)
    for each, is_compiled in ((cache, True), (other, False)):
        model.decode(Inputs(tokens[:, 20:21]), None, each)
        translation = step.translation_of(each)
        assert translation is not None and (translation.decoder is not None) == is_compiled
