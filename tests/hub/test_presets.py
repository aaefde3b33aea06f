"""Models by name: as many parameters as the reference builds from the same config.json, to the last one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trifold.hub.presets import PRESETS
from trifold.look.parameters import count
from trifold.nn import ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]


def reference(name: str) -> Any:
    """Without memory; the table of a head is its own where the file says so, as it is in published weights."""
    file = dict(PRESETS[name].file)
    (architecture,), kind = file.pop("architectures"), file.pop("model_type")
    untied = kind in ("t5", "mt5") and file.get("tie_word_embeddings") is False
    with torch.device("meta"):
        model = getattr(transformers, architecture)(transformers.AutoConfig.for_model(kind, **file))
        if untied:
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    return model


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.model_type != "trifold"])
def test_as_many_parameters_as_the_reference_has(name: str) -> None:
    learnt = sum(
        p.numel() for n, p in reference(name).named_parameters() if "sinusoid" not in n and p.requires_grad
    )
    config = PRESETS[name].config
    assert count(config) == learnt
    with torch.device("meta"):
        assert Transformer(config, initialize=False).count_parameters() == learnt


KNOWN = {
    "gpt2": 124_439_808,
    "bert-base": 109_514_298,
    "roberta-base": 124_697_433,
    "llama-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "t5-small": 60_506_624,
    "flan-t5-base": 247_577_856,
    "mt5-small": 300_176_768,
    "bart-large": 406_291_456,
    "palm-540b": 540_350_000_000,
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_numbers(name: str) -> None:
    """From model cards; of PaLM the paper gives five digits."""
    found = count(PRESETS[name].config)
    assert found == KNOWN[name] or (name.startswith("palm") and abs(found - KNOWN[name]) < 10**7)


def test_what_was_announced_stands_beside_what_there_is_only_where_they_differ() -> None:
    preset = PRESETS["gpt2"]
    assert preset.announced == "117 M" and not preset.agrees(124_439_808)
    assert preset.agrees(116_534_784)
    assert PRESETS["llama-7b"].agrees(6_738_415_616)
    assert PRESETS["palm-8b"].agrees(8_630_000_000) and not PRESETS["palm-8b"].agrees(8_640_000_000)


@pytest.mark.parametrize("name", PRESETS)
def test_none_is_far_from_what_was_announced(name: str) -> None:
    """A size with one zero too few would pass every test above."""
    if (said := PRESETS[name].announced) is None:
        return
    number, unit = said.split()
    announced = float(number) * {"M": 1e6, "B": 1e9}[unit]
    assert 0.85 < count(PRESETS[name].config) / announced < 1.2


def test_names_of_the_house_are_not_taken() -> None:
    from trifold.nn import PRESETS as OURS

    assert not OURS.keys() & PRESETS.keys()
    assert all(isinstance(preset.config, ModelConfig) for preset in PRESETS.values())
