from __future__ import annotations

import pytest
import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.recipe import load_recipe
from trifold.train.device import Machine
from trifold.train.memory import TrainingMemory, check_fits, estimate_memory
from trifold.train.ranks import SINGLE, Ranks

GIB = 2**30
CPU = torch.device("cpu")
MACHINE = Machine(CPU, torch.bfloat16, workers=2)


def test_error_for_a_run_that_does_not_fit_names_three_settings():
    recipe = load_recipe("smoke")
    need = TrainingMemory(4 * GIB, 8 * GIB, 8 * GIB, 4 * GIB, 2 * GIB, 0, GIB), 2**30
    check_fits(*need, recipe, (26 * GIB, "here"))
    with pytest.raises(SettingsError) as error:
        check_fits(*need, recipe, (26 * GIB - 1, "in this container"))
    settings = ("batch.tokens=512", "model.n_layers=2", "train.workers")
    for word in ("26.00 GiB", "in this container", *settings):
        assert word in str(error.value)


def test_memory_of_a_large_model_is_estimated_without_allocating_it():
    recipe = load_recipe("smoke")
    config = ModelConfig(d_model=1024, n_layers=6, n_heads=16, d_ff=4096, vocab_size=32_000)
    need, parameters = estimate_memory(recipe.train, recipe.batch.tokens, config, 20, MACHINE)
    assert parameters > 200_000_000
    assert need.weights == 6 * parameters + 32 * 1024 * 1024  # the table of positions


def test_batches_of_an_update_must_fit_into_memory():
    recipe = load_recipe("smoke", {"train.accumulate": 100_000_000})
    need = estimate_memory(recipe.train, recipe.batch.tokens, ModelConfig(n_layers=1), 20, MACHINE)
    with pytest.raises(
        SettingsError, match=r"train\.accumulate=100000000: .* need \d+\.\d\d GiB .* Lower it"
    ):
        check_fits(*need, recipe, (64 * GIB, "here"))


@pytest.mark.parametrize("gated", [False, True])
def test_int8_training_also_saves_the_output_of_the_activation(gated):
    config = ModelConfig(
        d_model=64, n_layers=2, n_heads=4, d_ff=160, vocab_size=100, activation="gelu", gated=gated
    )
    saved = {}
    for precision in ("bfloat16", "int8"):
        recipe = load_recipe("smoke", {"train.precision": precision})
        need, _ = estimate_memory(recipe.train, recipe.batch.tokens, config, 20, MACHINE)
        saved[precision] = need.activations
    inner = 2 * 160 * (config.encoder_layers + config.decoder_layers) * recipe.batch.tokens
    assert saved["int8"] - saved["bfloat16"] == (2 if gated else 1) * inner


class FourRanks(Ranks):
    world = local_world = 4


def test_sharding_divides_memory_by_the_number_of_ranks():
    recipe = load_recipe("smoke", {"train.sharding": "full"})
    machines = (Machine(CPU, torch.float32, 1, ranks) for ranks in (SINGLE, FourRanks()))
    one, four = (
        estimate_memory(recipe.train, recipe.batch.tokens, ModelConfig(), 8, machine)[0]
        for machine in machines
    )
    assert four.optimizer < one.optimizer and four.activations < one.activations
