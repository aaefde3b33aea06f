from __future__ import annotations

import pytest
import torch

from trifold.nn import ModelConfig, Transformer
from trifold.train.optimizers import decay_group, is_hidden_matrix

SMALL = {"vocab_size": 13, "max_positions": 9, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 12}
SHAPES = {
    "translator": {},
    "two vocabularies, every bias": {
        "target_vocab_size": 7,
        "tie_lm_head": False,
        "lm_head_bias": True,
        "attention_bias": True,
    },
    "relative positions, gated": {"positions": "relative", "gated": True, "norm": "rms"},
    "reader with heads": {
        "shape": "encoder",
        "heads": ("lm", "pooler", "next-sentence", "token"),
        "positions": "learned",
        "n_token_types": 2,
        "d_embedding": 6,
        "lm_head_transform": "gelu",
    },
    "pictures": {
        "shape": "encoder",
        "image_size": (8, 8),
        "patch_size": (4, 4),
        "max_positions": 5,
        "heads": ("sequence",),
    },
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def model(request):
    return Transformer(ModelConfig.parse(SMALL | request.param))


def test_matrices_are_all_but_vectors(model):
    named = dict(model.named_parameters())
    drawn = decay_group(named, None)
    assert drawn == decay_group(named, "matrices")
    assert {name for name, p in named.items() if p.dim() == 1} == named.keys() - drawn
    assert decay_group(named, "everything") == named.keys()


def test_hidden_are_the_projections_of_the_layers(model):
    """By where they stand in the modules, which the names know nothing of."""
    inside = {
        name
        for name, parameter in model.named_parameters()
        for stack in (model.encoder, model.decoder)
        if stack is not None and parameter.dim() == 2
        if any(parameter is each for each in stack.blocks.parameters())
    }
    named = dict(model.named_parameters())
    assert decay_group(named, "hidden") == inside
    assert inside and inside < decay_group(named, "matrices")


def test_biases_of_several_heads_are_biases_all_the_same():
    assert decay_group({"decoder.blocks.0.bias": torch.zeros(2, 4)}, "matrices") == frozenset()
    assert not is_hidden_matrix("decoder.blocks.0.bias", torch.zeros(2, 4))
