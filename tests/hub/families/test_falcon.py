"""Defaults of Falcon."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trifold.hub import read_config

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


def test_the_new_falcon_architecture_has_all_key_heads_by_default(tmp_path: Path) -> None:
    sizes = {"model_type": "falcon", "hidden_size": 32, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(
        json.dumps(sizes | {"new_decoder_architecture": True}), "utf-8"
    )
    reference = transformers.FalconConfig.from_pretrained(tmp_path)
    assert read_config(tmp_path).kv_heads == reference.num_kv_heads == 4
