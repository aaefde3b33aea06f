"""Random models, tiny folders of transformers, and valid folders to damage."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hub.forging import SHARD, WATCH
from tests.hub.parity import make
from tests.models import TWO_LAYERS, add_noise

import trifold
from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer
from trifold.text.chat import render


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """A small model in evaluation mode with the given values in its config."""
    sizes = TWO_LAYERS | {"vocab_size": 31, "max_positions": 48}
    return lambda **values: add_noise(Transformer(ModelConfig.parse(sizes | values)), 0.2)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a tiny model of transformers, which tests must not change."""

    @functools.cache
    def folder(family: str, ending: str | None = None) -> Path:
        path = tmp_path_factory.mktemp(family)
        make(family, ending).save_pretrained(path)
        return path

    return folder


@pytest.fixture
def saved(tiny_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a tiny folder for one test."""
    return lambda *arguments: shutil.copytree(tiny_folder(*arguments), tmp_path / "model")


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small GPT-2 with its tokenizer, in one file and in shards; loaded once, to import all
    modules.
    """
    tokenizer = train_tokenizer(["the quick fox"], TokenizerSettings(kind="char", min_frequency=1))
    parts = {
        "shape": "decoder",
        "positions": "learned",
        "norm_placement": "pre",
        "scale_embeddings": False,
    }
    parts |= {"attention_bias": True, "activation": "gelu-tanh", "vocab_size": tokenizer.vocab_size}
    sizes = TWO_LAYERS | {"max_positions": 16}
    pipe = Pipeline(Transformer(ModelConfig.parse(parts | sizes)), tokenizer)
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
