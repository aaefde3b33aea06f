"""LLaMA and its relatives: published configs and generation settings, generated tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from tests.hub.parity import make

from trifold import load
from trifold.costs import count_parameters
from trifold.hub import read_config
from trifold.hub.families import FAMILIES
from trifold.hub.families.llama import inverse
from trifold.hub.generation import read_generation
from trifold.nn import Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

PUBLISHED = Path(__file__).parents[1] / "published"
# Parameters of the reference; tied tensors count once.
PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "smollm2-135m": 134_515_008,
    "smollm3-3b": 3_075_098_624,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-4-mini": 3_836_021_760,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "nanochat-d32": 1_879_048_192,
    "granite-3.1-2b": 2_533_531_648,
    "glm-4-9b-0414": 9_400_279_040,
    "command-r7b": 8_028_033_024,
}
# Keys of a reference config that do not describe the model, or that are derived from others.
OTHER = {
    *("dtype", "transformers_version", "use_cache", "initializer_range", "rope_parameters"),
    *(
        "max_window_layers",
        "no_rope_layer_interval",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_published_config_is_read_and_written(name: str, tmp_path: Path) -> None:
    text = (PUBLISHED / f"{name}.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    config = read_config(tmp_path)
    with torch.device("meta"):
        model = Transformer(config)
    assert (
        sum(p.numel() for p in model.parameters()) == count_parameters(config) == PARAMETERS[name]
    )

    values = json.loads(text)
    family = FAMILIES[values["model_type"]]
    written = {"architectures": [family.architecture(config)], **family.write(config)}
    assert family.fits(config) and family.read(written) == config
    reference = getattr(transformers, f"{family.stem}Config")
    theirs, back = (
        reference.from_dict(json.loads(json.dumps(each))).to_dict() for each in (values, written)
    )
    for key in reference().to_dict().keys() - OTHER:
        assert theirs[key] == back[key], key
    assert rope_of(theirs) == rope_of(back)


def rope_of(values: dict[str, Any]) -> Any:
    """The rotary positions of a reference config, with the default factor."""
    rope = values["rope_parameters"]
    if "full_attention" in rope:
        return {kind: rope_of(values | {"rope_parameters": keys}) for kind, keys in rope.items()}
    found = {key: value for key, value in rope.items() if key not in ("type", "truncate")}
    if found["rope_type"] == "longrope":
        found["factor"] = (
            values["max_position_embeddings"] / found["original_max_position_embeddings"]
        )
    return found


SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}
QWEN3 = SAMPLED | {
    "bos_token_id": 151643,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "top_k": 20,
}
GENERATION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3-0.6b": (
        QWEN3 | {"transformers_version": "4.51.0"},
        SAMPLED | {"top_k": 20, "eos_token_id": [151645, 151643]},
    ),
    "smollm3-3b": (
        SAMPLED | {"bos_token_id": 128000, "eos_token_id": 128012, "pad_token_id": 128004},
        SAMPLED | {"top_k": 50},
    ),
    "phi-4-mini": (
        {"bos_token_id": 199999, "eos_token_id": [200020, 199999], "pad_token_id": 199999},
        {"eos_token_id": [200020, 199999]},
    ),
    "glm-4-9b-0414": (
        {"eos_token_id": [151329, 151336, 151338], "pad_token_id": 151329, "do_sample": True},
        {"do_sample": True, "top_k": 50, "eos_token_id": [151329, 151336, 151338]},
    ),
    "command-r7b": (
        {
            "_from_model_config": True,
            "bos_token_id": 5,
            "cache_implementation": "hybrid",
            "eos_token_id": 255001,
        },
        {},
    ),
}


@pytest.mark.parametrize("name", GENERATION)
def test_published_generation_settings_are_read(name: str) -> None:
    values = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    theirs, ours = GENERATION[name]
    config = FAMILIES[values["model_type"]].read(values)
    assert read_generation(config, theirs, "here") == ours | {"bad_words_ids": []}


GENERATED: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {},
    "smollm3": {},
    "phi3": {"num_key_value_heads": 2, "sliding_window": 4},
    "olmo2": {"num_key_value_heads": 2},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"]},
    "nanochat": {"num_key_value_heads": 2},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.5,
    },
    "glm4": {"eos_token_id": 39},  # null stands for three tokens
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"]},
}


@pytest.mark.parametrize("family", GENERATED)
def test_generated_tokens_equal_the_reference(family: str, tmp_path: Path) -> None:
    """Greedily, two prompts of different lengths; windows are shorter than the texts."""
    model = make(
        family,
        "ForCausalLM",
        **{"max_position_embeddings": 32, "eos_token_id": None} | GENERATED[family],
    )
    model.save_pretrained(tmp_path)
    tokens = torch.tensor([[0, 0, 0, 7, 11], [21, 9, 30, 14, 5]])
    real = tokens != 0
    options: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "no_repeat_ngram_size": 2}
    expected = model.generate(tokens, attention_mask=real.long(), **options)[:, 5:]
    got = load(tmp_path).generate_tokens(tokens, real, **options)
    assert got == expected.tolist()
    assert all(len(set(row)) > 4 for row in got)


@given(st.floats(1e-3, 1e3))
def test_a_multiplier_is_written_exactly(divisor: float) -> None:
    assert 1 / inverse(1 / divisor) == 1 / divisor
    assert math.isclose(inverse(1 / divisor), divisor)
