"""Frozen parameters keep their bits; rates decay from layer to layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.train.optimizer_oracles import CONFIG, draw_gradients
from tests.train.runs import TINY, values_of

from trifold.errors import DataError, SettingsError
from trifold.hub import load_model
from trifold.nn import ModelConfig, Transformer
from trifold.nn.lora import AdaptedLinear, LoRASettings
from trifold.recipe import TrainSettings, load_recipe
from trifold.train import checkpoint
from trifold.train.data import load_data
from trifold.train.device import Machine
from trifold.train.flat_weights import FlatWeights
from trifold.train.initial_weights import new_model
from trifold.train.memory import estimate_memory
from trifold.train.monitor import View
from trifold.train.optimizers import STATE_KINDS, create_optimizer
from trifold.train.parameters import add_adapters, count_trained, freeze, rate_factors
from trifold.train.trainer import Trainer

FROZEN = ["encoder_embeddings", "encoder.blocks.[0-3]", "*.final_norm.bias"]


def is_frozen(name):
    return name.startswith(("encoder_embeddings.", "encoder.blocks.")) or name.endswith(
        "final_norm.bias"
    )


@pytest.mark.parametrize(("dtype", "workers"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_frozen_parameters_keep_their_bits(tmp_path, dtype, workers):
    recipe = load_recipe(
        "smoke", TINY | {"train.freeze": FROZEN, "train.ema": 0.5, "model.norm_placement": "pre"}
    )
    data = load_data(recipe, tmp_path, View())
    before = {name: p.detach().clone() for name, p in new_model(data).named_parameters()}
    trainer = Trainer(
        new_model(data), data.objective, recipe.train, Machine(torch.device("cpu"), dtype, workers)
    )
    for step in (1, 2):
        trainer.update(
            [data.objective.batch(data.train, np.arange(a, a + 9)) for a in (0, 9, 18)], step
        )
    trainer.close()
    weights, state = trainer.state()
    assert weights.keys() == trainer.evaluation_weights().keys() == before.keys()
    for name, value in weights.items():
        assert torch.equal(value, before[name]) == is_frozen(name), name
        assert (f"exp_avg.{name}" in state) != is_frozen(name)
    assert f"({trainer.weights.master.numel():,} trained)" in str(trainer)
    restored = Trainer(new_model(data), data.objective, recipe.train, trainer.machine)
    shifted = {name: value + 1 for name, value in weights.items()}
    restored.restore(shifted, state)
    for model in restored._replicas:
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, shifted[name].to(dtype)), name
    restored.close()


@pytest.mark.slow
def test_resumed_run_with_frozen_parts_equals_an_uninterrupted_one(assert_resumable, tmp_path):
    assert_resumable([4], train__freeze=FROZEN, train__layer_decay=0.5, model__norm_placement="pre")
    last = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    weights = checkpoint.load(last).weights
    model, _ = load_model(tmp_path / "run" / "model")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]) or not is_frozen(name)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "encoder_embedings",
            "no part of the model matches 'encoder_embedings'; did you mean 'encoder_embeddings'?",
        ),
        ("xyz", "no part of the model matches 'xyz'; known names: 0, "),
        ("*", "no parameter is left to train"),
    ],
)
def test_patterns_without_effect_are_rejected(pattern, message):
    with pytest.raises(SettingsError) as error:
        freeze(
            Transformer(ModelConfig(d_model=8, n_heads=2, n_layers=1, d_ff=8, vocab_size=9)),
            [pattern],
        )
    assert message in str(error.value)


def test_frozen_parameters_need_neither_gradients_nor_optimizer_state():
    settings = TrainSettings.parse({"freeze": ["decoder.blocks.*.feed_forward"]})
    machine = Machine(torch.device("cpu"), torch.float32, 1)
    whole, part = (
        estimate_memory(each, 100, CONFIG, 8, machine)[0] for each in (TrainSettings(), settings)
    )
    count = Transformer(CONFIG).count_parameters()
    share = count_trained(CONFIG, settings) / count
    assert 0.4 < share < 0.8
    assert part.gradients / whole.gradients == part.optimizer / whole.optimizer == share
    assert part.weights == whole.weights


# --- layer-wise decay -----------------------------------------------------------------------------


def test_rates_decay_from_the_last_layer_to_the_embeddings():
    factors = rate_factors(Transformer(CONFIG), 0.5)
    for name, _ in Transformer(CONFIG).named_parameters():
        part = next(
            p for p in ("embeddings", "blocks.0", "blocks.1", "final_norm", "lm_head") if p in name
        )
        expected = {"embeddings": 0.125, "blocks.0": 0.25, "blocks.1": 0.5}.get(part, 1.0)
        assert factors.get(name, 1.0) == expected, name
    assert rate_factors(Transformer(CONFIG), 1.0) == {}


def test_shared_blocks_have_the_rate_of_their_last_layer_and_stacks_their_own_depth():
    sizes = {"d_model": 8, "n_heads": 2, "d_ff": 8, "vocab_size": 9}
    shared = ModelConfig.parse(
        sizes | {"shape": "encoder", "n_layers": 3, "block_of_layer": [0, 1, 0]}
    )
    factors = rate_factors(Transformer(shared), 0.5)
    name = "encoder.blocks.{}.feed_forward.sublayer.in_proj.weight"
    assert (factors[name.format(0)], factors[name.format(1)]) == (0.5, 0.25)
    both = rate_factors(
        Transformer(ModelConfig.parse(sizes | {"n_layers": 3, "n_decoder_layers": 1})), 0.5
    )
    assert both[name.format(0)] == 0.125
    assert both[name.format(0).replace("encoder", "decoder")] == 0.5


@pytest.mark.parametrize("optimizer", STATE_KINDS)
def test_a_factor_scales_the_rate_of_its_parameter_alone(optimizer):
    settings = TrainSettings.parse(
        {"optimizer": optimizer, "learning_rate": 0.01, "weight_decay": 0.1}
    )

    def moved(rate, factors):
        torch.manual_seed(3)
        weights = FlatWeights(Transformer(CONFIG), torch.float32)
        weights.factors = factors
        used = create_optimizer(weights, settings)
        for gradient in draw_gradients(weights, 2):
            used.step(gradient, rate)
        return weights.named(weights.master)

    names = FlatWeights(Transformer(CONFIG), torch.float32).names
    mixed = moved(0.01, dict.fromkeys(names[::2], 0.5))
    alone = moved(0.005, {}), moved(0.01, {})
    for number, name in enumerate(names):
        torch.testing.assert_close(mixed[name], alone[number % 2][name], rtol=1e-6, atol=1e-7)
        assert not torch.equal(mixed[name], alone[1 - number % 2][name]) or not mixed[name].any()


def test_muon_needs_a_parameter_for_adam():
    weights = Transformer(CONFIG)
    for name, parameter in weights.named_parameters():
        parameter.requires_grad_(".blocks." in name and name.endswith("q_proj.weight"))
    with pytest.raises(
        SettingsError, match="muon needs a trained parameter that is not a matrix of a layer"
    ):
        create_optimizer(
            FlatWeights(weights, torch.float32), TrainSettings.parse({"optimizer": "muon"})
        )


# --- adapters -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"int8": True, "dora": True},
        {"dora": True, "rslora": True, "targets": ["feed_forward", "cross_attention"]},
    ],
)
def test_resumed_run_with_adapters_equals_an_uninterrupted_one(
    run, assert_resumable, tmp_path, kind
):
    start = str(run("base", train__steps=3, train__warmup=1, model__positions="learned").folder)
    changes = {
        "train__lora": {"rank": 2, "dropout": 0.1} | kind,
        "train__workers": 2,
        "train__ema": 0.5,
    }
    changes |= {
        "model__positions": "learned",
        "train__precision": "bfloat16" if "int8" in kind else "float32",
    }
    assert_resumable([4], start_from=start, **changes)
    last = checkpoint.load(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    base, model, adapter = (
        dict(load_model(tmp_path / folder)[0].named_parameters())
        for folder in ("base/model", "run/model", "run/adapter")
    )
    int8 = {
        name
        for name in base
        if ".blocks." in name and name.endswith("_proj.weight") and "int8" in kind
    }
    for name, parameter in base.items():
        assert name in int8 or torch.equal(last.weights[name], parameter)  # frozen
    assert not int8 & last.weights.keys()
    changed = {name for name in base.keys() - int8 if not torch.equal(base[name], model[name])}
    assert (
        changed
        == {n.replace("lora_B", "weight") for n in last.weights if n.endswith("lora_B")} - int8
    )
    for name, parameter in model.items():
        torch.testing.assert_close(
            adapter[name], parameter, rtol=0, atol=0.02 if name in int8 else 1e-6
        )
    assert {name.partition(".")[0] for name in last.optimizer} <= {
        "exp_avg",
        "exp_avg_sq",
        "step",
        "ema",
    }
    assert all(".lora_" in name for name in last.optimizer if name != "step")


@pytest.mark.slow
def test_adapters_of_int8_weights_learn_like_those_of_the_original_ones(run, tmp_path):
    wide = {"model__positions": "learned", "model__d_model": 64, "model__dropout": 0.0}
    wide["start_from"] = str(run("base", train__steps=12, **wide).folder)
    losses = {}
    for int8 in (False, True):
        lora = {"rank": 4, "int8": int8, "targets": ["*_proj"]}
        folder = run(str(int8), **wide, train__lora=lora, train__learning_rate=0.01).folder
        losses[int8] = [loss for _, loss in values_of(folder, "train/loss")]
    assert losses[False][-1] < losses[False][0] - 0.1
    assert losses[True] == pytest.approx(losses[False], rel=0.05) and losses[True] != losses[False]
    assert losses[True][0] == pytest.approx(losses[False][0], rel=0.002)
    with (tmp_path / "base" / "model" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    with pytest.raises(DataError, match=r"model\.safetensors: the content has changed"):
        run(
            "True",
            **wide,
            train__lora=lora,
            train__learning_rate=0.01,
            train__steps=14,
            resume="auto",
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__lora": {}}, "train.lora: adapters need a base model; set start_from"),
        (
            {"train__lora": {"targets": ["query"]}, "start_from": "BASE"},
            "train.lora.targets: no part of the model",
        ),
        ({"train__lora": {"rank": 0}, "start_from": "BASE"}, "train.lora.rank: "),
    ],
)
def test_adapters_without_effect_are_rejected(run, tmp_path, changes, message):
    if "start_from" in changes:
        changes = changes | {"start_from": str(run("base", train__steps=1, train__warmup=0).folder)}
    with pytest.raises(SettingsError, match=message):
        run(**changes)


def test_adapters_and_new_heads_are_all_that_is_trained():
    model = Transformer(CONFIG)
    add_adapters(model, LoRASettings(rank=2, targets=("q_proj",)), {"lm_head.weight"})
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    part = "decoder.blocks.{}.self_attention.sublayer.q_proj.lora_{}"
    assert trained == {
        "lm_head.weight",
        *(part.format(block, name) for block in (0, 1) for name in "AB"),
    }
    settings = TrainSettings.parse({"lora": {"rank": 2, "targets": ["q_proj"]}})
    assert count_trained(CONFIG, settings) == 2 * 2 * (8 + 8)


@pytest.mark.parametrize("latent", [None, {"width": 6, "d_rotary": 4, "d_value": 4}])
def test_the_default_targets_are_those_of_the_attention(latent):
    model = Transformer(
        ModelConfig.parse(CONFIG.model_dump() | {"positions": "rotary", "latent": latent})
    )
    add_adapters(model, LoRASettings(), ())
    adapted = {
        name.split(".")[-1]
        for name, part in model.named_modules()
        if isinstance(part, AdaptedLinear)
    }
    assert adapted == {"q_proj", "kv_down" if latent else "v_proj"}
