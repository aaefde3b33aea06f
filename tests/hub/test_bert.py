"""BERT against the reference, with every head, and folders as the first releases had them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.loud import loud
from tests.hub.parity import check

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.nn import Inputs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

SMALL = {
    "vocab_size": 61,
    "max_position_embeddings": 24,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "masked words": ("BertForMaskedLM", {}),
    "masked words, relu, padding at the end": (
        "BertForMaskedLM",
        {"hidden_act": "relu", "pad_token_id": 60, "layer_norm_eps": 1e-5, "num_attention_heads": 2},
    ),
    "both trainings": ("BertForPreTraining", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "next sentence": ("BertForNextSentencePrediction", {"num_hidden_layers": 2}),
    "bare, with a pooler": ("BertModel", {"hidden_act": "silu", "type_vocab_size": 1}),
    "sequence": ("BertForSequenceClassification", {"num_labels": 5, "classifier_dropout": 0.3}),
    "one number a sequence": ("BertForSequenceClassification", {"num_labels": 1}),
    "token": ("BertForTokenClassification", {"num_labels": 3, "attention_probs_dropout_prob": 0.0}),
    "span": ("BertForQuestionAnswering", {"hidden_dropout_prob": 0.2}),
}


def tiny(name: str, **options: Any) -> Any:
    return loud(getattr(transformers, name)(transformers.BertConfig(**SMALL | options)))


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_reference(case: str) -> None:
    name, options = CASES[case]
    segments = torch.randint(options.get("type_vocab_size", 2), (3, 9))
    ours = check(tiny(name, **options), token_type_ids=segments)
    assert ours.family == "bert"


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.head_outputs(Inputs(tokens))["lm"]


def test_untied_it_has_a_bias_that_nothing_reads(tmp_path: Path) -> None:
    model, tokens = tiny("BertForMaskedLM", tie_word_embeddings=False), torch.arange(5, 20)[None]
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs")
    save_model(tmp_path / "back", ours)
    again, report = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        expected = model(tokens).logits
        torch.testing.assert_close(logits(ours, tokens), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(again.eval()(tokens).logits, expected, rtol=0, atol=1e-5)


def test_a_folder_of_2018(tmp_path: Path) -> None:
    """Norms had gamma and beta; tied copies, buffers and the other training's heads lay beside the masked words."""
    model, tokens = tiny("BertForPreTraining"), torch.arange(5, 20)[None]
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(path).items()
    }
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(24)[None]
    save_file(tensors, path)
    values = {
        **SMALL,
        "architectures": ["BertForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "directionality": "bidi",
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "model_type": "bert",
        "pad_token_id": 0,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0",
        "type_vocab_size": 2,
        "use_cache": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    ours, _ = load_model(tmp_path)
    assert ours.config.chosen_heads == ("lm",)
    with torch.no_grad():
        expected = model(tokens).prediction_logits
    torch.testing.assert_close(logits(ours, tokens), expected, rtol=0, atol=1e-4)

    tensors["cls.predictions.decoder.weight"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"not equal: cls\.predictions\.decoder\.weight and bert\.emb"):
        load_model(tmp_path)


def test_a_bare_model_may_be_taken_out_of_a_larger_one(tmp_path: Path) -> None:
    model = tiny("BertModel")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({f"bert.{name}": tensor for name, tensor in load_file(path).items()}, path)
    ours, _ = load_model(tmp_path)
    tokens = torch.arange(5, 20)[None]
    with torch.no_grad():
        pooled = ours.head_outputs(Inputs(tokens))["pooler"]
        torch.testing.assert_close(pooled, model(tokens).pooler_output, rtol=0, atol=1e-4)
