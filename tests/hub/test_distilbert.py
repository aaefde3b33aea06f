"""DistilBERT against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from tests.hub.loud import loud
from tests.hub.parity import check

from trifold.hub import load_model, save_model
from trifold.hub.families import distilbert

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 24,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "masked words": ("DistilBertForMaskedLM", {"n_layers": 3}),
    "masked words, untied, relu": (
        "DistilBertForMaskedLM",
        {"tie_word_embeddings": False, "activation": "relu"},
    ),
    "bare, waves": ("DistilBertModel", {"sinusoidal_pos_embds": True, "n_heads": 2}),
    "sequence": ("DistilBertForSequenceClassification", {"num_labels": 4, "seq_classif_dropout": 0.4}),
    "token": ("DistilBertForTokenClassification", {"num_labels": 3, "pad_token_id": 5}),
    "span": ("DistilBertForQuestionAnswering", {"qa_dropout": 0.0, "attention_dropout": 0.0}),
}


def tiny(name: str, **options: Any) -> Any:
    return loud(getattr(transformers, name)(transformers.DistilBertConfig(**SMALL | options)))


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    ours = check(tiny(name, **options))
    assert ours.family == "distilbert"


def test_each_head_has_a_dropout_of_its_own(tmp_path: Path) -> None:
    tiny("DistilBertForSequenceClassification", seq_classif_dropout=0.4).save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    assert ours.config.classifier_dropout == 0.4
    save_model(tmp_path / "back", ours)
    assert transformers.DistilBertConfig.from_pretrained(tmp_path / "back").seq_classif_dropout == 0.4
    masked = ours.config.model_copy(
        update={"heads": ("lm",), "lm_head_transform": "gelu", "lm_head_bias": True}
    )
    assert not distilbert.FAMILY.fits(masked.model_copy(update={"classifier_transform": None}))


def test_old_files_repeat_the_embeddings(tmp_path: Path) -> None:
    tiny("DistilBertForMaskedLM").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = "distilbert.embeddings.word_embeddings.weight"
    save_file(tensors | {"vocab_projector.weight": tensors[table].clone()}, path)
    load_model(tmp_path)
    tensors["vocab_projector.weight"] = tensors.pop(table)
    save_file(tensors, path)
    load_model(tmp_path)
