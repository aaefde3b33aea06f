"""A compiled decoding step equals the plain step; unsupported cases use the plain step."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from tests.models import randomize
from torch import Tensor, nn

from trifold.fast import decoding_step as step, instruction, layers, thread_pool
from trifold.fast.block_weight import BlockWeight
from trifold.fast.half_weight import STORED, HalfWeight
from trifold.fast.quantized_weight import QuantizedWeight
from trifold.generate import GenerationConfig, Hypothesis, generate_tokens
from trifold.nn import Cache, Inputs, Memory, ModelConfig, Transformer, capture
from trifold.nn.embeddings import TokenEmbedding
from trifold.nn.heads import LanguageModelHead
from trifold.nn.layers import Linear
from trifold.train.parameters import quantize_blocks

pytest.importorskip("numba", reason="the compiled loops need numba: `make setup` installs it")

DECODER = {"shape": "decoder", "norm_placement": "pre", "scale_embeddings": False}
CONFIGS: dict[str, dict[str, object]] = {
    "learned, tanh-GELU, biases": {
        **DECODER,
        **{"positions": "learned", "activation": "gelu-tanh", "attention_bias": True},
    },
    "post, ReLU, sinusoidal": {"shape": "decoder", "activation": "relu"},
    "RMS, rotary, gated SiLU, shared keys": {
        **DECODER,
        **{
            "norm": "rms",
            "positions": "rotary",
            "gated": True,
            "activation": "silu",
            "n_kv_heads": 2,
        },
        **{"feed_forward_bias": False, "d_head": 8},
    },
    "parallel, part of a head turns, neighbours": {
        **DECODER,
        **{
            "residual": "parallel",
            "positions": "rotary",
            "rotary_width": 4,
            "rotary_pairs": "interleaved",
        },
        **{"d_head": 8, "n_kv_heads": 1, "norm_bias": False},
    },
    "parallel with two norms, GELU, ALiBi": {
        **DECODER,
        **{
            "residual": "parallel-two-norms",
            "positions": "alibi",
            "activation": "gelu",
            "n_layers": 3,
        },
    },
    "sandwich, soft caps, another scale": {
        **DECODER,
        **{
            "norm_placement": "sandwich",
            "norm": "rms",
            "score_soft_cap": 2.0,
            "logit_soft_cap": 5.0,
        },
        **{
            "attention_scale": 0.3,
            "attention_scale_by_layer": True,
            "positions": "learned",
            "gated": True,
        },
        **{"activation": "gelu"},
    },
    "windows in two of three layers": {
        **DECODER,
        **{
            "positions": "rotary",
            "sliding_window": 4,
            "window_pattern": ("local", "global", 7),
            "n_layers": 3,
        },
        **{"activation": "quick-gelu"},
    },
    "one block for all layers": {
        **DECODER,
        "block_of_layer": (0, 0, 0),
        "n_layers": 3,
        "activation": "tanh",
    },
    "norms of heads, shared keys": {
        **DECODER,
        **{"norm": "rms", "positions": "rotary", "qk_norm": "head", "n_kv_heads": 2, "d_head": 8},
    },
    "norms of all queries and keys after the sub-layers": {
        **DECODER,
        **{
            "norm": "rms",
            "norm_placement": "exit",
            "positions": "rotary",
            "qk_norm": "width",
            "n_kv_heads": 1,
        },
    },
    "layer norms of heads": {**DECODER, "qk_norm": "head", "positions": "learned"},
    "norms without weights, squared ReLU": {
        **DECODER,
        **{
            "norm": "rms",
            "norm_weight": "none",
            "qk_norm": "head",
            "positions": "rotary",
            "activation": "relu2",
        },
    },
    "norms with 1 + weight, two bases, no positions in some layers": {
        **DECODER,
        **{
            "norm": "rms",
            "norm_weight": "plus-one",
            "qk_norm": "head",
            "positions": "rotary",
            "n_layers": 4,
        },
        **{"rotary_local_theta": 7.0, "sliding_window": 3, "window_pattern": ("local", "global")},
        **{"rotary_pattern": ("rotary", "rotary", "none")},
    },
    "relative offsets": {
        **DECODER,
        **{"positions": "relative", "norm": "rms", "attention_scale": 1.0, "relative_distance": 6},
        **{"relative_buckets": 8},
    },
    "encoder-decoder, post": {"attention_bias": True, "activation": "silu"},
    "encoder-decoder, norms of heads": {"qk_norm": "head"},
    "encoder-decoder of two widths": {
        **{
            "d_decoder": 24,
            "d_decoder_head": 8,
            "n_kv_heads": 4,
            "n_decoder_kv_heads": 2,
            "norm_placement": "sandwich",
        },
        **{
            "positions": "rotary",
            "target_vocab_size": 40,
            "gated": True,
            "activation": "gelu-tanh",
        },
    },
    "encoder-decoder, pre, relative": {
        **{"norm_placement": "pre", "norm": "rms", "positions": "relative", "gated": True},
        **{"activation": "gelu-tanh", "n_decoder_layers": 1},
    },
}
all_configs = pytest.mark.parametrize("values", CONFIGS.values(), ids=CONFIGS)
Make = Callable[..., Transformer]


@pytest.fixture(autouse=True)
def _no_minimum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "MIN_WEIGHTS", 0)


def decode_steps(
    model: Transformer,
    rows: int,
    attend: Tensor | None = None,
    *,
    steps: int = 6,
    kind: str = "growing",
    beams: int = 1,
    plain: bool = False,
) -> tuple[Tensor, Cache]:
    """Hidden states (R, steps, E) of tokens decoded one by one after a prompt; beams are reordered
    once.
    """
    generator = torch.Generator().manual_seed(3)
    config = model.config
    tokens = torch.randint(
        3, config.output_vocab_size, (rows * beams, 5 + steps), generator=generator
    )
    memory = None
    before, step.MIN_WEIGHTS = step.MIN_WEIGHTS, 10**12 if plain else step.MIN_WEIGHTS
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


def assert_close(got: Tensor, expected: Tensor, limit: float) -> None:
    assert got.dtype == expected.dtype
    assert float((got.float() - expected.float()).abs().max()) <= limit * float(
        expected.float().std()
    )


def is_compiled(cache: Cache) -> bool:
    translation = step._translations.get(cache)
    return translation is not None and translation.decoder is not None


@all_configs
@pytest.mark.parametrize("rows", [1, 3, 8, 9])
def test_the_compiled_step_equals_the_plain_step(
    make_model: Make, values: dict[str, object], rows: int
) -> None:
    model = make_model(**values)
    for kind in ("growing", "static", "sliding"):
        got, cache = decode_steps(model, rows, kind=kind)
        expected, other = decode_steps(model, rows, kind=kind, plain=True)
        assert is_compiled(cache) and not is_compiled(other)
        assert cache.length == other.length == 11
        assert_close(got, expected, 1e-5)


@all_configs
@pytest.mark.parametrize("rows", [2, 10])
def test_bf16_rounding_errors_are_at_most_those_of_the_plain_step(
    make_model: Make, values: dict[str, object], rows: int
) -> None:
    model = make_model(**values)
    exact, _ = decode_steps(model, rows, plain=True)
    model.bfloat16()
    got, cache = decode_steps(model, rows)
    expected, _ = decode_steps(model, rows, plain=True)
    assert is_compiled(cache) and got.dtype is torch.bfloat16
    distance = [float((x.float() - exact).abs().mean()) for x in (got, expected)]
    assert distance[0] <= 1.2 * distance[1]  # it rounds less often


@all_configs
def test_weights_in_blocks_equal_their_dequantized_weights(
    make_model: Make, values: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**values)
    rounded = copy.deepcopy(model)
    to_blocks(model)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, BlockWeight):
                owner, _, _ = name.rpartition(".")
                rounded.get_submodule(owner).weight.copy_(module.dequantize())
    got, cache = decode_steps(model, 2)
    expected, _ = decode_steps(rounded, 2, plain=True)
    assert is_compiled(cache)
    assert_close(got, expected, 1e-3)
    monkeypatch.setattr(layers, "MIN_WEIGHTS", 0)
    with torch.no_grad():
        assert_close(model.lm_head(got[:, -1]), rounded.lm_head(expected[:, -1]), 1e-3)


@all_configs
@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize("stored", STORED, ids=str)
def test_weights_in_16_bits_are_not_rounded_further(
    make_model: Make, values: dict[str, object], rows: int, stored: torch.dtype
) -> None:
    model = make_model(**values)
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for module in rounded.modules():
            if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
                module.weight.copy_(module.weight.to(stored))
    replace_matrices(model, lambda matrix: HalfWeight(matrix.to(stored), torch.float32))
    got, cache = decode_steps(model, rows)
    expected, _ = decode_steps(rounded, rows, plain=True)
    assert is_compiled(cache) and got.dtype is torch.float32
    assert_close(got, expected, 1e-5)


@pytest.mark.parametrize("width", [32, 40])
@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize(
    "name",
    [
        "RMS, rotary, gated SiLU, shared keys",
        "parallel with two norms, GELU, ALiBi",
        "encoder-decoder, post",
    ],
)
def test_blocks_of_both_kinds_stand_beside_other_matrices(
    make_model: Make, name: str, rows: int, width: int
) -> None:
    model = make_model(**CONFIGS[name], d_model=width, d_ff=2 * width)
    rounded = copy.deepcopy(model)
    layers_of = [(n, m) for n, m in model.named_modules() if isinstance(m, Linear)]
    with torch.no_grad():
        for number, (name_of_layer, layer) in enumerate(layers_of):
            if number % 5 == 4:
                continue
            weight = BlockWeight.quantize(layer.weight.detach(), 8 if number % 2 else 4)
            rounded.get_submodule(name_of_layer).weight.copy_(weight.dequantize())
            del layer.weight
            layer.weight = weight  # type: ignore[assignment]
    got, cache = decode_steps(model, rows)
    expected, _ = decode_steps(rounded, rows, plain=True)
    assert is_compiled(cache)
    assert_close(got, expected, 1e-3)


@all_configs
@pytest.mark.parametrize("beams", [1, 3])
def test_errors_of_many_rows_in_blocks_are_those_of_the_plain_step(
    make_model: Make, values: dict[str, object], beams: int
) -> None:
    model = make_model(**values)
    if beams > 1 and not model.config.encoder_layers:
        pytest.skip("only a memory is shared by beams")
    exact, _ = decode_steps(model, 12 // beams, beams=beams, plain=True)
    to_blocks(model.bfloat16())
    got, cache = decode_steps(model, 12 // beams, beams=beams)
    expected, _ = decode_steps(model, 12 // beams, beams=beams, plain=True)
    assert is_compiled(cache) and got.dtype is torch.bfloat16
    distance = [float((x.float() - exact).abs().mean()) for x in (got, expected)]
    assert distance[0] <= 1.3 * distance[1]


@all_configs
def test_steps_have_the_same_bits_on_any_number_of_threads(
    make_model: Make, values: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**values)
    to_blocks(model)
    config = model.config
    source = Inputs(torch.randint(3, config.vocab_size, (3, 7)))
    tokens = torch.randint(3, config.output_vocab_size, (3, 9))
    cache = model.new_cache("growing", capacity=20, rollback=2)

    def states(numbers: list[int]) -> Tensor:
        """The states of four tokens after the prompt, with these numbers of threads in turn."""
        threads = itertools.cycle(numbers)
        monkeypatch.setattr(thread_pool, "thread_count", lambda: next(threads))
        copied = copy.deepcopy(cache)
        steps = [model.decode(Inputs(tokens[:, t : t + 1]), memory, copied) for t in range(5, 9)]
        assert is_compiled(copied)
        return torch.cat(steps, 1)

    with torch.no_grad():
        memory = model.encode(source) if config.encoder_layers else None
        model.decode(Inputs(tokens[:, :5]), memory, cache)
        expected = states([1])
        for numbers in ([2], [3], [2, 1, 1, 3]):
            assert torch.equal(states(numbers), expected)


@torch.no_grad()
def test_int8_weights_without_blocks_use_the_plain_step(make_model: Make) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    quantize_blocks(model)
    for rows in (1, 12):
        got, cache = decode_steps(model, rows)
        assert not is_compiled(cache)
        assert torch.equal(got, decode_steps(model, rows, plain=True)[0])


def to_blocks(model: Transformer) -> None:
    """Quantize the weights of linear layers, embeddings and heads."""
    replace_matrices(model, lambda matrix: BlockWeight.quantize(matrix, 8))


def replace_matrices(model: Transformer, new: Callable[[Tensor], QuantizedWeight]) -> None:
    """Replace the weights of linear layers, embeddings and heads; tied weights remain tied."""
    made: dict[nn.Parameter, QuantizedWeight] = {}
    for module in model.modules():
        if isinstance(module, Linear | TokenEmbedding | LanguageModelHead):
            weight = module.weight
            made.setdefault(weight, new(weight.detach()))
            del module.weight
            module.weight = made[weight]


@pytest.mark.parametrize(
    "name", ["learned, tanh-GELU, biases", "relative offsets", "encoder-decoder, post"]
)
def test_padding_is_ignored(make_model: Make, name: str) -> None:
    model = make_model(**CONFIGS[name])
    attend = torch.tensor(
        [[True] * 5, [True, True, True, False, False], [False, True, True, True, False]]
    )
    got, cache = decode_steps(model, 3, attend)
    expected, _ = decode_steps(model, 3, attend, plain=True)
    assert is_compiled(cache)
    assert_close(got, expected, 1e-5)


@pytest.mark.parametrize("name", ["encoder-decoder, post", "encoder-decoder, pre, relative"])
def test_reordered_beams_share_a_memory(make_model: Make, name: str) -> None:
    model = make_model(**CONFIGS[name])
    got, cache = decode_steps(model, 2, beams=2)
    expected, _ = decode_steps(model, 2, beams=2, plain=True)
    assert is_compiled(cache)
    assert_close(got, expected, 1e-5)


@torch.no_grad()
def test_normed_keys_of_a_long_memory_are_read(make_model: Make) -> None:
    """From 64 tokens on, keys and values are projected together: a norm of the keys separates their
    layouts.
    """
    model = make_model(qk_norm="head", d_model=512, n_heads=8, d_ff=512)
    source, real = torch.randint(3, 29, (3, 30)), torch.arange(30) < torch.tensor([[30], [20], [9]])
    memory, results = model.encode(Inputs(source, real)), []
    for threshold in (0, 10**12):
        step.MIN_WEIGHTS = threshold
        cache = model.new_cache()
        tokens = torch.arange(9).view(3, 3) + 3
        steps = [model.decode(Inputs(part), memory, cache) for part in tokens.split(1, 1)]
        results.append(torch.cat(steps, 1))
        assert is_compiled(cache) == (threshold == 0)
    assert_close(*results, 1e-4)


@torch.no_grad()
def test_an_activation_without_an_instruction_uses_the_plain_step(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    for block in model.decoder.blocks:
        block.feed_forward.sublayer.activation_name = "mish"
        block.feed_forward.sublayer.activation = nn.functional.mish
    got, cache = decode_steps(model, 1)
    assert not is_compiled(cache)
    assert torch.equal(got, decode_steps(model, 1, plain=True)[0])


def test_rows_can_be_removed_between_steps(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the last removal the rows are reordered; the step after it reads no beam index."""
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    tokens = torch.randint(3, 29, (3, 9))

    def run() -> list[Tensor]:
        with torch.no_grad():
            cache, out, indices = model.new_cache(), [], []
            model.decode(Inputs(tokens[:, :5]), None, cache)
            for t, rows in ((5, [0, 1, 2]), (6, [0, 2]), (7, [0, 2]), (8, [2])):
                if t in (6, 8):
                    keep = torch.tensor([0, 2] if t == 6 else [0])
                    cache.select(keep, keep)
                if t == 7:
                    cache.reorder(torch.tensor([1, 0]))
                    # Kept alive, so that an error reads no freed memory.
                    indices.append(cache.row_order)
                out.append(model.decode(Inputs(tokens[rows, t : t + 1]), None, cache))
        return out

    got = run()
    monkeypatch.setattr(step, "MIN_WEIGHTS", 10**12)
    for one, other in zip(got, run(), strict=True):
        assert_close(one, other, 1e-5)


