"""Files of old releases of BERT and DistilBERT, and the shared blocks of ALBERT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.command_line import run_command
from tests.hub.checkpoints import equal, read, write
from tests.hub.parity import make
from tests.hub.tiny import TINY
from torch import Tensor

from trifold.errors import CheckpointError
from trifold.hub import load_model, save_model
from trifold.hub.convert import convert
from trifold.hub.families import bert
from trifold.nn import Inputs, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


TOKENS = torch.arange(5, 20)[None]


@torch.no_grad()
def logits(model: Transformer, head: str = "lm") -> Tensor:
    return model.head_outputs(Inputs(TOKENS))[head]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_untied_output_layers_have_an_unused_bias(family: str, tmp_path: Path) -> None:
    model = make(family, "ForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs")
    save_model(tmp_path / "back", ours)
    reloaded, report = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        expected = model(TOKENS).logits
        torch.testing.assert_close(logits(ours), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(reloaded.eval()(TOKENS).logits, expected, rtol=0, atol=1e-5)


def test_tensors_that_nothing_uses_are_written_back_or_reported(tmp_path: Path) -> None:
    make("bert", "ForMaskedLM", tie_word_embeddings=False).save_pretrained(tmp_path / "old")
    other, ignored = "cls.predictions.bias", "cls.seq_relationship.bias"
    tensors = {other: torch.arange(5, dtype=torch.float16), ignored: torch.ones(2)}
    write(tmp_path / "old", read(tmp_path / "old") | tensors)
    save_model(tmp_path / "saved", load_model(tmp_path / "old")[0])
    assert torch.equal(read(tmp_path / "saved")[other], tensors[other].float())
    assert convert(tmp_path / "old", tmp_path / "new").unused == [ignored]
    kept = read(tmp_path / "new")[other]
    assert kept.dtype == torch.float16 and torch.equal(kept, tensors[other])
    assert set(convert(tmp_path / "old", tmp_path / "native", to="native").unused) == {
        other,
        ignored,
    }
    done = run_command("convert", str(tmp_path / "old"), str(tmp_path / "again"))
    assert (done.code, done.err) == (0, "unused tensors, not written: 1; --json lists them\n")


BERT_2018 = {
    **TINY["bert"].sizes,
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


def test_a_bert_file_of_2018_is_loaded(tmp_path: Path) -> None:
    """Norms have gamma and beta; the file contains tied copies, buffers and the heads of the other
    task.
    """
    model = make("bert", "ForPreTraining")
    model.save_pretrained(tmp_path)
    tensors = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in read(tmp_path).items()
    }
    tensors["cls.predictions.decoder.weight"] = tensors[
        "bert.embeddings.word_embeddings.weight"
    ].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(24)[None]
    write(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(BERT_2018), encoding="utf-8")
    ours, _ = load_model(tmp_path)
    assert ours.config.chosen_heads == ("lm",)
    with torch.no_grad():
        expected = model(TOKENS).prediction_logits
    torch.testing.assert_close(logits(ours), expected, rtol=0, atol=1e-4)

    tensors["cls.predictions.decoder.weight"][0, 0] += 1
    write(tmp_path, tensors)
    with pytest.raises(
        CheckpointError, match=r"not equal: cls\.predictions\.decoder\.weight and bert\.emb"
    ):
        load_model(tmp_path)


def test_a_bare_bert_may_have_the_prefix_of_a_larger_model(tmp_path: Path) -> None:
    model = make("bert", "Model")
    model.save_pretrained(tmp_path)
    write(tmp_path, {f"bert.{name}": tensor for name, tensor in read(tmp_path).items()})
    with torch.no_grad():
        pooled = model(TOKENS).pooler_output
    torch.testing.assert_close(logits(load_model(tmp_path)[0], "pooler"), pooled, rtol=0, atol=1e-4)


def test_old_distilbert_files_repeat_the_embeddings(tmp_path: Path) -> None:
    make("distilbert").save_pretrained(tmp_path)
    before, tensors = load_model(tmp_path)[0], read(tmp_path)
    table = "distilbert.embeddings.word_embeddings.weight"
    write(tmp_path, tensors | {"vocab_projector.weight": tensors[table].clone()})
    assert equal(load_model(tmp_path)[0], before)
    tensors["vocab_projector.weight"] = tensors.pop(table)
    write(tmp_path, tensors)
    assert equal(load_model(tmp_path)[0], before)


# --- ALBERT ---------------------------------------------------------------------------------------

ALBERT = TINY["bert"].sizes | {"embedding_size": 8}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
def test_groups_are_inferred_from_the_block_order(layers: int, groups: int, inner: int) -> None:
    groups = min(layers, groups)
    counts = {"num_hidden_layers": layers, "num_hidden_groups": groups, "inner_group_num": inner}
    config = bert.ALBERT.read(ALBERT | counts)
    inferred = bert.groups_of(config)
    assert inferred is not None and bert.order(*inferred) == bert.order(layers, groups, inner)
    if (
        groups < layers or inner == 1
    ):  # otherwise no block is used twice, and several are equivalent
        assert inferred == (layers, groups, inner)
    assert bert.ALBERT.read(bert.ALBERT.write(config)) == config


def test_an_irregular_block_order_has_no_groups() -> None:
    config = bert.ALBERT.read(ALBERT | {"num_hidden_layers": 3})
    assert bert.ALBERT.fits(config)
    assert not bert.ALBERT.fits(config.model_copy(update={"block_of_layer": (0, 1, 0)}))


def test_a_shared_block_may_have_more_layers_than_tensors(tmp_path: Path) -> None:
    make("albert", "ForTokenClassification", num_hidden_layers=40).save_pretrained(tmp_path)
    assert load_model(tmp_path)[0].config.n_layers == 40
