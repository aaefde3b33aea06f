"""Small untrained models."""

from __future__ import annotations

import pytest
import torch
from tests.models import TWO_LAYERS

from trifold.nn import ModelConfig, Transformer
from trifold.pipeline import Pipeline
from trifold.text import TokenizerSettings, train_tokenizer

SIZES = TWO_LAYERS | {"max_positions": 64}


@pytest.fixture
def pipeline() -> Pipeline:
    """An untrained translator."""
    return new_translator()


def new_translator() -> Pipeline:
    """An untrained translator with a vocabulary for each side, the same at every call."""
    torch.manual_seed(3)
    reader, writer = (
        train_tokenizer([text], TokenizerSettings(kind="char", min_frequency=1))
        for text in ("the quick brown fox.", "der schnelle Fuchs!")
    )
    vocabularies = {"vocab_size": reader.vocab_size, "target_vocab_size": writer.vocab_size}
    config = ModelConfig(**SIZES, **vocabularies, n_decoder_layers=3)
    return Pipeline(Transformer(config).eval(), reader, writer)


@pytest.fixture(params=["decoder", "encoder"])
def one_stack(request: pytest.FixtureRequest) -> Pipeline:
    """An untrained model with one stack."""
    torch.manual_seed(3)
    tokenizer = train_tokenizer(
        ["the quick brown fox."], TokenizerSettings(kind="char", min_frequency=1)
    )
    config = ModelConfig(
        **SIZES, shape=request.param, heads=("lm",), vocab_size=tokenizer.vocab_size
    )
    return Pipeline(Transformer(config).eval(), tokenizer, generation={"max_new_tokens": 7})
