"""Longformer, LED and LongT5: published configs, global tokens, texts longer than windows and
blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.checkpoints import read
from tests.hub.parity import make

from trifold.costs import count_parameters
from trifold.generate import generate_tokens, resolve
from trifold.hub import load_model, read_config, save_model
from trifold.hub.families import FAMILIES
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Saved = Callable[..., Path]
PUBLISHED = Path(__file__).parents[1] / "published"
# Parameters of the reference; tied tensors count once. Fields that show what was read.
FACTS: dict[str, tuple[int, dict[str, Any]]] = {
    "longformer-base-4096": (
        148_711_257,
        {"sliding_window": 257, "max_positions": 4096, "position_offset": 2},
    ),
    "led-base-16384": (
        161_894_745,
        {
            "sliding_window": 513,
            "max_positions": 16384,
            "max_decoder_positions": 1024,
            "global_tokens": "first",
        },
    ),
    "long-t5-local-base": (
        247_577_856,
        {"sliding_window": 128, "summary_block": None, "decoder_window": 0, "gated": True},
    ),
    "long-t5-tglobal-base": (
        247_587_456,
        {"sliding_window": 128, "summary_block": 16, "activation": "gelu-tanh"},
    ),
}
# Keys of a reference config that do not describe the model.
OTHER = {
    *(
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "dtype",
        "id2label",
        "initializer_range",
        "label2id",
    ),
    *("transformers_version", "use_cache"),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_published_config_is_read_and_written(name: str, tmp_path: Path) -> None:
    values = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config, (parameters, facts) = read_config(tmp_path), FACTS[name]
    assert {key: getattr(config, key) for key in facts} == facts
    family = FAMILIES[values["model_type"]]
    written = {"architectures": [family.architecture(config)], **family.write(config)}
    assert family.fits(config) and family.read(written) == config
    reference = getattr(transformers, family.architecture(config))
    with torch.device("meta"):
        theirs = reference(reference.config_class.from_dict(dict(values)))
    expected = sum(p.numel() for p in theirs.parameters())
    expected += sum(b.numel() for name, b in theirs.named_buffers() if name == "final_logits_bias")
    if (
        values.get("tie_word_embeddings") is False
    ):  # the reference ties them before it reads the weights
        expected += config.vocab_size * config.d_model
    assert count_parameters(config) == expected == parameters
    before, after = (
        reference.config_class.from_dict({**each}).to_dict() for each in (values, written)
    )
    for key in reference.config_class().to_dict().keys() - OTHER:
        assert before[key] == after[key], key


# --- Longformer -----------------------------------------------------------------------------------


def test_choices_have_global_answers(tmp_path: Path) -> None:
    tokens = torch.randint(6, 38, (2, 3, 13), generator=torch.Generator().manual_seed(0))
    tokens[..., [3, 4, 12]] = 2
    model = make("longformer", "ForMultipleChoice")
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs")
    with torch.no_grad():
        got = ours.head_outputs(Inputs(tokens.flatten(0, 1)))["choice"].view(2, 3)
        torch.testing.assert_close(got, model(tokens).logits, rtol=0, atol=1e-4)
    save_model(tmp_path / "ours", ours)
    before, after = read(tmp_path / "theirs"), read(tmp_path / "ours")
    assert before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )


@pytest.mark.parametrize("ending", ["Model", "ForMaskedLM", "ForTokenClassification"])
@torch.no_grad()
def test_any_tokens_may_be_global(ending: str, saved: Saved) -> None:
    ours, _ = load_model(saved("longformer", ending))
    model, generator = make("longformer", ending), torch.Generator().manual_seed(0)
    tokens = torch.randint(6, 38, (2, 17), generator=generator)
    real = torch.arange(17) < torch.tensor([[17], [12]])
    chosen = real & (torch.rand(2, 17, generator=generator) < 0.2)
    tokens = tokens.where(real, 1)
    states = model(tokens, real.long(), chosen.long(), output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(
        ours(Inputs(tokens, real, globals=chosen))[real], states[real], rtol=1e-4, atol=1e-4
    )


# --- LED ------------------------------------------------------------------------------------------


def test_a_decoder_has_its_own_number_of_positions(saved: Saved) -> None:
    model, settings = load_model(saved("led"))
    source = torch.randint(6, 38, (1, 24), generator=torch.Generator().manual_seed(0))
    config = resolve(settings, {"max_new_tokens": 40, "num_beams": 1, "min_new_tokens": 14})
    (outputs,) = generate_tokens(model, Inputs(source), config)
    assert len(outputs[0].tokens) == 14
    with pytest.raises(ValueError, match="15 tokens exceed max_positions = 14"):
        model.decode(Inputs(source[:, :15]), model.encode(Inputs(source)))
