"""BigBird: unused poolers, and what its config cannot say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.checkpoints import equal, read, write

from trifold.hub import load_model, save_model
from trifold.hub.families import FAMILIES

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")
Saved = Callable[..., Path]


def test_a_pooler_that_nothing_reads_is_kept(saved: Saved, tmp_path: Path) -> None:
    folder = saved("big_bird")
    ours, tensors = load_model(folder)[0], read(folder)
    assert "bert.pooler.weight" in tensors
    write(folder, {name: tensor for name, tensor in tensors.items() if "pooler" not in name})
    without, _ = load_model(folder)
    assert equal(ours, without)
    save_model(tmp_path / "again", without)
    assert read(tmp_path / "again").keys() == tensors.keys()


def test_random_blocks_outside_of_training_are_not_of_these_families(saved: Saved) -> None:
    config = load_model(saved("big_bird"))[0].config
    assert config.sparse_blocks is not None and FAMILIES["big_bird"].fits(config)
    always = config.sparse_blocks.model_copy(update={"only_in_training": False})
    assert not FAMILIES["big_bird"].fits(config.model_copy(update={"sparse_blocks": always}))
