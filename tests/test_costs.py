"""Parameters, FLOPs and memory by formula equal those that are counted and measured."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.flop_counter import FlopCounterMode

from trifold import fast
from trifold.costs import (
    LETTERS,
    attention_matrices,
    cached_elements,
    count_parameters,
    forward_flops,
    inference_memory,
    parameter_table,
    position_table,
)
from trifold.errors import SettingsError
from trifold.fast import compiled_loops
from trifold.fast.sparse import sparse_attend
from trifold.hub.presets import PRESETS as PUBLISHED
from trifold.nn import PRESETS, Inputs, ModelConfig, Transformer, ops
from trifold.nn.losses import linear_cross_entropy
from trifold.nn.masks import Mask
from trifold.nn.packing import Packing
from trifold.nn.variants.recurrence import Segment
from trifold.nn.variants.sparse_blocks import BlockSparse
from trifold.nn.variants.windows import Window
from trifold.recipe import TrainSettings
from trifold.train.device import Machine
from trifold.train.memory import TrainingMemory, estimate_memory, saved_elements

slow = pytest.mark.slow

# --- parameters -----------------------------------------------------------------------------------


EXPERTS = {"count": 6, "per_token": 2, "d_ff": 7}
LATENT = {"width": 10, "d_rotary": 4, "d_value": 6}
PARTS = [
    {"qk_norm": "head"}, {"qk_norm": "width", "attention_sinks": True}, {"norm": "rms", "norm_weight": "none"},
    {"norm_placement": "exit"}, {"first_norm": False}, {"experts": EXPERTS}, {"latent": LATENT},
    {"experts": EXPERTS | {"shared": 2, "bias": True, "correction": True, "dense_layers": 1}},
    {"latent": LATENT | {"query_width": 9}, "norm": "rms", "norm_weight": "plus-one"},
    {"sliding_window": 4, "global_tokens": "first"}, {"sparse_blocks": {"size": 4}},
    {"sliding_window": 4, "global_tokens": "first", "global_projections": True},
    {"recurrence": {"size": 4, "reach": 2}}, {"convolution": {"kernel": 5, "groups": 2}},
]  # fmt: skip
SEQUENTIAL = {"experts", "latent", "norm_placement", "first_norm"}


def test_every_letter_of_a_formula_has_a_meaning():
    configs = [*PRESETS.values(), *(preset.config for preset in PUBLISHED.values())]
    formulas = {row.formula for config in configs for row in parameter_table(config)}
    assert set(re.findall(r"[A-Z]", "".join(formulas))) <= set(LETTERS)


@st.composite
def configs(draw):
    heads = draw(st.sampled_from([2, 4]))
    values = {
        "shape": draw(st.sampled_from(["encoder-decoder", "encoder", "decoder"])),
        "vocab_size": draw(st.integers(10, 40)),
        "target_vocab_size": draw(st.sampled_from([None, 23])),
        "max_positions": 16,
        "d_model": 8 * heads,
        "n_layers": draw(st.integers(1, 3)),
        "n_decoder_layers": draw(st.sampled_from([None, 1])),
        "n_heads": heads,
        "n_kv_heads": draw(st.sampled_from([None, 1, 2])),
        "d_head": draw(st.sampled_from([None, 6])),
        "d_ff": draw(st.integers(5, 30)),
        "positions": draw(st.sampled_from(["sinusoidal", "learned", "rotary", "relative", "none"])),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_bias": draw(st.booleans()),
        "norm_placement": draw(st.sampled_from(["post", "pre", "sandwich"])),
        "encoder_final_norm": draw(st.sampled_from([None, True, False])),
        "embedding_norm": draw(st.booleans()),
        "n_token_types": draw(st.sampled_from([0, 2])),
        "gated": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "attention_out_bias": draw(st.sampled_from([None, True, False])),
        "feed_forward_bias": draw(st.booleans()),
        "tie_lm_head": draw(st.booleans()),
        "lm_head_bias": draw(st.booleans()),
        "n_labels": 3,
    }
    if values["shape"] == "encoder":
        values["heads"] = ("lm", "pooler", "next-sentence", "sequence", "token", "span", "boundary")
        values["transform_bias"] = draw(st.booleans())
        values["lm_head_transform"] = draw(st.sampled_from([None, "gelu"]))
        values["classifier_transform"] = draw(st.sampled_from([None, "tanh"]))
        widths = (
            [4, values["d_model"], None]
            if values["lm_head_transform"]
            else [values["d_model"], None]
        )
        values["d_embedding"] = draw(st.sampled_from(widths))
    if values["shape"] == "encoder-decoder":
        values["d_decoder_ff"] = draw(st.sampled_from([None, 9]))
        if draw(st.booleans()):
            values |= {"d_decoder": 12, "d_decoder_head": draw(st.sampled_from([None, 4]))}
            values |= {"n_decoder_heads": draw(st.sampled_from([None, 2])), "n_decoder_kv_heads": 2}
            values |= draw(st.sampled_from([{"target_vocab_size": 23}, {"d_embedding": 12}]))
    elif values["norm_placement"] == "pre":
        values["residual"] = draw(st.sampled_from(["sequential", "parallel", "parallel-two-norms"]))
    if values["n_decoder_layers"] is None:
        values["block_of_layer"] = draw(st.sampled_from([None, (0,) * values["n_layers"]]))
    if values["shape"] == "decoder" and draw(st.booleans()):
        values |= {
            "d_embedding": draw(st.sampled_from([4, values["d_model"]])),
            "token_projection": True,
        }
    part = draw(st.sampled_from([{}, *PARTS]))
    if values.get("residual", "sequential") == "sequential" or not SEQUENTIAL & part.keys():
        values |= part
    if part.keys() & {"latent", "global_projections", "sparse_blocks", "recurrence"}:
        values |= {"n_kv_heads": None, "positions": "none"}
    if part.keys() & {"global_tokens", "sparse_blocks"} and values["shape"] == "decoder":
        values = {key: value for key, value in values.items() if key not in part}
    if "recurrence" in part and (
        values["shape"] != "decoder" or values.get("residual", "sequential") != "sequential"
    ):
        del values["recurrence"]
    if values["norm_placement"] != "pre":
        values.pop("first_norm", None)
    if (
        values["shape"] != "encoder"
        or values["norm_placement"] != "post"
        or values.get("block_of_layer")
    ):
        values.pop("convolution", None)
    if values["positions"] == "learned":
        values["position_offset"] = draw(st.sampled_from([0, 2]))
    try:
        return ModelConfig.parse(values)
    except SettingsError:  # only an encoder-decoder has a target vocabulary
        return ModelConfig.parse(values | {"target_vocab_size": None})


def built(config: ModelConfig) -> Transformer:
    """The model on the meta device."""
    with torch.device("meta"):
        return Transformer(config)


@settings(max_examples=40)
@given(configs())
def test_formulas_equal_the_parameter_counts(config):
    parts = parameter_table(config)
    assert (
        sum(part.parameters for part in parts)
        == count_parameters(config)
        == built(config).count_parameters()
    )
    assert len({part.name for part in parts}) == len(parts)
    assert all(part.formula for part in parts)


@settings(max_examples=40)
@given(configs())
def test_parts_have_the_parameters_of_their_modules(config):
    model = built(config)
    parts = {part.name: part.parameters for part in parameter_table(config)}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        for part in ("self_attention", "feed_forward"):
            sublayers = [getattr(block, part).sublayer for block in stack.blocks] if stack else []
            expected = sum(p.numel() for layer in sublayers for p in layer.parameters())
            found = parts.get(f"{side} {part.replace('_', '-')}", 0)
            assert (
                found + (parts.get(f"{side} experts", 0) if part == "feed_forward" else 0)
                == expected
            )


@pytest.mark.slow
@settings(max_examples=40)
@given(configs())
def test_attention_matrices_are_the_four_projections(config):
    attention = built(config).get_submodule(
        ("encoder" if config.encoder_layers else "decoder") + ".blocks.0.self_attention"
    )
    named = attention.sublayer.named_parameters()
    matrices = [
        p for name, p in named if p.dim() == 2 and name != "global_q_proj.weight"
    ]  # of few tokens
    assert len(matrices) == 4 + 2 * config.global_projections or config.latent is not None
    assert sum(p.numel() for p in matrices) == attention_matrices(config)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["both", "content-to-position"])
@pytest.mark.parametrize("biases", [False, True])
def test_parameters_of_disentangled_positions_and_transformed_classes(shared, kind, biases):
    config = ModelConfig(
        shape="encoder", d_model=16, n_heads=2, n_layers=3, positions="disentangled", learned_positions=biases,
        relative_scores=kind, relative_shared=shared, relative_norm=biases, attention_bias=biases,
        heads=("sequence", "token", "span", "replaced"), classifier_transform="gelu", token_transform="relu",
        transform_norm=biases, transform_bias=biases, n_labels=5,
    )  # fmt: skip
    parts = {part.name: part.parameters for part in parameter_table(config)}
    assert count_parameters(config) == built(config).count_parameters()
    assert parts["encoder relative vectors"] == 32 * 16 + 32 * biases
    each = 3 * (1 + (kind == "both")) * (16 * 16 + 16 * biases)
    assert parts.get("encoder relative scores", 0) == (0 if shared else each)


@pytest.mark.parametrize("placement", ["post", "sandwich"])
@pytest.mark.parametrize("gated", [False, True])
def test_parameters_and_flops_of_a_layer_before_spans(placement, gated):
    config = ModelConfig(
        **SIZES,
        shape="encoder",
        norm_placement=placement,
        gated=gated,
        heads=("span",),
        span_layer=True,
    )
    assert count_parameters(config) == built(config).count_parameters()
    without = config.model_copy(update={"span_layer": False})
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(config).heads["span"].layer(torch.zeros(1, 9, config.d_model))
    assert counter.get_total_flops() == 9 * (
        forward_flops(config, 9, 9).source - forward_flops(without, 9, 9).source
    )


def test_parameters_of_image_models():
    config = ModelConfig(
        shape="encoder", d_model=16, n_heads=2, image_size=(8, 8), patch_size=(4, 2), max_positions=9,
        positions="learned", heads=("sequence",), n_labels=7, norm_placement="pre",
    )  # fmt: skip
    assert count_parameters(config) == built(config).count_parameters()


@pytest.mark.parametrize("preset", ["transformer-base", "transformer-big"])
def test_the_formula_counts_the_presets(preset):
    assert count_parameters(PRESETS[preset]) == built(PRESETS[preset]).count_parameters()


# --- FLOPs and memory -----------------------------------------------------------------------------

SIZES = {
    "vocab_size": 100,
    "d_model": 64,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 160,
    "max_positions": 64,
}
VARIANTS = [
    {},
    {"shape": "encoder"},
    {"shape": "decoder"},
    {"norm_placement": "pre"},
    {"norm_placement": "sandwich"},
    {"n_kv_heads": 2, "n_decoder_layers": 1},
    {"d_head": 8, "activation": "gelu", "attention_bias": True},
    {"gated": True, "activation": "silu", "norm": "rms", "d_decoder_ff": 90, "n_decoder_heads": 2},
    {"shape": "decoder", "residual": "parallel", "norm_placement": "pre", "n_kv_heads": 1},
    {"shape": "decoder", "residual": "parallel-two-norms", "norm_placement": "pre"},
    {"d_decoder": 96, "n_decoder_heads": 6, "n_decoder_kv_heads": 2, "target_vocab_size": 70},
    {"d_decoder": 32, "d_decoder_head": 24, "norm_placement": "sandwich", "target_vocab_size": 70},
    {"activation_dropout": 0.1},
    {"activation": "gelu", "activation_dropout": 0.1},
    {"gated": True, "activation": "relu", "activation_dropout": 0.1},
    {"target_vocab_size": 70, "tie_lm_head": False, "lm_head_bias": True},
    {"shape": "encoder", "convolution": {"kernel": 5, "groups": 4}},
]


@pytest.fixture(params=VARIANTS, ids=str)
def config(request):
    return ModelConfig(**{**SIZES, **request.param})


def hidden(model: Transformer, source: Inputs, target: Inputs) -> torch.Tensor:
    if model.config.shape == "encoder-decoder":
        return model(source, target)
    return model(source if model.config.shape == "encoder" else target)


@slow
@pytest.mark.parametrize(("source_length", "target_length"), [(7, 7), (20, 11), (1, 30)])
def test_flops_equal_the_counted_ones(config, source_length, target_length):
    rows = 5
    with torch.device("meta"):
        model = Transformer(config).eval()
        source, target = (
            Inputs(torch.zeros(rows, n, dtype=torch.long)) for n in (source_length, target_length)
        )
        with FlopCounterMode(display=False) as counter:
            states = hidden(model, source, target)
            if model.lm_head is not None:
                model.lm_head(states)
    flops = forward_flops(config, source_length, target_length)
    expected = rows * (source_length * flops.source + target_length * flops.target)
    assert counter.get_total_flops() == expected
    assert flops.training == (3 * flops.source, 3 * flops.target)


@slow
def test_flops_of_a_masked_language_model():
    head = {"heads": ("lm",), "lm_head_transform": "gelu", "d_embedding": 16}
    config = ModelConfig(**SIZES, **head, shape="encoder", block_of_layer=(0, 0))
    with torch.device("meta"):
        model, tokens = Transformer(config).eval(), Inputs(torch.zeros(3, 9, dtype=torch.long))
        with FlopCounterMode(display=False) as counter:
            model.lm_head(model(tokens))
    assert counter.get_total_flops() == 3 * 9 * forward_flops(config, 9, 9).source


KINDS = [
    {"shape": "decoder", "attention": "elu"},
    {"shape": "decoder", "attention": "favor", "n_features": 24, "n_kv_heads": 2},
    {"attention": "elu", "target_vocab_size": 70},
    {"positions": "rotary", "latent": LATENT},
    {"shape": "decoder", "positions": "relative-sinusoidal"},
    {"shape": "encoder", "heads": ("lm",), "positions": "relative-sinusoidal", "relative_clamp": 3},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("length", [20, 64])
def test_flops_of_other_attention_equal_the_counted_ones(options, length):
    config = ModelConfig(**SIZES, **options)
    model, tokens = Transformer(config).eval(), Inputs(torch.zeros(3, length, dtype=torch.long))
    with fast.disabled(), FlopCounterMode(display=False) as counter:
        model.lm_head(hidden(model, tokens, tokens))
    expected = 3 * length * sum(forward_flops(config, length, length))
    if (
        config.positions == "relative-sinusoidal"
    ):  # a batch projects the distances once, which is not counted
        distances = min(2 * length - 1, 2 * (config.relative_clamp or length) + 1)
        expected += 2 * config.n_layers * distances * config.d_model**2
    assert counter.get_total_flops() == expected


def test_every_token_is_cached_with_recurrence_and_every_source_token_in_cross_attention():
    recurrent = ModelConfig(
        **SIZES, shape="decoder", positions="none", recurrence={"size": 4, "reach": 2}
    )
    model = Transformer(recurrent).eval()
    cache = model.new_cache()
    model.decode(Inputs(torch.ones(1, 40, dtype=torch.long)), cache=cache)
    assert cached_elements(recurrent, 40) == 2 * sum(
        layer.past.buffers[0][:, :, : cache.length].numel() for layer in cache.layers
    )
    for options in (
        {"attention": "elu"},
        {"attention": "lsh"},
        {"positions": "rotary", "latent": LATENT},
    ):
        found = inference_memory(ModelConfig(**SIZES, **options))
        assert (
            found.cache_per_source_token
            == inference_memory(ModelConfig(**SIZES)).cache_per_source_token
        )


def test_costs_of_unequal_windows_are_the_mean_of_equal_ones():
    options = {**SIZES, "n_layers": 2, "shape": "decoder", "sliding_window": 5}
    three, five, both = (
        ModelConfig(**options | {"sliding_window": window}, window_pattern=pattern)
        for window, pattern in ((3, ("local",)), (5, ("local",)), (3, ("local", 5)))
    )
    for cost in (lambda c: forward_flops(c, 40, 40).target, lambda c: cached_elements(c, 40)):
        assert cost(both) == (cost(three) + cost(five)) / 2 < cost(five)


SPARSE = {
    "window": ({"shape": "encoder", "sliding_window": 100}, Mask(rules=(Window(100),))),
    "causal window": ({"shape": "decoder", "sliding_window": 200}, Mask(causal=True, rules=(Window(200),))),
    "segments": ({"shape": "decoder", "recurrence": {"size": 64, "reach": 32}}, Mask(causal=True, rules=(Segment(64, 32),))),
    "blocks": (
        {"shape": "encoder", "sparse_blocks": {"size": 32, "random": 2}},
        Mask(rules=(BlockSparse.of(None, 2048, 32, 2, random=2, seed=0, repeat=False),)),
    ),
}  # fmt: skip


@slow
@pytest.mark.parametrize("name", SPARSE)
def test_flops_count_the_keys_that_are_read(name):
    """Kernels read whole blocks of keys, which hold at most twice as many as a query may read."""
    (options, mask), keys = SPARSE[name], 2048
    q = torch.randn(1, 2, keys, 4)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        sparse_attend(ops.PLAIN["attend"], q, q, q, mask, None)
    config = ModelConfig(d_model=8, n_heads=2, n_layers=1, positions="none", **options)
    dense = ModelConfig(d_model=8, n_heads=2, n_layers=1, positions="none", shape=config.shape)
    per_key = 2 * 2 * config.d_model
    saved = max(forward_flops(dense, keys, keys)) - max(forward_flops(config, keys, keys))
    read, computed = keys - saved / per_key, counter.get_total_flops() / keys / per_key
    if name == "blocks":
        assert computed == pytest.approx(read, rel=0.01)
    else:
        assert read == mask.dense(keys, keys, q.device).sum(-1).max() <= computed <= 2 * read


@slow
def test_flops_of_global_projections_are_counted():
    options = {
        "shape": "encoder",
        "sliding_window": 9,
        "global_tokens": "first",
        "positions": "none",
    }
    with_own, without = (
        ModelConfig(**SIZES, **options, global_projections=own) for own in (True, False)
    )
    more = forward_flops(with_own, 40, 40).source - forward_flops(without, 40, 40).source
    assert more == 2 * 2 * (2 * 64 * 64)  # keys and values of two layers


@slow
def test_flops_of_image_models():
    """Four tokens: three patches, which are a matmul, and the class token, which is a parameter."""
    sizes = {key: SIZES[key] for key in ("d_model", "n_layers", "n_heads", "d_ff")}
    image = {"image_size": (4, 18), "patch_size": (4, 6), "n_channels": 3, "max_positions": 4}
    config = ModelConfig(**sizes, **image, shape="encoder", positions="learned")
    with torch.device("meta"):
        model, pixels = Transformer(config).eval(), Inputs(pixels=torch.zeros(5, 3, 4, 18))
        with FlopCounterMode(display=False) as counter:
            model(pixels)
    assert counter.get_total_flops() == 5 * 4 * forward_flops(config, 4, 4).source


def count_saved(config: ModelConfig, tokens: int, length: int) -> int:
    """`saved_elements` without options, on this machine."""
    compiled = compiled_loops() is not None
    return saved_elements(config, TrainSettings(), tokens, length, compiled=compiled)


@slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activation_memory_equals_the_tensors_that_autograd_saves(config, dropout):
    rows, length = 40, 24
    config = config.model_copy(update={"dropout": dropout})
    model = Transformer(config).train()
    parameters_and_buffers = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    saved: dict[int, torch.Tensor] = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters_and_buffers:
            saved[address] = tensor
        return tensor

    tokens = torch.randint(4, 70, (1, rows * length))
    inputs = Inputs(tokens, packing=Packing.of(torch.full((rows,), length), always_pad=False))
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        states = hidden(model, inputs, inputs).flatten(0, 1)
        if model.lm_head is not None:
            linear_cross_entropy(
                states, model.lm_head.weight, model.lm_head.bias, tokens.flatten(), 0.1
            )
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    found = count_saved(config, rows * length, length)
    assert 4 * found == pytest.approx(measured, rel=0.06)


@slow
def test_cache_memory_equals_the_real_size(config):
    if config.decoder_layers == 0:
        assert inference_memory(config).cache_per_target_token == 0
        return
    model, cache = Transformer(config).eval(), Transformer(config).new_cache()
    tokens = Inputs(torch.ones(1, 9, dtype=torch.long))
    with torch.no_grad():
        memory = model.encode(Inputs(torch.ones(1, 5, dtype=torch.long))) if model.encoder else None
        model.decode(tokens, memory, cache)
    per_token = 0
    for layer in cache.layers:
        side = config.decoder_side
        empty = torch.zeros(1, side.kv_heads, 0, side.head_width)
        keys, values = layer.past.update(empty, empty)
        assert keys.shape == (1, side.kv_heads, 9, side.head_width)
        per_token += (keys.nbytes + values.nbytes) // 9
    assert inference_memory(config).cache_per_target_token == per_token
    assert inference_memory(config, "bfloat16").cache_per_target_token == per_token // 2
    assert (inference_memory(config).cache_per_source_token > 0) == (memory is not None)


@slow
def test_training_memory_by_part(config):
    parameters = count_parameters(config)

    def estimate(
        dtype: torch.dtype = torch.float32, workers: int = 1, device: str = "cpu"
    ) -> TrainingMemory:
        machine = Machine(torch.device(device), dtype, workers)
        return estimate_memory(TrainSettings(), 100, config, 10, machine)[0]

    memory, table = estimate(), 32 * position_table(config)
    assert table == 32 * 64 * 64
    assert memory[:4] == (4 * parameters + table, 8 * parameters, 8 * parameters, 8 * parameters)
    assert memory.total == sum(memory)
    assert estimate(workers=2).gradients == 12 * parameters
    assert estimate(device="cuda").runtime == 0
    assert estimate(torch.bfloat16).weights == 6 * parameters + table


@slow
def test_long_sequences_save_no_attention_weights():
    config = ModelConfig(**SIZES)
    per_token = [count_saved(config, 1, length) for length in (64, 512, 513, 4096)]
    assert per_token[0] < per_token[1] > per_token[2] == per_token[3]


@slow
def test_attention_to_few_keys_saves_no_weights():
    """Blocks of queries are computed again, with dropout too."""
    encoder = ModelConfig(**SIZES, shape="encoder", attention_dropout=0.1)
    sparse = encoder.model_copy(update={"sliding_window": 100})
    plain = encoder.model_copy(update={"attention_dropout": 0.0})
    saved = [count_saved(each, 1, 4096) for each in (sparse, plain, encoder)]
    assert saved[0] == saved[1] < saved[2]
    half = sparse.model_copy(update={"window_pattern": ("local", "global")})
    assert count_saved(half, 1, 4096) - saved[0] == (saved[2] - saved[0]) / 2
