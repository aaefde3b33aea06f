"""A run that begins from a model: the weights are that model's, and what does not fit is said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from trifold import load
from trifold.errors import CheckpointError, SettingsError
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.train.data import start_from

SMALL = {"vocab_size": 40, "d_model": 16, "n_heads": 2, "d_ff": 32, "n_layers": 2, "max_positions": 32}


def saved(folder: Path, **values: object) -> Transformer:
    model = Transformer(ModelConfig.parse(SMALL | values)).eval()
    Pipeline(model).save(folder)
    return model


def test_the_weights_are_those_of_the_folder(tmp_path: Path) -> None:
    model = saved(tmp_path)
    torch.manual_seed(9)
    other = Transformer(ModelConfig.parse(SMALL))
    start_from(str(tmp_path), other)
    for (name, ours), theirs in zip(other.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_another_head_stays_as_it_was_drawn(tmp_path: Path) -> None:
    encoder = {"shape": "encoder"}
    model = saved(tmp_path, **encoder)
    other = Transformer(ModelConfig.parse(SMALL | encoder | {"heads": ["sequence"], "n_labels": 3}))
    drawn = {name: p.clone() for name, p in other.named_parameters() if name.startswith("heads.")}
    assert drawn
    start_from(str(tmp_path), other)
    found = dict(other.named_parameters())
    assert all(torch.equal(found[name], p) for name, p in drawn.items())
    assert all(torch.equal(found[n], p) for n, p in model.named_parameters() if n in found)


def test_what_does_not_fit_is_listed_and_nothing_is_taken(tmp_path: Path) -> None:
    saved(tmp_path)
    other = Transformer(ModelConfig.parse(SMALL | {"d_ff": 48, "n_layers": 3}))
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(SettingsError, match=re.escape("train.start_from")) as said:
        start_from(str(tmp_path), other)
    assert "feed_forward" in str(said.value) and "more" in str(said.value)
    assert all(torch.equal(p, b) for p, b in zip(other.parameters(), before, strict=True))
    with pytest.raises(CheckpointError):
        start_from(str(tmp_path / "nothing"), other)
    assert load(tmp_path).config.d_ff == 32
