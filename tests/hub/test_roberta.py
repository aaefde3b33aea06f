"""RoBERTa, CamemBERT and XLM-RoBERTa against the reference: positions begin behind the id of the padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.loud import loud
from tests.hub.parity import check

from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 24,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "type_vocab_size": 1,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "masked words": ("Roberta", "ForMaskedLM", {"layer_norm_eps": 1e-5}),
    "padding 4, relu inside": ("Roberta", "ForMaskedLM", {"pad_token_id": 4, "hidden_act": "relu"}),
    "bare": ("Roberta", "Model", {"type_vocab_size": 2}),
    "sequence": ("Roberta", "ForSequenceClassification", {"num_labels": 4, "classifier_dropout": 0.0}),
    "token": ("Roberta", "ForTokenClassification", {"num_labels": 3}),
    "span": ("Roberta", "ForQuestionAnswering", {"pad_token_id": 0}),
    "CamemBERT": ("Camembert", "ForMaskedLM", {}),
    "CamemBERT, token": ("Camembert", "ForTokenClassification", {"num_hidden_layers": 3}),
    "XLM-R": ("XLMRoberta", "ForMaskedLM", {"hidden_act": "gelu_new"}),
    "XLM-R, sequence": ("XLMRoberta", "ForSequenceClassification", {}),
    "XLM-R, bare": ("XLMRoberta", "Model", {}),
}
FAMILY = {"Roberta": "roberta", "Camembert": "camembert", "XLMRoberta": "xlm-roberta"}


def tiny(stem: str, suffix: str, **options: Any) -> Any:
    config = getattr(transformers, f"{stem}Config")(**SMALL | options)
    return loud(getattr(transformers, stem + suffix)(config))


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    stem, suffix, options = CASES[case]
    ours = check(tiny(stem, suffix, **options))
    assert ours.family == FAMILY[stem]
    pad = options.get("pad_token_id", 1)
    assert (ours.config.position_offset, ours.config.max_positions) == (pad + 1, 24 - pad - 1)


def test_untied(tmp_path: Path) -> None:
    model, tokens = tiny("Roberta", "ForMaskedLM", tie_word_embeddings=False), torch.arange(5, 20)[None]
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    with torch.no_grad():
        mine = ours.head_outputs(Inputs(tokens))["lm"]
        torch.testing.assert_close(mine, model(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_position_embeddings": 2}, "max_position_embeddings: 2 leaves no position"),
        ({"pad_token_id": None}, "pad_token_id: null"),
    ],
)
def test_where_words_would_have_no_position(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    tiny("Roberta", "ForMaskedLM").save_pretrained(tmp_path)
    config = transformers.RobertaConfig.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict() | options), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)
