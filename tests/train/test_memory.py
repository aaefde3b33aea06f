from __future__ import annotations

import pytest
import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.recipe import load_recipe
from trifold.train import memory
from trifold.train.device import Machine
from trifold.train.memory import TrainingMemory, available_memory, check_fits, estimate_memory
from trifold.train.ranks import SINGLE, Ranks

GIB = 2**30
CPU = torch.device("cpu")
MACHINE = Machine(CPU, torch.bfloat16, workers=2)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_limits_of_outer_cgroups_count_and_reclaimable_memory_is_free(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("0::/outer/inner\n", encoding="utf-8")
    write(
        tmp_path / "outer",
        memory__max=f"{4 * GIB}",
        memory__current=f"{3 * GIB}",
        memory__stat=f"inactive_file {GIB}",
    )
    write(tmp_path / "outer" / "inner", memory__max=limit, memory__current="1", memory__stat="")
    assert list(memory._container_limits(own)) == [(2 * GIB, "in this container")]


def test_limit_of_a_version_1_cgroup(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/a\n4:memory:/a\n", encoding="utf-8")
    write(tmp_path / "memory", memory__limit_in_bytes="1000", memory__usage_in_bytes="400",
          memory__stat="total_inactive_file 100")  # fmt: skip
    assert list(memory._container_limits(own)) == [(700, "in this container")]


def test_available_memory_is_the_lowest_limit(monkeypatch):
    monkeypatch.setattr(memory, "_system_limits", lambda: [(5, "a")])
    monkeypatch.setattr(memory, "_container_limits", lambda: [(3, "b"), (9, "c")])
    monkeypatch.setattr(memory, "_shell_limits", lambda: [])
    assert available_memory(CPU) == (3, "b")


def test_ulimit_is_a_limit():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
        ((left, origin),) = memory._shell_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert 0 < left < 2**40 and "ulimit" in origin


def test_error_for_a_run_that_does_not_fit_names_three_settings():
    recipe = load_recipe("smoke")
    need = TrainingMemory(4 * GIB, 8 * GIB, 8 * GIB, 4 * GIB, 2 * GIB, GIB), 2**30
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
    assert need.weights == 6 * parameters


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
    (limit, origin), (alone, _) = available_memory(CPU, FourRanks()), available_memory(CPU)
    assert limit < alone and "shared by 4 ranks" in origin
