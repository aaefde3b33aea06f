"""A new family needs one new file in the folder of families and one line in their table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.hub.parity import check, randomised

from trifold import load
from trifold.errors import CheckpointError
from trifold.hub import families, load_model, save_model
from trifold.hub.convert import convert
from trifold.nn import Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

FOLDER = Path(__file__).with_name("another")
SIZES = {
    "vocab_size": 61,
    "max_position_embeddings": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def with_new_family(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the folder of the file to the package of families, and its family to their table, before
    all others.
    """
    others = dict(families.FAMILIES)
    assert "stablelm" not in others
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(FOLDER)])
    family = import_module(f"{families.__name__}.stablelm").FAMILY
    families.FAMILIES.clear()
    families.FAMILIES.update({"stablelm": family, **others})
    yield
    families.FAMILIES.clear()
    families.FAMILIES.update(others)
    del sys.modules[f"{families.__name__}.stablelm"], families.stablelm  # type: ignore[attr-defined]


def tiny(name: str = "StableLmForCausalLM", **values: object) -> torch.nn.Module:
    return randomised(getattr(transformers, name)(transformers.StableLmConfig(**SIZES, **values)))


@pytest.mark.usefixtures("with_new_family")
@pytest.mark.parametrize(
    "name", ["StableLmForCausalLM", "StableLmModel", "StableLmForSequenceClassification"]
)
def test_it_equals_the_reference(name: str) -> None:
    check(tiny(name, use_qkv_bias=True))


@pytest.mark.usefixtures("with_new_family")
def test_it_generates_converts_and_saves(tmp_path: Path) -> None:
    model = tiny(tie_word_embeddings=True, eos_token_id=2)
    model.save_pretrained(tmp_path / "theirs")
    pipe = load(tmp_path / "theirs")
    prompt = torch.tensor([[5, 6, 7]])
    expected = model.generate(
        prompt, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(prompt)
    )
    got = pipe.generate_tokens(prompt, max_new_tokens=6, do_sample=False)[0]
    assert got == [token for token in expected[0, 3:].tolist() if token != 2]

    convert(tmp_path / "theirs", tmp_path / "native", to="native")
    convert(tmp_path / "native", tmp_path / "back")
    values = json.loads((tmp_path / "back" / "config.json").read_text(encoding="utf-8"))
    assert (values["model_type"], values["architectures"]) == ("stablelm", ["StableLmForCausalLM"])

    fresh = Transformer(pipe.config)  # fits no other family
    save_model(tmp_path / "fresh", fresh)
    assert load_model(tmp_path / "fresh")[0].family == "stablelm"


@pytest.mark.usefixtures("with_new_family")
def test_its_unsupported_keys_are_errors(tmp_path: Path) -> None:
    tiny(use_parallel_residual=True).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="use_parallel_residual"):
        load_model(tmp_path)


def test_it_is_unknown_without_the_file(tmp_path: Path) -> None:
    tiny().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="model_type: 'stablelm' is not known"):
        load_model(tmp_path)
