"""Files of old releases of BART and Marian; what a decoder of mBART reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.hub.checkpoints import edit, equal, read, settings, write
from tests.hub.parity import check, make

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.nn import Inputs, ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


Make = Callable[..., Transformer]


@pytest.mark.slow
def test_a_bart_file_of_2020_is_loaded(tmp_path: Path) -> None:
    """Many keys have no effect, and some tensors are stored twice."""
    make("bart").save_pretrained(tmp_path)
    ours, tensors = load_model(tmp_path)[0], read(tmp_path)
    assert (
        ours.lm_head is not None and ours.lm_head.bias is not None and ours.lm_head.bias.std() > 0.1
    )
    edit(
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
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        tensors[f"{name}.weight"] = tensors["model.shared.weight"].clone()
    tensors["model.encoder.version"] = torch.tensor([3.0])
    for _ in range(2):  # with the shared table, and without it
        write(tmp_path, tensors)
        reloaded = load_model(tmp_path)[0]
        assert reloaded.config == ours.config and equal(reloaded, ours)
        tensors.pop("model.shared.weight", None)


@pytest.mark.slow
def test_positions_include_the_rows_of_the_offset(tmp_path: Path) -> None:
    make("bart").save_pretrained(tmp_path)
    tensors = read(tmp_path)
    del tensors["final_logits_bias"]
    write(tmp_path, tensors | {"model.encoder.embed_positions.weight": torch.zeros(24, 16)})
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert "missing: final_logits_bias" in str(caught.value)
    assert "embed_positions.weight is (24, 16) and should be (26, 16)" in str(caught.value)


def test_a_missing_logits_bias_is_written_as_zeros(tmp_path: Path) -> None:
    parts = {
        "positions": "learned",
        "position_offset": 2,
        "embedding_norm": True,
        "attention_bias": True,
    }
    sizes = {
        "vocab_size": 40,
        "d_model": 16,
        "d_ff": 24,
        "n_layers": 1,
        "n_heads": 4,
        "max_positions": 24,
    }
    save_model(tmp_path, Transformer(ModelConfig.parse(parts | sizes)).eval())
    reference = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    assert not reference.final_logits_bias.any()
    reference.final_logits_bias[0, 3] = 1.0
    reference.save_pretrained(tmp_path)
    edit(tmp_path, lm_head_bias=False)
    with pytest.raises(CheckpointError, match=r"not zero: final_logits_bias.*lm_head_bias: true"):
        load_model(tmp_path)


def test_marian_biases_trained_by_the_reference_must_be_enabled(
    make_model: Make, tmp_path: Path
) -> None:
    save_model(tmp_path, make_model())
    reference = transformers.MarianMTModel.from_pretrained(tmp_path)
    reference.model.encoder.layers[0].self_attn.q_proj.bias.data.normal_()
    reference.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"not zero: .*q_proj\.bias.*attention_bias: true"):
        load_model(tmp_path)
    edit(tmp_path, attention_bias=True)
    tokens = torch.arange(3, 15).view(2, 6)
    got = load_model(tmp_path)[0].head_outputs(Inputs(tokens), Inputs(tokens))["lm"]
    expected = reference.eval()(tokens, decoder_input_ids=tokens).logits
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_old_marian_files_repeat_tied_tensors_and_positions(
    make_model: Make, tmp_path: Path
) -> None:
    model = make_model()
    save_model(tmp_path, model)
    tensors = read(tmp_path)
    shared = tensors["model.shared.weight"]
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        tensors[f"{name}.weight"] = shared.clone()
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(48, 16)
    write(tmp_path, tensors)
    assert equal(load_model(tmp_path)[0], model)
    edit(tmp_path, max_position_embeddings=49)
    with pytest.raises(
        CheckpointError, match=r"embed_positions\.weight is \(48, 16\) and should be \(49, 16\)"
    ):
        load_model(tmp_path)

    edit(tmp_path, max_position_embeddings=48)
    tensors["lm_head.weight"][0, 0] += 1
    write(tmp_path, tensors)
    with pytest.raises(
        CheckpointError, match=r"not equal: lm_head\.weight and model\.shared\.weight"
    ):
        load_model(tmp_path)


def test_the_reference_generates_the_same_tokens_from_our_folder(
    make_model: Make, tmp_path: Path
) -> None:
    """Greedy search; the start and end tokens are in generation_config.json."""
    model = make_model(decoder_start_id=2)
    save_model(tmp_path, model, generation={"max_new_tokens": 8})
    source = torch.randint(3, 31, (1, 6))
    expected = transformers.MarianMTModel.from_pretrained(tmp_path).generate(source)[0].tolist()
    got = [2]
    while len(got) < 9 and (len(got) == 1 or got[-1] != 2):
        logits = model.head_outputs(Inputs(source), Inputs(torch.tensor([got])), heads=["lm"])["lm"]
        got.append(int(logits[0, -1].argmax()))
    assert got == expected


def test_a_classifier_of_mbart_begins_with_the_language_of_its_source() -> None:
    """Sources end with </s> and a language, which is the first token of the decoder."""
    tokens = torch.randint(6, 30, (3, 9), generator=torch.Generator().manual_seed(0))
    for row, length in enumerate((9, 7, 4)):
        tokens[row, length - 2 :] = torch.tensor([2, 35 + row, *[1] * (9 - length)])
    check(make("mbart", "ForSequenceClassification"), tokens=tokens, decoder=False)


@torch.no_grad()
def test_without_a_start_token_mbart_begins_with_the_token_bos(tmp_path: Path) -> None:
    model, tokens = make("mbart", bos_token_id=5), torch.tensor([[7, 9, 11, 2]])
    model.save_pretrained(tmp_path)
    assert settings(tmp_path)["decoder_start_token_id"] is None
    ours, _ = load_model(tmp_path)
    assert ours.config.start_id == int(model.generate(tokens, max_new_tokens=1)[0, 0]) == 5
    save_model(tmp_path, ours)
    assert settings(tmp_path)["decoder_start_token_id"] == 5
