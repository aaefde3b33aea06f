from __future__ import annotations

from typing import Any

import pytest

from trifold.errors import SettingsError
from trifold.nn import ModelConfig

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"d_model": 100, "n_heads": 8},
        r"model: n_heads 8 does not divide d_model 100: choose one of 1, 2, 4, 5, 10, 20",
    ),
    ({"n_heads": 8, "n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 8"),
    ({"d_model": 15, "n_heads": 5}, "even d_model, not 15"),
    ({"shape": "decoder", "target_vocab_size": 9}, "target_vocab_size needs shape: encoder-decoder"),
    ({"n_head": 4}, r"model\.n_head: unknown key; did you mean 'n_heads'"),
    ({"drop_out": 0.1}, r"model\.drop_out: unknown key; did you mean 'dropout'"),
    ({"dropout": 1.0}, r"model\.dropout: .*less than 1"),
    ({"d_model": "512"}, r"model\.d_model: .*integer, got '512'"),
    ({"d_model": 0}, r"model\.d_model: .*greater than 0, got 0"),
    ({"norm_placement": "middle"}, r"model\.norm_placement: .*'post', 'pre' or 'sandwich', got 'middle'"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_what_does_not_hang_together_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ModelConfig.parse(values, at="model")


def test_every_wrong_key_is_said_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        ModelConfig.parse({"n_head": 4, "dropout": 2.0, "d_ff": None})
    named = {line.split(":")[0] for line in str(caught.value).splitlines()}
    assert named == {"n_head", "dropout", "d_ff"}


def test_derived_numbers() -> None:
    config = ModelConfig(
        d_model=96, n_heads=6, n_kv_heads=2, n_layers=4, n_decoder_layers=2, target_vocab_size=7
    )
    assert (config.head_width, config.kv_heads) == (16, 2)
    assert (config.encoder_layers, config.decoder_layers) == (4, 2)
    assert (config.output_vocab_size, config.start_id) == (7, 1)
    assert ModelConfig(shape="decoder").encoder_layers == ModelConfig(shape="encoder").decoder_layers == 0
    assert ModelConfig(d_model=100, n_heads=8, d_head=16).head_width == 16


def test_a_config_never_changes() -> None:
    with pytest.raises(Exception, match="frozen"):
        ModelConfig().d_model = 3  # type: ignore[misc]
