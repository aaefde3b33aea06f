"""Laws of single families: files of old releases, shared blocks, images, permuted tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file
from tests.hub.families import TEXT, XLNET
from tests.hub.parity import check, inputs_for, make
from tests.text.folders import OLD
from torch import Tensor
from torch.nn import functional as F

import trifold
from trifold.errors import CheckpointError
from trifold.hub import load_model, read_config, save_model
from trifold.hub.families import bert
from trifold.nn import Inputs, ModelConfig, Transformer

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")

TOKENS = torch.arange(5, 20)[None]


def edit(folder: Path, **values: object) -> None:
    """Change keys of config.json; "absent" removes a key."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}), encoding="utf-8")


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def equal(one: Transformer, other: Transformer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@torch.no_grad()
def logits(model: Transformer, head: str = "lm") -> Tensor:
    return model.head_outputs(Inputs(TOKENS))[head]


# --- BERT and its relatives ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_untied_output_layers_have_a_bias_that_nothing_reads(family: str, tmp_path: Path) -> None:
    model = make(family, "ForMaskedLM", tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "theirs")
    ours, _ = load_model(tmp_path / "theirs")
    save_model(tmp_path / "back", ours)
    again, report = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        expected = model(TOKENS).logits
        torch.testing.assert_close(logits(ours), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(again.eval()(TOKENS).logits, expected, rtol=0, atol=1e-5)


BERT_2018 = {
    **TEXT,
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


def test_bert_of_2018(tmp_path: Path) -> None:
    """Norms had gamma and beta; tied copies, buffers and the heads of the other pretraining task were stored."""
    model = make("bert", "ForPreTraining")
    model.save_pretrained(tmp_path)
    tensors = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor
        for name, tensor in read(tmp_path).items()
    }
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
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
    with pytest.raises(CheckpointError, match=r"not equal: cls\.predictions\.decoder\.weight and bert\.emb"):
        load_model(tmp_path)


def test_a_bare_bert_may_come_from_a_larger_model(tmp_path: Path) -> None:
    model = make("bert", "Model")
    model.save_pretrained(tmp_path)
    write(tmp_path, {f"bert.{name}": tensor for name, tensor in read(tmp_path).items()})
    with torch.no_grad():
        pooled = model(TOKENS).pooler_output
    torch.testing.assert_close(logits(load_model(tmp_path)[0], "pooler"), pooled, rtol=0, atol=1e-4)


def test_old_distilberts_repeat_the_embeddings(tmp_path: Path) -> None:
    make("distilbert").save_pretrained(tmp_path)
    before, tensors = load_model(tmp_path)[0], read(tmp_path)
    table = "distilbert.embeddings.word_embeddings.weight"
    write(tmp_path, tensors | {"vocab_projector.weight": tensors[table].clone()})
    assert equal(load_model(tmp_path)[0], before)
    tensors["vocab_projector.weight"] = tensors.pop(table)
    write(tmp_path, tensors)
    assert equal(load_model(tmp_path)[0], before)


# --- ALBERT --------------------------------------------------------------------------------------------

ALBERT = TEXT | {"embedding_size": 8}


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
def test_groups_are_found_again(rounds: int, groups: int, inner: int) -> None:
    groups = min(rounds, groups)
    counts = {"num_hidden_layers": rounds, "num_hidden_groups": groups, "inner_group_num": inner}
    config = bert.ALBERT.read(ALBERT | counts)
    again = bert.groups_of(config)
    assert again is not None and bert.order(*again) == bert.order(rounds, groups, inner)
    if groups < rounds or inner == 1:  # otherwise no block is used twice, and several are equivalent
        assert again == (rounds, groups, inner)
    assert bert.ALBERT.read(bert.ALBERT.write(config)) == config


def test_no_group_has_an_irregular_order() -> None:
    config = bert.ALBERT.read(ALBERT | {"num_hidden_layers": 3})
    assert bert.ALBERT.fits(config)
    assert not bert.ALBERT.fits(config.model_copy(update={"block_of_layer": (0, 1, 0)}))


def test_more_layers_than_tensors(tmp_path: Path) -> None:
    make("albert", "ForTokenClassification", num_hidden_layers=40).save_pretrained(tmp_path)
    assert load_model(tmp_path)[0].config.n_layers == 40


# --- BART, T5, Falcon ----------------------------------------------------------------------------------


def test_bart_of_2020(tmp_path: Path) -> None:
    """Half of its keys change nothing, and some tensors are stored twice."""
    make("bart").save_pretrained(tmp_path)
    ours, tensors = load_model(tmp_path)[0], read(tmp_path)
    assert ours.lm_head is not None and ours.lm_head.bias is not None and ours.lm_head.bias.std() > 0.1
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
        again = load_model(tmp_path)[0]
        assert again.config == ours.config and equal(again, ours)
        tensors.pop("model.shared.weight", None)


def test_positions_need_the_rows_before_them(tmp_path: Path) -> None:
    make("bart").save_pretrained(tmp_path)
    tensors = read(tmp_path)
    del tensors["final_logits_bias"]
    write(tmp_path, tensors | {"model.encoder.embed_positions.weight": torch.zeros(24, 16)})
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path)
    assert "missing: final_logits_bias" in str(caught.value)
    assert "embed_positions.weight is (24, 16) and should be (26, 16)" in str(caught.value)


def test_a_missing_logits_bias_is_written_as_zeros(tmp_path: Path) -> None:
    parts = {"positions": "learned", "position_offset": 2, "embedding_norm": True, "attention_bias": True}
    sizes = {"vocab_size": 40, "d_model": 16, "d_ff": 24, "n_layers": 1, "n_heads": 4, "max_positions": 24}
    save_model(tmp_path, Transformer(ModelConfig.parse(parts | sizes)).eval())
    reference = transformers.BartForConditionalGeneration.from_pretrained(tmp_path)
    assert not reference.final_logits_bias.any()
    reference.final_logits_bias[0, 3] = 1.0
    reference.save_pretrained(tmp_path)
    edit(tmp_path, lm_head_bias=False)
    with pytest.raises(CheckpointError, match=r"not zero: final_logits_bias.*lm_head_bias: true"):
        load_model(tmp_path)


def test_old_flan_files_have_fewer_keys(tmp_path: Path) -> None:
    """Before version 5 the reference wrote tie_word_embeddings as it was, and neither scales nor activations."""
    make("t5", feed_forward_proj="gated-gelu", tie_word_embeddings=False, own_head=True).save_pretrained(
        tmp_path
    )
    new = load_model(tmp_path)[0].config
    edit(tmp_path, tie_word_embeddings=False, n_positions=512, initializer_factor=1.0)
    edit(tmp_path, **dict.fromkeys(("scale_decoder_outputs", "dense_act_fn", "is_gated_act"), "absent"))
    old = load_model(tmp_path)[0].config
    assert old == new
    assert not old.tie_lm_head and old.logits_scale == 1.0 and old.activation == "gelu-tanh"
    edit(tmp_path, feed_forward_proj="gated-swiglu")
    with pytest.raises(CheckpointError, match="feed_forward_proj: 'swiglu' is not known"):
        load_model(tmp_path)


def test_old_t5_files_repeat_the_table_or_rename_it(tmp_path: Path) -> None:
    make("t5").save_pretrained(tmp_path)
    ours, tensors = load_model(tmp_path)[0], read(tmp_path)
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = tensors["shared.weight"].clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(8, 4)
    for _ in range(2):  # with the shared table, and without it
        write(tmp_path, tensors)
        again = load_model(tmp_path)[0]
        assert again.config.tie_lm_head and equal(again, ours)
        tensors.pop("shared.weight", None)
    write(tmp_path, {f".{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(CheckpointError, match="missing: shared"):
        load_model(tmp_path)


def test_the_new_falcon_layout_has_all_heads_of_keys_by_default(tmp_path: Path) -> None:
    sizes = {"model_type": "falcon", "hidden_size": 32, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"new_decoder_architecture": True}), "utf-8")
    theirs = transformers.FalconConfig.from_pretrained(tmp_path)
    assert read_config(tmp_path).kv_heads == theirs.num_kv_heads == 4


# --- ViT -----------------------------------------------------------------------------------------------

# Ours -> theirs in memory, where the names are not those of the file.
IN_MEMORY = {
    "self_attention.sublayer.q_proj.weight": "attention.q_proj.weight",
    "self_attention.sublayer.v_proj.bias": "attention.v_proj.bias",
    "self_attention.sublayer.o_proj.weight": "attention.o_proj.weight",
    "feed_forward.sublayer.in_proj.weight": "mlp.fc1.weight",
    "feed_forward.sublayer.out_proj.bias": "mlp.fc2.bias",
}


def test_gradients_in_the_layers_of_vit(tmp_path: Path) -> None:
    model = make("vit", "ForImageClassification", num_labels=5)
    model.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    pixels, labels = inputs_for(model)["pixel_values"], torch.tensor([0, 3, 1, 4])
    F.cross_entropy(ours.head_outputs(Inputs(pixels=pixels))["sequence"], labels).backward()
    F.cross_entropy(model(pixels).logits, labels).backward()
    mine, theirs = dict(ours.named_parameters()), dict(model.named_parameters())
    for layer in range(2):
        for a, b in IN_MEMORY.items():
            expected = theirs[f"vit.layers.{layer}.{b}"].grad
            gradient = mine[f"encoder.blocks.{layer}.{a}"].grad
            assert gradient is not None and expected.norm() > 0
            assert (gradient - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.parametrize("ending", ["ForImageClassification", "Model"])
def test_vit_files_may_have_the_names_in_memory(ending: str, tmp_path: Path) -> None:
    model = make("vit", ending)
    model.save_pretrained(tmp_path / "disk")
    model.save_pretrained(tmp_path / "memory", save_original_format=False)
    assert set(read(tmp_path / "disk")) != set(read(tmp_path / "memory"))
    assert equal(load_model(tmp_path / "disk")[0], load_model(tmp_path / "memory")[0])


def test_tensors_of_other_vit_classes_are_ignored(tmp_path: Path) -> None:
    make("vit").save_pretrained(tmp_path)
    left = {
        "vit.embeddings.mask_token": torch.zeros(1, 1, 16),
        "vit.pooler.dense.weight": torch.zeros(16, 16),
        "vit.embeddings.position_ids": torch.arange(5),
    }
    write(tmp_path, read(tmp_path) | left)
    load_model(tmp_path)


# --- XLNet ---------------------------------------------------------------------------------------------

PAD = 5
ORDER = torch.tensor([[0, 2, 0, 3, 0, 1, 0, 0, 4], [0, 0, 0, 0, 3, 1, 0, 2, 0], [0, 0, 1, 0, 0, 0, 2, 3, 0]])


def texts(left: bool) -> Tensor:
    """Three rows of 9, 5 and 7 tokens, padded on one side."""
    tokens = torch.randint(6, 40, (3, 9), generator=torch.Generator().manual_seed(3))
    lengths, columns = torch.tensor([9, 5, 7])[:, None], torch.arange(9)
    return tokens.where(columns >= 9 - lengths if left else columns < lengths, PAD)


@pytest.mark.parametrize("segments", [False, True])
def test_xlnet_padded_at_the_end_with_and_without_segments(segments: bool) -> None:
    more = {"token_type_ids": torch.randint(0, 2, (3, 9))} if segments else {}
    check(make("xlnet"), tokens=texts(left=False), **more)


@pytest.mark.parametrize("left", [True, False])
@torch.no_grad()
def test_the_query_stream_in_any_order(left: bool, tmp_path: Path) -> None:
    """perm_mask hides tokens from each other, target_mapping selects the predicted ones."""
    theirs = make("xlnet")
    theirs.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens, segments = texts(left), torch.randint(0, 2, (3, 9))
    real = tokens != PAD
    order = ORDER * real
    predicted = order.argsort(dim=1, descending=True)[:, :3]
    later = order[:, None, :] >= order[:, :, None]
    hidden = torch.where(order[:, :, None] == 0, order[:, None, :] > 0, later)
    expected = theirs(
        tokens,
        attention_mask=real.long(),
        token_type_ids=segments,
        perm_mask=hidden.float(),
        target_mapping=F.one_hot(predicted, 9).float(),
    ).logits
    assert ours.lm_head is not None
    mine = ours.lm_head(ours.query_stream(Inputs(tokens, real, segments=segments, order=order), predicted))
    answered = order.gather(1, predicted) > 0
    assert answered.sum() >= 6 and expected[answered].std() > 1
    torch.testing.assert_close(mine[answered], expected[answered], rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_content_stream_in_any_order(tmp_path: Path) -> None:
    theirs = make("xlnet", "Model")
    theirs.save_pretrained(tmp_path)
    ours, _ = load_model(tmp_path)
    tokens, order = texts(left=False)[:1], torch.tensor([[3, 1, 9, 2, 7, 4, 8, 6, 5]])
    hidden = (order[:, None, :] > order[:, :, None]).float()
    expected = theirs(tokens, perm_mask=hidden).last_hidden_state
    torch.testing.assert_close(ours(Inputs(tokens, order=order)), expected, rtol=0, atol=1e-4)


XLNET_2019 = {
    **XLNET,
    "architectures": ["XLNetLMHeadModel"],
    "attn_type": "bi",
    "bi_data": False,
    "bos_token_id": 1,
    "clamp_len": -1,
    "d_head": 4,
    "dropout": 0.1,
    "end_n_top": 5,
    "eos_token_id": 2,
    "ff_activation": "gelu",
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "mem_len": None,
    "model_type": "xlnet",
    "reuse_len": None,
    "same_length": False,
    "start_n_top": 5,
    "summary_activation": "tanh",
    "summary_last_dropout": 0.1,
    "summary_type": "last",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
    "untie_r": True,
}


def test_xlnet_of_2019_has_a_tied_copy(tmp_path: Path) -> None:
    model = make("xlnet")
    model.save_pretrained(tmp_path)
    tensors = read(tmp_path)
    left = {
        "lm_loss.weight": tensors["transformer.word_embedding.weight"].clone(),
        "transformer.embeddings.position_ids": torch.arange(5),
    }
    write(tmp_path, tensors | left)
    (tmp_path / "config.json").write_text(json.dumps(XLNET_2019), encoding="utf-8")
    with torch.no_grad():
        expected = model(TOKENS).logits
    torch.testing.assert_close(logits(load_model(tmp_path)[0]), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("key", "value"), [("summary_use_proj", False), ("summary_activation", None)])
def test_a_summary_layer_and_its_activation_go_together(key: str, value: object, tmp_path: Path) -> None:
    values = XLNET_2019 | {"architectures": ["XLNetForSequenceClassification"], key: value}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="a layer and its activation go together"):
        read_config(tmp_path)


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a tokenizer, and the reference's tokenizer."""
    pytest.importorskip("sentencepiece")
    folder = OLD["xlnet"](tmp_path_factory.mktemp("xlnet"))
    return folder, transformers.AutoTokenizer.from_pretrained(folder)


def add_model(folder: Path, tokenizer: Any, ending: str, **options: Any) -> Any:
    model = make(
        "xlnet", ending, **options | {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    )
    model.save_pretrained(folder)
    return model


def test_a_text_is_classified_by_its_last_token(with_tokenizer: tuple[Path, Any]) -> None:
    folder, tokenizer = with_tokenizer
    theirs = add_model(folder, tokenizer, "ForSequenceClassification", num_labels=4)
    lines = ["the quick brown fox", "fox", "don't we've hello world playing"]
    inputs = tokenizer(lines, padding=True, return_tensors="pt")
    assert inputs["input_ids"][1, 0] == tokenizer.pad_token_id  # on the left
    with torch.no_grad():
        expected = theirs(**inputs).logits.softmax(-1)
    for scores, found in zip(expected, trifold.load(folder).classify(lines, top_k=None), strict=True):
        mine = {one.label: one.score for one in found}
        assert mine == pytest.approx({f"LABEL_{n}": float(p) for n, p in enumerate(scores)}, rel=1e-4)


def test_masks_are_filled_by_the_query_stream(with_tokenizer: tuple[Path, Any]) -> None:
    folder, tokenizer = with_tokenizer
    theirs = add_model(folder, tokenizer, "LMHeadModel")
    lines = ["the <mask> brown fox", "<mask> hello <mask>"]
    for text, found in zip(lines, trifold.load(folder).fill_mask(lines, top_k=3), strict=True):
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        masks = tokens[0] == tokenizer.mask_token_id
        hidden = masks.float().expand(1, len(masks), -1)
        predicted = F.one_hot(masks.nonzero()[:, 0], len(masks))[None].float()
        with torch.no_grad():
            scores = theirs(tokens, perm_mask=hidden, target_mapping=predicted).logits[0]
        best = scores.softmax(-1).topk(3)
        assert [[one.token for one in mask] for mask in found] == best.indices.tolist()
        mine = [one.score for mask in found for one in mask]
        assert mine == pytest.approx(best.values.flatten().tolist(), rel=1e-4)
