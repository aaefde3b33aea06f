"""A saved model is loaded with the same config, values and states, and saved as the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.laws.configs import cases, config_of
from tests.laws.models import hidden_of, model_of, padded, rows_of

from trifold.hub import load_model, save_model

# Files do not depend on the operations.
pytestmark = pytest.mark.parametrize("operations", ["fast"], indirect=True)


@torch.no_grad()
@cases("save")
def test_a_loaded_model_is_the_saved_one(name: str, tmp_path: Path) -> None:
    model = model_of(name, torch.float32)
    save_model(tmp_path / "a", model)
    loaded, _ = load_model(tmp_path / "a")
    parameters = dict(model.named_parameters())
    assert parameters.keys() == dict(loaded.named_parameters()).keys()
    for title, value in loaded.named_parameters():
        assert torch.equal(value, parameters[title]), title
    example = padded(rows_of(config_of(name)))
    assert torch.equal(hidden_of(loaded, example), hidden_of(model, example))
    save_model(tmp_path / "b", loaded)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
