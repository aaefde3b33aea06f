"""Whatever a config.json says, what it says is done as the reference does it, or refused: nothing is overlooked."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as some
from tests.hub.options import DRAWN
from tests.hub.parity import check, randomised

from trifold.errors import CheckpointError
from trifold.hub.families import FAMILIES
from trifold.nn import ModelConfig

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

LENGTHS = (9, 5, 7)


def test_all_families_are_drawn() -> None:
    assert set(DRAWN) == set(FAMILIES) - {"trifold"}


@pytest.mark.parametrize("family", DRAWN)
@settings(max_examples=4, phases=[Phase.generate])
@given(data=some.data())
def test_any_options_are_followed_or_refused(family: str, data: some.DataObject) -> None:
    classes, sizes, options = DRAWN[family]
    name = data.draw(some.sampled_from(classes))
    keys = data.draw(some.lists(some.sampled_from(sorted(options)), max_size=5, unique=True))
    drawn = {key: data.draw(some.sampled_from(options[key]), label=key) for key in keys}
    file = {"model_type": family, "architectures": [name], **sizes, **drawn}
    try:
        model = made(name, file)
        inputs = inputs_of(model)
    except Exception:  # nothing to compare with
        reject()
    said = ""
    try:
        check(model, file=file, **inputs)
    except CheckpointError as refused:
        said = str(refused)
    assert not said or any(name in said for name in names_in(drawn)), f"{drawn}: {said}"


def names_in(drawn: dict[str, Any]) -> set[str]:
    """What an error may call them: their keys, those within, or what they are in our own words."""
    within = {key for value in drawn.values() if isinstance(value, dict) for key in value}
    return set(drawn) | within | set(ModelConfig.model_fields)


def made(name: str, file: dict[str, Any]) -> Any:
    """The reference's model of a config.json."""
    kind = getattr(transformers, name)
    return randomised(kind(kind.config_class.from_dict(json.loads(json.dumps(file)))))


def inputs_of(model: Any) -> dict[str, Any]:
    """What the model is asked, where that is not any text; raises what the reference raises."""
    config = model.config
    if config.model_type == "vit":
        size = config.image_size
        pixels = torch.randn(2, config.num_channels, *([size, size] if isinstance(size, int) else size))
        model(pixels)
        return {"pixel_values": pixels}
    if config.is_encoder_decoder and "ForSequenceClassification" in type(model).__name__:
        end = config.eos_token_id  # the class is read at the only one in a row
        tokens = torch.randint(6, 38, (len(LENGTHS), max(LENGTHS)))
        for row, length in enumerate(LENGTHS):
            tokens[row, length - 1], tokens[row, length:] = end, config.pad_token_id
        model(tokens)
        return {"tokens": tokens, "decoder": False}
    model(
        input_ids=torch.ones(2, 3, dtype=torch.long),
        **({"decoder_input_ids": torch.ones(2, 3, dtype=torch.long)} if config.is_encoder_decoder else {}),
    )
    return {}
