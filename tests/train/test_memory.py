"""What there is, by files as they lie in containers, and what is refused."""

from __future__ import annotations

import pytest
import torch

from trifold.errors import SettingsError
from trifold.nn import ModelConfig
from trifold.recipe import load_recipe
from trifold.train import memory
from trifold.train.device import Machine
from trifold.train.memory import TrainingMemory, available_memory, check_fits, estimate_memory

GIB = 2**30
MACHINE = Machine(torch.device("cpu"), torch.bfloat16, workers=2)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_the_limit_of_any_group_around_counts_and_what_can_be_taken_back_does_not(
    tmp_path, monkeypatch, limit
):
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


def test_of_the_first_version_too(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    own = tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/a\n4:memory:/a\n", encoding="utf-8")
    write(tmp_path / "memory", memory__limit_in_bytes="1000", memory__usage_in_bytes="400",
          memory__stat="total_inactive_file 100")  # fmt: skip
    assert list(memory._container_limits(own)) == [(700, "in this container")]


def test_the_least_counts(monkeypatch):
    monkeypatch.setattr(memory, "_system_limits", lambda: [(5, "a")])
    monkeypatch.setattr(memory, "_container_limits", lambda: [(3, "b"), (9, "c")])
    monkeypatch.setattr(memory, "_shell_limits", lambda: [])
    assert available_memory(torch.device("cpu")) == (3, "b")


def test_a_limit_of_the_shell_is_seen():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (2**40, before[1]))
        ((left, whose),) = memory._shell_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert 0 < left < 2**40 and "ulimit" in whose


def test_a_run_that_does_not_fit_is_told_three_settings_and_one_that_fits_nothing():
    recipe = load_recipe("smoke")
    need = TrainingMemory(4 * GIB, 8 * GIB, 8 * GIB, 4 * GIB, 2 * GIB, GIB), 2**30
    check_fits(*need, recipe, (26 * GIB, "here"))
    with pytest.raises(SettingsError) as caught:
        check_fits(*need, recipe, (26 * GIB - 1, "in this container"))
    for word in (
        "26.00 GiB",
        "in this container",
        "batch.tokens=512",
        "model.n_layers=2",
        "train.workers",
    ):
        assert word in str(caught.value)


def test_what_is_needed_is_counted_without_allocating():
    recipe = load_recipe("smoke")
    config = ModelConfig(d_model=1024, n_layers=6, n_heads=16, d_ff=4096, vocab_size=32_000)
    need, parameters = estimate_memory(recipe.train, recipe.batch.tokens, config, 20, MACHINE)
    assert parameters > 200_000_000
    assert need.weights == 6 * parameters


@pytest.mark.parametrize("gated", [False, True])
def test_who_learns_by_bytes_keeps_what_comes_out_of_an_activation_too(gated):
    config = ModelConfig(
        d_model=64, n_layers=2, n_heads=4, d_ff=160, vocab_size=100, activation="gelu", gated=gated
    )
    kept = {}
    for precision in ("bfloat16", "int8"):
        recipe = load_recipe("smoke", {"train.precision": precision})
        need, _ = estimate_memory(recipe.train, recipe.batch.tokens, config, 20, MACHINE)
        kept[precision] = need.activations
    inner = 2 * 160 * (config.encoder_layers + config.decoder_layers) * recipe.batch.tokens
    assert kept["int8"] - kept["bfloat16"] == (2 if gated else 1) * inner