def test_score_biases_are_those_of_the_stored_keys(make_model: Make) -> None:
    """A sliding cache evicts keys, and the bias has one value per token that was read."""
    model = make_model(**CONFIGS["relative offsets"], sliding_window=4)
    got, cache = decode_steps(model, 2, kind="sliding")
    expected, _ = decode_steps(model, 2, kind="sliding", plain=True)
    assert is_compiled(cache) and cache.layers[0].past.evicted
    assert_close(got, expected, 1e-5)


def test_unsupported_cases_use_the_plain_step(make_model: Make) -> None:
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    calls: list[int] = []
    hook = model.decoder.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    decode_steps(model, 1)
    assert len(calls) == 7  # of the prompt, and of each step
    hook.remove()
    with capture(model, "pattern") as seen:
        decode_steps(model, 1)
    assert len(seen) == 2  # captured activations are complete
    windows = make_model(**CONFIGS["windows in two of three layers"])
    attend = torch.tensor([[True] * 5, [True, True, True, False, False]])
    got, _ = decode_steps(windows, 2, attend)
    expected, _ = decode_steps(windows, 2, attend, plain=True)
    assert torch.equal(got, expected)
    cache = model.new_cache()
    model.decode(Inputs(torch.tensor([[3, 4]])), None, cache)
    assert model.decode(Inputs(torch.tensor([[5]])), None, cache).requires_grad  # gradients flow

    class Other(Linear):
        pass

    model.decoder.blocks[1].feed_forward.sublayer.in_proj = Other(16, 24)
    assert not is_compiled(decode_steps(model, 1)[1])


