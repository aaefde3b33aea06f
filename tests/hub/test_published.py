"""config.json of published checkpoints: read and written, with the published numbers of parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trifold.costs import count_parameters
from trifold.hub.families import FAMILIES
from trifold.hub.generation import read_generation
from trifold.nn.variants.sparse_blocks import SparseBlocks

BLOCKS = SparseBlocks(size=64, random=3, only_in_training=True)
FOLDER = Path(__file__).with_name("published")
# Parameters in millions, as counted by the reference, without sinusoids, and with the bias of
# logits, a buffer there; and fields that show what was read.
FACTS: dict[str, tuple[float, dict[str, Any]]] = {
    "opt-125m": (125.2, {"norm_placement": "pre", "position_offset": 2, "token_projection": False}),
    "opt-350m": (331.2, {"norm_placement": "post", "d_embedding": 512, "token_projection": True}),
    "opt-1.3b": (1315.8, {"d_ff": 8192, "attention_bias": True}),
    "bloom-560m": (559.2, {"d_model": 1024, "positions": "alibi", "n_heads": 16}),
    "bloom": (176247.3, {"max_positions": 2048, "embedding_norm": True}),
    "mbart-large-cc25": (611.1, {"scale_embeddings": True, "decoder_start_id": None}),
    "mbart-large-50-many-to-many-mmt": (611.1, {"decoder_start_id": 2, "activation": "relu"}),
    "pegasus-xsum": (568.8, {"positions": "sinusoidal-halves", "max_positions": 512}),
    "m2m100_418M": (483.9, {"positions": "sinusoidal-tensor2tensor", "position_offset": 2}),
    "bigbird-roberta-base": (
        128.1,
        {"sparse_blocks": BLOCKS, "activation": "gelu-tanh", "max_positions": 4096},
    ),
    "bigbird-pegasus-large-arxiv": (
        577.0,
        {"sparse_blocks": BLOCKS, "attention_bias": False, "eos_id": 1},
    ),
    "nllb-200-distilled-600M": (615.1, {"vocab_size": 256206, "norm_placement": "pre"}),
    # Without the bias of logits, which the reference does not add.
    "reformer-crime-and-punishment": (
        2.7,
        {"shape": "decoder", "axial_shape": (512, 1024), "n_layers": 6},
    ),
    "reformer-enwik8": (
        149.2,
        {"residual": "reversible", "axial_widths": (256, 768), "d_head": None},
    ),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_published_config_is_read_and_written(name: str) -> None:
    values = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    family = FAMILIES[values["model_type"]]
    config = family.read(values)
    millions, facts = FACTS[name]
    assert {key: getattr(config, key) for key in facts} == facts
    assert round(count_parameters(config) / 1e6, 1) == millions
    written = family.write(config)
    again = family.read({"architectures": [family.architecture(config)], **written})
    assert again == config
    expected = {
        k: SAME.get(str(v), v) for k, v in values.items() if k in written and k not in CHANGED
    }
    assert written.items() >= expected.items()
    assert family.unknown_keys({**values, "a_part_of_the_future": True}).ignored == [
        "a_part_of_the_future"
    ]


# Written as null, so that the end is not forced; dropping layers in training, which is not
# supported; and the dropout of heads that a model does not have.
CHANGED = {"forced_eos_token_id", "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout"}
SAME = {"gelu_new": "gelu_pytorch_tanh"}  # two names of one function


# generation_config.json beside it, without ids -> our settings.
GENERATION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "opt-125m": ({}, {}),
    "bloom-560m": ({}, {}),
    "mbart-large-50-many-to-many-mmt": (
        {"early_stopping": True, "forced_eos_token_id": 2, "max_length": 200, "num_beams": 5},
        {"early_stopping": True, "forced_eos_token_id": 2, "max_length": 200, "num_beams": 5},
    ),
    "pegasus-xsum": (
        {"forced_eos_token_id": 1, "length_penalty": 0.6, "max_length": 64, "num_beams": 8},
        {"forced_eos_token_id": 1, "length_penalty": 0.6, "max_length": 64, "num_beams": 8},
    ),
    "bigbird-pegasus-large-arxiv": (
        {"length_penalty": 0.8, "max_length": 256, "num_beams": 5},
        {"length_penalty": 0.8, "max_length": 256, "num_beams": 5},
    ),
    "nllb-200-distilled-600M": ({"max_length": 200}, {"max_length": 200}),
}


@pytest.mark.parametrize("name", GENERATION)
def test_published_generation_settings_are_read(name: str) -> None:
    values = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    config = FAMILIES[values["model_type"]].read(values)
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    theirs, ours = GENERATION[name]
    file = (
        {key: values[key] for key in keys if key in values} | theirs | {"_from_model_config": True}
    )
    assert read_generation(config, file, "here") == {"bad_words_ids": []} | ours
