"""Marian against the reference, in both directions: equal logits, bit-identical tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.nn import Inputs, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

Make = Callable[..., Transformer]

OURS: dict[str, dict[str, Any]] = {
    "the paper": {},
    "biases": {"attention_bias": True, "lm_head_bias": True, "activation": "gelu"},
    "own target vocabulary": {"target_vocab_size": 23, "activation": "silu", "lm_head_bias": True},
    "two tables of one size": {"target_vocab_size": 31, "attention_bias": True},
    "shallow decoder": {"n_decoder_layers": 1, "activation": "gelu-tanh", "scale_embeddings": False},
    "deep decoder, halves": {"n_decoder_layers": 3, "positions": "sinusoidal-halves", "decoder_start_id": 0},
}
THEIRS: dict[str, dict[str, Any]] = {
    "swish, scaled": {"activation_function": "swish", "scale_embedding": True},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 23},
    "deep encoder, bos": {"decoder_layers": 1, "bos_token_id": 1, "activation_function": "relu"},
}


def sentences(targets: int) -> tuple[Tensor, Tensor, Tensor]:
    source, target = torch.randint(3, 31, (4, 9)), torch.randint(3, targets, (4, 7))
    real = torch.arange(9) < torch.tensor([9, 5, 1, 7])[:, None]
    return source.masked_fill(~real, 0), real, target


def logits_of(model: Transformer, source: Tensor, real: Tensor, target: Tensor) -> Tensor:
    assert model.lm_head is not None
    return model.lm_head(model(Inputs(source, real), Inputs(target)))


def assert_same_logits(model: Transformer, reference: Any) -> None:
    source, real, target = sentences(model.config.output_vocab_size)
    with torch.no_grad():
        mine = logits_of(model, source, real, target)
        theirs = reference.eval()(
            input_ids=source, attention_mask=real.long(), decoder_input_ids=target
        ).logits
    assert mine.std() > 0.5  # a small difference is meaningful
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("case", OURS)
def test_our_models_in_the_reference_and_back(case: str, make_model: Make, tmp_path: Path) -> None:
    model = make_model(**OURS[case])
    save_model(tmp_path, model)
    reference, report = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_logits(model, reference)

    back, _ = load_model(tmp_path)
    assert back.config == model.config
    for (name, mine), (other, again) in zip(model.named_parameters(), back.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(mine, again)


@pytest.mark.parametrize("case", THEIRS)
def test_their_models_here_and_back(
    case: str, randomised: Callable[[torch.nn.Module], None], tmp_path: Path
) -> None:
    sizes = {
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
    }
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
    config = transformers.MarianConfig(
        **{"vocab_size": 31, "d_model": 16, "max_position_embeddings": 48}
        | sizes
        | layers
        | ids
        | THEIRS[case]
    )
    reference = transformers.MarianMTModel(config)
    positions = reference.model.encoder.embed_positions.weight.clone()
    randomised(reference)
    for stack in (reference.model.encoder, reference.model.decoder):
        stack.embed_positions.weight.data = positions.clone()
    reference.final_logits_bias.normal_()
    reference.save_pretrained(tmp_path / "theirs")

    model, generation = load_model(tmp_path / "theirs")
    # Their defaults: padding may be generated, and truncated text ends with the end token.
    assert generation == {"bad_words_ids": [], "forced_eos_token_id": model.config.eos_id}
    assert_same_logits(model, reference)

    save_model(tmp_path / "again", model)
    before = load_file(tmp_path / "theirs" / "model.safetensors")
    after = load_file(tmp_path / "again" / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert_same_logits(model, transformers.MarianMTModel.from_pretrained(tmp_path / "again"))


def test_every_key_of_the_reference_is_known(make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    save_model(tmp_path, model)
    full = transformers.MarianConfig.from_pretrained(tmp_path).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(full), encoding="utf-8")
    assert load_model(tmp_path)[0].config == model.config


def test_biases_trained_by_the_reference_must_be_enabled(make_model: Make, tmp_path: Path) -> None:
    save_model(tmp_path, make_model())
    reference = transformers.MarianMTModel.from_pretrained(tmp_path)
    reference.model.encoder.layers[0].self_attn.q_proj.bias.data.normal_()
    reference.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"not zero: .*q_proj\.bias.*attention_bias: true"):
        load_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"attention_bias": True}), encoding="utf-8"
    )
    assert_same_logits(load_model(tmp_path)[0], reference)


def test_old_files_repeat_tied_tensors_and_positions(make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    save_model(tmp_path, model)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    shared = tensors["model.shared.weight"]
    for name in ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens"):
        tensors[f"{name}.weight"] = shared.clone()
    tensors["model.encoder.embed_positions.weight"] = torch.zeros(48, 16)
    save_file(tensors, path)
    load_model(tmp_path)

    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"not equal: lm_head\.weight and model\.shared\.weight"):
        load_model(tmp_path)


def test_the_reference_generates_the_same(make_model: Make, tmp_path: Path) -> None:
    """Greedy search, step by step; generation_config.json has the start and end tokens."""
    model = make_model(decoder_start_id=2)
    save_model(tmp_path, model, generation={"max_new_tokens": 8})
    source = torch.randint(3, 31, (1, 6))
    reference = transformers.MarianMTModel.from_pretrained(tmp_path)
    theirs = reference.generate(source)[0].tolist()

    mine = [2]
    while len(mine) < 9 and (len(mine) == 1 or mine[-1] != 2):
        step = logits_of(model, source, torch.ones_like(source).bool(), torch.tensor([mine]))
        mine.append(int(step[0, -1].argmax()))
    assert mine == theirs