@torch.no_grad()
def test_many_rows_in_automatic_casts_use_the_plain_step(make_model: Make) -> None:
    """There, a library returns another type than that of the weights."""
    model = make_model(**CONFIGS["learned, tanh-GELU, biases"])
    rows = instruction.FEW_ROWS + 1
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_compiled(decode_steps(model, rows)[1])
    assert is_compiled(decode_steps(model, rows)[1])


def test_a_small_stack_uses_the_plain_step(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MIN_WEIGHTS", 4 * 10**6)
    assert not is_compiled(decode_steps(make_model(**CONFIGS["learned, tanh-GELU, biases"]), 1)[1])


def test_a_fully_masked_row_gives_finite_results(
    make_model: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(**CONFIGS["encoder-decoder, post"])
    source = torch.randint(3, 29, (2, 4))
    with torch.no_grad():
        memory = model.encode(Inputs(source))
        blind = Memory(memory.hidden, torch.tensor([[True] * 4, [False] * 4]))
        found = []
        for minimum in (0, 10**12):
            monkeypatch.setattr(step, "MIN_WEIGHTS", minimum)
            cache = model.new_cache()
            model.decode(Inputs(torch.tensor([[1, 5], [1, 5]])), blind, cache)
            found.append(model.decode(Inputs(torch.tensor([[6], [6]])), blind, cache))
    assert bool(found[0].isfinite().all())
    assert_close(*found, 1e-5)


# --- generation -----------------------------------------------------------------------------------

MODELS: dict[str, dict[str, object]] = {
    "decoder": {"shape": "decoder", "positions": "rotary", "norm_placement": "pre"},
    "encoder-decoder": {},
}
SEARCHES: dict[str, dict[str, object]] = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "groups of beams": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "sampling": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "sliding cache": {"cache": "sliding", "num_beams": 2},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("shape", MODELS)
def test_compiled_steps_generate_the_same_tokens(
    shape: str, search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    sizes = {
        "vocab_size": 41,
        "max_positions": 60,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "d_ff": 48,
    }
    model = randomize(Transformer(ModelConfig.parse(sizes | MODELS[shape])).eval(), 0.4)
    inputs = Inputs(
        torch.randint(3, 41, (2, 7)), torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    )
    config = GenerationConfig.parse(SEARCHES[search] | {"max_new_tokens": 14})
    runs: list[bool] = []
    run = step.CompiledDecoder.run
    monkeypatch.setattr(
        step.CompiledDecoder, "run", lambda self, *args: runs.append(True) or run(self, *args)
    )

    def generate(minimum: int) -> list[list[Hypothesis]]:
        monkeypatch.setattr(step, "MIN_WEIGHTS", minimum)
        return generate_tokens(model, inputs, config)

    plain = generate(10**12)
    assert not runs
    compiled = generate(0)
    assert runs
    for got, expected in zip(compiled, plain, strict=True):
        assert [output.tokens for output in got] == [output.tokens for output in expected]
        assert [output.score for output in got] == pytest.approx(
            [o.score for o in expected], abs=1e-4
        )
