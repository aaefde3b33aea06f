"""Models by name have as many parameters as transformers builds from the same config.json."""

from __future__ import annotations

import pytest
import torch

from trifold.cli.show import find_subject
from trifold.costs import count_parameters
from trifold.hub.presets import ALIASES, PRESETS, UNITS
from trifold.nn import PRESETS as OURS, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

NAMES = [name for name in PRESETS if name not in ALIASES]


def reference_parameters(name: str) -> int:
    """Built on the meta device. Output embeddings are untied if the file says so, as in published
    weights.
    """
    file = dict(PRESETS[name].file)
    (architecture,), kind = file.pop("architectures"), file.pop("model_type")
    untied = kind in ("t5", "mt5") and file.get("tie_word_embeddings") is False
    with torch.device("meta"):
        model = getattr(transformers, architecture)(transformers.AutoConfig.for_model(kind, **file))
        if untied:
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return sum(
        p.numel() for n, p in model.named_parameters() if "sinusoid" not in n and p.requires_grad
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if PRESETS[name].file["model_type"] != "trifold"]
)
def test_parameter_counts_equal_the_reference(name: str) -> None:
    assert count_parameters(PRESETS[name].config) == reference_parameters(name)


@pytest.mark.parametrize("name", NAMES)
def test_parameter_counts_equal_built_models_and_are_near_the_announced_number(name: str) -> None:
    """The announced number detects a wrong size in the table."""
    preset = PRESETS[name]
    counted = count_parameters(preset.config)
    with torch.device("meta"):
        assert Transformer(preset.config, initialize=False).count_parameters() == counted
    if preset.announced is not None:
        number, unit = preset.announced.split()
        assert 0.85 < counted / (float(number) * UNITS[unit]) < 1.2


PUBLISHED = {
    "gpt2": 124_439_808,
    "bert-base": 109_514_298,
    "camembert-base": 110_655_493,
    "xlm-roberta-base": 278_295_186,
    "distilgpt2": 81_912_576,
    "roberta-base": 124_697_433,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "t5-small": 60_506_624,
    "flan-t5-base": 247_577_856,
    "mt5-small": 300_176_768,
    "bart-large": 406_291_456,
    "palm-540b": 540_350_000_000,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_equal_published_numbers(name: str) -> None:
    """From model cards; the paper gives five digits of PaLM."""
    counted = count_parameters(PRESETS[name].config)
    assert counted == PUBLISHED[name] or (
        name.startswith("palm") and abs(counted - PUBLISHED[name]) < 10**7
    )


def test_announced_numbers_agree_if_the_count_rounds_to_them() -> None:
    preset = PRESETS["gpt2"]
    assert preset.announced == "117 M" and not preset.agrees(124_439_808)
    assert preset.agrees(116_534_784)
    assert PRESETS["llama-7b"].agrees(6_738_415_616)
    assert PRESETS["palm-8b"].agrees(8_630_000_000) and not PRESETS["palm-8b"].agrees(8_640_000_000)
    assert PRESETS["marian"].agrees(1)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("llama", "llama-7b"), ("gpt-1", "gpt"), ("camembert", "camembert-base"), ("bert", "bert-base"),
        ("t5", "t5-base"), ("GPT-2", "gpt2"), ("DistilGPT2", "distilgpt2"), ("Transformer-Big", "transformer-big"),
    ],
)  # fmt: skip
def test_the_names_of_families_and_other_cases_are_known(name: str, preset: str) -> None:
    configs = OURS | {each: known.config for each, known in PRESETS.items()}
    assert find_subject(name).config == configs[preset]


def test_names_are_distinct_from_the_presets_of_nn() -> None:
    assert not OURS.keys() & PRESETS.keys()
    assert all(PRESETS[alias] is PRESETS[name] for alias, name in ALIASES.items())
