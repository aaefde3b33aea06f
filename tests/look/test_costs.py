"""Costs by formula against costs that were measured."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trifold.look.costs import count_parameters, forward_flops, inference_memory
from trifold.nn import Inputs, ModelConfig, Transformer
from trifold.nn.losses import linear_cross_entropy
from trifold.recipe import TrainSettings
from trifold.train.device import Machine
from trifold.train.memory import TrainingMemory, estimate_memory, saved_elements

pytestmark = pytest.mark.slow

SMALL = {"vocab_size": 100, "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 160, "max_positions": 64}
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
    {"activation_dropout": 0.1},
    {"activation": "gelu", "activation_dropout": 0.1},
    {"gated": True, "activation": "relu", "activation_dropout": 0.1},
    {"target_vocab_size": 70, "tie_lm_head": False, "lm_head_bias": True},
]


@pytest.fixture(params=VARIANTS, ids=str)
def config(request):
    return ModelConfig(**{**SMALL, **request.param})


def hidden(model: Transformer, source: Inputs, target: Inputs) -> torch.Tensor:
    if model.config.shape == "encoder-decoder":
        return model(source, target)
    return model(source if model.config.shape == "encoder" else target)


@pytest.mark.parametrize(("source_length", "target_length"), [(7, 7), (20, 11), (1, 30)])
def test_flops_equal_the_measured_count(config, source_length, target_length):
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


def test_flops_of_a_masked_language_model():
    config = ModelConfig(
        **SMALL,
        shape="encoder",
        heads=("lm",),
        lm_head_transform="gelu",
        d_embedding=16,
        block_of_layer=(0, 0),
    )
    with torch.device("meta"):
        model, tokens = Transformer(config).eval(), Inputs(torch.zeros(3, 9, dtype=torch.long))
        with FlopCounterMode(display=False) as counter:
            model.lm_head(model(tokens))
    assert counter.get_total_flops() == 3 * 9 * forward_flops(config, 9, 9).source


def test_flops_of_pictures():
    """Four tokens: three patches, which a matrix makes, and the class token, which is a parameter."""
    sizes = {key: SMALL[key] for key in ("d_model", "n_layers", "n_heads", "d_ff")}
    config = ModelConfig(
        **sizes,
        shape="encoder",
        positions="learned",
        image_size=(4, 18),
        patch_size=(4, 6),
        n_channels=3,
        max_positions=4,
    )
    with torch.device("meta"):
        model, pixels = Transformer(config).eval(), Inputs(pixels=torch.zeros(5, 3, 4, 18))
        with FlopCounterMode(display=False) as counter:
            model(pixels)
    assert counter.get_total_flops() == 5 * 4 * forward_flops(config, 4, 4).source


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activations_are_those_that_autograd_keeps(config, dropout):
    rows, length = 40, 24
    config = config.model_copy(update={"dropout": dropout})
    model = Transformer(config).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    tokens = torch.randint(4, 70, (rows, length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = hidden(model, Inputs(tokens), Inputs(tokens)).flatten(0, 1)
        if model.lm_head is not None:
            linear_cross_entropy(states, model.lm_head.weight, model.lm_head.bias, tokens.flatten(), 0.1)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * saved_elements(config, rows * length, length) == pytest.approx(measured, rel=0.06)


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
        sized = config.decoder_side
        none = torch.zeros(1, sized.kv_heads, 0, sized.head_width)
        keys, values = layer.own.update(none, none)
        assert keys.shape == (1, sized.kv_heads, 9, sized.head_width)
        per_token += (keys.nbytes + values.nbytes) // 9
    assert inference_memory(config).cache_per_target_token == per_token
    assert inference_memory(config, "bfloat16").cache_per_target_token == per_token // 2
    assert (inference_memory(config).cache_per_source_token > 0) == (memory is not None)


def test_training_holds_weights_gradients_two_averages_and_a_model_to_validate(config):
    parameters = count_parameters(config)

    def estimate(dtype: torch.dtype = torch.float32, workers: int = 1, device: str = "cpu") -> TrainingMemory:
        machine = Machine(torch.device(device), dtype, workers)
        return estimate_memory(TrainSettings(), 100, config, 10, machine)[0]

    memory = estimate()
    assert memory[:4] == (4 * parameters, 8 * parameters, 8 * parameters, 8 * parameters)
    assert memory.total == sum(memory)
    assert estimate(workers=2).gradients == 12 * parameters
    assert estimate(device="cuda").runtime == 0
    assert estimate(torch.bfloat16).weights == 6 * parameters


def test_long_sequences_keep_no_weights():
    config = ModelConfig(**SMALL)
    per_token = [saved_elements(config, 1, length) for length in (64, 128, 129, 4096)]
    assert per_token[0] < per_token[1] > per_token[2] == per_token[3]
