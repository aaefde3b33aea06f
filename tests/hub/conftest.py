"""Fixtures: models whose parameters are all random, so that every rule matters, and valid folders to damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.hub.forging import SHARD, WATCH

import trifold
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.chat import render


def _randomised(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)


@pytest.fixture
def randomised() -> Callable[[torch.nn.Module], None]:
    return _randomised


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode with the given values in its config."""

    def make(**values: object) -> Transformer:
        small = {
            "vocab_size": 31,
            "max_positions": 48,
            "d_model": 16,
            "n_layers": 2,
            "n_heads": 4,
            "d_ff": 24,
        }
        model = Transformer(ModelConfig.parse(small | values)).eval()
        _randomised(model)
        return model

    return make


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small GPT-2 with its tokenizer, in one file and in shards; loaded once, so that everything is imported."""
    tokenizer = train_tokenizer(["the quick fox"], TokenizerSettings(kind="char", min_frequency=1))
    parts = {"shape": "decoder", "positions": "learned", "norm_placement": "pre", "scale_embeddings": False}
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "max_positions": 16,
        "d_model": 16,
        "n_layers": 2,
        "n_heads": 4,
    }
    more = {"attention_bias": True, "activation": "gelu-tanh", "d_ff": 24}
    pipe = Pipeline(Transformer(ModelConfig.parse(parts | sizes | more)), tokenizer)
    folders = {"one": tmp_path_factory.mktemp("one"), "shards": tmp_path_factory.mktemp("shards")}
    pipe.save(folders["one"])
    pipe.save(folders["shards"], max_shard_size="7KB")
    assert (folders["shards"] / SHARD).is_file()
    for folder in folders.values():
        assert trifold.load(folder).model.family == "gpt2"
    render("{{ 1 }}", {})
    return folders


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """A path for a folder; audit events while it is used must be empty."""
    yield tmp_path / "model"
    WATCH.folder = None
    seen, WATCH.seen = WATCH.seen, []
    assert not seen
