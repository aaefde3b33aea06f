from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
import torch

from trifold.errors import SettingsError, UsageError
from trifold.recipe import load_recipe
from trifold.train.device import (
    agree_on_options,
    check_sharding,
    choose_precision,
    choose_workers,
    device_of_rank,
    find_machine,
)
from trifold.train.ranks import SINGLE, Ranks

DEVICE = sys.modules["trifold.train.device"]  # the attribute `trifold.train` is the function
CPU = torch.device("cpu")


# --- device ---------------------------------------------------------------------------------------


class SecondOfFour(Ranks):
    rank, world, local_rank, local_world = 1, 4, 1, 4


def test_each_rank_has_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of_rank("auto", SecondOfFour()).type == "cpu"
    message = r"train\.device: 'cuda:0' is a single device, but there are 4 ranks"
    with pytest.raises(UsageError, match=message):
        device_of_rank("cuda:0", SecondOfFour())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        UsageError, match=r"4 ranks on this machine, but only 2 GPUs; .*--nproc-per-node 2"
    ):
        device_of_rank("auto", SecondOfFour())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
    assert device_of_rank("cuda", SecondOfFour()) == torch.device("cuda:1")


# --- precision and workers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instructions", "dtype"), [(True, torch.bfloat16), (False, torch.float32)]
)
def test_auto_precision_is_bf16_if_the_processor_has_instructions_for_it(
    monkeypatch, instructions, dtype
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert choose_precision("auto", CPU) is dtype
    assert choose_precision("float32", CPU) is torch.float32
    assert choose_precision("bfloat16", CPU) is torch.bfloat16


def test_workers_follow_threads_and_tokens_unless_requested(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(DEVICE, "compiled_loops", object)
    assert [choose_workers(None, CPU, tokens) for tokens in (100, 1024, 4096, 100_000)] == [
        1,
        1,
        4,
        8,
    ]
    assert choose_workers(3, CPU, 100) == 3
    monkeypatch.setattr(DEVICE, "compiled_loops", lambda: None)
    assert choose_workers(None, CPU, 4096) == 1


def test_gpus_have_one_worker():
    assert choose_workers(None, torch.device("cuda"), 4096) == 1
    with pytest.raises(UsageError, match=r"train.workers=2: workers share batches on a CPU only"):
        choose_workers(2, torch.device("cuda"), 4096)


# --- options that all ranks must support ----------------------------------------------------------


class BesideUnable(Ranks):
    """One of two ranks; the other one supports no option."""

    world = 2

    def sum(self, values: Sequence[float]) -> list[float]:
        return [value + 1 for value in values]


@pytest.mark.parametrize(
    ("setting", "field", "obstacle", "printed"),
    [
        (
            {"train.compile": "blocks"},
            "compiles",
            "compile_obstacle",
            "not compiled (another rank cannot)",
        ),
        (
            {"train.precision": "int8"},
            "int8",
            "int8_training_obstacle",
            "without int8 (another rank cannot)",
        ),
    ],
)
def test_option_is_enabled_on_all_ranks_or_none(monkeypatch, setting, field, obstacle, printed):
    monkeypatch.setattr(DEVICE, obstacle, lambda device: "")
    monkeypatch.setattr(DEVICE, "compiled_loops", object)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)  # allows 8 workers
    settings = load_recipe("smoke", setting | {"train.device": "cpu"}).train
    assert getattr(agree_on_options(find_machine(settings, 100_000, SINGLE)), field) is True
    machine = find_machine(settings, 100_000, BesideUnable())
    assert getattr(machine, field) is True
    assert machine.workers == (1 if field == "compiles" else 8)
    agreed = agree_on_options(machine)
    assert getattr(agreed, field) is False and printed in str(agreed)


@pytest.mark.parametrize(
    ("change", "value"), [({"optimizer": "muon"}, "muon"), ({"workers": 2}, "workers")]
)
def test_settings_incompatible_with_sharding_are_rejected(
    change: dict[str, object], value: str
) -> None:
    settings = load_recipe("smoke", {f"train.{key}": each for key, each in change.items()}).train
    with pytest.raises(
        SettingsError, match=rf"train\.sharding: full is incompatible with train\..*{value}"
    ):
        check_sharding(settings)
