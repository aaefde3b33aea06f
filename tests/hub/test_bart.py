"""BART against the reference: numbers, gradients, bytes; and what in a folder is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import check, randomised

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.nn import ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "max_position_embeddings": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}


def small(name: str = "BartForConditionalGeneration", **values: Any) -> Any:
    """A reference model; heads of few classes are enlarged, so that their answers are of natural size."""
    model = randomised(getattr(transformers, name)(transformers.BartConfig(**SMALL | values)))
    with torch.no_grad():
        for head, weight in model.named_parameters():
            if head in ("classification_head.out_proj.weight", "qa_outputs.weight"):
                weight.mul_(8)
    return model


CASES: dict[str, dict[str, Any]] = {
    "as published": {},
    "scaled embeddings, relu": {"scale_embedding": True, "activation_function": "relu"},
    "two sides of different sizes": {
        "decoder_layers": 3,
        "encoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 40,
        "activation_function": "silu",
    },
    "other special tokens": {
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 1,
        "activation_function": "gelu_new",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_it_writes_as_the_reference_does_and_goes_back(case: str) -> None:
    model = check(small(**CASES[case]))
    assert model.lm_head is not None and model.lm_head.bias is not None
    assert model.lm_head.bias.std() > 0.1  # the bias of the logits is a part of the comparison


@pytest.mark.parametrize("name", ["BartModel", "BartForQuestionAnswering"])
def test_other_heads_answer_as_the_reference_does(name: str) -> None:
    check(small(name))


@pytest.mark.parametrize("labels", [None, 5])
def test_classes_of_a_text_are_read_at_its_end(labels: int | None) -> None:
    tokens = torch.randint(3, 61, (3, 9))
    for row, length in enumerate((9, 5, 7)):
        tokens[row, length - 1], tokens[row, length:] = 2, 1
    given = {} if labels is None else {"num_labels": labels}
    model = check(small("BartForSequenceClassification", **given), tokens=tokens, decoder=False)
    assert model.config.n_labels == (3 if labels is None else labels)


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def test_the_folders_of_2020_are_read(tmp_path: Path) -> None:
    """Their keys, of which half say nothing, and their tensors, of which some are there twice."""
    small().save_pretrained(tmp_path)
    ours = load_model(tmp_path)[0]
    change(
        tmp_path,
        _num_labels=3,
        add_bias_logits=False,
        add_final_layer_norm=False,
        classif_dropout=0.1,
        extra_pos_embeddings=2,
        force_bos_token_to_be_generated=True,
        gradient_checkpointing=False,
        normalize_before=False,
        normalize_embedding=True,
        num_hidden_layers=2,
        output_past=False,
        prefix=" ",
        static_position_embeddings=False,
        task_specific_params={"summarization": {"num_beams": 4}},
        early_stopping=True,
    )
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        tensors[f"{name}.weight"] = tensors["model.shared.weight"].clone()
    tensors["model.encoder.version"] = torch.tensor([3.0])
    save_file(tensors, path, metadata={"format": "pt"})
    again = load_model(tmp_path)[0]
    assert again.config == ours.config
    assert all(
        torch.equal(mine, other) for mine, other in zip(ours.parameters(), again.parameters(), strict=True)
    )

    del tensors["model.shared.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    again = load_model(tmp_path)[0]
    assert all(
        torch.equal(mine, other) for mine, other in zip(ours.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("decoder_layer", 4, "did you mean 'decoder_layers'?"),
        ("normalize_before", True, "normalize_before"),
        ("tie_word_embeddings", False, "tie_word_embeddings"),
        ("num_hidden_layers", 3, "contradicts encoder_layers 2"),
        ("activation_function", "mish", "mish"),
        ("architectures", ["BartForCausalLM"], "BartForConditionalGeneration"),
        ("is_decoder", True, "is_decoder"),
    ],
)
def test_keys_that_are_not_known_or_not_here_are_refused(
    key: str, value: object, said: str, tmp_path: Path
) -> None:
    small().save_pretrained(tmp_path)
    change(tmp_path, **{key: value})
    with pytest.raises(CheckpointError, match=r"config\.json: ") as caught:
        load_model(tmp_path)
    assert said in str(caught.value)


def test_all_that_is_wrong_with_the_tensors_is_one_error(tmp_path: Path) -> None:
    small().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["final_logits_bias"]
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(24, 32)  # without the two rows in front
    tensors["model.encoder.layer_norm.weight"] = torch.ones(32)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    said = str(caught.value)
    assert "missing: final_logits_bias" in said
    assert "wrong shape: model.encoder.embed_positions.weight is (24, 32) and should be (26, 32)" in said
    assert "not known: 'model.encoder.layer_norm.weight'" in said


OURS = {
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "attention_bias": True,
    "vocab_size": 61,
    "d_model": 32,
    "d_ff": 48,
    "n_layers": 2,
    "n_heads": 4,
    "max_positions": 24,
}


@pytest.mark.parametrize(
    ("more", "family"),
    [
        ({}, "bart"),
        ({"n_decoder_heads": 2, "d_decoder_ff": 40, "n_decoder_layers": 1, "lm_head_bias": True}, "bart"),
        ({"heads": ("sequence",), "classifier_input": "eos", "classifier_transform": "tanh"}, "bart"),
        ({"heads": ("sequence",)}, "trifold"),
        ({"position_offset": 0}, "trifold"),
        ({"d_head": 16, "n_decoder_heads": 2}, "trifold"),
        ({"norm_placement": "pre"}, "trifold"),
    ],
)
def test_what_is_trained_here_is_a_bart_where_it_can_be(
    more: dict[str, Any], family: str, tmp_path: Path
) -> None:
    config = ModelConfig.parse(OURS | more)
    save_model(tmp_path, Transformer(config))
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["model_type"] == family
    assert load_model(tmp_path)[0].config == config


def test_without_a_bias_of_logits_the_reference_gets_zeros(tmp_path: Path) -> None:
    model = Transformer(ModelConfig.parse(OURS)).eval()
    save_model(tmp_path, model)
    reference = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    assert not reference.final_logits_bias.any()
    reference.final_logits_bias[0, 3] = 1.0
    reference.save_pretrained(tmp_path)
    change(tmp_path, lm_head_bias=False)
    with pytest.raises(CheckpointError, match=r"not zero: final_logits_bias.*lm_head_bias: true"):
        load_model(tmp_path)
